-- A consumer in work mode that goes to another node, and one whose node went back to a fork.

-- What a consumer takes along: how it wants its messages, and those it was given and is not done with, whole.  It has to be
-- in nobody's hands (QC214).  Its chunks become rows first, so that its place is its head and nothing comes twice.
create or replace function cascade_internal.pack_work(
    log cascade_internal.queue, work cascade_internal.work_consumer, consumer text, is_real boolean)
returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id    constant integer := (pack_work.work).subscription_id;
    v_most  constant bigint := 10000;
    v_chunk cascade_internal.work_chunk;
    v_count bigint;
begin
    if pack_work.is_real then
        perform cascade_internal.reap_claims(pack_work.log, pack_work.work, false);
    end if;
    if exists (select from cascade_internal.work_claim as c where c.subscription_id = v_id and c.until > clock_timestamp()) then
        raise exception 'consumer "%" of queue "%" is busy: % hold messages of it', pack_work.consumer, (pack_work.log).name,
                        (select count(*) from cascade_internal.work_claim as c where c.subscription_id = v_id)
            using errcode = 'QC214', hint = 'Stop its workers, or wait for them; cascade.release_message() takes messages from them.';
    end if;
    select coalesce(sum(coalesce(cardinality(c."open"), c.events)), 0) into v_count
      from cascade_internal.work_chunk as c where c.subscription_id = v_id and c.state = 'f';
    if v_count > v_most then
        raise exception 'consumer "%" of queue "%" has % messages before it', pack_work.consumer, (pack_work.log).name, v_count
            using errcode = 'QC214', hint = format('Let its workers come to %s or fewer: they are taken along one by one.', v_most);
    end if;
    if pack_work.is_real then
        for v_chunk in
            select c.* from cascade_internal.work_chunk as c where c.subscription_id = v_id and c.state = 'f' order by c.no for update
        loop
            perform cascade_internal.seize_waiting(pack_work.log, pack_work.work, cascade_internal.open_ids(v_chunk));
        end loop;
        perform cascade_internal.give_back(pack_work.work, array(
            select a.id from cascade_internal.work_active as a where a.subscription_id = v_id), clock_timestamp(), 0, null);
    end if;
    return jsonb_build_object(
        'selector', (pack_work.work).selector::text, 'options', (pack_work.work).options,
        'messages', (select coalesce(jsonb_agg(cascade_internal.pack_message(x.id, x.attempt, x.due, x."time", x.type, x.key, x.payload,
                                                                             x.headers, x.origin, x.origin_id, null, null) order by x.id), '[]')
                       from (select w.id, w.attempt, null::timestamptz as due, w."time", w.type, w.key, w.payload, w.headers, w.origin, w.origin_id
                               from cascade_internal.work_waiting as w where w.subscription_id = v_id
                             union all
                             select h.id, h.attempt, h.due, h."time", h.type, h.key, h.payload, h.headers, h.origin, h.origin_id
                               from cascade_internal.work_held as h where h.subscription_id = v_id) as x),
        'dead', (select coalesce(jsonb_agg(cascade_internal.pack_message(d.id, d.attempt, null, d."time", d.type, d.key, d.payload, d.headers,
                                                                         d.origin, d.origin_id, d.died_at, d.error) order by d.id), '[]')
                   from cascade_internal.work_dead as d where d.subscription_id = v_id));
end
$$;
comment on function cascade_internal.pack_work(cascade_internal.queue, cascade_internal.work_consumer, text, boolean) is 'What a consumer in work mode takes along.';

-- Payloads are text in it: jsonb would not keep them byte for byte, nor take all of them.
create or replace function cascade_internal.pack_message(
    id bigint, attempt integer, due timestamptz, "time" timestamptz, type text, key text, payload json, headers json, origin text,
    origin_id bigint, died_at timestamptz, error text)
returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'id', pack_message.id, 'attempt', pack_message.attempt, 'due', pack_message.due, 'time', pack_message."time", 'type', pack_message.type,
        'key', pack_message.key, 'payload', pack_message.payload::text, 'headers', pack_message.headers::text,
        'origin', pack_message.origin, 'origin_id', pack_message.origin_id, 'died_at', pack_message.died_at, 'error', pack_message.error))
$$;
comment on function cascade_internal.pack_message(bigint, integer, timestamptz, timestamptz, text, text, json, json, text, bigint, timestamptz, text)
    is 'A message that is taken along.';

