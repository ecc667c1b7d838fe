-- cascade.next_copy(set, node, generation, tick_id, chain, max_ticks, max_events): asked of the provider.
-- Returns the ticks that follow, as JSON, and the query that reads their events; no row when there is
-- nothing.  The subscriber is checked each time: a member, on the path, its events held.
create or replace function cascade.next_copy(
    "set" text, node text, generation bigint, tick_id bigint, chain bytea, max_ticks integer, max_events bigint)
returns table (to_tick bigint, to_chain bytea, events bigint, ticks jsonb, query text, version bigint, last_tick bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(next_copy."set");
    v_prev  cascade_internal.tick;
    v_cur   cascade_internal.tick;
begin
    v_prev := cascade_internal.check_subscriber(v_queue, next_copy.node, next_copy.generation, next_copy.tick_id, next_copy.chain);
    -- The ticks that follow, up to the limits; the first one always fits.
    execute format(
        'select jsonb_agg(to_jsonb(t) order by t.tick_id), max(t.tick_id), max(t.total) - %s'
        ' from (select x.*, row_number() over (order by x.tick_id) as k from (%s) as x'
        ' where x.tick_id > %s order by x.tick_id limit %s) as t where t.k = 1 or t.total <= %1$s + %5$s',
        v_prev.total, cascade_internal.held_ticks(v_queue), v_prev.tick_id, next_copy.max_ticks, next_copy.max_events)
       into next_copy.ticks, next_copy.to_tick, next_copy.events;
    if next_copy.to_tick is null then
        return;
    end if;
    v_cur := jsonb_populate_record(null::cascade_internal.tick, next_copy.ticks->-1);
    next_copy.to_chain := v_cur.chain;
    next_copy.query := cascade_internal.batch_arms(v_queue, v_prev, v_cur,
        'e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id');
    next_copy.version := (select n.generation from cascade_internal.node as n where n.queue_id = v_queue.queue_id);
    next_copy.last_tick := (cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots)).tick_id;
    return next;
end
$$;
comment on function cascade.next_copy(text, text, bigint, bigint, bytea, integer, bigint) is 'What a subscriber copies next.';

create or replace function cascade_internal.held_ticks(queue cascade_internal.queue)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select string_agg(format('select t.* from cascade_internal.tick_%s_%s as t', (held_ticks.queue).queue_id, g.gen % (held_ticks.queue).slots), ' union all ')
              from generate_series(cascade_internal.oldest_gen((held_ticks.queue).queue_id),
                                   cascade_internal.current_gen((held_ticks.queue).queue_id, (held_ticks.queue).slots)) as g(gen));
end
$$;
comment on function cascade_internal.held_ticks(cascade_internal.queue) is 'A query for all ticks that are there.';

-- Whether a node may go on copying from here; the usual case costs two look-ups, and whatever else it
-- is, is raised as the answer that joining would give.
create or replace function cascade_internal.check_subscriber(
    queue cascade_internal.queue, node text, generation bigint, tick_id bigint, chain bytea)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := (check_subscriber.queue).queue_id;
    v_prev cascade_internal.tick := cascade_internal.find_tick(v_id, (check_subscriber.queue).slots, check_subscriber.tick_id);
begin
    if not exists (select from cascade_internal.member as m where m.queue_id = v_id and m.node = check_subscriber.node and m.state = 'live') then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', check_subscriber.node));
    elsif v_prev.chain is distinct from check_subscriber.chain
          or cascade_internal.is_dropped(v_id)
          or cascade_internal.first_gen(v_id) > v_prev.gen_low then
        -- Not where it was: joining again says why.
        raise exception 'node "%" stands on tick %, which is not here', check_subscriber.node, check_subscriber.tick_id
            using errcode = 'QC709', hint = 'Join again: the answer says why.';
    end if;
    return v_prev;
end
$$;
comment on function cascade_internal.check_subscriber(cascade_internal.queue, text, bigint, bigint, bytea) is 'The tick a subscriber stands on, or why it may not go on.';

-- cascade.check_copy(set, node, tick_id, chain, version): asked of the provider after the last event was
-- read and before the subscriber commits.  TRUNCATE obeys no snapshot: only this look, newer than
-- the reading, proves that the events were all there.
create or replace function cascade.check_copy("set" text, node text, generation bigint, tick_id bigint, chain bytea, version bigint)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(check_copy."set");
begin
    perform cascade_internal.check_read_committed('checking a copy');
    perform cascade_internal.check_subscriber(v_queue, check_copy.node, check_copy.generation, check_copy.tick_id, check_copy.chain);
    if check_copy.version is distinct from (select n.generation from cascade_internal.node as n where n.queue_id = v_queue.queue_id) then
        raise exception 'the provider of node "%" has changed while it was read', check_copy.node
            using errcode = 'QC709', hint = 'Join again: the answer says why.';
    end if;
