-- A part whose root was lost goes on from a fork.  If more of it was merged, the merge-leaf at the combined-root goes back to the fork, and
-- says in the log of the combined set which of its events the part has lost: they stay there, and are skipped if somebody puts
-- them back into the part.

-- cascade_internal.fork_part(part, node, fork): called by cascade.reset_leaf().  Returns the mark, or null where this merge-leaf only tracks:
-- it follows what the log of the combined set says.
create or replace function cascade_internal.fork_part(queue cascade_internal.queue, node cascade_internal.node, fork cascade_internal.tick)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_combined constant cascade_internal.queue := cascade_internal.find_combined(fork_part.node);
    v_last     constant cascade_internal.tick := cascade_internal.newest_tick((fork_part.queue).queue_id, (fork_part.queue).slots);
    v_mark     record;
    v_rows     text;
    v_kept     bigint;
    v_some     jsonb;
    v_merged   jsonb := '[]';
    v_events   bigint := 0;
    v_whole    boolean := false;
    v_made     jsonb;
begin
    if (select n.role from cascade_internal.node as n where n.queue_id = v_combined.queue_id) <> 'root' then
        return null;
    end if;
    perform cascade_internal.enter_combined(v_combined);
    -- Newest first, as far as they reach beyond the fork.
    for v_mark in execute format('select m.txid, m.mark from (%s) as m where m.mark->>''part'' = %L order by m.id desc',
                                 cascade_internal.marks_query(v_combined), (fork_part.queue).name)
    loop
        v_whole := (v_mark.mark->'tick'->>'tick_id')::bigint <= (fork_part.fork).tick_id;
        exit when v_whole;
        -- The one in which the fork lies has its first events from before it; events left out are counted, and are not there.
        v_kept := greatest((fork_part.fork).total - (v_mark.mark->'prev'->>'total')::bigint, 0);
        v_kept := v_kept - (select count(*) from jsonb_array_elements_text(coalesce(v_mark.mark->'skipped', '[]')) as s where s::bigint <= v_kept);
        select string_agg(format('select e.id, e.origin, e.origin_id from cascade_internal.event_%s_%s as e where e.txid = %s and e.origin <> ''.cascade''',
                                 v_combined.queue_id, s, v_mark.txid), ' union all ')
          into v_rows from generate_series(0, v_combined.slots - 1) as s;
        execute format('with beyond as (select * from (%s) as e order by e.id offset %s),'
                       ' island as (select e.origin, e.origin_id, e.origin_id - row_number() over (partition by e.origin order by e.origin_id) as n from beyond as e)'
                       ' select coalesce(jsonb_agg(jsonb_build_array(i.origin, i.first, i.last)), ''[]'') from'
                       ' (select x.origin, min(x.origin_id) as first, max(x.origin_id) as last from island as x group by x.origin, x.n) as i', v_rows, v_kept)
           into v_some;
        v_merged := v_merged || v_some;
        v_whole := (v_mark.mark->'prev'->>'tick_id')::bigint <= (fork_part.fork).tick_id;
        exit when v_whole;
    end loop;
    select coalesce(sum((r->>2)::bigint - (r->>1)::bigint + 1), 0) into v_events from jsonb_array_elements(v_merged) as r;
    v_made := jsonb_build_object(
        'uid', gen_random_uuid(), 'part', (fork_part.queue).name, 'set_uid', (fork_part.node).set_uid,
        'tick', cascade_internal.as_mark(fork_part.fork), 'prev', cascade_internal.as_mark(v_last),
        'merged', v_merged, 'events', v_events, 'is_whole', v_whole);
    perform cascade_internal.post_mark(v_combined, 'cascade.fork', v_made);
    perform cascade_internal.learn_mark(v_combined, 'cascade.fork', v_made);
    perform cascade_internal.note_step(v_combined.name, null, 'part forked',
        v_made - 'merged' - 'tick' - 'prev' || jsonb_build_object('from_tick', v_last.tick_id, 'to_tick', (fork_part.fork).tick_id));
    return v_made;
end
$$;
comment on function cascade_internal.fork_part(cascade_internal.queue, cascade_internal.node, cascade_internal.tick)
    is 'Takes a merged part back to a fork, and says what it has lost.';

