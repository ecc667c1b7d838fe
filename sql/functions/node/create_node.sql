-- cascade.create_node(set, node, role, provider, welcome, start, known_from): makes this database a
-- branch or leaf.  welcome is what add_member returned at the root, start the tick from which it
-- copies on, as register_subscriber returned it.  A second call changes nothing.
create or replace function cascade.create_node(
    "set" text, node text, role text, provider text, welcome jsonb, start jsonb, known_from bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
    v_node  cascade_internal.node;
    v_tick  cascade_internal.tick := jsonb_populate_record(null::cascade_internal.tick, create_node.start);
begin
    perform cascade_internal.check_name('queue', create_node."set");
    perform cascade_internal.check_name('node', create_node.node);
    perform pg_advisory_xact_lock(1127303507, 2);
    select n.* into v_node
      from cascade_internal.node as n join cascade_internal.queue as q using (queue_id)
     where q.name = create_node."set";
    if found then
        if (v_node.node, v_node.role, v_node.set_uid) is distinct from
           (create_node.node, create_node.role, (create_node.welcome->>'set_uid')::uuid) then
            raise exception 'this database is already % "%" of a set "%"', v_node.role, v_node.node, create_node."set"
                using errcode = 'QC207', hint = 'A database has one node in a set, and never changes its set.';
        end if;
        return false;
    elsif exists (select from cascade_internal.queue as q where q.name = create_node."set") then
        raise exception 'there is a queue "%" in this database that belongs to no set', create_node."set"
            using errcode = 'QC201', hint = 'Drop it, or choose another database: a copy must begin empty.';
    end if;
    perform cascade_internal.commit_durably();
    insert into cascade_internal.queue (name, server, slots, term, term_uid, is_copy, is_combined)
    values (create_node."set", cascade_internal.server_identity(), (create_node.welcome->'options'->>'slots')::smallint,
            (create_node.welcome->>'term')::bigint, (create_node.welcome->>'term_uid')::uuid, true,
            coalesce((create_node.welcome->>'is_combined')::boolean, false) and create_node.role = 'branch')
    returning * into v_queue;
    v_queue := cascade_internal.store_options(v_queue.queue_id, create_node.welcome->'options');
    perform cascade_internal.create_tables(v_queue);
    perform cascade_internal.grant_admin(v_queue);
    execute format('create trigger cascade_fence before insert on queue.%I for each statement'
                   ' execute function cascade_internal.refuse_insert()', v_queue.name);
    insert into cascade_internal.generation (queue_id, gen, since) values (v_queue.queue_id, 0, txid_current());
    v_tick.gen := 0;
    v_tick.gen_low := 0;
    execute format('insert into cascade_internal.tick_%s_0 select ($1).*', v_queue.queue_id) using v_tick;
    insert into cascade_internal.node (queue_id, set_uid, node, node_no, role, provider, generation, file_provider, known_from)
    values (v_queue.queue_id, (create_node.welcome->>'set_uid')::uuid, create_node.node, (create_node.welcome->>'node_no')::smallint,
            create_node.role, create_node.provider, (create_node.welcome->>'generation')::bigint, create_node.provider, create_node.known_from);
    perform cascade_internal.learn_members(v_queue.queue_id, create_node.welcome->'members');
    perform cascade_internal.learn_consumers(v_queue.queue_id, create_node.welcome->'consumers');
    insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause, reason, at, voided_by)
    select v_queue.queue_id, x.uid, x.number, x.node, x.parent_uid, x.fork, x.cause, x.reason, x.at, x.voided_by
      from jsonb_populate_recordset(null::cascade_internal.term, create_node.welcome->'terms') as x;
    perform cascade_internal.learn_history(v_queue.queue_id, create_node.welcome->'history');
    perform cascade_internal.set_marks(v_queue, case when v_queue.is_combined then create_node.start->'marks' end);
    if create_node.role = 'branch' then
        perform cascade_internal.stand_on(v_queue, '.global_watermark', v_tick);
    end if;
    return true;
