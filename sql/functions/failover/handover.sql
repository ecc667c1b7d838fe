-- The hand-over: offered by the old root in its closing tick, taken by the target, or withdrawn.  One row at the old
-- root decides.

-- cascade.offer(set, op_id, target, uid): the point of no return.  The closing tick names the target and the term it opens.
create or replace function cascade.offer("set" text, op_id uuid, target text, uid uuid)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set bytea_output = 'hex'
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(offer."set");
    v_queue cascade_internal.queue := cascade_internal.lock_queue(offer."set");
    v_last  cascade_internal.tick;
    v_tick  cascade_internal.tick;
    v_made  cascade_internal.handover;
begin
    select h.* into v_made from cascade_internal.handover as h
     where h.queue_id = v_queue.queue_id and h.uid = offer.uid and h.op_id = offer.op_id;
    if found then
        return jsonb_build_object('tick_id', v_made.closing_tick, 'chain', v_made.closing_chain, 'at', v_made.at, 'state', v_made.state);
    end if;
    if not exists (select from cascade_internal.fence as f
                    where f.queue_id = v_queue.queue_id and f.cause = 'operation' and f.op_id = offer.op_id and f.is_up) then
        raise exception 'set "%" is not fenced for this operation', offer."set"
            using errcode = 'QC209', hint = 'The fence may have expired: begin again.';
    elsif not exists (select from cascade_internal.member as m
                       where m.queue_id = v_queue.queue_id and m.node = offer.target and m.role = 'branch' and m.state = 'live') then
        raise exception 'set "%" has no live branch "%"', offer."set", offer.target
            using errcode = 'QC106', hint = 'Only a branch carries all that a root needs; the view cascade.members lists them.';
    end if;
    v_last := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    perform cascade_internal.post_control_here(v_queue, 'cascade.handover', jsonb_build_object(
        'uid', offer.uid, 'op_id', offer.op_id, 'term_uid', v_queue.term_uid, 'from_node', v_root.node, 'target', offer.target,
        'closing_tick', greatest(v_last.tick_id, v_queue.term * 1000000000000) + 1));
    v_tick := cascade_internal.cut(v_queue.queue_id, false, true);
    insert into cascade_internal.handover (queue_id, uid, term_uid, from_node, target, state, closing_tick, closing_chain, op_id)
    values (v_queue.queue_id, offer.uid, v_queue.term_uid, v_root.node, offer.target, 'offered', v_tick.tick_id, v_tick.chain, offer.op_id)
    returning handover.* into v_made;
    -- The term is over: no tick comes after this one.
    update cascade_internal.queue as q set is_copy = true where q.queue_id = v_queue.queue_id;
    update cascade_internal.fence as f set expires_at = null where f.queue_id = v_queue.queue_id;
    perform cascade_internal.note_step(offer."set", offer.op_id, 'offer',
        jsonb_build_object('target', offer.target, 'uid', offer.uid, 'closing_tick', v_tick.tick_id));
    return jsonb_build_object('tick_id', v_tick.tick_id, 'chain', v_tick.chain, 'at', v_made.at, 'state', 'offered');
end
$$;
comment on function cascade.offer(text, uuid, text, uuid) is 'Ends a root''s term with a closing tick that offers the reign to a branch.';

