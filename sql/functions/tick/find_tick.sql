-- Ticks and positions are read partition by partition, newest generation first: almost
-- always the first look finds what is wanted, and nobody holds a lock on a partition that
-- is about to be emptied.
create or replace function cascade_internal.newest_tick(queue_id integer, slots smallint)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick   cascade_internal.tick;
    v_gen    bigint;
    v_oldest bigint;
    v_look   integer;
begin
    -- Twice, since rotation may pass while we look from new to old.
    for v_look in 1 .. 2 loop
        v_gen := cascade_internal.current_gen(newest_tick.queue_id, newest_tick.slots);
        loop
            execute format('select t.* from cascade_internal.tick_%s_%s as t order by t.tick_id desc limit 1',
                           newest_tick.queue_id, v_gen % newest_tick.slots)
               into v_tick;
            if v_tick.tick_id is not null then
                return v_tick;
            end if;
            v_oldest := coalesce(v_oldest, cascade_internal.oldest_gen(newest_tick.queue_id), v_gen);
            v_gen := v_gen - 1;
            exit when v_gen < v_oldest;
        end loop;
    end loop;
    return null;
end
$$;
comment on function cascade_internal.newest_tick(integer, smallint) is 'The last tick of a queue.';

create or replace function cascade_internal.find_tick(queue_id integer, slots smallint, tick_id bigint)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick   cascade_internal.tick;
    v_gen    bigint := cascade_internal.current_gen(find_tick.queue_id, find_tick.slots);
    v_oldest bigint;
begin
    loop
        execute format('select t.* from cascade_internal.tick_%s_%s as t where t.tick_id = %L',
                       find_tick.queue_id, v_gen % find_tick.slots, find_tick.tick_id)
           into v_tick;
        exit when v_tick.tick_id is not null;
        v_oldest := coalesce(v_oldest, cascade_internal.oldest_gen(find_tick.queue_id), v_gen);
        v_gen := v_gen - 1;
        exit when v_gen < v_oldest;
    end loop;
    return v_tick;
end
$$;
comment on function cascade_internal.find_tick(integer, smallint, bigint) is 'A tick by id; null when it is not there, or no longer.';

-- The ticks that a consumer may stand on: those whose later batches are held whole.  A tick made
-- soon after a switch lies in the new generation, but its next batch may reach into the old one.
create or replace function cascade_internal.ticks_query(queue cascade_internal.queue)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_oldest bigint;
    v_gen    bigint;
    v_arms   text[] := '{}';
begin
    select min(r.gen) into v_oldest
      from cascade_internal.generation as r
     where r.queue_id = (ticks_query.queue).queue_id
       and not r.released;
    for v_gen in v_oldest .. cascade_internal.current_gen((ticks_query.queue).queue_id, (ticks_query.queue).slots) loop
        v_arms := v_arms || format('select t.* from cascade_internal.tick_%s_%s as t where t.gen_low >= %s',
                                   (ticks_query.queue).queue_id, v_gen % (ticks_query.queue).slots, v_oldest);
    end loop;
    return array_to_string(v_arms, ' union all ');
end
$$;
comment on function cascade_internal.ticks_query(cascade_internal.queue) is 'A query for all ticks that consumers may stand on.';

-- cascade_internal.resolve_tick(queue, at): now, earliest, a tick id or a timestamp, as a tick.
-- "now" cuts first when committed events wait for a tick, so that "now" means now.
create or replace function cascade_internal.resolve_tick(queue cascade_internal.queue, at text)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick  cascade_internal.tick;
    v_first cascade_internal.tick;
    v_time  timestamptz;
    v_query constant text := cascade_internal.ticks_query(resolve_tick.queue);
begin
    if resolve_tick.at is null then
        raise exception 'no place in queue "%" was given', (resolve_tick.queue).name
            using errcode = 'QC003', hint = 'Pass now, earliest, a tick id or a timestamp.';
    elsif resolve_tick.at = 'now' then
        v_tick := cascade_internal.newest_tick((resolve_tick.queue).queue_id, (resolve_tick.queue).slots);
        if not (resolve_tick.queue).is_copy and cascade_internal.has_pending(resolve_tick.queue, v_tick) then
            perform cascade_internal.check_read_committed('subscribing at "now"');
            perform from cascade_internal.queue as q where q.queue_id = (resolve_tick.queue).queue_id for no key update;
            v_tick := coalesce(cascade_internal.cut((resolve_tick.queue).queue_id, true),
                               cascade_internal.newest_tick((resolve_tick.queue).queue_id, (resolve_tick.queue).slots));
        end if;
        return v_tick;
    end if;
    execute v_query || ' order by tick_id limit 1' into v_first;
    if resolve_tick.at = 'earliest' then
        return v_first;
    elsif resolve_tick.at ~ '^[0-9]{1,18}$' then
        execute format('select * from (%s) as t where t.tick_id = %s', v_query, resolve_tick.at) into v_tick;
        if v_tick.tick_id is null then
            raise exception 'queue "%" has no tick %', (resolve_tick.queue).name, resolve_tick.at
                using errcode = case when resolve_tick.at::bigint < v_first.tick_id then 'QC402' else 'QC103' end,
                      hint = format('The first tick still held is %s; the view cascade.ticks lists them.', v_first.tick_id);
        end if;
        return v_tick;
    end if;
    begin
        v_time := resolve_tick.at::timestamptz;
    exception when data_exception then
        raise exception '% is no place in queue "%"', quote_literal(left(resolve_tick.at, 40)), (resolve_tick.queue).name
            using errcode = 'QC003', hint = 'Pass now, earliest, a tick id or a timestamp.';
    end;
    if v_time > clock_timestamp() then
        raise exception '% is in the future', resolve_tick.at
            using errcode = 'QC003', hint = 'Pass now to begin with what comes next.';
    end if;
    execute format('select * from (%s) as t where t."time" <= %L order by t.tick_id desc limit 1', v_query, v_time) into v_tick;
    return case when v_tick.tick_id is null then v_first else v_tick end;
end
$$;
comment on function cascade_internal.resolve_tick(cascade_internal.queue, text) is 'A place in a queue, as people write it.';
