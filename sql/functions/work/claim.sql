-- Hands out messages: under a claim, or for good if there is no lease; without a queue, to the holder of a claim, after
-- completing that.  Rows come first, since they are older or urgent; then chunks.  When there is nothing, it does what a
-- daemon would have done, and looks once more.
--
-- Everything that all claims do is here, and rows are returned where they are read: it runs thousands of times a second.
create or replace function cascade_internal.hand_out(
    queue text, consumer text, finish bigint, ids bigint[], results json[], count integer, lease interval, worker text, caller name)
returns setof cascade.message
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now    constant timestamptz := clock_timestamp();
    v_found  record;
    v_log    cascade_internal.queue;
    v_work   cascade_internal.work_consumer;
    v_id     integer;
    v_claim  bigint;
    v_worker text := hand_out.worker;
    v_from   bigint;
    v_hint   bigint;
    v_look   integer;
    v_rows   bigint := 0;
    v_count  bigint;
    v_events integer;
    v_no     bigint;
    v_left   integer := hand_out.count;
    v_first  bigint;
    v_chunk  cascade_internal.work_chunk;
    v_chunks bigint[] := '{}';
begin
    if hand_out.count is null or hand_out.count not between 1 and 10000 or hand_out.lease not between interval '1 ms' and interval '1 year' then
        raise exception 'count must be between 1 and 10000, and a lease positive and a year at most'
            using errcode = 'QC003', hint = 'For example claim(''orders'', ''mailer'', 100, ''30 s'').';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        perform cascade_internal.check_read_committed('work mode');
    end if;
    -- Almost always a worker finishes all of a claim of its own that holds plain messages only: then nothing else has to be known.
    if hand_out.ids is null and hand_out.results is null and hand_out.finish is not null then
        delete from cascade_internal.work_claim as c
         where c.claim_id = hand_out.finish
           and c.role_name = hand_out.caller
           and not c.has_rows
           and not exists (select from cascade_internal.work_blocker as b where b.by_subscription = c.subscription_id)
        returning c.subscription_id, c.worker, c.chunks into v_id, v_worker, v_chunks;
        foreach v_no in array coalesce(v_chunks, '{}') loop
            update cascade_internal.work_chunk as c
               set state = 'd', done_at = v_now
             where c.subscription_id = v_id and c.no = v_no and c.state = 'h';
        end loop;
        v_chunks := '{}';
    end if;
    if v_id is not null then
        select w.* into v_work from cascade_internal.work_consumer as w where w.subscription_id = v_id;
        select q.* into v_log from cascade_internal.queue as q where q.queue_id = v_work.queue_id;
    else
        if hand_out.finish is null and hand_out.queue is not null then
            v_found := cascade_internal.find_work(hand_out.queue, hand_out.consumer, hand_out.caller);
        else
            v_found := cascade_internal.find_claim(hand_out.finish, hand_out.caller);
            perform cascade_internal.finish_messages(v_found.work, v_found.claim, hand_out.ids, hand_out.results);
            v_worker := (v_found.claim).worker;
        end if;
        v_log := v_found.log;
        v_work := v_found.work;
        v_id := v_work.subscription_id;
    end if;
    v_from := pg_sequence_last_value(('cascade_internal.work_hint_' || v_id)::regclass);
    v_hint := v_from;
    if hand_out.lease is not null then
        -- Never used twice, not even when a crash takes back what the sequence had given.
        v_claim := nextval('cascade_internal.work_claim_id') % 8000000000000 * 1048576 + floor(random() * 1048576)::bigint;
    end if;
    for v_look in 1 .. 2 loop
        if cascade_internal.has_rows(v_id) then
            return query
                select r.id, v_log.name, r.type, r.key, r.payload, r.headers, r.attempt, r."time", r.available_at, v_claim
                  from cascade_internal.pick_rows(v_work, v_left, coalesce(v_claim, 0), v_now, v_claim is null) as r;
            get diagnostics v_rows = row_count;
            v_left := v_left - v_rows;
            if v_claim is null and v_rows > 0 then
                perform cascade_internal.finish_consumed(v_work, v_now);
            end if;
        end if;
        while v_left > 0 loop
            update cascade_internal.work_chunk as c
               set state = case when v_claim is null then 'd' else 'h' end::"char", claim_id = v_claim, worker = v_worker,
                   claimed_at = v_now, done_at = case when v_claim is null then v_now end
             where c.subscription_id = v_id
               and c.no = (select x.no from cascade_internal.work_chunk as x
                            where x.subscription_id = v_id and x.no >= v_hint and x.state = 'f'
                            order by x.no
                            limit 1
                              for update skip locked)
            returning c.* into v_chunk;
            exit when not found;
            v_first := coalesce(v_first, v_chunk.no);
            v_hint := v_chunk.no + 1;
            v_events := coalesce(cardinality(v_chunk."open"), v_chunk.events);
            if v_events > v_left then
                v_chunk := cascade_internal.split_chunk(v_chunk, v_left);
                v_events := v_left;
            end if;
            return query execute cascade_internal.chunk_query(v_log.name, v_log.queue_id, v_chunk.slot, v_chunk.tids is null,
                                                              v_chunk."open" is null and v_chunk.ids is null)
                using v_chunk.cut_at, v_claim, v_chunk.first_id, v_chunk.last_id, v_chunk.first_tid, v_chunk.last_tid,
                      coalesce(v_chunk."open", v_chunk.ids), v_chunk.tids;
            get diagnostics v_count = row_count;
            if v_count < v_events then
                return query select m.* from cascade_internal.find_moved(v_log, v_chunk, v_claim, v_count) as m;
            end if;
            if v_claim is not null then
                v_chunks := v_chunks || v_chunk.no;
            elsif cascade_internal.has_blockers(v_id) then
                perform cascade_internal.settle(v_work, cascade_internal.open_ids(v_chunk), 'done');
            end if;
            v_left := v_left - v_events;
        end loop;
        exit when v_left < hand_out.count or v_look = 2 or not cascade_internal.replenish(v_log, v_work, v_claim is null);
        v_hint := cascade_internal.work_register('low', v_id);
    end loop;
    if v_left = hand_out.count then
        return;
    end if;
    -- A hint far behind costs every claim.  A chunk that came back by a rollback may be below it: tend_work sets it back,
    -- or a claim now and then where there is no daemon.
    if v_first > v_from + 8000 then
        perform cascade_internal.set_work_register('hint', v_id, v_first);
    elsif random() < 0.001 then
        perform cascade_internal.mend_registers(v_id);
    end if;
    if v_claim is not null then
        insert into cascade_internal.work_claim (claim_id, subscription_id, worker, role_name, pid, claimed_at, seen_at, until, chunks, has_rows)
        values (v_claim, v_id, v_worker, hand_out.caller, pg_backend_pid(), v_now, v_now, v_now + hand_out.lease, v_chunks, v_rows > 0);
    end if;
