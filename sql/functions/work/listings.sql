-- What people see of the messages of a consumer.

-- cascade.work_messages(queue, consumer, state, most) lists messages that are not done: those in hand, then those that could be
-- claimed, then those that wait for their time or for others, then dead ones; or those in one state: active, waiting, delayed,
-- blocked or dead.
create or replace function cascade_internal.work_messages(queue text, consumer text, state text, most integer, caller name)
returns setof cascade.work_message
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record := cascade_internal.find_work(work_messages.queue, work_messages.consumer, work_messages.caller);
    v_id    constant integer := (v_found.work).subscription_id;
    v_left  bigint := coalesce(work_messages.most, 1000000);
    v_count bigint;
    v_chunk cascade_internal.work_chunk;
    v_claim cascade_internal.work_claim;
begin
    if work_messages.state not in ('active', 'waiting', 'delayed', 'blocked', 'dead') then
        raise exception 'there is no state %', quote_literal(left(work_messages.state, 40))
            using errcode = 'QC003', hint = 'active, waiting, delayed, blocked or dead; null for all.';
    end if;
    return query
        select r.id, r.state, r.class, r.type, r.key, r.attempt, r."time", r.due, r.expires_at, c.worker, c.claimed_at, c.until,
               array(select f.after_id from cascade_internal.work_after as f
                      where f.subscription_id = v_id and f.id = r.id order by f.after_id),
               coalesce(r.error, (select h.error from cascade_internal.work_history as h
                                   where h.subscription_id = v_id and h.id = r.id and h.error is not null
                                   order by h.ended_at desc limit 1))
          from (select a.id, case when a.claim_id is null then 'waiting' else 'active' end as state, a.class, a.type, a.key, a.attempt,
                       a."time", a.available_at as due, a.expires_at, a.claim_id, null::text as error,
                       case when a.claim_id is null then 2 else 1 end as place
                  from cascade_internal.work_active as a where a.subscription_id = v_id
                union all
                select w.id, case when p.claim_id is null then 'waiting' else 'active' end, w.class, w.type, w.key,
                       w.attempt + (p.claim_id is not null)::integer, w."time", w.available_at, w.expires_at, p.claim_id, null,
                       case when p.claim_id is null then 2 else 1 end
                  from cascade_internal.work_waiting as w
                  left join (select x.id, p.claim_id from cascade_internal.work_parcel as p cross join unnest(p.ids) as x(id)
                              where p.subscription_id = v_id and p.claim_id is not null) as p
                    on p.id = w.id
                 where w.subscription_id = v_id
                union all
                select h.id, case when h.waits > 0 then 'blocked' else 'delayed' end, h.class, h.type, h.key, h.attempt, h."time", h.due,
                       h.expires_at, null, null, 3
                  from cascade_internal.work_held as h where h.subscription_id = v_id
                union all
                select d.id, 'dead', d.class, d.type, d.key, d.attempt, d."time", null, d.expires_at, null, coalesce(d.error, ''), 4
                  from cascade_internal.work_dead as d where d.subscription_id = v_id) as r
          left join cascade_internal.work_claim as c on c.claim_id = r.claim_id
         where r.state = coalesce(work_messages.state, r.state)
         order by r.place, r.id
         limit v_left;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    for v_chunk in
        select c.* from cascade_internal.work_chunk as c
         where c.subscription_id = v_id
           and c.no >= cascade_internal.work_register('low', v_id)
           and c.state = any (case work_messages.state when 'active' then '{h}' when 'waiting' then '{f}'
                                   else case when work_messages.state is null then '{h,f}' else '{}' end end::"char"[])
         order by c.no
    loop
        exit when v_left <= 0;
        select c.* into v_claim from cascade_internal.work_claim as c where c.claim_id = v_chunk.claim_id;
        return query
            select m.id, case v_chunk.state when 'h' then 'active' else 'waiting' end, 3::smallint, m.type, m.key,
                   (v_chunk.state = 'h')::integer, m.posted_at, m.available_at, null::timestamptz, v_claim.worker, v_claim.claimed_at,
                   v_claim.until, '{}'::bigint[], null::text
              from cascade_internal.read_chunk(v_found.log, v_chunk, null) as m
             limit v_left;
        get diagnostics v_count = row_count;
        v_left := v_left - v_count;
    end loop;