end
$$;
comment on function cascade.check_copy(text, text, bigint, bigint, bytea, bigint) is 'Whether everything that was copied is still held.';

-- cascade.begin_copy(set, provider, generation, tick_id, chain): the first statement of a subscriber's copying
-- transaction.  It locks the queue, so that rotation moves before or after, checks that nothing was
-- changed since the batch was fetched, and returns the partition to copy into (null on a leaf).
create or replace function cascade.begin_copy("set" text, provider text, generation bigint, tick_id bigint, chain bytea)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(begin_copy."set");
    v_node  cascade_internal.node;
    v_last  cascade_internal.tick;
begin
    perform cascade_internal.check_read_committed('copying');
    -- A copy that anyone was told of survives a crash.
    perform cascade_internal.commit_durably();
    perform from cascade_internal.queue as q where q.queue_id = v_queue.queue_id for no key update;
    -- The node's row too: a switch, pause or drop comes before this or after the commit.
    select n.* into v_node from cascade_internal.node as n where n.queue_id = v_queue.queue_id for share;
    v_last := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    if v_node.role = 'root' or v_node.state <> 'running'
       or (v_node.provider, v_node.generation, v_last.tick_id, v_last.chain) is distinct from
          (begin_copy.provider, begin_copy.generation, begin_copy.tick_id, begin_copy.chain) then
        raise exception 'node "%" has moved on: provider %, generation %, tick %, %',
                        v_node.node, v_node.provider, v_node.generation, v_last.tick_id, v_node.state
            using errcode = 'QC209', hint = 'It was switched, paused or dropped, or another daemon copied this: look again.';
    end if;
    if v_node.role = 'leaf' then
        return null;
    end if;
    return format('cascade_internal.event_%s_%s', v_queue.queue_id, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots) % v_queue.slots);
end
$$;
comment on function cascade.begin_copy(text, text, bigint, bigint, bytea) is 'Begins a copying transaction, if nothing has changed since.';

-- cascade.finish_copy(set, ticks): the last statement of a copying transaction.  Each tick must link to
-- the one before, the first to where this node stands.  A batch lies wholly in the generation it
-- was copied into, so gen and gen_low are that one.
create or replace function cascade.finish_copy("set" text, ticks jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(finish_copy."set");
    v_prev  cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_cur   cascade_internal.tick;
    v_gen   constant bigint := cascade_internal.current_gen(v_queue.queue_id, v_queue.slots);
    v_bad   bigint;
begin
    select x.tick_id into v_bad
      from (select t.tick_id, t.prev_tick, lag(t.tick_id, 1, v_prev.tick_id) over (order by t.k) as before
              from jsonb_populate_recordset(null::cascade_internal.tick, finish_copy.ticks)
                   with ordinality as t(tick_id, prev_tick, "time", low, high, "open", event_seq, total, term_uid, chain, gen, gen_low, k)) as x
     where x.prev_tick is distinct from x.before
     limit 1;
    if v_bad is not null then
        raise exception 'tick % does not follow tick %', v_bad, v_prev.tick_id
            using errcode = 'QC901', hint = 'Nothing was copied.  The provider''s ticks are not linked: look at the view cascade.ticks there.';
    end if;
    execute format(
        'insert into cascade_internal.tick_%s_%s select t.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq, t.total,'
        ' t.term_uid, t.chain, %s, %3$s from jsonb_populate_recordset(null::cascade_internal.tick, $1) as t',
        v_queue.queue_id, v_gen % v_queue.slots, v_gen)
      using finish_copy.ticks;
    v_cur := jsonb_populate_record(null::cascade_internal.tick, finish_copy.ticks->-1);
    v_cur.gen := v_gen;
    v_cur.gen_low := v_gen;
    perform cascade_internal.apply_controls(v_queue, v_prev, v_cur);
    perform pg_notify('cascade_tick_' || v_queue.queue_id, '');
    return v_cur.tick_id;
end
$$;
comment on function cascade.finish_copy(text, jsonb) is 'Stores the ticks that were copied and what the control events among them say.';

-- A leaf keeps no events: it is handed the control events among those it read.
create or replace function cascade.finish_leaf_copy("set" text, ticks jsonb, controls jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick    constant bigint := cascade.finish_copy(finish_leaf_copy."set", finish_leaf_copy.ticks);
    v_queue   cascade_internal.queue := cascade_internal.find_queue(finish_leaf_copy."set");
    v_control jsonb;
begin
    for v_control in select c from jsonb_array_elements(finish_leaf_copy.controls) as c loop
        if v_control->>'type' <> 'cascade.global-watermark' then
            perform cascade_internal.apply_control(v_queue, v_control->>'type', v_control->'payload');
        end if;
    end loop;
    return v_tick;
end
$$;
comment on function cascade.finish_leaf_copy(text, jsonb, jsonb) is 'Stores the ticks a leaf has processed, and what their control events say.';