end
$$;
comment on function cascade_internal.hand_out(text, text, bigint, bigint[], json[], integer, interval, text, name) is 'Hands out messages, for a caller.';

-- cascade.claim(queue, consumer, count, lease, worker) hands out up to count messages that nobody else has, under a
-- claim that is good until its lease runs out or its session ends.  All of one call have one claim id.  What is left
-- of a claim then, others get.  No row: there is nothing to do now.
create or replace function cascade.claim(
    queue text, consumer text, count integer default 1, lease interval default '30 s', worker text default null)
returns setof cascade.message
language sql stable rows 100 -- stable, as batch_events is: put in place, not called
begin atomic
    select m.* from cascade_internal.hand_out(claim.queue, claim.consumer, null, null, null, claim.count, coalesce(claim.lease, interval '30 s'),
                                              claim.worker, current_user) as m;
end;
comment on function cascade.claim(text, text, integer, interval, text) is 'Hands out messages under a lease; no row when there is nothing.';

-- cascade.consume(queue, consumer, count) hands out messages that are done with the caller's transaction: a rollback
-- returns them.  Nobody else sees them meanwhile, and no lease runs.
create or replace function cascade.consume(queue text, consumer text, count integer default 1)
returns setof cascade.message
language sql stable rows 100
begin atomic
    select m.* from cascade_internal.hand_out(consume.queue, consume.consumer, null, null, null, consume.count, null, null, current_user) as m;
end;
comment on function cascade.consume(text, text, integer) is 'Claims and completes messages with the caller''s transaction.';

-- cascade.complete_and_claim(claim_id, ids, results, count, lease) completes as complete() does and claims the next messages for
-- the same consumer and worker, in one step: both happen or neither.
create or replace function cascade.complete_and_claim(
    claim_id bigint, ids bigint[] default null, results json[] default null, count integer default 1, lease interval default '30 s')
returns setof cascade.message
language sql stable rows 100
begin atomic
    select m.* from cascade_internal.hand_out(null, null, complete_and_claim.claim_id, complete_and_claim.ids, complete_and_claim.results,
                                              complete_and_claim.count, coalesce(complete_and_claim.lease, interval '30 s'), null, current_user) as m;
