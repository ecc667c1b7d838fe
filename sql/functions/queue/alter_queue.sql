-- cascade.alter_queue(queue, options) changes the options named and leaves the others.
-- Nobody waits: writers do not look at options.
create or replace function cascade.alter_queue(queue text, options jsonb)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(alter_queue.queue);
begin
    perform cascade_internal.check_options(alter_queue.options, false);
    perform cascade_internal.store_options(v_queue.queue_id, alter_queue.options);
end
$$;
comment on function cascade.alter_queue(text, jsonb) is 'Changes options of a queue.';
