-- cascade.make_ticks() makes the ticks that are due and returns them.  A queue's tick is due
-- when events wait and tick_max_events came in or tick_max_lag has passed since the last one
-- (so an event after a pause is ticked at once, and none waits longer than tick_max_lag);
-- or, without events, when tick_idle has passed.  A tick that came after a pause leaves one in reserve: two
-- may follow each other at once, and yet there are no more of them than one in tick_max_lag.
-- Looking costs no transaction id.
create or replace function cascade.make_ticks()
returns table (queue text, tick_id bigint, events bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
    v_last  cascade_internal.tick;
    v_tick  cascade_internal.tick;
    v_age   interval;
begin
    perform cascade_internal.check_read_committed('a tick');
    for v_queue in select q.* from cascade_internal.queue as q where not q.is_copy order by q.queue_id loop
        v_last := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
        v_age := clock_timestamp() - v_last."time";
        -- A tick from the future means that the clock of this machine was set back.
        continue when v_age between interval '0' and v_queue.tick_max_lag
                      and coalesce(pg_sequence_last_value(format('cascade_internal.event_id_%s', v_queue.queue_id)::regclass), 0)
                          - v_last.event_seq < v_queue.tick_max_events
                      and not cascade_internal.has_reserve(v_queue, v_last);
        continue when v_age between interval '0' and v_queue.tick_idle
                      and not cascade_internal.has_pending(v_queue, v_last);
        -- The reign may have been handed over since the list was read.
        perform from cascade_internal.queue as q where q.queue_id = v_queue.queue_id and not q.is_copy for no key update skip locked;
        continue when not found;
        if cascade_internal.is_other_server(v_queue) then
            perform cascade_internal.want_fence(v_queue, 'rewound', 'its server is not the one on which the term began: the tail may be lost');
            continue;
        end if;
        v_tick := cascade_internal.cut(v_queue.queue_id, v_age between interval '0' and v_queue.tick_idle);
        if v_tick.tick_id is not null then
            make_ticks.queue := v_queue.name;
            make_ticks.tick_id := v_tick.tick_id;
            make_ticks.events := v_tick.total - v_last.total;
            return next;
        end if;
    end loop;
end
$$;
comment on function cascade.make_ticks() is 'Makes the ticks that are due.';

-- Whether the tick before the last one came so long ago that another one is due, in spite of the last.
create or replace function cascade_internal.has_reserve(queue cascade_internal.queue, last cascade_internal.tick)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(clock_timestamp() - (cascade_internal.find_tick((has_reserve.queue).queue_id, (has_reserve.queue).slots,
                                                                    (has_reserve.last).prev_tick))."time" > 2 * (has_reserve.queue).tick_max_lag, false);
end
$$;
comment on function cascade_internal.has_reserve(cascade_internal.queue, cascade_internal.tick) is 'Whether the queue may have a tick right after its last one.';

-- Whether a committed event waits for a tick.  Sequences cannot tell: a transaction may take
-- its ids before a tick and commit after it.  Transactions open now are left out by ranges, so
-- that a large one is not read again and again while it goes on.
create or replace function cascade_internal.has_pending(queue cascade_internal.queue, last cascade_internal.tick)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_offset constant bigint := (has_pending.queue).clock_offset;
    v_open   constant bigint[] := array(select x + v_offset from (select txid_snapshot_xip(txid_current_snapshot())) as o(x) order by 1);
    v_ended  constant bigint[] := array(select x from unnest((has_pending.last)."open") as x except select x from unnest(v_open) as x);
    v_from   bigint := (has_pending.last).high;
    v_wheres text[] := '{}';
    v_xid    bigint;
    v_gen    bigint;
    v_found  boolean := false;
begin
    if txid_snapshot_xmax(txid_current_snapshot()) + v_offset < (has_pending.last).high then
        return true; -- The clock went back: the tick mends it first.
    end if;
    foreach v_xid in array v_open loop
        if v_xid >= v_from then
            v_wheres := v_wheres || case when v_xid > v_from then format('e.txid >= %s and e.txid < %s', v_from, v_xid) end;
            v_from := v_xid + 1;
        end if;
    end loop;
    v_wheres := v_wheres || format('e.txid >= %s', v_from);
    if v_ended <> '{}' then
        v_wheres := v_wheres || format('e.txid = any (%L::bigint[])', v_ended);
    end if;
    for v_gen in (has_pending.last).gen_low
              .. cascade_internal.current_gen((has_pending.queue).queue_id, (has_pending.queue).slots) loop
        -- Not "exists": partitions have no statistics, and the planner would rather read them whole.
        execute (select 'select ' || string_agg(format('(select e.txid from cascade_internal.event_%s_%s as e where %s order by e.txid limit 1) is not null',
                            (has_pending.queue).queue_id, v_gen % (has_pending.queue).slots, w), ' or ')
                   from unnest(v_wheres) as w
                  where w is not null)
           into v_found;
        exit when v_found;
    end loop;
    return v_found;
end
$$;
comment on function cascade_internal.has_pending(cascade_internal.queue, cascade_internal.tick) is 'Whether a committed event waits for a tick.';
