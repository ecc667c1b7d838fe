-- Combined sets.  Each merge transaction writes the part's events into a partition of the combined queue together with a
-- control event, the mark, that says how far the part is merged by it.  All of it has one txid, so it falls into one batch; the next
-- merge of that part begins after it has committed.  Hence every prefix of the combined log has exactly the
-- part's events up to the last mark in it:
--
--     {"part", "set_uid", "tick": where the part stands now, "prev": where it stood before, "skipped": which rows were left out}
--
-- A part whose root was lost may go back: cascade.fork is a mark too, and lists what is in the combined queue and no longer in the part.

-- What this database shows a node's role to be.
create or replace function cascade_internal.shown_role(node cascade_internal.node)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return case when (shown_role.node).into_set is not null then 'merge-leaf'
                when (shown_role.node).role = 'root' and (select q.is_combined from cascade_internal.queue as q where q.queue_id = (shown_role.node).queue_id)
                then 'combined-root' else (shown_role.node).role end;
end
$$;
comment on function cascade_internal.shown_role(cascade_internal.node) is 'A node''s role as people call it.';

-- The merge-leaf that feeds a combined set from one of its parts in this database; null where there is none.
create or replace function cascade_internal.merge_leaf(queue cascade_internal.queue, part text)
returns cascade_internal.node
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node;
begin
    select n.* into v_node
      from cascade_internal.node as n join cascade_internal.queue as q using (queue_id)
     where q.name = merge_leaf.part and n.into_set = (merge_leaf.queue).name;
    return v_node;
end
$$;
comment on function cascade_internal.merge_leaf(cascade_internal.queue, text) is 'This database''s merge-leaf of a part, if it has one.';

-- The query for marks in the log: those beyond a tick, or all that are held.
create or replace function cascade_internal.marks_query(
    queue cascade_internal.queue, after cascade_internal.tick default null, types text[] default '{cascade.tick,cascade.fork}')
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select string_agg(format('select e.id, e.txid, e.type, e.payload::jsonb as mark from cascade_internal.event_%s_%s as e'
                                     ' where e.origin = ''.cascade'' and e.type = any (%L)%s',
                                     (marks_query.queue).queue_id, g.gen % (marks_query.queue).slots, marks_query.types,
                                     case when (marks_query.after).tick_id is null then '' else ' and ' || cascade_internal.tail_where(marks_query.after) end), ' union all ')
              from generate_series(coalesce((marks_query.after).gen_low, cascade_internal.oldest_gen((marks_query.queue).queue_id)),
                                   cascade_internal.current_gen((marks_query.queue).queue_id, (marks_query.queue).slots)) as g(gen));
end
$$;
comment on function cascade_internal.marks_query(cascade_internal.queue, cascade_internal.tick, text[]) is 'A query for the marks in a combined log.';

-- Where each part stands by the whole log: its merge-leaf's newest tick, else the last mark in the log, else what was kept of it.
-- One merge of a part begins after the one before, so that their txids ascend, as the index has them: the newest is found without a look
-- at the others, of which a busy set has hundreds of thousands.
create or replace function cascade_internal.current_marks(queue cascade_internal.queue)
returns table (part text, set_uid uuid, mark jsonb)
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
declare
    v_part cascade_internal.part;
    v_leaf cascade_internal.node;
    v_home cascade_internal.queue;
begin
    for v_part in select p.* from cascade_internal.part as p where p.queue_id = (current_marks.queue).queue_id order by p.part loop
        v_leaf := cascade_internal.merge_leaf(current_marks.queue, v_part.part);
        current_marks.part := v_part.part;
        current_marks.set_uid := v_part.set_uid;
        current_marks.mark := null;
        if v_leaf.set_uid = v_part.set_uid then
            select q.* into v_home from cascade_internal.queue as q where q.queue_id = v_leaf.queue_id;
            current_marks.mark := cascade_internal.as_mark(cascade_internal.newest_tick(v_home.queue_id, v_home.slots));
        else
            execute format('select m.mark->''tick'' from (%s) as m where m.mark->>''part'' = %L order by m.txid desc limit 1',
                           cascade_internal.marks_query(current_marks.queue), v_part.part)
               into current_marks.mark;
        end if;
        current_marks.mark := coalesce(current_marks.mark, v_part.mark);
        return next;
    end loop;
end
$$;
comment on function cascade_internal.current_marks(cascade_internal.queue) is 'Where each part stands, as the whole log says.';

