-- cascade.repair_log(set, provider, plan, stretches, ids): makes stretches of this branch's log what its provider has, in one transaction, and
-- journals every event that is taken out or put in.  Each stretch says after which tick it begins and up to which it goes, the digest that was found
-- here and the one that is wanted, and has the provider's ticks, and those of its events that have one of the ids.  The events here with those
-- ids are taken out first.  Refused (QC209) when a stretch is not as it was found, and when it would not become what is wanted.
--
-- It locks what copying locks, so that a batch is copied before or after, and what taking a place in the queue locks, so that rotation
-- releases nothing meanwhile (docs/adr/0034).
create or replace function cascade.repair_log("set" text, provider text, plan uuid, stretches json, ids bigint[])
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   cascade_internal.queue := cascade_internal.lock_queue(repair_log."set");
    v_node    constant cascade_internal.node := cascade_internal.find_node(repair_log."set");
    v_repair  cascade_internal.repair;
    v_stretch json;
    v_count   bigint;
begin
    if v_node.role <> 'branch' then
        raise exception 'node "%" is a % of set "%": nothing is repaired there', v_node.node, v_node.role, v_queue.name
            using errcode = 'QC208', hint = case v_node.role when 'root' then 'What its events should be, no other node can say: make one that has them the root, and repair this one then.'
                                                 else 'A leaf keeps no events.' end;
    end if;
    select r.* into v_repair from cascade_internal.repair as r
     where r."set" = v_queue.name and r.node = v_node.node and r.plan = repair_log.plan;
    if found then
        return cascade_internal.show_repair(v_repair) || jsonb_build_object('is_repeat', true);
    elsif v_node.provider is distinct from repair_log.provider then
        raise exception 'node "%" copies from "%" now, not from "%"', v_node.node, v_node.provider, repair_log.provider
            using errcode = 'QC209', hint = 'Compare again: cascade spark reconcile.';
    elsif json_array_length(repair_log.stretches) is null or repair_log.ids is null or repair_log.plan is null then
        raise exception 'a repair of set "%" has no plan, no stretches or no ids', v_queue.name
            using errcode = 'QC003', hint = 'cascade repair apply passes what cascade spark reconcile found.';
    end if;
    perform from cascade_internal.generation as g where g.queue_id = v_queue.queue_id order by g.gen for share;
    perform cascade_internal.check_stretches(v_queue, v_node, repair_log.stretches, 'found');

    insert into cascade_internal.repair ("set", node, plan, provider, stretches, ticks, removed, added, consumers)
    values (v_queue.name, v_node.node, repair_log.plan, repair_log.provider,
            (select coalesce(jsonb_agg(s.value::jsonb - 'ticks' - 'events'), '[]') from json_array_elements(repair_log.stretches) as s),
            '[]', 0, 0, cascade_internal.who_passed(v_queue, repair_log.stretches))
    returning * into v_repair;
    v_repair.removed := cascade_internal.remove_events(v_queue, v_repair.repair_id, repair_log.stretches, repair_log.ids);
    for v_stretch in select s.value from json_array_elements(repair_log.stretches) as s loop
        v_repair.ticks := v_repair.ticks || cascade_internal.replace_ticks(v_queue, v_stretch);
    end loop;
    for v_stretch in select s.value from json_array_elements(repair_log.stretches) as s loop
        v_count := cascade_internal.put_events(v_queue, v_repair.repair_id, v_stretch);
        v_repair.added := v_repair.added + v_count;
    end loop;
    perform cascade_internal.check_stretches(v_queue, v_node, repair_log.stretches, 'wanted');
    update cascade_internal.repair as r
       set ticks = v_repair.ticks, removed = v_repair.removed, added = v_repair.added
     where r.repair_id = v_repair.repair_id;
    perform cascade_internal.note_step(v_queue.name, repair_log.plan, 'repair', jsonb_build_object(
        'provider', repair_log.provider, 'removed', v_repair.removed, 'added', v_repair.added, 'ticks', jsonb_array_length(v_repair.ticks)));
    return cascade_internal.show_repair(v_repair) || jsonb_build_object('is_repeat', false);
end
$$;
comment on function cascade.repair_log(text, text, uuid, json, bigint[]) is 'Makes stretches of a branch''s log what its provider has.';

create or replace function cascade_internal.show_repair(repair cascade_internal.repair)
returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object('node', (show_repair.repair).node, 'provider', (show_repair.repair).provider, 'removed', (show_repair.repair).removed,
                              'added', (show_repair.repair).added, 'ticks', jsonb_array_length((show_repair.repair).ticks),
                              'consumers', (show_repair.repair).consumers)
$$;
comment on function cascade_internal.show_repair(cascade_internal.repair) is 'What a repair changed, in short.';