-- cascade.own_fork(part): where the part's present path left the one on which its merge-leaf stands; null while it did not.  Its daemon
-- goes back there by itself: everything else follows from the log.  There may be several reigns in between of which nothing is here,
-- and a later one may have begun below an earlier.  Also null where another tick is held under that id: a root lost its tail and
-- made others, so only the chains of both sides tell what they have in common.
create or replace function cascade.own_fork("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(own_fork."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_at    cascade_internal.tick := v_last;
    v_end   cascade_internal.tick;
    v_held  cascade_internal.tick;
    v_term  cascade_internal.term;
    v_ends  jsonb := '{}';
begin
    -- The present path, from its newest term down: each term in which a fork lies, up to that fork.
    select t.* into v_term from cascade_internal.term as t
     where t.queue_id = v_queue.queue_id and t.voided_by is null order by t.number desc limit 1;
    loop
        v_ends := v_ends || jsonb_build_object(v_term.uid, case when v_end.tick_id is not null then to_jsonb(v_end) end);
        exit when v_term.fork is null;
        v_end := jsonb_populate_record(null::cascade_internal.tick, v_term.fork);
        select t.* into strict v_term from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = v_end.term_uid;
    end loop;
    -- Down the own path, to a term that both have.
    while not v_ends ? v_at.term_uid::text loop
        select t.* into strict v_term from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = v_at.term_uid;
        if v_term.fork is null then
            return null;
        end if;
        v_at := jsonb_populate_record(null::cascade_internal.tick, v_term.fork);
    end loop;
    v_end := jsonb_populate_record(null::cascade_internal.tick, nullif(v_ends->(v_at.term_uid::text), 'null'));
    if v_end.tick_id < v_at.tick_id then
        v_at := v_end;
    end if;
    v_held := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, v_at.tick_id);
    if v_at.tick_id = v_last.tick_id or v_held.chain <> v_at.chain or v_end.tick_id = v_at.tick_id and v_end.chain <> v_at.chain then
        return null;
    end if;
    return to_jsonb(v_at);
end
$$;
comment on function cascade.own_fork(text) is 'Where the part''s present path left that of its merge-leaf.';

-- The marks with which a new term of a combined set begins, in its opening tick: a merge-leaf elsewhere that has gone further, or
-- less far, stands there from then on.  Refused unless this database can go on merging every part.
create or replace function cascade_internal.open_merging(queue cascade_internal.queue)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_part record;
begin
    if not (open_merging.queue).is_combined then
        return;
    end if;
    perform cascade_internal.check_merging(open_merging.queue);
    for v_part in select c.* from cascade_internal.current_marks(open_merging.queue) as c loop
        perform cascade_internal.post_mark(open_merging.queue, 'cascade.tick', jsonb_build_object(
            'part', v_part.part, 'set_uid', v_part.set_uid, 'tick', v_part.mark, 'prev', v_part.mark));
        update cascade_internal.part as p set fork = v_part.mark where p.queue_id = (open_merging.queue).queue_id and p.part = v_part.part;
    end loop;
    -- What was fetched while it tracked, or under another term, must not land; and an answer that stopped nobody then would stop it now.
    update cascade_internal.node as n
       set generation = n.generation + 1, answer = null, answer_detail = null, answered_at = null
     where n.into_set = (open_merging.queue).name;
    perform pg_notify('cascade_node', n.node) from cascade_internal.node as n where n.into_set = (open_merging.queue).name;
end
$$;
comment on function cascade_internal.open_merging(cascade_internal.queue) is 'Says where the parts stand as a new term of a combined set begins.';

create or replace function cascade_internal.unmerged_parts(queue cascade_internal.queue)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select string_agg(p.part, ', ' order by p.part)
              from cascade_internal.part as p
             where p.queue_id = (unmerged_parts.queue).queue_id
               and (cascade_internal.merge_leaf(unmerged_parts.queue, p.part)).set_uid is distinct from p.set_uid);
end
$$;
comment on function cascade_internal.unmerged_parts(cascade_internal.queue) is 'The parts of a combined set that have no merge-leaf in this database; null when all have.';

create or replace function cascade_internal.can_merge(queue cascade_internal.queue)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return not (can_merge.queue).is_combined or cascade_internal.unmerged_parts(can_merge.queue) is null;
end
$$;
comment on function cascade_internal.can_merge(cascade_internal.queue) is 'Whether this carrier could be the root of its set.';

