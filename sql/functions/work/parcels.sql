-- Puts drawn messages under a claim, up to count, or moves them to work_active for a caller's own transaction; returns how many.
create or replace function cascade_internal.take_parcels(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_parcel cascade_internal.work_parcel;
    v_taken  integer := 0;
    v_left   integer;
begin
    loop
        v_left := take_parcels.count - v_taken;
        exit when v_left <= 0;
        select p.* into v_parcel
          from cascade_internal.work_parcel as p
         where p.subscription_id = (take_parcels.work).subscription_id
           and p.claim_id is null
         order by p.no
         limit 1
           for update skip locked;
        exit when not found;
        if cardinality(v_parcel.ids) > v_left then
            insert into cascade_internal.work_parcel (subscription_id, class, topic, ids)
            values (v_parcel.subscription_id, v_parcel.class, v_parcel.topic, v_parcel.ids[v_left + 1 :]);
            v_parcel.ids := v_parcel.ids[: v_left];
        end if;
        update cascade_internal.work_parcel as p
           set claim_id = take_parcels.claim_id, ids = v_parcel.ids
         where p.subscription_id = v_parcel.subscription_id and p.no = v_parcel.no;
        v_taken := v_taken + cardinality(v_parcel.ids);
    end loop;
    if take_parcels.in_caller and v_taken > 0 then
        perform cascade_internal.unpack_parcels(take_parcels.work, take_parcels.claim_id, null);
    end if;
    return v_taken;
end
$$;
comment on function cascade_internal.take_parcels(cascade_internal.work_consumer, integer, bigint, timestamptz, boolean)
    is 'Puts drawn messages under a claim.';

-- The messages of a claim's parcels.  Those that have expired since they were drawn, or were taken away, leave the parcel.
create or replace function cascade_internal.read_parcels(work cascade_internal.work_consumer, claim_id bigint, at timestamptz)
returns setof cascade_internal.work_active
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (read_parcels.work).subscription_id;
    v_part    record;
    v_count   integer;
    v_missing integer := 0;
    v_ids     bigint[] := '{}';
    v_expired bigint[];
begin
    for v_part in
        select p.class, p.ids from cascade_internal.work_parcel as p
         where p.claim_id = read_parcels.claim_id and p.subscription_id = v_id
         order by p.no
    loop
        return query
            select w.subscription_id, w.id, w."time", w.type, w.key, w.payload, w.headers, w.origin, w.origin_id, w.attempt + 1, w.class,
                   w.expires_at, w.available_at, read_parcels.claim_id, w.org
              from unnest(v_part.ids) with ordinality as i(id, n)
             cross join lateral (
                select x.*
                  from cascade_internal.work_waiting as x
                 where x.subscription_id = v_id and x.class = v_part.class and x.id = i.id
                offset 0) as w -- one probe of the primary key each, whatever the statistics say
             where w.expires_at > read_parcels.at or w.expires_at is null
             order by i.n;
        get diagnostics v_count = row_count;
        v_missing := v_missing + cardinality(v_part.ids) - v_count;
        v_ids := v_ids || v_part.ids;
    end loop;
    if v_missing > 0 then
        with gone as (
            delete from cascade_internal.work_waiting as w
             where w.subscription_id = v_id and w.id = any (v_ids) and w.expires_at <= read_parcels.at
            returning w.id)
        select coalesce(array_agg(g.id), '{}') into v_expired from gone as g;
        if v_expired <> '{}' then
            perform cascade_internal.note_expired(read_parcels.work, v_expired);
        end if;
        perform cascade_internal.drop_from_parcels(read_parcels.claim_id, array(
            select i from unnest(v_ids) as i
             where not exists (select from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.id = i)));
    end if;
end
$$;
comment on function cascade_internal.read_parcels(cascade_internal.work_consumer, bigint, timestamptz) is 'The messages of a claim''s parcels.';

-- Ends messages of a claim's parcels, all without ids, and returns them.  Those that were done at once and leave no result are noted together,
-- as plain ones are: as a chunk that is done.  Its number is below all others, where nobody looks for work.
create or replace function cascade_internal.finish_parcels(
    work cascade_internal.work_consumer, claim cascade_internal.work_claim, ids bigint[], results json[], at timestamptz)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id     constant integer := (finish_parcels.work).subscription_id;
    v_part   record;
    v_gone   record;
    v_done   bigint[] := '{}';
    v_again  integer[] := '{}';
    v_plain  bigint[];
    v_oldest timestamptz;
begin
    for v_part in
        select p.class,
               case when finish_parcels.ids is null then p.ids
                    else array(select i from unnest(p.ids) as i where i = any (finish_parcels.ids)) end as ids
          from cascade_internal.work_parcel as p
         where p.claim_id = (finish_parcels.claim).claim_id and p.subscription_id = v_id
    loop
        while v_part.ids <> '{}' loop
            with gone as (
                delete from cascade_internal.work_waiting as w
                 where w.class = v_part.class
                   and w.ctid = any (array(
                    select r.ctid
                      from unnest(v_part.ids) as i(id)
                     cross join lateral (
                        select x.ctid from cascade_internal.work_waiting as x
                         where x.subscription_id = v_id and x.class = v_part.class and x.id = i.id
                        offset 0) as r))
                returning w.id, w.attempt, w.available_at)
            select array_agg(g.id) as ids, array_agg(g.attempt) as attempts, min(g.available_at) as oldest into v_gone from gone as g;
            v_done := v_done || coalesce(v_gone.ids, '{}');
            v_again := v_again || coalesce(v_gone.attempts, '{}');
            v_oldest := least(v_oldest, v_gone.oldest);
            exit when cardinality(v_gone.ids) = cardinality(v_part.ids);
            -- Rows that were just keyed anew, as fairness was altered, are other versions, and were not found where they were.
            v_part.ids := array(
                select w.id from cascade_internal.work_waiting as w
                 where w.subscription_id = v_id and w.class = v_part.class and w.id = any (v_part.ids));
        end loop;
    end loop;
    if v_done = '{}' then
        return v_done;
    end if;
    v_plain := v_done;
    if finish_parcels.results is not null or 0 < any (v_again) then
        with noted as (
            insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, claimed_at, ended_at, result)
            select v_id, d.id, d.attempt + 1, 'done', (finish_parcels.claim).worker, (finish_parcels.claim).claimed_at, finish_parcels.at, r.result
              from unnest(v_done, v_again) as d(id, attempt)
              left join unnest(finish_parcels.ids, finish_parcels.results) as r(id, result) on r.id = d.id
             where d.attempt > 0 or r.result is not null
            returning id)
        select array(select unnest(v_done) except select n.id from noted as n) into v_plain;
    end if;
    if v_plain <> '{}' then
        v_plain := array(select i from unnest(v_plain) as i order by i);
        insert into cascade_internal.work_chunk (subscription_id, no, state, slot, from_tick, to_tick, txid_from, txid_to, cut_at, events,
                                                 first_id, last_id, ids, "open", worker, claimed_at, done_at)
        values (v_id, -nextval('cascade_internal.work_parcel_no'), 'd', 0, 0, 0, 0, 0, v_oldest, cardinality(v_plain), v_plain[1],
                v_plain[cardinality(v_plain)], v_plain, '{}', (finish_parcels.claim).worker, (finish_parcels.claim).claimed_at, finish_parcels.at);
    end if;
    perform cascade_internal.drop_from_parcels((finish_parcels.claim).claim_id, finish_parcels.ids);
    return v_done;
