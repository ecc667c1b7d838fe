-- cascade.arm_ticker(): the ticker goes to sleep and asks to be woken.  From now on inserting
-- transactions notify cascade_insert when they commit.  Returns how many transactions are
-- writing to queues right now: those looked before the register moved and will not notify,
-- so the caller goes on polling until there are none.  Null: do not sleep, poll.  Where the
-- server allows prepared transactions, a producer that notified could not prepare any more.
create or replace function cascade.arm_ticker()
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    if current_setting('max_prepared_transactions')::integer > 0 then
        perform cascade.disarm_ticker(); -- Armed elsewhere, and restored here from a dump.
        return null;
    end if;
    for v_queue in
        select q.* from cascade_internal.queue as q
         where not q.is_copy and not cascade_internal.is_armed(q.queue_id, q.slots)
         order by q.queue_id
           for no key update skip locked
    loop
        perform cascade_internal.set_register(v_queue, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots), true);
    end loop;
    return cascade_internal.count_writers();
end
$$;
comment on function cascade.arm_ticker() is 'Asks to be woken by the next insert.';

-- cascade.disarm_ticker(): under traffic the ticker polls, and nobody notifies.
create or replace function cascade.disarm_ticker()
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    for v_queue in
        select q.* from cascade_internal.queue as q
         where cascade_internal.is_armed(q.queue_id, q.slots)
         order by q.queue_id
           for no key update skip locked
    loop
        perform cascade_internal.set_register(v_queue, cascade_internal.current_gen(v_queue.queue_id, v_queue.slots), false);
    end loop;
end
$$;
comment on function cascade.disarm_ticker() is 'Stops asking to be woken.';

create or replace function cascade_internal.count_writers()
returns bigint
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select count(distinct l.virtualtransaction)
      from pg_catalog.pg_locks as l
      join pg_catalog.pg_class as c on c.oid = l.relation
     where l.locktype = 'relation'
       and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
       and l.mode = 'RowExclusiveLock'
       and c.relnamespace = 'queue'::regnamespace
       and l.pid is distinct from pg_backend_pid()
$$;
comment on function cascade_internal.count_writers() is 'How many transactions are writing to queues now.';

-- cascade.tick_channel(queue) is where ticks of the queue are announced: LISTEN to it.
create or replace function cascade_internal.tick_channel(queue text, caller name)
returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue constant cascade_internal.queue := cascade_internal.find_queue(tick_channel.queue);
begin
    if not cascade_internal.is_operator(tick_channel.caller)
       and not exists (select from cascade_internal.consumer_grant as g
                        where g.queue_id = v_queue.queue_id
                          and cascade_internal.may_consume(g.queue_id, g.consumer, tick_channel.caller)) then
        raise exception 'role "%" may not read queue "%"', tick_channel.caller, v_queue.name
            using errcode = 'QC301', hint = 'An operator grants it: select cascade.grant_consumer().';
    end if;
    return 'cascade_tick_' || v_queue.queue_id;
end
$$;
comment on function cascade_internal.tick_channel(text, name) is 'The channel that a tick of the queue notifies, for a caller.';

create or replace function cascade.tick_channel(queue text)
returns text
language sql volatile
begin atomic
    select cascade_internal.tick_channel(tick_channel.queue, current_user);
end;
comment on function cascade.tick_channel(text) is 'The channel that a tick of the queue notifies.';
