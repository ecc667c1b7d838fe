-- cascade.finish_batch(batch_id, once) returns the tick the consumer now stands on.
--
-- Finishing appends the consumer's next position; nothing is updated.  A batch finished before
-- may be finished again, so that a consumer which lost the reply can ask once more; with
-- once => true that raises QC204, for effects in the same transaction.  A batch that is
-- somebody else's now, or was given back, raises QC203.
create or replace function cascade_internal.finish_batch(batch_id bigint, once boolean, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found    record;
    v_position cascade_internal.position;
begin
    v_found := cascade_internal.find_batch(finish_batch.batch_id, finish_batch.caller, true);
    v_position := cascade_internal.close_batch(v_found.queue, v_found."position", finish_batch.batch_id);
    if v_position.n is null then
        if finish_batch.once then
            raise exception 'batch % was finished before', finish_batch.batch_id
                using errcode = 'QC204', hint = 'Roll back: its effects are there already.';
        end if;
        return (v_found."position").tick_id;
    end if;
    v_position.n := v_position.n + 1;
    perform cascade_internal.append_position(v_found.queue, v_position);
    return v_position.tick_id;
end
$$;
comment on function cascade_internal.finish_batch(bigint, boolean, name) is 'Moves a consumer past a batch, for a caller.';

create or replace function cascade.finish_batch(batch_id bigint, once boolean default false)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.finish_batch(finish_batch.batch_id, finish_batch.once, current_user);
end;
comment on function cascade.finish_batch(bigint, boolean) is 'Moves a consumer past a batch; safe to repeat.';

-- The position of a consumer without one of its batches, to be appended by the caller, who holds
-- the subscription's lock; what the batch had put back becomes due.  Null when the batch
-- was finished before; QC203 when it is not the consumer's any more.
create or replace function cascade_internal.close_batch(
    queue cascade_internal.queue, "position" cascade_internal.position, batch_id bigint)
returns cascade_internal.position
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_position cascade_internal.position := close_batch."position";
    v_left     cascade_internal.open_batch[];
begin
    -- A batch given back is nobody's, also while nobody took it.
    v_left := array(select o from unnest(v_position.open_batches) as o where o.batch_id <> close_batch.batch_id or o.worker is null);
    if cardinality(v_left) = cardinality(v_position.open_batches) then
        if close_batch.batch_id / 10000000000 <> v_position.subscription_id
           or not cascade_internal.was_finished(close_batch.queue, close_batch.batch_id) then
            perform cascade_internal.raise_batch_lost(close_batch.batch_id);
        end if;
        return null;
    end if;
    perform cascade_internal.commit_durably();
    if exists (select from cascade_internal.retry as r where r.subscription_id = v_position.subscription_id) then
        delete from cascade_internal.retry as r where r.batch_id = close_batch.batch_id;
        update cascade_internal.retry as r
           set active = true
         where r.requested_by = close_batch.batch_id
           and not r.active;
    end if;
    v_position.open_batches := v_left;
    v_position.tick_id := cascade_internal.finished_tick(v_left, v_position.head);
    v_position.action := 'finish';
    v_position.batch_id := close_batch.batch_id;
    v_position.at := clock_timestamp();
    return v_position;
end
$$;
comment on function cascade_internal.close_batch(cascade_internal.queue, cascade_internal.position, bigint) is 'A consumer''s position without a batch.';

create or replace function cascade_internal.was_finished(queue cascade_internal.queue, batch_id bigint)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_gen   bigint;
    v_found boolean;
begin
    for v_gen in reverse cascade_internal.current_gen((was_finished.queue).queue_id, (was_finished.queue).slots)
                 .. cascade_internal.first_gen((was_finished.queue).queue_id) loop
        execute format('select exists (select from cascade_internal.position_%s_%s as p where p.subscription_id = %s and p.n > %s'
                       ' and p.batch_id = %s and p.action = ''finish'')',
                       (was_finished.queue).queue_id, v_gen % (was_finished.queue).slots,
                       was_finished.batch_id / 10000000000, was_finished.batch_id % 10000000000, was_finished.batch_id)
           into v_found;
        if v_found then
            return true;
        end if;
    end loop;
    return false;
end
$$;
comment on function cascade_internal.was_finished(cascade_internal.queue, bigint) is 'Whether the journal knows a batch as finished.';
