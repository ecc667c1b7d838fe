-- cascade.claim(queue, consumer, count, lease, worker) hands out up to count messages that nobody else has, under a
-- claim that is good until its lease runs out or its session ends.  All of one call have one claim id.  What is left
-- of a claim then, others get.  No row: there is nothing to do now.
create or replace function cascade_internal.claim(
    queue text, consumer text, count integer, lease interval, worker text, caller name)
returns setof cascade.message
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
begin
    v_found := cascade_internal.find_work(claim.queue, claim.consumer, claim.caller);
    return query select m.* from cascade_internal.hand_out(v_found.log, v_found.work, claim.count, claim.lease, claim.worker) as m;
end
$$;
comment on function cascade_internal.claim(text, text, integer, interval, text, name) is 'Hands out messages, for a caller.';

create or replace function cascade.claim(
    queue text, consumer text, count integer default 1, lease interval default '30 s', worker text default null)
returns setof cascade.message
language sql stable rows 100 -- stable, as batch_events is: put in place, not called
begin atomic
    select m.* from cascade_internal.claim(claim.queue, claim.consumer, claim.count, claim.lease, claim.worker, current_user) as m;
end;
comment on function cascade.claim(text, text, integer, interval, text) is 'Hands out messages under a lease; no row when there is nothing.';

-- cascade.consume(queue, consumer, count) hands out messages that are done with the caller's transaction: a rollback
-- returns them.  Nobody else sees them meanwhile, and no lease runs.
create or replace function cascade_internal.consume(queue text, consumer text, count integer, caller name)
returns setof cascade.message
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
begin
    v_found := cascade_internal.find_work(consume.queue, consume.consumer, consume.caller);
    return query select m.* from cascade_internal.hand_out(v_found.log, v_found.work, consume.count, null, null) as m;
end
$$;
comment on function cascade_internal.consume(text, text, integer, name) is 'Hands out messages for good, for a caller.';

create or replace function cascade.consume(queue text, consumer text, count integer default 1)
returns setof cascade.message
language sql stable rows 100
begin atomic
    select m.* from cascade_internal.consume(consume.queue, consume.consumer, consume.count, current_user) as m;
end;
comment on function cascade.consume(text, text, integer) is 'Claims and completes messages with the caller''s transaction.';

-- Hands out messages: under a claim, or without a lease for good.  Rows come first, since they are older or urgent; then
-- chunks.  When there is nothing, it does what a daemon would have done, and looks once more.
create or replace function cascade_internal.hand_out(
    log cascade_internal.queue, work cascade_internal.work_consumer, count integer, lease interval, worker text)
returns setof cascade.message
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id     constant integer := (hand_out.work).subscription_id;
    v_now    constant timestamptz := clock_timestamp();
    v_claim  bigint;
    v_hint   bigint := cascade_internal.work_register('hint', v_id);
    v_look   integer;
    v_rows   bigint := 0;
    v_left   integer := hand_out.count;
    v_first  bigint;
    v_chunk  cascade_internal.work_chunk;
    v_chunks bigint[] := '{}';
begin
    perform cascade_internal.check_read_committed('work mode');
    if hand_out.count is null or hand_out.count not between 1 and 10000 or hand_out.lease not between interval '1 ms' and interval '1 year' then
        raise exception 'count must be between 1 and 10000, and a lease positive and a year at most'
            using errcode = 'QC003', hint = 'For example claim(''orders'', ''mailer'', 100, ''30 s'').';
    end if;
    if hand_out.lease is not null then
        v_claim := cascade_internal.new_claim_id();
    end if;
    for v_look in 1 .. 2 loop
        if cascade_internal.has_rows(v_id) then
            return query
                select r.id, (hand_out.log).name, r.type, r.key, r.payload, r.headers, r.attempt, r."time", r.available_at, v_claim
                  from cascade_internal.pick_rows(hand_out.work, v_left, coalesce(v_claim, 0), v_now, v_claim is null) as r;
            get diagnostics v_rows = row_count;
            v_left := v_left - v_rows;
            if v_claim is null and v_rows > 0 then
                perform cascade_internal.finish_consumed(hand_out.work);
            end if;
        end if;
        while v_left > 0 loop
            select c.* into v_chunk
              from cascade_internal.work_chunk as c
             where c.subscription_id = v_id
               and c.no >= v_hint
               and c.state = 'f'
             order by c.no
             limit 1
               for update skip locked;
            exit when not found;
            v_first := coalesce(v_first, v_chunk.no);
            v_hint := v_chunk.no + 1;
            v_chunk := cascade_internal.mark_chunk(v_chunk, v_left, v_claim, hand_out.worker, v_now);
            v_chunks := v_chunks || v_chunk.no;
            v_left := v_left - coalesce(cardinality(v_chunk."open"), cardinality(v_chunk.ids));
            return query select m.* from cascade_internal.read_chunk(hand_out.log, v_chunk, v_claim) as m;
        end loop;
        exit when v_left < hand_out.count;
        exit when v_look = 2 or not cascade_internal.replenish(hand_out.log, hand_out.work);
        v_hint := cascade_internal.work_register('low', v_id);
    end loop;
    if v_left = hand_out.count then
        return;
    end if;
    -- A hint far behind costs every claim; one ahead of a chunk that came back by a rollback is set back by tend_work,
    -- or by a claim now and then where there is no daemon.
    if v_first > cascade_internal.work_register('hint', v_id) + 8000 then
        perform cascade_internal.set_work_register('hint', v_id, v_first);
    elsif random() < 0.001 then
        perform cascade_internal.mend_registers(v_id);
    end if;
    if v_claim is not null then
        insert into cascade_internal.work_claim (claim_id, subscription_id, worker, pid, claimed_at, seen_at, until, chunks, has_rows)
        values (v_claim, v_id, hand_out.worker, pg_backend_pid(), v_now, v_now, v_now + hand_out.lease, v_chunks, v_rows > 0);
    elsif v_chunks <> '{}' and cascade_internal.has_blockers(v_id) then
        perform cascade_internal.settle(hand_out.work, array(
            select i from cascade_internal.work_chunk as c cross join unnest(c.ids) as i
             where c.subscription_id = v_id and c.no = any (v_chunks)), 'done');
    end if;
