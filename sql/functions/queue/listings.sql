-- What the views show.  A caller sees the queues it may do something with.
create or replace function cascade_internal.list_queues(caller name)
returns table (queue text, created_at timestamptz, term bigint, last_tick bigint, last_tick_at timestamptz, events_ticked bigint,
               ids_after_tick bigint, consumers bigint, bytes numeric, options jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue    cascade_internal.queue;
    v_tick     cascade_internal.tick;
    v_operator constant boolean := cascade_internal.is_operator(list_queues.caller);
begin
    for v_queue in select q.* from cascade_internal.queue as q order by q.name loop
        continue when not v_operator
                  and not cascade_internal.may_produce(v_queue, list_queues.caller)
                  and not exists (select from cascade_internal.consumer_grant as g
                                   where g.queue_id = v_queue.queue_id
                                     and cascade_internal.may_consume(g.queue_id, g.consumer, list_queues.caller));
        v_tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
        list_queues.queue := v_queue.name;
        list_queues.created_at := v_queue.created_at;
        list_queues.term := v_queue.term;
        list_queues.last_tick := v_tick.tick_id;
        list_queues.last_tick_at := v_tick."time";
        list_queues.events_ticked := v_tick.total;
        list_queues.ids_after_tick := coalesce(
            pg_sequence_last_value(format('cascade_internal.event_id_%s', v_queue.queue_id)::regclass) - v_tick.event_seq, 0);
        list_queues.consumers := (select count(*) from cascade_internal.subscription as s where s.queue_id = v_queue.queue_id);
        list_queues.bytes := (select sum(pg_total_relation_size(format('cascade_internal.event_%s_%s', v_queue.queue_id, s)::regclass))
                                from generate_series(0, v_queue.slots - 1) as s);
        list_queues.options := cascade_internal.queue_options(v_queue);
        return next;
    end loop;
end
$$;
comment on function cascade_internal.list_queues(name) is 'The queues a caller may see.';

create or replace function cascade_internal.list_ticks()
returns table (queue text, tick_id bigint, prev_tick bigint, "time" timestamptz, low bigint, high bigint, "open" bigint[],
               event_seq bigint, events bigint, total bigint, term_uid uuid, chain text, gen bigint, gen_low bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    for v_queue in select q.* from cascade_internal.queue as q order by q.name loop
        return query execute format(
            'select %L::text, t.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq,'
            ' t.total - lag(t.total) over (order by t.tick_id), t.total, t.term_uid, encode(t.chain, ''hex''), t.gen, t.gen_low'
            ' from (%s) as t', v_queue.name, cascade_internal.ticks_query(v_queue));
    end loop;
end
$$;
comment on function cascade_internal.list_ticks() is 'All ticks that are held.';

create or replace function cascade_internal.list_consumers(caller name)
returns table (queue text, consumer text, tick_id bigint, lag_ticks bigint, lag_events bigint, lag_seconds numeric,
               open_batches integer, workers text[], retries bigint, last_seen timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue  cascade_internal.queue;
    v_newest cascade_internal.tick;
    v_ticks  bigint[];
    v_state  record;
begin
    for v_queue in select q.* from cascade_internal.queue as q order by q.name loop
        v_newest := null;
        for v_state in select s.* from cascade_internal.consumer_state(v_queue) as s loop
            continue when not cascade_internal.may_consume(v_queue.queue_id, v_state.consumer, list_consumers.caller);
            if v_newest.tick_id is null then
                v_newest := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
                execute format('select array_agg(t.tick_id order by t.tick_id) from (%s) as t', cascade_internal.ticks_query(v_queue))
                   into v_ticks;
            end if;
            list_consumers.queue := v_queue.name;
            list_consumers.consumer := v_state.consumer;
            list_consumers.tick_id := v_state.tick_id;
            list_consumers.lag_ticks := cardinality(v_ticks) - width_bucket(v_state.tick_id, v_ticks);
            list_consumers.lag_events := v_newest.total - v_state.total;
            list_consumers.lag_seconds := case when v_newest.total > v_state.total
                                               then round(extract(epoch from clock_timestamp() - v_state."time")::numeric, 3) else 0 end;
            list_consumers.open_batches := coalesce(array_length(v_state.open_batches, 1), 0);
            list_consumers.workers := array(select distinct o.worker from unnest(v_state.open_batches) as o where o.worker <> '' order by 1);
            list_consumers.retries := (select count(*) from cascade_internal.retry as r where r.subscription_id = v_state.subscription_id);
            list_consumers.last_seen := v_state.at;
            return next;
        end loop;
    end loop;
end
$$;
comment on function cascade_internal.list_consumers(name) is 'The consumers a caller may see.';

create or replace function cascade_internal.list_rotation()
returns table (queue text, generation bigint, slots smallint, oldest_generation bigint, switched_at timestamptz, next_switch timestamptz,
               bytes_held numeric, blocked_by text, blocker text, pid integer, age interval, query text, detail text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   cascade_internal.queue;
    v_oldest  cascade_internal.generation;
    v_newest  cascade_internal.generation;
    v_blocker record;
begin
    for v_queue in select q.* from cascade_internal.queue as q order by q.name loop
        select g.* into v_oldest from cascade_internal.generation as g where g.queue_id = v_queue.queue_id order by g.gen limit 1;
        select g.* into v_newest from cascade_internal.generation as g where g.queue_id = v_queue.queue_id order by g.gen desc limit 1;
        list_rotation.queue := v_queue.name;
        list_rotation.generation := cascade_internal.current_gen(v_queue.queue_id, v_queue.slots);
        list_rotation.slots := v_queue.slots;
        list_rotation.oldest_generation := v_oldest.gen;
        list_rotation.switched_at := v_newest.switched_at;
        list_rotation.next_switch := v_newest.switched_at + v_queue.rotation_period;
        list_rotation.bytes_held := (
            select coalesce(sum(pg_total_relation_size(format('cascade_internal.event_%s_%s', v_queue.queue_id, g % v_queue.slots)::regclass)), 0)
              from generate_series(v_oldest.gen, list_rotation.generation - 1) as g);
        if v_oldest.released then
            select 'lock' as kind, h.detail as blocker, h.pid, h.age, h.query, h.detail into v_blocker
              from cascade_internal.partition_holder(v_queue.queue_id, v_oldest.gen % v_queue.slots) as h;
        elsif v_oldest.gen < list_rotation.generation then
            select b.* into v_blocker from cascade_internal.rotation_blocker(v_queue, v_oldest.gen) as b;
        else
            select 'transaction' as kind, h.who as blocker, h.pid, h.age, h.query, h.detail into v_blocker
              from cascade_internal.place_holder(v_queue) as h
             where h.is_long;
        end if;
        list_rotation.blocked_by := v_blocker.kind;
        list_rotation.blocker := v_blocker.blocker;
        list_rotation.pid := v_blocker.pid;
        list_rotation.age := v_blocker.age;
        list_rotation.query := v_blocker.query;
        list_rotation.detail := v_blocker.detail;
        return next;
    end loop;
end
$$;
comment on function cascade_internal.list_rotation() is 'The state of rotation and what holds it.';
