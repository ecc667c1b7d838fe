-- cascade.digest_events(queue, from_tick, to_tick): every event after one tick up to another, by its id, with its tick and a digest: what tells which
-- rows of two carriers differ.
create or replace function cascade.digest_events(queue text, from_tick bigint, to_tick bigint)
returns table (tick_id bigint, id bigint, digest bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 set client_encoding = 'UTF8'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(digest_events.queue);
    v_log   record;
    v_query record;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    v_log := cascade_internal.load_log(v_queue, digest_events.from_tick, digest_events.to_tick);
    v_query := cascade_internal.log_query(v_queue, v_log.prev, v_log.ticks,
                                          'e.id, ' || cascade_internal.digest_of(cascade_internal.event_columns()) || ' as digest');
    if cardinality(v_log.ticks) > 0 then
        return query execute format('select ($4[e.n]).tick_id, e.id, e.digest from (%s) as e', v_query.query)
          using v_query.highs, v_query.late_txids, v_query.late_ns, v_log.ticks;
        perform cascade_internal.check_range(v_queue, v_log.prev);
    end if;
end
$$;
comment on function cascade.digest_events(text, bigint, bigint) is 'A digest of every event, to find those in which two carriers differ.';

-- cascade.read_log(queue, from_tick, to_tick, ids): events after one tick up to another, control events too, each with its tick and its digest; only
-- those with these ids, if any are given.  Payload and headers as text, byte for byte.
create or replace function cascade.read_log(queue text, from_tick bigint, to_tick bigint, ids bigint[] default null)
returns table (tick_id bigint, id bigint, "time" timestamptz, txid bigint, type text, key text, payload text, headers text, origin text, origin_id bigint,
               digest bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 set client_encoding = 'UTF8'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(read_log.queue);
    v_log   record;
    v_query record;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    v_log := cascade_internal.load_log(v_queue, read_log.from_tick, read_log.to_tick);
    v_query := cascade_internal.log_query(v_queue, v_log.prev, v_log.ticks, cascade_internal.event_columns());
    if cardinality(v_log.ticks) > 0 then
        return query execute format(
            'select ($4[e.n]).tick_id, e.id, e."time", e.txid, e.type, e.key, e.payload::text, e.headers::text, e.origin, e.origin_id, %s from (%s) as e'
            ' where $5 is null or e.id = any ($5)', cascade_internal.digest_of(cascade_internal.event_columns()), v_query.query)
          using v_query.highs, v_query.late_txids, v_query.late_ns, v_log.ticks, read_log.ids;
        perform cascade_internal.check_range(v_queue, v_log.prev);
    end if;
end
$$;
comment on function cascade.read_log(text, bigint, bigint, bigint[]) is 'Events of some ticks, whole, with their ticks and digests.';

-- cascade.read_ticks(queue, from_tick, to_tick): ticks after one up to another as JSON, what is local to this database left out.
create or replace function cascade.read_ticks(queue text, from_tick bigint, to_tick bigint)
returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex' set timezone = 'UTC'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(read_ticks.queue);
    v_log   record;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    v_log := cascade_internal.load_log(v_queue, read_ticks.from_tick, read_ticks.to_tick);
    perform cascade_internal.check_range(v_queue, v_log.prev);
    return (select coalesce(jsonb_agg(to_jsonb(t) - 'gen' - 'gen_low' order by t.tick_id), '[]') from unnest(v_log.ticks) as t);
end
$$;
comment on function cascade.read_ticks(text, bigint, bigint) is 'Ticks of a range, whole.';
