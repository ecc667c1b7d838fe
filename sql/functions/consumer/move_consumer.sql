-- A consumer goes to another node in three steps: move_consumer() here, accept_consumer() there,
-- finish_move() here.  Each may be repeated, and whoever finds a move half done goes on with it.
-- Until the last one the place is held here, and with it in the whole set.

-- cascade.move_consumer(queue, consumer, to_node, dry_run): called at the old node.  From now on the consumer reads nothing
-- here, and its place is held until finish_move().  Returns what accept_consumer() wants to know at the
-- new node: the tick, the events it had put back, the roles that may read as it.
--
-- A consumer whose batches or messages somebody holds is busy: QC214.  In work mode it takes all messages along that it was given and is
-- not done with, ten thousand at most, and its dead ones.  Batches that were given back, or whose lease has
-- run out, are read at the new node, unless a later one was finished already: that would come twice.
create or replace function cascade.move_consumer(queue text, consumer text, to_node text, dry_run boolean default false)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node         cascade_internal.node := cascade_internal.find_node(move_consumer.queue);
    v_queue        cascade_internal.queue := cascade_internal.find_queue(move_consumer.queue);
    v_subscription cascade_internal.subscription;
    v_move         cascade_internal.consumer_move;
    v_position     cascade_internal.position;
    v_tick         cascade_internal.tick;
begin
    perform cascade_internal.check_name('consumer', move_consumer.consumer);
    perform cascade_internal.check_read_committed('moving a consumer');
    perform cascade_internal.commit_durably();
    select s.* into v_subscription
      from cascade_internal.subscription as s
     where s.queue_id = v_queue.queue_id and s.consumer = move_consumer.consumer
       for no key update;
    select m.* into v_move
      from cascade_internal.consumer_move as m
     where m.queue_id = v_queue.queue_id and m.consumer = move_consumer.consumer;
    if v_subscription.subscription_id is null and v_move.move_uid is null then
        perform cascade_internal.raise_no_consumer(move_consumer.queue, move_consumer.consumer);
    elsif v_move.to_node <> move_consumer.to_node then
        perform cascade_internal.raise_moved(v_queue, move_consumer.consumer);
    elsif v_move.move_uid is not null then
        return cascade_internal.move_document(v_queue, v_node.node, v_subscription.subscription_id, v_move);
    end if;

    perform cascade_internal.check_carrier(v_node, move_consumer.to_node);
    if not v_subscription.is_movable then
        raise exception 'consumer "%" of queue "%" is local to node "%"', move_consumer.consumer, move_consumer.queue, v_node.node
            using errcode = 'QC208', hint = 'The other nodes do not hold what it needs: subscribe another one there.';
    end if;
    v_position := cascade_internal.newest_position(v_queue, v_subscription.subscription_id);
    if not v_subscription.is_work then
        perform cascade_internal.check_idle(v_queue, move_consumer.consumer, v_position);
    end if;
    -- In work mode all that it was given goes along, so it goes on at its head.
    v_tick := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots,
                                         case when v_subscription.is_work then v_position.head else v_position.tick_id end);
    if coalesce(move_consumer.dry_run, false) then
        v_move.consumer := move_consumer.consumer;
        v_move.to_node := move_consumer.to_node;
        v_move.tick_id := v_tick.tick_id;
        return cascade_internal.move_document(v_queue, v_node.node, v_subscription.subscription_id, v_move);
    end if;
    if v_subscription.is_work then
        perform cascade_internal.pack_work(v_queue, w, move_consumer.consumer, true)
           from cascade_internal.work_consumer as w where w.subscription_id = v_subscription.subscription_id;
    end if;
    -- What an unfinished batch asked for is void, and what it was to deliver waits again.
    delete from cascade_internal.retry as r
     where r.subscription_id = v_subscription.subscription_id and not r.active;
    update cascade_internal.retry as r set batch_id = null
     where r.subscription_id = v_subscription.subscription_id and r.batch_id is not null;
    perform cascade_internal.append_position(
        v_queue, (v_subscription.subscription_id, v_position.n + 1, v_tick.tick_id, v_tick.tick_id, v_tick.total, '{}', 'move', null,
                  clock_timestamp())::cascade_internal.position);
    update cascade_internal.subscription as s set moving_to = move_consumer.to_node
     where s.subscription_id = v_subscription.subscription_id;
    insert into cascade_internal.consumer_move (queue_id, consumer, to_node, tick_id)
    values (v_queue.queue_id, move_consumer.consumer, move_consumer.to_node, v_tick.tick_id)
    returning * into v_move;
    return cascade_internal.move_document(v_queue, v_node.node, v_subscription.subscription_id, v_move);
