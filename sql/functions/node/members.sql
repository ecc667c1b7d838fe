-- cascade.create_set(set, node, location, options, is_combined) makes this database the root of a new set and
-- returns the set's uid.  A queue of that name that stands alone becomes the set's queue, with all
-- its events.  A second call for the same node changes nothing but the location.
create or replace function cascade.create_set("set" text, node text, location jsonb default '{}', options jsonb default '{}', is_combined boolean default false)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
    v_node  cascade_internal.node;
begin
    perform cascade_internal.check_name('node', create_set.node);
    perform cascade_internal.check_location(create_set.location);
    perform cascade_internal.check_read_committed('making a set');
    if not exists (select from cascade_internal.queue as q where q.name = create_set."set") then
        perform cascade_internal.create_queue(create_set."set", create_set.options, create_set.is_combined);
    end if;
    select q.* into v_queue from cascade_internal.queue as q where q.name = create_set."set" for no key update;
    if v_queue.is_combined is distinct from create_set.is_combined then
        raise exception 'queue "%" is here already and % combined', create_set."set", case when v_queue.is_combined then 'is' else 'is not' end
            using errcode = 'QC201', hint = 'A combined set begins empty: its events come from its parts.  Choose another name.';
    end if;
    select n.* into v_node from cascade_internal.node as n where n.queue_id = v_queue.queue_id;
    if found then
        if v_node.role <> 'root' or v_node.node <> create_set.node then
            raise exception 'this database is already % "%" of set "%"', v_node.role, v_node.node, create_set."set"
                using errcode = 'QC207', hint = 'A database has one node in a set.';
        end if;
        perform cascade_internal.change_member(v_queue, v_node.node, null, create_set.location);
        return v_node.set_uid;
    end if;
    insert into cascade_internal.node (queue_id, set_uid, node, node_no, role)
    values (v_queue.queue_id, gen_random_uuid(), create_set.node, 1, 'root')
    returning * into v_node;
    insert into cascade_internal.term (queue_id, uid, number, node, cause)
    values (v_queue.queue_id, v_queue.term_uid, v_queue.term, create_set.node, 'created');
    insert into cascade_internal.member (queue_id, node, node_no, role, since_tick, location, version)
    values (v_queue.queue_id, create_set.node, 1, 'root',
            (cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots)).tick_id, create_set.location, 1);
    perform cascade_internal.stand_on(v_queue, '.global_watermark', cascade_internal.hold_tick(v_queue, 'earliest'));
    update cascade_internal.queue as q set timeline = cascade_internal.server_timeline() where q.queue_id = v_queue.queue_id;
    return v_node.set_uid;
end
$$;
comment on function cascade.create_set(text, text, jsonb, jsonb, boolean) is 'Makes this database the root of a new set.';

-- A location names a database and how to reach it; a password has no place in it.
create or replace function cascade_internal.check_location(location jsonb)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if check_location.location is null or jsonb_typeof(check_location.location) <> 'object'
       or exists (select from jsonb_object_keys(check_location.location) as k where k not in ('database', 'dsn')) then
        raise exception 'a location is {"database": name, "dsn": text}'
            using errcode = 'QC003', hint = 'Pass the name of the database in the topology file and its DSN.';
    -- The parameters that topology/dsn.py knows as secret; one whose name is written with a % may be any of them.
    elsif check_location.location->>'dsn' ~* concat('(^|[\s?&''])((ssl)?password|oauth_client_secret|scram_(client|server)_key)\s*=',
                                                    '|[?&][^=&]*%[^=&]*=|://[^/@:]*:[^/@]*@') then
        raise exception 'the location holds a password'
            using errcode = 'QC003', hint = 'Use a service file, pgpass or the environment: tables are read by many.';
    end if;
end
$$;
comment on function cascade_internal.check_location(jsonb) is 'Refuses locations with anything unknown or secret.';

