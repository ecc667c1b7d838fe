-- The consumers of a root that is lost.  Its positions are published beside the watermark, and the new
-- root makes the consumers anew from there: they may see again what they had finished since then, and
-- miss nothing.  Only what they had put back for later is lost with the root: in work mode, messages with a row of their own.

-- cascade_internal.publish_consumers(queue, node): the root publishes where its movable consumers stand, when one has
-- moved past events, came or went, and in the opening tick of its term.  An idle set publishes nothing.
create or replace function cascade_internal.publish_consumers(queue cascade_internal.queue, node text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id  constant integer := (publish_consumers.queue).queue_id;
    v_now jsonb;
begin
    -- A root that is fenced, or has offered its reign, publishes nothing more.
    if (publish_consumers.queue).is_copy or exists (select from cascade_internal.fence as f where f.queue_id = v_id) then
        return false;
    end if;
    select coalesce(jsonb_agg(jsonb_build_object(
               'consumer', s.consumer, 'tick_id', s.tick_id, 'total', s.total,
               'retries', (select count(*) from cascade_internal.retry as r where r.subscription_id = s.subscription_id)
                          + cascade_internal.count_rows(s.subscription_id),
               'work', (select jsonb_build_object('selector', w.selector::text, 'options', w.options)
                          from cascade_internal.work_consumer as w where w.subscription_id = s.subscription_id),
               'roles', (select coalesce(jsonb_agg(g.role_name order by g.role_name), '[]') from cascade_internal.consumer_grant as g
                          where g.queue_id = v_id and g.consumer = s.consumer)) order by s.consumer), '[]')
      into v_now
      from cascade_internal.consumer_state(publish_consumers.queue) as s
     where s.is_movable and s.consumer not like '.%';
    if not exists (select
                     from jsonb_populate_recordset(null::cascade_internal.root_consumer, v_now) as c
                     full join (select r.* from cascade_internal.root_consumer as r where r.queue_id = v_id and r.node = publish_consumers.node) as o
                       on o.consumer = c.consumer
                    where (c.consumer, c.total, c.roles, c.work, (publish_consumers.queue).term_uid)
                          is distinct from (o.consumer, o.total, o.roles, o.work, o.term_uid)) then
        return false;
    end if;
    perform cascade_internal.commit_durably();
    perform from cascade_internal.queue as q where q.queue_id = v_id for no key update;
    v_now := jsonb_build_object('node', publish_consumers.node, 'term_uid', (publish_consumers.queue).term_uid, 'consumers', v_now);
    perform cascade_internal.learn_consumers(v_id, v_now);
    perform cascade_internal.post_control(publish_consumers.queue, 'cascade.consumers', v_now);
    return true;
end
$$;
comment on function cascade_internal.publish_consumers(cascade_internal.queue, text) is 'Publishes where the consumers of the root stand, if that has changed.';

create or replace function cascade_internal.learn_consumers(queue_id integer, published jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.root_consumer as r
     where r.queue_id = learn_consumers.queue_id
       and r.node = learn_consumers.published->>'node'
       and not exists (select from jsonb_array_elements(learn_consumers.published->'consumers') as c where c->>'consumer' = r.consumer);
    insert into cascade_internal.root_consumer as r (queue_id, node, consumer, tick_id, total, retries, roles, work, term_uid)
    select learn_consumers.queue_id, learn_consumers.published->>'node', c.consumer, c.tick_id, c.total, coalesce(c.retries, 0),
           coalesce(c.roles, '{}'), nullif(c.work, 'null'), (learn_consumers.published->>'term_uid')::uuid
      from jsonb_populate_recordset(null::cascade_internal.root_consumer, learn_consumers.published->'consumers') as c
    on conflict on constraint root_consumer_pkey do update
       set tick_id = excluded.tick_id, total = excluded.total, retries = excluded.retries, roles = excluded.roles,
           work = excluded.work, term_uid = excluded.term_uid, at = excluded.at;
end
$$;
comment on function cascade_internal.learn_consumers(integer, jsonb) is 'Stores where the consumers of a root stand.';

-- What a new member is told: it may begin after the last publication.
create or replace function cascade_internal.known_consumers(queue_id integer, node text)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_build_object('node', known_consumers.node, 'term_uid', (select q.term_uid from cascade_internal.queue as q where q.queue_id = known_consumers.queue_id),
        'consumers', (select coalesce(jsonb_agg(to_jsonb(r) - 'queue_id' - 'node' - 'at'), '[]') from cascade_internal.root_consumer as r
                       where r.queue_id = known_consumers.queue_id and r.node = known_consumers.node));
end
$$;
comment on function cascade_internal.known_consumers(integer, text) is 'Where the consumers of a root stood, for a new member.';

-- cascade_internal.recreate_consumers(queue, node, cause): called at the new root, when its queue takes inserts, for the
-- consumers of a root that is lost.  One that is here already is left alone.  A position that is no longer held
-- becomes the first tick that is: what lies between was finished, or it would be held.  What was done is
-- published, so that the old root, should it return, sends its readers here.  After a switchover
-- nothing is to be done: the old root goes on serving its consumers.  May be called again.
create or replace function cascade_internal.recreate_consumers(queue cascade_internal.queue, node text, cause text)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_own   constant text := (select n.node from cascade_internal.node as n where n.queue_id = (recreate_consumers.queue).queue_id);
    v_first cascade_internal.tick;
    v_tick  cascade_internal.tick;
    v_was   cascade_internal.root_consumer;
    v_id    integer;
    v_done  jsonb;
    v_all   jsonb := '[]';
begin
    if recreate_consumers.cause <> 'switchover' and recreate_consumers.node <> v_own then
        v_first := cascade_internal.hold_tick(recreate_consumers.queue, 'earliest');
        for v_was in
            select r.* from cascade_internal.root_consumer as r
             where r.queue_id = (recreate_consumers.queue).queue_id and r.node = recreate_consumers.node
             order by r.consumer
        loop
            v_done := jsonb_build_object('consumer', v_was.consumer, 'published_tick', v_was.tick_id, 'published_at', v_was.at, 'retries_lost', v_was.retries);
            select s.tick_id into v_tick.tick_id
              from cascade_internal.consumer_state(recreate_consumers.queue) as s where s.consumer = v_was.consumer;
            if found then
                v_all := v_all || jsonb_build_array(v_done || jsonb_build_object('state', 'left alone', 'tick_id', v_tick.tick_id));
                continue;
            end if;
            execute format('select * from (%s) as t where t.tick_id = %s', cascade_internal.ticks_query(recreate_consumers.queue), v_was.tick_id)
               into v_tick;
            v_done := v_done || jsonb_build_object('state', case when v_tick.tick_id is null then 'first held tick' else 're-created' end);
            if v_tick.tick_id is null then
                v_tick := v_first;
            end if;
            delete from cascade_internal.consumer_move as m
             where m.queue_id = (recreate_consumers.queue).queue_id and m.consumer = v_was.consumer;
            v_id := cascade_internal.place_consumer(recreate_consumers.queue, v_was.consumer, v_tick, 'recreate');
            if v_was.work is not null then
                perform cascade_internal.unpack_work(recreate_consumers.queue, v_id, v_was.work);
            end if;
            v_all := v_all || jsonb_build_array(
                v_done || jsonb_build_object('tick_id', v_tick.tick_id)
                || cascade_internal.grant_roles((recreate_consumers.queue).name, v_was.consumer, v_was.roles));
        end loop;
        if v_all @? '$[*] ? (@.state != "left alone")' then
            perform cascade_internal.post_control(recreate_consumers.queue, 'cascade.recreated', jsonb_build_object(
                'from', recreate_consumers.node, 'to', v_own, 'cause', recreate_consumers.cause, 'consumers', v_all));
        end if;
    end if;
    return jsonb_build_object('node', recreate_consumers.node, 'cause', recreate_consumers.cause, 'guarantee', 'at least once', 'consumers', v_all);
end
$$;
comment on function cascade_internal.recreate_consumers(cascade_internal.queue, text, text) is 'Makes the consumers of a lost root anew, from what it published.';

-- The old root has returned, and reads in the log that its consumers were made anew elsewhere.
create or replace function cascade_internal.release_consumers(queue cascade_internal.queue, recreated jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from cascade_internal.node as n
                    where n.queue_id = (release_consumers.queue).queue_id and n.node = release_consumers.recreated->>'from') then
        return;
    end if;
    insert into cascade_internal.consumer_move as m (queue_id, consumer, to_node, tick_id, state, cause)
    select (release_consumers.queue).queue_id, c->>'consumer', release_consumers.recreated->>'to', (c->>'tick_id')::bigint, 'moved',
           release_consumers.recreated->>'cause'
      from jsonb_array_elements(release_consumers.recreated->'consumers') as c
     where c->>'state' <> 'left alone'
    on conflict on constraint consumer_move_pkey do update
       set to_node = excluded.to_node, tick_id = excluded.tick_id, state = 'moved', cause = excluded.cause, at = excluded.at,
           move_uid = excluded.move_uid;
    delete from cascade_internal.subscription as s
     using jsonb_array_elements(release_consumers.recreated->'consumers') as c
     where s.queue_id = (release_consumers.queue).queue_id and s.consumer = c->>'consumer' and c->>'state' <> 'left alone';
end
$$;
comment on function cascade_internal.release_consumers(cascade_internal.queue, jsonb) is 'Lets go of consumers that were made anew elsewhere.';
