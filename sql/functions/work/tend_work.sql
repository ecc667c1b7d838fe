-- cascade.tend_work() looks after the consumers in work mode, about once a second: claims whose lease ran out or whose session
-- ended come back, finished chunks let the log go, and history, finished chunks and dead messages that were kept
-- long enough are removed.  Returns what it did.  It may be called at any time, by several at once.
create or replace function cascade.tend_work()
returns table (queue_name text, consumer text, action text, messages bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_work cascade_internal.work_consumer;
    v_log  cascade_internal.queue;
    v_done record;
begin
    perform cascade_internal.check_read_committed('tending');
    for v_work in select w.* from cascade_internal.work_consumer as w order by w.subscription_id loop
        select q.* into v_log from cascade_internal.queue as q where q.queue_id = v_work.queue_id;
        select s.consumer into tend_work.consumer
          from cascade_internal.subscription as s where s.subscription_id = v_work.subscription_id and s.moving_to is null;
        continue when not found;
        tend_work.queue_name := v_log.name;
        for v_done in select t.* from cascade_internal.tend_consumer(v_log, v_work) as t where t.messages > 0 loop
            tend_work.action := v_done.action;
            tend_work.messages := v_done.messages;
            return next;
        end loop;
    end loop;
    tend_work.queue_name := null;
    tend_work.consumer := null;
    tend_work.action := 'keys forgotten';
    tend_work.messages := cascade_internal.forget_keys(clock_timestamp());
    if tend_work.messages > 0 then
        return next;
    end if;
    tend_work.action := 'history dropped';
    tend_work.messages := cascade_internal.tend_history();
    if tend_work.messages > 0 then
        return next;
    end if;
end
$$;
comment on function cascade.tend_work() is 'Looks after the consumers in work mode.';

create or replace function cascade_internal.tend_consumer(log cascade_internal.queue, work cascade_internal.work_consumer)
returns table (action text, messages bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id  constant integer := (tend_consumer.work).subscription_id;
    v_now constant timestamptz := clock_timestamp();
begin
    tend_consumer.action := 'given back';
    tend_consumer.messages := cascade_internal.reap_claims(
        tend_consumer.log, tend_consumer.work, cascade_internal.work_option(tend_consumer.work, 'watch_sessions')::boolean);
    return next;
    tend_consumer.action := 'made ready';
    tend_consumer.messages := cascade_internal.tend_rows(tend_consumer.work, v_now);
    return next;
    perform cascade_internal.mend_registers(v_id);
    perform cascade_internal.let_go(tend_consumer.log, v_id);

    tend_consumer.action := 'done forgotten';
    delete from cascade_internal.work_chunk as c
     where c.subscription_id = v_id
       and c.no < cascade_internal.work_register('low', v_id)
       and c.state = 'd'
       and c.done_at < v_now - cascade_internal.work_option(tend_consumer.work, 'keep_done')::interval;
    get diagnostics tend_consumer.messages = row_count;
    return next;

    tend_consumer.action := 'dead purged';
    tend_consumer.messages := cascade_internal.drop_dead(tend_consumer.work, array(
        select d.id from cascade_internal.work_dead as d
         where d.subscription_id = v_id
           and d.died_at < v_now - cascade_internal.work_option(tend_consumer.work, 'keep_dead')::interval
         order by d.id
           for update skip locked));
    return next;
end
$$;
comment on function cascade_internal.tend_consumer(cascade_internal.queue, cascade_internal.work_consumer) is 'Looks after one consumer in work mode.';

-- Lets the log know how far a consumer is done, if that is further than it said last.  One that is being dispatched says
-- so itself.
create or replace function cascade_internal.let_go(log cascade_internal.queue, subscription_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_place cascade_internal.position := cascade_internal.newest_position(let_go.log, let_go.subscription_id);
begin
    if coalesce(cascade_internal.oldest_chunk_tick(let_go.subscription_id), v_place.head) = v_place.tick_id then
        return;
    end if;
    perform from cascade_internal.subscription as s where s.subscription_id = let_go.subscription_id for no key update skip locked;
    if found then
        v_place := cascade_internal.newest_position(let_go.log, let_go.subscription_id);
        v_place.n := v_place.n + 1;
        v_place.tick_id := coalesce(cascade_internal.oldest_chunk_tick(let_go.subscription_id), v_place.head);
        v_place.action := 'done';
        v_place.batch_id := null;
        v_place.at := clock_timestamp();
        perform cascade_internal.append_position(let_go.log, v_place);
    end if;
end
$$;
comment on function cascade_internal.let_go(cascade_internal.queue, integer) is 'Lets the log know how far a consumer is done.';

-- History is kept in partitions of a day.  Makes those of today and tomorrow, drops the ones that nobody keeps, and
-- returns how many.  What came while there was none is in the default partition: its rows are deleted one by one.
create or replace function cascade_internal.tend_history()
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_today   constant date := (clock_timestamp() at time zone 'UTC')::date;
    v_keep    constant interval := (select max(cascade_internal.work_option(w, 'keep_done')::interval) from cascade_internal.work_consumer as w);
    v_oldest  constant date := (clock_timestamp() at time zone 'UTC' - v_keep)::date;
    v_day     date;
    v_name    text;
    v_dropped bigint := 0;
begin
    -- One at a time: the others have nothing left to do.
    if v_keep is null or not pg_try_advisory_xact_lock(1127303507, 80) then
        return 0;
    end if;
    for v_day in select v_today + d from generate_series(0, 1) as d loop
        v_name := 'work_history_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass('cascade_internal.' || v_name) is not null;
        -- Rows in the default partition that belong to it would be in its way; and nobody is to wait for us long.
        continue when exists (select from cascade_internal.work_history_default as h
                               where h.ended_at >= v_day::timestamp at time zone 'UTC'
                                 and h.ended_at < (v_day + 1)::timestamp at time zone 'UTC');
        perform set_config('lock_timeout', '200ms', true);
        begin
            execute format('create table cascade_internal.%I partition of cascade_internal.work_history for values from (%L) to (%L)',
                           v_name, v_day::timestamp at time zone 'UTC', (v_day + 1)::timestamp at time zone 'UTC');
            execute format('comment on table cascade_internal.%I is %L', v_name, 'What became of every attempt that ended on that day, UTC.');
        exception when lock_not_available or check_violation then
            null; -- Somebody writes history, perhaps of that very day: the default partition does as well.
        end;
        perform set_config('lock_timeout', '0', true);
    end loop;
    for v_name in
        select c.relname from pg_catalog.pg_inherits as i
          join pg_catalog.pg_class as c on c.oid = i.inhrelid
         where i.inhparent = 'cascade_internal.work_history'::regclass
           and c.relname ~ '^work_history_[0-9]{8}$'
           and right(c.relname, 8)::date < v_oldest
    loop
        perform set_config('lock_timeout', '200ms', true);
        begin
            execute format('drop table cascade_internal.%I', v_name);
            v_dropped := v_dropped + 1;
        exception when lock_not_available then
            null;
        end;
        perform set_config('lock_timeout', '0', true);
    end loop;
    delete from cascade_internal.work_history_default as h where h.ended_at < v_oldest::timestamp at time zone 'UTC';
    return v_dropped;
end
$$;
comment on function cascade_internal.tend_history() is 'Makes and drops the partitions of history.';
