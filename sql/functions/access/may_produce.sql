-- A producer is a role with the INSERT privilege on columns of queue.<name>: the grant is
-- PostgreSQL's own, so plain INSERT and cascade.post() can never disagree.
create or replace function cascade_internal.may_produce(queue cascade_internal.queue, caller name)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return has_any_column_privilege(may_produce.caller, format('queue.%I', (may_produce.queue).name), 'insert');
end
$$;
comment on function cascade_internal.may_produce(cascade_internal.queue, name) is 'Whether a role may insert into a queue.';

create or replace function cascade_internal.check_producer(queue cascade_internal.queue, caller name)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not cascade_internal.may_produce(check_producer.queue, check_producer.caller) then
        raise exception 'role "%" may not produce into queue "%"', check_producer.caller, (check_producer.queue).name
            using errcode = 'QC301',
                  hint = format('An operator grants it: select cascade.grant_producer(%L, %L).',
                                (check_producer.queue).name, check_producer.caller);
    end if;
end
$$;
comment on function cascade_internal.check_producer(cascade_internal.queue, name) is 'Raises QC301 unless a role may insert into a queue.';
