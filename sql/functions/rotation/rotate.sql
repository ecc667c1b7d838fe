-- cascade.rotate(queue) takes the next step of rotation for every queue, or for one, and
-- returns what it did or what it waits for.  It must be the first statement of a transaction
-- of its own; the daemon calls it again and again.
--
--     switched    the register moved: new events go to the next partition, nobody waits
--     settled     a transaction that began after that has left its mark: since(gen)
--     released    nobody stands in the oldest generation any more
--     truncated   its partition is empty: the disk is free
--     waiting     and for whom; the view cascade.rotation says the same at any time
--
-- One step a call, since each relies on the one before being committed.  Without a queue, a
-- switch happens when rotation_period has passed; naming the queue asks for it now.
create or replace function cascade.rotate(queue text default null)
returns table (queue_name text, action text, generation bigint, detail text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue     cascade_internal.queue;
    v_unsettled bigint[];
    v_done      boolean;
begin
    if pg_current_xact_id_if_assigned() is not null then
        raise exception 'rotation must be the first statement of its transaction'
            using errcode = 'QC501', hint = 'Its transaction id marks a moment: call it in autocommit mode.';
    end if;
    perform cascade_internal.check_read_committed('rotation');
    if rotate.queue is not null then
        perform cascade_internal.find_queue(rotate.queue);
    end if;
    -- Read while this transaction has no id yet: the id it gets is later than these moves.
    v_unsettled := array(
        select cascade_internal.current_gen(q.queue_id, q.slots) * 10000000 + q.queue_id
          from cascade_internal.queue as q
         where q.name = coalesce(rotate.queue, q.name));
    -- Emptying takes the strongest lock and may wait for it a moment: one per call, and nothing
    -- else is locked meanwhile.
    for v_queue in
        select q.* from cascade_internal.queue as q
         where q.name = coalesce(rotate.queue, q.name)
           and exists (select from cascade_internal.generation as g where g.queue_id = q.queue_id and g.released)
         order by q.queue_id
    loop
        rotate.queue_name := v_queue.name;
        select e.gen, e.done, e.detail into rotate.generation, v_done, rotate.detail
          from cascade_internal.empty_generation(v_queue) as e;
        rotate.action := case when v_done then 'truncated' else 'waiting' end;
        return next;
        if v_done then
            return;
        end if;
    end loop;
    -- Copies first: one that is busy is waited for, and nothing of a queue that takes inserts is locked meanwhile.
    for v_queue in
        select q.* from cascade_internal.queue as q where q.name = coalesce(rotate.queue, q.name) order by q.is_copy desc, q.queue_id
    loop
        return query
            select v_queue.name, s.action, s.gen, s.detail
              from cascade_internal.rotate_step(v_queue, v_unsettled, rotate.queue is not null) as s;
    end loop;
end
$$;
comment on function cascade.rotate(text) is 'Takes the next step of rotation.';

create or replace function cascade_internal.rotate_step(
    queue cascade_internal.queue, settled_before bigint[], wanted boolean,
    out action text, out gen bigint, out detail text)
returns setof record
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (rotate_step.queue).queue_id;
    v_timeout constant text := current_setting('lock_timeout');
    v_is_free boolean;
    v_current bigint;
    v_oldest  cascade_internal.generation;
    v_newest  cascade_internal.generation;
    v_blocker record;
begin
    -- One rotation at a time, and none while somebody takes a place in the queue.
    select g.* into v_oldest
      from cascade_internal.generation as g
     where g.queue_id = v_id
     order by g.gen limit 1
       for update skip locked;
    if not found or exists (select from cascade_internal.generation as g where g.queue_id = v_id and g.gen < v_oldest.gen) then
        rotate_step.action := 'waiting';
        rotate_step.detail := coalesce((select h.detail from cascade_internal.place_holder(rotate_step.queue) as h), 'another rotation');
        return next;
        return;
    end if;
    perform cascade_internal.mend_first(v_id);
    v_current := cascade_internal.current_gen(v_id, (rotate_step.queue).slots);
    select g.* into v_newest from cascade_internal.generation as g where g.queue_id = v_id order by g.gen desc limit 1;

    if v_newest.gen < v_current then
        if v_current * 10000000 + v_id = any (rotate_step.settled_before) then
            -- More than one is missing when a dump was restored: it reads registers late.
            insert into cascade_internal.generation (queue_id, gen, since)
            select v_id, g, txid_current() + (rotate_step.queue).clock_offset
              from generate_series(v_newest.gen + 1, v_current) as g;
            rotate_step.action := 'settled';
            rotate_step.gen := v_current;
            return next;
        end if;
        return;
    end if;

    if not v_oldest.released and v_oldest.gen < v_current then
        select b.* into v_blocker from cascade_internal.rotation_blocker(rotate_step.queue, v_oldest.gen) as b;
        rotate_step.action := case when v_blocker.kind is null then 'released' else 'waiting' end;
        rotate_step.gen := v_oldest.gen;
        rotate_step.detail := v_blocker.detail;
        return next;
        if v_blocker.kind is null then
            perform cascade_internal.commit_durably();
            update cascade_internal.generation as g set released = true where g.queue_id = v_id and g.gen = v_oldest.gen;
            return;
        end if;
    end if;

    -- A slot is free once its generation was emptied by a committed transaction.
    if v_current - v_oldest.gen + 1 < (rotate_step.queue).slots
       and (rotate_step.wanted or clock_timestamp() - v_newest.switched_at >= (rotate_step.queue).rotation_period) then
        -- Not "for update": that would wait for, and hold up, whoever refers to the row by a key.
        -- A copier that catches up holds the row most of the time: rotation queues up behind it, but only for a
        -- moment.  A leaf holds it as long as its handler takes, and what is locked here makes others wait.
        if (rotate_step.queue).is_copy then
            perform set_config('lock_timeout', '1s', true);
            begin
                perform from cascade_internal.queue as q where q.queue_id = v_id for no key update;
                v_is_free := true;
            exception when lock_not_available then
                v_is_free := false;
            end;
            perform set_config('lock_timeout', v_timeout, true);
        else
            perform from cascade_internal.queue as q where q.queue_id = v_id for no key update skip locked;
            v_is_free := found;
        end if;
        if not v_is_free then
            rotate_step.action := 'waiting';
            rotate_step.gen := v_current;
            rotate_step.detail := coalesce((select h.detail from cascade_internal.place_holder(rotate_step.queue) as h),
                                           case when (rotate_step.queue).is_copy then 'a copy or its handler' else 'a tick' end);
            return next;
            return;
        end if;
        -- Ids that were reserved and forgotten; one that is being posted right now is not waited for.
        delete from cascade_internal.reservation as r
         where (r.queue_id, r.id) in (
               select o.queue_id, o.id
                 from cascade_internal.reservation as o
                where o.queue_id = v_id
                  and o.reserved_at < clock_timestamp() - interval '30 days'
                  for update skip locked);
        if (rotate_step.queue).is_combined then
            perform cascade_internal.keep_marks(rotate_step.queue);
        end if;
        perform cascade_internal.set_register(rotate_step.queue, v_current + 1,
                                              cascade_internal.is_armed(v_id, (rotate_step.queue).slots));
        rotate_step.action := 'switched';
        rotate_step.gen := v_current + 1;
        rotate_step.detail := null;
        return next;
    end if;
end
$$;
comment on function cascade_internal.rotate_step(cascade_internal.queue, bigint[], boolean) is 'One step of rotation for one queue.';

-- Empties the released generation of a queue.  Readers look at first_<id> after their last row,
-- so it moves before the rows go.  Whoever holds the partition is named, not waited for; only
-- autovacuum is, and it gives way after deadlock_timeout.  No writer waits behind the lock:
-- the partition has none.
create or replace function cascade_internal.empty_generation(
    queue cascade_internal.queue, out gen bigint, out done boolean, out detail text)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (empty_generation.queue).queue_id;
    v_timeout constant text := current_setting('lock_timeout');
    v_slot    bigint;
begin
    empty_generation.done := false;
    select g.gen into empty_generation.gen
      from cascade_internal.generation as g
     where g.queue_id = v_id and g.released
     order by g.gen limit 1
       for update skip locked;
    if not found then
        empty_generation.detail := 'another rotation';
        return;
    end if;
    v_slot := empty_generation.gen % (empty_generation.queue).slots;
    select h.detail into empty_generation.detail from cascade_internal.partition_holder(v_id, v_slot) as h;
    if found then
        return;
    end if;
    if cascade_internal.first_gen(v_id) <= empty_generation.gen then
        perform setval(format('cascade_internal.first_%s', v_id)::regclass, empty_generation.gen + 1);
    end if;
    perform set_config('lock_timeout', (extract(epoch from current_setting('deadlock_timeout')::interval) * 1000 + 500)::integer::text, true);
    begin
        execute format('truncate cascade_internal.event_%s_%s, cascade_internal.tick_%1$s_%2$s, cascade_internal.position_%1$s_%2$s',
                       v_id, v_slot);
        delete from cascade_internal.generation as g where g.queue_id = v_id and g.gen = empty_generation.gen;
        empty_generation.done := true;
    exception when lock_not_available then
        empty_generation.detail := 'somebody who held the partition for a moment';
    end;
    perform set_config('lock_timeout', v_timeout, true);
end
$$;
comment on function cascade_internal.empty_generation(cascade_internal.queue) is 'Truncates a released generation.';
