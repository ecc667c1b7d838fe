-- cascade.take(queue, id, wait) removes a message for every consumer in work mode, and returns it.  If somebody has it, it waits until
-- that one has let go of it, at most so long: then QC219, and nothing was removed.  No row: all were done with it.  An
-- event that has not been ticked is ticked first, where that can be.
create or replace function cascade_internal.take(queue text, id bigint, wait interval, caller name)
returns setof cascade.message
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_log   constant cascade_internal.queue := cascade_internal.find_queue(take.queue);
    v_until constant timestamptz := clock_timestamp() + coalesce(take.wait, interval '0');
    v_work  cascade_internal.work_consumer;
    v_shown boolean := false;
begin
    perform cascade_internal.check_read_committed('work mode');
    if take.id is null then
        raise exception 'the message id is null' using errcode = 'QC003', hint = 'Pass the id of an event.';
    end if;
    for v_work in select w.* from cascade_internal.work_handles(v_log, take.caller) as w loop
        perform cascade_internal.bring_message(v_log, v_work, take.id);
        while cascade_internal.seize(v_log, v_work, array[take.id], 'waiting') = '{}' loop
            -- Between two looks it may have changed hands: it is gone only if it is nowhere at one moment.
            exit when not cascade_internal.is_unfinished(v_work.subscription_id, take.id);
            if clock_timestamp() >= v_until then
                raise exception 'message % of queue "%" is being worked on', take.id, take.queue
                    using errcode = 'QC219', hint = 'Wait longer, or give it back: cascade.release_message().';
            end if;
            perform pg_sleep(0.01);
        end loop;
        return query
            select a.id, v_log.name, a.type, a.key, a.payload, a.headers, a.attempt, a."time", a.available_at, null::bigint
              from cascade_internal.work_active as a
             where a.subscription_id = v_work.subscription_id and a.claim_id = -1 and not v_shown;
        v_shown := v_shown or found;
        perform cascade_internal.end_seized(v_work, 'taken');
    end loop;
end
$$;
comment on function cascade_internal.take(text, bigint, interval, name) is 'Removes a message for everyone, for a caller.';

create or replace function cascade.take(queue text, id bigint, wait interval default '1 min')
returns setof cascade.message
language sql volatile rows 1
begin atomic
    select m.* from cascade_internal.take(take.queue, take.id, take.wait, current_user) as m;
end;
comment on function cascade.take(text, bigint, interval) is 'Removes a message for every consumer in work mode, and returns it.';

-- cascade.cancel(queue, id) removes a message for every consumer in work mode that has not begun with it.  True when there was one; false
-- when all were done with it, or when somebody has it: then nothing was removed.
create or replace function cascade_internal.cancel(queue text, id bigint, caller name)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_log  constant cascade_internal.queue := cascade_internal.find_queue(cancel.queue);
    v_work cascade_internal.work_consumer;
    v_any  boolean := false;
begin
    perform cascade_internal.check_read_committed('work mode');
    if cancel.id is null then
        raise exception 'the message id is null' using errcode = 'QC003', hint = 'Pass the id of an event.';
    end if;
    for v_work in select w.* from cascade_internal.work_handles(v_log, cancel.caller) as w loop
        perform cascade_internal.bring_message(v_log, v_work, cancel.id);
        while cascade_internal.seize(v_log, v_work, array[cancel.id], 'waiting') = '{}' loop
            exit when not cascade_internal.is_unfinished(v_work.subscription_id, cancel.id);
            if exists (select from cascade_internal.work_claim as c
                        where c.subscription_id = v_work.subscription_id and cascade_internal.claim_holds(c, array[cancel.id])) then
                raise exception 'held' using errcode = 'QC219';
            end if;
        end loop;
        v_any := v_any or exists (select from cascade_internal.work_active as a
                                   where a.subscription_id = v_work.subscription_id and a.claim_id = -1);
        perform cascade_internal.end_seized(v_work, 'cancelled');
    end loop;
    return v_any;
exception when sqlstate 'QC219' then
    return false;
end
$$;
comment on function cascade_internal.cancel(text, bigint, name) is 'Removes a message that nobody has begun with, for a caller.';

create or replace function cascade.cancel(queue text, id bigint)
returns boolean
language sql volatile
begin atomic
    select cascade_internal.cancel(cancel.queue, cancel.id, current_user);
end;
comment on function cascade.cancel(text, bigint) is 'Removes a message that nobody has begun with.';

