-- cascade.payload_limit(queue) is how many bytes the payload and the headers of an event may have
-- together.  The table does not look (docs/adr/0006): who inserts or copies into it, and wants the
-- limit kept, asks here.
create or replace function cascade_internal.payload_limit(queue text, caller name)
returns integer
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue constant cascade_internal.queue := cascade_internal.find_queue(payload_limit.queue);
begin
    perform cascade_internal.check_producer(v_queue, payload_limit.caller);
    return v_queue.payload_max_bytes;
end
$$;
comment on function cascade_internal.payload_limit(text, name) is 'The largest event that a queue takes, for a caller.';

create or replace function cascade.payload_limit(queue text)
returns integer
language sql volatile
begin atomic
    select cascade_internal.payload_limit(payload_limit.queue, current_user);
end;
comment on function cascade.payload_limit(text) is 'How many bytes payload and headers of an event may have together.';
