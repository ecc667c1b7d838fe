-- cascade.work_channel(queue, consumer) returns the channel that is notified, once per transaction, when messages become
-- ready for a consumer in work mode.
create or replace function cascade_internal.work_channel(queue text, consumer text, caller name)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(work_channel.queue, work_channel.consumer, work_channel.caller);
begin
    return 'cascade_work_' || (v_found.work).subscription_id;
end
$$;
comment on function cascade_internal.work_channel(text, text, name) is 'The channel that is notified when messages are ready, for a caller.';

create or replace function cascade.work_channel(queue text, consumer text)
returns text
language sql volatile
begin atomic
    select cascade_internal.work_channel(work_channel.queue, work_channel.consumer, current_user);
end;
comment on function cascade.work_channel(text, text) is 'The channel that is notified when messages are ready for a consumer.';

-- cascade.work_channels() returns the channels on which ticks are announced of the queues that have consumers in work
-- mode, and the one on which messages are that are due within moments.  The daemon listens to them, and has events dispatched.
create or replace function cascade.work_channels()
returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
    select 'cascade_tick_' || w.queue_id
      from cascade_internal.work_consumer as w
    union
    select 'cascade_work_due'
      from cascade_internal.work_consumer as w;
end;
comment on function cascade.work_channels() is 'The channels that the daemon listens to for consumers in work mode.';
