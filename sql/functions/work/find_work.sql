-- A consumer in work mode, for a caller who may act as it, or QC102, QC218, QC301.
create or replace function cascade_internal.find_work(
    queue text, consumer text, caller name, out log cascade_internal.queue, out work cascade_internal.work_consumer)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     integer;
    v_moving boolean;
begin
    find_work.log := cascade_internal.find_queue(find_work.queue);
    perform cascade_internal.check_consumer(find_work.log, find_work.consumer, find_work.caller);
    select s.subscription_id, s.moving_to is not null into v_id, v_moving
      from cascade_internal.subscription as s
     where s.queue_id = (find_work.log).queue_id
       and s.consumer = find_work.consumer;
    select w.* into find_work.work from cascade_internal.work_consumer as w where w.subscription_id = v_id;
    if v_id is null then
        perform cascade_internal.raise_no_consumer(find_work.queue, find_work.consumer);
    elsif v_moving then
        perform cascade_internal.raise_moved(find_work.log, find_work.consumer);
    elsif (find_work.work).subscription_id is null then
        raise exception 'consumer "%" of queue "%" is a stream consumer', find_work.consumer, find_work.queue
            using errcode = 'QC218', hint = 'It reads batches with cascade.next_batch(); subscribe another one with mode => ''work''.';
    end if;
end
$$;
comment on function cascade_internal.find_work(text, text, name) is 'A consumer in work mode, for a caller who may act as it.';

-- Whoever reads batches must not be a consumer that takes messages: the two would share one place.
create or replace function cascade_internal.raise_is_work(queue cascade_internal.queue, consumer text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'consumer "%" of queue "%" is in work mode', raise_is_work.consumer, (raise_is_work.queue).name
        using errcode = 'QC218', hint = 'It takes messages with cascade.claim(); subscribe another one to read batches.';
end
$$;
comment on function cascade_internal.raise_is_work(cascade_internal.queue, text) is 'Raises QC218 for a consumer in work mode.';

-- A claim that is good, locked, for a caller who may act as its consumer; QC217 otherwise.
create or replace function cascade_internal.find_claim(
    claim_id bigint, caller name, out log cascade_internal.queue, out consumer text, out work cascade_internal.work_consumer,
    out claim cascade_internal.work_claim)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    select c.* into find_claim.claim
      from cascade_internal.work_claim as c
     where c.claim_id = find_claim.claim_id
       for update;
    if not found then
        perform cascade_internal.raise_claim_lost(find_claim.claim_id);
    end if;
    select w.* into find_claim.work
      from cascade_internal.work_consumer as w where w.subscription_id = (find_claim.claim).subscription_id;
    select s.consumer into find_claim.consumer
      from cascade_internal.subscription as s where s.subscription_id = (find_claim.claim).subscription_id;
    select q.* into find_claim.log from cascade_internal.queue as q where q.queue_id = (find_claim.work).queue_id;
    -- Whose claim it is, is nobody else's business: it is simply not theirs.
    if (find_claim.claim).role_name <> find_claim.caller and not coalesce(cascade_internal.may_consume((find_claim.log).queue_id, find_claim.consumer, find_claim.caller), false) then
        perform cascade_internal.raise_claim_lost(find_claim.claim_id);
    end if;
end
$$;
comment on function cascade_internal.find_claim(bigint, name) is 'A claim that is good, locked, for a caller who may see it.';

create or replace function cascade_internal.raise_claim_lost(claim_id bigint, id bigint default null)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if raise_claim_lost.claim_id is null then
        raise exception 'the claim id is null' using errcode = 'QC003', hint = 'cascade.claim() returns one with every message.';
    elsif raise_claim_lost.id is not null then
        raise exception 'claim % does not hold message %', raise_claim_lost.claim_id, raise_claim_lost.id
            using errcode = 'QC217', hint = 'It was completed, failed, released or taken already; what the claim still holds is untouched.';
    end if;
    raise exception 'claim % is over', raise_claim_lost.claim_id
        using errcode = 'QC217',
              hint = 'All of it was completed, or its lease ran out or its session ended and others have the messages now: what was done must not count.';
end
$$;
comment on function cascade_internal.raise_claim_lost(bigint, bigint) is 'Raises QC217.';

-- Two registers serve each consumer, as hints that no snapshot and no held transaction slows down: work_hint_<id>, below
-- which hardly any chunk is free, and work_low_<id>, below which every chunk is done.
create or replace function cascade_internal.work_register(name text, subscription_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_sequence_last_value(('cascade_internal.work_' || work_register.name || '_' || work_register.subscription_id)::regclass);
end
$$;
comment on function cascade_internal.work_register(text, integer) is 'A register of a consumer in work mode: hint or low.';

create or replace function cascade_internal.set_work_register(name text, subscription_id integer, value bigint)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform setval(('cascade_internal.work_' || set_work_register.name || '_' || set_work_register.subscription_id)::regclass, set_work_register.value);
end
$$;
comment on function cascade_internal.set_work_register(text, integer, bigint) is 'Moves a register of a consumer in work mode.';

-- Options of work mode have their defaults here, in one place.
create or replace function cascade_internal.work_option(work cascade_internal.work_consumer, name text)
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce((work_option.work).options->>work_option.name, case work_option.name
        when 'chunk_size' then '100'
        when 'max_attempts' then '5'
        when 'backoff' then 'exponential'
        when 'backoff_delay' then '1 s'
        when 'backoff_max' then '1 hour'
        when 'backoff_jitter' then '0.1'
        when 'keep_done' then '1 day'
        when 'keep_dead' then '30 days'
        when 'watch_sessions' then 'true' end);
end
$$;
comment on function cascade_internal.work_option(cascade_internal.work_consumer, text) is 'An option of a consumer in work mode, or its default.';