end
$$;
comment on function cascade_internal.finish_parcels(cascade_internal.work_consumer, cascade_internal.work_claim, bigint[], json[], timestamptz)
    is 'Ends messages of a claim''s parcels.';

-- Moves messages of a claim's parcels to work_active, all without ids: something else than success becomes of them.
create or replace function cascade_internal.unpack_parcels(work cascade_internal.work_consumer, claim_id bigint, ids bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id  constant integer := (unpack_parcels.work).subscription_id;
    v_ids constant bigint[] := array(
        select i
          from cascade_internal.work_parcel as p
         cross join lateral unnest(p.ids) as i
         where p.claim_id = unpack_parcels.claim_id
           and p.subscription_id = v_id
           and (unpack_parcels.ids is null or i = any (unpack_parcels.ids)));
begin
    if v_ids = '{}' then
        return;
    end if;
    perform cascade_internal.move_ids(unpack_parcels.work, v_ids, unpack_parcels.claim_id);
    perform cascade_internal.drop_from_parcels(unpack_parcels.claim_id, unpack_parcels.ids);
end
$$;
comment on function cascade_internal.unpack_parcels(cascade_internal.work_consumer, bigint, bigint[]) is 'Gives messages of a claim''s parcels rows in work_active.';

-- Takes messages out of a claim's parcels, all without ids; an empty one goes.
create or replace function cascade_internal.drop_from_parcels(claim_id bigint, ids bigint[])
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.work_parcel as p
     where p.claim_id = drop_from_parcels.claim_id
       and (drop_from_parcels.ids is null or p.ids <@ drop_from_parcels.ids);
    if drop_from_parcels.ids is not null then
        update cascade_internal.work_parcel as p
           set ids = array(select x.id from unnest(p.ids) with ordinality as x(id, n) where x.id <> all (drop_from_parcels.ids) order by x.n)
         where p.claim_id = drop_from_parcels.claim_id
           and p.ids && drop_from_parcels.ids;
    end if;
end
$$;
comment on function cascade_internal.drop_from_parcels(bigint, bigint[]) is 'Takes messages out of a claim''s parcels.';

-- Takes messages that are drawn, and nobody has, out of their parcels; parcels that another transaction is about to take are waited for, or left.
create or replace function cascade_internal.draw_back(subscription_id integer, ids bigint[], waits boolean)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_nos bigint[];
begin
    if draw_back.waits then
        perform from cascade_internal.work_parcel as p
          where p.subscription_id = draw_back.subscription_id and p.claim_id is null and p.ids && draw_back.ids
          order by p.no
            for update;
    end if;
    v_nos := array(
        select p.no from cascade_internal.work_parcel as p
         where p.subscription_id = draw_back.subscription_id and p.claim_id is null and p.ids && draw_back.ids
         order by p.no
           for update skip locked);
    delete from cascade_internal.work_parcel as p
     where p.subscription_id = draw_back.subscription_id and p.no = any (v_nos) and p.ids <@ draw_back.ids;
    update cascade_internal.work_parcel as p
       set ids = array(select x.id from unnest(p.ids) with ordinality as x(id, n) where x.id <> all (draw_back.ids) order by x.n)
     where p.subscription_id = draw_back.subscription_id and p.no = any (v_nos) and p.ids && draw_back.ids;
end
$$;
comment on function cascade_internal.draw_back(integer, bigint[], boolean) is 'Takes drawn messages that nobody has out of their parcels.';

-- Whether a waiting message is drawn, or in somebody's hands.  Who wants to remove it locks its row first and asks then, in a new statement.
create or replace function cascade_internal.is_in_parcel(subscription_id integer, id bigint, claimed_only boolean)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
begin
    return exists (select from cascade_internal.work_parcel as p
                    where p.subscription_id = is_in_parcel.subscription_id
                      and is_in_parcel.id = any (p.ids)
                      and (p.claim_id is not null or not is_in_parcel.claimed_only));
end
$$;
comment on function cascade_internal.is_in_parcel(integer, bigint, boolean) is 'Whether a waiting message is drawn or in hand.';

-- Moves waiting messages to work_active, under a claim.
create or replace function cascade_internal.move_ids(work cascade_internal.work_consumer, ids bigint[], claim_id bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         using unnest(move_ids.ids) as i(id)
         where w.subscription_id = (move_ids.work).subscription_id and w.id = i.id
        returning w.*)
    insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                              class, expires_at, available_at, claim_id, org)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt + 1, g.class,
           g.expires_at, g.available_at, move_ids.claim_id, g.org
      from gone as g;
end
$$;
comment on function cascade_internal.move_ids(cascade_internal.work_consumer, bigint[], bigint) is 'Moves waiting messages to the active ones.';
