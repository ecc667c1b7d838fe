-- cascade_internal.place_rows(work, query, at) gives messages rows of their own, where they wait until they are handed out, and
-- returns how many.  query is the text of a SELECT of (id, time, type, key, payload, headers, origin, origin_id, attempt, due); their
-- options are read again each time, so that a message keeps them through retries and replays.
-- What was handed out once has waited for others already, and does not again.
create or replace function cascade_internal.place_rows(work cascade_internal.work_consumer, query text, at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_id       constant integer := (place_rows.work).subscription_id;
    v_count    bigint;
    v_bad      bigint;
    v_blockers cascade_internal.blocker[];
    v_due      timestamptz;
begin
    execute format($sql$
        with event as materialized (
            select x.*, case when cascade_internal.has_options(x.headers) then cascade_internal.message_options(x.headers, x."time") end as o
              from (%1$s) as x),
        message as materialized (
            select e.id, e."time", e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, e.attempt, %2$s as class,
                   (e.o).expires_at, greatest(e.due, (e.o).deliver_at) as due,
                   case when e.attempt = 0 and ((e.o).after is not null or (e.o).after_in is not null) then
                       cascade_internal.find_blockers($1, (e.o).after, (e.o).after_in) end as blockers,
                   %3$s as topic, %4$s as org
              from event as e),
        held as (
            insert into cascade_internal.work_held (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                                    class, expires_at, due, waits, topic, org)
            select ($1).subscription_id, m.id, m."time", m.type, m.key, m.payload, m.headers, m.origin, m.origin_id, m.attempt,
                   m.class, m.expires_at, coalesce(m.due, $2), coalesce(cardinality(m.blockers), 0), m.topic, m.org
              from message as m
             where m.due > $2 or m.blockers <> '{}'),
        waiting as (
            insert into cascade_internal.work_waiting (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                                       class, expires_at, available_at, topic, org)
            select ($1).subscription_id, m.id, m."time", m.type, m.key, m.payload, m.headers, m.origin, m.origin_id, m.attempt,
                   m.class, m.expires_at, coalesce(m.due, $2), m.topic, m.org
              from message as m
             where (m.due > $2 or m.blockers <> '{}') is not true),
        followed as (
            insert into cascade_internal.work_after (subscription_id, id, by_subscription, after_id)
            select ($1).subscription_id, m.id, b.by_subscription, b.after_id
              from message as m cross join unnest(m.blockers) as b),
        blocker as (
            insert into cascade_internal.work_blocker (by_subscription, after_id)
            select distinct b.by_subscription, b.after_id
              from message as m cross join unnest(m.blockers) as b
             order by 1, 2
            on conflict on constraint work_blocker_pkey do nothing)
        select count(*), (select count(*) from event as e where (e.o).problem is not null and e.attempt = 0),
               (select array_agg(distinct b) from message as x cross join unnest(x.blockers) as b),
               (select min(x.due) from message as x where x.due > $2)
          from message as m
        $sql$,
        place_rows.query,
        case when (place_rows.work).by_key then '3::smallint' else 'coalesce((e.o).class, 3)' end,
        case when (place_rows.work).max_active is null then '''''' else 'coalesce(e.type, '''')' end,
        case when (place_rows.work).by_key then 'hashtextextended(coalesce(''k'' || e.key, e.id::text), 0)'
             when (place_rows.work).max_active is not null then 'hashtextextended(coalesce(e.key, ''''), 0)'
             else '0' end)
       into v_count, v_bad, v_blockers, v_due
      using place_rows.work, place_rows.at;
    if v_blockers is not null then
        perform cascade_internal.keep_blockers(v_blockers);
    end if;
    if v_bad > 0 then
        update cascade_internal.work_count as c set misoptioned = c.misoptioned + v_bad where c.subscription_id = v_id;
    end if;
    -- A daemon that sleeps has not heard of what is due before it looks again.
    if v_due < place_rows.at + interval '2 s' then
        perform pg_notify('cascade_work_due', '');
    end if;
    return v_count;
end
$$;
comment on function cascade_internal.place_rows(cascade_internal.work_consumer, text, timestamptz) is 'Gives messages rows in which they wait.';

-- The messages for which one waits: those that the consumer of the same name has to do.  In a queue to which it is not
-- subscribed there is nothing to wait for.
create or replace function cascade_internal.find_blockers(work cascade_internal.work_consumer, after bigint[], after_in jsonb)
returns cascade_internal.blocker[]
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_blockers cascade_internal.blocker[] := '{}';
begin
    if find_blockers.after is null and find_blockers.after_in is null then
        return v_blockers;
    end if;
    v_blockers := array(select row ((find_blockers.work).subscription_id, i)::cascade_internal.blocker from unnest(find_blockers.after) as i);
    if find_blockers.after_in is not null then
        v_blockers := v_blockers || array(
            select distinct row (o.subscription_id, i)::cascade_internal.blocker
              from jsonb_each(find_blockers.after_in) as a
              join cascade_internal.queue as q on q.name = a.key
              join cascade_internal.subscription as s on s.subscription_id = (find_blockers.work).subscription_id
              join cascade_internal.subscription as o on o.queue_id = q.queue_id and o.consumer = s.consumer
              join cascade_internal.work_consumer as w on w.subscription_id = o.subscription_id
             cross join unnest(cascade_internal.read_ids(a.value)) as i
             where q.queue_id <> (find_blockers.work).queue_id or i <> all (coalesce(find_blockers.after, '{}')));
    end if;
    return v_blockers;
end
$$;
comment on function cascade_internal.find_blockers(cascade_internal.work_consumer, bigint[], jsonb) is 'The messages for which one waits.';

-- Messages that others begin to wait for in this transaction.  FOR KEY SHARE keeps a released one from being removed before
-- those who wait for it now are let go too; one that was removed meanwhile is made again, and looked at.
create or replace function cascade_internal.keep_blockers(blockers cascade_internal.blocker[])
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_blocker cascade_internal.blocker;
begin
    foreach v_blocker in array keep_blockers.blockers loop
        loop
            perform from cascade_internal.work_blocker as b
              where b.by_subscription = v_blocker.by_subscription and b.after_id = v_blocker.after_id
                for key share;
            exit when found;
            insert into cascade_internal.work_blocker (by_subscription, after_id)
            values (v_blocker.by_subscription, v_blocker.after_id)
            on conflict on constraint work_blocker_pkey do nothing;
        end loop;
        perform cascade_internal.look_at_blocker(v_blocker.by_subscription, v_blocker.after_id, true);
    end loop;
end
$$;
comment on function cascade_internal.keep_blockers(cascade_internal.blocker[]) is 'Makes sure of messages for which others begin to wait.';
