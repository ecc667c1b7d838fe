-- The newest position of a subscription.
create or replace function cascade_internal.newest_position(queue cascade_internal.queue, subscription_id integer)
returns cascade_internal.position
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_position cascade_internal.position;
    v_oldest   bigint;
    v_gen      bigint;
    v_look     integer;
begin
    -- Rotation may pass while we look from new to old: then look again.
    for v_look in 1 .. 3 loop
        v_oldest := null;
        v_gen := cascade_internal.current_gen((newest_position.queue).queue_id, (newest_position.queue).slots);
        loop
            execute format('select p.* from cascade_internal.position_%s_%s as p where p.subscription_id = %s order by p.n desc limit 1',
                           (newest_position.queue).queue_id, v_gen % (newest_position.queue).slots,
                           newest_position.subscription_id)
               into v_position;
            if v_position.n is not null then
                return v_position;
            end if;
            v_oldest := coalesce(v_oldest, cascade_internal.oldest_gen((newest_position.queue).queue_id));
            v_gen := v_gen - 1;
            exit when v_gen < v_oldest;
        end loop;
    end loop;
    return null;
end
$$;
comment on function cascade_internal.newest_position(cascade_internal.queue, integer) is 'Where a consumer stands.';

-- Appends a position.  The caller holds the subscription's row lock and took it before it
-- reads the register here.  So the row goes to a generation at least as new as that of the tick
-- it stands on, and no position is ever emptied away: its generation is released only after
-- the tick's, when the consumer has moved on.
create or replace function cascade_internal.append_position(queue cascade_internal.queue, "position" cascade_internal.position)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into cascade_internal.position_%s_%s select ($1).*', (append_position.queue).queue_id,
                   cascade_internal.current_gen((append_position.queue).queue_id, (append_position.queue).slots)
                   % (append_position.queue).slots)
      using append_position."position";
end
$$;
comment on function cascade_internal.append_position(cascade_internal.queue, cascade_internal.position) is 'Appends the next state of a consumer.';

-- The tick below which everything is finished: where the oldest open batch begins, or the head.
create or replace function cascade_internal.finished_tick(open_batches cascade_internal.open_batch[], head bigint)
returns bigint
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if finished_tick.open_batches = '{}' then
        return finished_tick.head;
    end if;
    return (select min(o.from_tick) from unnest(finished_tick.open_batches) as o);
end
$$;
comment on function cascade_internal.finished_tick(cascade_internal.open_batch[], bigint) is 'The tick below which nothing is open.';

create or replace function cascade_internal.lock_subscription(queue cascade_internal.queue, consumer text)
returns cascade_internal.subscription
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription cascade_internal.subscription;
begin
    perform cascade_internal.check_read_committed('moving a consumer');
    select s.* into v_subscription
      from cascade_internal.subscription as s
     where s.queue_id = (lock_subscription.queue).queue_id
       and s.consumer = lock_subscription.consumer
       for no key update;
    if not found then
        perform cascade_internal.raise_no_consumer((lock_subscription.queue).name, lock_subscription.consumer);
    elsif v_subscription.moving_to is not null then
        perform cascade_internal.raise_moved(lock_subscription.queue, lock_subscription.consumer);
    end if;
    return v_subscription;
end
$$;
comment on function cascade_internal.lock_subscription(cascade_internal.queue, text) is 'Locks a consumer, or raises QC102.';

create or replace function cascade_internal.raise_no_consumer(queue text, consumer text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if raise_no_consumer.consumer is null then
        raise exception 'the consumer name is null'
            using errcode = 'QC003', hint = 'Pass the name of a consumer.';
    end if;
    perform cascade_internal.raise_moved(q, m.consumer)
       from cascade_internal.queue as q
       join cascade_internal.consumer_move as m using (queue_id)
      where q.name = raise_no_consumer.queue and m.consumer = raise_no_consumer.consumer;
    raise exception 'queue "%" has no consumer "%"', raise_no_consumer.queue, raise_no_consumer.consumer
        using errcode = 'QC102', hint = format('select cascade.subscribe(%L, %L) makes it one.', raise_no_consumer.queue, raise_no_consumer.consumer);
end
$$;
comment on function cascade_internal.raise_no_consumer(text, text) is 'Raises QC102.';
