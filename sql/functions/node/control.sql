-- Control events carry what every node must learn, in the log itself.  What makes one is its
-- origin, a column that producers are not granted; its type only says which kind.
create or replace function cascade_internal.post_control(queue cascade_internal.queue, type text, payload jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if (post_control.queue).is_combined then
        perform cascade_internal.post_mark(post_control.queue, post_control.type, post_control.payload);
        return;
    end if;
    execute format('insert into queue.%I (type, payload, origin) values ($1, $2, ''.cascade'')', (post_control.queue).name)
      using post_control.type, post_control.payload::json;
end
$$;
comment on function cascade_internal.post_control(cascade_internal.queue, text, jsonb) is 'Writes a control event into the log.';

-- Applies the control events between two ticks on a copy, in the order in which they were made.
create or replace function cascade_internal.apply_controls(
    queue cascade_internal.queue, prev cascade_internal.tick, cur cascade_internal.tick)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_type    text;
    v_payload jsonb;
begin
    for v_type, v_payload in
        execute cascade_internal.batch_arms(apply_controls.queue, apply_controls.prev, apply_controls.cur,
                                            'e.type, e.payload::jsonb, e.id', 'e.origin = ''.cascade''') || ' order by 3'
    loop
        perform cascade_internal.apply_control(apply_controls.queue, v_type, v_payload);
    end loop;
end
$$;
comment on function cascade_internal.apply_controls(cascade_internal.queue, cascade_internal.tick, cascade_internal.tick)
    is 'Applies the control events between two ticks.';

create or replace function cascade_internal.apply_control(queue cascade_internal.queue, type text, payload jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    case apply_control.type
        when 'cascade.member' then
            perform cascade_internal.learn_members((apply_control.queue).queue_id, jsonb_build_array(apply_control.payload));
        when 'cascade.global-watermark' then
            perform cascade_internal.move_watermark(apply_control.queue, (apply_control.payload->>'tick_id')::bigint);
        when 'cascade.tick', 'cascade.fork' then
            if (apply_control.queue).is_combined then
                perform cascade_internal.learn_mark(apply_control.queue, apply_control.type, apply_control.payload);
            end if;
        when 'cascade.merged' then
            if (apply_control.queue).is_combined then
                perform cascade_internal.learn_merged(apply_control.queue, apply_control.payload);
            end if;
        when 'cascade.consumers' then
            perform cascade_internal.learn_consumers((apply_control.queue).queue_id, apply_control.payload);
        when 'cascade.recreated' then
            perform cascade_internal.release_consumers(apply_control.queue, apply_control.payload);
        when 'cascade.term' then
            perform cascade_internal.learn_terms((apply_control.queue).queue_id, jsonb_build_array(apply_control.payload));
        when 'cascade.handover' then
            insert into cascade_internal.handover (queue_id, uid, term_uid, from_node, target, state, closing_tick, op_id)
            select (apply_control.queue).queue_id, x.uid, x.term_uid, x.from_node, x.target, 'heard', x.closing_tick, x.op_id
              from jsonb_populate_record(null::cascade_internal.handover, apply_control.payload) as x
            on conflict on constraint handover_pkey do nothing;
            perform pg_notify('cascade_node', (apply_control.queue).name);
        when 'cascade.certificate' then
            perform cascade_internal.learn_certificate((apply_control.queue).queue_id, apply_control.payload);
        when 'cascade.republished' then
            insert into cascade_internal.republished (queue_id, term_uid, id, digest, new_id)
            values ((apply_control.queue).queue_id, (apply_control.payload->>'term_uid')::uuid, (apply_control.payload->>'id')::bigint,
                    apply_control.payload->>'digest', (apply_control.payload->>'new_id')::bigint)
            on conflict on constraint republished_pkey do nothing;
        when 'cascade.topology' then
            perform cascade_internal.learn_document((apply_control.queue).queue_id, (apply_control.payload->>'revision')::bigint,
                                                    apply_control.payload->'document');
        else
            -- A newer root may publish what this version does not know; it is kept in the log.
            null;
    end case;
end
$$;
comment on function cascade_internal.apply_control(cascade_internal.queue, text, jsonb) is 'Learns what one control event says.';

-- Stores members that are new, or newer than what is known.  A node that learns of its own drop
-- raises its generation: what it has in hand cannot land any more.
create or replace function cascade_internal.learn_members(queue_id integer, members jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.member as m (queue_id, node, node_no, role, state, generation, since_tick, location, version, changed_at, into_set, reign)
    select learn_members.queue_id, x.node, x.node_no, x.role, x.state, x.generation, x.since_tick, x.location, x.version, x.changed_at, x.into_set, x.reign
      from jsonb_populate_recordset(null::cascade_internal.member, learn_members.members) as x
    on conflict on constraint member_pkey do update
       set role = excluded.role, state = excluded.state, generation = excluded.generation, since_tick = excluded.since_tick,
           location = excluded.location, version = excluded.version, changed_at = excluded.changed_at,
           into_set = excluded.into_set, reign = excluded.reign
     where m.version < excluded.version;
    update cascade_internal.node as n
       set generation = n.generation + 1, answer = 'dropped', answer_detail = 'the root dropped this member', answered_at = clock_timestamp()
     where n.queue_id = learn_members.queue_id
       and n.answer is distinct from 'dropped'
       and exists (select from cascade_internal.member as m
                    where m.queue_id = n.queue_id and m.node = n.node and m.state = 'dropped');
    delete from cascade_internal.told as t
     where t.queue_id = learn_members.queue_id
       and exists (select from cascade_internal.member as m
                    where m.queue_id = t.queue_id and m.node = t.node and m.state = 'dropped');
end
$$;
comment on function cascade_internal.learn_members(integer, jsonb) is 'Stores what the root published about members.';

-- Stores terms that are not known yet, and closes their ballots.  A node whose own term turns out to have ended raises its generation.
create or replace function cascade_internal.learn_terms(queue_id integer, terms jsonb)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_count integer;
begin
    insert into cascade_internal.term as t (queue_id, uid, number, node, parent_uid, fork, cause, reason, at, voided_by)
    -- Whoever collects what several nodes know has some of them twice.
    select distinct on (x.uid) learn_terms.queue_id, x.uid, x.number, x.node, x.parent_uid, x.fork, x.cause, x.reason, x.at, x.voided_by
      from jsonb_populate_recordset(null::cascade_internal.term, learn_terms.terms) as x
     order by x.uid, x.voided_by nulls last
    on conflict on constraint term_pkey do update set voided_by = excluded.voided_by
     where t.voided_by is null and excluded.voided_by is not null;
    get diagnostics v_count = row_count;
    if v_count > 0 then
        update cascade_internal.node as n set generation = n.generation + 1 where n.queue_id = learn_terms.queue_id;
        -- A promotion that has come about holds nobody back any more.
        update cascade_internal.ballot as b set closed_at = clock_timestamp()
         where b.queue_id = learn_terms.queue_id and b.closed_at is null
           and exists (select from cascade_internal.term as t where t.queue_id = b.queue_id and t.uid = b.uid);
    end if;
    return v_count;
end
$$;
comment on function cascade_internal.learn_terms(integer, jsonb) is 'Stores terms that were not known, and says how many.';

create or replace function cascade_internal.learn_certificate(queue_id integer, certificate jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.certificate as c (queue_id, number, term_uid, new_uid, fork, cause, reason, fenced_by, evidence, pending, reports, state, opened_at, closed_at, version)
    select learn_certificate.queue_id, x.number, x.term_uid, x.new_uid, x.fork, x.cause, x.reason, x.fenced_by, x.evidence, x.pending, x.reports, x.state,
           x.opened_at, x.closed_at, x.version
      from jsonb_populate_record(null::cascade_internal.certificate, learn_certificate.certificate) as x
    on conflict on constraint certificate_pkey do update
       set pending = excluded.pending, evidence = excluded.evidence, reports = excluded.reports, state = excluded.state, closed_at = excluded.closed_at, version = excluded.version
     where c.version < excluded.version;
end
$$;
comment on function cascade_internal.learn_certificate(integer, jsonb) is 'Stores a certificate as the root published it.';

create or replace function cascade_internal.known_terms(queue_id integer)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(jsonb_agg(to_jsonb(t) - 'queue_id' order by t.number, t.uid), '[]')
              from cascade_internal.term as t where t.queue_id = known_terms.queue_id);
end
$$;
comment on function cascade_internal.known_terms(integer) is 'Every term known here, for a handshake.';

create or replace function cascade_internal.known_members(queue_id integer)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(jsonb_agg(to_jsonb(m) - 'queue_id' order by m.node_no), '[]')
              from cascade_internal.member as m where m.queue_id = known_members.queue_id);
end
$$;
comment on function cascade_internal.known_members(integer) is 'Every member known here, for a new one.';