create or replace function cascade_internal.check_merging(queue cascade_internal.queue)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_lacking constant text := cascade_internal.unmerged_parts(check_merging.queue);
begin
    if v_lacking is not null then
        raise exception 'this node cannot be the root of combined set "%": it has no merge-leaf of %', (check_merging.queue).name, v_lacking
            using errcode = 'QC208', hint = 'Only a combined-failover can be promoted: a branch with a merge-leaf of every part in its database.';
    end if;
end
$$;
comment on function cascade_internal.check_merging(cascade_internal.queue) is 'Refuses a root of a combined set that could not go on merging.';

-- The generation under which a merge-leaf speaks to its part.  It begins with the number of the combined set's term in which it stands: what
-- a former combined-root says counts for nothing once another one has spoken, and what it says after it has come back counts again.
create or replace function cascade_internal.spoken_generation(node cascade_internal.node)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    if (spoken_generation.node).into_set is null then
        return (spoken_generation.node).generation;
    end if;
    select q.* into v_queue from cascade_internal.queue as q where q.name = (spoken_generation.node).into_set;
    if not found then
        return (spoken_generation.node).generation % 1000000; -- The combined set was dropped here; whatever it merges is refused.
    end if;
    return coalesce((cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots)).tick_id, 0) / 1000000000000 * 1000000
           + (spoken_generation.node).generation % 1000000;
end
$$;
comment on function cascade_internal.spoken_generation(cascade_internal.node) is 'The generation that a node names to others.';