end;
comment on function cascade.complete_and_claim(bigint, bigint[], json[], integer, interval) is 'Ends messages of a claim and hands out the next ones.';

-- The messages of a chunk that are not finished.
create or replace function cascade_internal.open_ids(chunk cascade_internal.work_chunk)
returns bigint[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((open_ids.chunk)."open", (open_ids.chunk).ids,
                    array(select i from generate_series((open_ids.chunk).first_id, (open_ids.chunk).last_id) as i));
end
$$;
comment on function cascade_internal.open_ids(cascade_internal.work_chunk) is 'The messages of a chunk that are not finished.';

-- Splits a chunk that the caller has just marked into pieces of so many messages, all at once, so that those who ask for as few
-- find them ready; returns the first, which stays marked.  A piece's number is its chunk's plus the place of its first message.
create or replace function cascade_internal.split_chunk(chunk cascade_internal.work_chunk, size integer)
returns cascade_internal.work_chunk
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_chunk cascade_internal.work_chunk := split_chunk.chunk;
    v_open  constant bigint[] := cascade_internal.open_ids(split_chunk.chunk);
begin
    if v_chunk."open" is not null and v_chunk.tids is not null then
        v_chunk.tids := array(select v_chunk.tids[n] from unnest(v_chunk.ids) with ordinality as i(id, n) where i.id = any (v_open) order by n);
    end if;
    insert into cascade_internal.work_chunk (subscription_id, no, slot, from_tick, to_tick, txid_from, txid_to, cut_at, events,
                                             first_id, last_id, first_tid, last_tid, ids, tids)
    select v_chunk.subscription_id, v_chunk.no + p.n, v_chunk.slot, v_chunk.from_tick, v_chunk.to_tick, v_chunk.txid_from, v_chunk.txid_to,
           v_chunk.cut_at, cardinality(p.ids), p.ids[1], p.ids[cardinality(p.ids)], v_chunk.first_tid, v_chunk.last_tid,
           case when v_chunk.ids is not null or v_chunk."open" is not null then p.ids end,
           v_chunk.tids[p.n + 1 : p.n + split_chunk.size]
      from (select n, v_open[n + 1 : n + split_chunk.size] as ids
              from generate_series(split_chunk.size, cardinality(v_open) - 1, split_chunk.size) as n) as p;
    if v_chunk.ids is not null or v_chunk."open" is not null then
        v_chunk.ids := v_open[: split_chunk.size];
        v_chunk.tids := v_chunk.tids[: split_chunk.size];
        v_chunk."open" := null;
    end if;
    v_chunk.events := split_chunk.size;
    v_chunk.first_id := v_open[1];
    v_chunk.last_id := v_open[split_chunk.size];
    update cascade_internal.work_chunk as c
       set ids = v_chunk.ids, tids = v_chunk.tids, "open" = null, events = v_chunk.events, first_id = v_chunk.first_id, last_id = v_chunk.last_id
     where c.subscription_id = v_chunk.subscription_id and c.no = v_chunk.no;
    return v_chunk;
end
$$;
comment on function cascade_internal.split_chunk(cascade_internal.work_chunk, integer) is 'Splits a chunk, and returns the first piece.';

-- The query for the messages of a chunk, by where they lay when it was cut.  After VACUUM FULL or a restore some lie elsewhere:
-- those are found by the transactions that wrote them.
create or replace function cascade_internal.chunk_query(
    queue text, queue_id integer, slot smallint, is_dense boolean, is_whole boolean, txid_from bigint default null, txid_to bigint default null)
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_is_there constant text := case when chunk_query.is_dense then 'e.ctid between $5 and $6' else 'e.ctid = any ($8)' end;
begin
    return format('select e.id, %L::text, e.type, e.key, e.payload, e.headers, 1, e."time", $1, $2 from cascade_internal.event_%s_%s as e'
                  ' where e.id between $3 and $4 and %s%s',
        chunk_query.queue, chunk_query.queue_id, chunk_query.slot,
        case when chunk_query.txid_from is null then v_is_there
             else format('e.txid between %s and %s and (%s) is not true', chunk_query.txid_from, chunk_query.txid_to, v_is_there) end,
        case when not chunk_query.is_whole then ' and e.id = any ($7)' end);
end
$$;
comment on function cascade_internal.chunk_query(text, integer, smallint, boolean, boolean, bigint, bigint) is 'The query for the messages of a chunk.';

-- The messages of a chunk that are no longer where they lay; so many others were found there.
create or replace function cascade_internal.find_moved(
    log cascade_internal.queue, chunk cascade_internal.work_chunk, claim_id bigint, found_before bigint)
returns setof cascade.message
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_all   constant integer := coalesce(cardinality((find_moved.chunk)."open"), (find_moved.chunk).events);
    v_count bigint;
begin
    return query execute cascade_internal.chunk_query(
            (find_moved.log).name, (find_moved.log).queue_id, (find_moved.chunk).slot, (find_moved.chunk).tids is null,
            (find_moved.chunk)."open" is null and (find_moved.chunk).ids is null, (find_moved.chunk).txid_from, (find_moved.chunk).txid_to)
        using (find_moved.chunk).cut_at, find_moved.claim_id, (find_moved.chunk).first_id, (find_moved.chunk).last_id,
              (find_moved.chunk).first_tid, (find_moved.chunk).last_tid,
              coalesce((find_moved.chunk)."open", (find_moved.chunk).ids), (find_moved.chunk).tids;
    get diagnostics v_count = row_count;
    if find_moved.found_before + v_count <> v_all then
        raise exception 'queue "%" has lost events: % of % from % to % are there', (find_moved.log).name,
                        find_moved.found_before + v_count, v_all, (find_moved.chunk).first_id, (find_moved.chunk).last_id
            using errcode = 'QC901', hint = 'Nothing was changed.  Restore the database, or skip them: cascade.seek() moves the consumer.';
    end if;
end
$$;
comment on function cascade_internal.find_moved(cascade_internal.queue, cascade_internal.work_chunk, bigint, bigint) is 'The messages of a chunk that lie elsewhere now.';

create or replace function cascade_internal.read_chunk(log cascade_internal.queue, chunk cascade_internal.work_chunk, claim_id bigint)
returns setof cascade.message
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    return query execute cascade_internal.chunk_query(
            (read_chunk.log).name, (read_chunk.log).queue_id, (read_chunk.chunk).slot, (read_chunk.chunk).tids is null,
            (read_chunk.chunk)."open" is null and (read_chunk.chunk).ids is null)
        using (read_chunk.chunk).cut_at, read_chunk.claim_id, (read_chunk.chunk).first_id, (read_chunk.chunk).last_id,
              (read_chunk.chunk).first_tid, (read_chunk.chunk).last_tid,
              coalesce((read_chunk.chunk)."open", (read_chunk.chunk).ids), (read_chunk.chunk).tids;
    get diagnostics v_count = row_count;
    if v_count < coalesce(cardinality((read_chunk.chunk)."open"), (read_chunk.chunk).events) then
        return query select m.* from cascade_internal.find_moved(read_chunk.log, read_chunk.chunk, read_chunk.claim_id, v_count) as m;
    end if;
end
$$;
comment on function cascade_internal.read_chunk(cascade_internal.queue, cascade_internal.work_chunk, bigint) is 'The messages of a chunk that are not finished.';

-- What consume() was given by rows is done with its transaction.
create or replace function cascade_internal.finish_consumed(work cascade_internal.work_consumer, at timestamptz)
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
        select (finish_consumed.work).subscription_id, g.id, g.attempt, 'done', finish_consumed.at, clock_timestamp() from gone as g)
    select array_agg(g.id) into v_ids from gone as g;
    perform cascade_internal.settle(finish_consumed.work, v_ids, 'done');
end
$$;
comment on function cascade_internal.finish_consumed(cascade_internal.work_consumer, timestamptz) is 'Ends the rows that were consumed in this transaction.';

-- Nothing was free: messages whose lease ran out come back, and new ticks are dispatched.  True when it is worth another look.
create or replace function cascade_internal.replenish(log cascade_internal.queue, work cascade_internal.work_consumer, in_caller boolean)
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
    -- Whoever completes what others wait for is not to wait for a caller's own transaction, which may be a long one.
    if not replenish.in_caller then
        v_moved := v_moved + cascade_internal.tend_rows(replenish.work, clock_timestamp());
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
    perform cascade_internal.mend_registers(v_id);
    return v_moved > 0 or exists (
        select from cascade_internal.work_chunk as c
         where c.subscription_id = v_id and c.state = 'f' and c.no >= cascade_internal.work_register('hint', v_id));
end
$$;
comment on function cascade_internal.replenish(cascade_internal.queue, cascade_internal.work_consumer, boolean) is 'Does what a daemon would have done for a consumer that finds nothing.';
