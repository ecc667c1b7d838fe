-- Merging: what a merge-leaf does at the combined-root.

-- cascade_internal.enter_combined(queue): the caller is about to write into a combined queue, past the trigger that keeps producers out.  It
-- does what an insert into the table does: take a lock that a fence waits for, a transaction id, and then, not before, look at the
-- register.  Raises QC401 where this is not the root, or it is fenced.
create or replace function cascade_internal.enter_combined(queue cascade_internal.queue, out slot integer, out txid bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue    cascade_internal.queue;
    v_register bigint;
begin
    execute format('lock table queue.%I in row exclusive mode', (enter_combined.queue).name);
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = (enter_combined.queue).queue_id;
    if v_queue.is_copy or exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id) then
        perform cascade_internal.raise_is_copy(v_queue, 'takes no events');
    end if;
    enter_combined.txid := txid_current() + v_queue.clock_offset;
    v_register := pg_sequence_last_value(format('cascade_internal.register_%s', v_queue.queue_id)::regclass);
    enter_combined.slot := v_register % v_queue.slots;
    if v_register / v_queue.slots % 2 = 1 then
        perform pg_notify('cascade_insert', '');
    end if;
end
$$;
comment on function cascade_internal.enter_combined(cascade_internal.queue) is 'Prepares for writing into a combined queue at its root.';

