-- Ranges of ticks, for readers that keep their own place: each is one query, on every node the same rows.

-- cascade.find_tick(queue, at): a place in a queue as a tick id.  at is earliest or latest, the first and the
-- last tick held; a tick id; or a timestamp, for the last tick up to then.  Raises QC402 when what
-- follows that place is no longer held whole.
create or replace function cascade.find_tick(queue text, at text)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(find_tick.queue);
    v_tick  cascade_internal.tick;
begin
    perform cascade_internal.check_keeps_events(v_queue);
    if find_tick.at = 'latest' then
        return (cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots)).tick_id;
    elsif find_tick.at = 'now' then
        raise exception 'now is no place in queue "%" for who reads a range', find_tick.queue
            using errcode = 'QC003', hint = 'Pass earliest, latest, a tick id or a timestamp.';
    end if;
    v_tick := cascade_internal.resolve_tick(v_queue, find_tick.at);
    if find_tick.at <> 'earliest' and find_tick.at !~ '^[0-9]{1,18}$'
       and v_tick."time" > find_tick.at::timestamptz and v_tick.prev_tick is not null then
        raise exception 'queue "%" no longer holds all events since %', find_tick.queue, find_tick.at
            using errcode = 'QC402', hint = format('They begin at tick %s, of %s: pass earliest to begin there.', v_tick.tick_id, v_tick."time");
    end if;
    return v_tick.tick_id;
end
$$;
comment on function cascade.find_tick(text, text) is 'A place in a queue (earliest, latest, a tick id, a timestamp) as a tick id.';

-- cascade.range_ticks(queue, from_tick, to_tick, max_ticks): from_tick and the ticks that follow it, up to to_tick and at
-- most max_ticks of them; null is no limit.  total counts events, so the difference of two ticks says how
-- many are between them.
create or replace function cascade.range_ticks(queue text, from_tick bigint, to_tick bigint default null, max_ticks bigint default null)
returns table (tick_id bigint, prev_tick bigint, "time" timestamptz, high bigint, "open" bigint[], total bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(range_ticks.queue);
begin
    perform cascade_internal.whole_tick(v_queue, range_ticks.from_tick);
    return query execute format(
        'select t.tick_id, t.prev_tick, t."time", t.high, t."open", t.total from (%s) as t'
        ' where t.tick_id >= %s and t.tick_id <= %s order by t.tick_id limit %s', cascade_internal.held_ticks(v_queue),
        range_ticks.from_tick, coalesce(range_ticks.to_tick, 9223372036854775807), coalesce((range_ticks.max_ticks + 1)::text, 'all'));
end
$$;
comment on function cascade.range_ticks(text, bigint, bigint, bigint) is 'The ticks of a range, with what is needed to tell which of them an event belongs to.';

-- cascade.range_query(queue, from_tick, to_tick): the query that reads the events after from_tick up to to_tick.
-- Raises QC402 when they are no longer held whole.  TRUNCATE obeys no snapshot, so who has read them asks
-- once more, in a new statement: if this does not raise, all of them were there.
create or replace function cascade.range_query(queue text, from_tick bigint, to_tick bigint)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(range_query.queue);
    v_to    cascade_internal.tick := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, range_query.to_tick);
    v_from  cascade_internal.tick := cascade_internal.whole_tick(v_queue, range_query.from_tick);
begin
    if v_to.tick_id is null or v_to.tick_id < v_from.tick_id then
        raise exception 'queue "%" has no tick % after tick %', range_query.queue, range_query.to_tick, range_query.from_tick
            using errcode = 'QC103', hint = 'The view cascade.ticks lists them.';
    end if;
    return cascade_internal.batch_arms(v_queue, v_from, v_to,
        'e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id', 'e.origin is distinct from ''.cascade''');
end
$$;
comment on function cascade.range_query(text, bigint, bigint) is 'The query for the events of a range of ticks.';

-- A tick by id, all events after which are held; else QC402, or QC103 for one that never was.
create or replace function cascade_internal.whole_tick(queue cascade_internal.queue, tick_id bigint)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick   constant cascade_internal.tick := cascade_internal.find_tick((whole_tick.queue).queue_id, (whole_tick.queue).slots, whole_tick.tick_id);
    v_newest constant cascade_internal.tick := cascade_internal.newest_tick((whole_tick.queue).queue_id, (whole_tick.queue).slots);
begin
    perform cascade_internal.check_keeps_events(whole_tick.queue);
    if v_tick.tick_id is not null and cascade_internal.first_gen((whole_tick.queue).queue_id) <= v_tick.gen_low then
        return v_tick;
    elsif v_tick.tick_id is null and (whole_tick.tick_id is null or whole_tick.tick_id > v_newest.tick_id) then
        raise exception 'queue "%" has no tick %', (whole_tick.queue).name, whole_tick.tick_id
            using errcode = 'QC103', hint = format('The last one is %s; the view cascade.ticks lists them.', v_newest.tick_id);
    end if;
    raise exception 'queue "%" no longer holds all events after tick %', (whole_tick.queue).name, whole_tick.tick_id
        using errcode = 'QC402', hint = 'Rotation emptied their partition.  A consumer at that tick would have kept them: cascade.subscribe().';
end
$$;
comment on function cascade_internal.whole_tick(cascade_internal.queue, bigint) is 'A tick after which everything is held.';
