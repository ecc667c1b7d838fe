-- Which functions a producer and a consumer may call.  Each of them checks the caller's
-- right to the queue itself; these lists only keep everybody else out altogether.  The inner
-- halves of the producers' functions are granted with the outer ones, and not to everybody:
-- daemons may use the schema they are in, and could pass themselves off as a producer.
create or replace function cascade_internal.producer_functions()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 'cascade.post(text, json, text, text, json, bigint, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text, interval),'
           'cascade.post_many(text, json[], text, text, json, text[], text[], interval, timestamptz, timestamptz, integer, bigint[], jsonb, text[], interval),'
           'cascade.reserve_id(text),'
           'cascade.payload_limit(text),'
           'cascade.find_equivalent(text, text, json, text, interval),'
           'cascade_internal.post(text, json, text, text, json, bigint, name, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text, interval),'
           'cascade_internal.post_many(text, json[], text, text, json, text[], text[], name, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text[], interval),'
           'cascade_internal.reserve_id(text, name),'
           'cascade.begin_staging(text, text, boolean),'
           'cascade.stage(uuid, integer, bigint, bigint, text[], text[], json[], json[], timestamptz[], text[], bigint[]),'
           'cascade.publish_staging(uuid, integer[], bigint[], bigint[]),'
           'cascade.drop_staging(uuid),'
           'cascade_internal.begin_staging(text, text, boolean, name),'
           'cascade_internal.stage(uuid, integer, bigint, bigint, text[], text[], json[], json[], timestamptz[], text[], bigint[], name),'
           'cascade_internal.publish_staging(uuid, integer[], bigint[], bigint[], name),'
           'cascade_internal.drop_staging(uuid, name)'
$$;
comment on function cascade_internal.producer_functions() is 'The functions granted to producers.';

create or replace function cascade_internal.consumer_functions()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 'cascade.subscribe(text, text, text, text, text, jsonb),'
           'cascade.claim(text, text, integer, interval, text),'
           'cascade.consume(text, text, integer),'
           'cascade.complete(bigint, bigint[], json[]),'
           'cascade.complete_and_claim(bigint, bigint[], json[], integer, interval),'
           'cascade.fail(bigint, bigint, text, interval),'
           'cascade.bury(bigint, bigint, text),'
           'cascade.release(bigint, bigint[]),'
           'cascade.extend(bigint, interval),'
           'cascade.peek(text, text, integer),'
           'cascade.take(text, bigint, interval),'
           'cascade.cancel(text, bigint),'
           'cascade.work_messages(text, text, text, integer),'
           'cascade.work_result(text, text, bigint),'
           'cascade.work_attempts(text, text, bigint),'
           'cascade.dead_messages(text, text, integer),'
           'cascade.replay(text, text, bigint[], text),'
           'cascade.purge_dead(text, text, bigint[], text, interval),'
           'cascade.purge_work(text, text, bigint[], text),'
           'cascade.retry_message(text, text, bigint[]),'
           'cascade.bury_message(text, text, bigint[]),'
           'cascade.release_message(text, text, bigint[]),'
           'cascade.alter_consumer(text, text, jsonb),'
           'cascade.why(text, text, bigint),'
           'cascade.work_channel(text, text),'
           'cascade.unsubscribe(text, text),'
           'cascade.seek(text, text, text),'
           'cascade.next_batch(text, text, integer, bigint, text, interval, boolean, bigint, bigint),'
           'cascade.batch_events(bigint),'
           'cascade.finish_batch(bigint, boolean),'
           'cascade.renew_batch(bigint, interval),'
           'cascade.release_batch(bigint),'
           'cascade.retry_event(bigint, bigint, interval),'
           'cascade.tick_channel(text)'
$$;
comment on function cascade_internal.consumer_functions() is 'The functions granted to consumers.';

