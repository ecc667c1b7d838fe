-- cascade.retry_event(batch_id, event_id, after) has one event of an open batch delivered to
-- this consumer again, after a while, in a batch to come, and returns the attempt that will
-- be.  It holds once the batch is finished; if the batch is given back or taken over it is
-- void, since the event comes again with the batch.  A second call moves the time.
create or replace function cascade_internal.retry_event(batch_id bigint, event_id bigint, after interval, caller name)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found   record;
    v_attempt integer;
begin
    if retry_event.after is null or retry_event.after not between interval '0' and interval '100 years' then
        raise exception 'the delay is null, negative or more than 100 years' using errcode = 'QC003', hint = 'For example interval ''1 minute''.';
    end if;
    v_found := cascade_internal.find_batch(retry_event.batch_id, retry_event.caller, true);
    insert into cascade_internal.retry (subscription_id, event_id, attempt, due, requested_by, "time", txid, type, key, payload,
                                        headers, origin, origin_id)
    select (v_found.subscription).subscription_id, e.id, e.attempt + 1, clock_timestamp() + retry_event.after,
           retry_event.batch_id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id
      from cascade_internal.batch_events(retry_event.batch_id, retry_event.caller) as e
     where e.id = retry_event.event_id
    on conflict on constraint retry_pkey do update
       set due = excluded.due, requested_by = excluded.requested_by
     where not retry.active
    returning retry.attempt into v_attempt;
    if v_attempt is null then
        raise exception 'batch % has no event %', retry_event.batch_id, coalesce(retry_event.event_id::text, '(null)')
            using errcode = 'QC104', hint = 'cascade.batch_events() lists the events of a batch.';
    end if;
    return v_attempt;
end
$$;
comment on function cascade_internal.retry_event(bigint, bigint, interval, name) is 'Puts one event back, for a caller.';

create or replace function cascade.retry_event(batch_id bigint, event_id bigint, after interval)
returns integer
language sql volatile
begin atomic
    select cascade_internal.retry_event(retry_event.batch_id, retry_event.event_id, retry_event.after, current_user);
end;
comment on function cascade.retry_event(bigint, bigint, interval) is 'Puts one event back for this consumer.';