end
$$;
comment on function cascade_internal.hand_out(cascade_internal.queue, cascade_internal.work_consumer, integer, interval, text)
    is 'Hands out messages, under a claim or for good.';

-- Marks a free chunk that the caller has locked, split first if it holds more than is asked for.  It is handed out as it is
-- then: what was taken out of it before is in "open".
create or replace function cascade_internal.mark_chunk(
    chunk cascade_internal.work_chunk, count integer, claim_id bigint, worker text, at timestamptz)
returns cascade_internal.work_chunk
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_chunk cascade_internal.work_chunk := mark_chunk.chunk;
begin
    if coalesce(cardinality(v_chunk."open"), cardinality(v_chunk.ids)) > mark_chunk.count then
        v_chunk := cascade_internal.split_chunk(v_chunk, mark_chunk.count);
    end if;
    if mark_chunk.claim_id is null then
        update cascade_internal.work_chunk as c
           set state = 'd', tids = null, "open" = '{}', claimed_at = mark_chunk.at, done_at = mark_chunk.at
         where c.subscription_id = v_chunk.subscription_id and c.no = v_chunk.no;
    else
        update cascade_internal.work_chunk as c
           set state = 'h', claim_id = mark_chunk.claim_id, worker = mark_chunk.worker, claimed_at = mark_chunk.at
         where c.subscription_id = v_chunk.subscription_id and c.no = v_chunk.no;
    end if;
    return v_chunk;
end
$$;
comment on function cascade_internal.mark_chunk(cascade_internal.work_chunk, integer, bigint, text, timestamptz) is 'Marks a free chunk as held, or as done.';

-- Splits a free chunk into pieces of so many messages, all at once, so that those who ask for as few find theirs ready; returns
-- the first.  A piece's number is its chunk's plus the place of its first message.
create or replace function cascade_internal.split_chunk(chunk cascade_internal.work_chunk, size integer)
returns cascade_internal.work_chunk
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_chunk cascade_internal.work_chunk := split_chunk.chunk;
    v_count integer;
begin
    if v_chunk."open" is not null then
        select array_agg(i.id order by i.n), array_agg(v_chunk.tids[i.n] order by i.n) into v_chunk.ids, v_chunk.tids
          from unnest(v_chunk.ids) with ordinality as i(id, n)
         where i.id = any (v_chunk."open");
        v_chunk."open" := null;
    end if;
    v_count := cardinality(v_chunk.ids);
    insert into cascade_internal.work_chunk (subscription_id, no, slot, from_tick, to_tick, txid_from, txid_to, cut_at, ids, tids)
    select v_chunk.subscription_id, v_chunk.no + n, v_chunk.slot, v_chunk.from_tick, v_chunk.to_tick, v_chunk.txid_from, v_chunk.txid_to,
           v_chunk.cut_at, v_chunk.ids[n + 1 : n + split_chunk.size], v_chunk.tids[n + 1 : n + split_chunk.size]
      from generate_series(split_chunk.size, v_count - 1, split_chunk.size) as n;
    v_chunk.ids := v_chunk.ids[: split_chunk.size];
    v_chunk.tids := v_chunk.tids[: split_chunk.size];
    update cascade_internal.work_chunk as c
       set ids = v_chunk.ids, tids = v_chunk.tids, "open" = null
     where c.subscription_id = v_chunk.subscription_id and c.no = v_chunk.no;
    return v_chunk;