end
$$;
comment on function cascade.create_node(text, text, text, text, jsonb, jsonb, bigint) is 'Makes this database a branch or leaf of a set.';

-- Registers one of Cascade's own consumers on a tick that the caller holds.
create or replace function cascade_internal.stand_on(queue cascade_internal.queue, consumer text, tick cascade_internal.tick)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
    v_n  bigint;
begin
    insert into cascade_internal.subscription as s (queue_id, consumer)
    values ((stand_on.queue).queue_id, stand_on.consumer)
    on conflict on constraint subscription_consumer_key do update set consumer = excluded.consumer
    returning s.subscription_id into v_id;
    v_n := coalesce((cascade_internal.newest_position(stand_on.queue, v_id)).n, 0) + 1;
    perform cascade_internal.append_position(
        stand_on.queue, (v_id, v_n, (stand_on.tick).tick_id, (stand_on.tick).tick_id, (stand_on.tick).total, '{}', 'seek', null,
                         clock_timestamp())::cascade_internal.position);
end
$$;
comment on function cascade_internal.stand_on(cascade_internal.queue, text, cascade_internal.tick) is 'Puts a consumer of Cascade itself on a tick.';

-- cascade.set_provider, pause_node, resume_node: each raises the generation, so that a batch fetched
-- before cannot land after, and changes nothing unless the generation is the one given.
create or replace function cascade_internal.change_node("set" text, generation bigint, provider text, state text, from_file boolean)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(change_node."set");
begin
    if v_node.role = 'root' then
        raise exception 'node "%" is the root of set "%"', v_node.node, change_node."set"
            using errcode = 'QC208', hint = 'Only branches and leaves have a provider and can be paused.';
    elsif change_node.provider is not null then
        perform cascade_internal.check_provider(v_node, change_node.provider);
    end if;
    perform cascade_internal.commit_durably();
    update cascade_internal.node as n
       set generation = n.generation + 1,
           provider = coalesce(change_node.provider, n.provider),
           file_provider = case when change_node.from_file then change_node.provider else n.file_provider end,
           state = coalesce(change_node.state, n.state),
           answer = null, answer_detail = null, answered_at = null
     where n.queue_id = v_node.queue_id
       and n.generation = coalesce(change_node.generation, n.generation)
    returning n.generation into v_node.generation;
    if not found then
        raise exception 'node "%" has moved on to generation %', v_node.node,
                        (select n.generation from cascade_internal.node as n where n.queue_id = v_node.queue_id)
            using errcode = 'QC209', hint = 'Somebody changed it at the same time: look again.';
    end if;
    perform cascade_internal.note_step(change_node."set", null,
        case when change_node.provider is not null then 'set provider' when change_node.state = 'paused' then 'pause' else 'resume' end,
        case when change_node.provider is null then '{}' else
             jsonb_build_object('from', v_node.provider, 'to', change_node.provider, 'by_file', change_node.from_file) end);
    perform pg_notify('cascade_node', change_node."set");
    return v_node.generation;
end
$$;
comment on function cascade_internal.change_node(text, bigint, text, text, boolean) is 'Changes this node and raises its generation.';