end
$$;
comment on function cascade.move_consumer(text, text, text, boolean) is 'Stops a consumer here, so that it goes on at another node.';

-- A member that can take a consumer: it carries the queue, and is somebody else.
create or replace function cascade_internal.check_carrier(node cascade_internal.node, to_node text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_member cascade_internal.member;
begin
    select m.* into v_member from cascade_internal.member as m
     where m.queue_id = (check_carrier.node).queue_id and m.node = check_carrier.to_node;
    if not found then
        raise exception 'no member "%" is known here', coalesce(check_carrier.to_node, '(null)')
            using errcode = 'QC106', hint = 'The view cascade.members lists them.';
    elsif v_member.role = 'leaf' or v_member.state <> 'live' or v_member.node = (check_carrier.node).node then
        raise exception 'a consumer of node "%" cannot go to "%"', (check_carrier.node).node, check_carrier.to_node
            using errcode = 'QC208', hint = 'It goes to another node that carries the queue: no leaf, and no member that was dropped or marked dead.';
    end if;
end
$$;
comment on function cascade_internal.check_carrier(cascade_internal.node, text) is 'Refuses a node that cannot take a consumer.';

-- Everything after the consumer's tick must be unfinished, and in nobody's hands: then it goes on
-- elsewhere without skipping or repeating.
create or replace function cascade_internal.check_idle(queue cascade_internal.queue, consumer text, "position" cascade_internal.position)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_batch cascade_internal.open_batch;
    v_to    bigint := (check_idle."position").tick_id;
begin
    for v_batch in select o.* from unnest((check_idle."position").open_batches) as o order by o.from_tick, o.batch_id loop
        if v_batch.until > clock_timestamp() then
            raise exception 'consumer "%" of queue "%" is busy: batch % is held%', check_idle.consumer, (check_idle.queue).name,
                            v_batch.batch_id, case when v_batch.worker <> '' then format(' by worker "%s" until %s', v_batch.worker, v_batch.until) end
                using errcode = 'QC214', hint = 'Stop its readers, or wait for them; cascade.release_batch() gives a batch back.';
        end if;
        exit when v_batch.from_tick > v_to;
        v_to := greatest(v_to, v_batch.to_tick);
    end loop;
    if v_to < (check_idle."position").head then
        raise exception 'consumer "%" of queue "%" has finished batches after one that is not', check_idle.consumer, (check_idle.queue).name
            using errcode = 'QC214', hint = 'Let its workers finish what was given back: elsewhere the finished ones would come again.';
    end if;
end
$$;
comment on function cascade_internal.check_idle(cascade_internal.queue, text, cascade_internal.position) is 'Raises QC214 while a consumer cannot be moved.';

-- Payloads are text in it: jsonb would not keep them byte for byte, nor take all of them.
create or replace function cascade_internal.move_document(
    queue cascade_internal.queue, node text, subscription_id integer, move cascade_internal.consumer_move)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick cascade_internal.tick := cascade_internal.find_tick((move_document.queue).queue_id, (move_document.queue).slots, (move_document.move).tick_id);
begin
    return jsonb_build_object(
        'queue', (move_document.queue).name, 'consumer', (move_document.move).consumer, 'move', (move_document.move).move_uid,
        'from', move_document.node, 'to', (move_document.move).to_node, 'tick_id', (move_document.move).tick_id, 'chain', v_tick.chain,
        'state', coalesce((move_document.move).state, 'at home'),
        'retries', coalesce(
            (select cascade_internal.pack_work(move_document.queue, w, (move_document.move).consumer, false)
               from cascade_internal.work_consumer as w where w.subscription_id = move_document.subscription_id),
            (select coalesce(jsonb_agg(jsonb_build_object(
                               'event_id', r.event_id, 'attempt', r.attempt, 'due', r.due, 'time', r."time", 'txid', r.txid, 'type', r.type,
                               'key', r.key, 'payload', r.payload::text, 'headers', r.headers::text, 'origin', r.origin,
                               'origin_id', r.origin_id) order by r.event_id, r.attempt), '[]')
                      from cascade_internal.retry as r where r.subscription_id = move_document.subscription_id and r.active)),
        'roles', (select coalesce(jsonb_agg(g.role_name order by g.role_name), '[]')
                    from cascade_internal.consumer_grant as g
                   where g.queue_id = (move_document.queue).queue_id and g.consumer = (move_document.move).consumer));
end
$$;
comment on function cascade_internal.move_document(cascade_internal.queue, text, integer, cascade_internal.consumer_move) is 'A move, as the new node wants to know it.';

create or replace function cascade_internal.raise_moved(queue cascade_internal.queue, consumer text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_move cascade_internal.consumer_move;
    v_base text;
    v_dsn  text;
begin
    select m.* into strict v_move from cascade_internal.consumer_move as m
     where m.queue_id = (raise_moved.queue).queue_id and m.consumer = raise_moved.consumer;
    select m.location->>'database', m.location->>'dsn' into v_base, v_dsn
      from cascade_internal.member as m where m.queue_id = v_move.queue_id and m.node = v_move.to_node;
    raise exception 'consumer "%" of queue "%" % node "%", at tick %', raise_moved.consumer, (raise_moved.queue).name,
                    case v_move.state when 'moving' then 'is on its way to' else 'has moved to' end, v_move.to_node, v_move.tick_id
        using errcode = 'QC213',
              detail = jsonb_build_object('queue', (raise_moved.queue).name, 'consumer', raise_moved.consumer, 'node', v_move.to_node,
                                          'database', v_base, 'dsn', v_dsn, 'tick_id', v_move.tick_id, 'state', v_move.state),
              hint = case v_move.state
                         when 'moving' then 'cascade consumer move, with the same arguments, completes it.'
                         else format('Read there%s; cascade consumer drop forgets it here.', ', database ' || v_base) end;
end
$$;
comment on function cascade_internal.raise_moved(cascade_internal.queue, text) is 'Raises QC213, naming the node where a consumer is now.';

-- cascade.finish_move(queue, consumer, move): called at the old node once the new one has accepted.  The place is no
-- longer held here; whoever asks is told where the consumer is.
create or replace function cascade.finish_move(queue text, consumer text, move uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(finish_move.queue);
    v_move  cascade_internal.consumer_move := cascade_internal.lock_move(v_queue, finish_move.consumer, finish_move.move);
begin
    if v_move.state = 'moved' then
        return false;
    end if;
    perform cascade_internal.commit_durably();
    update cascade_internal.consumer_move as m set state = 'moved', at = clock_timestamp()
     where m.queue_id = v_move.queue_id and m.consumer = v_move.consumer;
    delete from cascade_internal.subscription as s where s.queue_id = v_move.queue_id and s.consumer = v_move.consumer;
    return true;
end
$$;
comment on function cascade.finish_move(text, text, uuid) is 'Lets go of a consumer that has arrived at another node.';

-- cascade.cancel_move(queue, consumer, move): called at the old node once the new one has refused for good, by
-- refuse_consumer(): the consumer goes on here, at the tick where it was stopped.
create or replace function cascade.cancel_move(queue text, consumer text, move uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(cancel_move.queue);
    v_move  cascade_internal.consumer_move := cascade_internal.lock_move(v_queue, cancel_move.consumer, cancel_move.move);
begin
    if v_move.state = 'moved' then
        return false;
    end if;
    perform cascade_internal.commit_durably();
    update cascade_internal.subscription as s set moving_to = null where s.queue_id = v_move.queue_id and s.consumer = v_move.consumer;
    delete from cascade_internal.consumer_move as m where m.queue_id = v_move.queue_id and m.consumer = v_move.consumer;
    return true;
end
$$;
comment on function cascade.cancel_move(text, text, uuid) is 'Takes a consumer back that the other node refused.';

create or replace function cascade_internal.lock_move(queue cascade_internal.queue, consumer text, move uuid)
returns cascade_internal.consumer_move
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_move cascade_internal.consumer_move;
begin
    perform from cascade_internal.subscription as s
      where s.queue_id = (lock_move.queue).queue_id and s.consumer = lock_move.consumer for no key update;
    select m.* into v_move from cascade_internal.consumer_move as m
     where m.queue_id = (lock_move.queue).queue_id and m.consumer = lock_move.consumer and m.move_uid = lock_move.move
       for update;
    if not found then
        raise exception 'consumer "%" of queue "%" is not being moved by move %', lock_move.consumer, (lock_move.queue).name, lock_move.move
            using errcode = 'QC209', hint = 'It was taken back, or moved again: look where it is.';
    end if;
    return v_move;
end
$$;
comment on function cascade_internal.lock_move(cascade_internal.queue, text, uuid) is 'Locks a move, or raises QC209.';