create or replace function cascade_internal.check_stretches(
    queue cascade_internal.queue, node cascade_internal.node, stretches json, side text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_last    constant bigint := (cascade_internal.newest_tick((check_stretches.queue).queue_id, (check_stretches.queue).slots)).tick_id;
    v_stretch record;
begin
    for v_stretch in
        select s.from_tick, s.to_tick, case check_stretches.side when 'found' then s.found else s.wanted end as digest
          from json_to_recordset(check_stretches.stretches) as s(from_tick bigint, to_tick bigint, found bigint, wanted bigint)
    loop
        if v_stretch.to_tick > v_last
           or (select d.digest from cascade.digest_spans((check_stretches.queue).name, array[v_stretch.from_tick, v_stretch.to_tick]) as d)
              is distinct from v_stretch.digest then
            raise exception 'node "%": ticks after % up to % are not what the plan %', (check_stretches.node).node, v_stretch.from_tick, v_stretch.to_tick,
                            case check_stretches.side when 'found' then 'found' else 'wants' end
                using errcode = 'QC209', hint = 'Nothing was changed.  Compare again, and make a new plan: cascade spark reconcile.';
        end if;
    end loop;
end
$$;
comment on function cascade_internal.check_stretches(cascade_internal.queue, cascade_internal.node, json, text)
    is 'Raises QC209 unless stretches of the log have the digests that a plan says.';

create or replace function cascade_internal.who_passed(queue cascade_internal.queue, stretches json)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(jsonb_agg(jsonb_build_object('consumer', c.consumer, 'tick_id', c.tick_id) order by c.consumer), '[]')
              from cascade_internal.consumer_state(who_passed.queue) as c
             where c.consumer not like '.%'
               and greatest(c.tick_id, c.head) > (select min(s.from_tick) from json_to_recordset(who_passed.stretches) as s(from_tick bigint)));
end
$$;
comment on function cascade_internal.who_passed(cascade_internal.queue, json) is 'Consumers that were given what comes after the first of some stretches.';

-- Those of the stretches, and wherever they are those that are put back: an event that was moved to another tick must not stay there.  One that
-- merely has such an id, in a tick of which the plan says nothing, is another event.
create or replace function cascade_internal.remove_events(queue cascade_internal.queue, repair_id bigint, stretches json, ids bigint[])
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_back  constant bigint[] := array(select (e.value->>'id')::bigint from json_array_elements(remove_events.stretches) as s
                                        cross join lateral json_array_elements(s.value->'events') as e);
    v_ids   bigint[];
    v_txids bigint[];
    v_slot  integer;
    v_done  bigint;
    v_count bigint := 0;
begin
    if remove_events.ids = '{}' then
        return 0;
    end if;
    select array_agg(e.id), array_agg(e.txid) into v_ids, v_txids
      from json_to_recordset(remove_events.stretches) as s(from_tick bigint, to_tick bigint)
     cross join lateral cascade.read_log((remove_events.queue).name, s.from_tick, s.to_tick, remove_events.ids) as e;
    for v_slot in 0 .. (remove_events.queue).slots - 1 loop
        execute format(
            'with gone as (delete from cascade_internal.event_%s_%s as e where e.id = any ($1)'
            ' and (e.id = any ($3) or (e.id, e.txid) in (select x.id, x.txid from unnest($4, $5) as x(id, txid))) returning e.*)'
            ' insert into cascade_internal.repair_event (repair_id, is_removed, id, "time", txid, type, key, payload, headers, origin, origin_id)'
            ' select $2, true, e.id, e."time", e.txid, e.type, e.key, e.payload, e.headers, e.origin, e.origin_id from gone as e',
            (remove_events.queue).queue_id, v_slot)
          using remove_events.ids, remove_events.repair_id, v_back, v_ids, v_txids;
        get diagnostics v_done = row_count;
        v_count := v_count + v_done;
    end loop;
    return v_count;
end
$$;
comment on function cascade_internal.remove_events(cascade_internal.queue, bigint, json, bigint[]) is 'Takes events out of the log, and keeps them in the journal.';

-- Replaces the ticks of a stretch and returns those that were there before and are not now.  A tick that was lost gets the generations between
-- which its events can be: those of its neighbours.
create or replace function cascade_internal.replace_ticks(queue cascade_internal.queue, stretch json)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp set bytea_output = 'hex' set timezone = 'UTC'
as $$
declare
    v_id    constant integer := (replace_ticks.queue).queue_id;
    v_from  constant bigint := (replace_ticks.stretch->>'from_tick')::bigint;
    v_held  constant text := cascade_internal.held_ticks(replace_ticks.queue);
    v_old   cascade_internal.tick[];
    v_new   cascade_internal.tick[];
    v_user  text;
    v_slot  integer;
