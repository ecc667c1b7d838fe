-- cascade_internal.rotation_blocker(queue, gen): what keeps a generation, or all null.
create or replace function cascade_internal.rotation_blocker(
    queue cascade_internal.queue, gen bigint,
    out kind text, out blocker text, out pid integer, out age interval, out query text, out detail text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     constant integer := (rotation_blocker.queue).queue_id;
    v_since  bigint := (select g.since from cascade_internal.generation as g
                         where g.queue_id = v_id and g.gen = rotation_blocker.gen + 1);
    v_newest cascade_internal.tick;
    v_held   record;
begin
    if v_since is null then
        rotation_blocker.kind := 'step';
        rotation_blocker.detail := 'the switch has not settled; the next call of cascade.rotate() does it';
        return;
    end if;
    v_newest := cascade_internal.newest_tick(v_id, (rotation_blocker.queue).slots);
    if v_newest.gen_low <= rotation_blocker.gen then
        -- A copy holds whole batches: no transaction but the provider's next tick is waited for.
        select t.* into v_held
          from cascade_internal.oldest_transaction(v_since - (rotation_blocker.queue).clock_offset) as t
         where not (rotation_blocker.queue).is_copy;
        if v_held.xid is null then
            select h.* into v_held from cascade_internal.place_holder(rotation_blocker.queue) as h where h.is_long;
            if v_held.who is not null then
                rotation_blocker.kind := 'transaction';
                rotation_blocker.blocker := v_held.who;
                rotation_blocker.pid := v_held.pid;
                rotation_blocker.age := v_held.age;
                rotation_blocker.query := v_held.query;
                rotation_blocker.detail := v_held.detail;
                return;
            end if;
            rotation_blocker.kind := 'tick';
            rotation_blocker.detail := format('the next tick; the last was tick %s', v_newest.tick_id);
        else
            rotation_blocker.kind := 'transaction';
            rotation_blocker.blocker := v_held.who;
            rotation_blocker.pid := v_held.pid;
            rotation_blocker.age := v_held.age;
            rotation_blocker.query := v_held.query;
            rotation_blocker.detail := format('transaction %s of %s is open%s', v_held.xid, v_held.who,
                                              coalesce(' since ' || v_held.age::text, ''));
        end if;
        return;
    end if;
    select s.consumer, s.tick_id into v_held
      from cascade_internal.consumer_state(rotation_blocker.queue) as s
     where s.gen_low is null or s.gen_low <= rotation_blocker.gen
     order by s.tick_id
     limit 1;
    if v_held.consumer is not null then
        rotation_blocker.kind := case v_held.consumer when '.global_watermark' then 'watermark' else 'consumer' end;
        rotation_blocker.blocker := v_held.consumer;
        rotation_blocker.detail := format('%s stands at tick %s', case v_held.consumer
            when '.global_watermark' then 'the global watermark' else 'consumer ' || quote_ident(v_held.consumer) end, v_held.tick_id);
        return;
    end if;
    select t.node, t.tick_id, t.heard_at into v_held
      from cascade_internal.direct_subscribers(rotation_blocker.queue) as t
     where t.gen_low is null or t.gen_low <= rotation_blocker.gen
     order by t.tick_id
     limit 1;
    if v_held.node is not null then
        rotation_blocker.kind := 'subscriber';
        rotation_blocker.blocker := v_held.node;
        rotation_blocker.age := clock_timestamp() - v_held.heard_at;
        rotation_blocker.detail := format('node %s copies from here and stands at tick %s', quote_ident(v_held.node), v_held.tick_id);
    end if;
end
$$;
comment on function cascade_internal.rotation_blocker(cascade_internal.queue, bigint) is 'Who keeps a generation from being released.';

-- The oldest transaction with an id at or below a limit: pg_locks tells everybody who it is;
-- its age and query are shown to those who may see them.
create or replace function cascade_internal.oldest_transaction(up_to bigint)
returns table (xid bigint, who text, pid integer, age interval, query text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_xid bigint;
begin
    select min(x) into v_xid
      from (select txid_snapshot_xip(txid_current_snapshot())) as o(x)
     where x <= oldest_transaction.up_to;
    if v_xid is null then
        return;
    end if;
    return query
        select v_xid,
               coalesce('backend ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'an unknown backend'),
               l.pid,
               coalesce(clock_timestamp() - a.xact_start, clock_timestamp() - p.prepared),
               a.query
          from (select v_xid) as x(xid)
          left join pg_catalog.pg_locks as l
            on l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
           and l.transactionid::text::bigint = v_xid % 4294967296
          left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
          left join pg_catalog.pg_prepared_xacts as p on p.transaction::text::bigint = v_xid % 4294967296
         limit 1;
end
$$;
comment on function cascade_internal.oldest_transaction(bigint) is 'The oldest open transaction up to an id, and whose it is.';

create or replace function cascade_internal.partition_holder(queue_id integer, slot bigint)
returns table (pid integer, age interval, query text, detail text)
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select l.pid, clock_timestamp() - a.xact_start, a.query,
           format('%s holds %s on %s', coalesce('backend ' || l.pid, 'a prepared transaction'), l.mode, l.relation::regclass)
      from pg_catalog.pg_locks as l
      left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
     where l.locktype = 'relation'
       and l.granted
       and a.backend_type is distinct from 'autovacuum worker'
       and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
       and l.pid is distinct from pg_backend_pid()
       and l.relation in (format('cascade_internal.event_%s_%s', partition_holder.queue_id, partition_holder.slot)::regclass,
                          format('cascade_internal.tick_%s_%s', partition_holder.queue_id, partition_holder.slot)::regclass,
                          format('cascade_internal.position_%s_%s', partition_holder.queue_id, partition_holder.slot)::regclass)
     order by a.xact_start
     limit 1
$$;
comment on function cascade_internal.partition_holder(integer, bigint) is 'Who holds a lock on a partition.';

-- Who has made a tick of a queue, or taken a place in it ("now" may make one), in a transaction
-- that is still open: until it ends there are no more ticks, or nothing is released.  Ticks and
-- subscriptions take a moment; is_long says that this one took more, or that nobody may know.
create or replace function cascade_internal.place_holder(queue cascade_internal.queue)
returns table (who text, pid integer, age interval, query text, detail text, is_long boolean)
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select h.who, h.pid, h.age, h.query,
           format('%s has made a tick or taken a place in the queue, and its transaction is open%s', h.who,
                  coalesce(' since ' || h.age::text, '')),
           coalesce(h.age > interval '1 s', true)
      from (select coalesce('backend ' || l.pid, 'a prepared transaction') as who, l.pid,
                   clock_timestamp() - a.xact_start as age, a.query
              from generate_series(0, (place_holder.queue).slots - 1) as s(slot)
              join pg_catalog.pg_locks as l
                on l.relation = format('cascade_internal.tick_%s_%s', (place_holder.queue).queue_id, s.slot)::regclass
                or l.relation = format('cascade_internal.position_%s_%s', (place_holder.queue).queue_id, s.slot)::regclass
               and exists (select from pg_catalog.pg_locks as g
                            where g.relation = 'cascade_internal.generation'::regclass
                              and g.mode = 'RowShareLock'
                              and g.virtualtransaction = l.virtualtransaction)
              left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
             where l.locktype = 'relation'
               and l.mode = 'RowExclusiveLock'
               and l.granted
               and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
               and l.pid is distinct from pg_backend_pid()
             order by a.xact_start
             limit 1) as h
$$;
comment on function cascade_internal.place_holder(cascade_internal.queue) is 'Whose open transaction holds a tick or a place in a queue.';
