-- cascade.grant_producer(queue, role, returning_id): the role may INSERT and COPY (type, key,
-- payload, headers) into this queue and post to it, and nothing else.  With returning_id it
-- also reads ids, which ORMs ask for; it then sees every id, but nothing of any event.
-- Granting twice changes nothing.
--
-- The register needs SELECT, not USAGE: USAGE would let a producer move it with nextval(),
-- which takes an oid and so asks for no right on the schema.
create or replace function cascade.grant_producer(queue text, role text, returning_id boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(grant_producer.queue);
begin
    perform cascade_internal.check_role(grant_producer.role);
    execute format('grant usage on schema queue, cascade to %I', grant_producer.role);
    execute format('grant insert (type, key, payload, headers) on queue.%I to %I', v_queue.name, grant_producer.role);
    execute format('grant usage on sequence cascade_internal.event_id_%s to %I', v_queue.queue_id, grant_producer.role);
    execute format('grant select on sequence cascade_internal.register_%s to %I', v_queue.queue_id, grant_producer.role);
    execute format('grant execute on function %s to %I', cascade_internal.producer_functions(), grant_producer.role);
    if grant_producer.returning_id then
        execute format('grant select (id) on queue.%I to %I', v_queue.name, grant_producer.role);
    end if;
end
$$;
comment on function cascade.grant_producer(text, text, boolean) is 'Lets a role insert into one queue and do nothing else.';

create or replace function cascade.revoke_producer(queue text, role text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(revoke_producer.queue);
begin
    perform cascade_internal.check_role(revoke_producer.role);
    execute format('revoke insert (type, key, payload, headers), select (id) on queue.%I from %I',
                   v_queue.name, revoke_producer.role);
    execute format('revoke all on sequence cascade_internal.event_id_%s, cascade_internal.register_%1$s from %2$I',
                   v_queue.queue_id, revoke_producer.role);
    perform cascade_internal.revoke_rest(revoke_producer.role);
end
$$;
comment on function cascade.revoke_producer(text, text) is 'Takes back what grant_producer gave.';