-- A control event of a queue that is fenced: straight into the partition.  The caller has locked the queue's row, so
-- the register does not move.
create or replace function cascade_internal.post_control_here(queue cascade_internal.queue, type text, payload jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('insert into cascade_internal.event_%s_%s (id, txid, type, payload, origin)'
                   ' values (nextval(''cascade_internal.event_id_%1$s''), txid_current() + %3$s, $1, $2, ''.cascade'')',
                   (post_control_here.queue).queue_id,
                   cascade_internal.current_gen((post_control_here.queue).queue_id, (post_control_here.queue).slots) % (post_control_here.queue).slots,
                   (post_control_here.queue).clock_offset)
      using post_control_here.type, post_control_here.payload::json;
end
$$;
comment on function cascade_internal.post_control_here(cascade_internal.queue, text, jsonb) is 'Writes a control event past the fence.';

-- cascade.take_handover(set, uid, node, tick_id, chain): asked of the old root by the target, which has applied the closing tick.
-- May be repeated by the one who took it.
create or replace function cascade.take_handover("set" text, uid uuid, node text, tick_id bigint, chain bytea)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(take_handover."set");
    v_offer cascade_internal.handover;
begin
    select h.* into v_offer from cascade_internal.handover as h where h.queue_id = v_queue.queue_id and h.uid = take_handover.uid for update;
    if not found or v_offer.target <> take_handover.node
       or (v_offer.closing_tick, v_offer.closing_chain) is distinct from (take_handover.tick_id, take_handover.chain) then
        raise exception 'set "%": term % was not offered to node "%" at tick %', take_handover."set", take_handover.uid, take_handover.node, take_handover.tick_id
            using errcode = 'QC209', hint = 'Look again: the offer was made to somebody else, or at another tick.';
    end if;
    -- Whoever takes it late must not reign beside somebody who was promoted meanwhile, or is about to be.
    if exists (select from cascade_internal.ballot as b where b.queue_id = v_queue.queue_id and b.closed_at is null and b.uid <> take_handover.uid) then
        raise exception 'set "%": another promotion was announced to the old root', take_handover."set"
            using errcode = 'QC212', hint = 'A failover is under way; let it end, or close its ballot.';
    elsif v_offer.state <> 'withdrawn' and v_queue.term_uid <> v_offer.term_uid then
        raise exception 'set "%": the old root has gone on in another term', take_handover."set"
            using errcode = 'QC209', hint = 'The offer counts no more.';
    elsif v_offer.state <> 'withdrawn'
          and exists (select from cascade_internal.term as t
                       where t.queue_id = v_queue.queue_id and t.voided_by is null and t.uid <> take_handover.uid
                         and not cascade_internal.is_continued(t)
                         and cascade_internal.reign_of(t.queue_id, t.parent_uid) = cascade_internal.reign_of(t.queue_id, v_offer.term_uid)) then
        raise exception 'set "%": another node reigns already', take_handover."set"
            using errcode = 'QC209', hint = 'The offer counts no more: somebody else was promoted meanwhile.';
    elsif v_offer.state = 'offered' then
        update cascade_internal.handover as h set state = 'taken' where h.queue_id = v_queue.queue_id and h.uid = take_handover.uid;
        perform cascade_internal.note_step(take_handover."set", v_offer.op_id, 'taken', jsonb_build_object('by', take_handover.node, 'uid', take_handover.uid));
        v_offer.state := 'taken';
    end if;
    return jsonb_build_object('state', v_offer.state, 'op_id', v_offer.op_id, 'closing_tick', v_offer.closing_tick);
end
$$;
comment on function cascade.take_handover(text, uuid, text, bigint, bytea) is 'Takes the reign that was offered, at the old root.';

-- cascade.withdraw_handover(set, op_id): the target does not take it.  The old term is over all the same, so the root opens
-- a new one, in the transaction that withdraws.
create or replace function cascade.withdraw_handover("set" text, op_id uuid)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(withdraw_handover."set");
    v_queue cascade_internal.queue := cascade_internal.lock_queue(withdraw_handover."set");
    v_offer cascade_internal.handover;
    v_done  jsonb;
begin
    select h.* into v_offer from cascade_internal.handover as h
     where h.queue_id = v_queue.queue_id and h.op_id = withdraw_handover.op_id and h.term_uid = v_queue.term_uid for update;
    if not found then
        raise exception 'set "%" has no such offer', withdraw_handover."set"
            using errcode = 'QC209', hint = 'cascade plan shows what is under way.';
    elsif v_offer.state <> 'offered' then
        raise exception 'set "%": the offer to node "%" is % already', withdraw_handover."set", v_offer.target, v_offer.state
            using errcode = 'QC209', hint = 'After it was taken there is only the way forward.';
    elsif exists (select from cascade_internal.term as t where t.queue_id = v_queue.queue_id and t.parent_uid = v_queue.term_uid and t.voided_by is null) then
        raise exception 'set "%": another node reigns already', withdraw_handover."set"
            using errcode = 'QC209', hint = 'cascade plan shows who.';
    end if;
    update cascade_internal.handover as h set state = 'withdrawn' where h.queue_id = v_queue.queue_id and h.uid = v_offer.uid;
    v_done := cascade_internal.open_term(v_queue, v_root, gen_random_uuid(), cascade.next_term_number(withdraw_handover."set"), 'withdrawn',
        jsonb_build_object('reason', format('%s did not take the reign', v_offer.target), 'op_id', withdraw_handover.op_id));
    perform cascade_internal.end_operation(v_queue.queue_id, withdraw_handover.op_id, 'withdrawn');
    return v_done;
end
$$;
comment on function cascade.withdraw_handover(text, uuid) is 'Takes an offer back and goes on as the root, in a new term.';