-- What daemons ask of one another's databases, and of their own.
create or replace function cascade_internal.node_functions()
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select 'cascade.describe_node(text),'
           'cascade.node_generation(text),'
           'cascade.join_provider(text, jsonb),'
           'cascade.note_answer(text, bigint, text, text, jsonb),'
           'cascade.raise_generation(text, bigint),'
           'cascade.register_subscriber(text, text, bigint, text),'
           'cascade.fetch_copy(text, text, bigint, bigint, bytea, integer, bigint, integer),'
           'cascade.next_copy(text, text, bigint, bigint, bytea, integer, bigint),'
           'cascade.check_copy(text, text, bigint, bigint, bytea, bigint),'
           'cascade.begin_copy(text, text, bigint, bigint, bytea),'
           'cascade.finish_copy(text, jsonb),'
           'cascade.finish_leaf_copy(text, jsonb, jsonb),'
           'cascade.store_copy(text, text, bigint, bigint, bytea, jsonb, bigint[], timestamptz[], bigint[], text[], text[], json[], json[], text[], bigint[]),'
           'cascade.tell(text, text, jsonb),'
           'cascade.report(text),'
           'cascade.advance_watermark(text),'
           'cascade.forget_subscriber(text, text),'
           'cascade.add_member(text, text, text, jsonb, boolean, text),'
           'cascade.create_node(text, text, text, text, jsonb, jsonb, bigint),'
           'cascade.create_merge_leaf(text, text, text, text, jsonb, jsonb, bigint),'
           'cascade.describe_merge(text),'
           'cascade.begin_merge(text, text, bigint, bigint, bytea),'
           'cascade.finish_merge(text, jsonb, jsonb, bigint[]),'
           'cascade.store_merge(text, text, bigint, bigint, bytea, jsonb, bigint[], timestamptz[], bigint[], text[], text[], json[], json[], text[], bigint[]),'
           'cascade.tell_merge(text, text, bigint, jsonb, jsonb),'
           'cascade.own_fork(text),'
           'cascade.reset_leaf(text, jsonb),'
           'cascade.dispatch_work(text, integer),'
           'cascade.tend_work(),'
           'cascade.next_work_due(text),'
           'cascade.work_channels(),'
           'cascade.note_tracker(text, bigint, text, text, jsonb, jsonb),'
           'cascade.readmit_node(text, jsonb, bigint),'
           'cascade.set_provider(text, text, bigint, boolean),'
           'cascade.pause_node(text),'
           'cascade.resume_node(text),'
           'cascade.note_error(text, text),'
           'cascade.set_processing(text, boolean),'
           'cascade.move_consumer(text, text, text, boolean),'
           'cascade.accept_consumer(text, text, bigint, text, uuid, jsonb, text[], bytea, boolean),'
           'cascade.refuse_consumer(text, text, text, uuid),'
           'cascade.finish_move(text, text, uuid),'
           'cascade.cancel_move(text, text, uuid),'
           'cascade.describe_set(text),'
           'cascade.exchange_terms(text, jsonb, uuid),'
           'cascade.stand_down(text, jsonb, jsonb),'
           'cascade.complete_fence(text),'
           'cascade.name_writers(text),'
           'cascade.root_duty(text),'
           'cascade.heir_duty(text),'
           'cascade.take_handover(text, uuid, text, bigint, bytea),'
           'cascade.note_withdrawn(text, uuid),'
           'cascade.next_term_number(text),'
           'cascade.renew_term(text),'
           'cascade.promote(text, uuid, bigint, text, bigint, bytea, jsonb),'
           'cascade.demote(text, text, jsonb),'
           'cascade.quarantine_keys(text, bigint, integer),'
           'cascade.find_logged(text, jsonb),'
           'cascade.note_duplicates(text, jsonb),'
           'cascade.certificate_report(text, uuid),'
           'cascade.amend_certificate(text, uuid, jsonb),'
           'cascade.measure_log(text, integer),'
           'cascade.digest_spans(text, bigint[], boolean),'
           'cascade.digest_ticks(text, bigint, bigint),'
           'cascade.digest_events(text, bigint, bigint),'
           'cascade.read_log(text, bigint, bigint, bigint[]),'
           'cascade.read_ticks(text, bigint, bigint),'
           'cascade.merge_marks(text, bigint, bigint),'
           'cascade.find_tick(text, text),'
           'cascade.range_ticks(text, bigint, bigint, bigint),'
           'cascade.range_query(text, bigint, bigint)'
$$;
comment on function cascade_internal.node_functions() is 'The functions granted to node daemons.';

create or replace function cascade_internal.check_role(role text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = check_role.role) then
        raise exception 'there is no role "%"', coalesce(check_role.role, '(null)')
            using errcode = 'QC003', hint = 'create role makes one.';
    elsif check_role.role in ('cascade_admin', 'cascade_node')
          or check_role.role = (select r.rolname from pg_catalog.pg_roles as r
                                  join pg_catalog.pg_namespace as n on n.nspowner = r.oid
                                 where n.nspname = 'cascade') then
        raise exception 'role "%" has its rights from the installation', check_role.role
            using errcode = 'QC003', hint = 'Grant to, and revoke from, the roles of applications.';
    end if;
end
$$;
comment on function cascade_internal.check_role(text) is 'Raises QC003 unless a role exists and is an application''s.';

-- Once a role produces into no queue, and reads from none, it keeps no right at all.
create or replace function cascade_internal.revoke_rest(role text)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_role     oid := (select r.oid from pg_catalog.pg_roles as r where r.rolname = revoke_rest.role);
    v_produces boolean;
    v_consumes boolean;
begin
    v_produces := exists (
        select
          from pg_catalog.pg_attribute as a
          join pg_catalog.pg_class as c on c.oid = a.attrelid
         cross join lateral aclexplode(a.attacl) as x
         where c.relnamespace = 'queue'::regnamespace
           and x.grantee = v_role);
    v_consumes := exists (
        select from cascade_internal.consumer_grant as g where g.role_name = revoke_rest.role);
    if not v_produces then
        execute format('revoke execute on function %s from %I', cascade_internal.producer_functions(), revoke_rest.role);
        execute format('revoke usage on schema queue from %I', revoke_rest.role);
    end if;
    if not v_consumes then
        execute format('revoke execute on function %s from %I', cascade_internal.consumer_functions(), revoke_rest.role);
        execute format('revoke select on cascade.queues, cascade.consumers, cascade.work, cascade.work_stats from %I', revoke_rest.role);
    end if;
    if not v_produces and not v_consumes then
        execute format('revoke usage on schema cascade from %I', revoke_rest.role);
    end if;
end
$$;
comment on function cascade_internal.revoke_rest(text) is 'Takes the common rights from a role that needs them no more.';
