-- Opening a term: what a promotion, a withdrawn offer and a root that lost its tail have in common.

-- cascade_internal.server_timeline() is the server's timeline: it changes when a standby is promoted or a backup is
-- brought up to a point in time, and with it the tail of the log may have gone.
create or replace function cascade_internal.server_timeline()
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
exception when others then
    return null; -- Some managed servers hide it; a lost tail is then noticed by the subscribers' chains.
end
$$;
comment on function cascade_internal.server_timeline() is 'The timeline of this server, or null where it is hidden.';

-- Whether the database under a root is another one than when its term began.  Asked before each tick.
create or replace function cascade_internal.is_other_server(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (is_other_server.queue).timeline is not null
       and ((is_other_server.queue).timeline <> coalesce(cascade_internal.server_timeline(), (is_other_server.queue).timeline)
            or (is_other_server.queue).server <> cascade_internal.server_identity());
end
$$;
comment on function cascade_internal.is_other_server(cascade_internal.queue) is 'Whether a root runs on another server than its term began on.';

-- cascade.next_term_number(set): numbers are unique like ballots: the hundreds say how many reigns were known, the
-- rest is the promoting member's own number.
create or replace function cascade.next_term_number("set" text)
returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(next_term_number."set");
begin
    return (greatest((select max(t.number) from cascade_internal.term as t where t.queue_id = v_node.queue_id),
                     (select max(b.number) from cascade_internal.ballot as b where b.queue_id = v_node.queue_id)) / 100 + 1) * 100
           + v_node.node_no;
end
$$;
comment on function cascade.next_term_number(text) is 'The number under which this node would open a term now.';

-- cascade_internal.open_term(queue, node, uid, number, cause, facts): the promoting transaction.  The fence is up, so nobody
-- is writing.  Everything that is to be known of the new term is in its opening tick.
create or replace function cascade_internal.open_term(
    queue cascade_internal.queue, node cascade_internal.node, uid uuid, number bigint, cause text, facts jsonb)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (open_term.queue).queue_id;
    v_queue   cascade_internal.queue;
    v_last    constant cascade_internal.tick := cascade_internal.newest_tick(v_id, (open_term.queue).slots);
    v_term    cascade_internal.term;
    v_tick    cascade_internal.tick;
    v_member  cascade_internal.member;
    v_mark    constant bigint := cascade_internal.watermark(open_term.queue);
    v_moved   jsonb := '[]';
    v_is_root constant boolean := (open_term.node).role = 'root';
    -- The newest term on this path, also one of which only the record is here.
    v_parent  constant uuid := (select t.uid from cascade_internal.term as t
                                 where t.queue_id = v_id and t.voided_by is null
                                   and exists (select from cascade_internal.path_terms(v_id, t.uid) as p where p.uid = v_last.term_uid)
                                 order by t.number desc limit 1);
    v_limit   constant text := current_setting('lock_timeout');
begin
    perform set_config('lock_timeout', '3s', true);
    execute format('lock table queue.%I in access exclusive mode', (open_term.queue).name);
    perform set_config('lock_timeout', v_limit, true);

    -- The clock goes on above everything in the log, for whoever has a transaction id now and inserts later: hence the
    -- snapshot's xmin, not this transaction's id; a constant in the default, not a row that an old snapshot could miss.
    -- A root that opens a term of its own goes on with its clock; if its server is another one, the tick repairs it.
    update cascade_internal.queue as q
       set clock_offset = case when v_is_root then q.clock_offset else v_last.high - txid_snapshot_xmin(txid_current_snapshot()) end,
           server = case when v_is_root then q.server else cascade_internal.server_identity() end,
           term = open_term.number, term_uid = open_term.uid, is_copy = false, timeline = cascade_internal.server_timeline()
     where q.queue_id = v_id
    returning q.* into v_queue;
    execute format('alter table only queue.%I alter column txid set default %s', v_queue.name, cascade_internal.clock_default(v_queue));
    execute format('alter sequence cascade_internal.event_id_%s minvalue %s maxvalue %s start %2$s restart', v_id,
                   v_queue.term * 1000000000000 + 1, v_queue.term * 1000000000000 + 999999999999);
    -- Whatever generation a row is in now, its txid is below the last tick's high.
    update cascade_internal.generation as g set since = v_last.high
     where g.queue_id = v_id and g.since > v_last.high and not v_is_root;
    execute format('drop trigger if exists cascade_fence on queue.%I', v_queue.name);
    delete from cascade_internal.fence as f where f.queue_id = v_id;
    perform cascade_internal.grant_admin(v_queue);

    insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause, reason)
    values (v_id, open_term.uid, open_term.number, (open_term.node).node, v_parent, to_jsonb(v_last), open_term.cause, open_term.facts->>'reason')
    returning term.* into v_term;
    update cascade_internal.node as n
       set role = 'root', provider = null, generation = n.generation + 1, state = 'running',
           answer = null, answer_detail = null, answered_at = null
     where n.queue_id = v_id;
    perform cascade_internal.post_control(v_queue, 'cascade.term', to_jsonb(v_term) - 'queue_id');
    -- Members come from the own prefix of the log, each at the last watermark in it; each tells anew.
    delete from cascade_internal.told as t where t.queue_id = v_id;
    for v_member in
        update cascade_internal.member as m
           set role = case when m.node = (open_term.node).node then 'root' when m.role = 'root' then 'branch' else m.role end,
               since_tick = v_mark, version = cascade_internal.next_version(v_id) + m.node_no, changed_at = clock_timestamp()
         where m.queue_id = v_id
        returning m.*
    loop
        perform cascade_internal.post_control(v_queue, 'cascade.member', to_jsonb(v_member) - 'queue_id');
    end loop;
    perform cascade_internal.open_merging(v_queue);
    update cascade_internal.ballot as b set closed_at = clock_timestamp() where b.queue_id = v_id and b.uid = open_term.uid;
    update cascade_internal.handover as h set state = 'done' where h.queue_id = v_id and h.state = 'heard';
    perform cascade_internal.open_certificate(v_queue, v_term, open_term.facts);
    if open_term.facts ? 'document' then
        perform cascade_internal.put_document(v_queue, coalesce((select d.revision from cascade_internal.document as d where d.queue_id = v_id), 0) + 1,
                                              open_term.facts->'document');
    end if;
    v_moved := cascade_internal.recreate_consumers(
        v_queue, (select t.node from cascade_internal.term as t where t.queue_id = v_id and t.uid = v_last.term_uid), open_term.cause)->'consumers';
    -- In the opening tick: this root may be lost before it publishes anything else.
    perform cascade_internal.publish_consumers(v_queue, (open_term.node).node);
    v_tick := cascade_internal.cut(v_id, false, true);
    perform cascade_internal.note_step(v_queue.name, (open_term.facts->>'op_id')::uuid, 'open term',
        jsonb_build_object('uid', open_term.uid, 'number', open_term.number, 'cause', open_term.cause, 'fork_tick', v_last.tick_id, 'opening_tick', v_tick.tick_id));
    perform pg_notify('cascade_node', v_queue.name);
    perform pg_notify('cascade_insert', '');
    return jsonb_build_object('uid', v_term.uid, 'number', v_term.number, 'fork_tick', v_last.tick_id, 'tick_id', v_tick.tick_id, 'consumers', v_moved);
