-- cascade.describe_set(set): all that planning needs to know of this database's node.
create or replace function cascade.describe_set("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(describe_set."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(describe_set."set");
    v_tick  cascade_internal.tick;
    v_end   record;
    v_first bigint;
    v_fence cascade_internal.fence;
begin
    v_end := cascade_internal.look_at_end(v_queue);
    v_tick := v_end.tick;
    execute cascade_internal.ticks_query(v_queue) || ' order by tick_id limit 1' into v_first;
    select f.* into v_fence from cascade_internal.fence as f where f.queue_id = v_queue.queue_id;
    return jsonb_build_object(
        'set', v_queue.name, 'set_uid', v_node.set_uid, 'node', v_node.node, 'node_no', v_node.node_no, 'role', cascade_internal.shown_role(v_node),
        'into', v_node.into_set, 'parts', cascade_internal.describe_parts(v_queue),
        'provider', v_node.provider, 'generation', v_node.generation,
        'state', case when v_fence.queue_id is not null then 'fenced' else v_node.state end,
        'fence', case when v_fence.queue_id is not null then to_jsonb(v_fence) - 'queue_id' end,
        'answer', v_node.answer, 'answer_detail', v_node.answer_detail,
        'tick', to_jsonb(v_tick), 'first_tick', v_first, 'term_uid', v_tick.term_uid,
        'term', (select t.number from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = v_tick.term_uid),
        'next_number', cascade.next_term_number(describe_set."set"),
        'is_dirty', v_end.is_dirty, 'watermark', cascade_internal.watermark(v_queue),
        'highest_told', (select max(t.tick_id) from cascade_internal.told as t where t.queue_id = v_queue.queue_id),
        'terms', cascade_internal.known_terms(v_queue.queue_id),
        'members', (select coalesce(jsonb_agg(jsonb_build_object(
                        'node', m.node, 'node_no', m.node_no, 'role', cascade_internal.member_role(m, v_queue.is_combined), 'state', m.state, 'generation', p.generation,
                        'tick_id', p.tick_id, 'heard_at', p.heard_at, 'location', m.location) order by m.node_no), '[]')
                      from cascade_internal.member as m join cascade_internal.member_positions(v_queue) as p on p.node = m.node
                     where m.queue_id = v_queue.queue_id),
        'operation', (select to_jsonb(o) - 'queue_id' - 'ended_at' - 'outcome' from cascade_internal.operation as o
                       where o.queue_id = v_queue.queue_id and o.ended_at is null),
        'handover', (select to_jsonb(h) - 'queue_id' from cascade_internal.handover as h
                      where h.queue_id = v_queue.queue_id order by h.at desc limit 1),
        'ballots', (select coalesce(jsonb_agg(to_jsonb(b) - 'queue_id' - 'closed_at'
                                              || jsonb_build_object('is_fresh', cascade_internal.is_fresh(b)) order by b.number), '[]') from cascade_internal.ballot as b
                     where b.queue_id = v_queue.queue_id and b.closed_at is null),
        'revision', coalesce((select d.revision from cascade_internal.document as d where d.queue_id = v_queue.queue_id), 0),
        'document', (select d.document from cascade_internal.document as d where d.queue_id = v_queue.queue_id),
        'writers', (select coalesce(jsonb_agg(jsonb_build_object('pid', w.pid, 'age_s', w.age_s, 'query', w.query)), '[]')
                      from cascade_internal.queue_writers(v_queue) as w where w.pid is not null),
        'prepared', (select coalesce(jsonb_agg(jsonb_build_object('gid', w.gid, 'age_s', w.age_s)), '[]')
                       from cascade_internal.queue_writers(v_queue) as w where w.pid is null),
        'consumers', (select coalesce(jsonb_agg(jsonb_build_object('consumer', c.consumer, 'tick_id', c.tick_id) order by c.consumer), '[]')
                        from cascade_internal.consumer_state(v_queue) as c where c.consumer not like '.%'),
        'certificates', (select coalesce(jsonb_agg(cascade_internal.show_certificate(v_queue.name, c) order by c.number), '[]')
                           from cascade_internal.certificate as c where c.queue_id = v_queue.queue_id),
        'quarantined', (select count(*) from cascade_internal.quarantine as x where x."set" = v_queue.name and x.state = 'held'));
end
$$;
comment on function cascade.describe_set(text) is 'All that planning needs to know of this database''s node in a set.';

-- cascade.store_document(set, expected_revision, document): the wanted topology, changed at the root by compare-and-swap.
create or replace function cascade.store_document("set" text, expected_revision bigint, document jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root     cascade_internal.node := cascade_internal.find_root(store_document."set");
    v_queue    cascade_internal.queue := cascade_internal.lock_queue(store_document."set");
    v_revision bigint := coalesce((select d.revision from cascade_internal.document as d where d.queue_id = v_queue.queue_id), 0);
begin
    if v_revision <> coalesce(store_document.expected_revision, 0) then
        raise exception 'the topology of set "%" has revision %, not %', store_document."set", v_revision, store_document.expected_revision
            using errcode = 'QC209', hint = 'Somebody applied another file: cascade topology export prints what is in force.';
    end if;
    perform cascade_internal.put_document(v_queue, v_revision + 1, store_document.document);
    perform cascade_internal.note_step(store_document."set", null, 'store document', jsonb_build_object('revision', v_revision + 1));
    return v_revision + 1;
end
$$;
comment on function cascade.store_document(text, bigint, jsonb) is 'Stores the topology of a set, if nobody else did meanwhile.';

create or replace function cascade_internal.put_document(queue cascade_internal.queue, revision bigint, document jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform cascade_internal.learn_document((put_document.queue).queue_id, put_document.revision, put_document.document);
    perform cascade_internal.post_control(put_document.queue, 'cascade.topology',
        jsonb_build_object('revision', put_document.revision, 'document', put_document.document));
end
$$;
comment on function cascade_internal.put_document(cascade_internal.queue, bigint, jsonb) is 'Stores and publishes the topology of a set.';

create or replace function cascade_internal.learn_document(queue_id integer, revision bigint, document jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.document as d (queue_id, revision, document)
    values (learn_document.queue_id, learn_document.revision, learn_document.document)
    on conflict on constraint document_pkey do update set revision = excluded.revision, document = excluded.document, at = clock_timestamp();
end
$$;
comment on function cascade_internal.learn_document(integer, bigint, jsonb) is 'Stores the topology of a set.';

-- cascade.resolve(set, keep, reason): two terms exclude one another; an operator keeps one.  Called on every node that can be reached, the
-- roots first: the other terms of that number or parent, and what followed them, are over.  What was told already may be told
-- again: a root that has heard of it from somebody else goes on, or stands down, all the same.
create or replace function cascade.resolve("set" text, keep uuid, reason text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(resolve."set");
    v_node  cascade_internal.node := cascade_internal.find_node(resolve."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_voided uuid[];
begin
    if not exists (select from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = resolve.keep and t.voided_by is null) then
        raise exception 'set "%" knows no term %', resolve."set", resolve.keep
            using errcode = 'QC106', hint = 'cascade history lists them.';
    end if;
    with recursive lost as (
        select case when r.one = p.uid then r.other else r.one end as uid
          from cascade_internal.rival_terms(v_queue.queue_id) as r
          join cascade_internal.path_terms(v_queue.queue_id, resolve.keep) as p on p.uid in (r.one, r.other)
        union
        select t.uid from cascade_internal.term as t join lost as l on t.parent_uid = l.uid where t.queue_id = v_queue.queue_id)
    select coalesce(array_agg(l.uid), '{}') into v_voided from lost as l;
    update cascade_internal.term as t set voided_by = resolve.keep where t.queue_id = v_queue.queue_id and t.uid = any (v_voided);
    update cascade_internal.node as n set generation = n.generation + 1, answer = null, answer_detail = null, answered_at = null where n.queue_id = v_queue.queue_id;
    if v_node.role = 'root' then
        if v_last.term_uid = any (v_voided) then
            perform cascade_internal.want_fence(v_queue, 'over', format('an operator kept term %s: %s', resolve.keep, resolve.reason));
        end if;
        perform cascade_internal.heed_terms(v_queue, resolve.reason);
    end if;
    perform cascade_internal.note_step(v_queue.name, null, 'resolve', jsonb_build_object('keep', resolve.keep, 'voided', v_voided, 'reason', resolve.reason));
    perform pg_notify('cascade_node', v_queue.name);
    return jsonb_build_object('node', v_node.node, 'kept', resolve.keep, 'voided', to_jsonb(v_voided));
end
$$;
comment on function cascade.resolve(text, uuid, text) is 'Keeps one of two terms that exclude one another.';

-- What the views of failover show.
create or replace function cascade_internal.list_certificates()
returns table ("set" text, number integer, state text, term_uid uuid, new_uid uuid, fork_tick bigint, cause text, reason text, fenced_by text,
               pending text[], tail bigint, republished bigint, discarded bigint, duplicates bigint, held bigint, phantoms bigint,
               opened_at timestamptz, closed_at timestamptz, certificate jsonb)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select q.name, c.number, c.state, c.term_uid, c.new_uid, (x.j->>'fork_tick')::bigint, c.cause, c.reason, c.fenced_by, c.pending,
           (x.j->>'tail')::bigint, (x.j->>'republished')::bigint, (x.j->>'discarded')::bigint, (x.j->>'duplicates')::bigint, (x.j->>'held')::bigint,
           jsonb_array_length(x.j->'phantoms')::bigint, c.opened_at, c.closed_at, x.j
      from cascade_internal.certificate as c
      join cascade_internal.queue as q using (queue_id)
     cross join lateral (select cascade_internal.show_certificate(q.name, c)) as x(j)
     order by q.name, c.number
$$;
comment on function cascade_internal.list_certificates() is 'The certificates of this database''s sets.';

create or replace function cascade_internal.list_quarantine()
returns table ("set" text, term_uid uuid, state text, events bigint, first_id bigint, last_id bigint, first_time timestamptz, last_time timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select x."set", x.term_uid, x.state, count(*), min(x.id), max(x.id), min(x."time"), max(x."time")
      from cascade_internal.quarantine as x
     group by 1, 2, 3 order by 1, 5
$$;
comment on function cascade_internal.list_quarantine() is 'What was set aside here, by term and state.';

create or replace function cascade_internal.list_journal()
returns table (journal_id bigint, "set" text, node text, op_id uuid, step text, detail jsonb, by_role text, at timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select j.journal_id, j."set", j.node, j.op_id, j.step, j.detail, j.by_role, j.at from cascade_internal.journal as j order by j.journal_id
$$;
comment on function cascade_internal.list_journal() is 'What was done to the sets of this database.';