-- cascade.describe_merge(part): what the daemon of a merge-leaf has to know of the combined set here.
create or replace function cascade.describe_merge("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_leaf     cascade_internal.node := cascade_internal.find_node(describe_merge."set");
    v_combined cascade_internal.queue := cascade_internal.find_combined(v_leaf);
    v_node     cascade_internal.node;
begin
    select n.* into v_node from cascade_internal.node as n where n.queue_id = v_combined.queue_id;
    return jsonb_build_object(
        'into', v_combined.name, 'node', v_node.node, 'is_root', v_node.role = 'root',
        'copies', v_node.role = 'root' and not v_combined.is_copy
                  and not exists (select from cascade_internal.fence as f where f.queue_id = v_combined.queue_id),
        'reign', case when v_node.role = 'root' then v_combined.term end,
        'fork', (select p.fork from cascade_internal.part as p where p.queue_id = v_combined.queue_id and p.part = describe_merge."set"),
        'root', (select case when t.number is not null then t.node end from cascade_internal.term as t
                  where t.queue_id = v_leaf.queue_id and t.voided_by is null order by t.number desc limit 1));
end
$$;
comment on function cascade.describe_merge(text) is 'What the combined set means to its merge-leaf here.';

-- cascade.tell_merge(part, node, reign, fork, rows): as cascade.tell(), at the part's root.  A merge-leaf that copies says in which term of the
-- combined set.  When that is news, the other merge-leaves are set back to where that term began, before anything else is heard: what they told
-- before may be more than what the combined set still has.  One that copies in an earlier term is refused.
create or replace function cascade.tell_merge("set" text, node text, reign bigint, fork jsonb, rows jsonb)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root   cascade_internal.node := cascade_internal.find_root(tell_merge."set");
    v_queue  cascade_internal.queue := cascade_internal.find_queue(tell_merge."set");
    v_member cascade_internal.member;
begin
    select m.* into v_member from cascade_internal.member as m where m.queue_id = v_queue.queue_id and m.node = tell_merge.node;
    if v_member.state is distinct from 'live' then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', tell_merge.node));
    elsif v_member.into_set is null then
        raise exception 'member "%" of set "%" is no merge-leaf', tell_merge.node, tell_merge."set"
            using errcode = 'QC208', hint = 'Others tell with cascade.tell().';
    end if;
    if tell_merge.reign is not null and v_member.reign is distinct from tell_merge.reign then
        v_queue := cascade_internal.lock_queue(tell_merge."set");
        perform cascade_internal.begin_merge_reign(v_queue, v_member.into_set, tell_merge.node, tell_merge.reign, (tell_merge.fork->>'tick_id')::bigint);
    end if;
    return cascade.tell(tell_merge."set", tell_merge.node, tell_merge.rows);
end
$$;
comment on function cascade.tell_merge(text, text, bigint, jsonb, jsonb) is 'Hears how far a merge-leaf has come, and in which term of its combined set.';

create or replace function cascade_internal.begin_merge_reign(queue cascade_internal.queue, into_set text, node text, reign bigint, fork_tick bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     constant integer := (begin_merge_reign.queue).queue_id;
    v_later  cascade_internal.member;
    v_member cascade_internal.member;
begin
    select m.* into v_later from cascade_internal.member as m
     where m.queue_id = v_id and m.into_set = begin_merge_reign.into_set and m.reign > begin_merge_reign.reign limit 1;
    if found then
        raise exception 'combined set "%" has a later term: % copies set "%" in term %, not % in term %',
                        begin_merge_reign.into_set, v_later.node, (begin_merge_reign.queue).name, v_later.reign, begin_merge_reign.node, begin_merge_reign.reign
            using errcode = 'QC209', hint = 'Its reign over the combined set is over; it goes on once it has come back as a branch.';
    end if;
    for v_member in
        update cascade_internal.member as m
           set reign = case when m.node = begin_merge_reign.node then begin_merge_reign.reign end,
               generation = case when m.node = begin_merge_reign.node then m.generation else greatest(m.generation, begin_merge_reign.reign * 1000000) end,
               since_tick = case when m.node = begin_merge_reign.node or begin_merge_reign.fork_tick is null then m.since_tick
                                 else least(begin_merge_reign.fork_tick, p.tick_id) end,
               version = cascade_internal.next_version(v_id) + m.node_no, changed_at = clock_timestamp()
          from cascade_internal.member_positions(begin_merge_reign.queue) as p
         where m.queue_id = v_id and m.into_set = begin_merge_reign.into_set and m.state = 'live' and p.node = m.node
        returning m.*
    loop
        if v_member.node <> begin_merge_reign.node and begin_merge_reign.fork_tick is not null then
            delete from cascade_internal.told as t where t.queue_id = v_id and t.node = v_member.node;
        end if;
        perform cascade_internal.post_control(begin_merge_reign.queue, 'cascade.member', to_jsonb(v_member) - 'queue_id');
    end loop;
    perform cascade_internal.note_step((begin_merge_reign.queue).name, null, 'merged anew',
        jsonb_build_object('into', begin_merge_reign.into_set, 'node', begin_merge_reign.node, 'reign', begin_merge_reign.reign, 'fork_tick', begin_merge_reign.fork_tick));
end
$$;
comment on function cascade_internal.begin_merge_reign(cascade_internal.queue, text, text, bigint, bigint)
    is 'Sets the other merge-leaves back to where a term of the combined set began.';

-- cascade.create_merge_leaf(part, node, into, provider, welcome, start, known_from): makes this database a merge-leaf.  Where it begins is what the
-- log of the combined set says; only at its root, and for a part that it never had, is it the tick at which the provider was asked.
create or replace function cascade.create_merge_leaf(
    "set" text, node text, into_set text, provider text, welcome jsonb, start jsonb, known_from bigint)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node     cascade_internal.node := cascade_internal.find_node(create_merge_leaf.into_set);
    v_combined cascade_internal.queue;
    v_uid      constant uuid := (create_merge_leaf.welcome->>'set_uid')::uuid;
    v_mark     jsonb;
    v_leaf     cascade_internal.node;
begin
    perform cascade_internal.check_read_committed('making a merge-leaf');
    -- Nothing is copied into the combined queue meanwhile, so that its log says where to begin.
    select q.* into v_combined from cascade_internal.queue as q where q.queue_id = v_node.queue_id for no key update;
    if not v_combined.is_combined then
        raise exception 'set "%" is no combined set', create_merge_leaf.into_set
            using errcode = 'QC208', hint = 'A combined set is made so: combines: [...] in the file, before cascade set create.';
    end if;
    v_leaf := cascade_internal.merge_leaf(v_combined, create_merge_leaf."set");
    if v_leaf.set_uid = v_uid and v_leaf.node = create_merge_leaf.node then
        return false;
    end if;
    select c.mark into v_mark from cascade_internal.current_marks(v_combined) as c
     where c.part = create_merge_leaf."set" and c.set_uid = v_uid;
    if v_mark is null and v_node.role <> 'root' then
        raise exception 'set "%" has nothing of part "%" yet', create_merge_leaf.into_set, create_merge_leaf."set"
            using errcode = 'QC105', hint = 'It comes with the log, once the merge-leaf at the combined-root has begun.';
    end if;
    perform cascade.create_node(create_merge_leaf."set", create_merge_leaf.node, 'leaf', create_merge_leaf.provider,
                                create_merge_leaf.welcome, coalesce(v_mark, create_merge_leaf.start), create_merge_leaf.known_from);
    update cascade_internal.node as n set into_set = create_merge_leaf.into_set
      from cascade_internal.queue as q where q.queue_id = n.queue_id and q.name = create_merge_leaf."set";
    if v_mark is null then
        v_mark := jsonb_build_object('part', create_merge_leaf."set", 'set_uid', v_uid, 'prev', null,
            'tick', cascade_internal.as_mark(jsonb_populate_record(null::cascade_internal.tick, create_merge_leaf.start)));
        perform cascade_internal.post_mark(v_combined, 'cascade.tick', v_mark);
        perform cascade_internal.learn_mark(v_combined, 'cascade.tick', v_mark);
    end if;
    return true;
end
$$;
comment on function cascade.create_merge_leaf(text, text, text, text, jsonb, jsonb, bigint) is 'Makes this database a merge-leaf of a part.';

-- Producers insert into the parts, wherever this carrier stands.
create or replace function cascade_internal.raise_combined(queue cascade_internal.queue, what text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_parts constant text := (select string_agg(p.part, ', ' order by p.part)
                                from cascade_internal.part as p where p.queue_id = (raise_combined.queue).queue_id);
begin
    raise exception 'queue "%" is a combined set and %', (raise_combined.queue).name, raise_combined.what
        using errcode = 'QC403', hint = coalesce('Insert into its parts: ' || v_parts || '.', 'Its events come from its parts, none of which is merged yet.');
end
$$;
comment on function cascade_internal.raise_combined(cascade_internal.queue, text) is 'Raises QC403: which queues take the events of a combined set.';

create or replace function cascade_internal.refuse_combined()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform cascade_internal.raise_combined(cascade_internal.find_queue(tg_table_name), 'takes no inserts');
    return null;
end
$$;
comment on function cascade_internal.refuse_combined() is 'Keeps producers out of a combined queue.';

-- What the view cascade.parts shows.
create or replace function cascade_internal.list_parts()
returns table ("set" text, part text, node text, set_uid uuid, state text, provider text, tick_id bigint, tick_at timestamptz, events bigint,
               answer text, answer_detail text, merged_already bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    for v_queue in select q.* from cascade_internal.queue as q where q.is_combined order by q.name loop
        return query
            select v_queue.name, c.part, n.node, c.set_uid,
                   case when n.node is null then 'none' when (select o.role from cascade_internal.node as o where o.queue_id = v_queue.queue_id) = 'root' then 'copying' else 'tracking' end,
                   n.provider, (c.mark->>'tick_id')::bigint, (c.mark->>'time')::timestamptz, (c.mark->>'total')::bigint, n.answer, n.answer_detail,
                   -- A range may be named by several forks.
                   (select coalesce(sum(upper(i) - lower(i)), 0)::bigint
                      from jsonb_each_text(cascade_internal.merged_ranges(v_queue, c.part)) as r cross join lateral unnest(r.value::int8multirange) as i)
              from cascade_internal.current_marks(v_queue) as c
             cross join lateral cascade_internal.merge_leaf(v_queue, c.part) as n
             order by c.part;
    end loop;
end
$$;
comment on function cascade_internal.list_parts() is 'The parts of this database''s combined sets.';

create or replace function cascade_internal.describe_parts(queue cascade_internal.queue)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(jsonb_agg(jsonb_build_object('part', p.part, 'node', p.node, 'is_tracked', p.node is not null, 'tick_id', p.tick_id,
                                                         'answer', p.answer) order by p.part), '[]')
              from cascade_internal.list_parts() as p where p."set" = (describe_parts.queue).name and (describe_parts.queue).is_combined);
end
$$;
comment on function cascade_internal.describe_parts(cascade_internal.queue) is 'The parts of a combined set, for planning.';

-- cascade.note_tracker(part, generation, answer, detail, terms, members): a merge-leaf that copies nothing stores what its provider said, since
-- no log brings it.
create or replace function cascade.note_tracker("set" text, generation bigint, answer text, detail text, terms jsonb, members jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(note_tracker."set");
begin
    perform cascade_internal.learn_members(v_node.queue_id, note_tracker.members);
    return cascade.note_answer(note_tracker."set", note_tracker.generation, note_tracker.answer, note_tracker.detail, note_tracker.terms);
end
$$;
comment on function cascade.note_tracker(text, bigint, text, text, jsonb, jsonb) is 'Stores what a provider told a merge-leaf that only tracks.';
