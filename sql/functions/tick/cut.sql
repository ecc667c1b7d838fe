-- cascade_internal.cut(queue_id, skip_empty) makes the next tick of a queue whose row the
-- caller has locked.  With skip_empty it returns null instead of a tick without events.
--
-- The order matters: lock, then snapshot, then the registers.  event_seq read after the
-- snapshot is at least the id of every event the snapshot sees; gen read after it is at
-- least the generation of every such event.
--
-- A transaction that ticks may have inserted events itself; its own id is put among the
-- open ones, so that they come with a later tick, wherever its id lies.  With with_own they come with
-- this one: the first and the last tick of a term hold the control events that say so.  Only a
-- transaction that keeps every writer out may do that, and it must not insert anything afterwards.
create or replace function cascade_internal.cut(queue_id integer, skip_empty boolean, with_own boolean default false)
returns cascade_internal.tick
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set max_parallel_workers_per_gather = 0
as $$
declare
    v_queue cascade_internal.queue;
    v_last  cascade_internal.tick;
    v_tick  cascade_internal.tick;
    v_own   constant bigint := txid_current();
    v_count bigint := 0;
    v_shown bigint := 0;
begin
    -- A tick that anyone can see survives a crash, with every event in it.
    perform cascade_internal.commit_durably();
    select q.* into strict v_queue from cascade_internal.queue as q where q.queue_id = cut.queue_id;
    if v_queue.is_copy then
        perform cascade_internal.raise_is_copy(v_queue, 'makes no ticks');
    end if;
    v_last := cascade_internal.newest_tick(cut.queue_id, v_queue.slots);
    perform cascade_internal.mend_first(cut.queue_id);
    if v_last.tick_id is null and cascade_internal.current_gen(cut.queue_id, v_queue.slots) > 0 then
        raise exception 'queue "%" has lost its ticks', v_queue.name
            using errcode = 'QC901', hint = 'Nothing was changed.  Restore the database from a dump that holds cascade_internal.';
    end if;
    v_queue := cascade_internal.repair_clock(v_queue, v_last);

    select txid_snapshot_xmin(s.snapshot) + v_queue.clock_offset,
           greatest(txid_snapshot_xmax(s.snapshot), case when cut.with_own then v_own + 1 end) + v_queue.clock_offset,
           array(select x + v_queue.clock_offset
                   from (select txid_snapshot_xip(s.snapshot)
                         union all select v_own where v_own < txid_snapshot_xmax(s.snapshot) and not cut.with_own
                         -- Begun after the snapshot's last, before this one: they may still insert.
                         union all select generate_series(txid_snapshot_xmax(s.snapshot), v_own - 1) where cut.with_own) as o(x)
                  order by 1)
      into v_tick.low, v_tick.high, v_tick."open"
      from (select txid_current_snapshot()) as s(snapshot);
    v_tick.low := least(v_tick.low, v_own + v_queue.clock_offset);
    v_tick.event_seq := coalesce(pg_sequence_last_value(format('cascade_internal.event_id_%s', cut.queue_id)::regclass), v_queue.term * 1000000000000);
    v_tick.gen := cascade_internal.current_gen(cut.queue_id, v_queue.slots);
    select min(g.gen) into v_tick.gen_low
      from cascade_internal.generation as g
     where g.queue_id = cut.queue_id
       and not exists (select from cascade_internal.generation as s
                        where s.queue_id = g.queue_id and s.gen = g.gen + 1 and s.since <= v_tick.low);

    if v_last.tick_id is not null then
        execute format('select count(*), count(*) filter (where e.origin is distinct from ''.cascade'') from (%s) as e',
                       cascade_internal.batch_arms(v_queue, v_last, v_tick, 'e.origin'))
           into v_count, v_shown;
        if v_count = 0 and cut.skip_empty then
            return null;
        end if;
    end if;
    v_tick.tick_id := greatest(v_last.tick_id, v_queue.term * 1000000000000) + 1;
    v_tick.prev_tick := v_last.tick_id;
    v_tick."time" := clock_timestamp();
    v_tick.total := coalesce(v_last.total, 0) + v_shown;
    v_tick.term_uid := v_queue.term_uid;
    v_tick.chain := sha256(convert_to(concat_ws('/', encode(v_last.chain, 'hex'), v_tick.term_uid, v_tick.tick_id,
        v_tick.prev_tick, extract(epoch from v_tick."time"), v_tick.low, v_tick.high, v_tick."open"::text,
        v_tick.event_seq, v_tick.total, gen_random_uuid()), 'UTF8'));
    execute format('insert into cascade_internal.tick_%s_%s select ($1).*', cut.queue_id, v_tick.gen % v_queue.slots)
      using v_tick;
    perform pg_notify('cascade_tick_' || cut.queue_id, '');
    return v_tick;
end
$$;
comment on function cascade_internal.cut(integer, boolean, boolean) is 'Makes the next tick of a locked queue.';

create or replace function cascade_internal.commit_durably()
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    -- A SET clause of the function would be undone before the commit.
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;
comment on function cascade_internal.commit_durably() is 'Makes this transaction wait for its flush, whatever the session''s setting.';

create or replace function cascade_internal.check_read_committed(what text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception '% needs READ COMMITTED, this transaction is %', check_read_committed.what,
                        upper(current_setting('transaction_isolation'))
            using errcode = 'QC501', hint = 'Its snapshot must be newer than the locks it waits for: call it in a READ COMMITTED transaction.';
    end if;
end
$$;
comment on function cascade_internal.check_read_committed(text) is 'Refuses snapshots that are older than the call.';
