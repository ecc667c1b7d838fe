-- Closing the books: certificates of loss, what was set aside, and what became of each event of it.

-- Ids are few ranges: a certificate keeps them so, and counts them.
create or replace function cascade_internal.count_ids(ids int8multirange)
returns bigint
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(count_ids.ids) as r
$$;
comment on function cascade_internal.count_ids(int8multirange) is 'How many numbers there are in ranges.';

-- A failover opens one.  What was lost is a set: the events of the old term that the fork's snapshot does not see.
create or replace function cascade_internal.open_certificate(queue cascade_internal.queue, term cascade_internal.term, facts jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_made    cascade_internal.certificate;
    v_closing constant boolean := exists (select from cascade_internal.handover as h
                                           where h.queue_id = (open_certificate.queue).queue_id and h.term_uid = (open_certificate.term).parent_uid
                                             and h.closing_tick = ((open_certificate.term).fork->>'tick_id')::bigint);
begin
    if (open_certificate.term).cause not in ('failover', 'rewind') then
        return;
    end if;
    insert into cascade_internal.certificate (queue_id, number, term_uid, new_uid, fork, cause, reason, fenced_by, evidence, pending)
    select (open_certificate.queue).queue_id,
           coalesce((select max(c.number) from cascade_internal.certificate as c where c.queue_id = (open_certificate.queue).queue_id), 0) + 1,
           (open_certificate.term).parent_uid, (open_certificate.term).uid, (open_certificate.term).fork, (open_certificate.term).cause,
           open_certificate.facts->>'reason', open_certificate.facts->>'fenced_by',
           coalesce(open_certificate.facts->'evidence', '{}') || jsonb_build_object('is_closing_tick', v_closing),
           -- Whoever reigned in what is cut off, those who were not there when the fork was chosen, and those who were and stand
           -- beside it: their last tick is not here.  Also after a closing tick: the old root may have gone on in another term.
           array(select distinct x from (
               select l.node from cascade_internal.lost_terms((open_certificate.queue).queue_id, (open_certificate.term).uid) as l
               union all select jsonb_array_elements_text(coalesce(open_certificate.facts->'without', '[]'))
               union all select p.key from jsonb_each(coalesce(open_certificate.facts->'positions', '{}')) as p
                          where (cascade_internal.find_tick((open_certificate.queue).queue_id, (open_certificate.queue).slots,
                                                            (p.value->>0)::bigint)).chain is distinct from (p.value->>1)::bytea) as o(x)
              where x <> (open_certificate.term).node or (open_certificate.term).cause = 'rewind' order by x)
    returning certificate.* into v_made;
    perform cascade_internal.post_control(open_certificate.queue, 'cascade.certificate', to_jsonb(v_made) - 'queue_id');
end
$$;
comment on function cascade_internal.open_certificate(cascade_internal.queue, cascade_internal.term, jsonb) is 'Writes down what a failover may have lost.';

-- What the terms that an operator gave up had is accounted for like any lost tail: by the certificate of the term that they stood beside,
-- which this root's is or follows.  It is opened again, or opened, if that term was handed over and lost nothing by itself.  Once
-- for each term given up: who was read meanwhile is not waited for again.
create or replace function cascade_internal.account_for_voided(queue cascade_internal.queue, reason text default null)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (account_for_voided.queue).queue_id;
    v_found record;
    v_made  cascade_internal.certificate;
begin
    if exists (select from cascade_internal.fence as f where f.queue_id = v_id) then
        return; -- Nothing can be published yet.
    end if;
    for v_found in
        with recursive lost as (
            select k.uid as kept, l.uid, l.node
              from cascade_internal.path_terms(v_id, (account_for_voided.queue).term_uid) as k
              join cascade_internal.term as l on l.queue_id = v_id and l.voided_by is not null
             where k.parent_uid is not null
               and (k.number = l.number
                    or cascade_internal.is_continued(k) = cascade_internal.is_continued(l)
                       and cascade_internal.reign_of(v_id, k.parent_uid) = cascade_internal.reign_of(v_id, l.parent_uid))
            union
            select l.kept, t.uid, t.node from cascade_internal.term as t join lost as l on t.parent_uid = l.uid where t.queue_id = v_id)
        select k.parent_uid, k.uid, k.fork, c.new_uid is not null as is_there,
               jsonb_build_object('voided', coalesce(c.evidence->'voided', '[]') || jsonb_agg(l.uid order by l.uid)) as evidence,
               array(select distinct x from unnest(c.pending || array_agg(l.node)) as x order by 1) as pending
          from lost as l
          join cascade_internal.term as k on k.queue_id = v_id and k.uid = l.kept
          left join cascade_internal.certificate as c on c.queue_id = v_id and c.new_uid = k.uid
         where not coalesce(c.evidence->'voided', '[]') ? l.uid::text
         group by k.parent_uid, k.uid, k.fork, k.number, c.new_uid, c.evidence, c.pending
         order by k.number
    loop
        if v_found.is_there then
            update cascade_internal.certificate as c
               set pending = v_found.pending, evidence = c.evidence || v_found.evidence, state = 'open', closed_at = null, version = c.version + 1
             where c.queue_id = v_id and c.new_uid = v_found.uid
            returning c.* into v_made;
        else
            insert into cascade_internal.certificate (queue_id, number, term_uid, new_uid, fork, cause, reason, evidence, pending)
            select v_id, coalesce(max(c.number), 0) + 1, v_found.parent_uid, v_found.uid, v_found.fork, 'conflict',
                   account_for_voided.reason, v_found.evidence, v_found.pending
              from cascade_internal.certificate as c where c.queue_id = v_id
            returning certificate.* into v_made;
        end if;
        perform cascade_internal.post_control(account_for_voided.queue, 'cascade.certificate', to_jsonb(v_made) - 'queue_id');
    end loop;
end
$$;
comment on function cascade_internal.account_for_voided(cascade_internal.queue, text) is 'Has certificates wait for those whose terms an operator gave up.';

-- The terms whose ends a promotion may have cut off: that of the fork, those between it and the new one, and whatever left the
-- path after the fork.
create or replace function cascade_internal.lost_terms(queue_id integer, new_uid uuid)
returns setof cascade_internal.term
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_from uuid := (select (t.fork->>'term_uid')::uuid from cascade_internal.term as t where t.queue_id = lost_terms.queue_id and t.uid = lost_terms.new_uid);
begin
    return query
        select t.* from cascade_internal.term as t
         where t.queue_id = lost_terms.queue_id
           and t.uid <> lost_terms.new_uid
           and exists (select from cascade_internal.path_terms(lost_terms.queue_id, t.uid) as p where p.uid = v_from)
           and not exists (select from cascade_internal.path_terms(lost_terms.queue_id, t.uid) as p where p.uid = lost_terms.new_uid);
end
$$;
comment on function cascade_internal.lost_terms(integer, uuid) is 'The terms whose ends a promotion may have cut off.';

-- cascade.certificate_report(set, new_uid): what this node had beyond the fork that a term made, by what became of it, as ranges of
-- ids, and who here had processed any of it.
create or replace function cascade.certificate_report("set" text, new_uid uuid)
returns jsonb
-- It is compared with what another session told.
language plpgsql security definer set search_path = pg_catalog, pg_temp set timezone = 'UTC'
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(certificate_report."set");
begin
    return jsonb_build_object('node', v_node.node) || coalesce(
        (select jsonb_object_agg(x.state, x.ids) from (
            select q.state, range_agg(int8range(q.id, q.id + 1))::text as ids
              from cascade_internal.quarantine as q
             where q."set" = certificate_report."set" and q.state <> 'control'
               -- What is in the log under its own id lies before the fork: it was never lost.
               and not (q.state = 'duplicate' and q.new_id = q.id)
               and q.term_uid in (select l.uid from cascade_internal.lost_terms(v_node.queue_id, certificate_report.new_uid) as l)
             group by q.state) as x), '{}')
        || jsonb_build_object('phantoms', coalesce(
            (select jsonb_agg(to_jsonb(p) - 'set' - 'term_uid' order by p.consumer, p.term_uid) from cascade_internal.phantom as p
              where p."set" = certificate_report."set"
                and p.term_uid in (select l.uid from cascade_internal.lost_terms(v_node.queue_id, certificate_report.new_uid) as l)), '[]'));
end
$$;
comment on function cascade.certificate_report(text, uuid) is 'What this node had beyond a fork, and what became of it.';

-- cascade.amend_certificate(set, new_uid, report): stored at the root, and published.  The newest report of a node counts.  Closed
-- when no carrier is left that was not read; an event that is held stays counted as held.
create or replace function cascade.amend_certificate("set" text, new_uid uuid, report jsonb)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(amend_certificate."set");
    v_queue cascade_internal.queue := cascade_internal.lock_queue(amend_certificate."set");
    v_made  cascade_internal.certificate;
    v_name  constant text := amend_certificate.report->>'node';
begin
    update cascade_internal.certificate as c
       set reports = c.reports || jsonb_build_object(v_name, amend_certificate.report - 'node'),
           pending = array_remove(c.pending, v_name),
           state = case when array_remove(c.pending, v_name) = '{}' then 'closed' else 'open' end,
           closed_at = case when array_remove(c.pending, v_name) = '{}' then coalesce(c.closed_at, clock_timestamp()) end,
           version = c.version + 1
     where c.queue_id = v_queue.queue_id and c.new_uid = amend_certificate.new_uid
       and (c.reports->v_name is distinct from amend_certificate.report - 'node' or v_name = any (c.pending))
    returning c.* into v_made;
    if found then
        perform cascade_internal.post_control(v_queue, 'cascade.certificate', to_jsonb(v_made) - 'queue_id');
        perform cascade_internal.note_step(v_queue.name, null, 'certificate', jsonb_build_object('number', v_made.number, 'node', v_name, 'state', v_made.state));
    else
        select c.* into v_made from cascade_internal.certificate as c where c.queue_id = v_queue.queue_id and c.new_uid = amend_certificate.new_uid;
        if not found then
            raise exception 'set "%" has no certificate for term %', amend_certificate."set", amend_certificate.new_uid
                using errcode = 'QC106', hint = 'The view cascade.certificates lists them.';
        end if;
    end if;
    return cascade_internal.show_certificate(v_queue.name, v_made);
end
$$;
comment on function cascade.amend_certificate(text, uuid, jsonb) is 'Adds a node''s report to a certificate, at the root.';

-- cascade.declare_destroyed(set, new_uid, node, reason): that carrier never returns; whatever only it had is lost, and this says so.
create or replace function cascade.declare_destroyed("set" text, new_uid uuid, node text, reason text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(trim(declare_destroyed.reason), '') = '' then
        raise exception 'a database is not declared destroyed without a reason'
            using errcode = 'QC003', hint = 'Say how it is known: it will be read by others.';
    end if;
    return cascade.amend_certificate(declare_destroyed."set", declare_destroyed.new_uid,
        jsonb_build_object('node', declare_destroyed.node, 'destroyed', declare_destroyed.reason, 'phantoms', '[]'::jsonb));
end
$$;
comment on function cascade.declare_destroyed(text, uuid, text, text) is 'Closes a certificate''s account of a carrier that never returns.';

-- The numbers of a certificate.  A row that two carriers had is one event; what became of one copy became of it.
create or replace function cascade_internal.show_certificate("set" text, certificate cascade_internal.certificate)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_states constant text[] := array['republished', 'discarded', 'duplicate', 'held'];
    v_state  text;
    v_ids    int8multirange;
    v_all    int8multirange := '{}';
    v_copies bigint := 0;
    v_counts jsonb := '{}';
begin
    foreach v_state in array v_states loop
        select coalesce(range_agg(r), '{}'), v_copies + coalesce(sum(upper(r) - lower(r)), 0) into v_ids, v_copies
          from jsonb_each((show_certificate.certificate).reports) as n,
               unnest(coalesce((n.value->>v_state)::int8multirange, '{}')) as r;
        v_counts := v_counts || jsonb_build_object(case v_state when 'duplicate' then 'duplicates' else v_state end, cascade_internal.count_ids(v_ids - v_all));
        v_all := v_all + v_ids;
    end loop;
    return (to_jsonb(show_certificate.certificate) - 'queue_id' - 'version' - 'fork')
        || jsonb_build_object('set', show_certificate."set", 'fork_tick', ((show_certificate.certificate).fork->>'tick_id')::bigint,
                              'tail', cascade_internal.count_ids(v_all), 'copies', v_copies - cascade_internal.count_ids(v_all))
        || v_counts
        || jsonb_build_object('phantoms', (select coalesce(jsonb_agg(p), '[]') from jsonb_each((show_certificate.certificate).reports) as n,
                                                  jsonb_array_elements(coalesce(n.value->'phantoms', '[]')) as p));
end
$$;
comment on function cascade_internal.show_certificate(text, cascade_internal.certificate) is 'A certificate with its numbers.';

-- What tells two events of one id apart: what they say, the same on every server, whatever its time zone.
create or replace function cascade_internal.event_digest("time" timestamptz, type text, key text, payload text, headers text)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select md5(concat_ws('|', extract(epoch from event_digest."time"), event_digest.type, event_digest.key, event_digest.payload, event_digest.headers))
$$;
comment on function cascade_internal.event_digest(timestamptz, text, text, text, text) is 'What an event says, as one value to compare.';

-- How far each term goes on the path of this log: up to the fork that ended it, the newest one without end.
create or replace function cascade_internal.ends_of_path(queue cascade_internal.queue)
returns table (number bigint, tick_id bigint, high bigint, event_seq bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_uid constant uuid := (cascade_internal.newest_tick((ends_of_path.queue).queue_id, (ends_of_path.queue).slots)).term_uid;
begin
    return query
        with path as materialized (
            select p.* from cascade_internal.path_terms((ends_of_path.queue).queue_id, v_uid) as p)
        -- A term of which this path has no tick is not among them.
        select p.number, f.tick_id, f.high, f.event_seq
          from path as p,
               lateral (select (e.fork->>'tick_id')::bigint as tick_id, (e.fork->>'high')::bigint as high, (e.fork->>'event_seq')::bigint as event_seq
                          from path as e where (e.fork->>'term_uid')::uuid = p.uid order by 1 limit 1) as f
         where p.uid <> v_uid
         union all
        select p.number, 9223372036854775807, 9223372036854775807, 9223372036854775807
          from path as p where p.uid = v_uid;
end
$$;
comment on function cascade_internal.ends_of_path(cascade_internal.queue) is 'How far each term goes on the path of a log.';

-- Whether an event is in this log under that id.  No index has the ids; but no tick sees an event whose id was handed out after
-- it, so the event lies behind the last tick that is too old for it: its transaction had begun before the next one, or, when the id was
-- reserved, later.  What rotation has taken away is not found.
create or replace function cascade_internal.is_logged(queue cascade_internal.queue, id bigint, digest text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_ticks constant text := cascade_internal.held_ticks(is_logged.queue);
    v_end   record;
    v_prev  cascade_internal.tick;
    v_next  bigint;
    v_high  bigint;
    v_slot  integer;
    v_found boolean;
begin
    select e.* into v_end from cascade_internal.ends_of_path(is_logged.queue) as e
     where e.number = is_logged.id / 1000000000000 and e.event_seq >= is_logged.id;
    if not found then
        return false;
    end if;
    execute format('select x.* from (%s) as x where x.tick_id < $1 and x.event_seq < $2 order by x.tick_id desc limit 1', v_ticks)
       into v_prev using v_end.tick_id, is_logged.id;
    execute format('select x.high from (%s) as x where x.tick_id > $1 and x.tick_id <= $2 order by x.tick_id limit 1', v_ticks)
       into v_next using coalesce(v_prev.tick_id, 0), v_end.tick_id;
    foreach v_high in array array[v_next, v_end.high] loop
        for v_slot in 0 .. (is_logged.queue).slots - 1 loop
            execute format('select exists (select from cascade_internal.event_%s_%s as e'
                           ' where (e.txid >= $1 and e.txid < $2 or e.txid = any ($3)) and e.id = $4'
                           ' and cascade_internal.event_digest(e."time", e.type, e.key, e.payload::text, e.headers::text) = $5)',
                           (is_logged.queue).queue_id, v_slot)
               into v_found using coalesce(v_prev.high, 0), v_high, coalesce(v_prev."open", '{}'), is_logged.id, is_logged.digest;
            if v_found then
                return true;
            end if;
        end loop;
    end loop;
    return false;
end
$$;
comment on function cascade_internal.is_logged(cascade_internal.queue, bigint, text) is 'Whether an event is in the log under an id.';

-- cascade.quarantine_keys(set, after, max): events that were set aside here and not discarded, each by its term, its id, the id it had
-- first, and a digest of it.  Those that were republished are among them: a term into which they were may have been given up.
create or replace function cascade.quarantine_keys("set" text, after bigint default 0, max integer default 1000)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object('term_uid', x.term_uid, 'id', x.id, 'first_id', x.first_id, 'digest', x.digest,
                                                 'origin', x.origin, 'origin_id', x.origin_id) order by x.id), '[]')
      from (select q.term_uid, q.id, q.origin, q.origin_id, case when q.origin = q."set" then coalesce(q.origin_id, q.id) else q.id end as first_id,
                   cascade_internal.event_digest(q."time", q.type, q.key, q.payload::text, q.headers::text) as digest
              from cascade_internal.quarantine as q
             where q."set" = quarantine_keys."set" and q.state in ('held', 'republished') and q.id > quarantine_keys.after
             order by q.id
             limit quarantine_keys.max) as x
$$;
comment on function cascade.quarantine_keys(text, bigint, integer) is 'Events that were set aside here, by what tells whether a log has them.';

-- cascade.find_logged(set, keys): those of the events set aside at some node that this log has, with the id under which it has them.  After a
-- conflict the path that is kept may have what another one had lost.
create or replace function cascade.find_logged("set" text, keys jsonb)
returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(find_logged."set");
    v_key   record;
    v_found jsonb := '[]';
begin
    if v_queue.is_combined then
        return cascade_internal.find_merged(v_queue, find_logged.keys);
    end if;
    -- Most lie beyond the fork by their number alone, and cost no look.
    for v_key in
        select k.term_uid, k.id, k.digest, x.id as new_id
          from jsonb_to_recordset(find_logged.keys) as k(term_uid uuid, id bigint, first_id bigint, digest text)
         cross join lateral (select k.first_id union select k.id) as x(id)
          join cascade_internal.ends_of_path(v_queue) as e on e.number = x.id / 1000000000000 and e.event_seq >= x.id
    loop
        if cascade_internal.is_logged(v_queue, v_key.new_id, v_key.digest) then
            v_found := v_found || jsonb_build_object('term_uid', v_key.term_uid, 'id', v_key.id, 'new_id', v_key.new_id);
        end if;
    end loop;
    return v_found;
end
$$;
comment on function cascade.find_logged(text, jsonb) is 'Which of the events set aside at some node are in this log.';

-- cascade.note_duplicates(set, logged): events that were set aside here, and that the log of the root has.  Returns how many are news.
create or replace function cascade.note_duplicates("set" text, logged jsonb)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select coalesce(sum(cascade.settle_quarantine(note_duplicates."set", x.term_uid, x.ids, 'duplicate', x.new_ids)), 0)
              from (select f.term_uid, array_agg(f.id order by f.id) as ids, array_agg(f.new_id order by f.id) as new_ids
                      from jsonb_to_recordset(note_duplicates.logged) as f(term_uid uuid, id bigint, new_id bigint)
                     group by f.term_uid) as x);
end
$$;
comment on function cascade.note_duplicates(text, jsonb) is 'Notes which of the events set aside here the log has.';

-- cascade.republish(set, term_uid, id, event): puts an event of a lost tail into the log, once whatever happens: the key is here, at the
-- root, and goes with the log.  It keeps its time, and its old id as origin.  One that was republished before, into a term
-- that was lost in its turn, may be set aside twice: its first id is a key as well.  Returns its id in the log: a new one, unless the
-- log has it under its first id already, as it may after a conflict.
create or replace function cascade.republish("set" text, term_uid uuid, id bigint, event jsonb)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(republish."set");
    v_queue cascade_internal.queue := cascade_internal.lock_queue(republish."set");
    v_id    bigint;
    v_first bigint := republish.id;
    v_term  uuid := republish.term_uid;
    -- A root that lost its tail issues ids again: what the event says tells two of one id apart.
    v_digest constant text := cascade_internal.event_digest((republish.event->>'time')::timestamptz, republish.event->>'type', republish.event->>'key',
                                                            republish.event->>'payload', republish.event->>'headers');
begin
    if v_queue.is_combined then
        return cascade_internal.republish_orphan(v_queue, republish.event, v_digest);
    end if;
    -- An event that was republished before, and lost again, is the same event: its first id counts.
    if republish.event->>'origin' = v_queue.name and republish.event->>'origin_id' is not null then
        v_first := (republish.event->>'origin_id')::bigint;
        v_term := coalesce((select t.uid from cascade_internal.term as t
                             where t.queue_id = v_queue.queue_id and t.number = v_first / 1000000000000 order by t.voided_by nulls first limit 1), v_term);
    end if;
    select r.new_id into v_id from cascade_internal.republished as r
     where r.queue_id = v_queue.queue_id and r.term_uid = v_term and r.id = v_first and r.digest = v_digest;
    if found then
        return v_id;
    elsif cascade_internal.is_logged(v_queue, v_first, v_digest) then
        return v_first;
    end if;
    execute format('insert into queue.%I ("time", type, key, payload, headers, origin, origin_id)'
                   ' values ($1, $2, $3, $4, $5, $6, $7) returning id', v_queue.name)
       into v_id
      using (republish.event->>'time')::timestamptz, republish.event->>'type', republish.event->>'key',
            (republish.event->>'payload')::json, (republish.event->>'headers')::json,
            coalesce(republish.event->>'origin', v_queue.name), coalesce((republish.event->>'origin_id')::bigint, republish.id);
    insert into cascade_internal.republished (queue_id, term_uid, id, digest, new_id) values (v_queue.queue_id, v_term, v_first, v_digest, v_id);
    perform cascade_internal.post_control(v_queue, 'cascade.republished',
        jsonb_build_object('term_uid', v_term, 'id', v_first, 'digest', v_digest, 'new_id', v_id));
    return v_id;
end
$$;
comment on function cascade.republish(text, uuid, bigint, jsonb) is 'Puts an event of a lost tail into the log again, once.';

-- cascade.read_quarantine(set, term_uid, state, after, max): events that were set aside here, whole; payload and headers as text, byte for byte.
create or replace function cascade.read_quarantine("set" text, term_uid uuid default null, state text default null, after bigint default 0, max integer default 1000)
returns table (term_uid uuid, id bigint, "time" timestamptz, type text, key text, payload text, headers text, origin text, origin_id bigint,
               state text, new_id bigint, set_aside timestamptz, settled timestamptz)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select q.term_uid, q.id, q."time", q.type, q.key, q.payload::text, q.headers::text, q.origin, q.origin_id, q.state, q.new_id, q.set_aside, q.settled
      from cascade_internal.quarantine as q
     where q."set" = read_quarantine."set"
       and q.term_uid = coalesce(read_quarantine.term_uid, q.term_uid)
       and q.state = coalesce(read_quarantine.state, q.state)
       and q.id > read_quarantine.after
     order by q.id
     limit read_quarantine.max
$$;
comment on function cascade.read_quarantine(text, uuid, text, bigint, integer) is 'Events that were set aside here.';

-- cascade.settle_quarantine(set, term_uid, ids, state, new_ids): notes what became of events that are held: republished or duplicate, with
-- the id under which the log has each, or discarded.  Settled ones stay as they are, but a republished one may turn out to be a duplicate.
create or replace function cascade.settle_quarantine("set" text, term_uid uuid, ids bigint[], state text, new_ids bigint[] default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    if settle_quarantine.state is null or settle_quarantine.state not in ('republished', 'discarded', 'duplicate')
       or (settle_quarantine.state <> 'discarded') <> (coalesce(cardinality(settle_quarantine.new_ids), 0) = cardinality(settle_quarantine.ids) and settle_quarantine.ids <> '{}') then
        raise exception 'events of a quarantine are republished or duplicates, each with its id in the log, or discarded'
            using errcode = 'QC003', hint = 'Pass the id in the log for each id, and none when they are discarded.';
    end if;
    perform cascade_internal.commit_durably();
    update cascade_internal.quarantine as q
       set state = settle_quarantine.state, new_id = x.new_id, settled = clock_timestamp()
      from unnest(settle_quarantine.ids, settle_quarantine.new_ids) as x(id, new_id)
     where q."set" = settle_quarantine."set" and q.term_uid = settle_quarantine.term_uid and q.id = x.id
       and (q.state = 'held' or q.state = 'republished' and settle_quarantine.state = 'duplicate');
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform cascade_internal.note_step(settle_quarantine."set", null, settle_quarantine.state, jsonb_build_object('events', v_count, 'term_uid', settle_quarantine.term_uid));
    end if;
    return v_count;
end
$$;
comment on function cascade.settle_quarantine(text, uuid, bigint[], text, bigint[]) is 'Notes what became of events that were set aside.';

-- What control events said that may be older than the first tick a new node gets: certificates, what was republished, the topology.
create or replace function cascade_internal.known_history(queue_id integer)
returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_build_object(
        'certificates', (select coalesce(jsonb_agg(to_jsonb(c) - 'queue_id' order by c.number), '[]')
                           from cascade_internal.certificate as c where c.queue_id = known_history.queue_id),
        'republished', (select coalesce(jsonb_agg(to_jsonb(r) - 'queue_id'), '[]')
                          from cascade_internal.republished as r where r.queue_id = known_history.queue_id),
        'document', (select jsonb_build_object('revision', d.revision, 'document', d.document)
                       from cascade_internal.document as d where d.queue_id = known_history.queue_id));
end
$$;
comment on function cascade_internal.known_history(integer) is 'What a new node must know of earlier failovers.';

create or replace function cascade_internal.learn_history(queue_id integer, history jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform cascade_internal.learn_certificate(learn_history.queue_id, c) from jsonb_array_elements(learn_history.history->'certificates') as c;
    insert into cascade_internal.republished (queue_id, term_uid, id, digest, new_id)
    select learn_history.queue_id, x.term_uid, x.id, x.digest, x.new_id
      from jsonb_populate_recordset(null::cascade_internal.republished, learn_history.history->'republished') as x
    on conflict on constraint republished_pkey do nothing;
    if jsonb_typeof(learn_history.history->'document') = 'object' then
        perform cascade_internal.learn_document(learn_history.queue_id, (learn_history.history->'document'->>'revision')::bigint,
                                                learn_history.history->'document'->'document');
    end if;
end
$$;
comment on function cascade_internal.learn_history(integer, jsonb) is 'Stores what is to be known of earlier failovers.';
