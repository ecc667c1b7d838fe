-- cascade.fail(claim_id, id, error, retry_in) gives a message back after a failed attempt, and returns when it is due again: after
-- retry_in, or after the consumer's back-off.  Null: that was its last attempt, and it is dead.  A second call raises QC217.
create or replace function cascade_internal.fail(claim_id bigint, id bigint, error text, retry_in interval, caller name)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found   record;
    v_attempt integer;
    v_due     timestamptz;
begin
    if fail.retry_in is not null and fail.retry_in not between interval '0' and interval '100 years' then
        raise exception 'retry_in is negative or more than 100 years' using errcode = 'QC003', hint = 'For example interval ''1 minute''.';
    end if;
    perform cascade_internal.check_read_committed('work mode');
    v_found := cascade_internal.find_claim(fail.claim_id, fail.caller);
    perform cascade_internal.make_rows(v_found.log, v_found.work, v_found.claim, array[fail.id]);
    select a.attempt into strict v_attempt
      from cascade_internal.work_active as a
     where a.subscription_id = (v_found.work).subscription_id and a.id = fail.id;
    if v_attempt < cascade_internal.work_option(v_found.work, 'max_attempts')::integer then
        v_due := clock_timestamp() + coalesce(fail.retry_in, cascade_internal.back_off(v_found.work, v_attempt));
    end if;
    perform cascade_internal.note_ends(v_found.claim, array[fail.id], 'failed', fail.error);
    perform cascade_internal.give_back(v_found.work, array[fail.id], v_due, 0, fail.error);
    perform cascade_internal.end_claim(v_found.claim, false);
    return v_due;
end
$$;
comment on function cascade_internal.fail(bigint, bigint, text, interval, name) is 'Gives a message back after a failed attempt, for a caller.';

create or replace function cascade.fail(claim_id bigint, id bigint, error text, retry_in interval default null)
returns timestamptz
language sql volatile
begin atomic
    select cascade_internal.fail(fail.claim_id, fail.id, fail.error, fail.retry_in, current_user);
end;
comment on function cascade.fail(bigint, bigint, text, interval) is 'Gives a message back after a failed attempt; says when it is due again, null if it is dead.';

-- How long to wait after a failed attempt, by the consumer's options.
create or replace function cascade_internal.back_off(work cascade_internal.work_consumer, attempt integer)
returns interval
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_delay  constant interval := cascade_internal.work_option(back_off.work, 'backoff_delay')::interval;
    v_max    constant interval := cascade_internal.work_option(back_off.work, 'backoff_max')::interval;
    v_jitter constant float8 := cascade_internal.work_option(back_off.work, 'backoff_jitter')::float8;
    v_times  constant float8 := case cascade_internal.work_option(back_off.work, 'backoff')
                                    when 'constant' then 1 when 'linear' then back_off.attempt
                                    else power(2, least(back_off.attempt - 1, 40)) end;
begin
    if extract(epoch from v_delay) * v_times >= extract(epoch from v_max) then
        return v_max * (1 - v_jitter * random());
    end if;
    return least(v_delay * v_times * (1 + v_jitter * (2 * random() - 1)), v_max);
end
$$;
comment on function cascade_internal.back_off(cascade_internal.work_consumer, integer) is 'How long a message waits after a failed attempt.';

-- cascade.bury(claim_id, id, error) declares a message dead at once, whatever attempts it had left.
create or replace function cascade_internal.bury(claim_id bigint, id bigint, error text, caller name)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record;
begin
    perform cascade_internal.check_read_committed('work mode');
    v_found := cascade_internal.find_claim(bury.claim_id, bury.caller);
    perform cascade_internal.make_rows(v_found.log, v_found.work, v_found.claim, array[bury.id]);
    perform cascade_internal.note_ends(v_found.claim, array[bury.id], 'buried', bury.error);
    perform cascade_internal.give_back(v_found.work, array[bury.id], null, 0, bury.error);
    perform cascade_internal.end_claim(v_found.claim, false);
end
$$;
comment on function cascade_internal.bury(bigint, bigint, text, name) is 'Declares a message dead, for a caller.';

create or replace function cascade.bury(claim_id bigint, id bigint, error text default null)
returns void
language sql volatile
begin atomic
    select cascade_internal.bury(bury.claim_id, bury.id, bury.error, current_user);
end;
comment on function cascade.bury(bigint, bigint, text) is 'Declares a message dead.';

-- cascade.release(claim_id, ids) gives messages back that were not begun, all that is left of the claim without ids, and returns how
-- many: others get them at once, and the attempt does not count.
create or replace function cascade_internal.release(claim_id bigint, ids bigint[], caller name)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record;
    v_ids   bigint[];
