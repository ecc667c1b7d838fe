-- cascade.tick(queue) makes a tick now, always, and returns its id.  Two at once are harmless:
-- the second waits for the first and cuts after it.
create or replace function cascade.tick(queue text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    perform cascade_internal.check_read_committed('a tick');
    v_queue := cascade_internal.find_queue(tick.queue);
    perform from cascade_internal.queue as q where q.queue_id = v_queue.queue_id for no key update;
    if not found then
        perform cascade_internal.find_queue(tick.queue);
    end if;
    if cascade_internal.is_other_server(v_queue) then
        raise exception 'queue "%": this server is not the one on which the term of its root began', tick.queue
            using errcode = 'QC705', hint = 'Its tail may be lost: the daemon fences it, and cascade failover opens a new term.';
    end if;
    return (cascade_internal.cut(v_queue.queue_id, false)).tick_id;
end
$$;
comment on function cascade.tick(text) is 'Makes a tick now.';
