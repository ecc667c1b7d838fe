-- cascade_internal.tend_rows(work, at) does what time brings: messages that are due can be handed out, expired ones are removed, those that
-- waited for finished ones are let go.  Returns how many can be handed out now that could not before.
create or replace function cascade_internal.tend_rows(work cascade_internal.work_consumer, at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_id    constant integer := (tend_rows.work).subscription_id;
    v_count bigint;
begin
    perform cascade_internal.look_at_blocker(b.by_subscription, b.after_id, false)
       from (select x.by_subscription, x.after_id
               from cascade_internal.work_blocker as x
              where x.state = 'w' and not x.is_certain and x.look_at <= tend_rows.at
              order by x.look_at
              limit 200) as b;
    perform cascade_internal.expire_rows(tend_rows.work, tend_rows.at);
    v_count := cascade_internal.bring_due(tend_rows.work, tend_rows.at, 20000) + cascade_internal.key_strays(tend_rows.work);
    if v_count > 0 then
        perform pg_notify('cascade_work_' || v_id, '');
    end if;
    return v_count;
end
$$;
comment on function cascade_internal.tend_rows(cascade_internal.work_consumer, timestamptz) is 'Does what time brings to messages that have rows.';

-- Messages that another transaction placed for fairness while it was switched off are found by nobody who draws without it.
create or replace function cascade_internal.key_strays(work cascade_internal.work_consumer)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id constant integer := (key_strays.work).subscription_id;
begin
    if (key_strays.work).max_active is null and not (key_strays.work).by_key
       and (exists (select from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.topic > '')
            or exists (select from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.topic = '' and w.org > 0)
            or exists (select from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.topic = '' and w.org < 0)) then
        perform cascade_internal.key_anew(w) from cascade_internal.work_consumer as w where w.subscription_id = v_id;
        return 1;
    end if;
    return 0;
end
$$;
comment on function cascade_internal.key_strays(cascade_internal.work_consumer) is 'Keys messages anew that were placed as fairness was switched off.';

-- Removes expired messages that nobody has in hand.
create or replace function cascade_internal.expire_rows(work cascade_internal.work_consumer, at timestamptz)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_id  constant integer := (expire_rows.work).subscription_id;
    v_ids bigint[];
begin
    v_ids := array(
        select w.id from cascade_internal.work_waiting as w
         where w.subscription_id = v_id and w.expires_at <= expire_rows.at
         limit 1000
           for update skip locked);
    if v_ids <> '{}' then
        perform cascade_internal.draw_back(v_id, v_ids, false);
    end if;
    -- In a new statement, since some may have been drawn just before: those that somebody has are not expired.
    with waiting as (
        delete from cascade_internal.work_waiting as w
         where (w.subscription_id, w.id) in (
            select x.subscription_id, x.id from cascade_internal.work_waiting as x
             where x.subscription_id = v_id and x.expires_at <= expire_rows.at
               and x.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p where p.subscription_id = v_id)
             limit 1000
               for update skip locked)
        returning w.id),
    held as (
        delete from cascade_internal.work_held as h
         where (h.subscription_id, h.id) in (
            select x.subscription_id, x.id from cascade_internal.work_held as x
             where x.subscription_id = v_id and x.expires_at <= expire_rows.at limit 1000 for update skip locked)
        returning h.id),
    alone as (
        delete from cascade_internal.work_after as f
         where f.subscription_id = v_id and f.id in (select h.id from held as h))
    select array(select id from waiting union all select id from held) into v_ids;
    if v_ids <> '{}' then
        perform cascade_internal.note_expired(expire_rows.work, v_ids);
    end if;
    return cardinality(v_ids);
end
$$;
comment on function cascade_internal.expire_rows(cascade_internal.work_consumer, timestamptz) is 'Removes expired messages.';

-- Expired messages are counted and noted, and whoever waits for them goes on.
create or replace function cascade_internal.note_expired(work cascade_internal.work_consumer, ids bigint[])
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.work_count as c
       set expired = c.expired + cardinality(note_expired.ids)
     where c.subscription_id = (note_expired.work).subscription_id;
    insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, ended_at)
    select (note_expired.work).subscription_id, i, 0, 'expired', clock_timestamp()
      from unnest(note_expired.ids) as i;
    perform cascade_internal.settle(note_expired.work, note_expired.ids, 'expired');
end
$$;
comment on function cascade_internal.note_expired(cascade_internal.work_consumer, bigint[]) is 'Counts expired messages.';

-- Forgets the messages that have rows, but those in hand: the consumer was put elsewhere, or goes.  Whoever waits for them is let go.
create or replace function cascade_internal.forget_rows(subscription_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.work_parcel as p where p.subscription_id = forget_rows.subscription_id;
    delete from cascade_internal.work_waiting as w where w.subscription_id = forget_rows.subscription_id;
    delete from cascade_internal.work_held as h where h.subscription_id = forget_rows.subscription_id;
    delete from cascade_internal.work_after as a where a.subscription_id = forget_rows.subscription_id;
    update cascade_internal.work_blocker as b set state = 'r' where b.by_subscription = forget_rows.subscription_id;
end
$$;
comment on function cascade_internal.forget_rows(integer) is 'Forgets messages that have rows.';

-- cascade.next_work_due(queue) is when a message is due next, or expires, or something is to be looked at again, for the consumers in
-- work mode of a queue, or of all; null when nothing is.  The daemon sleeps until then, or until the next tick.
create or replace function cascade.next_work_due(queue text default null)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
begin
    if next_work_due.queue is not null then
        perform cascade_internal.find_queue(next_work_due.queue);
    end if;
    return (select least(
                min(least((select min(h.due) from cascade_internal.work_held as h
                            where h.subscription_id = w.subscription_id and h.waits = 0),
                          (select min(h.expires_at) from cascade_internal.work_held as h where h.subscription_id = w.subscription_id),
                          (select min(m.expires_at) from cascade_internal.work_waiting as m
                            where m.subscription_id = w.subscription_id
                              and m.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p
                                                where p.subscription_id = w.subscription_id and p.claim_id is not null)))),
                (select min(b.look_at) from cascade_internal.work_blocker as b where b.state = 'w' and not b.is_certain),
                (select clock_timestamp() from cascade_internal.work_blocker as b where b.state = 'r' limit 1))
              from cascade_internal.work_consumer as w
              join cascade_internal.queue as q using (queue_id)
             where q.name = coalesce(next_work_due.queue, q.name));
end
$$;
comment on function cascade.next_work_due(text) is 'When a message of a consumer in work mode is due next.';
