-- cascade.next_batch(queue, consumer, max_ticks, max_events, worker, lease, exclusive, after, finish)
-- returns the batch to work on, or no row when there is nothing.
--
-- A consumer that calls without worker is one reader: until it finishes its batch, every call
-- returns that batch again.  Several processes share a consumer by giving a worker name each:
-- every worker holds batches of its own, under a lease that renew_batch extends; a batch
-- that was given back, or whose lease ran out, goes to the next who asks, under a new id, so
-- that the former holder can no longer finish it.  With exclusive a worker waits while
-- another one holds a batch: order is kept, and the others stand by.
--
-- after => batch_id asks for the batch that follows one the worker already holds, to be
-- read ahead.  max_events limits a batch of several ticks; a single tick is never cut.
--
-- finish => batch_id finishes a batch first, as finish_batch does, in one step with taking the
-- next: both happen or neither.  It may be repeated, and then returns the batch that was taken;
-- a batch that is somebody else's now raises QC203, and nothing is taken.
create or replace function cascade_internal.next_batch(
    queue text, consumer text, max_ticks integer, max_events bigint, worker text, lease interval,
    exclusive boolean, after bigint, finish bigint, caller name)
returns table (batch_id bigint, from_tick bigint, to_tick bigint, events bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue    cascade_internal.queue := cascade_internal.find_queue(next_batch.queue);
    v_worker   constant text := coalesce(next_batch.worker, '');
    v_id       integer;
    v_position cascade_internal.position;
    v_batch    cascade_internal.open_batch;
    v_closed   cascade_internal.position;
    v_locked   boolean := false;
    v_moving   boolean;
    v_is_work  boolean;
    v_now      timestamptz;
begin
    perform cascade_internal.check_consumer(v_queue, next_batch.consumer, next_batch.caller);
    if next_batch.max_ticks < 1 or next_batch.max_ticks is null or next_batch.max_events < 1
       or next_batch.lease not between interval '1 ms' and interval '1 year' then
        raise exception 'max_ticks, max_events and lease must be positive, and a lease a year at most'
            using errcode = 'QC003', hint = 'max_ticks => 1 takes one tick at a time.';
    end if;
    if next_batch.finish is null then
        select s.subscription_id, s.moving_to is not null, s.is_work into v_id, v_moving, v_is_work
          from cascade_internal.subscription as s
         where s.queue_id = v_queue.queue_id
           and s.consumer = next_batch.consumer;
        if not found then
            perform cascade_internal.raise_no_consumer(next_batch.queue, next_batch.consumer);
        elsif v_moving then
            perform cascade_internal.raise_moved(v_queue, next_batch.consumer);
        elsif v_is_work then
            perform cascade_internal.raise_is_work(v_queue, next_batch.consumer);
        end if;
    else
        v_id := (cascade_internal.lock_subscription(v_queue, next_batch.consumer)).subscription_id;
        v_locked := true;
    end if;
    -- With nothing to finish, first without a lock: a consumer that finds nothing writes nothing.
    loop
        v_now := clock_timestamp();
        v_position := cascade_internal.newest_position(v_queue, v_id);
        if v_position.n is null then
            raise exception 'the position of consumer "%" of queue "%" is not visible', next_batch.consumer, next_batch.queue
                using errcode = 'QC501', hint = 'This transaction''s snapshot is older than the last rotation: begin a new one.';
        end if;
        if next_batch.finish is not null then
            v_closed := cascade_internal.close_batch(v_queue, v_position, next_batch.finish);
            if v_closed.n is not null then
                v_position := v_closed;
            end if;
        end if;
        v_batch := cascade_internal.choose_batch(v_queue, v_position, v_worker, next_batch.max_ticks, next_batch.max_events,
                                                 coalesce(next_batch.exclusive, false), next_batch.after, v_now);
        exit when v_batch is null or v_batch.batch_id is not null or v_locked;
        v_id := (cascade_internal.lock_subscription(v_queue, next_batch.consumer)).subscription_id;
        v_locked := true;
        exit when (cascade_internal.newest_position(v_queue, v_id)).n = v_position.n
              and v_id = v_position.subscription_id;
    end loop;
    if v_batch.batch_id is null and not (v_batch is null) then
        -- An id that anyone has seen is never given out again, not even after a crash.
        perform cascade_internal.commit_durably();
        v_batch := cascade_internal.open_batch(
            v_queue, v_position, v_batch, v_worker,
            case when next_batch.worker is null then 'infinity'
                 else clock_timestamp() + coalesce(next_batch.lease, interval '1 minute') end, v_now, v_closed.batch_id);
    elsif v_closed.n is not null then
        v_closed.n := v_closed.n + 1;
        perform cascade_internal.append_position(v_queue, v_closed);
    end if;
    if v_batch is null then
        return;
    end if;
    next_batch.batch_id := v_batch.batch_id;
    next_batch.from_tick := v_batch.from_tick;
    next_batch.to_tick := v_batch.to_tick;
    next_batch.events := v_batch.events;
    return next;
end
$$;
comment on function cascade_internal.next_batch(text, text, integer, bigint, text, interval, boolean, bigint, bigint, name) is 'The batch to work on, for a caller.';

create or replace function cascade.next_batch(
    queue text, consumer text, max_ticks integer default 1, max_events bigint default null, worker text default null,
    lease interval default null, exclusive boolean default false, after bigint default null, finish bigint default null)
returns table (batch_id bigint, from_tick bigint, to_tick bigint, events bigint)
language sql stable rows 1 -- stable, as batch_events is: put in place, not called
begin atomic
    select b.batch_id, b.from_tick, b.to_tick, b.events
      from cascade_internal.next_batch(next_batch.queue, next_batch.consumer, next_batch.max_ticks, next_batch.max_events,
               next_batch.worker, next_batch.lease, next_batch.exclusive, next_batch.after, next_batch.finish, current_user) as b;
end;
comment on function cascade.next_batch(text, text, integer, bigint, text, interval, boolean, bigint, bigint) is 'The batch to work on; no row when there is nothing.';

-- Decides, without changing anything: null, nothing to do; with a batch_id, a batch the worker
-- holds already; without one, a range of ticks to hand out, whose attempt says whether it was
-- handed out before.
create or replace function cascade_internal.choose_batch(
    queue cascade_internal.queue, "position" cascade_internal.position, worker text, max_ticks integer, max_events bigint,
    exclusive boolean, after bigint, at timestamptz)
returns cascade_internal.open_batch
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_batch      cascade_internal.open_batch;
    v_range      cascade_internal.open_batch;
    v_gen        bigint;
    v_oldest     bigint;
    v_ticks      bigint[];
    v_totals     bigint[];
    v_all_ticks  bigint[] := '{}';
    v_all_totals bigint[] := '{}';
    v_taken      bigint := 0;
    v_to         bigint;
    v_total      bigint;
    v_most       numeric;
    v_retries    boolean;
begin
    if (choose_batch."position").open_batches <> '{}' then
        -- A batch that is no longer open has nothing to come after: then the first one counts.
        select o.* into v_batch
          from unnest((choose_batch."position").open_batches) as o
         where o.batch_id = choose_batch.after and o.worker = choose_batch.worker;
        if choose_batch.exclusive
           and exists (select from unnest((choose_batch."position").open_batches) as o
                        where o.worker <> choose_batch.worker and o.until > choose_batch.at) then
            return null;
        end if;
        -- One that this worker holds, so that asking again gives the same answer; else the oldest that
        -- was given back or whose lease ran out.  An exclusive worker keeps to the order instead.
        -- But none that the worker has at hand, up to `after`.
        select o.* into v_range
          from unnest((choose_batch."position").open_batches) as o
         where (o.worker is null or o.worker = choose_batch.worker or o.until <= choose_batch.at)
           and (v_batch.batch_id is null or o.worker is distinct from choose_batch.worker
                or (o.from_tick, o.batch_id) > (v_batch.from_tick, v_batch.batch_id))
         order by not choose_batch.exclusive and o.worker is distinct from choose_batch.worker, o.from_tick, o.batch_id
         limit 1;
        if found then
            if v_range.worker is null or v_range.until <= choose_batch.at then
                v_range.batch_id := null;
            end if;
            return v_range;
        end if;
    end if;

    -- The last tick that fits; the first one always does.  From the newest generation down to the
    -- one that holds the head, which is the newest itself but for a while after a switch.
    v_to := (choose_batch."position").head;
    v_total := (choose_batch."position").head_total;
    v_most := v_total::numeric + coalesce(choose_batch.max_events, 1000000000000000);
    v_gen := cascade_internal.current_gen((choose_batch.queue).queue_id, (choose_batch.queue).slots);
    loop
        execute format(
            'select array_agg(t.tick_id), array_agg(t.total) from (select x.tick_id, x.total from cascade_internal.tick_%s_%s as x'
            ' where x.tick_id >= %s order by x.tick_id limit %s) as t',
            (choose_batch.queue).queue_id, v_gen % (choose_batch.queue).slots, v_to, choose_batch.max_ticks + 1::bigint)
           into v_ticks, v_totals;
        v_all_ticks := v_ticks || v_all_ticks;
        v_all_totals := v_totals || v_all_totals;
        exit when v_ticks[1] = v_to;
        v_oldest := coalesce(v_oldest, cascade_internal.oldest_gen((choose_batch.queue).queue_id));
        v_gen := v_gen - 1;
        exit when v_gen < v_oldest;
    end loop;
    for v_i in 1 .. cardinality(v_all_ticks) loop
        continue when v_all_ticks[v_i] = (choose_batch."position").head;
        exit when v_taken >= choose_batch.max_ticks or v_taken > 0 and v_all_totals[v_i] > v_most;
        v_taken := v_taken + 1;
        v_to := v_all_ticks[v_i];
        v_total := v_all_totals[v_i];
    end loop;
    v_retries := exists (select from cascade_internal.retry as r
                          where r.subscription_id = (choose_batch."position").subscription_id
                            and r.active and r.batch_id is null and r.due <= choose_batch.at);
    if v_taken = 0 and not v_retries then
        return null;
    end if;
    -- attempt 0: new; -1: new, and there are events put back to deliver with it.
    return (null, (choose_batch."position").head, v_to, v_total - (choose_batch."position").head_total,
            choose_batch.worker, null, case when v_retries then -1 else 0 end)::cascade_internal.open_batch;
end
$$;
comment on function cascade_internal.choose_batch(cascade_internal.queue, cascade_internal.position, text, integer, bigint, boolean, bigint, timestamptz)
    is 'Decides which batch a worker gets.';

-- Hands out the range that choose_batch found.  A batch's id is its subscription and the
-- number of the position that opened it: nothing else has to be stored to find it again.
-- The same row says which batch was finished in this step, if one was.
create or replace function cascade_internal.open_batch(
    queue cascade_internal.queue, "position" cascade_internal.position, range cascade_internal.open_batch,
    worker text, until timestamptz, at timestamptz, finished bigint)
returns cascade_internal.open_batch
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription constant integer := (open_batch."position").subscription_id;
    v_n            constant bigint := (open_batch."position").n + 1;
    v_batch        cascade_internal.open_batch := open_batch.range;
    v_former       bigint;
    v_others       cascade_internal.open_batch[];
    v_retries      bigint;
    v_new          constant bigint := case when (open_batch.range).attempt > 0 then 0 else (open_batch.range).events end;
begin
    v_batch.batch_id := v_subscription * 10000000000::bigint + v_n;
    v_batch.worker := open_batch.worker;
    v_batch.until := open_batch.until;
    v_batch.attempt := greatest((open_batch.range).attempt, 0) + 1;
    if v_batch.attempt > 1 then
        select o.batch_id into strict v_former
          from unnest((open_batch."position").open_batches) as o
         where o.from_tick = v_batch.from_tick
           and o.to_tick = v_batch.to_tick
           and o.worker is not distinct from (open_batch.range).worker
           and o.attempt = (open_batch.range).attempt
           and (o.worker is null or o.until <= open_batch.at)
         order by o.batch_id limit 1;
        perform cascade_internal.move_retries(v_former, v_batch.batch_id);
    elsif (open_batch.range).attempt = -1 then
        with due as (
            select r.event_id, r.attempt
              from cascade_internal.retry as r
             where r.subscription_id = v_subscription
               and r.active and r.batch_id is null and r.due <= open_batch.at
             order by r.due
             limit 1000)
        update cascade_internal.retry as r
           set batch_id = v_batch.batch_id
          from due as d
         where r.subscription_id = v_subscription
           and r.event_id = d.event_id
           and r.attempt = d.attempt;
        get diagnostics v_retries = row_count;
        v_batch.events := v_batch.events + v_retries;
    end if;
    v_others := (open_batch."position").open_batches;
    if v_former is not null then
        v_others := array(select o from unnest(v_others) as o where o.batch_id <> v_former);
    end if;
    perform cascade_internal.append_position(
        open_batch.queue,
        (v_subscription, v_n, (open_batch."position").tick_id, greatest((open_batch."position").head, v_batch.to_tick),
         (open_batch."position").head_total + v_new, v_others || v_batch,
         case when open_batch.finished is null then 'open' else 'finish' end, coalesce(open_batch.finished, v_batch.batch_id),
         open_batch.at)::cascade_internal.position);
    return v_batch;
end
$$;
comment on function cascade_internal.open_batch(cascade_internal.queue, cascade_internal.position, cascade_internal.open_batch, text, timestamptz, timestamptz, bigint)
    is 'Hands out a batch.';

-- When a batch changes hands, what it was to deliver goes along; what its former holder had
-- asked to see again, but had not finished, is void.
create or replace function cascade_internal.move_retries(former bigint, batch_id bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.retry as r
       set batch_id = move_retries.batch_id
     where r.batch_id = move_retries.former;
    delete from cascade_internal.retry as r
     where r.requested_by = move_retries.former
       and not r.active;
end
$$;
comment on function cascade_internal.move_retries(bigint, bigint) is 'Hands the retries of a batch to its next holder.';
