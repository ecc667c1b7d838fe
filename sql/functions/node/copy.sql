-- cascade.fetch_copy(set, node, generation, tick_id, chain, max_ticks, max_events, max_bytes): asked of the provider.
-- Returns the ticks that follow, as JSON, and the query that reads their events; no row when there is
-- nothing.  The subscriber is checked each time: a member, on the path, its events held.
--
-- A range of several ticks ends before it holds more than 32 MiB, as they are stored: it is one transaction there.
-- A range of at most max_bytes, as they are stored, and one event per 1024 of them, comes with the events themselves, column
-- by column (docs/adr/0021).  After they were read the subscriber is checked once more, as check_copy does:
-- each statement in here has a snapshot of its own, and TRUNCATE obeys none.  A larger range has no ids.
create or replace function cascade.fetch_copy(
    "set" text, node text, generation bigint, tick_id bigint, chain bytea, max_ticks integer, max_events bigint, max_bytes integer)
returns table (to_tick bigint, to_chain bytea, events bigint, ticks jsonb, query text, version bigint, last_tick bigint,
               ids bigint[], times timestamptz[], txids bigint[], types text[], keys text[], payloads json[], headers json[],
               origins text[], origin_ids bigint[])
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(fetch_copy."set");
    v_from  text := format('select row(t.*)::cascade_internal.tick from cascade_internal.tick_%s_%s as t where t.tick_id >= %L order by t.tick_id limit %s',
                           v_queue.queue_id, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots) % v_queue.slots,
                           fetch_copy.tick_id, fetch_copy.max_ticks + 2::bigint);
    v_ticks cascade_internal.tick[];
    v_prev  cascade_internal.tick;
    v_cur   cascade_internal.tick;
    v_to    integer := 1;
    v_most  constant bigint := 32 * 1024 * 1024;
    v_bytes bigint;
begin
    -- The tick it stands on and those that follow, and one more than wanted, to know whether there is more.  The newest
    -- generation holds all of them but for a while after a switch.
    execute format('select array(%s)', v_from) into v_ticks;
    if (v_ticks[1]).tick_id is distinct from fetch_copy.tick_id then
        execute format('select array(select row(t.*)::cascade_internal.tick from (%s) as t where t.tick_id >= $1 order by t.tick_id limit $2)',
                       cascade_internal.held_ticks(v_queue))
           into v_ticks using fetch_copy.tick_id, fetch_copy.max_ticks + 2::bigint;
    end if;
    v_prev := case when (v_ticks[1]).tick_id = fetch_copy.tick_id then v_ticks[1] end;
    fetch_copy.version := cascade_internal.check_held(v_queue, fetch_copy.node, fetch_copy.tick_id, v_prev, fetch_copy.chain);
    -- Up to the limits; the first one always fits.
    while v_to <= fetch_copy.max_ticks and v_to < cardinality(v_ticks)
          and (v_to = 1 or (v_ticks[v_to + 1]).total <= v_prev.total + fetch_copy.max_events) loop
        v_to := v_to + 1;
    end loop;
    if v_to = 1 then
        return;
    end if;
    -- Only large values make a range too large, and those are stored apart: sizes are added up only where there are many.
    while v_to > 2 and cascade_internal.large_bytes(v_queue, v_prev.gen_low, (v_ticks[v_to]).gen) > v_most loop
        execute format('select coalesce(sum(e.bytes), 0) from (%s) as e',
                       cascade_internal.batch_arms(v_queue, v_prev, v_ticks[v_to],
                           'pg_column_size(e.payload) + coalesce(pg_column_size(e.headers), 0) as bytes'))
           into v_bytes;
        exit when v_bytes <= v_most;
        -- At most half as far, so that all looks together take no more than twice the first.
        v_to := greatest(2, least(v_to / 2, (v_to * v_most / v_bytes)::integer));
    end loop;
    v_cur := v_ticks[v_to];
    fetch_copy.to_tick := v_cur.tick_id;
    fetch_copy.to_chain := v_cur.chain;
    fetch_copy.events := v_cur.total - v_prev.total;
    fetch_copy.ticks := to_jsonb(v_ticks[2:v_to]);
    fetch_copy.last_tick := (v_ticks[cardinality(v_ticks)]).tick_id;
    fetch_copy.query := cascade_internal.batch_arms(v_queue, v_prev, v_cur,
        'e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id');
    if fetch_copy.max_bytes > 0 and fetch_copy.events <= fetch_copy.max_bytes / 1024 then
        perform cascade_internal.check_read_committed('copying');
        -- Sizes first, as they are stored: no large value is unpacked to learn that it is too large.
        execute format(
            'with e as materialized (%s),'
            ' s as materialized (select coalesce(sum(pg_column_size(e.payload) + coalesce(pg_column_size(e.headers), 0)'
                ' + coalesce(pg_column_size(e.key), 0) + coalesce(pg_column_size(e.type), 0)), 0) <= $1 as is_small from e)'
            ' select coalesce(array_agg(e.id), ''{}''), array_agg(e."time"), array_agg(e.txid), array_agg(e.type), array_agg(e.key),'
            ' array_agg(e.payload), array_agg(e.headers), array_agg(e.origin), array_agg(e.origin_id)'
            ' from e where (select s.is_small from s) having (select s.is_small from s)', fetch_copy.query)
           into fetch_copy.ids, fetch_copy.times, fetch_copy.txids, fetch_copy.types, fetch_copy.keys,
                fetch_copy.payloads, fetch_copy.headers, fetch_copy.origins, fetch_copy.origin_ids
          using fetch_copy.max_bytes;
        if fetch_copy.ids is not null then
            perform cascade_internal.check_held(v_queue, fetch_copy.node, fetch_copy.tick_id, v_prev, fetch_copy.chain, fetch_copy.version);
        end if;
    end if;
    return next;
