-- Puts drawn messages under a claim, up to count, or moves them to work_active for a caller's own transaction; returns how many.
create or replace function cascade_internal.take_parcels(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
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
            insert into cascade_internal.work_parcel (subscription_id, ids, classes, topics)
            values (v_parcel.subscription_id, v_parcel.ids[v_left + 1 :], v_parcel.classes[v_left + 1 :], v_parcel.topics[v_left + 1 :]);
            v_parcel.ids := v_parcel.ids[: v_left];
            v_parcel.classes := v_parcel.classes[: v_left];
            v_parcel.topics := v_parcel.topics[: v_left];
        end if;
        update cascade_internal.work_parcel as p
           set claim_id = take_parcels.claim_id, ids = v_parcel.ids, classes = v_parcel.classes, topics = v_parcel.topics
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
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id      constant integer := (read_parcels.work).subscription_id;
    v_wanted  bigint;
    v_found   bigint;
    v_expired bigint[];
begin
    select sum(cardinality(p.ids)) into v_wanted
      from cascade_internal.work_parcel as p
     where p.claim_id = read_parcels.claim_id and p.subscription_id = v_id;
    if v_wanted is null then
        return;
    end if;
    return query
        select w.subscription_id, w.id, w."time", w.type, w.key, w.payload, w.headers, w.origin, w.origin_id, w.attempt + 1, w.class,
               w.expires_at, w.available_at, read_parcels.claim_id, w.org
          from cascade_internal.work_parcel as p
         cross join lateral unnest(p.ids, p.classes) as x(id, class)
          join cascade_internal.work_waiting as w
            on w.subscription_id = v_id and w.id = x.id and w.class = x.class
         where p.claim_id = read_parcels.claim_id
           and p.subscription_id = v_id
           and (w.expires_at > read_parcels.at or w.expires_at is null);
    get diagnostics v_found = row_count;
    if v_found < v_wanted then
        with gone as (
            delete from cascade_internal.work_waiting as w
             using cascade_internal.work_parcel as p
             where p.claim_id = read_parcels.claim_id and p.subscription_id = v_id
               and w.subscription_id = v_id and w.id = any (p.ids) and w.expires_at <= read_parcels.at
            returning w.id)
        select coalesce(array_agg(g.id), '{}') into v_expired from gone as g;
        if v_expired <> '{}' then
            perform cascade_internal.note_expired(read_parcels.work, v_expired);
        end if;
        perform cascade_internal.drop_from_parcels(read_parcels.claim_id, array(
            select x from cascade_internal.work_parcel as p cross join unnest(p.ids) as x
             where p.claim_id = read_parcels.claim_id
               and not exists (select from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.id = x)));
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
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id   constant integer := (finish_parcels.work).subscription_id;
    v_done bigint[];
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         using cascade_internal.work_parcel as p
         cross join lateral unnest(p.ids, p.classes) as x(id, class)
         where p.claim_id = (finish_parcels.claim).claim_id
           and (finish_parcels.ids is null or x.id = any (finish_parcels.ids))
           and w.subscription_id = v_id and w.id = x.id and w.class = x.class
        returning w.id, w.attempt, w.available_at),
    ended as (
        select g.id, g.attempt, g.available_at, r.result, g.attempt = 0 and r.result is null as is_plain
          from gone as g
          left join unnest(finish_parcels.ids, finish_parcels.results) as r(id, result) on r.id = g.id),
    noted as (
        insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, claimed_at, ended_at, result)
        select v_id, e.id, e.attempt + 1, 'done', (finish_parcels.claim).worker, (finish_parcels.claim).claimed_at, finish_parcels.at, e.result
          from ended as e
         where not e.is_plain),
    counted as (
        insert into cascade_internal.work_chunk (subscription_id, no, state, slot, from_tick, to_tick, txid_from, txid_to, cut_at, events,
                                                 first_id, last_id, ids, "open", worker, claimed_at, done_at)
        select v_id, -nextval('cascade_internal.work_parcel_no'), 'd', 0, 0, 0, 0, 0, x.cut_at, x.events, x.ids[1], x.ids[x.events], x.ids, '{}',
               (finish_parcels.claim).worker, (finish_parcels.claim).claimed_at, finish_parcels.at
          from (select min(e.available_at) as cut_at, count(*) as events, array_agg(e.id order by e.id) as ids
                  from ended as e
                 where e.is_plain) as x
         where x.events > 0)
    select coalesce(array_agg(e.id), '{}') into v_done from ended as e;
    if v_done <> '{}' then
        perform cascade_internal.drop_from_parcels((finish_parcels.claim).claim_id, finish_parcels.ids);
    end if;
    return v_done;
