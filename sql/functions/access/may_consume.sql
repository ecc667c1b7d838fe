create or replace function cascade_internal.may_consume(queue_id integer, consumer text, caller name)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    -- A grant to the very role that asks is found by its key; members of a role take longer.
    return exists (select
                     from cascade_internal.consumer_grant as g
                    where g.queue_id = may_consume.queue_id
                      and g.consumer = may_consume.consumer
                      and g.role_name = may_consume.caller)
        or cascade_internal.is_operator(may_consume.caller)
        or exists (select
                     from cascade_internal.consumer_grant as g
                     join pg_catalog.pg_roles as r on r.rolname = g.role_name
                    where g.queue_id = may_consume.queue_id
                      and g.consumer = may_consume.consumer
                      and pg_has_role(may_consume.caller, r.oid, 'usage'));
end
$$;
comment on function cascade_internal.may_consume(integer, text, name) is 'Whether a role may act as a consumer.';

create or replace function cascade_internal.check_consumer(queue cascade_internal.queue, consumer text, caller name)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not cascade_internal.may_consume((check_consumer.queue).queue_id, check_consumer.consumer, check_consumer.caller) then
        raise exception 'role "%" may not act as consumer "%" of queue "%"',
                        check_consumer.caller, check_consumer.consumer, (check_consumer.queue).name
            using errcode = 'QC301',
                  hint = format('An operator grants it: select cascade.grant_consumer(%L, %L, %L).',
                                (check_consumer.queue).name, check_consumer.consumer, check_consumer.caller);
    end if;
end
$$;
comment on function cascade_internal.check_consumer(cascade_internal.queue, text, name) is 'Raises QC301 unless a role may act as a consumer.';
