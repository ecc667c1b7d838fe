-- How a root learns that its term is over, and what it does then.

-- cascade.exchange_terms(set, terms, set_uid): any two nodes that meet tell one another the terms they know.  Returns this
-- node's, and its members, so that whoever asks knows where to go.  Whoever brings terms says of which set they are: another
-- set of this name has a first term of its own, which would stand beside this one's for ever; it is refused (QC216), and
-- nothing is learned.
create or replace function cascade.exchange_terms("set" text, terms jsonb, set_uid uuid default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_node  cascade_internal.node := cascade_internal.find_node(exchange_terms."set");
    v_queue cascade_internal.queue := cascade_internal.find_queue(exchange_terms."set");
begin
    if exchange_terms.set_uid is distinct from v_node.set_uid and (exchange_terms.set_uid is not null or exchange_terms.terms <> '[]') then
        raise exception 'node "%" belongs to set "%" of uid %, not %', v_node.node, exchange_terms."set", v_node.set_uid, coalesce(exchange_terms.set_uid::text, 'to one that was not named')
            using errcode = 'QC216', hint = 'Two sets have one name: mend the DSN that leads here.';
    end if;
    perform cascade_internal.commit_durably();
    perform cascade_internal.learn_terms(v_node.queue_id, exchange_terms.terms);
    return jsonb_build_object('node', v_node.node, 'set_uid', v_node.set_uid, 'role', v_node.role,
                              'terms', cascade_internal.known_terms(v_node.queue_id), 'members', cascade_internal.known_members(v_node.queue_id));
end
$$;
comment on function cascade.exchange_terms(text, jsonb, uuid) is 'Tells another node the terms known here, and learns its own.';

-- cascade.stand_down(set, terms, members): a root compares what others know with its own term.  If a term ended it, or stands
-- beside it, ticks stop here and the fence is wanted; complete_fence() raises it.  A fence that stood because of a term beside
-- it falls when an operator has given that one up, whoever brings the news.
create or replace function cascade.stand_down("set" text, terms jsonb default '[]', members jsonb default '[]')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(stand_down."set");
    v_node  cascade_internal.node := cascade_internal.find_node(stand_down."set");
begin
    perform cascade_internal.learn_terms(v_queue.queue_id, stand_down.terms);
    if v_node.role <> 'root' then
        return jsonb_build_object('role', v_node.role);
    end if;
    -- Where the root is now, for those who are refused here.
    if cascade_internal.heed_terms(v_queue) = 'over' then
        perform cascade_internal.learn_members(v_queue.queue_id, stand_down.members);
    end if;
    return (select jsonb_build_object('role', v_node.role, 'cause', f.cause, 'detail', f.detail, 'is_up', f.is_up)
              from (select 1) as one left join cascade_internal.fence as f on f.queue_id = v_queue.queue_id);
end
$$;
comment on function cascade.stand_down(text, jsonb, jsonb) is 'Compares what others know with this root''s term, and stops it if that is over.';

-- What a root does about the terms that it knows: it stands down, or goes on if the term beside its own was given up.  Returns
-- why it has to stop, or null.  reason is the operator's, where one has just kept this root.
create or replace function cascade_internal.heed_terms(queue cascade_internal.queue, reason text default null)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_over record;
begin
    select o.* into v_over from cascade_internal.end_of_term(heed_terms.queue) as o;
    if v_over.cause is not null then
        perform cascade_internal.want_fence(heed_terms.queue, v_over.cause, v_over.detail);
    else
        perform cascade_internal.end_conflict(heed_terms.queue);
        perform cascade_internal.account_for_voided(heed_terms.queue, heed_terms.reason);
    end if;
    return v_over.cause;
end
$$;
comment on function cascade_internal.heed_terms(cascade_internal.queue, text) is 'Stops a root whose term is over, or has it go on after a conflict.';

-- A root that was kept takes inserts again.  If it had offered its reign before, its term has its closing tick: then the fence
-- is the operation's again, and whoever finishes or withdraws that goes on.
create or replace function cascade_internal.end_conflict(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (end_conflict.queue).queue_id;
    v_offer cascade_internal.handover;
begin
    if not exists (select from cascade_internal.fence as f where f.queue_id = v_id and f.cause = 'conflict') then
        return false;
    end if;
    select h.* into v_offer from cascade_internal.handover as h
     where h.queue_id = v_id and h.term_uid = (end_conflict.queue).term_uid and h.state in ('offered', 'taken');
    if found then
        update cascade_internal.fence as f
           set cause = 'operation', op_id = v_offer.op_id, detail = format('switchover to %s is under way', v_offer.target)
         where f.queue_id = v_id;
    else
        delete from cascade_internal.fence as f where f.queue_id = v_id;
        execute format('drop trigger if exists cascade_fence on queue.%I', (end_conflict.queue).name);
        update cascade_internal.queue as q set is_copy = false where q.queue_id = v_id;
    end if;
    update cascade_internal.node as n set generation = n.generation + 1 where n.queue_id = v_id;
    perform cascade_internal.note_step((end_conflict.queue).name, null, 'go on', '{"because": "the term beside this one was given up"}');
    perform pg_notify('cascade_node', (end_conflict.queue).name);
    return true;
end
$$;
comment on function cascade_internal.end_conflict(cascade_internal.queue) is 'Has a root go on that was fenced because of a term which was given up.';

-- Whether this root's term is over.  Only a term whose path contains this one and ends it counts, checked by the chain at
-- the fork as far as it is held; one beside it is a conflict, which nobody but an operator decides.
create or replace function cascade_internal.end_of_term(queue cascade_internal.queue, out cause text, out detail text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := (end_of_term.queue).queue_id;
    v_last constant cascade_internal.tick := cascade_internal.newest_tick(v_id, (end_of_term.queue).slots);
    v_term cascade_internal.term;
    v_own  cascade_internal.term;
    v_fork cascade_internal.tick;
begin
    select t.* into v_own from cascade_internal.term as t where t.queue_id = v_id and t.uid = v_last.term_uid;
    if v_own.voided_by is not null then
        end_of_term.cause := 'over';
        end_of_term.detail := format('an operator kept term %s instead of this one', v_own.voided_by);
        return;
    end if;
    select t.* into v_term
      from cascade_internal.rival_terms(v_id) as r
      join cascade_internal.term as t on t.queue_id = v_id and t.uid in (r.one, r.other)
     where cascade_internal.reign_of(v_id, v_own.uid) in (r.one, r.other)
       and t.uid <> cascade_internal.reign_of(v_id, v_own.uid)
     limit 1;
    if found then
        end_of_term.cause := 'conflict';
        end_of_term.detail := format('term %s of node %s stands beside %s of this one', v_term.uid, v_term.node, v_own.uid);
        return;
    end if;
    -- Two promotions from this reign are a conflict of theirs; that it ended is sure.
    v_term := cascade_internal.ended_by(v_id, v_last, true);
    if v_term.uid is null then
        return;
    end if;
    v_fork := cascade_internal.find_tick(v_id, (end_of_term.queue).slots, (v_term.fork->>'tick_id')::bigint);
    end_of_term.cause := case when v_fork.chain <> (v_term.fork->>'chain')::bytea or (v_term.fork->>'tick_id')::bigint > v_last.tick_id then 'rewound' else 'over' end;
    end_of_term.detail := format('term %s of node %s ended this one at tick %s', v_term.uid, v_term.node, v_term.fork->>'tick_id');
    if end_of_term.cause = 'rewound' then
        end_of_term.detail := end_of_term.detail || ', which is not here';
    end if;
end
$$;
comment on function cascade_internal.end_of_term(cascade_internal.queue) is 'Why the term of a root is over, if it is.';

-- cascade.root_duty(set): what the daemon of a root has to do now; also ends an operation whose time is over.
create or replace function cascade.root_duty("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(root_duty."set");
    v_node  cascade_internal.node := cascade_internal.find_node(root_duty."set");
    v_fence cascade_internal.fence;
begin
    if exists (select from cascade_internal.operation as o
                where o.queue_id = v_queue.queue_id and o.ended_at is null and o.expires_at < clock_timestamp()) then
        perform cascade_internal.expire_operation(cascade_internal.lock_queue(root_duty."set"));
    end if;
    -- Somebody else may have told this database of a term that ended its own, or that the one beside it was given up.
    if v_node.role = 'root'
       and ((select o.cause is not null from cascade_internal.end_of_term(v_queue) as o)
            or exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id and f.cause = 'conflict')) then
        perform cascade.stand_down(root_duty."set");
    end if;
    select f.* into v_fence from cascade_internal.fence as f where f.queue_id = v_queue.queue_id;
    return jsonb_build_object(
        'node', v_node.node, 'set_uid', v_node.set_uid, 'role', v_node.role, 'generation', v_node.generation,
        'fence', case when v_fence.queue_id is not null then to_jsonb(v_fence) - 'queue_id' end,
        'terms', cascade_internal.known_terms(v_queue.queue_id),
        'heir', (select t.node from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.voided_by is null
                  order by t.number desc limit 1),
        'is_range_ending', v_fence.queue_id is null and coalesce(cascade_internal.is_range_ending(v_queue), false),
        'is_clean', case when v_fence.cause = 'over' and v_fence.is_up then cascade_internal.is_clean(v_queue) end);
end
$$;
comment on function cascade.root_duty(text) is 'What the daemon of a root has to do now.';

-- Whether no event lies beyond the fork: at most what Cascade itself wrote, ticks and control events of a term that is over.  A root that
-- comes back writes some before it hears.
create or replace function cascade_internal.is_clean(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
declare
    v_id   constant integer := (is_clean.queue).queue_id;
    v_fork cascade_internal.tick := cascade_internal.end_fork(is_clean.queue);
    v_same cascade_internal.tick := cascade_internal.find_tick(v_id, (is_clean.queue).slots, v_fork.tick_id);
    v_slot integer;
    v_has  boolean;
begin
    if v_same.chain is distinct from v_fork.chain or v_same.chain is null then
        return false;
    end if;
    for v_slot in 0 .. (is_clean.queue).slots - 1 loop
        execute format('select exists (select from cascade_internal.event_%s_%s as e where %s and e.origin is distinct from ''.cascade'')',
                       v_id, v_slot, cascade_internal.tail_where(v_same))
           into v_has;
        if v_has then
            return false;
        end if;
    end loop;
    return true;
end
$$;
comment on function cascade_internal.is_clean(cascade_internal.queue) is 'Whether a former root has no event beyond the fork.';

create or replace function cascade_internal.end_fork(queue cascade_internal.queue)
returns cascade_internal.tick
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_term cascade_internal.term := cascade_internal.ended_by(
        (end_fork.queue).queue_id, cascade_internal.newest_tick((end_fork.queue).queue_id, (end_fork.queue).slots), true);
begin
    return jsonb_populate_record(null::cascade_internal.tick, v_term.fork);
end
$$;
comment on function cascade_internal.end_fork(cascade_internal.queue) is 'The tick at which the reign of this root was ended; null while it was not.';

-- cascade.demote(set, provider, members): a former root without events beyond the fork becomes a branch; what Cascade wrote there itself is
-- set aside.  A second call changes nothing.
create or replace function cascade.demote("set" text, provider text, members jsonb default '[]')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(demote."set");
    v_node  cascade_internal.node := cascade_internal.find_node(demote."set");
    v_fork  cascade_internal.tick;
    v_last  cascade_internal.tick;
begin
    if v_node.role = 'branch' then
        return jsonb_build_object('role', 'branch', 'provider', v_node.provider, 'generation', v_node.generation);
    elsif not exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id and f.cause = 'over' and f.is_up) then
        raise exception 'node "%" is not fenced, or its term is not over', v_node.node
            using errcode = 'QC208', hint = 'A root becomes a branch when another one reigns: cascade switchover.';
    elsif not cascade_internal.is_clean(v_queue) then
        perform cascade_internal.raise_answer('dirty', format('%s has events beyond the fork', v_node.node));
    end if;
    v_fork := cascade_internal.end_fork(v_queue);
    v_last := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    if v_last.tick_id = v_fork.tick_id and not cascade_internal.is_dirty(v_queue, v_last) then
        return cascade_internal.become_branch(v_queue, v_node, demote.provider, demote.members, 'demote');
    end if;
    perform cascade.set_aside(demote."set", to_jsonb(v_fork), 2147483647);
    return cascade.resurrect(demote."set", to_jsonb(v_fork), demote.provider, demote.members);
end
$$;
comment on function cascade.demote(text, text, jsonb) is 'Makes a former root without a tail a branch.';

-- The members as the new root has them replace what was known: a lost tail may have counted versions of its own.
create or replace function cascade_internal.become_branch(
    queue cascade_internal.queue, node cascade_internal.node, provider text, members jsonb, step text)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := (become_branch.queue).queue_id;
    v_slot integer;
    v_node cascade_internal.node;
    v_queue cascade_internal.queue;
begin
    if jsonb_array_length(become_branch.members) > 0 then
        delete from cascade_internal.member as m where m.queue_id = v_id;
        perform cascade_internal.learn_members(v_id, become_branch.members);
    end if;
    if become_branch.provider = (become_branch.node).node
       or not exists (select from cascade_internal.member as m where m.queue_id = v_id and m.node = become_branch.provider and m.role <> 'leaf') then
        raise exception 'node "%" cannot copy from "%"', (become_branch.node).node, become_branch.provider
            using errcode = 'QC208', hint = 'Name a root or branch that it knows.';
    end if;
    perform cascade_internal.raise_trigger(become_branch.queue, null);
    update cascade_internal.queue as q set is_copy = true, timeline = null where q.queue_id = v_id returning q.* into v_queue;
    for v_slot in 0 .. v_queue.slots - 1 loop
        execute format('create index if not exists event_%s_%s_control_idx on cascade_internal.event_%1$s_%2$s (txid)'
                       ' where origin = ''.cascade''', v_id, v_slot);
    end loop;
    perform cascade_internal.grant_admin(v_queue);
    delete from cascade_internal.fence as f where f.queue_id = v_id;
    delete from cascade_internal.told as t where t.queue_id = v_id;
    perform cascade_internal.end_operation(v_id, null, 'done');
    update cascade_internal.node as n
       set role = 'branch', provider = become_branch.provider, generation = n.generation + 1, state = 'running',
           answer = null, answer_detail = null, answered_at = null, known_from = null
     where n.queue_id = v_id
    returning n.* into v_node;
    perform cascade_internal.note_step(v_queue.name, null, become_branch.step, jsonb_build_object('provider', become_branch.provider));
    perform pg_notify('cascade_node', v_queue.name);
    return jsonb_build_object('role', 'branch', 'provider', v_node.provider, 'generation', v_node.generation);
end
$$;
comment on function cascade_internal.become_branch(cascade_internal.queue, cascade_internal.node, text, jsonb, text) is 'Makes a former root, or a carrier that lost its tail, a branch.';

-- A report without what says nothing: who had processed nothing is as good as not listed.
create or replace function cascade_internal.plain_report(report jsonb)
returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(plain_report.report, '{}') - 'node' - 'destroyed'
           - case when plain_report.report->'phantoms' = '[]' then 'phantoms' else '' end
$$;
comment on function cascade_internal.plain_report(jsonb) is 'A report, as it is compared with another one.';

-- cascade.heir_duty(set): what the daemon of a branch has to do besides copying: take an offer whose closing tick it has
-- applied, and report what it had beyond a fork.
create or replace function cascade.heir_duty("set" text)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(heir_duty."set");
    v_node  cascade_internal.node := cascade_internal.find_node(heir_duty."set");
    v_last  constant cascade_internal.tick := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
begin
    return jsonb_build_object(
        'node', v_node.node, 'role', v_node.role,
        'handover', (select jsonb_build_object('uid', h.uid, 'from_node', h.from_node, 'tick_id', v_last.tick_id, 'chain', v_last.chain, 'op_id', h.op_id,
                                               'number', cascade.next_term_number(heir_duty."set"))
                       from cascade_internal.handover as h
                      where h.queue_id = v_queue.queue_id and h.state = 'heard' and h.target = v_node.node
                        and h.closing_tick = v_last.tick_id and v_node.role = 'branch'
                        and cascade_internal.can_merge(v_queue)),
        'reports', (select coalesce(jsonb_agg(c.new_uid), '[]') from cascade_internal.certificate as c
                     where c.queue_id = v_queue.queue_id
                       -- A root may have lost something before it became one.  Also a carrier that nobody missed may have had something; and what was set aside may have been settled since.
                       and (v_node.node = any (c.pending)
                            or cascade_internal.plain_report(cascade.certificate_report(heir_duty."set", c.new_uid))
                               <> cascade_internal.plain_report(c.reports->v_node.node))
                       and exists (select from cascade_internal.path_terms(v_queue.queue_id, v_last.term_uid) as p where p.uid = c.new_uid)),
        -- What a combined set sets aside is merged again from the parts, by and by.
        'is_to_look_up', v_queue.is_combined and v_node.role <> 'leaf' and exists (select from cascade_internal.quarantine as x
                                                                                     where x."set" = v_queue.name and x.state = 'held'),
        -- Not as the members have it: those may come from a root that was given up.
        'root', (select t.node from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.uid = v_last.term_uid));
end
$$;
comment on function cascade.heir_duty(text) is 'What the daemon of a node has to do besides copying.';

-- cascade.note_withdrawn(set, uid): the old root says that the offer was withdrawn.
create or replace function cascade.note_withdrawn("set" text, uid uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(note_withdrawn."set");
begin
    update cascade_internal.handover as h set state = 'done'
     where h.queue_id = v_queue.queue_id and h.uid = note_withdrawn.uid and h.state = 'heard';
    return found;
end
$$;
comment on function cascade.note_withdrawn(text, uuid) is 'Forgets an offer that was withdrawn.';
