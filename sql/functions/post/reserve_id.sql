-- cascade.reserve_id(queue) hands out the id of an event to come, so that the event can be
-- referred to before it is posted.  An id never posted leaves a gap, which is harmless; after
-- 30 days rotation forgets it.
create or replace function cascade_internal.reserve_id(queue text, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(reserve_id.queue);
    v_id    bigint;
begin
    perform cascade_internal.check_producer(v_queue, reserve_id.caller);
    -- An id is posted where it was reserved, so it is not handed out where nothing can be posted.
    perform cascade_internal.check_takes_inserts(v_queue, 'hands out no ids');
    insert into cascade_internal.reservation (queue_id, id, reserved_by)
    values (v_queue.queue_id, nextval(format('cascade_internal.event_id_%s', v_queue.queue_id)::regclass), reserve_id.caller)
    returning reservation.id into v_id;
    return v_id;
end
$$;
comment on function cascade_internal.reserve_id(text, name) is 'Reserves an event id for a caller.';

create or replace function cascade.reserve_id(queue text)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.reserve_id(reserve_id.queue, current_user);
end;
comment on function cascade.reserve_id(text) is 'Hands out the id of an event to come.';

create or replace function cascade_internal.check_takes_inserts(queue cascade_internal.queue, fact text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if (check_takes_inserts.queue).is_combined then
        perform cascade_internal.raise_combined(check_takes_inserts.queue, check_takes_inserts.fact);
    elsif (check_takes_inserts.queue).is_copy
          or exists (select from cascade_internal.fence as f where f.queue_id = (check_takes_inserts.queue).queue_id) then
        perform cascade_internal.raise_is_copy(check_takes_inserts.queue, check_takes_inserts.fact);
    end if;
end
$$;
comment on function cascade_internal.check_takes_inserts(cascade_internal.queue, text) is 'Raises QC401 or QC403 where nothing can be posted.';