-- Whether a message waits or is worked on; one statement, so that it is seen on its way from one place to another.
create or replace function cascade_internal.is_unfinished(subscription_id integer, id bigint)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_low constant bigint := cascade_internal.work_register('low', is_unfinished.subscription_id);
begin
    return (select exists (select from cascade_internal.work_waiting as w
                            where w.subscription_id = is_unfinished.subscription_id and w.id = is_unfinished.id)
                or exists (select from cascade_internal.work_held as h
                            where h.subscription_id = is_unfinished.subscription_id and h.id = is_unfinished.id)
                or exists (select from cascade_internal.work_active as a
                            where a.subscription_id = is_unfinished.subscription_id and a.id = is_unfinished.id)
                or exists (select from cascade_internal.work_chunk as c
                            where c.subscription_id = is_unfinished.subscription_id and c.no >= v_low and c.state <> 'd'
                              and is_unfinished.id between c.first_id and c.last_id
                              and is_unfinished.id = any (coalesce(c."open", c.ids, array[is_unfinished.id]))));
end
$$;
comment on function cascade_internal.is_unfinished(integer, bigint) is 'Whether a message waits or is worked on.';

-- The consumers in work mode of a queue, to a caller who may act as all of them.
create or replace function cascade_internal.work_handles(log cascade_internal.queue, caller name)
returns setof cascade_internal.work_consumer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_consumer text;
begin
    for v_consumer in
        select s.consumer from cascade_internal.subscription as s
         where s.queue_id = (work_handles.log).queue_id and s.is_work and s.moving_to is null
         order by s.subscription_id
    loop
        return next (cascade_internal.find_work((work_handles.log).name, v_consumer, work_handles.caller)).work;
    end loop;
end
$$;
comment on function cascade_internal.work_handles(cascade_internal.queue, name) is 'The consumers in work mode of a queue.';

-- Sees to it that a consumer was given a message, if it is in the log.
create or replace function cascade_internal.bring_message(log cascade_internal.queue, work cascade_internal.work_consumer, id bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if cascade_internal.was_dispatched(bring_message.work, bring_message.id) then
        return;
    end if;
    perform cascade_internal.resolve_tick(bring_message.log, 'now');
    perform from cascade_internal.subscription as s
      where s.subscription_id = (bring_message.work).subscription_id for no key update;
    while cascade_internal.is_behind(bring_message.log, (bring_message.work).subscription_id) loop
        perform cascade_internal.dispatch(bring_message.log, bring_message.work, 1000000);
    end loop;
    if not cascade_internal.was_dispatched(bring_message.work, bring_message.id) then
        raise exception 'queue "%" has no event %', (bring_message.log).name, bring_message.id
            using errcode = 'QC104', hint = 'It was never posted, or its transaction has not committed.';
    end if;
end
$$;
comment on function cascade_internal.bring_message(cascade_internal.queue, cascade_internal.work_consumer, bigint) is 'Has a message dispatched.';

-- cascade.peek(queue, consumer, count) shows messages that could be claimed now, without claiming them.
create or replace function cascade_internal.peek(queue text, consumer text, count integer, caller name)
returns setof cascade.message
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record := cascade_internal.find_work(peek.queue, peek.consumer, peek.caller);
    v_id    constant integer := (v_found.work).subscription_id;
    v_left  bigint := peek.count;
    v_count bigint;
    v_chunk cascade_internal.work_chunk;
begin
    if peek.count is null or peek.count not between 1 and 10000 then
        raise exception 'count must be between 1 and 10000' using errcode = 'QC003', hint = 'For example 10.';
    end if;
    perform cascade_internal.check_read_committed('work mode');
    perform cascade_internal.replenish(v_found.log, v_found.work, false);
    return query
        select r.id, (v_found.log).name, r.type, r.key, r.payload, r.headers, r.attempt + 1, r."time", r.available_at, null::bigint
          from (select a.id, a.type, a.key, a.payload, a.headers, a.attempt, a."time", a.available_at, a.class
                  from cascade_internal.work_active as a where a.subscription_id = v_id and a.claim_id is null
                union all
                select w.id, w.type, w.key, w.payload, w.headers, w.attempt, w."time", w.available_at, w.class
                  from cascade_internal.work_waiting as w
                 where w.subscription_id = v_id
                   and w.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p
                                     where p.subscription_id = v_id and p.claim_id is not null)) as r
         order by r.class, r.id
         limit v_left;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    for v_chunk in
        select c.* from cascade_internal.work_chunk as c
         where c.subscription_id = v_id and c.state = 'f' and c.no >= cascade_internal.work_register('low', v_id)
         order by c.no
    loop
        exit when v_left <= 0;
        return query select m.* from cascade_internal.read_chunk(v_found.log, v_chunk, null) as m limit v_left;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;
comment on function cascade_internal.peek(text, text, integer, name) is 'Shows messages that could be claimed, to a caller.';

create or replace function cascade.peek(queue text, consumer text, count integer default 1)
returns setof cascade.message
language sql volatile rows 10
begin atomic
    select m.* from cascade_internal.peek(peek.queue, peek.consumer, peek.count, current_user) as m;
end;
comment on function cascade.peek(text, text, integer) is 'Shows messages that could be claimed now.';
