-- cascade.grant_consumer(queue, consumer, role): the role may subscribe and read as this
-- consumer of this queue.  Granting twice changes nothing.
create or replace function cascade.grant_consumer(queue text, consumer text, role text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(grant_consumer.queue);
begin
    perform cascade_internal.check_role(grant_consumer.role);
    perform cascade_internal.check_name('consumer', grant_consumer.consumer);
    insert into cascade_internal.consumer_grant (queue_id, consumer, role_name)
    values (v_queue.queue_id, grant_consumer.consumer, grant_consumer.role)
    on conflict on constraint consumer_grant_pkey do nothing;
    execute format('grant usage on schema cascade to %I', grant_consumer.role);
    execute format('grant execute on function %s to %I', cascade_internal.consumer_functions(), grant_consumer.role);
    execute format('grant select on cascade.queues, cascade.consumers, cascade.work, cascade.work_stats to %I', grant_consumer.role);
end
$$;
comment on function cascade.grant_consumer(text, text, text) is 'Lets a role read as one consumer of one queue.';

create or replace function cascade.revoke_consumer(queue text, consumer text, role text)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(revoke_consumer.queue);
begin
    perform cascade_internal.check_role(revoke_consumer.role);
    delete from cascade_internal.consumer_grant as g
     where g.queue_id = v_queue.queue_id
       and g.consumer = revoke_consumer.consumer
       and g.role_name = revoke_consumer.role;
    -- Whoever has messages in hand is asked again whether it may.
    update cascade_internal.work_claim as c
       set role_name = ''
      from cascade_internal.subscription as s
     where s.queue_id = v_queue.queue_id
       and s.consumer = revoke_consumer.consumer
       and c.subscription_id = s.subscription_id;
    perform cascade_internal.revoke_rest(revoke_consumer.role);
end
$$;
comment on function cascade.revoke_consumer(text, text, text) is 'Takes back what grant_consumer gave.';