end
$$;
comment on function cascade_internal.work_messages(text, text, text, integer, name) is 'Lists messages that are not done, to a caller.';

create or replace function cascade.work_messages(queue text, consumer text, state text default null, most integer default 100)
returns setof cascade.work_message
language sql volatile
begin atomic
    select m.*
      from cascade_internal.work_messages(work_messages.queue, work_messages.consumer, work_messages.state, work_messages.most, current_user) as m;
end;
comment on function cascade.work_messages(text, text, text, integer) is 'Lists messages of a consumer that are not done.';

-- cascade.work_result(queue, consumer, id) says what became of a message: waiting, delayed, blocked, active, dead, done, expired, taken or
-- cancelled; unknown if it never came, or was done longer ago than keep_done.
create or replace function cascade_internal.work_result(queue text, consumer text, id bigint, caller name)
returns table (state text, result json, error text, attempts integer, finished_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record := cascade_internal.find_work(work_result.queue, work_result.consumer, work_result.caller);
    v_id    constant integer := (v_found.work).subscription_id;
begin
    return query
        select x.state, x.result, x.error, x.attempts, x.at
          from (select 1 as place, 'dead' as state, null::json as result, d.error, d.attempt as attempts, d.died_at as at
                  from cascade_internal.work_dead as d where d.subscription_id = v_id and d.id = work_result.id
                union all
                select 2, case when a.claim_id is null then 'waiting' else 'active' end, null, null, a.attempt, null
                  from cascade_internal.work_active as a where a.subscription_id = v_id and a.id = work_result.id
                union all
                select 3, case when p.is_held then 'active' else 'waiting' end, null, null, w.attempt + p.is_held::integer, null
                  from cascade_internal.work_waiting as w
                 cross join cascade_internal.is_in_parcel(v_id, work_result.id, true) as p(is_held)
                 where w.subscription_id = v_id and w.id = work_result.id
                union all
                select 4, case when h.waits > 0 then 'blocked' else 'delayed' end, null, null, h.attempt, null
                  from cascade_internal.work_held as h where h.subscription_id = v_id and h.id = work_result.id
                union all
                select 5, case c.state when 'h' then 'active' else 'waiting' end, null, null, (c.state = 'h')::integer, null
                  from cascade_internal.work_chunk as c
                 where c.subscription_id = v_id
                   and c.no >= cascade_internal.work_register('low', v_id)
                   and c.state <> 'd'
                   and work_result.id between c.first_id and c.last_id
                   and work_result.id = any (coalesce(c."open", c.ids, array[work_result.id]))) as x
         order by x.place limit 1;
    if found then
        return;
    end if;
    return query
        select x.state, x.result, x.error, x.attempts, x.at
          from (select h.outcome as state, h.result, h.error, h.attempt as attempts, h.ended_at as at
                  from cascade_internal.work_history as h
                 where h.subscription_id = v_id and h.id = work_result.id and h.outcome in ('done', 'expired', 'taken', 'cancelled')
                union all
                select case when c.claimed_at is null then 'cancelled' else 'done' end, null, null, (c.claimed_at is not null)::integer, c.done_at
                  from cascade_internal.work_chunk as c
                 where c.subscription_id = v_id and c.state = 'd'
                   and work_result.id between c.first_id and c.last_id
                   and (c.ids is null or work_result.id = any (c.ids))
                   and not exists (select from cascade_internal.work_history as h
                                    where h.subscription_id = v_id and h.id = work_result.id)) as x
         order by x.at desc limit 1;
    if not found then
        return query select 'unknown', null::json, null::text, 0, null::timestamptz;
    end if;
end
$$;
comment on function cascade_internal.work_result(text, text, bigint, name) is 'What became of a message, for a caller.';

create or replace function cascade.work_result(queue text, consumer text, id bigint)
returns table (state text, result json, error text, attempts integer, finished_at timestamptz)
language sql volatile
begin atomic
    select r.state, r.result, r.error, r.attempts, r.finished_at
      from cascade_internal.work_result(work_result.queue, work_result.consumer, work_result.id, current_user) as r;
end;
comment on function cascade.work_result(text, text, bigint) is 'What became of a message, and its result.';

-- cascade.work_attempts(queue, consumer, id) lists the attempts at a message: who, when, how each ended, and the error.
create or replace function cascade_internal.work_attempts(queue text, consumer text, id bigint, caller name)
returns table (attempt integer, outcome text, worker text, claimed_at timestamptz, ended_at timestamptz, error text, result json)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record := cascade_internal.find_work(work_attempts.queue, work_attempts.consumer, work_attempts.caller);
    v_id    constant integer := (v_found.work).subscription_id;
begin
    return query
        select x.attempt, x.outcome, x.worker, x.claimed_at, x.ended_at, x.error, x.result
          from (select h.attempt, h.outcome, h.worker, h.claimed_at, h.ended_at, h.error, h.result
                  from cascade_internal.work_history as h where h.subscription_id = v_id and h.id = work_attempts.id
                union all
                select a.attempt, 'active', c.worker, c.claimed_at, null, null, null
                  from cascade_internal.work_active as a
                  join cascade_internal.work_claim as c on c.claim_id = a.claim_id
                 where a.subscription_id = v_id and a.id = work_attempts.id
                union all
                select 1, case c.state when 'h' then 'active' else 'done' end, c.worker, c.claimed_at, c.done_at, null, null
                  from cascade_internal.work_chunk as c
                 where c.subscription_id = v_id
                   and c.state <> 'f'
                   and work_attempts.id between c.first_id and c.last_id
                   and (c.ids is null or work_attempts.id = any (c.ids))
                   and (c.state = 'd' or c."open" is null or work_attempts.id = any (c."open"))
                   and not exists (select from cascade_internal.work_history as h
                                    where h.subscription_id = v_id and h.id = work_attempts.id)
                   and not exists (select from cascade_internal.work_active as a
                                    where a.subscription_id = v_id and a.id = work_attempts.id)) as x
         order by coalesce(x.ended_at, 'infinity'), x.attempt;
end
$$;
comment on function cascade_internal.work_attempts(text, text, bigint, name) is 'The attempts at a message, for a caller.';

create or replace function cascade.work_attempts(queue text, consumer text, id bigint)
returns table (attempt integer, outcome text, worker text, claimed_at timestamptz, ended_at timestamptz, error text, result json)
language sql volatile
begin atomic
    select a.attempt, a.outcome, a.worker, a.claimed_at, a.ended_at, a.error, a.result
      from cascade_internal.work_attempts(work_attempts.queue, work_attempts.consumer, work_attempts.id, current_user) as a;
end;
comment on function cascade.work_attempts(text, text, bigint) is 'The attempts at a message.';

-- cascade.dead_messages(queue, consumer, most) lists dead messages, those that died first before the others.
create or replace function cascade_internal.dead_messages(queue text, consumer text, most integer, caller name)
returns table (id bigint, type text, key text, payload json, headers json, attempts integer, posted_at timestamptz, died_at timestamptz,
               error text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(dead_messages.queue, dead_messages.consumer, dead_messages.caller);
begin
    return query
        select d.id, d.type, d.key, d.payload, d.headers, d.attempt, d."time", d.died_at, d.error
          from cascade_internal.work_dead as d
         where d.subscription_id = (v_found.work).subscription_id
         order by d.died_at, d.id
         limit dead_messages.most;
end
$$;
comment on function cascade_internal.dead_messages(text, text, integer, name) is 'The dead messages of a consumer, for a caller.';

create or replace function cascade.dead_messages(queue text, consumer text, most integer default 100)
returns table (id bigint, type text, key text, payload json, headers json, attempts integer, posted_at timestamptz, died_at timestamptz,
               error text)
language sql volatile
begin atomic
    select d.id, d.type, d.key, d.payload, d.headers, d.attempts, d.posted_at, d.died_at, d.error
      from cascade_internal.dead_messages(dead_messages.queue, dead_messages.consumer, dead_messages.most, current_user) as d;
end;
comment on function cascade.dead_messages(text, text, integer) is 'The dead messages of a consumer.';
