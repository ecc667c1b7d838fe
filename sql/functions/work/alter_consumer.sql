-- cascade.alter_consumer(queue, consumer, options) changes the options named of a consumer in work mode, and leaves the others; null takes
-- one back to its default.  It holds from the next claim on.  A second call changes nothing.
--
--     max_attempts   after so many attempts a message is dead; 5
--     backoff        constant, linear or exponential; and backoff_delay (1 s), backoff_max (1 hour), backoff_jitter (0 to 1; 0.1)
--     max_active     how many messages of a type may be in hand: with it, messages are drawn by class and organisation, the key
--     topics         another max_active for some types: {"order.paid": 20}
--     shares         what part of max_active each class has, in percent; [40, 30, 20, 10]
--     min_active     what each class has at least; 5
--     order          "key": one message of a key at a time, in order; chosen when the consumer subscribes
--     keep_done      how long history, results and dead messages (keep_dead) are kept; 1 day and 30 days
--     chunk_size     how many plain messages are handed out together at most; 100
--     watch_sessions whether messages come back when the session that claimed them ends; true
create or replace function cascade_internal.alter_consumer(queue text, consumer text, options jsonb, caller name)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_work    constant cascade_internal.work_consumer :=
        (cascade_internal.find_work(alter_consumer.queue, alter_consumer.consumer, alter_consumer.caller)).work;
begin
    perform cascade_internal.check_read_committed('work mode');
    if alter_consumer.options ? 'order' and (alter_consumer.options->>'order') is distinct from (v_work.options->>'order') then
        raise exception 'the order of consumer "%" of queue "%" cannot be changed', alter_consumer.consumer, alter_consumer.queue
            using errcode = 'QC002', hint = 'Messages may be in hand already: it is chosen when the consumer subscribes.';
    end if;
    perform cascade_internal.store_work_options(v_work.subscription_id, alter_consumer.options);
end
$$;
comment on function cascade_internal.alter_consumer(text, text, jsonb, name) is 'Changes options of a consumer, for a caller.';

create or replace function cascade.alter_consumer(queue text, consumer text, options jsonb)
returns void
language sql volatile
begin atomic
    select cascade_internal.alter_consumer(alter_consumer.queue, alter_consumer.consumer, alter_consumer.options, current_user);
end;
comment on function cascade.alter_consumer(text, text, jsonb) is 'Changes options of a consumer in work mode.';
