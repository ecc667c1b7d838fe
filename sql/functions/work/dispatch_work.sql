-- cascade.dispatch_work(queue, max_events) moves new ticks to the consumers in work mode, of every queue or one: plain
-- messages as chunks of the log, the others as rows, in the transaction that moves the consumer's place.  Returns a row for
-- each consumer that was moved.  The daemon calls it after every tick; a claim that finds nothing does it for
-- itself.  One that another dispatches right now is left out.
create or replace function cascade.dispatch_work(queue text default null, max_events integer default 100000)
returns table (queue_name text, consumer text, messages bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_log  cascade_internal.queue;
    v_work cascade_internal.work_consumer;
begin
    perform cascade_internal.check_read_committed('dispatching');
    if dispatch_work.max_events is null or dispatch_work.max_events < 1 then
        raise exception 'max_events must be positive' using errcode = 'QC003', hint = 'For example 100000.';
    elsif dispatch_work.queue is not null then
        perform cascade_internal.find_queue(dispatch_work.queue);
    end if;
    for v_work in
        select w.* from cascade_internal.work_consumer as w
          join cascade_internal.queue as q using (queue_id)
         where q.name = coalesce(dispatch_work.queue, q.name)
         order by w.subscription_id
    loop
        select q.* into v_log from cascade_internal.queue as q where q.queue_id = v_work.queue_id;
        dispatch_work.messages := cascade_internal.tend_rows(v_work, clock_timestamp());
        if cascade_internal.is_behind(v_log, v_work.subscription_id) then
            select s.consumer into dispatch_work.consumer
              from cascade_internal.subscription as s
             where s.subscription_id = v_work.subscription_id and s.moving_to is null
               for no key update skip locked;
            if found then
                dispatch_work.messages := dispatch_work.messages + cascade_internal.dispatch(v_log, v_work, dispatch_work.max_events);
            end if;
        end if;
        if dispatch_work.messages > 0 then
            dispatch_work.queue_name := v_log.name;
            select s.consumer into dispatch_work.consumer
              from cascade_internal.subscription as s where s.subscription_id = v_work.subscription_id;
            return next;
        end if;
    end loop;
end
$$;
comment on function cascade.dispatch_work(text, integer) is 'Moves new events to the consumers in work mode.';

-- Whether ticks wait to be dispatched to a consumer.
create or replace function cascade_internal.is_behind(log cascade_internal.queue, subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (cascade_internal.newest_tick((is_behind.log).queue_id, (is_behind.log).slots)).tick_id
         > (cascade_internal.newest_position(is_behind.log, is_behind.subscription_id)).head;
end
$$;
comment on function cascade_internal.is_behind(cascade_internal.queue, integer) is 'Whether ticks wait to be dispatched to a consumer.';

-- Dispatches to a consumer whose subscription the caller has locked, and returns how many messages that made.  At most
-- max_events, but one tick at least.
create or replace function cascade_internal.dispatch(log cascade_internal.queue, work cascade_internal.work_consumer, max_events integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     constant integer := (dispatch.work).subscription_id;
    v_at     constant timestamptz := clock_timestamp();
    v_place  cascade_internal.position := cascade_internal.newest_position(dispatch.log, v_id);
    v_from   cascade_internal.tick := cascade_internal.find_tick((dispatch.log).queue_id, (dispatch.log).slots, v_place.head);
    v_to     cascade_internal.tick := cascade_internal.newest_tick((dispatch.log).queue_id, (dispatch.log).slots);
    v_where  text := 'e.origin is distinct from ''.cascade''';
    v_counts bigint[] := '{0, 0, 0}';
    v_moved  bigint := 0;
begin
    if v_to.tick_id <= v_place.head then
        return 0;
    elsif v_from.tick_id is null then
        raise exception 'the tick on which consumer % stands is gone', v_id
            using errcode = 'QC501', hint = 'This transaction''s snapshot is older than the last rotation: begin a new one.';
    elsif v_to.total - v_from.total > dispatch.max_events then
        execute format('select t.* from (%s) as t where t.tick_id > %s and (t.prev_tick = %2$s or t.total <= %s) order by t.tick_id desc limit 1',
                       cascade_internal.ticks_query(dispatch.log), v_place.head, v_from.total + dispatch.max_events) into v_to;
    end if;
    if v_to.total > v_from.total then
        if not (dispatch.work).all_rows then
            v_counts := cascade_internal.cut_chunks(dispatch.log, dispatch.work, v_from, v_to, v_at);
            v_moved := v_counts[1];
        end if;
        if (dispatch.work).all_rows or v_counts[2] > 0 then
            if not (dispatch.work).all_rows then
                v_where := v_where || ' and cascade_internal.has_options(e.headers)';
            end if;
            v_moved := v_moved + cascade_internal.place_rows(dispatch.work, cascade_internal.batch_arms(
                dispatch.log, v_from, v_to,
                'e.id, e."time", e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, 0 as attempt, null::timestamptz as due',
                v_where || cascade_internal.selector_clause(dispatch.work, 'is true')), v_at);
        end if;
        if (dispatch.work).all_rows and (dispatch.work).selector is not null then
            execute format('select array[0, 0, count(*)] from (%s) as e', cascade_internal.batch_arms(
                dispatch.log, v_from, v_to, '1', v_where || cascade_internal.selector_clause(dispatch.work, 'is null'))) into v_counts;
        end if;
        if v_counts[3] > 0 then
            update cascade_internal.work_count as c set unreadable = c.unreadable + v_counts[3] where c.subscription_id = v_id;
        end if;
    end if;
    v_place.n := v_place.n + 1;
    v_place.head := v_to.tick_id;
    v_place.head_total := v_to.total;
    v_place.tick_id := coalesce(cascade_internal.oldest_chunk_tick(v_id), v_to.tick_id);
    v_place.action := 'dispatch';
    v_place.batch_id := null;
    v_place.at := v_at;
    perform cascade_internal.append_position(dispatch.log, v_place);
    if v_moved > 0 then
        perform pg_notify('cascade_work_' || v_id, '');
    end if;
    return v_moved;
end
$$;
comment on function cascade_internal.dispatch(cascade_internal.queue, cascade_internal.work_consumer, integer) is 'Moves new events to one consumer.';

create or replace function cascade_internal.selector_clause(work cascade_internal.work_consumer, is_what text)
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return case when (selector_clause.work).selector is null then '' else
        format(' and cascade_internal.selected(%L, e.id, e."time", e.type, e.key, e.payload, e.headers) %s',
               (selector_clause.work).selector, selector_clause.is_what) end;
end
$$;
comment on function cascade_internal.selector_clause(cascade_internal.work_consumer, text) is 'A consumer''s selector as a condition on events.';

-- One pass over new events: plain ones that match are cut into chunks, the others are counted: {plain, rows, unreadable}.
create or replace function cascade_internal.cut_chunks(
    log cascade_internal.queue, work cascade_internal.work_consumer, from_tick cascade_internal.tick, to_tick cascade_internal.tick, at timestamptz)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_id     constant integer := (cut_chunks.work).subscription_id;
    v_last   bigint;
    v_counts bigint[];
begin
    select c.no into v_last from cascade_internal.work_chunk as c where c.subscription_id = v_id order by c.no desc limit 1;
    v_last := greatest(v_last, cascade_internal.work_register('low', v_id), cascade_internal.work_register('hint', v_id)) / 1000 * 1000;
    execute format($sql$
        with event as (%s),
        plain as (
            select e.id, e.tid, e.txid, e.slot, (row_number() over (order by e.id) - 1) / %s as part
              from event as e where e.is_wanted and not e.is_row),
        piece as (
            select p.part, p.slot, min(p.txid) as txid_from, max(p.txid) as txid_to, count(*) as events, min(p.id) as first_id,
                   max(p.id) as last_id, min(p.tid) as first_tid, max(p.tid) as last_tid, array_agg(p.id order by p.id) as ids,
                   array_agg(p.tid order by p.id) as tids
              from plain as p group by p.part, p.slot),
        chunk as (
            insert into cascade_internal.work_chunk (subscription_id, no, slot, from_tick, to_tick, txid_from, txid_to, cut_at, events,
                                                     first_id, last_id, first_tid, last_tid, ids, tids)
            select %s, %s + 1000 * row_number() over (order by p.part, p.slot), p.slot, %s, %s, p.txid_from, p.txid_to, %L, p.events,
                   p.first_id, p.last_id, case when x.is_dense then p.first_tid end, case when x.is_dense then p.last_tid end,
                   case when p.last_id - p.first_id + 1 > p.events then p.ids end, case when not x.is_dense then p.tids end
              from piece as p
             cross join lateral (
                select (p.last_tid::text::point)[0] - (p.first_tid::text::point)[0] <= p.events / 4 + 8 as is_dense) as x)
        select array[count(*) filter (where e.is_wanted and not e.is_row), count(*) filter (where e.is_wanted and e.is_row),
                     count(*) filter (where e.is_wanted is null)]
          from event as e
        $sql$,
        cascade_internal.batch_arms(cut_chunks.log, cut_chunks.from_tick, cut_chunks.to_tick, format(
            'e.id, e.ctid as tid, e.txid, e.slot::text::smallint as slot,'
            ' e.headers is not null and cascade_internal.has_options(e.headers) as is_row, %s as is_wanted',
            case when (cut_chunks.work).selector is null then 'true' else substr(cascade_internal.selector_clause(cut_chunks.work, ''), 6) end),
            'e.origin is distinct from ''.cascade'''),
        cascade_internal.work_option(cut_chunks.work, 'chunk_size'), v_id, v_last, (cut_chunks.from_tick).tick_id, (cut_chunks.to_tick).tick_id, cut_chunks.at)
       into v_counts;
    return v_counts;
end
$$;
comment on function cascade_internal.cut_chunks(cascade_internal.queue, cascade_internal.work_consumer, cascade_internal.tick, cascade_internal.tick, timestamptz)
    is 'Cuts new plain events into chunks, and counts the others.';

-- Where the consumer stood when its oldest unfinished chunk was cut; null when all are done.
create or replace function cascade_internal.oldest_chunk_tick(subscription_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    return (select c.from_tick
              from cascade_internal.work_chunk as c
             where c.subscription_id = oldest_chunk_tick.subscription_id
               and c.no >= cascade_internal.work_register('low', oldest_chunk_tick.subscription_id)
               and c.state <> 'd'
             order by c.no
             limit 1);
end
$$;
comment on function cascade_internal.oldest_chunk_tick(integer) is 'The tick before a consumer''s oldest unfinished chunk.';

-- Sets both registers where they belong: low at the first chunk that is not done, the hint at the first that is free.  A chunk
-- that becomes free by a rollback after this look is below the hint until the next one.
create or replace function cascade_internal.mend_registers(subscription_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id   constant integer := mend_registers.subscription_id;
    v_low  bigint := cascade_internal.work_register('low', v_id);
    v_open bigint;
    v_last bigint;
begin
    select c.no into v_last from cascade_internal.work_chunk as c where c.subscription_id = v_id and c.no > 0 order by c.no desc limit 1;
    select c.no into v_open
      from cascade_internal.work_chunk as c
     where c.subscription_id = v_id and c.no >= v_low and c.state <> 'd'
     order by c.no limit 1;
    v_open := coalesce(v_open, greatest(v_low, v_last + 1));
    if v_open > v_low then
        perform cascade_internal.set_work_register('low', v_id, v_open);
    end if;
    select c.no into v_low
      from cascade_internal.work_chunk as c
     where c.subscription_id = v_id and c.no >= v_open and c.state = 'f'
     order by c.no limit 1;
    v_low := coalesce(v_low, v_last + 1, v_open);
    if v_low <> cascade_internal.work_register('hint', v_id) then
        perform cascade_internal.set_work_register('hint', v_id, v_low);
    end if;
end
$$;
comment on function cascade_internal.mend_registers(integer) is 'Sets the registers of a consumer in work mode where they belong.';

create or replace function cascade_internal.dispatched_tick(work cascade_internal.work_consumer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select (cascade_internal.newest_position(q, (dispatched_tick.work).subscription_id)).head
              from cascade_internal.queue as q where q.queue_id = (dispatched_tick.work).queue_id);
end
$$;
comment on function cascade_internal.dispatched_tick(cascade_internal.work_consumer) is 'The tick up to which a consumer was given its messages.';