create or replace function cascade_internal.next_version(queue_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select max(m.version) + 1 from cascade_internal.member as m where m.queue_id = next_version.queue_id);
end
$$;
comment on function cascade_internal.next_version(integer) is 'The number of the next change of members.';

-- Changes a member at the root and publishes it.  Null leaves a field as it is.
create or replace function cascade_internal.change_member(queue cascade_internal.queue, node text, state text, location jsonb)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_member cascade_internal.member;
begin
    update cascade_internal.member as m
       set state = coalesce(change_member.state, m.state),
           location = coalesce(change_member.location, m.location),
           generation = m.generation + case when change_member.state <> m.state then 1 else 0 end,
           version = cascade_internal.next_version(m.queue_id), changed_at = clock_timestamp()
     where m.queue_id = (change_member.queue).queue_id
       and m.node = change_member.node
       and (m.state is distinct from coalesce(change_member.state, m.state)
            or m.location is distinct from coalesce(change_member.location, m.location))
    returning m.* into v_member;
    if not found then
        return false;
    end if;
    perform cascade_internal.post_control(change_member.queue, 'cascade.member', to_jsonb(v_member) - 'queue_id');
    delete from cascade_internal.told as t
     where t.queue_id = v_member.queue_id and t.node = v_member.node and v_member.state = 'dropped';
    return true;
end
$$;
comment on function cascade_internal.change_member(cascade_internal.queue, text, text, jsonb) is 'Changes and publishes a member; false when nothing was to change.';