end
$$;
comment on function cascade_internal.open_term(cascade_internal.queue, cascade_internal.node, uuid, bigint, text, jsonb) is 'Makes this node the root of a new term.';

-- Whether a promotion may still come of a ballot.  The candidate's is opened first and stops counting half a minute before any
-- carrier goes on copying: so nobody goes beyond the fork while it can still become one.
create or replace function cascade_internal.is_fresh(ballot cascade_internal.ballot)
returns boolean
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select (is_fresh.ballot).closed_at is null and clock_timestamp() < (is_fresh.ballot).expires_at - interval '30 s'
$$;
comment on function cascade_internal.is_fresh(cascade_internal.ballot) is 'Whether a promotion may still come of a ballot.';

-- cascade.open_ballot(set, number, uid, candidate, fork_tick, fork_chain, known): written on every reachable carrier before a promotion
-- at that tick, at the candidate first.  Whoever holds another open one of that number or above refuses, and so does who has heard of
-- a newer term than known, the newest that the plan had heard of, or stands beyond the fork.  Lower ones are closed: their promotions
-- come too late.  From here on the carrier copies nothing, until the term is heard of, the ballot is closed, or a minute has
-- passed; a promotion needs one less than half as old.  A second call changes nothing.
create or replace function cascade.open_ballot(
    "set" text, number bigint, uid uuid, candidate text, fork_tick bigint, fork_chain bytea, known uuid default null)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(open_ballot."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_fork  constant cascade_internal.tick := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, open_ballot.fork_tick);
    v_first bigint;
    v_other record;
begin
    if open_ballot.fork_tick is null or open_ballot.fork_chain is null then
        raise exception 'a promotion is announced with the tick after which the term begins'
            using errcode = 'QC003', hint = 'Pass the id and the chain of the best tick that can be reached.';
    end if;
    select b.number, b.candidate, b.uid into v_other from cascade_internal.ballot as b
     where b.queue_id = v_queue.queue_id and b.number >= open_ballot.number and b.uid <> open_ballot.uid and b.closed_at is null
     union all
    select t.number, t.node, t.uid from cascade_internal.term as t
     where t.queue_id = v_queue.queue_id and t.uid <> open_ballot.uid
       and (t.number >= open_ballot.number
            or t.voided_by is null and t.number > (select k.number from cascade_internal.term as k where k.queue_id = t.queue_id and k.uid = open_ballot.known))
     order by 1 desc limit 1;
    if found then
        raise exception 'set "%": % is promoted, or about to be, under number %', open_ballot."set", v_other.candidate, v_other.number
            using errcode = 'QC212', hint = 'Somebody else fails over too: look again with cascade plan.';
    end if;
    -- Beyond the fork, on its path: a better one could be chosen.  Who stands beside it, on another path, waits for the certificate;
    -- where the fork is no longer held, nobody can tell.
    execute cascade_internal.ticks_query(v_queue) || ' order by tick_id limit 1' into v_first;
    if v_last.tick_id > open_ballot.fork_tick and (v_fork.chain = open_ballot.fork_chain or v_first > open_ballot.fork_tick) then
        raise exception 'set "%": this carrier stands at tick %, beyond %, after which % is to be promoted',
                        open_ballot."set", v_last.tick_id, open_ballot.fork_tick, open_ballot.candidate
            using errcode = 'QC209', hint = 'The plan is stale: plan again.';
    end if;
    insert into cascade_internal.ballot (queue_id, number, uid, candidate, fork_tick, fork_chain)
    values (v_queue.queue_id, open_ballot.number, open_ballot.uid, open_ballot.candidate, open_ballot.fork_tick, open_ballot.fork_chain)
    on conflict on constraint ballot_pkey do nothing;
    if found then
        perform cascade_internal.note_step(open_ballot."set", null, 'ballot', jsonb_build_object(
            'number', open_ballot.number, 'uid', open_ballot.uid, 'candidate', open_ballot.candidate, 'fork_tick', open_ballot.fork_tick));
        update cascade_internal.ballot as b set closed_at = clock_timestamp()
         where b.queue_id = v_queue.queue_id and b.number < open_ballot.number and b.closed_at is null;
        return true;
    end if;
    -- One that was closed, has grown old, or was about another fork holds nobody back.
    if not exists (select from cascade_internal.ballot as b
                    where b.queue_id = v_queue.queue_id and b.number = open_ballot.number and cascade_internal.is_fresh(b)
                      and (b.uid, b.fork_tick, b.fork_chain) = (open_ballot.uid, open_ballot.fork_tick, open_ballot.fork_chain)) then
        raise exception 'set "%": the announcement of term % no longer counts here', open_ballot."set", open_ballot.number
            using errcode = 'QC212', hint = 'It was taken back, is too old, or was about another tick: plan again.';
    end if;
    return false;
end
$$;
comment on function cascade.open_ballot(text, bigint, uuid, text, bigint, bytea, uuid) is 'Announces a promotion to this carrier, or learns of another one.';

create or replace function cascade.close_ballot("set" text, number bigint, uid uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(close_ballot."set");
begin
    update cascade_internal.ballot as b set closed_at = clock_timestamp()
     where b.queue_id = v_queue.queue_id and b.number = close_ballot.number and b.uid = close_ballot.uid and b.closed_at is null;
    if not found then
        return false;
    end if;
    perform cascade_internal.note_step(close_ballot."set", null, 'close ballot', jsonb_build_object('number', close_ballot.number, 'uid', close_ballot.uid));
    perform pg_notify('cascade_node', v_queue.name);
    return true;
end
$$;
comment on function cascade.close_ballot(text, bigint, uuid) is 'Takes the announcement of a promotion back.';

-- A root that may open a term after its own: its server changed, or it gave its reign to a node that was lost then.
create or replace function cascade_internal.may_reign_again(queue cascade_internal.queue, fence cascade_internal.fence)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((may_reign_again.fence).is_up, false)
       and ((may_reign_again.fence).cause = 'rewound'
            or (may_reign_again.fence).cause = 'operation'
               and exists (select from cascade_internal.handover as h
                            where h.queue_id = (may_reign_again.queue).queue_id and h.term_uid = (may_reign_again.queue).term_uid and h.state = 'taken'));
end
$$;
comment on function cascade_internal.may_reign_again(cascade_internal.queue, cascade_internal.fence) is 'Whether a fenced root may be promoted.';

-- cascade.promote(set, uid, number, cause, fork_tick, fork_chain, facts): this branch becomes the root, if it stands exactly where the
-- plan says and nobody has ended that term already.  A second call with the same uid returns what the first did.
create or replace function cascade.promote(
    "set" text, uid uuid, number bigint, cause text, fork_tick bigint, fork_chain bytea, facts jsonb default '{}')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(promote."set");
    v_node  cascade_internal.node := cascade_internal.find_node(promote."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    v_term  cascade_internal.term;
    v_fence cascade_internal.fence;
begin
    if promote.cause is null or promote.cause not in ('switchover', 'failover', 'rewind') then
        raise exception 'a node is promoted by switchover, failover or rewind, not by %', coalesce(promote.cause, 'null')
            using errcode = 'QC003', hint = 'Use the commands of the same names.';
    end if;
    select t.* into v_term from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = promote.uid;
    if found then
        return jsonb_build_object('uid', v_term.uid, 'number', v_term.number, 'fork_tick', (v_term.fork->>'tick_id')::bigint, 'is_repeat', true);
    end if;
    select f.* into v_fence from cascade_internal.fence as f where f.queue_id = v_queue.queue_id;
    if v_node.role = 'leaf' or (v_node.role = 'root' and not cascade_internal.may_reign_again(v_queue, v_fence)) then
        raise exception 'node "%" is a % and cannot be promoted', v_node.node, v_node.role
            using errcode = 'QC208', hint = case v_node.role when 'leaf' then 'A leaf keeps no queue.' else 'It is the root already.' end;
    elsif (v_last.tick_id, v_last.chain) is distinct from (promote.fork_tick, promote.fork_chain) then
        raise exception 'node "%" stands at tick %, not at %', v_node.node, v_last.tick_id, promote.fork_tick
            using errcode = 'QC209', hint = 'The plan is stale: plan again.';
    elsif cascade_internal.is_dirty(v_queue, v_last) and v_node.role <> 'root' then
        perform cascade_internal.raise_answer('dirty', format('%s has events after its last tick %s', v_node.node, v_last.tick_id));
    elsif cascade_internal.is_dropped(v_queue.queue_id) then
        perform cascade_internal.raise_answer('dropped', format('%s is no live member', v_node.node));
    elsif exists (select from cascade_internal.rival_terms(v_queue.queue_id)) then
        perform cascade_internal.raise_answer('conflict', 'two promotions exclude one another; a third one would not help');
    end if;
    if v_queue.is_combined then
        perform cascade_internal.check_merging(v_queue);
    end if;
    -- It may have heard of a later term without a tick of it: that is what it ends then, at its own last tick.  But one that stands
    -- beyond the end of its term has a tail, and a newer number means that somebody else reigns.
    select t.* into v_term from cascade_internal.term as t
     where t.queue_id = v_queue.queue_id and t.voided_by is null
       and (t.number >= promote.number or cascade_internal.is_past(v_last, t))
     limit 1;
    if found then
        raise exception 'node "%": term % is over, ended by term % of node "%"', v_node.node, v_last.term_uid, v_term.uid, v_term.node
            using errcode = 'QC209', hint = 'The plan is stale: plan again.';
    end if;
    if promote.cause = 'switchover' then
        if not exists (select from cascade_internal.handover as h
                        where h.queue_id = v_queue.queue_id and h.uid = promote.uid and h.target = v_node.node and h.closing_tick = v_last.tick_id) then
            raise exception 'node "%" was offered no reign as term %', v_node.node, promote.uid
                using errcode = 'QC209', hint = 'The old root offers it in its closing tick.';
        elsif exists (select from cascade_internal.ballot as b where b.queue_id = v_queue.queue_id and b.closed_at is null and b.uid <> promote.uid) then
            raise exception 'node "%" was told of another promotion', v_node.node
                using errcode = 'QC212', hint = 'A failover is under way; let it end, or close its ballot.';
        end if;
    elsif not exists (select from cascade_internal.ballot as b
                       where b.queue_id = v_queue.queue_id and b.number = promote.number and cascade_internal.is_fresh(b)
                         and (b.uid, b.fork_tick, b.fork_chain) = (promote.uid, promote.fork_tick, promote.fork_chain)) then
        raise exception 'node "%" holds no ballot % for term % that still counts', v_node.node, promote.number, promote.uid
            using errcode = 'QC212', hint = 'Ballots are opened on every reachable carrier, moments before: cascade.open_ballot().';
    end if;
    -- A root that goes on although its heir took the reign: that operation has come to its end.
    perform cascade_internal.end_operation(v_queue.queue_id, null, 'overtaken: ' || promote.cause);
    return cascade_internal.open_term(v_queue, v_node, promote.uid, promote.number, promote.cause, coalesce(promote.facts, '{}'));
end
$$;
comment on function cascade.promote(text, uuid, bigint, text, bigint, bytea, jsonb) is 'Makes this branch the root, in a new term.';

-- cascade.renew_term(set): a root that nears the end of its term's range of ids opens another term, with nothing in between.  False while
-- there is room.  Writers wait for a moment, as for any DDL.
create or replace function cascade.renew_term("set" text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(renew_term."set");
    v_queue cascade_internal.queue;
begin
    if not cascade_internal.is_range_ending(cascade_internal.find_queue(renew_term."set")) then
        return false;
    end if;
    v_queue := cascade_internal.lock_queue(renew_term."set");
    if v_queue.is_copy or exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id) then
        return false;
    end if;
    perform cascade_internal.open_term(v_queue, v_root, gen_random_uuid(), cascade.next_term_number(renew_term."set"), 'range',
                                       '{"reason": "the ids of the term before were running out"}');
    return true;
end
$$;
comment on function cascade.renew_term(text) is 'Opens a new term when the ids of the present one run out.';

create or replace function cascade_internal.is_range_ending(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_sequence_last_value(format('cascade_internal.event_id_%s', (is_range_ending.queue).queue_id)::regclass)
           > (is_range_ending.queue).term * 1000000000000 + 990000000000;
end
$$;
comment on function cascade_internal.is_range_ending(cascade_internal.queue) is 'Whether ninety-nine hundredths of a term''s ids are used.';
