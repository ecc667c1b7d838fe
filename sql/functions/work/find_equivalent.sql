-- cascade.find_equivalent(queue, key, payload, type, since) lists events of a queue with the same key and an equal payload (and type, if one is
-- given), the newest first: not older than since, by default an hour, and as far back as the log is kept.  Payloads are equal if
-- their hashes are, taken without regard to white space and the order of names; the log is read for it, so do not ask for long ago
-- on a busy queue.  To refuse duplicates when they are posted, there is dedupe_key.
create or replace function cascade_internal.find_equivalent(
    queue text, key text, payload json, type text, since interval, caller name)
returns table (id bigint, posted_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_queue constant cascade_internal.queue := cascade_internal.find_queue(find_equivalent.queue);
    v_hash  constant bytea := cascade_internal.payload_hash(find_equivalent.payload);
    v_from  constant timestamptz := clock_timestamp() - find_equivalent.since;
    v_tick  cascade_internal.tick;
    v_arms  text[] := '{}';
begin
    if find_equivalent.since is null or find_equivalent.since not between interval '0' and interval '100 years' then
        raise exception 'since is null, negative or more than 100 years' using errcode = 'QC003', hint = 'For example interval ''1 hour''.';
    elsif find_equivalent.payload is null then
        raise exception 'the payload is null' using errcode = 'QC003', hint = 'Pass the payload that is looked for.';
    end if;
    perform cascade_internal.check_producer(v_queue, find_equivalent.caller);
    -- What is older than the last tick before then has a lower transaction id, but for those that were open.
    execute format('select t.* from (%s) as t where t."time" < %L order by t.tick_id desc limit 1', cascade_internal.ticks_query(v_queue), v_from)
       into v_tick;
    for v_slot in 0 .. v_queue.slots - 1 loop
        v_arms := v_arms || format('select e.id, e."time", e.payload from cascade_internal.event_%s_%s as e'
                                   ' where e.txid >= %s and e.key is not distinct from $1 and e."time" >= $2'
                                   ' and e.origin is distinct from ''.cascade'' and ($3 is null or e.type = $3)',
                                   v_queue.queue_id, v_slot, coalesce(v_tick.low, 0));
    end loop;
    return query execute format('select x.id, x."time" from (%s) as x where cascade_internal.payload_hash(x.payload) = $4 order by x.id desc',
                                array_to_string(v_arms, ' union all '))
       using find_equivalent.key, v_from, find_equivalent.type, v_hash;
end
$$;
comment on function cascade_internal.find_equivalent(text, text, json, text, interval, name) is 'Events with an equal payload, for a caller.';

create or replace function cascade.find_equivalent(
    queue text, key text, payload json, type text default null, since interval default '1 hour')
returns table (id bigint, posted_at timestamptz)
language sql stable rows 1
begin atomic
    select e.id, e.posted_at
      from cascade_internal.find_equivalent(find_equivalent.queue, find_equivalent.key, find_equivalent.payload, find_equivalent.type,
                                            find_equivalent.since, current_user) as e;
end;
comment on function cascade.find_equivalent(text, text, json, text, interval) is 'Events of a queue with the same key and an equal payload.';

-- What jsonb cannot hold is compared byte for byte.
create or replace function cascade_internal.payload_hash(payload json)
returns bytea
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return sha256(convert_to(payload_hash.payload::jsonb::text, 'UTF8'));
exception when data_exception or program_limit_exceeded then
    return sha256(convert_to(payload_hash.payload::text, 'UTF8'));
end
$$;
comment on function cascade_internal.payload_hash(json) is 'A hash that equal payloads share.';
