-- Digests tell whether two databases hold the same log, without moving it.  What is hashed is the row as the wire protocol
-- has it in binary: numbers in network order, text in UTF-8, null apart from empty.  So a digest depends on no
-- setting of a session, no version of PostgreSQL and no machine.  A row gives 64 bits of its SHA-256, and
-- those are added up, so that order plays no part and any number of rows fits (docs/adr/0033).
create or replace function cascade_internal.digest_of(columns text)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select format('(''x'' || encode(substr(sha256(record_send(row(%s))), 1, 8), ''hex''))::bit(64)::bigint', digest_of.columns)
$$;
comment on function cascade_internal.digest_of(text) is 'An expression: 64 bits of the SHA-256 of a row.';

-- A hash that costs a quarter of that, by functions of which nobody promises that they are the same everywhere: so carriers are compared by it only
-- where they hash the same probe alike, and what differs by it is compared by digests.
create or replace function cascade_internal.quick_digest()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 'hashtextextended(e.payload::text collate "C", hash_record_extended(row(int8send(e.id), timestamptz_send(e."time"), int8send(e.txid),'
           ' e.type collate "C", e.key collate "C", e.headers::text collate "C", e.origin collate "C", e.origin_id), 0))'
$$;
comment on function cascade_internal.quick_digest() is 'An expression: a hash of an event, alike on servers that hash a probe alike.';

-- Values of every length up to a few words, since that is where machines differ.
create or replace function cascade_internal.probe_hash()
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_sum numeric;
begin
    execute 'select sum(' || cascade_internal.quick_digest() || $probe$) from (
        select n * 7919 as id, '2026-01-01+00'::timestamptz + n * interval '1 us' as "time", n * 100000000007 as txid, repeat('é', n::integer % 5) as type,
               repeat(chr(97 + n::integer), n::integer) as key, to_json(repeat(chr(48 + n::integer), n::integer)) as payload,
               case when n % 2 = 0 then to_json(n) end as headers, null::text as origin, nullif(n, 3) as origin_id
          from generate_series(0::bigint, 40) as n) as e$probe$
       into v_sum;
    return cascade_internal.fold(v_sum);
end
$$;
comment on function cascade_internal.probe_hash() is 'What quick digests of a few fixed rows come to here.';

create or replace function cascade_internal.event_columns()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 'e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id'
$$;
comment on function cascade_internal.event_columns() is 'What every carrier has of an event; the partition is its own affair.';

create or replace function cascade_internal.tick_columns()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 't.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq, t.total, t.term_uid, t.chain'
$$;
comment on function cascade_internal.tick_columns() is 'What every carrier has of a tick; generations are its own affair.';

-- A sum of digests, cut to 64 bits again.
create or replace function cascade_internal.fold(total numeric)
returns bigint
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select (mod(mod(coalesce(fold.total, 0), 18446744073709551616) + 27670116110564327424, 18446744073709551616) - 9223372036854775808)::bigint
$$;
comment on function cascade_internal.fold(numeric) is 'A sum of digests as one digest.';

-- The ticks that are held after one and up to another, and the tick before them.  When the one is not there, they begin after the
-- newest before it that is, so that a lost tick shows in the one after it.  Where nothing before it is held, rotation has been there.
create or replace function cascade_internal.load_log(
    queue cascade_internal.queue, from_tick bigint, to_tick bigint, out prev cascade_internal.tick, out ticks cascade_internal.tick[])
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_query constant text := cascade_internal.ticks_query(load_log.queue);
begin
    if load_log.from_tick is null or load_log.to_tick is null then
        raise exception 'a range of queue "%" has no end', (load_log.queue).name
            using errcode = 'QC003', hint = 'Pass two ticks; cascade.measure_log() returns the first and the last.';
    end if;
    execute format('select x.* from (%s) as x where x.tick_id <= %s order by x.tick_id desc limit 1', v_query, load_log.from_tick) into load_log.prev;
    if (load_log.prev).tick_id is null then
        execute v_query || ' order by tick_id limit 1' into load_log.prev;
        if (load_log.prev).prev_tick is not null then
            raise exception 'queue "%" no longer holds all events after tick %', (load_log.queue).name, load_log.from_tick
                using errcode = 'QC402', hint = 'Begin with what is still held: cascade.measure_log() says where that is.';
        end if;
    end if;
    if (load_log.prev).tick_id is null then
        raise exception 'queue "%" has lost its ticks', (load_log.queue).name
            using errcode = 'QC901', hint = 'Nothing can be compared.  Restore the database, or drop the node and add it again.';
    end if;
    execute format('select array(select row(x.*)::cascade_internal.tick from (%s) as x where x.tick_id > %s and x.tick_id <= %s order by x.tick_id)',
                   v_query, (load_log.prev).tick_id, load_log.to_tick)
       into load_log.ticks;
