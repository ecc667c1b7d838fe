-- cascade_internal.grant_admin(queue): cascade_admin may also read and write the queue's table,
-- where that role exists.
create or replace function cascade_internal.grant_admin(queue cascade_internal.queue)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_catalog.pg_roles as r where r.rolname = 'cascade_admin') then
        execute format('grant select, insert (type, key, payload, headers) on queue.%I to cascade_admin', (grant_admin.queue).name);
        execute format('grant usage on sequence cascade_internal.event_id_%s to cascade_admin', (grant_admin.queue).queue_id);
        execute format('grant select on sequence cascade_internal.register_%s to cascade_admin', (grant_admin.queue).queue_id);
    end if;
end
$$;
comment on function cascade_internal.grant_admin(cascade_internal.queue) is 'Gives the admin role its rights on a queue''s table.';
