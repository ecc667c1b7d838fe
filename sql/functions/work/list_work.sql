-- What the views cascade.work and cascade.work_stats show.
create or replace function cascade_internal.list_work(caller name)
returns table (queue text, consumer text, waiting bigint, urgent bigint, high bigint, normal bigint, low bigint, plain bigint, undispatched bigint,
               delayed bigint, blocked bigint, active bigint, dead bigint, oldest_at timestamptz, next_due timestamptz, workers text[],
               selector text, options jsonb)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_work   record;
    v_chunks record;
    v_rows   record;
    v_held   record;
    v_drawn  bigint;
begin
    for v_work in
        select w.*, s.consumer as name, q as log
          from cascade_internal.work_consumer as w
          join cascade_internal.subscription as s using (subscription_id)
          join cascade_internal.queue as q on q.queue_id = w.queue_id
         order by q.name, s.consumer
    loop
        continue when not cascade_internal.may_consume(v_work.queue_id, v_work.name, list_work.caller);
        select coalesce(sum(coalesce(cardinality(c."open"), c.events)) filter (where c.state = 'f'), 0) as free,
               coalesce(sum(coalesce(cardinality(c."open"), c.events)) filter (where c.state = 'h'), 0) as held,
               min(c.cut_at) filter (where c.state = 'f') as oldest
          into v_chunks
          from cascade_internal.work_chunk as c
         where c.subscription_id = v_work.subscription_id
           and c.no >= cascade_internal.work_register('low', v_work.subscription_id)
           and c.state <> 'd';
        select count(*) filter (where w.class = 1) as urgent, count(*) filter (where w.class = 2) as high,
               count(*) filter (where w.class = 3) as normal, count(*) filter (where w.class = 4) as low, min(w.available_at) as oldest
          into v_rows
          from cascade_internal.work_waiting as w
         where w.subscription_id = v_work.subscription_id
           and w.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p
                             where p.subscription_id = v_work.subscription_id and p.claim_id is not null);
        select count(*) filter (where h.waits = 0) as delayed, count(*) filter (where h.waits > 0) as blocked,
               min(h.due) filter (where h.waits = 0) as due
          into v_held
          from cascade_internal.work_held as h
         where h.subscription_id = v_work.subscription_id;
        select coalesce(sum(cardinality(p.ids)), 0) into v_drawn
          from cascade_internal.work_parcel as p
         where p.subscription_id = v_work.subscription_id and p.claim_id is not null;
        list_work.queue := (v_work.log).name;
        list_work.consumer := v_work.name;
        list_work.urgent := v_rows.urgent;
        list_work.high := v_rows.high;
        list_work.normal := v_rows.normal;
        list_work.low := v_rows.low;
        list_work.plain := v_chunks.free;
        list_work.waiting := v_rows.urgent + v_rows.high + v_rows.normal + v_rows.low + v_chunks.free;
        list_work.undispatched := (cascade_internal.newest_tick(v_work.queue_id, (v_work.log).slots)).total
                                  - (cascade_internal.newest_position(v_work.log, v_work.subscription_id)).head_total;
        list_work.delayed := v_held.delayed;
        list_work.blocked := v_held.blocked;
        list_work.active := v_drawn + v_chunks.held
                            + (select count(*) from cascade_internal.work_active as a where a.subscription_id = v_work.subscription_id);
        list_work.dead := (select count(*) from cascade_internal.work_dead as d where d.subscription_id = v_work.subscription_id);
        list_work.oldest_at := least(v_rows.oldest, v_chunks.oldest);
        list_work.next_due := v_held.due;
        list_work.workers := array(select distinct c.worker from cascade_internal.work_claim as c
                                    where c.subscription_id = v_work.subscription_id and c.worker <> '' order by 1);
        list_work.selector := v_work.selector::text;
        list_work.options := v_work.options;
        return next;
    end loop;
end
$$;
comment on function cascade_internal.list_work(name) is 'What waits and is worked on, for the consumers a caller may see.';

-- Plain messages that are done are counted by their chunks, the others by their history, as far back as those are kept.
create or replace function cascade_internal.list_work_stats(caller name)
returns table (queue text, consumer text, done_minute bigint, done_hour bigint, failed_hour bigint, lost_hour bigint, dead_hour bigint,
               expired_hour bigint, wait_seconds numeric, work_seconds numeric, expired bigint, unreadable bigint, misoptioned bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_now  constant timestamptz := clock_timestamp();
    v_work record;
    v_done record;
    v_ends record;
begin
    for v_work in
        select w.subscription_id, w.queue_id, s.consumer as name, q.name as log, c.expired, c.unreadable, c.misoptioned
          from cascade_internal.work_consumer as w
          join cascade_internal.subscription as s using (subscription_id)
          join cascade_internal.queue as q on q.queue_id = w.queue_id
          join cascade_internal.work_count as c using (subscription_id)
         order by q.name, s.consumer
    loop
        continue when not cascade_internal.may_consume(v_work.queue_id, v_work.name, list_work_stats.caller);
        select coalesce(sum(c.events) filter (where c.done_at > v_now - interval '1 min'), 0) as minute,
               coalesce(sum(c.events), 0) as hour,
               coalesce(sum(c.events * extract(epoch from c.claimed_at - c.cut_at)), 0) as waited,
               coalesce(sum(c.events * extract(epoch from c.done_at - c.claimed_at)), 0) as worked
          into v_done
          from cascade_internal.work_chunk as c
         where c.subscription_id = v_work.subscription_id and c.state = 'd' and c.done_at > v_now - interval '1 hour'
           and c.claimed_at is not null; -- Others were purged.
        select count(*) filter (where h.outcome = 'done' and h.ended_at > v_now - interval '1 min') as minute,
               count(*) filter (where h.outcome = 'done') as hour,
               count(*) filter (where h.outcome = 'failed') as failed,
               count(*) filter (where h.outcome = 'lost') as lost,
               count(*) filter (where h.outcome = 'expired') as expired,
               coalesce(sum(extract(epoch from h.ended_at - h.claimed_at)) filter (where h.outcome = 'done'), 0) as worked
          into v_ends
          from cascade_internal.work_history as h
         where h.subscription_id = v_work.subscription_id and h.ended_at > v_now - interval '1 hour';
        list_work_stats.queue := v_work.log;
        list_work_stats.consumer := v_work.name;
        list_work_stats.done_minute := v_done.minute + v_ends.minute;
        list_work_stats.done_hour := v_done.hour + v_ends.hour;
        list_work_stats.failed_hour := v_ends.failed;
        list_work_stats.lost_hour := v_ends.lost;
        list_work_stats.expired_hour := v_ends.expired;
        list_work_stats.dead_hour := (select count(*) from cascade_internal.work_dead as d
                                       where d.subscription_id = v_work.subscription_id and d.died_at > v_now - interval '1 hour');
        list_work_stats.wait_seconds := round(v_done.waited / nullif(v_done.hour, 0), 3);
        list_work_stats.work_seconds := round((v_done.worked + v_ends.worked) / nullif(v_done.hour + v_ends.hour, 0), 3);
        list_work_stats.expired := v_work.expired;
        list_work_stats.unreadable := v_work.unreadable;
        list_work_stats.misoptioned := v_work.misoptioned;
        return next;
    end loop;
end
$$;
comment on function cascade_internal.list_work_stats(name) is 'What was done lately, for the consumers a caller may see.';
