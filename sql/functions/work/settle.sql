-- cascade_internal.settle(work, ids, outcome): messages are done, expired, cancelled, taken, dead, or (replayed) no longer dead.  Whoever
-- waits for one that is dead goes on waiting; for the others they are let go, a little later.
create or replace function cascade_internal.settle(work cascade_internal.work_consumer, ids bigint[], outcome text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if cascade_internal.has_blockers((settle.work).subscription_id) then
        update cascade_internal.work_blocker as b
           set state = case settle.outcome when 'dead' then 'd' when 'replayed' then 'w' else 'r' end::"char"
         where b.by_subscription = (settle.work).subscription_id
           and b.after_id = any (settle.ids)
           and b.state <> 'r';
    end if;
end
$$;
comment on function cascade_internal.settle(cascade_internal.work_consumer, bigint[], text) is 'Tells those who wait what became of messages.';

-- Whether anybody waits for messages of a consumer.
create or replace function cascade_internal.has_blockers(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from cascade_internal.work_blocker as b where b.by_subscription = has_blockers.subscription_id);
end
$$;
comment on function cascade_internal.has_blockers(integer) is 'Whether anybody waits for messages of a consumer.';

-- What is known of a message for which others wait: open, dead, finished, or unseen: not in the log, or not yet dispatched.
create or replace function cascade_internal.blocker_state(by_subscription integer, after_id bigint)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_work cascade_internal.work_consumer;
begin
    select w.* into v_work
      from cascade_internal.work_consumer as w
     where w.subscription_id = blocker_state.by_subscription;
    if not found then
        return 'finished';
    end if;
    -- It may be dispatched, or replayed, between two looks: then the second one sees it.
    for v_look in 1 .. 2 loop
        if cascade_internal.is_unfinished(v_work.subscription_id, blocker_state.after_id) then
            return 'open';
        elsif exists (select from cascade_internal.work_dead as d
                       where d.subscription_id = v_work.subscription_id and d.id = blocker_state.after_id) then
            return 'dead';
        elsif v_look = 1 and not cascade_internal.was_dispatched(v_work, blocker_state.after_id) then
            return 'unseen';
        end if;
    end loop;
    return 'finished';
end
$$;
comment on function cascade_internal.blocker_state(integer, bigint) is 'What is known of a message for which others wait.';

-- Whether an event came before the tick up to which a consumer was given its messages.  The ticks around the time when its id was
-- handed out say where in the log it is, if its transaction wrote it then; one with a reserved id may have come any time
-- later.  What was rotated away came, and is finished.
create or replace function cascade_internal.was_dispatched(work cascade_internal.work_consumer, id bigint)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_log   cascade_internal.queue;
    v_head  cascade_internal.tick;
    v_from  cascade_internal.tick;
    v_to    cascade_internal.tick;
    v_found boolean;
begin
    select q.* into v_log from cascade_internal.queue as q where q.queue_id = (was_dispatched.work).queue_id;
    v_head := cascade_internal.find_tick(v_log.queue_id, v_log.slots, cascade_internal.dispatched_tick(was_dispatched.work));
    if was_dispatched.id > v_head.event_seq then
        return false;
    end if;
    execute format('select t.* from (%s) as t where t.event_seq < %s order by t.tick_id desc limit 1',
                   cascade_internal.ticks_query(v_log), was_dispatched.id) into v_from;
    if v_from.tick_id is null then
        return true;
    end if;
    execute format('select t.* from (%s) as t where t.event_seq >= %s order by t.tick_id limit 1',
                   cascade_internal.ticks_query(v_log), was_dispatched.id) into v_to;
    execute format('select exists (%s)', cascade_internal.batch_arms(v_log, v_from, v_to, '1', format('e.id = %s', was_dispatched.id)))
       into v_found;
    if not v_found and v_to.tick_id <> v_head.tick_id then
        execute format('select exists (%s)', cascade_internal.batch_arms(v_log, v_to, v_head, '1', format('e.id = %s', was_dispatched.id)))
           into v_found;
    end if;
    return v_found;
end
$$;
comment on function cascade_internal.was_dispatched(cascade_internal.work_consumer, bigint) is 'Whether an event was among those a consumer was given.';

-- Looks at a message for which others wait.  Who completed it may have missed the row that says so, if both transactions ran at
-- once; when all that ran when the row became visible have ended, nobody can have missed it, and it is not looked at again.
create or replace function cascade_internal.look_at_blocker(by_subscription integer, after_id bigint, is_new boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_low   constant bigint := txid_snapshot_xmin(txid_current_snapshot());
    v_state constant text := cascade_internal.blocker_state(look_at_blocker.by_subscription, look_at_blocker.after_id);
begin
    -- Somebody who holds the row is completing the message.
    perform from cascade_internal.work_blocker as b
      where b.by_subscription = look_at_blocker.by_subscription and b.after_id = look_at_blocker.after_id
        and b.state <> 'r' and not (look_at_blocker.is_new and b.is_certain)
        for no key update skip locked;
    if not found then
        return;
    end if;
    update cascade_internal.work_blocker as b
       set state = case v_state when 'finished' then 'r' when 'dead' then 'd' else 'w' end::"char",
           is_certain = v_state = 'open' and not look_at_blocker.is_new and coalesce(v_low >= b.horizon, false),
           horizon = case when look_at_blocker.is_new then null
                          else coalesce(b.horizon, txid_snapshot_xmax(txid_current_snapshot())) end,
           look_at = clock_timestamp() + case when v_state = 'unseen' and not look_at_blocker.is_new then interval '1 s' else interval '10 ms' end
     where b.by_subscription = look_at_blocker.by_subscription
       and b.after_id = look_at_blocker.after_id;
end
$$;
comment on function cascade_internal.look_at_blocker(integer, bigint, boolean) is 'Looks whether a message for which others wait is finished.';

-- Lets go those who wait for finished messages, of whatever consumer, a thousand at a time, and returns how many there were.
create or replace function cascade_internal.release_followers()
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_blocker record;
    v_gone    bigint;
    v_all     bigint := 0;
begin
    for v_blocker in
        select b.by_subscription, b.after_id
          from cascade_internal.work_blocker as b
         where b.state = 'r'
         limit 1000
           for update skip locked
    loop
        -- One that waits for two may be let go by two sessions at once: neither waits for the other's transaction.
        with gone as (
            delete from cascade_internal.work_after as a
             where a.ctid = any (array(
                select x.ctid
                  from cascade_internal.work_after as x
                  join cascade_internal.work_held as h
                    on h.subscription_id = x.subscription_id and h.id = x.id
                 where x.by_subscription = v_blocker.by_subscription and x.after_id = v_blocker.after_id
                 limit 1000
                   for update of h skip locked))
            returning a.subscription_id, a.id),
        freed as (
            update cascade_internal.work_held as h
               set waits = h.waits - 1
              from gone as g
             where h.subscription_id = g.subscription_id and h.id = g.id)
        select count(*) into v_gone from gone as g;
        v_all := v_all + v_gone;
        if v_gone < 1000 then
            delete from cascade_internal.work_blocker as b
             where b.by_subscription = v_blocker.by_subscription and b.after_id = v_blocker.after_id
               and not exists (select from cascade_internal.work_after as a
                                where a.by_subscription = v_blocker.by_subscription and a.after_id = v_blocker.after_id);
        end if;
        exit when v_all >= 1000;
    end loop;
    return v_all;
end
$$;
comment on function cascade_internal.release_followers() is 'Lets go those who wait for finished messages.';