end
$$;
comment on function cascade.fetch_copy(text, text, bigint, bigint, bytea, integer, bigint, integer)
    is 'What a subscriber copies next, with the events when they are few.';

-- What partitions hold apart from their rows: no row of theirs is larger than 2 KB but for that.
create or replace function cascade_internal.large_bytes(queue cascade_internal.queue, first_gen bigint, last_gen bigint)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(sum(pg_relation_size(c.reltoastrelid)), 0)
              from generate_series(large_bytes.first_gen, large_bytes.last_gen) as g(gen)
              join pg_catalog.pg_class as c
                on c.oid = format('cascade_internal.event_%s_%s', (large_bytes.queue).queue_id, g.gen % (large_bytes.queue).slots)::regclass);
end
$$;
comment on function cascade_internal.large_bytes(cascade_internal.queue, bigint, bigint) is 'How much of some partitions is stored apart, as large values are.';

-- cascade.next_copy(set, node, generation, tick_id, chain, max_ticks, max_events): as fetch_copy, and never with events.
create or replace function cascade.next_copy(
    "set" text, node text, generation bigint, tick_id bigint, chain bytea, max_ticks integer, max_events bigint)
returns table (to_tick bigint, to_chain bytea, events bigint, ticks jsonb, query text, version bigint, last_tick bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select f.to_tick, f.to_chain, f.events, f.ticks, f.query, f.version, f.last_tick
          from cascade.fetch_copy(next_copy."set", next_copy.node, next_copy.generation, next_copy.tick_id, next_copy.chain,
                                  next_copy.max_ticks, next_copy.max_events, 0) as f;
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

-- Whether a node may go on copying from here after tick_id, which is prev (null: not here); returns the version of this
-- database's node, which must be the one given, if one is.  Whatever keeps it is raised as the answer
-- that joining would give.  One look, since it is taken twice for every range.
create or replace function cascade_internal.check_held(
    queue cascade_internal.queue, node text, tick_id bigint, prev cascade_internal.tick, chain bytea, version bigint default null)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_version bigint;
    v_is_live boolean;
    v_is_gone boolean;
begin
    select n.generation,
           exists (select from cascade_internal.member as m where m.queue_id = n.queue_id and m.node = check_held.node and m.state = 'live'),
           n.answer = 'dropped' or exists (select from cascade_internal.member as m where m.queue_id = n.queue_id and m.node = n.node and m.state <> 'live')
      into v_version, v_is_live, v_is_gone
      from cascade_internal.node as n
     where n.queue_id = (check_held.queue).queue_id;
    if v_is_live is distinct from true then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', check_held.node));
    elsif (check_held.prev).tick_id is null
          or (check_held.prev).chain is distinct from check_held.chain
          or v_is_gone
          or cascade_internal.first_gen((check_held.queue).queue_id) > (check_held.prev).gen_low then
        -- Not where it was: joining again says why.
        raise exception 'node "%" stands on tick %, which is not here', check_held.node, check_held.tick_id
            using errcode = 'QC709', hint = 'Join again: the answer says why.';
    elsif check_held.version <> v_version then
        raise exception 'the provider of node "%" has changed while it was read', check_held.node
            using errcode = 'QC709', hint = 'Join again: the answer says why.';
    end if;
    return v_version;
end
$$;
comment on function cascade_internal.check_held(cascade_internal.queue, text, bigint, cascade_internal.tick, bytea, bigint)
    is 'Whether a subscriber may go on, and all that follows its tick is here.';

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
    perform cascade_internal.check_held(
        v_queue, check_copy.node, check_copy.tick_id, cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, check_copy.tick_id),
        check_copy.chain, coalesce(check_copy.version, -1));
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
    v_found record;
