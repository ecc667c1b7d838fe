-- cascade.seek(queue, consumer, at) puts a consumer on another tick, back or forth, and
-- returns that tick.  Its open batches are no longer open, its claims are over, and what it had put back is
-- forgotten: from here on it reads the log as it is.  In work mode its dead messages stay.
create or replace function cascade_internal.seek(queue text, consumer text, at text, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue        cascade_internal.queue := cascade_internal.find_queue(seek.queue);
    v_subscription cascade_internal.subscription;
    v_position     cascade_internal.position;
    v_tick         cascade_internal.tick;
begin
    perform cascade_internal.check_consumer(v_queue, seek.consumer, seek.caller);
    perform cascade_internal.commit_durably();
    v_subscription := cascade_internal.lock_subscription(v_queue, seek.consumer);
    v_tick := cascade_internal.hold_tick(v_queue, seek.at);
    v_position := cascade_internal.newest_position(v_queue, v_subscription.subscription_id);
    delete from cascade_internal.retry as r where r.subscription_id = v_subscription.subscription_id;
    if v_subscription.is_work then
        perform cascade_internal.forget_messages(v_subscription.subscription_id);
    end if;
    perform cascade_internal.append_position(
        v_queue, (v_subscription.subscription_id, v_position.n + 1, v_tick.tick_id, v_tick.tick_id, v_tick.total, '{}', 'seek', null,
                  clock_timestamp())::cascade_internal.position);
    return v_tick.tick_id;
end
$$;
comment on function cascade_internal.seek(text, text, text, name) is 'Moves a consumer for a caller.';

create or replace function cascade.seek(queue text, consumer text, at text)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.seek(seek.queue, seek.consumer, seek.at, current_user);
end;
comment on function cascade.seek(text, text, text) is 'Moves a consumer to now, earliest, a tick id or a timestamp.';