end
$$;
comment on function cascade_internal.load_log(cascade_internal.queue, bigint, bigint) is 'The ticks of a range, and the one before.';

-- cascade_internal.log_query(queue, prev, ticks, columns): the query for the events of many ticks at once, each with the number n of its
-- tick, and the arguments of that query, $1 to $3.  It reads what batch_arms() reads tick by tick: a transaction belongs to the first tick
-- whose high is above it, unless it was open then; those are few, and each belongs to the tick after the last at which it was.
create or replace function cascade_internal.log_query(
    queue cascade_internal.queue, prev cascade_internal.tick, ticks cascade_internal.tick[], columns text,
    out query text, out highs bigint[], out late_txids bigint[], out late_ns bigint[])
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_gen   bigint;
    v_table text;
    v_arms  text[] := '{}';
begin
    -- The greatest so far: even where somebody has tampered with a tick they must not fall.
    log_query.highs := array(
        select max(x.high) over (order by x.n)
          from (select (log_query.prev).high as high, 0 as n
                 union all select t.high, t.ordinality from unnest(log_query.ticks) with ordinality as t) as x
         order by x.n);
    select coalesce(array_agg(y.txid), '{}'), coalesce(array_agg(y.n), '{}') into log_query.late_txids, log_query.late_ns
      from (select x.txid, max(x.n) + 1 as n
              from (select unnest((log_query.prev)."open") as txid, 0 as n
                     union all select unnest(t."open"), t.ordinality from unnest(log_query.ticks) with ordinality as t) as x
             group by x.txid) as y;
    for v_gen in (log_query.prev).gen_low .. coalesce((select max(t.gen) from unnest(log_query.ticks) as t), -1) loop
        v_table := format('cascade_internal.event_%s_%s as e', (log_query.queue).queue_id, v_gen % (log_query.queue).slots);
        v_arms := v_arms || format('select width_bucket(e.txid, $1)::bigint as n, %s from %s where e.txid >= %s and e.txid < %s%s',
                                   log_query.columns, v_table, log_query.highs[1], log_query.highs[cardinality(log_query.highs)],
                                   case when log_query.late_txids = '{}' then '' else ' and e.txid <> all ($2)' end);
        if log_query.late_txids <> '{}' then
            v_arms := v_arms || format('select o.n, x.* from unnest($2, $3) as o(txid, n)'
                                       ' cross join lateral (select %s from %s where e.txid = o.txid offset 0) as x where o.n <= %s',
                                       log_query.columns, v_table, cardinality(log_query.ticks));
        end if;
    end loop;
    log_query.query := array_to_string(v_arms, ' union all ');
end
$$;
comment on function cascade_internal.log_query(cascade_internal.queue, cascade_internal.tick, cascade_internal.tick[], text)
    is 'The query for the events of many ticks, each with its tick.';

-- Asked after the last event was read: TRUNCATE obeys no snapshot.
create or replace function cascade_internal.check_range(queue cascade_internal.queue, prev cascade_internal.tick)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if cascade_internal.first_gen((check_range.queue).queue_id) > (check_range.prev).gen_low then
        raise exception 'the events of queue "%" after tick % were removed by rotation', (check_range.queue).name, (check_range.prev).tick_id
            using errcode = 'QC402', hint = 'Begin with what is still held: cascade.measure_log() says where that is.';
    end if;
end
$$;
comment on function cascade_internal.check_range(cascade_internal.queue, cascade_internal.tick) is 'Raises QC402 when a range was emptied while it was read.';
