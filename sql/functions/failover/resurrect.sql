-- Resurrection: a carrier that stands beyond a fork sets its tail aside, and goes on from the fork as a branch.  Until the last
-- transaction everything can be repeated; after it nothing is left to do.

-- cascade.list_chains(set, before, max): this node's ticks, newest first, as (id, chain): whoever wants to know what two nodes have in
-- common asks the one and tells the other.
create or replace function cascade.list_chains("set" text, before bigint default null, max integer default 1000)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(list_chains."set");
    v_found jsonb;
begin
    execute format('select coalesce(jsonb_agg(jsonb_build_array(t.tick_id, t.chain) order by t.tick_id desc), ''[]'')'
                   ' from (select x.tick_id, x.chain from (%s) as x where x.tick_id < coalesce($1, 9223372036854775807)'
                   ' order by x.tick_id desc limit $2) as t', cascade_internal.held_ticks(v_queue))
       into v_found using list_chains.before, list_chains.max;
    return v_found;
end
$$;
comment on function cascade.list_chains(text, bigint, integer) is 'Ticks held here with their chains, newest first.';

-- cascade.last_common(set, chains): the newest tick of this node that is among those, whole; null when none is.  Equal chains
-- prove that everything below is equal too.
create or replace function cascade.last_common("set" text, chains jsonb)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(last_common."set");
    v_found jsonb;
begin
    execute format('select to_jsonb(t) from (%s) as t join jsonb_array_elements($1) as c on (c->>0)::bigint = t.tick_id and (c->>1)::bytea = t.chain'
                   ' order by t.tick_id desc limit 1', cascade_internal.held_ticks(v_queue))
       into v_found using last_common.chains;
    return v_found;
end
$$;
comment on function cascade.last_common(text, jsonb) is 'The newest tick that this node shares with another.';

-- The rows that the snapshot of a tick does not see.
create or replace function cascade_internal.tail_where(fork cascade_internal.tick)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select format('(e.txid >= %s or e.txid = any (%L::bigint[]))', (tail_where.fork).high, (tail_where.fork)."open")
$$;
comment on function cascade_internal.tail_where(cascade_internal.tick) is 'The condition for rows beyond a fork.';

-- Checks that a node can be taken back to a tick, and returns that tick as it is held here.
create or replace function cascade_internal.check_fork(queue cascade_internal.queue, node cascade_internal.node, fork jsonb)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_fork  constant cascade_internal.tick := cascade_internal.find_tick((check_fork.queue).queue_id, (check_fork.queue).slots, (check_fork.fork->>'tick_id')::bigint);
    v_first cascade_internal.tick;
begin
    if (check_fork.node).role = 'root'
       and not exists (select from cascade_internal.fence as f
                        where f.queue_id = (check_fork.queue).queue_id and f.cause <> 'operation' and f.is_up) then
        raise exception 'node "%" is a root that is not fenced', (check_fork.node).node
            using errcode = 'QC208', hint = 'Only a root whose term is over is resurrected; its daemon fences it when it hears of that.';
    elsif (check_fork.node).role = 'leaf' then
        raise exception 'node "%" is a leaf and keeps no events', (check_fork.node).node
            using errcode = 'QC208', hint = 'cascade.reset_leaf() takes a leaf back to a fork.';
    elsif v_fork.chain is distinct from (check_fork.fork->>'chain')::bytea then
        raise exception 'node "%" does not hold tick % of the common path', (check_fork.node).node, check_fork.fork->>'tick_id'
            using errcode = 'QC706', hint = 'Ask its provider for the last tick they have in common.';
    end if;
    execute cascade_internal.ticks_query(check_fork.queue) || ' order by tick_id limit 1' into v_first;
    if v_first.tick_id > v_fork.tick_id then
        raise exception 'node "%" no longer holds what follows tick %', (check_fork.node).node, v_fork.tick_id
            using errcode = 'QC707', hint = 'Drop its queue and add the node again; what was set aside is kept.';
    end if;
    return v_fork;
end
$$;
comment on function cascade_internal.check_fork(cascade_internal.queue, cascade_internal.node, jsonb) is 'The tick to which a node is taken back, if it can be.';

-- cascade.set_aside(set, fork, max_rows): copies rows of the tail into quarantine, and says how many are left.  Repeatable: a row
-- has its term and id as key.
create or replace function cascade.set_aside("set" text, fork jsonb, max_rows integer default 10000)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(set_aside."set");
    v_node  cascade_internal.node := cascade_internal.find_node(set_aside."set");
    v_fork  constant cascade_internal.tick := cascade_internal.check_fork(v_queue, v_node, set_aside.fork);
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_slot  integer;
    v_moved bigint := 0;
    v_done  bigint;
    v_left  bigint := 0;