begin
    v_found := cascade_internal.lock_copy(v_queue, begin_copy.provider, begin_copy.generation, begin_copy.tick_id, begin_copy.chain);
    return case when (v_found.node).role <> 'leaf' then
                format('cascade_internal.event_%s_%s', v_queue.queue_id, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots) % v_queue.slots) end;
end
$$;
comment on function cascade.begin_copy(text, text, bigint, bigint, bytea) is 'Begins a copying transaction, if nothing has changed since.';

create or replace function cascade_internal.lock_copy(
    queue cascade_internal.queue, provider text, generation bigint, tick_id bigint, chain bytea,
    out node cascade_internal.node, out last cascade_internal.tick)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_ballot record;
begin
    perform cascade_internal.check_read_committed('copying');
    -- A copy that anyone was told of survives a crash.
    perform cascade_internal.commit_durably();
    perform from cascade_internal.queue as q where q.queue_id = (lock_copy.queue).queue_id for no key update;
    -- The node's row too: a switch, pause or drop comes before this or after the commit.
    select n.* into lock_copy.node from cascade_internal.node as n where n.queue_id = (lock_copy.queue).queue_id for share;
    lock_copy.last := cascade_internal.newest_tick((lock_copy.queue).queue_id, (lock_copy.queue).slots);
    if (lock_copy.node).role = 'root' or (lock_copy.node).state <> 'running'
       or ((lock_copy.node).provider, (lock_copy.node).generation, (lock_copy.last).tick_id, (lock_copy.last).chain) is distinct from
          (lock_copy.provider, lock_copy.generation, lock_copy.tick_id, lock_copy.chain) then
        raise exception 'node "%" has moved on: provider %, generation %, tick %, %', (lock_copy.node).node,
                        (lock_copy.node).provider, (lock_copy.node).generation, (lock_copy.last).tick_id, (lock_copy.node).state
            using errcode = 'QC209', hint = 'It was switched, paused or dropped, or another daemon copied this: look again.';
    end if;
    -- Who goes on copying after it was asked may go beyond the fork that is being made.  Hearing of the term closes the ballot.
    select b.number, b.candidate into v_ballot from cascade_internal.ballot as b
     where b.queue_id = (lock_copy.queue).queue_id and b.closed_at is null and clock_timestamp() < b.expires_at
     order by b.number desc limit 1;
    if found then
        raise exception 'node "%" copies nothing now: % is about to be promoted, under number %', (lock_copy.node).node, v_ballot.candidate, v_ballot.number
            using errcode = 'QC212', hint = 'It goes on when it hears of that term, when the announcement is taken back, or after a minute.';
    end if;