end
$$;
comment on function cascade_internal.finish_parcels(cascade_internal.work_consumer, cascade_internal.work_claim, bigint[], json[], timestamptz)
    is 'Ends messages of a claim''s parcels.';

-- Moves messages of a claim's parcels to work_active, all without ids: something else than success becomes of them.
create or replace function cascade_internal.unpack_parcels(work cascade_internal.work_consumer, claim_id bigint, ids bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id constant integer := (unpack_parcels.work).subscription_id;
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         using cascade_internal.work_parcel as p
         cross join lateral unnest(p.ids, p.classes) as x(id, class)
         where p.claim_id = unpack_parcels.claim_id
           and p.subscription_id = v_id
           and (unpack_parcels.ids is null or x.id = any (unpack_parcels.ids))
           and w.subscription_id = v_id and w.id = x.id and w.class = x.class
        returning w.*)
    insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                              class, expires_at, available_at, claim_id, org)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt + 1, g.class,
           g.expires_at, g.available_at, unpack_parcels.claim_id, g.org
      from gone as g;
    if found then
        perform cascade_internal.drop_from_parcels(unpack_parcels.claim_id, unpack_parcels.ids);
    end if;
end
$$;
comment on function cascade_internal.unpack_parcels(cascade_internal.work_consumer, bigint, bigint[]) is 'Gives messages of a claim''s parcels rows in work_active.';

-- Takes messages out of a claim's parcels, all without ids; an empty one goes.
create or replace function cascade_internal.drop_from_parcels(claim_id bigint, ids bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
begin
    delete from cascade_internal.work_parcel as p
     where p.claim_id = drop_from_parcels.claim_id
       and (drop_from_parcels.ids is null or p.ids <@ drop_from_parcels.ids);
    if drop_from_parcels.ids is not null then
        update cascade_internal.work_parcel as p
           set (ids, classes, topics) = (
               select array_agg(x.id order by x.n), array_agg(x.class order by x.n), array_agg(x.topic order by x.n)
                 from unnest(p.ids, p.classes, p.topics) with ordinality as x(id, class, topic, n)
                where x.id <> all (drop_from_parcels.ids))
         where p.claim_id = drop_from_parcels.claim_id
           and p.ids && drop_from_parcels.ids;
    end if;
end
$$;
comment on function cascade_internal.drop_from_parcels(bigint, bigint[]) is 'Takes messages out of a claim''s parcels.';

-- Takes messages that are drawn, and nobody has, out of their parcels.
create or replace function cascade_internal.draw_back(subscription_id integer, ids bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
begin
    perform from cascade_internal.work_parcel as p
      where p.subscription_id = draw_back.subscription_id and p.claim_id is null and p.ids && draw_back.ids
      order by p.no
        for update;
    delete from cascade_internal.work_parcel as p
     where p.subscription_id = draw_back.subscription_id and p.claim_id is null and p.ids <@ draw_back.ids;
    update cascade_internal.work_parcel as p
       set (ids, classes, topics) = (
           select array_agg(x.id order by x.n), array_agg(x.class order by x.n), array_agg(x.topic order by x.n)
             from unnest(p.ids, p.classes, p.topics) with ordinality as x(id, class, topic, n)
            where x.id <> all (draw_back.ids))
     where p.subscription_id = draw_back.subscription_id and p.claim_id is null and p.ids && draw_back.ids;
end
$$;
comment on function cascade_internal.draw_back(integer, bigint[]) is 'Takes drawn messages that nobody has out of their parcels.';

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

-- Moves messages whose rows the caller has locked to work_active, but those that were drawn by somebody else just before.
create or replace function cascade_internal.move_ids(
    work cascade_internal.work_consumer, ids bigint[], classes smallint[], claim_id bigint)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_id constant integer := (move_ids.work).subscription_id;
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         using unnest(move_ids.ids, move_ids.classes) as x(id, class)
         where w.subscription_id = v_id and w.id = x.id and w.class = x.class
           and x.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p where p.subscription_id = v_id)
        returning w.*)
    insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                              class, expires_at, available_at, claim_id, org)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt + 1, g.class,
           g.expires_at, g.available_at, move_ids.claim_id, g.org
      from gone as g;
end
$$;
comment on function cascade_internal.move_ids(cascade_internal.work_consumer, bigint[], smallint[], bigint) is 'Moves locked messages to the active ones.';