begin
    for v_slot in 0 .. v_queue.slots - 1 loop
        -- Set aside before, and back in the log since, as another path was kept: now it leaves the log again.
        execute format('update cascade_internal.quarantine as x set state = ''held'', new_id = null, settled = null'
                       ' from cascade_internal.event_%s_%s as e where %s and x."set" = %L and x.id = e.id and x.txid = e.txid'
                       ' and x.state in (''republished'', ''duplicate'')',
                       v_queue.queue_id, v_slot, cascade_internal.tail_where(v_fork), v_queue.name);
        -- A tail may reach over several terms; an id says which.
        execute format(
            'insert into cascade_internal.quarantine ("set", term_uid, id, "time", txid, type, key, payload, headers, origin, origin_id, state)'
            ' select %L, coalesce((select t.uid from cascade_internal.term as t where t.queue_id = %s and t.number = e.id / 1000000000000 and t.voided_by is null'
            ' order by t.uid = %L desc limit 1), %3$L), e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id,'
            ' case e.origin when ''.cascade'' then ''control'' else ''held'' end'
            ' from cascade_internal.event_%2$s_%4$s as e where %5$s and not exists (select from cascade_internal.quarantine as x'
            ' where x."set" = %1$L and x.id = e.id and x.txid = e.txid) limit %6$s'
            ' on conflict on constraint quarantine_pkey do nothing',
            v_queue.name, v_queue.queue_id, v_last.term_uid, v_slot, cascade_internal.tail_where(v_fork), set_aside.max_rows - v_moved);
        get diagnostics v_done = row_count;
        v_moved := v_moved + v_done;
        v_left := v_left + cascade_internal.count_unsaved(v_queue, v_slot, v_fork);
    end loop;
    if v_moved > 0 then
        perform cascade_internal.note_step(v_queue.name, null, 'set aside', jsonb_build_object('moved', v_moved, 'left', v_left, 'fork_tick', v_fork.tick_id));
    end if;
    return jsonb_build_object('moved', v_moved, 'left', v_left, 'fork_tick', v_fork.tick_id, 'term_uid', v_last.term_uid);
end
$$;
comment on function cascade.set_aside(text, jsonb, integer) is 'Copies events beyond a fork into quarantine.';

-- How many rows of the tail are not in quarantine, compared by what they say.
create or replace function cascade_internal.count_unsaved(queue cascade_internal.queue, slot integer, fork cascade_internal.tick)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_count bigint;
begin
    execute format(
        'select count(*) from cascade_internal.event_%s_%s as e where %s and not exists (select from cascade_internal.quarantine as x'
        ' where x."set" = %L and x.id = e.id and x.txid = e.txid and x."time" = e."time"'
        ' and (x.type, x.key, x.payload::text, x.headers::text) is not distinct from (e.type, e.key, e.payload::text, e.headers::text))',
        (count_unsaved.queue).queue_id, count_unsaved.slot, cascade_internal.tail_where(count_unsaved.fork), (count_unsaved.queue).name)
       into v_count;
    return v_count;
end
$$;
comment on function cascade_internal.count_unsaved(cascade_internal.queue, integer, cascade_internal.tick) is 'How many events beyond a fork are not in quarantine.';

-- cascade.resurrect(set, fork, provider, members): the last transaction.  The tail leaves the log (the one time that rows are deleted), consumers
-- beyond the fork go back to it, the node is a branch.  Called again, it changes nothing.
create or replace function cascade.resurrect("set" text, fork jsonb, provider text, members jsonb default '[]')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(resurrect."set");
    v_node  cascade_internal.node := cascade_internal.find_node(resurrect."set");
    v_fork  cascade_internal.tick;
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_slot  integer;
    v_rows  bigint := 0;
    v_ticks bigint := 0;
    v_done  bigint;
    v_phantoms jsonb;
    v_marks    jsonb;
