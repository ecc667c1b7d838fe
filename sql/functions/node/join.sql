-- cascade.describe_node(set): what a subscriber says of itself when it joins a provider.
create or replace function cascade.describe_node("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(describe_node."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(describe_node."set");
    -- Looked at first: consumers may be ahead of it by then, and never behind.
    v_need  constant cascade_internal.tick := cascade_internal.needed_tick(v_queue);
    v_tick  cascade_internal.tick;
    v_end   record;
begin
    v_end := cascade_internal.look_at_end(v_queue);
    v_tick := v_end.tick;
    return jsonb_build_object(
        'set_uid', v_node.set_uid, 'node', v_node.node, 'role', v_node.role, 'provider', v_node.provider,
        'generation', v_node.generation, 'spoken', cascade_internal.spoken_generation(v_node), 'into', v_node.into_set, 'state', v_node.state, 'answer', v_node.answer, 'known_from', v_node.known_from,
        'queue_id', v_queue.queue_id, 'is_dirty', v_end.is_dirty, 'at', clock_timestamp(),
        'tick', to_jsonb(v_tick), 'needed', jsonb_build_object('term_uid', v_need.term_uid, 'tick_id', v_need.tick_id), 'terms', cascade_internal.known_terms(v_queue.queue_id));
end
$$;
comment on function cascade.describe_node(text) is 'This node as it introduces itself to a provider.';

-- Rows outside the snapshot of the last tick are in no batch: a copy must have none, or they would
-- turn up in a later batch here and nowhere else.
create or replace function cascade_internal.is_dirty(queue cascade_internal.queue, last cascade_internal.tick)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_slot  integer;
    v_found boolean;
begin
    for v_slot in 0 .. (is_dirty.queue).slots - 1 loop
        execute format('select (select e.txid from cascade_internal.event_%s_%s as e where e.txid >= %s order by e.txid limit 1) is not null'
                       ' or (select e.txid from cascade_internal.event_%1$s_%2$s as e where e.txid = any (%4$L::bigint[]) limit 1) is not null',
                       (is_dirty.queue).queue_id, v_slot, (is_dirty.last).high, (is_dirty.last)."open")
           into v_found;
        if v_found then
            return true;
        end if;
    end loop;
    return false;
end
$$;
comment on function cascade_internal.is_dirty(cascade_internal.queue, cascade_internal.tick) is 'Whether there are events outside the snapshot of the last tick.';

-- The last tick, and whether anything lies beyond it.  These are two looks: what a copier commits in between lies
-- beyond the tick of the first, and is nothing to be alarmed at; so the tick is looked at once more.
create or replace function cascade_internal.look_at_end(queue cascade_internal.queue, out tick cascade_internal.tick, out is_dirty boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_again cascade_internal.tick := cascade_internal.newest_tick((look_at_end.queue).queue_id, (look_at_end.queue).slots);
begin
    loop
        look_at_end.tick := v_again;
        look_at_end.is_dirty := cascade_internal.is_dirty(look_at_end.queue, look_at_end.tick);
        exit when not look_at_end.is_dirty;
        v_again := cascade_internal.newest_tick((look_at_end.queue).queue_id, (look_at_end.queue).slots);
        exit when v_again.tick_id = (look_at_end.tick).tick_id;
    end loop;
end
$$;
comment on function cascade_internal.look_at_end(cascade_internal.queue) is 'The last tick of a queue, and whether events lie beyond it.';

-- cascade.join_provider(set, subscriber): a node introduces itself, as describe_node() has it.  Both
-- sides store the terms they did not know before anything else, which is why a refusal is an
-- answer and no error here; what copies afterwards raises it.
create or replace function cascade.join_provider("set" text, subscriber jsonb)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node   cascade_internal.node := cascade_internal.find_node(join_provider."set");
    v_queue  cascade_internal.queue := cascade_internal.find_queue(join_provider."set");
    v_answer record;
    v_told   cascade_internal.told;
begin
    perform cascade_internal.check_read_committed('joining');
    perform cascade_internal.commit_durably();
    perform cascade_internal.learn_terms(v_queue.queue_id, join_provider.subscriber->'terms');
    select a.* into v_answer from cascade_internal.join_answer(v_queue, join_provider.subscriber) as a;
    if v_answer.answer = 'rewound' then
        -- The subscriber's tick is the evidence: this database lost its tail, and must not write on.
        perform cascade_internal.want_fence(cascade_internal.lock_queue(join_provider."set"), 'rewound', v_answer.detail);
    end if;
    select t.* into v_told from cascade_internal.told as t
     where t.queue_id = v_queue.queue_id and t.node = join_provider.subscriber->>'node';
    if v_answer.answer in ('on path', 'behind') then
        perform cascade_internal.hear(v_queue.queue_id, join_provider.subscriber->>'node', jsonb_build_array(jsonb_build_object(
            'node', join_provider.subscriber->>'node', 'generation', coalesce(join_provider.subscriber->'spoken', join_provider.subscriber->'generation'),
            -- Its consumers count, as in everything that it tells.
            'term_uid', join_provider.subscriber->'needed'->'term_uid', 'tick_id', join_provider.subscriber->'needed'->'tick_id',
            'is_waiting', false, 'at', coalesce(join_provider.subscriber->'at', to_jsonb(clock_timestamp())))));
    end if;
    return jsonb_build_object(
        'answer', v_answer.answer, 'detail', v_answer.detail, 'node', v_node.node, 'role', v_node.role,
        'queue_id', v_queue.queue_id, 'terms', cascade_internal.known_terms(v_queue.queue_id),
        'told_generation', v_told.generation, 'told_tick', v_told.tick_id);
end
$$;
comment on function cascade.join_provider(text, jsonb) is 'Answers a node that wants to copy from this one.';

-- The answer: the first that applies.  docs/explain/model.md explores the same rules.
create or replace function cascade_internal.join_answer(queue cascade_internal.queue, subscriber jsonb, out answer text, out detail text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     constant integer := (join_answer.queue).queue_id;
    v_name   constant text := join_answer.subscriber->>'node';
    v_node   cascade_internal.node;
    v_member cascade_internal.member;
    v_t      cascade_internal.tick := jsonb_populate_record(null::cascade_internal.tick, join_answer.subscriber->'tick');
    v_last   cascade_internal.tick := cascade_internal.newest_tick(v_id, (join_answer.queue).slots);
    v_first  cascade_internal.tick;
    v_same   cascade_internal.tick;
    v_over   cascade_internal.term;
    v_pair   record;
begin
    select n.* into v_node from cascade_internal.node as n where n.queue_id = v_id;
    select m.* into v_member from cascade_internal.member as m where m.queue_id = v_id and m.node = v_name;
    if (join_answer.subscriber->>'set_uid')::uuid is distinct from v_node.set_uid or v_node.role = 'leaf' or v_name = v_node.node then
        raise exception 'node "%" cannot copy from "%"', v_name, v_node.node
            using errcode = 'QC208', hint = case when v_node.role = 'leaf' then 'A leaf keeps no queue.'
                                                 else 'They belong to different sets of one name, or are the same node.' end;
    end if;

    if v_member.node is null and v_last.tick_id < (join_answer.subscriber->>'known_from')::bigint then
        join_answer.answer := 'behind';
        join_answer.detail := format('%s stands at tick %s and has not heard of %s yet', v_node.node, v_last.tick_id, v_name);
        return;
    elsif v_member.node is null or v_member.state <> 'live' then
        join_answer.answer := 'dropped';
        join_answer.detail := format('%s is no member (%s)', v_name, coalesce(v_member.state, 'never added'));
        return;
    elsif (join_answer.subscriber->>'is_dirty')::boolean then
        join_answer.answer := 'dirty';
        join_answer.detail := format('%s has events after its last tick %s', v_name, v_t.tick_id);
        return;
    end if;

    select r.one, r.other into v_pair from cascade_internal.rival_terms(v_id) as r limit 1;
    if found then
        join_answer.answer := 'conflict';
        join_answer.detail := format('terms %s and %s exclude one another', v_pair.one, v_pair.other);
        return;
    end if;

    if cascade_internal.is_dropped(v_id) then
        join_answer.answer := 'stale';
        join_answer.detail := format('%s was dropped from the set, and gets nothing more', v_node.node);
        return;
    end if;

    -- The term that ended this root's, or this branch's before where it stands.
    v_over := cascade_internal.ended_by(v_id, v_last, v_node.role = 'root');
    if v_over.uid is not null then
        join_answer.answer := 'stale';
        join_answer.detail := format('%s stands beyond the end of term %s, which ended at tick %s', v_node.node, v_over.parent_uid, v_over.fork->>'tick_id');
        return;
    end if;

    if exists (select from cascade_internal.term as v where v.queue_id = v_id and v.uid = v_last.term_uid and v.voided_by is not null) then
        join_answer.answer := 'stale';
        join_answer.detail := format('%s stands in term %s, which an operator gave up', v_node.node, v_last.term_uid);
        return;
    end if;

    execute cascade_internal.ticks_query(join_answer.queue) || ' order by tick_id limit 1' into v_first;
    v_same := cascade_internal.find_tick(v_id, (join_answer.queue).slots, v_t.tick_id);
    if v_node.role = 'root' and v_t.term_uid = v_last.term_uid
       and (v_t.tick_id > v_last.tick_id or v_same.chain <> v_t.chain or (v_same.tick_id is null and v_t.tick_id >= v_first.tick_id)) then
        join_answer.answer := 'rewound';
        join_answer.detail := format('root %s has lost tick %s, which %s has', v_node.node, v_t.tick_id, v_name);
    elsif v_same.chain <> v_t.chain
          or v_same.tick_id is null and v_t.tick_id between v_first.tick_id and v_last.tick_id
          or not exists (select from cascade_internal.path_terms(v_id, v_last.term_uid) as p where p.uid = v_t.term_uid)
             and not exists (select from cascade_internal.path_terms(v_id, v_t.term_uid) as p where p.uid = v_last.term_uid)
          or exists (select from cascade_internal.path_terms(v_id, v_last.term_uid) as p where cascade_internal.is_past(v_t, p)) then
        join_answer.answer := 'diverged';
        join_answer.detail := format('%s and %s went different ways before tick %s', v_node.node, v_name, v_t.tick_id);
    elsif v_t.tick_id < v_first.tick_id then
        join_answer.answer := 'expired';
        join_answer.detail := format('%s needs what follows tick %s; the first held by %s is %s', v_name, v_t.tick_id, v_node.node, v_first.tick_id);
    elsif v_last.tick_id < v_t.tick_id then
        join_answer.answer := 'behind';
        join_answer.detail := format('%s stands at tick %s, %s at %s', v_node.node, v_last.tick_id, v_name, v_t.tick_id);
    else
        join_answer.answer := 'on path';
    end if;
end
$$;
comment on function cascade_internal.join_answer(cascade_internal.queue, jsonb) is 'Which of the nine answers a subscriber gets.';

create or replace function cascade_internal.path_terms(queue_id integer, uid uuid)
returns setof cascade_internal.term
language sql stable set search_path = pg_catalog, pg_temp
as $$
    with recursive path as (
        select t.* from cascade_internal.term as t
         where t.queue_id = path_terms.queue_id and t.uid = path_terms.uid
        union
        select t.* from cascade_internal.term as t join path as p on t.uid = p.parent_uid and t.queue_id = p.queue_id)
    select p.* from path as p
$$;
comment on function cascade_internal.path_terms(integer, uuid) is 'A term and all that led to it.';

-- Whether a tick lies beyond the fork at which a term ended the tick's own, or beside it: a root that lost
-- its tail makes other ticks under the same ids, and only their chains differ.
create or replace function cascade_internal.is_past(tick cascade_internal.tick, successor cascade_internal.term)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return (is_past.successor).parent_uid = (is_past.tick).term_uid
       and (((is_past.successor).fork->>'tick_id')::bigint < (is_past.tick).tick_id
            or ((is_past.successor).fork->>'tick_id')::bigint = (is_past.tick).tick_id
               and ((is_past.successor).fork->>'chain')::bytea <> (is_past.tick).chain);
end
$$;
comment on function cascade_internal.is_past(cascade_internal.tick, cascade_internal.term) is 'Whether a tick lies past the end that a later term made of its own.';

-- cascade.raise_answer(answer, detail): each answer that stops a node has an SQLSTATE and a remedy.
create or replace function cascade_internal.raise_answer(answer text, detail text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '%: %', raise_answer.answer, raise_answer.detail
        using errcode = case raise_answer.answer
                            when 'dropped' then 'QC701' when 'dirty' then 'QC702' when 'conflict' then 'QC703' when 'stale' then 'QC704'
                            when 'rewound' then 'QC705' when 'diverged' then 'QC706' when 'expired' then 'QC707' else 'QC708' end,
              hint = case raise_answer.answer
                         when 'dropped' then 'Add the node again: cascade node add.'
                         when 'dirty' then 'Its extra events must be set aside first: resurrect it.'
                         when 'conflict' then 'Two nodes were promoted at once: an operator keeps one.'
                         when 'stale' then 'Choose a provider of the present term: cascade node switch.'
                         when 'rewound' then 'The root''s database lost its tail: treat it as a failover whose old root answers.'
                         when 'diverged' then 'What it has beyond the common tick must be set aside first: resurrect it.'
                         when 'expired' then 'Switch to a provider that still holds the events, or seed the node anew.'
                         else 'Wait: the provider has to catch up first.' end;
end
$$;
comment on function cascade_internal.raise_answer(text, text) is 'Raises an answer that stops a node.';

-- cascade.note_answer(set, generation, answer, detail, terms): the subscriber stores what its provider
-- said, and the terms it did not know.  Nothing is written when nothing changed.
create or replace function cascade.note_answer("set" text, generation bigint, answer text, detail text, terms jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(note_answer."set");
begin
    perform cascade_internal.commit_durably();
    if cascade_internal.learn_terms(v_node.queue_id, note_answer.terms) > 0 then
        return (select n.generation from cascade_internal.node as n where n.queue_id = v_node.queue_id);
    end if;
    update cascade_internal.node as n
       set answer = note_answer.answer, answer_detail = note_answer.detail, answered_at = clock_timestamp()
     where n.queue_id = v_node.queue_id
       and n.generation = note_answer.generation
       and (n.answer, n.answer_detail) is distinct from (note_answer.answer, note_answer.detail);
    return v_node.generation;
end
$$;
comment on function cascade.note_answer(text, bigint, text, text, jsonb) is 'Stores a provider''s answer and the terms it named.';

-- cascade.raise_generation(set, generation): a node that was restored from a backup stands below what it
-- told before; only a new generation lets it say so.
create or replace function cascade.raise_generation("set" text, generation bigint)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(raise_generation."set");
begin
    perform cascade_internal.commit_durably();
    update cascade_internal.node as n
       set generation = greatest(n.generation, raise_generation.generation) + 1
     where n.queue_id = v_node.queue_id
    returning n.generation into v_node.generation;
    return v_node.generation;
end
$$;
comment on function cascade.raise_generation(text, bigint) is 'Gives this node a generation above one that was told before.';

-- cascade.register_subscriber(set, node, generation, at): a new node is about to copy from here.
-- Returns the tick it begins with, and holds it from now on.
create or replace function cascade.register_subscriber("set" text, node text, generation bigint, at text default 'earliest')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(register_subscriber."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(register_subscriber."set");
    v_tick  cascade_internal.tick;
begin
    perform cascade_internal.check_read_committed('registering');
    if not exists (select from cascade_internal.member as m
                    where m.queue_id = v_queue.queue_id and m.node = register_subscriber.node and m.state = 'live') then
        perform cascade_internal.raise_answer(case v_node.role when 'root' then 'dropped' else 'behind' end,
            format('%s knows no live member %s', v_node.node, register_subscriber.node));
    elsif v_node.role = 'leaf' then
        raise exception 'node "%" is a leaf and keeps no queue', v_node.node
            using errcode = 'QC208', hint = 'Copy from the root or from a branch.';
    end if;
    perform cascade_internal.commit_durably();
    if register_subscriber.at = 'now' then
        v_tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    else
        v_tick := cascade_internal.hold_tick(v_queue, register_subscriber.at);
    end if;
    perform cascade_internal.hear(v_queue.queue_id, register_subscriber.node, jsonb_build_array(jsonb_build_object(
        'node', register_subscriber.node, 'generation', register_subscriber.generation, 'term_uid', v_tick.term_uid,
        'tick_id', v_tick.tick_id, 'is_waiting', false, 'at', clock_timestamp())));
    return to_jsonb(v_tick) || case when v_queue.is_combined then jsonb_build_object('marks', cascade_internal.marks_at(v_queue, v_tick)) else '{}' end;
end
$$;
comment on function cascade.register_subscriber(text, text, bigint, text) is 'Holds the tick from which a new node will copy, and returns it.';