end
$$;
comment on function cascade_internal.lock_copy(cascade_internal.queue, text, bigint, bigint, bytea)
    is 'Locks a queue for copying, if nothing has changed since a batch was fetched.';

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
begin
    v_cur := cascade_internal.store_ticks(v_queue, v_prev, finish_copy.ticks);
    perform cascade_internal.apply_controls(v_queue, v_prev, v_cur);
    return v_cur.tick_id;
end
$$;
comment on function cascade.finish_copy(text, jsonb) is 'Stores the ticks that were copied and what the control events among them say.';

create or replace function cascade_internal.store_ticks(queue cascade_internal.queue, prev cascade_internal.tick, ticks jsonb)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_gen   constant bigint := cascade_internal.current_gen((store_ticks.queue).queue_id, (store_ticks.queue).slots);
    v_ticks constant cascade_internal.tick[] := array(
        select row(t.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq, t.total, t.term_uid, t.chain, v_gen, v_gen)::cascade_internal.tick
          from jsonb_populate_recordset(null::cascade_internal.tick, store_ticks.ticks) as t);
    v_before bigint := (store_ticks.prev).tick_id;
    v_cur    cascade_internal.tick;
begin
    foreach v_cur in array v_ticks loop
        if v_cur.prev_tick is distinct from v_before then
            raise exception 'tick % does not follow tick %', v_cur.tick_id, v_before
                using errcode = 'QC901', hint = 'Nothing was copied.  The provider''s ticks are not linked: look at the view cascade.ticks there.';
        end if;
        v_before := v_cur.tick_id;
    end loop;
    execute format('insert into cascade_internal.tick_%s_%s select t.* from unnest($1) as t',
                   (store_ticks.queue).queue_id, v_gen % (store_ticks.queue).slots) using v_ticks;
    perform pg_notify('cascade_tick_' || (store_ticks.queue).queue_id, '');
    return v_cur;
end
$$;
comment on function cascade_internal.store_ticks(cascade_internal.queue, cascade_internal.tick, jsonb) is 'Stores ticks that were copied, each of which must link to the one before, and returns the last.';

-- cascade.store_copy(set, provider, generation, tick_id, chain, ticks, …): a whole copying transaction in one call, for
-- what fetch_copy returned with its events: begin_copy, the events, finish_copy.
create or replace function cascade.store_copy(
    "set" text, provider text, generation bigint, tick_id bigint, chain bytea, ticks jsonb,
    ids bigint[], times timestamptz[], txids bigint[], types text[], keys text[], payloads json[], headers json[],
    origins text[], origin_ids bigint[])
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(store_copy."set");
    v_found record;
    v_cur   cascade_internal.tick;
begin
    v_found := cascade_internal.lock_copy(v_queue, store_copy.provider, store_copy.generation, store_copy.tick_id, store_copy.chain);
    if (v_found.node).role = 'leaf' or store_copy.ids is null then
        raise exception 'node "%" cannot store these events', (v_found.node).node
            using errcode = 'QC003', hint = 'A leaf keeps no events, and null is not none: pass what cascade.fetch_copy() returned.';
    elsif store_copy.ids <> '{}' then
        execute format('insert into cascade_internal.event_%s_%s (id, "time", txid, type, key, payload, headers, origin, origin_id)'
                       ' select * from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)',
                       v_queue.queue_id, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots) % v_queue.slots)
          using store_copy.ids, store_copy.times, store_copy.txids, store_copy.types, store_copy.keys,
                store_copy.payloads, store_copy.headers, store_copy.origins, store_copy.origin_ids;
    end if;
    v_cur := cascade_internal.store_ticks(v_queue, v_found.last, store_copy.ticks);
    if '.cascade' = any (store_copy.origins) then
        perform cascade_internal.apply_controls(v_queue, v_found.last, v_cur);
    end if;
    return v_cur.tick_id;
end
$$;
comment on function cascade.store_copy(text, text, bigint, bigint, bytea, jsonb, bigint[], timestamptz[], bigint[], text[], text[], json[], json[], text[], bigint[])
    is 'Stores a small range, whole or not at all.';

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
