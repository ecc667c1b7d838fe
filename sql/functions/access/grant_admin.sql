-- cascade_internal.grant_admin(queue): cascade_admin may also read and write the queue's table, and
-- read its partitions by name; cascade_node reads partitions too, to copy them, and writes to those of
-- copies.  Both only where those roles exist.
create or replace function cascade_internal.grant_admin(queue cascade_internal.queue)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot integer;
begin
    if exists (select from pg_catalog.pg_roles as r where r.rolname = 'cascade_admin') then
        execute format('grant select, insert (type, key, payload, headers) on queue.%I to cascade_admin', (grant_admin.queue).name);
        execute format('grant usage on sequence cascade_internal.event_id_%s to cascade_admin', (grant_admin.queue).queue_id);
        execute format('grant select on sequence cascade_internal.register_%s to cascade_admin', (grant_admin.queue).queue_id);
        for v_slot in 0 .. (grant_admin.queue).slots - 1 loop
            execute format('grant select on cascade_internal.event_%s_%s to cascade_admin', (grant_admin.queue).queue_id, v_slot);
        end loop;
    end if;
    if exists (select from pg_catalog.pg_roles as r where r.rolname = 'cascade_node') then
        for v_slot in 0 .. (grant_admin.queue).slots - 1 loop
            execute format('grant select%s on cascade_internal.event_%s_%s to cascade_node',
                           case when (grant_admin.queue).is_copy or (grant_admin.queue).is_combined then ', insert' else '' end, (grant_admin.queue).queue_id, v_slot);
        end loop;
        -- Merging takes ids.
        if (grant_admin.queue).is_combined then
            execute format('grant usage on sequence cascade_internal.event_id_%s to cascade_node', (grant_admin.queue).queue_id);
        end if;
    end if;
end
$$;
comment on function cascade_internal.grant_admin(cascade_internal.queue) is 'Gives the operators'' roles their rights on a queue''s tables.';