begin
    perform cascade_internal.check_read_committed('work mode');
    v_found := cascade_internal.find_claim(release.claim_id, release.caller);
    v_ids := cascade_internal.make_rows(v_found.log, v_found.work, v_found.claim, release.ids);
    perform cascade_internal.give_back(v_found.work, v_ids, clock_timestamp(), -1, null);
    perform cascade_internal.end_claim(v_found.claim, release.ids is null);
    return cardinality(v_ids);
end
$$;
comment on function cascade_internal.release(bigint, bigint[], name) is 'Gives messages back that were not begun, for a caller.';

create or replace function cascade.release(claim_id bigint, ids bigint[] default null)
returns integer
language sql volatile
begin atomic
    select cascade_internal.release(release.claim_id, release.ids, current_user);
end;
comment on function cascade.release(bigint, bigint[]) is 'Gives messages back that were not begun.';

-- cascade.extend(claim_id, lease) is the pulse of a worker: it returns until when the claim is good now.  The calling
-- session becomes the one that holds it, so that a worker may reconnect.
create or replace function cascade_internal.extend(claim_id bigint, lease interval, caller name)
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
    v_until timestamptz;
begin
    if extend.lease is null or extend.lease not between interval '1 ms' and interval '1 year' then
        raise exception 'the lease must be positive, and a year at most' using errcode = 'QC003', hint = 'For example interval ''30 s''.';
    end if;
    perform cascade_internal.check_read_committed('work mode');
    v_found := cascade_internal.find_claim(extend.claim_id, extend.caller);
    update cascade_internal.work_claim as c
       set until = clock_timestamp() + extend.lease, pid = pg_backend_pid(), seen_at = clock_timestamp()
     where c.claim_id = extend.claim_id
    returning c.until into v_until;
    return v_until;
end
$$;
comment on function cascade_internal.extend(bigint, interval, name) is 'Extends a claim, for a caller.';

create or replace function cascade.extend(claim_id bigint, lease interval default '30 s')
returns timestamptz
language sql volatile
begin atomic
    select cascade_internal.extend(extend.claim_id, extend.lease, current_user);
end;
comment on function cascade.extend(bigint, interval) is 'Extends a claim; returns until when it is good.';

-- Has messages of a locked claim be rows in work_active, all that is left of it without ids, and returns their ids: whatever
-- becomes of them then is one and the same for both kinds.  An id that the claim does not hold raises QC217.
create or replace function cascade_internal.make_rows(
    log cascade_internal.queue, work cascade_internal.work_consumer, claim cascade_internal.work_claim, ids bigint[])
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_no    bigint;
    v_chunk cascade_internal.work_chunk;
    v_ids   bigint[];
begin
    foreach v_no in array (make_rows.claim).chunks loop
        select c.* into v_chunk
          from cascade_internal.work_chunk as c
         where c.subscription_id = (make_rows.work).subscription_id and c.no = v_no
           for no key update;
        continue when not found or v_chunk.state <> 'h';
        v_chunk."open" := array(select i from unnest(cascade_internal.open_ids(v_chunk)) as i
                                 where make_rows.ids is null or i = any (make_rows.ids));
        continue when v_chunk."open" = '{}';
        insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, attempt, class, available_at, claim_id)
        select v_chunk.subscription_id, m.id, m.posted_at, m.type, m.key, m.payload, m.headers, 1, 3, m.available_at, m.claim_id
          from cascade_internal.read_chunk(make_rows.log, v_chunk, (make_rows.claim).claim_id) as m;
    end loop;
    perform cascade_internal.finish_chunks(make_rows.claim, make_rows.ids, clock_timestamp());
    perform cascade_internal.unpack_parcels(make_rows.work, (make_rows.claim).claim_id, make_rows.ids);
    update cascade_internal.work_claim as c set has_rows = true where c.claim_id = (make_rows.claim).claim_id and not c.has_rows;
    v_ids := array(select a.id from cascade_internal.work_active as a
                    where a.claim_id = (make_rows.claim).claim_id
                      and (make_rows.ids is null or a.id = any (make_rows.ids)));
    perform cascade_internal.raise_claim_lost((make_rows.claim).claim_id, coalesce(i, 0))
       from unnest(make_rows.ids) as i where (i = any (v_ids)) is not true;
    return v_ids;
end
$$;
comment on function cascade_internal.make_rows(cascade_internal.queue, cascade_internal.work_consumer, cascade_internal.work_claim, bigint[])
    is 'Has messages of a claim be rows.';

