-- Watermarks, flat: every member's position reaches the root unchanged, the root takes the least.

-- cascade_internal.hear(queue_id, from_node, rows): stores what was told.  Per member the greatest
-- generation counts, and in it the greatest tick.  Rows of members that are unknown or dropped,
-- or of a generation before the member's, are not heard.
create or replace function cascade_internal.hear(queue_id integer, from_node text, rows jsonb)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    insert into cascade_internal.told as t (queue_id, node, generation, term_uid, tick_id, is_direct, is_waiting, at)
    select hear.queue_id, x.node, x.generation, x.term_uid, x.tick_id, x.node = hear.from_node, coalesce(x.is_waiting, false), x.at
      from jsonb_populate_recordset(null::cascade_internal.told, hear.rows) as x
      join cascade_internal.member as m on m.queue_id = hear.queue_id and m.node = x.node
     where m.state = 'live'
       and x.generation >= m.generation
     order by x.node
    on conflict on constraint told_pkey do update
       set generation = excluded.generation, term_uid = excluded.term_uid,
           tick_id = case when excluded.generation > t.generation then excluded.tick_id else greatest(t.tick_id, excluded.tick_id) end,
           is_direct = t.is_direct or excluded.is_direct, is_waiting = excluded.is_waiting, at = excluded.at, heard_at = clock_timestamp()
     where excluded.generation > t.generation
        or (excluded.generation = t.generation
            -- Who stands further says so later, whatever the clocks say: they tell equal positions apart only.
            and (excluded.tick_id > t.tick_id or excluded.is_direct > t.is_direct
                 or (excluded.at >= t.at and excluded.is_waiting <> t.is_waiting)
                 or excluded.at > t.at + interval '1 s'));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function cascade_internal.hear(integer, text, jsonb) is 'Stores what members told, the greatest of each.';

-- cascade.tell(set, node, rows): a subscriber tells its provider how far it and everyone below it has
-- come, as cascade.report() has it.  Positions that this node cannot have given are refused.
create or replace function cascade.tell("set" text, node text, rows jsonb)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(tell."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(tell."set");
    v_last  bigint;
begin
    if exists (select from cascade_internal.member as m
                where m.queue_id = v_queue.queue_id and m.node = tell.node and m.state <> 'live') then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', tell.node));
    end if;
    perform cascade_internal.commit_durably();
    v_last := (cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots)).tick_id;
    -- At the root nobody can be ahead; elsewhere somebody may come from a provider that was.
    return cascade_internal.hear(v_queue.queue_id, tell.node,
        (select coalesce(jsonb_agg(r), '[]') from jsonb_array_elements(tell.rows) as r
          where (v_node.role <> 'root' or (r->>'tick_id')::bigint <= v_last)
            -- Nor can anybody stand beyond the end of a term.
            and not exists (select from cascade_internal.term as t
                             where t.queue_id = v_queue.queue_id and t.voided_by is null and t.parent_uid = (r->>'term_uid')::uuid
                               and (t.fork->>'tick_id')::bigint < (r->>'tick_id')::bigint)));
end
$$;
comment on function cascade.tell(text, text, jsonb) is 'Hears how far a subscriber and those below it have come.';

