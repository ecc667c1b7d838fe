-- cascade.subscribe(queue, consumer, at, mode, selector, options) registers a consumer and returns the tick it stands
-- on.  A second call changes nothing and returns where the consumer stands now: seek moves it.
-- A consumer that has moved to another node is not made anew here: QC213 names the node.  On a leaf, which keeps
-- no events, there is nothing to read: QC208.
--
-- mode is stream, for a consumer that reads batches in order, or work, for one that takes message after message.  selector
-- and options are for work mode; a second call with others raises QC220: cascade.alter_consumer() changes them.
create or replace function cascade_internal.subscribe(
    queue text, consumer text, at text, mode text, selector text, options jsonb, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(subscribe.queue);
    v_tick  cascade_internal.tick;
    v_id    integer;
begin
    perform cascade_internal.check_name('consumer', subscribe.consumer);
    perform cascade_internal.check_consumer(v_queue, subscribe.consumer, subscribe.caller);
    perform cascade_internal.check_mode(subscribe.mode, subscribe.selector, subscribe.options);
    -- It would be given empty batches, and hold back the whole set by standing still.
    perform cascade_internal.check_keeps_events(v_queue);
    insert into cascade_internal.subscription (queue_id, consumer, is_work)
    values (v_queue.queue_id, subscribe.consumer, subscribe.mode = 'work')
    on conflict on constraint subscription_consumer_key do nothing
    returning subscription.subscription_id into v_id;
    if exists (select from cascade_internal.consumer_move as m
                where m.queue_id = v_queue.queue_id and m.consumer = subscribe.consumer) then
        perform cascade_internal.raise_moved(v_queue, subscribe.consumer);
    elsif v_id is null then
        select s.subscription_id into v_id
          from cascade_internal.subscription as s
         where s.queue_id = v_queue.queue_id
           and s.consumer = subscribe.consumer;
        perform cascade_internal.check_same_mode(v_queue, v_id, subscribe.consumer, subscribe.mode, subscribe.selector, subscribe.options);
        return (cascade_internal.newest_position(v_queue, v_id)).tick_id;
    end if;
    v_tick := cascade_internal.hold_tick(v_queue, subscribe.at);
    perform cascade_internal.append_position(
        v_queue, (v_id, 1, v_tick.tick_id, v_tick.tick_id, v_tick.total, '{}', 'subscribe', null, clock_timestamp())::cascade_internal.position);
    if subscribe.mode = 'work' then
        perform cascade_internal.begin_work(v_queue.queue_id, v_id, subscribe.selector, subscribe.options);
    end if;
    return v_tick.tick_id;
end
$$;
comment on function cascade_internal.subscribe(text, text, text, text, text, jsonb, name) is 'Registers a consumer for a caller.';

create or replace function cascade.subscribe(
    queue text, consumer text, at text default 'now', mode text default 'stream', selector text default null, options jsonb default '{}')
returns bigint
language sql volatile
begin atomic
    select cascade_internal.subscribe(subscribe.queue, subscribe.consumer, subscribe.at, subscribe.mode, subscribe.selector,
                                      subscribe.options, current_user);
end;
comment on function cascade.subscribe(text, text, text, text, text, jsonb) is 'Registers a consumer at now, earliest, a tick id or a timestamp.';

create or replace function cascade_internal.check_keeps_events(queue cascade_internal.queue)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_node text := (select n.node from cascade_internal.node as n where n.queue_id = (check_keeps_events.queue).queue_id and n.role = 'leaf');
begin
    if v_node is not null then
        raise exception 'node "%" is a leaf of set "%" and keeps no events', v_node, (check_keeps_events.queue).name
            using errcode = 'QC208', hint = 'Subscribe on a branch or at the root; the view cascade.locations says where they are.';
    end if;
end
$$;
comment on function cascade_internal.check_keeps_events(cascade_internal.queue) is 'Refuses a consumer where there is nothing to read.';

-- A tick on which a consumer is about to stand.  Rotation decides what to release while it
-- holds the oldest generation's row: until this transaction ends it releases nothing.
create or replace function cascade_internal.hold_tick(queue cascade_internal.queue, at text)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform
       from cascade_internal.generation as g
      where g.queue_id = (hold_tick.queue).queue_id
      order by g.gen
        for share;
    return cascade_internal.resolve_tick(hold_tick.queue, hold_tick.at);
end
$$;
comment on function cascade_internal.hold_tick(cascade_internal.queue, text) is 'A place in a queue that rotation leaves alone until this transaction ends.';