-- Puts active rows back for later, or among the dead when due is null.
create or replace function cascade_internal.give_back(
    work cascade_internal.work_consumer, ids bigint[], due timestamptz, attempts integer, error text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id constant integer := (give_back.work).subscription_id;
begin
    if give_back.ids = '{}' then
        return;
    elsif give_back.due is null then
        insert into cascade_internal.work_dead (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt, class,
                                                expires_at, died_at, error)
        select a.subscription_id, a.id, a."time", a.type, a.key, a.payload, a.headers, a.origin, a.origin_id, a.attempt, a.class,
               a.expires_at, clock_timestamp(), give_back.error
          from cascade_internal.work_active as a
         where a.subscription_id = v_id and a.id = any (give_back.ids);
        delete from cascade_internal.work_active as a where a.subscription_id = v_id and a.id = any (give_back.ids);
        perform cascade_internal.settle(give_back.work, give_back.ids, 'dead');
        return;
    end if;
    perform cascade_internal.place_rows(give_back.work, format(
        'select e.id, e."time", e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, e.attempt + %s as attempt, %L::timestamptz as due'
        ' from cascade_internal.work_active as e where e.subscription_id = %s and e.id = any (%L::bigint[])',
        give_back.attempts, give_back.due, v_id, give_back.ids), clock_timestamp());
    delete from cascade_internal.work_active as a where a.subscription_id = v_id and a.id = any (give_back.ids);
    if give_back.due <= clock_timestamp() then
        perform pg_notify('cascade_work_' || v_id, '');
    end if;
end
$$;
comment on function cascade_internal.give_back(cascade_internal.work_consumer, bigint[], timestamptz, integer, text) is 'Puts active rows back, or among the dead.';

-- Notes how attempts at active rows ended.
create or replace function cascade_internal.note_ends(claim cascade_internal.work_claim, ids bigint[], outcome text, error text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, claimed_at, ended_at, error)
    select a.subscription_id, a.id, a.attempt, note_ends.outcome, (note_ends.claim).worker, (note_ends.claim).claimed_at, clock_timestamp(),
           note_ends.error
      from cascade_internal.work_active as a
     where a.subscription_id = (note_ends.claim).subscription_id and a.id = any (note_ends.ids);
end
$$;
comment on function cascade_internal.note_ends(cascade_internal.work_claim, bigint[], text, text) is 'Notes how attempts ended.';

-- Claims that are over come back: their leases ran out or, if asked for, their sessions ended.  The attempt counts, so
-- that a message that kills its worker dies in the end.  Claims that somebody settles at this moment are left alone.
create or replace function cascade_internal.reap_claims(log cascade_internal.queue, work cascade_internal.work_consumer, sessions boolean)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_claim cascade_internal.work_claim;
    v_why   text;
    v_ids   bigint[];
    v_count bigint := 0;
begin
    for v_claim in
        select c.* from cascade_internal.work_claim as c
         where c.subscription_id = (reap_claims.work).subscription_id
           and (c.until <= clock_timestamp() or reap_claims.sessions and cascade_internal.is_gone(c.pid, c.seen_at))
         order by c.claim_id
           for update skip locked
    loop
        v_why := case when v_claim.until <= clock_timestamp() then format('the lease ran out at %s', v_claim.until)
                      else format('the session %s ended', v_claim.pid) end || coalesce('; worker ' || quote_ident(v_claim.worker), '');
        v_ids := cascade_internal.make_rows(reap_claims.log, reap_claims.work, v_claim, null);
        perform cascade_internal.note_ends(v_claim, v_ids, 'lost', v_why);
        perform cascade_internal.give_back(
            reap_claims.work, array_agg(a.id), case when a.is_last then null else clock_timestamp() end, 0, v_why)
           from (select r.id, r.attempt >= cascade_internal.work_option(reap_claims.work, 'max_attempts')::integer as is_last
                   from cascade_internal.work_active as r where r.claim_id = v_claim.claim_id) as a
          group by a.is_last;
        perform cascade_internal.end_claim(v_claim, true);
        v_count := v_count + cardinality(v_ids);
    end loop;
    return v_count;
end
$$;
comment on function cascade_internal.reap_claims(cascade_internal.queue, cascade_internal.work_consumer, boolean) is 'Puts back what claims that are over still held.';

-- Whether a session that lived at some time has ended since.  Whose start nobody may see counts as alive.
create or replace function cascade_internal.is_gone(pid integer, seen_at timestamptz)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return not exists (select from pg_catalog.pg_stat_activity as a
                        where a.pid = is_gone.pid and coalesce(a.backend_start <= is_gone.seen_at, true));
end
$$;
comment on function cascade_internal.is_gone(integer, timestamptz) is 'Whether a session has ended.';