-- cascade.add_member(set, node, role, location, again, into_set): called at the root before a new node copies
-- anything, so that everybody keeps what it will need.  Returns what the node must know.  A second
-- call changes nothing; a member that was dropped or marked dead is taken back only with again.
create or replace function cascade.add_member("set" text, node text, role text, location jsonb default '{}', again boolean default false, into_set text default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root   cascade_internal.node := cascade_internal.find_root(add_member."set");
    v_queue  cascade_internal.queue;
    v_member cascade_internal.member;
begin
    perform cascade_internal.check_name('node', add_member.node);
    perform cascade_internal.check_location(add_member.location);
    perform cascade_internal.check_read_committed('adding a member');
    if add_member.role is null or add_member.role not in ('branch', 'leaf', 'merge-leaf')
       or (add_member.role = 'merge-leaf') <> (add_member.into_set is not null) then
        raise exception 'a member is added as branch, leaf, or merge-leaf into a combined set, not as %', coalesce(add_member.role, 'null')
            using errcode = 'QC003', hint = 'A root is made by cascade.create_set().';
    end if;
    perform cascade_internal.commit_durably();
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_root.queue_id for no key update;
    select m.* into v_member from cascade_internal.member as m where m.queue_id = v_queue.queue_id and m.node = add_member.node;
    if not found then
        if (select max(m.node_no) from cascade_internal.member as m where m.queue_id = v_queue.queue_id) >= 99 then
            raise exception 'set "%" has had 99 members, and their numbers are never given again', add_member."set"
                using errcode = 'QC208', hint = 'Take one of the dropped ones back, by its name, or make a new set.';
        end if;
        insert into cascade_internal.member (queue_id, node, node_no, role, into_set, since_tick, location, version)
        select v_queue.queue_id, add_member.node,
               (select max(m.node_no) + 1 from cascade_internal.member as m where m.queue_id = v_queue.queue_id),
               case add_member.role when 'merge-leaf' then 'leaf' else add_member.role end, add_member.into_set,
               cascade_internal.watermark(v_queue), add_member.location, cascade_internal.next_version(v_queue.queue_id)
        returning member.* into v_member;
        perform cascade_internal.post_control(v_queue, 'cascade.member', to_jsonb(v_member) - 'queue_id');
        perform cascade_internal.note_step(v_queue.name, null, 'add member', jsonb_build_object('member', v_member.node, 'role', add_member.role));
    elsif (cascade_internal.member_role(v_member, v_queue.is_combined), v_member.into_set) is distinct from (add_member.role, add_member.into_set) then
        raise exception 'member "%" of set "%" is a %, not a %', add_member.node, add_member."set",
                        cascade_internal.member_role(v_member, v_queue.is_combined), add_member.role
            using errcode = 'QC207', hint = 'Choose another name, or drop the member first.';
    elsif v_member.state <> 'live' and not coalesce(add_member.again, false) then
        raise exception 'member "%" of set "%" is %', add_member.node, add_member."set", v_member.state
            using errcode = 'QC701', hint = format('cascade node add %s %s takes it back.', add_member."set", add_member.node);
    else
        if v_member.state <> 'live' then
            update cascade_internal.member as m
               set since_tick = cascade_internal.watermark(v_queue)
             where m.queue_id = v_queue.queue_id and m.node = add_member.node;
            perform cascade_internal.note_step(v_queue.name, null, 'add member', jsonb_build_object('member', v_member.node, 'was', v_member.state));
        end if;
        perform cascade_internal.change_member(v_queue, add_member.node, 'live', add_member.location);
        select m.* into v_member from cascade_internal.member as m where m.queue_id = v_queue.queue_id and m.node = add_member.node;
    end if;
    return jsonb_build_object(
        'set_uid', v_root.set_uid, 'is_combined', v_queue.is_combined, 'node_no', v_member.node_no, 'generation', v_member.generation, 'since_tick', v_member.since_tick,
        'term', v_queue.term, 'term_uid', v_queue.term_uid, 'options', cascade_internal.queue_options(v_queue),
        'terms', cascade_internal.known_terms(v_queue.queue_id), 'members', cascade_internal.known_members(v_queue.queue_id),
        'history', cascade_internal.known_history(v_queue.queue_id),
        'consumers', cascade_internal.known_consumers(v_queue.queue_id, v_root.node));
end
$$;
comment on function cascade.add_member(text, text, text, jsonb, boolean, text) is 'Adds a member at the root, and returns what its node must know.';

-- cascade.drop_member(set, node), cascade.mark_dead(set, node): the member no longer holds anybody's
-- disk.  A dropped one is gone; a dead one may be the only other copy of something, so a root that
-- has no live carrier left keeps what no carrier told it has.  False when it was so already.
create or replace function cascade_internal.end_member("set" text, node text, state text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(end_member."set");
    v_queue cascade_internal.queue;
begin
    perform cascade_internal.check_read_committed('changing a member');
    perform cascade_internal.commit_durably();
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_root.queue_id for no key update;
    if not exists (select from cascade_internal.member as m where m.queue_id = v_queue.queue_id and m.node = end_member.node) then
        raise exception 'set "%" has no member "%"', end_member."set", coalesce(end_member.node, '(null)')
            using errcode = 'QC106', hint = 'The view cascade.members lists them.';
    elsif end_member.node = v_root.node then
        raise exception 'node "%" is the root of set "%"', end_member.node, end_member."set"
            using errcode = 'QC208', hint = 'Make another node the root first.';
    end if;
    if not cascade_internal.change_member(v_queue, end_member.node, end_member.state, null) then
        return false;
    end if;
    perform cascade_internal.note_step(v_queue.name, null, case end_member.state when 'dropped' then 'drop member' else 'mark dead' end,
                                       jsonb_build_object('member', end_member.node));
    return true;
end
$$;
comment on function cascade_internal.end_member(text, text, text) is 'Takes a member out of account.';

create or replace function cascade.drop_member("set" text, node text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return cascade_internal.end_member(drop_member."set", drop_member.node, 'dropped');
end
$$;
comment on function cascade.drop_member(text, text) is 'Drops a member, at the root.';

create or replace function cascade.mark_dead("set" text, node text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return cascade_internal.end_member(mark_dead."set", mark_dead.node, 'dead');
end
$$;
comment on function cascade.mark_dead(text, text) is 'Marks a member dead, at the root.';