create or replace function cascade_internal.post_mark(queue cascade_internal.queue, type text, mark jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_place record;
begin
    v_place := cascade_internal.enter_combined(post_mark.queue);
    execute format('insert into cascade_internal.event_%s_%s (txid, type, payload, origin) values ($1, $2, $3, ''.cascade'')',
                   (post_mark.queue).queue_id, v_place.slot)
      using v_place.txid, post_mark.type, post_mark.mark::json;
end
$$;
comment on function cascade_internal.post_mark(cascade_internal.queue, text, jsonb) is 'Writes a control event into a combined queue.';

create or replace function cascade_internal.find_combined(node cascade_internal.node)
returns cascade_internal.queue
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    if (find_combined.node).into_set is null then
        raise exception 'node "%" is no merge-leaf', (find_combined.node).node
            using errcode = 'QC208', hint = 'Only a merge-leaf feeds a combined set.';
    end if;
    select q.* into v_queue from cascade_internal.queue as q join cascade_internal.node as n using (queue_id)
     where q.name = (find_combined.node).into_set and q.is_combined;
    if not found then
        raise exception 'this database has no node of the combined set "%"', (find_combined.node).into_set
            using errcode = 'QC105', hint = 'cascade set create makes a set and its root; the daemon makes branches.';
    end if;
    return v_queue;
end
$$;
comment on function cascade_internal.find_combined(cascade_internal.node) is 'The combined queue that a merge-leaf feeds.';

-- What is merged already although the part has lost it, as ranges of ids by origin; null where there is nothing, as always but after a failover.
create or replace function cascade_internal.merged_ranges(queue cascade_internal.queue, part text)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select jsonb_object_agg(r.origin, r.ids::text)
      from (select m.origin, range_agg(int8range(m.first_id, m.last_id, '[]')) as ids
              from cascade_internal.merged_already as m
             where m.queue_id = (merged_ranges.queue).queue_id and m.part = merged_ranges.part
             group by m.origin) as r
$$;
comment on function cascade_internal.merged_ranges(cascade_internal.queue, text) is 'What of a part must not be merged again.';

create or replace function cascade_internal.is_merged(ranges jsonb, origin text, origin_id bigint)
returns boolean
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(is_merged.origin_id <@ (is_merged.ranges->>is_merged.origin)::int8multirange, false)
$$;
comment on function cascade_internal.is_merged(jsonb, text, bigint) is 'Whether an event that carries its origin is among those merged already.';

-- cascade.begin_merge(part, provider, generation, tick_id, chain): the first statement of a merge transaction.  Nothing was changed since
-- the range was fetched, and the combined queue takes events here.  Returns the partition, the txid that the events get, and what to skip.
create or replace function cascade.begin_merge("set" text, provider text, generation bigint, tick_id bigint, chain bytea,
                                               out partition text, out txid bigint, out merged jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_combined constant cascade_internal.queue := cascade_internal.find_combined(cascade_internal.find_node(begin_merge."set"));
    v_place    record;
begin
    -- The combined queue first, as everybody does who opens a term of it.
    v_place := cascade_internal.enter_combined(v_combined);
    perform cascade_internal.lock_copy(cascade_internal.find_queue(begin_merge."set"), begin_merge.provider, begin_merge.generation,
                                       begin_merge.tick_id, begin_merge.chain);
    begin_merge.partition := format('cascade_internal.event_%s_%s', v_combined.queue_id, v_place.slot);
    begin_merge.txid := v_place.txid;
    begin_merge.merged := cascade_internal.merged_ranges(v_combined, begin_merge."set");
end
$$;
comment on function cascade.begin_merge(text, text, bigint, bigint, bytea) is 'Begins a merge transaction, if nothing has changed since.';

-- cascade.finish_merge(part, ticks, controls, skipped): its last statement: the part's ticks, what its control events say, and the mark.
create or replace function cascade.finish_merge("set" text, ticks jsonb, controls jsonb, skipped bigint[] default '{}')
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue    cascade_internal.queue := cascade_internal.find_queue(finish_merge."set");
    v_node     cascade_internal.node := cascade_internal.find_node(finish_merge."set");
    v_prev     cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_cur      cascade_internal.tick;
    v_control  jsonb;
begin
    v_cur := cascade_internal.store_ticks(v_queue, v_prev, finish_merge.ticks);
    for v_control in select c from jsonb_array_elements(coalesce(finish_merge.controls, '[]')) as c loop
        if v_control->>'type' <> 'cascade.global-watermark' then
            perform cascade_internal.apply_control(v_queue, v_control->>'type', v_control->'payload');
        end if;
    end loop;
    perform cascade_internal.post_mark(cascade_internal.find_combined(v_node), 'cascade.tick', jsonb_build_object(
        'part', v_queue.name, 'set_uid', v_node.set_uid, 'tick', cascade_internal.as_mark(v_cur), 'prev', cascade_internal.as_mark(v_prev))
        || case when cardinality(finish_merge.skipped) > 0 then jsonb_build_object('skipped', to_jsonb(finish_merge.skipped)) else '{}' end);
    return v_cur.tick_id;
end
$$;
comment on function cascade.finish_merge(text, jsonb, jsonb, bigint[]) is 'Stores the part''s ticks and the mark.';

-- cascade.store_merge(part, provider, generation, tick_id, chain, ticks, …): a whole merge transaction in one call, for a small range that
-- came with its events: in the order of the part's ticks, and of ids within each.
create or replace function cascade.store_merge(
    "set" text, provider text, generation bigint, tick_id bigint, chain bytea, ticks jsonb,
    ids bigint[], times timestamptz[], txids bigint[], types text[], keys text[], payloads json[], headers json[],
    origins text[], origin_ids bigint[])
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_place    record;
    v_controls jsonb := '[]';
    v_skipped  bigint[] := '{}';
    v_order    constant text := '(select min(t.n) from t where e.txid < t.high and e.txid <> all (t."open")), e.id';
    v_from     constant text :=
        'with t as (select row_number() over (order by x.tick_id) as n, x.high, x."open" from jsonb_populate_recordset(null::cascade_internal.tick, $1) as x),'
        ' e as (select u.* from unnest($2, $3, $4, $5, $6, $7, $8, $9, $10)'
        ' as u(id, "time", txid, type, key, payload, headers, origin, origin_id) where u.origin is distinct from ''.cascade'')';
begin
    v_place := cascade.begin_merge(store_merge."set", store_merge.provider, store_merge.generation, store_merge.tick_id, store_merge.chain);
    if store_merge.ids is null then
        raise exception 'the merge-leaf of part "%" cannot store these events', store_merge."set"
            using errcode = 'QC003', hint = 'Null is not none: pass what cascade.fetch_copy() returned, or copy the range.';
    end if;
    if '.cascade' = any (store_merge.origins) then
        select coalesce(jsonb_agg(jsonb_build_object('type', u.type, 'payload', u.payload) order by u.id), '[]') into v_controls
          from unnest(store_merge.ids, store_merge.types, store_merge.payloads, store_merge.origins) as u(id, type, payload, origin)
         where u.origin = '.cascade';
    end if;
    if store_merge.ids <> '{}' then
        if v_place.merged is not null then
            execute v_from || format(
                ' select coalesce(array_agg(s.n), ''{}'') from (select row_number() over (order by %s) as n,'
                ' cascade_internal.is_merged($11, e.origin, e.origin_id) as is_merged from e) as s where s.is_merged', v_order)
               into v_skipped
              using store_merge.ticks, store_merge.ids, store_merge.times, store_merge.txids, store_merge.types, store_merge.keys,
                    store_merge.payloads, store_merge.headers, store_merge.origins, store_merge.origin_ids, v_place.merged, store_merge."set";
        end if;
        execute v_from || format(
            ' insert into %s ("time", txid, type, key, payload, headers, origin, origin_id)'
            ' select e."time", %s, e.type, e.key, e.payload, e.headers, coalesce(e.origin, $12), coalesce(e.origin_id, e.id)'
            ' from e where $11 is null or not cascade_internal.is_merged($11, e.origin, e.origin_id) order by %s',
            v_place.partition, v_place.txid, v_order)
          using store_merge.ticks, store_merge.ids, store_merge.times, store_merge.txids, store_merge.types, store_merge.keys,
                store_merge.payloads, store_merge.headers, store_merge.origins, store_merge.origin_ids, v_place.merged, store_merge."set";
    end if;
    return cascade.finish_merge(store_merge."set", store_merge.ticks, v_controls, v_skipped);
end
$$;
comment on function cascade.store_merge(text, text, bigint, bigint, bytea, jsonb, bigint[], timestamptz[], bigint[], text[], text[], json[], json[], text[], bigint[])
    is 'Merges a small range, whole or not at all.';
