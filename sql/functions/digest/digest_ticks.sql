-- cascade.digest_spans(queue, bounds, is_quick): one digest for all ticks and events after each of some ticks up to the next.  Equal digests mean equal
-- logs in that stretch.  Bounds rise; but for the first they need not be held here.  A quick digest costs less, and is worth comparing only with
-- one of a carrier whose hashing is the same, as cascade.measure_log() says.
create or replace function cascade.digest_spans(queue text, bounds bigint[], is_quick boolean default false)
returns table (from_tick bigint, to_tick bigint, ticks bigint, events bigint, digest bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 set client_encoding = 'UTF8'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(digest_spans.queue);
    v_log   record;
    v_query record;
    v_ends  cascade_internal.tick[];
begin
    if coalesce(cardinality(digest_spans.bounds), 0) < 2
       or exists (select from unnest(digest_spans.bounds[1:cardinality(digest_spans.bounds) - 1], digest_spans.bounds[2:]) as b(this, next)
                   where b.this < b.next is not true) then
        raise exception 'the bounds of spans of queue "%" do not rise', v_queue.name
            using errcode = 'QC003', hint = 'Pass two ticks at least, each above the one before.';
    end if;
    perform cascade_internal.check_keeps_events(v_queue);
    v_log := cascade_internal.load_log(v_queue, digest_spans.bounds[1], digest_spans.bounds[cardinality(digest_spans.bounds)]);
    -- A stretch is a batch from one tick to another: those in between need not be told apart.
    v_ends := array(
        select row(t.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq, t.total, t.term_uid, t.chain, t.gen, t.gen_low)::cascade_internal.tick
          from unnest(v_log.ticks) with ordinality as t
          join (select max(t.ordinality) as n from unnest(v_log.ticks) with ordinality as t
                 group by width_bucket(t.tick_id - 1, digest_spans.bounds)) as x on x.n = t.ordinality
         order by t.ordinality);
    v_query := cascade_internal.log_query(v_queue, v_log.prev, v_ends, case when digest_spans.is_quick then cascade_internal.quick_digest()
        else cascade_internal.digest_of(cascade_internal.event_columns()) end || ' as digest');
    return query execute format(
        'with d as (select e.n, count(*) as events, sum(e.digest) as digest from (%s) as e group by e.n),'
        ' s as (select width_bucket(t.tick_id - 1, $6) as i, d.events, d.digest from unnest($5) with ordinality as t join d on d.n = t.ordinality),'
        ' c as (select width_bucket(t.tick_id - 1, $6) as i, count(*) as ticks, sum(%s) as digest from unnest($4) as t group by 1)'
        ' select $6[i], $6[i + 1], coalesce(c.ticks, 0), coalesce(s.events, 0), cascade_internal.fold(coalesce(s.digest, 0) + coalesce(c.digest, 0))'
        ' from generate_series(1, cardinality($6) - 1) as i left join s using (i) left join c using (i) order by i',
        coalesce(nullif(v_query.query, ''), 'select 0 as n, 0 as digest where false'), cascade_internal.digest_of(cascade_internal.tick_columns()))
      using v_query.highs, v_query.late_txids, v_query.late_ns, v_log.ticks, v_ends, digest_spans.bounds;
    perform cascade_internal.check_range(v_queue, v_log.prev);
end
$$;
comment on function cascade.digest_spans(text, bigint[], boolean) is 'A digest of each of some stretches of a queue, to compare it with a copy.';

-- cascade.digest_ticks(queue, from_tick, to_tick): every tick after one up to another, with the number of its events, a digest of them and one of the
-- tick itself.  is_whole says whether there are as many events as the tick was made with.
create or replace function cascade.digest_ticks(queue text, from_tick bigint, to_tick bigint)
returns table (tick_id bigint, prev_tick bigint, "time" timestamptz, events bigint, is_whole boolean, digest bigint, tick_digest bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0 set client_encoding = 'UTF8'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(digest_ticks.queue);
    v_log   record;
    v_query record;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    v_log := cascade_internal.load_log(v_queue, digest_ticks.from_tick, digest_ticks.to_tick);
    v_query := cascade_internal.log_query(v_queue, v_log.prev, v_log.ticks,
                                          cascade_internal.digest_of(cascade_internal.event_columns()) || ' as digest, e.origin');
    return query execute format(
        'select t.tick_id, t.prev_tick, t."time", coalesce(d.events, 0),'
        ' coalesce(d.shown, 0) = t.total - lag(t.total, 1, $5) over (order by t.ordinality), cascade_internal.fold(d.digest), %s'
        ' from unnest($4) with ordinality as t'
        ' left join (select e.n, count(*) as events, count(*) filter (where e.origin is distinct from ''.cascade'') as shown, sum(e.digest) as digest'
        ' from (%s) as e group by e.n) as d on d.n = t.ordinality order by t.ordinality',
        cascade_internal.digest_of(cascade_internal.tick_columns()),
        coalesce(nullif(v_query.query, ''), 'select 0 as n, 0 as digest, null as origin where false'))
      using v_query.highs, v_query.late_txids, v_query.late_ns, v_log.ticks, (v_log.prev).total;
    perform cascade_internal.check_range(v_queue, v_log.prev);
end
$$;
comment on function cascade.digest_ticks(text, bigint, bigint) is 'A digest of every tick and its events, to compare a queue with a copy.';
