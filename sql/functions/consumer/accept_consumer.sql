-- cascade.accept_consumer(queue, consumer, tick_id, from_node, move, retries, roles, chain, dry_run): called at the new node with what
-- move_consumer() returned at the old one.  Makes the consumer here, at exactly that tick, with the events
-- it had put back, and lets the same roles read as it, where they exist: the others are listed as missing.
--
-- In work mode retries is an object: the consumer's selector and options, its messages and its dead.
--
-- A tick that has not come here yet is waited for by the caller (QC708); one whose events are gone raises
-- QC402, one of another history QC706.  A move that was refused for good raises QC209.
create or replace function cascade.accept_consumer(
    queue text, consumer text, tick_id bigint, from_node text, move uuid, retries jsonb default '[]', roles text[] default '{}',
    chain bytea default null, dry_run boolean default false)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node    cascade_internal.node := cascade_internal.find_node(accept_consumer.queue);
    v_queue   cascade_internal.queue := cascade_internal.find_queue(accept_consumer.queue);
    v_arrival cascade_internal.consumer_arrival;
    v_tick    cascade_internal.tick;
    v_id      integer;
    v_is_new  boolean := false;
begin
    perform cascade_internal.check_name('consumer', accept_consumer.consumer);
    perform cascade_internal.check_read_committed('accepting a consumer');
    if v_node.role = 'leaf' then
        raise exception 'node "%" is a leaf and keeps no queue', v_node.node
            using errcode = 'QC208', hint = 'A consumer goes to the root or to a branch.';
    elsif cascade_internal.is_dropped(v_queue.queue_id) then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', v_node.node));
    end if;
    perform cascade_internal.commit_durably();
    if not coalesce(accept_consumer.dry_run, false) then
        -- Of two who accept at once, one waits here and finds it done.
        insert into cascade_internal.consumer_arrival (queue_id, move_uid, consumer, from_node, tick_id, is_taken)
        values (v_queue.queue_id, accept_consumer.move, accept_consumer.consumer, accept_consumer.from_node, accept_consumer.tick_id, true)
        on conflict on constraint consumer_arrival_pkey do nothing;
        v_is_new := found;
    end if;
    if not v_is_new then
        select a.* into v_arrival from cascade_internal.consumer_arrival as a
         where a.queue_id = v_queue.queue_id and a.move_uid = accept_consumer.move;
        if v_arrival.is_taken then
            return jsonb_build_object('node', v_node.node, 'consumer', v_arrival.consumer, 'tick_id', v_arrival.tick_id,
                                      'is_new', false, 'granted', '[]'::jsonb, 'missing', '[]'::jsonb);
        elsif v_arrival.move_uid is not null then
            raise exception 'move % of consumer "%" was refused by node "%" for good', accept_consumer.move, accept_consumer.consumer, v_node.node
                using errcode = 'QC209', hint = 'The consumer goes on where it was: move it again.';
        end if;
    end if;

    if exists (select from cascade_internal.subscription as s where s.queue_id = v_queue.queue_id and s.consumer = accept_consumer.consumer) then
        raise exception 'node "%" has a consumer "%" of queue "%" already', v_node.node, accept_consumer.consumer, accept_consumer.queue
            using errcode = 'QC215', hint = 'It reads for itself: drop it first, or let both be.';
    elsif accept_consumer.tick_id > cascade_internal.newest_tick_id(v_queue) then
        raise exception 'node "%" has not come to tick % yet', v_node.node, accept_consumer.tick_id
            using errcode = 'QC708', hint = 'Wait until it has caught up: cascade wait.';
    end if;
    v_tick := cascade_internal.hold_tick(v_queue, accept_consumer.tick_id::text);
    if v_tick.chain <> accept_consumer.chain then
        perform cascade_internal.raise_answer('diverged', format('tick %s of %s is another one than that of %s',
                                                                 v_tick.tick_id, v_node.node, accept_consumer.from_node));
    elsif not v_is_new then
        return jsonb_build_object('node', v_node.node, 'consumer', accept_consumer.consumer, 'tick_id', v_tick.tick_id, 'is_new', true,
                                  'granted', cascade_internal.split_roles(accept_consumer.roles, true),
                                  'missing', cascade_internal.split_roles(accept_consumer.roles, false));
    end if;
    delete from cascade_internal.consumer_move as m where m.queue_id = v_queue.queue_id and m.consumer = accept_consumer.consumer;
    v_id := cascade_internal.place_consumer(v_queue, accept_consumer.consumer, v_tick, 'accept');
    if jsonb_typeof(accept_consumer.retries) = 'object' then
        perform cascade_internal.unpack_work(v_queue, v_id, accept_consumer.retries);
        return jsonb_build_object('node', v_node.node, 'consumer', accept_consumer.consumer, 'tick_id', v_tick.tick_id, 'is_new', true)
            || cascade_internal.grant_roles(accept_consumer.queue, accept_consumer.consumer, accept_consumer.roles);
    end if;
    insert into cascade_internal.retry (subscription_id, event_id, attempt, due, requested_by, active, "time", txid, type, key, payload,
                                        headers, origin, origin_id)
    select v_id, r.event_id, r.attempt, r.due, 0, true, r."time", r.txid, r.type, r.key, r.payload::json, r.headers::json, r.origin, r.origin_id
      from jsonb_to_recordset(accept_consumer.retries) as r(
           event_id bigint, attempt integer, due timestamptz, "time" timestamptz, txid bigint, type text, key text, payload text,
           headers text, origin text, origin_id bigint);
    return jsonb_build_object('node', v_node.node, 'consumer', accept_consumer.consumer, 'tick_id', v_tick.tick_id, 'is_new', true)
        || cascade_internal.grant_roles(accept_consumer.queue, accept_consumer.consumer, accept_consumer.roles);