-- cascade.report(set): how far this node and everyone below it has come, to be told upwards.  A node's
-- position counts its consumers too, so that they find their place wherever they are moved to.
create or replace function cascade.report("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(report."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(report."set");
    v_tick  cascade_internal.tick := cascade_internal.needed_tick(v_queue);
begin
    return jsonb_build_object('node', v_node.node, 'provider', v_node.provider, 'generation', v_node.generation, 'rows',
        (select jsonb_agg(r) from (
        select jsonb_build_object('node', v_node.node, 'generation', cascade_internal.spoken_generation(v_node), 'term_uid', v_tick.term_uid, 'tick_id', v_tick.tick_id,
                                  'is_waiting', cascade_internal.waits_for_watermark(v_queue), 'at', clock_timestamp())
        union all
        select to_jsonb(t) - 'queue_id' - 'is_direct' - 'heard_at'
          from cascade_internal.told as t where t.queue_id = v_queue.queue_id and t.node <> v_node.node) as x(r)));
end
$$;
comment on function cascade.report(text) is 'How far this node and everyone below it has come.';

-- The tick below which this node needs nothing from others: its own, or that of its slowest movable consumer.
create or replace function cascade_internal.needed_tick(queue cascade_internal.queue)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_last cascade_internal.tick := cascade_internal.newest_tick((needed_tick.queue).queue_id, (needed_tick.queue).slots);
    v_id   bigint;
begin
    select min(s.tick_id) into v_id
      from cascade_internal.consumer_state(needed_tick.queue) as s
     where s.consumer <> '.global_watermark'
       and s.is_movable;
    if v_id < v_last.tick_id then
        return cascade_internal.find_tick((needed_tick.queue).queue_id, (needed_tick.queue).slots, v_id);
    end if;
    return v_last;
end
$$;
comment on function cascade_internal.needed_tick(cascade_internal.queue) is 'The position of this node, its consumers counted.';

create or replace function cascade_internal.waits_for_watermark(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_oldest cascade_internal.generation;
begin
    select g.* into v_oldest
      from cascade_internal.generation as g where g.queue_id = (waits_for_watermark.queue).queue_id
     order by g.gen limit 1;
    if v_oldest.released or v_oldest.gen = cascade_internal.current_gen((waits_for_watermark.queue).queue_id, (waits_for_watermark.queue).slots) then
        return false;
    end if;
    -- "tick": on an idle set no tick comes until somebody asks; a published watermark brings one.
    return (select b.kind in ('watermark', 'tick') from cascade_internal.rotation_blocker(waits_for_watermark.queue, v_oldest.gen) as b);
end
$$;
comment on function cascade_internal.waits_for_watermark(cascade_internal.queue) is 'Whether rotation waits for the global watermark to move.';

create or replace function cascade_internal.watermark(queue cascade_internal.queue)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select s.tick_id from cascade_internal.consumer_state(watermark.queue) as s where s.consumer = '.global_watermark');
end
$$;
comment on function cascade_internal.watermark(cascade_internal.queue) is 'The global watermark as this node knows it.';

-- Moves the watermark of this node forward; it never goes back, nor beyond what is here.
create or replace function cascade_internal.move_watermark(queue cascade_internal.queue, tick_id bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_tick cascade_internal.tick := cascade_internal.find_tick((move_watermark.queue).queue_id, (move_watermark.queue).slots, move_watermark.tick_id);
begin
    if v_tick.tick_id > cascade_internal.watermark(move_watermark.queue) then
        perform cascade_internal.stand_on(move_watermark.queue, '.global_watermark', v_tick);
    end if;
end
$$;
comment on function cascade_internal.move_watermark(cascade_internal.queue, bigint) is 'Obeys a published watermark.';

-- Where every member stands, as far as this node knows; what counts for the watermark.
create or replace function cascade_internal.member_positions(queue cascade_internal.queue)
returns table (node text, role text, state text, generation bigint, tick_id bigint, is_waiting boolean, at timestamptz, heard_at timestamptz, is_own boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select m.node, m.role, m.state, coalesce(t.generation, m.generation),
               case when n.node is not null then (cascade_internal.needed_tick(member_positions.queue)).tick_id
                    when t.generation >= m.generation then t.tick_id else m.since_tick end,
               coalesce(t.is_waiting, false), t.at, t.heard_at, n.node is not null
          from cascade_internal.member as m
          left join cascade_internal.told as t on t.queue_id = m.queue_id and t.node = m.node
          left join cascade_internal.node as n on n.queue_id = m.queue_id and n.node = m.node
         where m.queue_id = (member_positions.queue).queue_id;
end
$$;
comment on function cascade_internal.member_positions(cascade_internal.queue) is 'Where every member stands, as far as is known here.';

-- cascade.advance_watermark(set): the root computes the global watermark, and publishes it when it has
-- moved past events, or when somebody's rotation waits for it.  Beside it, it publishes where its
-- own consumers stand, when they have moved, in case it is lost.  An idle set publishes nothing.
create or replace function cascade.advance_watermark("set" text)
returns table (tick_id bigint, is_published boolean, held_by text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(advance_watermark."set");
    v_queue cascade_internal.queue;
    v_now   bigint;
    v_least record;
    v_most  bigint;
    v_tick  cascade_internal.tick;
    v_old   cascade_internal.tick;
    v_waits boolean;
begin
    perform cascade_internal.check_read_committed('the watermark');
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_root.queue_id;
    v_now := cascade_internal.watermark(v_queue);
    select p.tick_id, p.node into v_least
      from cascade_internal.member_positions(v_queue) as p where p.state = 'live' order by p.tick_id, p.node limit 1;
    -- What only the root has is not removed, unless it is the only carrier there is.
    select max(coalesce(t.tick_id, 0)) into v_most
      from cascade_internal.member as m
      left join cascade_internal.told as t on t.queue_id = m.queue_id and t.node = m.node
     where m.queue_id = v_queue.queue_id and m.role <> 'leaf' and m.state <> 'dropped' and m.node <> v_root.node;
    v_waits := cascade_internal.waits_for_watermark(v_queue)
               or exists (select from cascade_internal.member_positions(v_queue) as p where p.state = 'live' and p.is_waiting);
    v_tick := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, least(v_least.tick_id, v_most));
    v_old := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, v_now);
    advance_watermark.tick_id := v_now;
    advance_watermark.held_by := v_least.node;
    advance_watermark.is_published := false;
    -- A root that is fenced, or has offered its reign, publishes nothing more.
    if v_tick.tick_id > v_now and (v_waits or v_tick.total > v_old.total)
       and not v_queue.is_copy and not exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id) then
        perform cascade_internal.commit_durably();
        perform from cascade_internal.queue as q where q.queue_id = v_queue.queue_id for no key update;
        perform cascade_internal.move_watermark(v_queue, v_tick.tick_id);
        perform cascade_internal.post_control(v_queue, 'cascade.global-watermark',
            jsonb_build_object('tick_id', v_tick.tick_id, 'term_uid', v_tick.term_uid, 'held_by', v_least.node));
        advance_watermark.tick_id := v_tick.tick_id;
        advance_watermark.is_published := true;
    end if;
    perform cascade_internal.publish_consumers(v_queue, v_root.node);
    return next;
end
$$;
comment on function cascade.advance_watermark(text) is 'Computes the global watermark at the root, and publishes it when that helps.';

-- Who copies from here, and the generation each still needs.  Whatever lies above the global
-- watermark is held anyway; this is for those below it: new ones, and ones restored from a backup.
-- Such a node tells all the time, so one that has been silent for an hour copies elsewhere now.
create or replace function cascade_internal.direct_subscribers(queue cascade_internal.queue)
returns table (node text, tick_id bigint, gen_low bigint, heard_at timestamptz)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        select t.node, t.tick_id,
               case when t.tick_id > cascade_internal.newest_tick_id(direct_subscribers.queue) then 9223372036854775807
                    else (cascade_internal.find_tick((direct_subscribers.queue).queue_id, (direct_subscribers.queue).slots, t.tick_id)).gen_low end,
               t.heard_at
          from cascade_internal.told as t
          join cascade_internal.member as m on m.queue_id = t.queue_id and m.node = t.node
         where t.queue_id = (direct_subscribers.queue).queue_id
           and t.is_direct
           and t.heard_at > clock_timestamp() - interval '1 hour'
           and m.state = 'live';
end
$$;
comment on function cascade_internal.direct_subscribers(cascade_internal.queue) is 'Who copies from this node, and from where on.';

create or replace function cascade_internal.newest_tick_id(queue cascade_internal.queue)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (cascade_internal.newest_tick((newest_tick_id.queue).queue_id, (newest_tick_id.queue).slots)).tick_id;
end
$$;
comment on function cascade_internal.newest_tick_id(cascade_internal.queue) is 'The id of the last tick of a queue.';

-- cascade.forget_subscriber(set, node): it copies from another node now; nothing is held for it here.
create or replace function cascade.forget_subscriber("set" text, node text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(forget_subscriber."set");
begin
    update cascade_internal.told as t set is_direct = false
     where t.queue_id = v_node.queue_id and t.node = forget_subscriber.node and t.is_direct;
    return found;
end
$$;
comment on function cascade.forget_subscriber(text, text) is 'Holds nothing any more for a node that copies elsewhere now.';