end
$$;
comment on function cascade_internal.split_chunk(cascade_internal.work_chunk, integer) is 'Splits a free chunk, and returns the first piece.';

-- The messages of a chunk, by where they lie in the log; what is not there any more, as after VACUUM FULL or a restore, is
-- found by the transactions that wrote it.
create or replace function cascade_internal.read_chunk(log cascade_internal.queue, chunk cascade_internal.work_chunk, claim_id bigint)
returns setof cascade.message
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_open   constant bigint[] := coalesce((read_chunk.chunk)."open", (read_chunk.chunk).ids);
    v_select constant text := format(
        'select e.id, %L::text, e.type, e.key, e.payload, e.headers, 1, e."time", $1, $2 from cascade_internal.event_%s_%s as e where e.id = any ($3)',
        (read_chunk.log).name, (read_chunk.log).queue_id, (read_chunk.chunk).slot);
    v_count  bigint;
    v_others bigint;
begin
    return query execute v_select || ' and e.ctid = any ($4) order by 1'
        using (read_chunk.chunk).cut_at, read_chunk.claim_id, v_open, (read_chunk.chunk).tids;
    get diagnostics v_count = row_count;
    if v_count = cardinality(v_open) then
        return;
    end if;
    return query execute v_select || ' and e.txid between $5 and $6 and e.ctid <> all ($4) order by 1'
        using (read_chunk.chunk).cut_at, read_chunk.claim_id, v_open, (read_chunk.chunk).tids, (read_chunk.chunk).txid_from, (read_chunk.chunk).txid_to;
    get diagnostics v_others = row_count;
    if v_count + v_others <> cardinality(v_open) then
        raise exception 'queue "%" has lost events: % of % messages up to event % are there', (read_chunk.log).name,
                        v_count + v_others, cardinality(v_open), (read_chunk.chunk).ids[cardinality((read_chunk.chunk).ids)]
            using errcode = 'QC901', hint = 'Nothing was changed.  Restore the database, or skip them: cascade.seek() moves the consumer.';
    end if;
end
$$;
comment on function cascade_internal.read_chunk(cascade_internal.queue, cascade_internal.work_chunk, bigint) is 'The messages of a chunk.';

-- What consume() was given by rows is done with its transaction.
create or replace function cascade_internal.finish_consumed(work cascade_internal.work_consumer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[];
begin
    with gone as (
        delete from cascade_internal.work_active as a
         where a.subscription_id = (finish_consumed.work).subscription_id and a.claim_id = 0
        returning a.id, a.attempt),
    noted as (
        insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, claimed_at, ended_at)
        select (finish_consumed.work).subscription_id, g.id, g.attempt, 'done', clock_timestamp(), clock_timestamp() from gone as g)
    select array_agg(g.id) into v_ids from gone as g;
    perform cascade_internal.settle(finish_consumed.work, v_ids, 'done');
end
$$;
comment on function cascade_internal.finish_consumed(cascade_internal.work_consumer) is 'Ends the rows that were consumed in this transaction.';

-- Nothing was free: messages whose lease ran out come back, and new ticks are dispatched.  True when it is worth another look.
create or replace function cascade_internal.replenish(log cascade_internal.queue, work cascade_internal.work_consumer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (replenish.work).subscription_id;
    v_timeout constant text := current_setting('lock_timeout');
    v_moved   bigint := 0;
begin
    if exists (select from cascade_internal.work_claim as c where c.subscription_id = v_id and c.until <= clock_timestamp()) then
        v_moved := cascade_internal.reap_claims(replenish.log, replenish.work, false);
    end if;
    if cascade_internal.is_behind(replenish.log, v_id) then
        begin
            perform from cascade_internal.subscription as s where s.subscription_id = v_id for no key update skip locked;
            if not found then
                -- Somebody else is at it, and will be done in a moment.
                perform set_config('lock_timeout', '50ms', true);
                perform from cascade_internal.subscription as s where s.subscription_id = v_id for no key update;
            end if;
            v_moved := v_moved + cascade_internal.dispatch(replenish.log, replenish.work, 10000);
        exception when lock_not_available then
            null;
        end;
        perform set_config('lock_timeout', v_timeout, true);
        return true;
    end if;
    return v_moved > 0 or exists (
        select from cascade_internal.work_chunk as c
         where c.subscription_id = v_id and c.state = 'f' and c.no >= cascade_internal.work_register('low', v_id));
end
$$;
comment on function cascade_internal.replenish(cascade_internal.queue, cascade_internal.work_consumer) is 'Does what a daemon would have done for a consumer that finds nothing.';
