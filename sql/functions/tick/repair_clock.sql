-- cascade_internal.repair_clock(queue, last) returns the queue's row, after mending its clock
-- if this server's transaction ids do not continue the log's.
--
-- After a dump and restore the new server counts from a lower number: what is inserted there
-- seems ticked long ago and would be in no batch, ever.  So, with writers kept out: rows
-- that have an id above the last tick's event_seq and yet a txid the tick had seen can only
-- be such; they get one txid above everything in the log (rank), and the offset is raised so
-- that every transaction still to insert comes after that.
create or replace function cascade_internal.repair_clock(queue cascade_internal.queue, last cascade_internal.tick)
returns cascade_internal.queue
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue  cascade_internal.queue := repair_clock.queue;
    v_server constant text := cascade_internal.server_identity();
    v_slot   integer;
    v_max    bigint;
    v_rank   bigint := (repair_clock.last).high;
begin
    if (repair_clock.last).tick_id is null
       or (v_server = v_queue.server
           and txid_snapshot_xmax(txid_current_snapshot()) + v_queue.clock_offset >= (repair_clock.last).high) then
        return v_queue;
    end if;
    execute format('lock table queue.%I in share row exclusive mode', v_queue.name);
    for v_slot in 0 .. v_queue.slots - 1 loop
        execute format('select max(e.txid) from cascade_internal.event_%s_%s as e', v_queue.queue_id, v_slot) into v_max;
        v_rank := greatest(v_rank, v_max + 1);
    end loop;
    for v_slot in 0 .. v_queue.slots - 1 loop
        execute format('update cascade_internal.event_%s_%s as e set txid = $1'
                       ' where e.id > $2 and e.txid < $3 and e.txid <> all ($4)', v_queue.queue_id, v_slot)
          using v_rank, (repair_clock.last).event_seq, (repair_clock.last).high, (repair_clock.last)."open";
    end loop;
    -- From the snapshot's xmin, not this transaction's id: an older one may insert later.
    update cascade_internal.queue as q
       set clock_offset = v_rank + 1 - txid_snapshot_xmin(txid_current_snapshot()), server = v_server
     where q.queue_id = v_queue.queue_id
    returning q.* into v_queue;
    execute format('alter table only queue.%I alter column txid set default %s', v_queue.name, cascade_internal.clock_default(v_queue));
    return v_queue;
end
$$;
comment on function cascade_internal.repair_clock(cascade_internal.queue, cascade_internal.tick)
    is 'Lets a restored queue go on where it was dumped.';