-- A part's tick as it travels: gen and gen_low mean something in one database only.
create or replace function cascade_internal.as_mark(tick cascade_internal.tick)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
begin
    return to_jsonb(as_mark.tick) - 'gen' - 'gen_low';
end
$$;
comment on function cascade_internal.as_mark(cascade_internal.tick) is 'A tick as marks carry it.';

-- Where each part stood by the log up to a tick, and what had been merged already by then: the first mark beyond the tick says
-- where the part came from; without one it is where it was.  The present is looked at first: what comes later is in the log.
create or replace function cascade_internal.marks_at(queue cascade_internal.queue, tick cascade_internal.tick)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_marks  jsonb;
    v_merged jsonb;
    v_later  jsonb;
    v_forks  uuid[];
begin
    if not (marks_at.queue).is_combined then
        return null;
    end if;
    select coalesce(jsonb_agg(jsonb_build_object('part', c.part, 'set_uid', c.set_uid, 'mark', c.mark)), '[]') into v_marks
      from cascade_internal.current_marks(marks_at.queue) as c;
    select coalesce(jsonb_agg(to_jsonb(m) - 'queue_id'), '[]') into v_merged
      from cascade_internal.merged_already as m where m.queue_id = (marks_at.queue).queue_id;
    execute format('select coalesce(jsonb_object_agg(x.part, x.prev), ''{}'') from (select distinct on (m.mark->>''part'') m.mark->>''part'' as part, m.mark->''prev'' as prev'
                   ' from (%s) as m order by m.mark->>''part'', m.id) as x', cascade_internal.marks_query(marks_at.queue, marks_at.tick))
       into v_later;
    execute format('select coalesce(array_agg((m.mark->>''uid'')::uuid), ''{}'') from (%s) as m',
                   cascade_internal.marks_query(marks_at.queue, marks_at.tick, '{cascade.fork,cascade.merged}'))
       into v_forks;
    return jsonb_build_object(
        -- A part that began later stood nowhere.
        'parts', (select coalesce(jsonb_agg(case when v_later ? (m->>'part') then m || jsonb_build_object('mark', v_later->(m->>'part')) else m end), '[]')
                    from jsonb_array_elements(v_marks) as m
                   where jsonb_typeof(v_later->(m->>'part')) is distinct from 'null'),
        'merged', (select coalesce(jsonb_agg(m), '[]') from jsonb_array_elements(v_merged) as m where (m->>'fork_uid')::uuid <> all (v_forks)));
end
$$;
comment on function cascade_internal.marks_at(cascade_internal.queue, cascade_internal.tick) is 'Where each part stood, as the log up to a tick says.';