create or replace function cascade_internal.check_provider(node cascade_internal.node, provider text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_member cascade_internal.member;
begin
    select m.* into v_member from cascade_internal.member as m
     where m.queue_id = (check_provider.node).queue_id and m.node = check_provider.provider;
    if not found then
        raise exception 'node "%": no member "%" is known to copy from', (check_provider.node).node, check_provider.provider
            using errcode = 'QC106', hint = format('Known are %s.',
                (select string_agg(m.node, ', ' order by m.node_no) from cascade_internal.member as m
                  where m.queue_id = (check_provider.node).queue_id and m.role <> 'leaf' and m.state = 'live'));
    elsif v_member.role = 'leaf' or v_member.state <> 'live' or v_member.node = (check_provider.node).node then
        raise exception 'node "%" cannot copy from "%"', (check_provider.node).node, check_provider.provider
            using errcode = 'QC208', hint = 'A leaf keeps no queue, a member that was dropped or marked dead is gone, and nobody is their own provider.';
    end if;
end
$$;
comment on function cascade_internal.check_provider(cascade_internal.node, text) is 'Refuses a provider that cannot be one.';

create or replace function cascade.set_provider("set" text, provider text, generation bigint default null, from_file boolean default false)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if set_provider.provider is null then
        raise exception 'no provider was named' using errcode = 'QC003', hint = 'Pass the name of a node that carries the queue.';
    end if;
    return cascade_internal.change_node(set_provider."set", set_provider.generation, set_provider.provider, null, set_provider.from_file);
end
$$;
comment on function cascade.set_provider(text, text, bigint, boolean) is 'Has this node copy from another one, and returns its new generation.';

create or replace function cascade.pause_node("set" text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return cascade_internal.change_node(pause_node."set", null, null, 'paused', false);
end
$$;
comment on function cascade.pause_node(text) is 'Has this node copy nothing until it is resumed.';

create or replace function cascade.resume_node("set" text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return cascade_internal.change_node(resume_node."set", null, null, 'running', false);
end
$$;
comment on function cascade.resume_node(text) is 'Has this node copy again, also after its provider refused it.';

-- cascade.readmit_node(set, welcome, known_from): this node was dropped and has been added again.  It
-- goes on from where it stands; whether that is still possible is what its provider answers.
create or replace function cascade.readmit_node("set" text, welcome jsonb, known_from bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(readmit_node."set");
begin
    perform cascade_internal.commit_durably();
    perform cascade_internal.learn_members(v_node.queue_id, readmit_node.welcome->'members');
    perform cascade_internal.learn_history(v_node.queue_id, readmit_node.welcome->'history');
    perform cascade_internal.learn_consumers(v_node.queue_id, readmit_node.welcome->'consumers');
    update cascade_internal.node as n
       set generation = greatest(n.generation + 1, (readmit_node.welcome->>'generation')::bigint),
           answer = null, answer_detail = null, answered_at = null, known_from = readmit_node.known_from
     where n.queue_id = v_node.queue_id
    returning n.* into v_node;
    perform pg_notify('cascade_node', readmit_node."set");
    return v_node.generation;
end
$$;
comment on function cascade.readmit_node(text, jsonb, bigint) is 'Takes up again a node that was dropped and added again.';

-- cascade.note_error(set, error): what stops this node's handler or copying now; null when nothing
-- does any more.  Nothing is written when nothing changed.
create or replace function cascade.note_error("set" text, error text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.node as n
       set error = left(note_error.error, 2000), error_at = case when note_error.error is not null then clock_timestamp() end
      from cascade_internal.queue as q
     where q.queue_id = n.queue_id
       and q.name = note_error."set"
       and n.error is distinct from left(note_error.error, 2000);
end
$$;
comment on function cascade.note_error(text, text) is 'Stores what stops this node now.';

-- cascade.set_processing(set, is_wanted): whether this branch runs a handler.  Its place in the queue is a
-- consumer of Cascade's own, which begins with the first tick held; without a handler it must not
-- hold anything.
create or replace function cascade.set_processing("set" text, is_wanted boolean)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(set_processing."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(set_processing."set");
    v_is    constant boolean := exists (select from cascade_internal.subscription as s
                                         where s.queue_id = v_queue.queue_id and s.consumer = '.handler');
begin
    if set_processing.is_wanted and v_node.role <> 'branch' then
        raise exception 'node "%" is a %; a handler of its own runs on a branch', v_node.node, v_node.role
            using errcode = 'QC208', hint = 'A leaf processes what it reads; at the root, use a consumer.';
    elsif v_is = set_processing.is_wanted then
        return false;
    elsif set_processing.is_wanted then
        perform cascade_internal.stand_on(v_queue, '.handler', cascade_internal.hold_tick(v_queue, 'earliest'));
    else
        delete from cascade_internal.subscription as s where s.queue_id = v_queue.queue_id and s.consumer = '.handler';
    end if;
    return true;
end
$$;
comment on function cascade.set_processing(text, boolean) is 'Registers or forgets the handler of a branch.';
