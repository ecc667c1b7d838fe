-- cascade.measure_log(queue, parts): what can be compared here, and where to cut it.  The batches after first_tick up to last_tick are held
-- whole; bounds are ticks that cut them into parts of about the same size.  A copy is dirty when it has events that its last tick
-- does not see: they are in no batch.  Carriers with the same hashing can be compared by quick digests.
create or replace function cascade.measure_log(queue text, parts integer default 1)
returns table (first_tick bigint, last_tick bigint, ticks bigint, events bigint, first_time timestamptz, last_time timestamptz,
               is_dirty boolean, bounds bigint[], hashing bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(measure_log.queue);
    v_end   record;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    if measure_log.parts is null or measure_log.parts < 1 then
        raise exception 'queue "%" cannot be cut into % parts', v_queue.name, coalesce(measure_log.parts::text, 'null')
            using errcode = 'QC003', hint = 'Pass how many parts there should be.';
    end if;
    v_end := cascade_internal.look_at_end(v_queue);
    -- Ticks without events count too: a queue that is mostly idle has little else.
    return query execute format(
        'with t as materialized (select x.tick_id, x."time", x.total, x.total - min(x.total) over () + row_number() over (order by x.tick_id) as size'
        ' from (%s) as x where x.tick_id <= $2), w as (select max(t.size) as size from t)'
        ' select min(t.tick_id), max(t.tick_id), count(*) - 1, max(t.total) - min(t.total), min(t."time"), max(t."time"), $3,'
        ' array(select min(t.tick_id) from t union select max(t.tick_id) from t cross join w group by (t.size * $1 - 1) / w.size order by 1), $4'
        ' from t', cascade_internal.ticks_query(v_queue))
      using measure_log.parts, (v_end.tick).tick_id, v_queue.is_copy and v_end.is_dirty, cascade_internal.probe_hash();
end
$$;
comment on function cascade.measure_log(text, integer) is 'Which batches are held whole, and ticks that cut them into parts.';
