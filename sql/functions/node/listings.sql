-- What the views of the cascade show.
create or replace function cascade_internal.list_nodes()
returns table ("set" text, node text, role text, provider text, root text, state text, answer text, answer_detail text,
               answered_at timestamptz, error text, error_at timestamptz, generation bigint, term bigint, term_uid uuid, tick_id bigint, tick_at timestamptz,
               tick_age_seconds numeric, events bigint, events_per_second numeric, chain text, watermark bigint, held_by text, held_since timestamptz, held_bytes numeric, bytes numeric,
               set_uid uuid, queue_id integer, file_provider text, fence text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node;
    v_queue cascade_internal.queue;
    v_tick  cascade_internal.tick;
    v_least record;
begin
    for v_node in select n.* from cascade_internal.node as n join cascade_internal.queue as q using (queue_id) order by q.name loop
        select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_node.queue_id;
        v_tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
        list_nodes."set" := v_queue.name;
        list_nodes.node := v_node.node;
        list_nodes.role := cascade_internal.shown_role(v_node);
        list_nodes.provider := v_node.provider;
        list_nodes.root := cascade_internal.root_name(v_node.queue_id);
        list_nodes.state := case when v_node.answer in ('behind', 'on path') then v_node.state else coalesce(v_node.answer, v_node.state) end;
        -- A fence that is not up yet waits for writers, and says for whom.
        list_nodes.fence := (select f.cause || coalesce(': ' || f.detail, '')
                                    || case when f.is_up then '' else coalesce('; it waits for ' || cascade.name_writers(v_queue.name), '') end
                               from cascade_internal.fence as f where f.queue_id = v_node.queue_id);
        list_nodes.state := case when list_nodes.fence is not null then 'fenced' else list_nodes.state end;
        list_nodes.answer := v_node.answer;
        list_nodes.answer_detail := v_node.answer_detail;
        list_nodes.answered_at := v_node.answered_at;
        list_nodes.error := v_node.error;
        list_nodes.error_at := v_node.error_at;
        list_nodes.generation := v_node.generation;
        list_nodes.term := v_tick.tick_id / 1000000000000;
        list_nodes.term_uid := v_tick.term_uid;
        list_nodes.tick_id := v_tick.tick_id;
        list_nodes.tick_at := v_tick."time";
        list_nodes.tick_age_seconds := round(extract(epoch from clock_timestamp() - v_tick."time")::numeric, 3);
        list_nodes.events := v_tick.total;
        list_nodes.events_per_second := cascade_internal.recent_rate(v_queue, v_tick);
        list_nodes.chain := encode(v_tick.chain, 'hex');
        list_nodes.watermark := cascade_internal.watermark(v_queue);
        -- Only the root hears of everybody.
        select p.node, p.tick_id, p.heard_at into v_least
          from cascade_internal.member_positions(v_queue) as p
         where p.state = 'live' and v_node.role = 'root' and p.tick_id < v_tick.tick_id
         order by p.tick_id, p.node limit 1;
        list_nodes.held_by := v_least.node;
        list_nodes.held_since := (cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, v_least.tick_id))."time";
        select r.bytes_held into list_nodes.held_bytes
          from cascade_internal.list_rotation() as r where r.queue = v_queue.name;
        list_nodes.bytes := (select sum(pg_total_relation_size(format('cascade_internal.event_%s_%s', v_queue.queue_id, s)::regclass))
                               from generate_series(0, v_queue.slots - 1) as s);
        list_nodes.set_uid := v_node.set_uid;
        list_nodes.queue_id := v_node.queue_id;
        list_nodes.file_provider := v_node.file_provider;
        return next;
    end loop;
end
$$;
comment on function cascade_internal.list_nodes() is 'This database''s nodes.';

-- Events per second over the last ten seconds, as far as ticks tell.
create or replace function cascade_internal.recent_rate(queue cascade_internal.queue, last cascade_internal.tick)
returns numeric
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_total bigint;
begin
    execute format('select min(t.total) from (select x.total, x."time" from cascade_internal.tick_%s_%s as x order by x.tick_id desc limit 1000) as t'
                   ' where t."time" > clock_timestamp() - interval ''10 s''', (recent_rate.queue).queue_id, (recent_rate.last).gen % (recent_rate.queue).slots)
       into v_total;
    return round(coalesce((recent_rate.last).total - v_total, 0) / 10.0, 1);
end
$$;
comment on function cascade_internal.recent_rate(cascade_internal.queue, cascade_internal.tick) is 'Events per second, lately.';

create or replace function cascade_internal.list_members()
returns table ("set" text, node text, node_no smallint, role text, state text, generation bigint, tick_id bigint, told_at timestamptz,
               heard_at timestamptz, is_here boolean, is_waiting boolean, since_tick bigint, changed_at timestamptz, location jsonb)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    for v_queue in select q.* from cascade_internal.queue as q join cascade_internal.node as n using (queue_id) order by q.name loop
        return query
            select v_queue.name, m.node, m.node_no, cascade_internal.member_role(m, v_queue.is_combined), m.state, p.generation, p.tick_id, p.at, p.heard_at, p.is_own, p.is_waiting,
                   m.since_tick, m.changed_at, m.location
              from cascade_internal.member as m
              join cascade_internal.member_positions(v_queue) as p on p.node = m.node
             where m.queue_id = v_queue.queue_id
             order by m.node_no;
    end loop;
end
$$;
comment on function cascade_internal.list_members() is 'The members of this database''s sets.';

create or replace function cascade_internal.member_role(member cascade_internal.member, is_combined boolean)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select case when (member_role.member).into_set is not null then 'merge-leaf'
                when (member_role.member).role = 'root' and member_role.is_combined then 'combined-root' else (member_role.member).role end
$$;
comment on function cascade_internal.member_role(cascade_internal.member, boolean) is 'A member''s role as people call it.';

create or replace function cascade_internal.list_terms()
returns table ("set" text, number bigint, uid uuid, node text, parent_uid uuid, fork_tick bigint, cause text, reason text, at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select q.name, t.number, t.uid, t.node, t.parent_uid, (t.fork->>'tick_id')::bigint, t.cause, t.reason, t.at
      from cascade_internal.term as t join cascade_internal.queue as q using (queue_id)
     order by q.name, t.number, t.uid
$$;
comment on function cascade_internal.list_terms() is 'The terms known here.';