-- Takes over where the parts stood by the log with which this carrier begins, or to which it goes back.  Merge-leaves here go there as well.
create or replace function cascade_internal.set_marks(queue cascade_internal.queue, marks jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_row jsonb;
begin
    if set_marks.marks is null or jsonb_typeof(set_marks.marks) <> 'object' then
        return;
    end if;
    delete from cascade_internal.part as p where p.queue_id = (set_marks.queue).queue_id;
    delete from cascade_internal.merged_already as m where m.queue_id = (set_marks.queue).queue_id;
    for v_row in select m from jsonb_array_elements(set_marks.marks->'parts') as m loop
        insert into cascade_internal.part (queue_id, part, set_uid, mark)
        values ((set_marks.queue).queue_id, v_row->>'part', (v_row->>'set_uid')::uuid, v_row->'mark');
        perform cascade_internal.move_merge_leaf(set_marks.queue, v_row->>'part', (v_row->>'set_uid')::uuid, v_row->'mark');
    end loop;
    insert into cascade_internal.merged_already (queue_id, part, origin, first_id, last_id, fork_uid)
    select (set_marks.queue).queue_id, m.part, m.origin, m.first_id, m.last_id, m.fork_uid
      from jsonb_populate_recordset(null::cascade_internal.merged_already, set_marks.marks->'merged') as m;
end
$$;
comment on function cascade_internal.set_marks(cascade_internal.queue, jsonb) is 'Takes over where the parts stand.';

-- Moves the merge-leaf of a part, if this database has one, to where the log of the combined set says that the part stands: forward, or
-- back.  False when it stands there, or there is none.
create or replace function cascade_internal.move_merge_leaf(queue cascade_internal.queue, part text, set_uid uuid, mark jsonb)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_leaf cascade_internal.node := cascade_internal.merge_leaf(move_merge_leaf.queue, move_merge_leaf.part);
    v_home cascade_internal.queue;
    v_tick cascade_internal.tick := jsonb_populate_record(null::cascade_internal.tick, move_merge_leaf.mark);
    v_last cascade_internal.tick;
    v_slot integer;
begin
    if v_leaf.set_uid is distinct from move_merge_leaf.set_uid or v_tick.tick_id is null then
        return false;
    end if;
    select q.* into v_home from cascade_internal.queue as q where q.queue_id = v_leaf.queue_id for no key update;
    v_last := cascade_internal.newest_tick(v_home.queue_id, v_home.slots);
    if (v_last.tick_id, v_last.chain) = (v_tick.tick_id, v_tick.chain) then
        return false;
    elsif v_last.tick_id >= v_tick.tick_id then
        for v_slot in 0 .. v_home.slots - 1 loop
            execute format('delete from cascade_internal.tick_%s_%s as t where t.tick_id >= %s', v_home.queue_id, v_slot, v_tick.tick_id);
        end loop;
        -- What was fetched from beyond must not land.
        update cascade_internal.node as n set generation = n.generation + 1, answer = null, answer_detail = null, answered_at = null where n.queue_id = v_home.queue_id;
        perform pg_notify('cascade_node', v_home.name);
    elsif v_leaf.answer in ('expired', 'diverged') then
        -- That was said of where it stood; it asks again.
        update cascade_internal.node as n set answer = null, answer_detail = null, answered_at = null where n.queue_id = v_home.queue_id;
        perform pg_notify('cascade_node', v_home.name);
    end if;
    v_tick.gen := cascade_internal.current_gen(v_home.queue_id, v_home.slots);
    v_tick.gen_low := v_tick.gen;
    execute format('insert into cascade_internal.tick_%s_%s select ($1).*', v_home.queue_id, v_tick.gen % v_home.slots) using v_tick;
    return true;
end
$$;
comment on function cascade_internal.move_merge_leaf(cascade_internal.queue, text, uuid, jsonb) is 'Moves this database''s merge-leaf of a part.';

-- Applies a mark that was copied with the log of the combined set.
create or replace function cascade_internal.learn_mark(queue cascade_internal.queue, type text, mark jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from cascade_internal.part as p
                    where p.queue_id = (learn_mark.queue).queue_id and p.part = learn_mark.mark->>'part' and p.set_uid = (learn_mark.mark->>'set_uid')::uuid) then
        insert into cascade_internal.part as p (queue_id, part, set_uid, mark)
        values ((learn_mark.queue).queue_id, learn_mark.mark->>'part', (learn_mark.mark->>'set_uid')::uuid, learn_mark.mark->'tick')
        on conflict on constraint part_pkey do update set set_uid = excluded.set_uid, mark = excluded.mark, fork = null;
    end if;
    if learn_mark.type = 'cascade.fork' then
        perform cascade_internal.learn_merged(learn_mark.queue, learn_mark.mark);
    end if;
    perform cascade_internal.move_merge_leaf(learn_mark.queue, learn_mark.mark->>'part', (learn_mark.mark->>'set_uid')::uuid, learn_mark.mark->'tick');
end
$$;
comment on function cascade_internal.learn_mark(cascade_internal.queue, text, jsonb) is 'Learns how far a part is merged.';

create or replace function cascade_internal.learn_merged(queue cascade_internal.queue, mark jsonb)
returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    insert into cascade_internal.merged_already (queue_id, part, origin, first_id, last_id, fork_uid)
    select (learn_merged.queue).queue_id, learn_merged.mark->>'part', r->>0, (r->>1)::bigint, (r->>2)::bigint, (learn_merged.mark->>'uid')::uuid
      from jsonb_array_elements(learn_merged.mark->'merged') as r
    on conflict on constraint merged_already_pkey do nothing
$$;
comment on function cascade_internal.learn_merged(cascade_internal.queue, jsonb) is 'Learns what a part has lost and the combined queue has.';

-- At a switch of generations: what the log said so far may be gone before somebody asks.
create or replace function cascade_internal.keep_marks(queue cascade_internal.queue)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.part as p set mark = c.mark
      from cascade_internal.current_marks(keep_marks.queue) as c
     where p.queue_id = (keep_marks.queue).queue_id and p.part = c.part and p.mark <> c.mark;
end
$$;
comment on function cascade_internal.keep_marks(cascade_internal.queue) is 'Keeps where the parts stand, before their marks leave the log.';
