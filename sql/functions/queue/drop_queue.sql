-- cascade.drop_queue(queue, force) removes a queue with its events, ticks and positions.
-- While it has consumers, or other members of its set live, it is refused (QC202) unless forced.
create or replace function cascade.drop_queue(queue text, force boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue     cascade_internal.queue := cascade_internal.find_queue(drop_queue.queue);
    v_consumers text;
    v_slot      integer;
begin
    perform from cascade_internal.queue as q where q.queue_id = v_queue.queue_id for update;
    if not found then
        v_queue := cascade_internal.find_queue(drop_queue.queue);
    end if;
    select string_agg(quote_ident(s.consumer), ', ' order by s.consumer) into v_consumers
      from cascade_internal.subscription as s
     where s.queue_id = v_queue.queue_id
       and s.consumer not like '.%';
    perform cascade_internal.check_droppable(v_queue, coalesce(drop_queue.force, false));
    if v_consumers is not null and not coalesce(drop_queue.force, false) then
        raise exception 'queue "%" has consumers: %', drop_queue.queue, v_consumers
            using errcode = 'QC202', hint = 'Unsubscribe them, or pass force => true to drop the queue and their positions.';
    end if;
    execute format('drop table queue.%I', v_queue.name);
    for v_slot in 0 .. v_queue.slots - 1 loop
        execute format('drop table cascade_internal.tick_%s_%s, cascade_internal.position_%1$s_%2$s', v_queue.queue_id, v_slot);
    end loop;
    execute format('drop sequence cascade_internal.event_id_%s, cascade_internal.register_%1$s, cascade_internal.first_%1$s',
                   v_queue.queue_id);
    delete from cascade_internal.queue as q where q.queue_id = v_queue.queue_id;
end
$$;
comment on function cascade.drop_queue(text, boolean) is 'Removes a queue and everything in it.';
