-- cascade_internal.find_batch(batch_id, caller, lock) finds the queue, the consumer's newest
-- position and the open batch, after checking that the caller may act as the consumer.  The
-- batch comes back null when it is not open.
--
-- Whoever changes a position needs READ COMMITTED: the subscription's row is locked but never
-- updated, so an older snapshot would meet no conflict and see an older position.
create or replace function cascade_internal.find_batch(
    batch_id bigint, caller name, lock boolean,
    out queue cascade_internal.queue, out subscription cascade_internal.subscription,
    out "position" cascade_internal.position, out batch cascade_internal.open_batch)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if find_batch.lock then
        perform cascade_internal.check_read_committed('moving a consumer');
        select s.* into find_batch.subscription
          from cascade_internal.subscription as s
         where s.subscription_id = find_batch.batch_id / 10000000000
           for no key update;
    else
        select s.* into find_batch.subscription
          from cascade_internal.subscription as s
         where s.subscription_id = find_batch.batch_id / 10000000000;
    end if;
    if find_batch.subscription is null then
        perform cascade_internal.raise_batch_lost(find_batch.batch_id);
    end if;
    select q.* into find_batch.queue from cascade_internal.queue as q where q.queue_id = (find_batch.subscription).queue_id;
    -- Whose batch it is, is nobody else's business: it is simply not open.
    if not cascade_internal.may_consume((find_batch.queue).queue_id, (find_batch.subscription).consumer, find_batch.caller) then
        perform cascade_internal.raise_batch_lost(find_batch.batch_id);
    end if;
    find_batch."position" := cascade_internal.newest_position(find_batch.queue, (find_batch.subscription).subscription_id);
    select o.* into find_batch.batch
      from unnest((find_batch."position").open_batches) as o
     where o.batch_id = find_batch.batch_id
       and o.worker is not null; -- A batch given back is nobody's, also while nobody took it.
end
$$;
comment on function cascade_internal.find_batch(bigint, name, boolean) is 'Everything about a batch, for a caller who may see it.';

create or replace function cascade_internal.raise_batch_lost(batch_id bigint)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if raise_batch_lost.batch_id is null then
        raise exception 'the batch id is null' using errcode = 'QC003', hint = 'cascade.next_batch() returns one.';
    end if;
    raise exception 'batch % is not open', raise_batch_lost.batch_id
        using errcode = 'QC203',
              hint = 'It was given back, taken over by another worker, finished long ago, or the consumer was moved; cascade.next_batch() returns what is to do now.';
end
$$;
comment on function cascade_internal.raise_batch_lost(bigint) is 'Raises QC203.';
