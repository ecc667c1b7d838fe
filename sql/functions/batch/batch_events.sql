-- cascade.batch_events(batch_id) returns the events of an open batch in the order of their
-- ids, those put back earlier among them; attempt says how often this consumer was given
-- an event.  It may be called again, and returns the same events.
--
-- TRUNCATE obeys no snapshot: a reader could see an emptied partition as an empty batch.
-- Rotation moves the register first_<id> before it empties anything, and every snapshot sees
-- a register as it is; so if the register has not passed the batch after the last row was
-- read, all rows were there.
create or replace function cascade_internal.batch_events(batch_id bigint, caller name)
returns table (id bigint, "time" timestamptz, txid bigint, type text, key text, payload json, headers json,
               origin text, origin_id bigint, attempt integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_found record;
    v_gen   bigint;
    v_tick  cascade_internal.tick;
    v_prev  cascade_internal.tick;
    v_last  cascade_internal.tick;
    v_query text := '';
begin
    v_found := cascade_internal.find_batch(batch_events.batch_id, batch_events.caller, false);
    if (v_found.batch).batch_id is null then
        perform cascade_internal.raise_batch_lost(batch_events.batch_id);
    end if;
    -- Newest generation first: almost always it has both ticks.
    v_gen := cascade_internal.current_gen((v_found.queue).queue_id, (v_found.queue).slots);
    while v_prev.tick_id is null and v_gen >= cascade_internal.first_gen((v_found.queue).queue_id) loop
        for v_tick in execute format('select t.* from cascade_internal.tick_%s_%s as t where t.tick_id in (%s, %s)',
                                     (v_found.queue).queue_id, v_gen % (v_found.queue).slots,
                                     (v_found.batch).from_tick, (v_found.batch).to_tick)
        loop
            if v_tick.tick_id = (v_found.batch).from_tick then
                v_prev := v_tick;
            else
                v_last := v_tick;
            end if;
        end loop;
        v_gen := v_gen - 1;
    end loop;
    if v_prev.tick_id is not null and v_last.tick_id is not null then
        v_query := cascade_internal.batch_arms(v_found.queue, v_prev, v_last,
            'e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, 1 as attempt',
            'e.origin is distinct from ''.cascade''');
    end if;
    v_query := concat_ws(' union all ', nullif(v_query, ''),
        case when exists (select from cascade_internal.retry as r where r.batch_id = batch_events.batch_id) or v_query = '' then
            format('select e.event_id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, e.attempt'
                   ' from cascade_internal.retry as e where e.batch_id = %s', batch_events.batch_id) end);
    return query execute v_query || ' order by 1';

    if v_prev.tick_id is null or cascade_internal.first_gen((v_found.queue).queue_id) > v_prev.gen_low then
        raise exception 'the events of batch % were removed while it was read', batch_events.batch_id
            using errcode = 'QC402',
                  hint = 'The consumer was moved or removed meanwhile, and rotation emptied the partition.';
    end if;
end
$$;
comment on function cascade_internal.batch_events(bigint, name) is 'The events of an open batch, for a caller.';

-- Declared stable so that the planner puts the inner function in its place: the rows are
-- stored once instead of twice on their way out.
create or replace function cascade.batch_events(batch_id bigint)
returns table (id bigint, "time" timestamptz, txid bigint, type text, key text, payload json, headers json,
               origin text, origin_id bigint, attempt integer)
language sql stable
begin atomic
    select e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, e.attempt
      from cascade_internal.batch_events(batch_events.batch_id, current_user) as e;
end;
comment on function cascade.batch_events(bigint) is 'The events of an open batch, ordered by id.';
