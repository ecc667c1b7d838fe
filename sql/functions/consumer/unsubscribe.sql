-- cascade.unsubscribe(queue, consumer) forgets a consumer, its open batches and what it put
-- back.  True when there was one; a second call returns false.  Of a consumer that has moved to another
-- node it forgets that; while it is on its way it raises QC213.
create or replace function cascade_internal.unsubscribe(queue text, consumer text, caller name)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(unsubscribe.queue);
begin
    perform cascade_internal.check_name('consumer', unsubscribe.consumer);
    perform cascade_internal.check_consumer(v_queue, unsubscribe.consumer, unsubscribe.caller);
    delete from cascade_internal.subscription as s
     where s.queue_id = v_queue.queue_id
       and s.consumer = unsubscribe.consumer
       and s.moving_to is null;
    if found then
        return true;
    elsif exists (select from cascade_internal.subscription as s
                   where s.queue_id = v_queue.queue_id and s.consumer = unsubscribe.consumer) then
        perform cascade_internal.raise_moved(v_queue, unsubscribe.consumer);
    end if;
    delete from cascade_internal.consumer_move as m
     where m.queue_id = v_queue.queue_id
       and m.consumer = unsubscribe.consumer;
    return found;
end
$$;
comment on function cascade_internal.unsubscribe(text, text, name) is 'Forgets a consumer for a caller.';

create or replace function cascade.unsubscribe(queue text, consumer text)
returns boolean
language sql volatile
begin atomic
    select cascade_internal.unsubscribe(unsubscribe.queue, unsubscribe.consumer, current_user);
end;
comment on function cascade.unsubscribe(text, text) is 'Forgets a consumer.';