begin
    if v_node.role = 'branch'
       and (v_last.tick_id, v_last.chain) = ((resurrect.fork->>'tick_id')::bigint, (resurrect.fork->>'chain')::bytea)
       and not cascade_internal.is_dirty(v_queue, v_last) then
        return jsonb_build_object('role', 'branch', 'provider', v_node.provider, 'events', 0, 'ticks', 0, 'phantoms', '[]'::jsonb, 'is_repeat', true);
    end if;
    v_fork := cascade_internal.check_fork(v_queue, v_node, resurrect.fork);
    for v_slot in 0 .. v_queue.slots - 1 loop
        if cascade_internal.count_unsaved(v_queue, v_slot, v_fork) > 0 then
            raise exception 'node "%" has events beyond tick % that are not in quarantine', v_node.node, v_fork.tick_id
                using errcode = 'QC702', hint = 'Set them aside first: cascade.set_aside().';
        end if;
    end loop;
    v_marks := cascade_internal.marks_at(v_queue, v_fork);
    v_phantoms := cascade_internal.send_back(v_queue, v_node, v_fork, v_last);
    perform cascade_internal.forget_certificates(v_queue, v_fork);
    for v_slot in 0 .. v_queue.slots - 1 loop
        -- What was republished into the lost tail is not in the log any more.
        execute format('delete from cascade_internal.republished as r using cascade_internal.event_%s_%s as e'
                       ' where r.queue_id = %1$s and r.new_id = e.id and %3$s', v_queue.queue_id, v_slot, cascade_internal.tail_where(v_fork));
        execute format('delete from cascade_internal.event_%s_%s as e where %s', v_queue.queue_id, v_slot, cascade_internal.tail_where(v_fork));
        get diagnostics v_done = row_count;
        v_rows := v_rows + v_done;
        execute format('delete from cascade_internal.tick_%s_%s as t where t.tick_id > %s', v_queue.queue_id, v_slot, v_fork.tick_id);
        get diagnostics v_done = row_count;
        v_ticks := v_ticks + v_done;
    end loop;
    perform cascade_internal.set_marks(v_queue, v_marks);
    -- Certificates of a path that is no more; those of the present one come with the log.
    delete from cascade_internal.certificate as c
     where c.queue_id = v_queue.queue_id
       and not exists (select from cascade_internal.path_terms(v_queue.queue_id, v_fork.term_uid) as p where p.uid = c.new_uid);
    return cascade_internal.become_branch(v_queue, v_node, resurrect.provider, resurrect.members, 'resurrect')
        || jsonb_build_object('events', v_rows, 'ticks', v_ticks, 'fork_tick', v_fork.tick_id, 'term_uid', v_last.term_uid, 'phantoms', v_phantoms);
end
$$;
comment on function cascade.resurrect(text, jsonb, text, jsonb) is 'Takes a carrier back to a fork and makes it a branch.';

-- Takes back what the tail said of certificates.  Each event of it was one version more: the new root counts on from the
-- fork too, and its versions are to be learned.  One that was opened in the tail is gone.
create or replace function cascade_internal.forget_certificates(queue cascade_internal.queue, fork cascade_internal.tick)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_id   constant integer := (forget_certificates.queue).queue_id;
    v_slot integer;
begin
    for v_slot in 0 .. (forget_certificates.queue).slots - 1 loop
        execute format(
            'update cascade_internal.certificate as c set version = c.version - x.events'
            ' from (select (e.payload->>''new_uid'')::uuid as new_uid, count(*) as events from cascade_internal.event_%s_%s as e'
            ' where %s and e.origin = ''.cascade'' and e.type = ''cascade.certificate'' group by 1) as x'
            ' where c.queue_id = %1$s and c.new_uid = x.new_uid', v_id, v_slot, cascade_internal.tail_where(forget_certificates.fork));
    end loop;
    delete from cascade_internal.certificate as c where c.queue_id = v_id and c.version < 1;
end
$$;
comment on function cascade_internal.forget_certificates(cascade_internal.queue, cascade_internal.tick) is 'Takes back what a lost tail said of certificates.';

-- Sets consumers beyond a fork back to it, their open batches revoked, and records what they had processed.
create or replace function cascade_internal.send_back(
    queue cascade_internal.queue, node cascade_internal.node, fork cascade_internal.tick, last cascade_internal.tick)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_state    record;
    v_position cascade_internal.position;
    v_work     cascade_internal.work_consumer;
    v_done     bigint;
    v_events   bigint;
    v_found    jsonb := '[]';