end
$$;
comment on function cascade.accept_consumer(text, text, bigint, text, uuid, jsonb, text[], bytea, boolean)
    is 'Makes a consumer that comes from another node, at the same tick.';

-- Registers a consumer on a tick that the caller holds.
create or replace function cascade_internal.place_consumer(queue cascade_internal.queue, consumer text, tick cascade_internal.tick, action text)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id integer;
begin
    insert into cascade_internal.subscription (queue_id, consumer)
    values ((place_consumer.queue).queue_id, place_consumer.consumer)
    returning subscription.subscription_id into v_id;
    perform cascade_internal.append_position(
        place_consumer.queue, (v_id, 1, (place_consumer.tick).tick_id, (place_consumer.tick).tick_id, (place_consumer.tick).total, '{}',
                               place_consumer.action, null, clock_timestamp())::cascade_internal.position);
    return v_id;
end
$$;
comment on function cascade_internal.place_consumer(cascade_internal.queue, text, cascade_internal.tick, text) is 'Registers a consumer on a tick.';

-- Of the roles that could read as a consumer elsewhere, those that can be granted it here, or those that cannot.
create or replace function cascade_internal.split_roles(roles text[], grantable boolean)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(jsonb_agg(x.role order by x.role), '[]')
              from unnest(split_roles.roles) as x(role)
             where split_roles.grantable = exists (
                   select from pg_catalog.pg_roles as r
                    where r.rolname = x.role
                      and r.rolname not in ('cascade_admin', 'cascade_node')
                      and r.oid <> (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'cascade')));
end
$$;
comment on function cascade_internal.split_roles(text[], boolean) is 'Roles that are here, or those that are not.';

create or replace function cascade_internal.grant_roles(queue text, consumer text, roles text[])
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_granted constant jsonb := cascade_internal.split_roles(grant_roles.roles, true);
begin
    perform cascade.grant_consumer(grant_roles.queue, grant_roles.consumer, r) from jsonb_array_elements_text(v_granted) as r;
    return jsonb_build_object('granted', v_granted, 'missing', cascade_internal.split_roles(grant_roles.roles, false));
end
$$;
comment on function cascade_internal.grant_roles(text, text, text[]) is 'Lets the roles that are here read as a consumer.';

-- cascade.refuse_consumer(queue, consumer, from_node, move): called at the new node before the old one takes a consumer
-- back.  From now on accept_consumer() refuses this move, so that no late caller makes a second one.
-- False when it has arrived already: then it is here, and stays.
create or replace function cascade.refuse_consumer(queue text, consumer text, from_node text, move uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(refuse_consumer.queue);
begin
    perform cascade_internal.commit_durably();
    insert into cascade_internal.consumer_arrival (queue_id, move_uid, consumer, from_node, is_taken)
    values (v_queue.queue_id, refuse_consumer.move, refuse_consumer.consumer, refuse_consumer.from_node, false)
    on conflict on constraint consumer_arrival_pkey do nothing;
    return (select not a.is_taken from cascade_internal.consumer_arrival as a
             where a.queue_id = v_queue.queue_id and a.move_uid = refuse_consumer.move);
end
$$;
comment on function cascade.refuse_consumer(text, text, text, uuid) is 'Refuses a move for good, unless it has arrived.';