-- Makes a consumer one in work mode, with what it brought.
create or replace function cascade_internal.unpack_work(log cascade_internal.queue, subscription_id integer, brought jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := unpack_work.subscription_id;
    v_work cascade_internal.work_consumer;
begin
    update cascade_internal.subscription as s set is_work = true where s.subscription_id = v_id;
    perform cascade_internal.begin_work((unpack_work.log).queue_id, v_id, unpack_work.brought->>'selector', unpack_work.brought->'options');
    select w.* into v_work from cascade_internal.work_consumer as w where w.subscription_id = v_id;
    perform cascade_internal.place_rows(v_work, format(
        'select m.id, m."time", m.type, m.key, m.payload::json as payload, m.headers::json as headers, m.origin, m.origin_id, m.attempt, m.due'
        ' from jsonb_to_recordset(%L) as m(id bigint, attempt integer, due timestamptz, "time" timestamptz, type text, key text,'
        ' payload text, headers text, origin text, origin_id bigint)', coalesce(unpack_work.brought->'messages', '[]')), clock_timestamp());
    insert into cascade_internal.work_dead (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt, class, died_at, error)
    select v_id, m.id, m."time", m.type, m.key, m.payload::json, m.headers::json, m.origin, m.origin_id, m.attempt, 3, m.died_at, m.error
      from jsonb_to_recordset(coalesce(unpack_work.brought->'dead', '[]')) as m(
           id bigint, attempt integer, "time" timestamptz, type text, key text, payload text, headers text, origin text, origin_id bigint,
           died_at timestamptz, error text);
end
$$;
comment on function cascade_internal.unpack_work(cascade_internal.queue, integer, jsonb) is 'Makes a consumer one in work mode, with what it brought.';

-- A consumer in work mode forgets the messages that its set lost beyond a fork, wherever they are; returns how many of those it had
-- begun with: somebody may have acted on them.  What was before the fork stays as it is.
create or replace function cascade_internal.forget_lost(
    log cascade_internal.queue, work cascade_internal.work_consumer, fork cascade_internal.tick)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_id    constant integer := (forget_lost.work).subscription_id;
    v_lost  bigint[] := '{}';
    v_fresh bigint[];
    v_chunk cascade_internal.work_chunk;
    v_open  bigint[];
    v_some  bigint[];
begin
    for v_slot in 0 .. (forget_lost.log).slots - 1 loop
        execute format('select coalesce(array_agg(e.id), ''{}'') from cascade_internal.event_%s_%s as e'
                       ' where %s and e.origin is distinct from ''.cascade''%s', (forget_lost.log).queue_id, v_slot,
                       cascade_internal.tail_where(forget_lost.fork), cascade_internal.selector_clause(forget_lost.work, 'is true')) into v_some;
        v_lost := v_lost || v_some;
    end loop;
    if v_lost = '{}' then
        return 0;
    end if;
    -- What was never dispatched, or is where it was put then, nobody has begun with.
    v_fresh := array(
        select w.id from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.attempt = 0 and w.id = any (v_lost)
           and not cascade_internal.is_in_parcel(v_id, w.id, true)
        union all
        select h.id from cascade_internal.work_held as h where h.subscription_id = v_id and h.attempt = 0 and h.id = any (v_lost));
    for v_chunk in
        select c.* from cascade_internal.work_chunk as c
         where c.subscription_id = v_id and c.to_tick > (forget_lost.fork).tick_id and c.state <> 'd'
         order by c.no for update
    loop
        v_some := cascade_internal.open_ids(v_chunk);
        v_open := array(select i from unnest(v_some) as i where i <> all (v_lost) order by i);
        continue when v_open = v_some;
        if v_chunk.state = 'f' then
            v_fresh := v_fresh || array(select i from unnest(v_some) as i where i = any (v_lost));
        end if;
        update cascade_internal.work_chunk as c
           set "open" = v_open,
               state = case when v_open = '{}' then 'd' else c.state end,
               done_at = case when v_open = '{}' then clock_timestamp() end
         where c.subscription_id = v_id and c.no = v_chunk.no;
    end loop;
    delete from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.id = any (v_lost);
    delete from cascade_internal.work_held as h where h.subscription_id = v_id and h.id = any (v_lost);
    delete from cascade_internal.work_after as f where f.subscription_id = v_id and f.id = any (v_lost);
    delete from cascade_internal.work_active as a where a.subscription_id = v_id and a.id = any (v_lost);
    delete from cascade_internal.work_dead as d where d.subscription_id = v_id and d.id = any (v_lost);
    perform cascade_internal.settle(forget_lost.work, v_lost, 'cancelled');
    return cardinality(v_lost) - cardinality(v_fresh);
end
$$;
comment on function cascade_internal.forget_lost(cascade_internal.queue, cascade_internal.work_consumer, cascade_internal.tick)
    is 'Has a consumer in work mode forget what its set lost.';

-- How many messages of a consumer have rows: those are in this database only.  It is asked every second, so it stops counting at
-- ten thousand of a kind.
create or replace function cascade_internal.count_rows(subscription_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := count_rows.subscription_id;
    v_most constant integer := 10000;
begin
    return (select count(*) from (select from cascade_internal.work_waiting as w where w.subscription_id = v_id limit v_most) as x)
         + (select count(*) from (select from cascade_internal.work_held as h where h.subscription_id = v_id limit v_most) as x)
         + (select count(*) from (select from cascade_internal.work_active as a where a.subscription_id = v_id limit v_most) as x)
         + (select count(*) from (select from cascade_internal.work_dead as d where d.subscription_id = v_id limit v_most) as x);
end
$$;
comment on function cascade_internal.count_rows(integer) is 'How many messages of a consumer have rows.';