begin
    for v_state in
        select s.consumer, s.subscription_id, s.tick_id, s.head, s.total from cascade_internal.consumer_state(send_back.queue) as s
         where greatest(s.tick_id, s.head) > (send_back.fork).tick_id order by s.consumer
    loop
        perform from cascade_internal.subscription as s where s.subscription_id = v_state.subscription_id for no key update;
        v_position := cascade_internal.newest_position(send_back.queue, v_state.subscription_id);
        v_done := (send_back.fork).tick_id;
        v_events := v_state.total - (send_back.fork).total;
        select w.* into v_work from cascade_internal.work_consumer as w where w.subscription_id = v_state.subscription_id;
        if found then
            v_events := cascade_internal.forget_lost(send_back.queue, v_work, send_back.fork);
            v_done := coalesce(cascade_internal.oldest_chunk_tick(v_state.subscription_id), v_done);
        end if;
        perform cascade_internal.append_position(send_back.queue,
            (v_state.subscription_id, v_position.n + 1, v_done, (send_back.fork).tick_id, (send_back.fork).total, '{}', 'seek', null,
             clock_timestamp())::cascade_internal.position);
        -- What was only handed out counts as well: somebody may have acted on it.
        continue when v_state.consumer = '.global_watermark' or v_work.subscription_id is not null and v_events = 0;
        insert into cascade_internal.phantom as p ("set", term_uid, node, consumer, from_tick, to_tick, events)
        values ((send_back.queue).name, (send_back.last).term_uid, (send_back.node).node, v_state.consumer, (send_back.fork).tick_id,
                greatest(v_state.tick_id, v_state.head), v_events)
        on conflict on constraint phantom_pkey do update
           set from_tick = least(p.from_tick, excluded.from_tick), to_tick = greatest(p.to_tick, excluded.to_tick), events = p.events + excluded.events;
        v_found := v_found || jsonb_build_object('consumer', v_state.consumer, 'from_tick', (send_back.fork).tick_id,
                                                 'to_tick', greatest(v_state.tick_id, v_state.head));
    end loop;
    return v_found;
end
$$;
comment on function cascade_internal.send_back(cascade_internal.queue, cascade_internal.node, cascade_internal.tick, cascade_internal.tick)
    is 'Sets consumers back to a fork, and records what they had seen.';

-- cascade.reset_leaf(set, fork): a leaf that processed what the set lost goes back to the fork, and says so.
create or replace function cascade.reset_leaf("set" text, fork jsonb)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(reset_leaf."set");
    v_node  cascade_internal.node := cascade_internal.find_node(reset_leaf."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_fork  cascade_internal.tick := jsonb_populate_record(null::cascade_internal.tick, reset_leaf.fork);
    v_gen   constant bigint := cascade_internal.current_gen(v_queue.queue_id, v_queue.slots);
    v_slot  integer;
    v_made  jsonb;
begin
    if v_node.role <> 'leaf' then
        raise exception 'node "%" is a %, not a leaf', v_node.node, v_node.role
            using errcode = 'QC208', hint = 'A branch is resurrected: it has events to set aside.';
    elsif v_last.tick_id <= v_fork.tick_id and v_last.chain = coalesce((cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, v_fork.tick_id)).chain, v_last.chain) then
        return jsonb_build_object('from_tick', v_fork.tick_id, 'to_tick', v_last.tick_id, 'changed', false);
    end if;
    if v_node.into_set is not null then
        v_made := cascade_internal.fork_part(v_queue, v_node, v_fork);
        if v_made is null then
            return jsonb_build_object('from_tick', v_fork.tick_id, 'to_tick', v_last.tick_id, 'changed', false, 'follows', v_node.into_set);
        end if;
    end if;
    insert into cascade_internal.phantom as p ("set", term_uid, node, consumer, from_tick, to_tick, events)
    values (v_queue.name, v_last.term_uid, v_node.node, '.leaf', v_fork.tick_id, v_last.tick_id, v_last.total - v_fork.total)
    on conflict on constraint phantom_pkey do update
       set from_tick = least(p.from_tick, excluded.from_tick), to_tick = greatest(p.to_tick, excluded.to_tick), events = p.events + excluded.events;
    if v_made is not null then
        return jsonb_build_object('from_tick', v_fork.tick_id, 'to_tick', v_last.tick_id, 'events', v_made->'events', 'changed', true, 'into', v_node.into_set);
    end if;
    for v_slot in 0 .. v_queue.slots - 1 loop
        execute format('delete from cascade_internal.tick_%s_%s as t where t.tick_id >= %s', v_queue.queue_id, v_slot, v_fork.tick_id);
    end loop;
    v_fork.gen := v_gen;
    v_fork.gen_low := v_gen;
    execute format('insert into cascade_internal.tick_%s_%s select ($1).*', v_queue.queue_id, v_gen % v_queue.slots) using v_fork;
    update cascade_internal.node as n set generation = n.generation + 1, answer = null, answer_detail = null, answered_at = null where n.queue_id = v_queue.queue_id;
    perform cascade_internal.note_step(v_queue.name, null, 'reset leaf', jsonb_build_object('from_tick', v_fork.tick_id, 'to_tick', v_last.tick_id));
    perform pg_notify('cascade_node', v_queue.name);
    return jsonb_build_object('from_tick', v_fork.tick_id, 'to_tick', v_last.tick_id, 'events', v_last.total - v_fork.total, 'changed', true);
end
$$;
comment on function cascade.reset_leaf(text, jsonb) is 'Takes a leaf back to a fork, and records what it had processed.';