begin
    execute format('select array(select row(x.*)::cascade_internal.tick from (%s) as x where x.tick_id > %s and x.tick_id <= %s order by x.tick_id)',
                   v_held, v_from, replace_ticks.stretch->>'to_tick')
       into v_old;
    execute format(
        'select array(select row(t.tick_id, t.prev_tick, t."time", t.low, t.high, t."open", t.event_seq, t.total, t.term_uid, t.chain,'
        ' coalesce(o.gen, (select x.gen from (%1$s) as x where x.tick_id > t.tick_id order by x.tick_id limit 1)),'
        ' coalesce(o.gen_low, (select x.gen_low from (%1$s) as x where x.tick_id < t.tick_id order by x.tick_id desc limit 1)))::cascade_internal.tick'
        ' from jsonb_populate_recordset(null::cascade_internal.tick, $1) as t left join unnest($2) as o on o.tick_id = t.tick_id)', v_held)
       into v_new using (replace_ticks.stretch->'ticks')::jsonb, v_old;
    select s.consumer into v_user
      from cascade_internal.consumer_state(replace_ticks.queue) as s
     where array[s.tick_id, s.head] && array(select t.tick_id from unnest(v_old) as t except select t.tick_id from unnest(v_new) as t)
     limit 1;
    if found then
        raise exception 'consumer "%" stands on a tick that the log should not have', v_user
            using errcode = 'QC202', hint = 'Nothing was changed.  Move it first: cascade.seek().';
    end if;
    for v_slot in 0 .. (replace_ticks.queue).slots - 1 loop
        execute format('delete from cascade_internal.tick_%s_%s as t where t.tick_id > %s and t.tick_id <= %s',
                       v_id, v_slot, v_from, replace_ticks.stretch->>'to_tick');
        execute format('insert into cascade_internal.tick_%s_%s select t.* from unnest($1) as t where t.gen %% $2 = $3', v_id, v_slot)
          using v_new, (replace_ticks.queue).slots, v_slot;
    end loop;
    return (select coalesce(jsonb_agg(to_jsonb(t) order by t.tick_id), '[]')
              from (select o.* from unnest(v_old) as o except select n.* from unnest(v_new) as n) as t);
end
$$;
comment on function cascade_internal.replace_ticks(cascade_internal.queue, json) is 'Makes the ticks of a stretch what they should be.';

create or replace function cascade_internal.put_events(queue cascade_internal.queue, repair_id bigint, stretch json)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_slot  integer;
    v_done  bigint;
    v_count bigint := 0;
begin
    for v_slot in 0 .. (put_events.queue).slots - 1 loop
        execute format(
            'with e as (select x.* from json_to_recordset($1) as x(tick_id bigint, id bigint, "time" timestamptz, txid bigint, type text, key text,'
            ' payload text, headers text, origin text, origin_id bigint) join (%s) as t using (tick_id) where t.gen %% $2 = $3),'
            ' put as (insert into cascade_internal.event_%s_%s (id, "time", txid, type, key, payload, headers, origin, origin_id)'
            ' select e.id, e."time", e.txid, e.type, e.key, e.payload::json, e.headers::json, e.origin, e.origin_id from e'
            ' returning id, "time", txid, type, key, payload, headers, origin, origin_id)'
            ' insert into cascade_internal.repair_event (repair_id, is_removed, id, "time", txid, type, key, payload, headers, origin, origin_id)'
            ' select $4, false, p.* from put as p',
            cascade_internal.held_ticks(put_events.queue), (put_events.queue).queue_id, v_slot)
          using put_events.stretch->'events', (put_events.queue).slots, v_slot, put_events.repair_id;
        get diagnostics v_done = row_count;
        v_count := v_count + v_done;
    end loop;
    return v_count;
end
$$;
comment on function cascade_internal.put_events(cascade_internal.queue, bigint, json) is 'Puts events where their ticks lie, and into the journal.';

create or replace function cascade_internal.list_repairs()
returns table (repair_id bigint, "set" text, node text, plan uuid, provider text, from_tick bigint, to_tick bigint, removed bigint, added bigint,
               ticks integer, consumers jsonb, by_role text, at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select r.repair_id, r."set", r.node, r.plan, r.provider,
           (select min(s.from_tick) from jsonb_to_recordset(r.stretches) as s(from_tick bigint)),
           (select max(s.to_tick) from jsonb_to_recordset(r.stretches) as s(to_tick bigint)),
           r.removed, r.added, jsonb_array_length(r.ticks), r.consumers, r.by_role, r.at
      from cascade_internal.repair as r order by r.repair_id
$$;
comment on function cascade_internal.list_repairs() is 'What was repaired in this database.';

-- cascade.read_repair(set, plan): the events that a repair took out or put in here, whole; payload and headers as text, byte for byte.
create or replace function cascade.read_repair("set" text, plan uuid)
returns table (is_removed boolean, id bigint, "time" timestamptz, txid bigint, type text, key text, payload text, headers text, origin text, origin_id bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select e.is_removed, e.id, e."time", e.txid, e.type, e.key, e.payload::text, e.headers::text, e.origin, e.origin_id
      from cascade_internal.repair_event as e
      join cascade_internal.repair as r using (repair_id)
     where r."set" = read_repair."set" and r.plan = read_repair.plan
     order by e.id, e.is_removed desc
$$;
comment on function cascade.read_repair(text, uuid) is 'The events that a repair took out or put in.';
