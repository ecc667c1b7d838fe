-- cascade_internal.find_queue(queue) returns the queue's row, or raises QC101.
create or replace function cascade_internal.find_queue(queue text)
returns cascade_internal.queue
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    select q.* into v_queue
      from cascade_internal.queue as q
     where q.name = find_queue.queue;
    if not found then
        if find_queue.queue is null then
            raise exception 'the queue name is null'
                using errcode = 'QC003', hint = 'Pass the name of a queue.';
        end if;
        raise exception 'there is no queue "%"', find_queue.queue
            using errcode = 'QC101',
                  hint = 'cascade.create_queue() makes one; names are case-sensitive.';
    end if;
    return v_queue;
end
$$;
comment on function cascade_internal.find_queue(text) is 'A queue by name, or QC101.';
