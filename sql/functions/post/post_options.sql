-- The options of work mode on the posting side: they are checked here, where somebody can be told, and
-- written into one reserved header of the event.
create or replace function cascade_internal.add_options(
    headers json, delay interval, deliver_at timestamptz, expires_at timestamptz, priority integer, after bigint[], after_in jsonb,
    dedupe_key text, at timestamptz)
returns json
language plpgsql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set intervalstyle = 'postgres'
as $$
declare
    v_options constant json := json_strip_nulls(json_build_object(
        'deliver_at', coalesce(add_options.deliver_at, add_options.at + add_options.delay), 'expires_at', add_options.expires_at,
        'priority', add_options.priority, 'after', add_options.after, 'after_in', add_options.after_in,
        'dedupe_key', add_options.dedupe_key));
    v_text    text := add_options.headers::text;
begin
    if add_options.delay is not null and add_options.deliver_at is not null then
        raise exception 'both delay and deliver_at are given'
            using errcode = 'QC230', hint = 'Give one of them.';
    elsif add_options.delay not between interval '0' and interval '100 years' then
        raise exception 'the delay is negative or more than 100 years'
            using errcode = 'QC230', hint = 'For example delay => interval ''5 minutes''.';
    elsif not isfinite(add_options.deliver_at) or not isfinite(add_options.expires_at) then
        raise exception 'deliver_at or expires_at is infinite'
            using errcode = 'QC230', hint = 'Leave it out: without it a message is delivered at once, and never expires.';
    elsif add_options.expires_at <= add_options.at then
        raise exception 'the message would be expired already: expires_at is %', add_options.expires_at
            using errcode = 'QC230', hint = 'Pass a time to come.';
    elsif add_options.dedupe_key = '' or length(add_options.dedupe_key) > 1000 then
        raise exception 'the dedupe_key has % characters', length(add_options.dedupe_key)
            using errcode = 'QC230', hint = 'Up to 1000, and not none.';
    elsif json_typeof(add_options.headers) <> 'object' then
        raise exception 'the headers are not a JSON object, so options have no place in them'
            using errcode = 'QC230', hint = 'Pass headers such as {"trace": "5f1c"}, or none.';
    elsif add_options.headers->'cascade.options' is not null then
        raise exception 'options are given as arguments and in the headers'
            using errcode = 'QC230', hint = 'Leave "cascade.options" out of the headers.';
    end if;
    -- The other headers keep their bytes.
    v_text := case when v_text is null or v_text ~ '^\s*\{\s*\}\s*$' then '{' else regexp_replace(v_text, '\s*\}\s*$', ', ') end
              || '"cascade.options": ' || v_options || '}';
    return v_text::json;
end
$$;
comment on function cascade_internal.add_options(json, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text, timestamptz)
    is 'Headers with the options of work mode in them.';

-- Whoever posts headers with options in them, by argument or by hand, is told what is wrong with them.
-- Returns the key of deduplication, if there is one.
create or replace function cascade_internal.check_message_options(queue cascade_internal.queue, headers json, id bigint)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_options constant record := cascade_internal.message_options(check_message_options.headers, clock_timestamp());
    v_other   record;
begin
    if v_options.problem is not null then
        raise exception 'bad options: %', v_options.problem
            using errcode = 'QC230',
                  hint = 'Known are deliver_at, delay, expires_at, priority (1 to 4), after (ids), after_in ({"queue": [ids]}) and dedupe_key.';
    end if;
    perform cascade_internal.check_handed_out(check_message_options.queue, v_options.after, check_message_options.id);
    for v_other in select o.key as name, cascade_internal.read_ids(o.value) as ids from jsonb_each(v_options.after_in) as o loop
        if not exists (select from cascade_internal.queue as q where q.name = v_other.name) then
            raise exception 'after_in names queue "%", which this database does not carry', v_other.name
                using errcode = 'QC231', hint = 'A message can wait for messages of queues on its own node; the view cascade.queues lists them.';
        end if;
        perform cascade_internal.check_handed_out(cascade_internal.find_queue(v_other.name), v_other.ids, null);
    end loop;
    return v_options.dedupe_key;
end
$$;
comment on function cascade_internal.check_message_options(cascade_internal.queue, json, bigint) is 'Raises QC230 or QC231 for options that cannot be.';

-- An id that was never handed out cannot be waited for: it is a mistake, and would be waited for for ever.
create or replace function cascade_internal.check_handed_out(queue cascade_internal.queue, ids bigint[], own bigint)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_newest bigint;
begin
    if check_handed_out.ids is null then
        return;
    elsif check_handed_out.own = any (check_handed_out.ids) then
        raise exception 'message % would wait for itself', check_handed_out.own
            using errcode = 'QC231', hint = 'Leave its own id out of after.';
    end if;
    v_newest := greatest(
        pg_sequence_last_value(format('cascade_internal.event_id_%s', (check_handed_out.queue).queue_id)::regclass),
        (cascade_internal.newest_tick((check_handed_out.queue).queue_id, (check_handed_out.queue).slots)).event_seq);
    if exists (select from unnest(check_handed_out.ids) as i where i > coalesce(v_newest, 0)) then
        raise exception 'queue "%" has never handed out id %', (check_handed_out.queue).name,
                        (select min(i) from unnest(check_handed_out.ids) as i where i > coalesce(v_newest, 0))
            using errcode = 'QC231', hint = 'Pass ids that cascade.post() or cascade.reserve_id() returned.';
    end if;
end
$$;
comment on function cascade_internal.check_handed_out(cascade_internal.queue, bigint[], bigint) is 'Raises QC231 for ids that nobody can have.';

-- Gives a key to an id for a while, or returns the id that has it.  Who comes second waits until the
-- first one's transaction ends, and takes the key if that rolls back.
create or replace function cascade_internal.hold_key(queue_id integer, dedupe_key text, id bigint, until timestamptz)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    loop
        insert into cascade_internal.work_dedupe as d (queue_id, dedupe_key, id, until)
        values (hold_key.queue_id, hold_key.dedupe_key, hold_key.id, hold_key.until)
        on conflict on constraint work_dedupe_pkey do update
           set id = excluded.id, until = excluded.until
         where d.until <= clock_timestamp()
        returning d.id into v_id;
        if found then
            return v_id;
        end if;
        select d.id into v_id
          from cascade_internal.work_dedupe as d
         where d.queue_id = hold_key.queue_id
           and d.dedupe_key = hold_key.dedupe_key;
        if found then
            return v_id;
        end if;
        -- The janitor removed it in between.
    end loop;
end
$$;
comment on function cascade_internal.hold_key(integer, text, bigint, timestamptz) is 'The id that has a key of deduplication: this one, or the first.';

create or replace function cascade_internal.dedupe_until(dedupe_key text, dedupe_for interval)
returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if dedupe_until.dedupe_for is not null and dedupe_until.dedupe_key is null then
        raise exception 'dedupe_for is given without dedupe_key'
            using errcode = 'QC230', hint = 'Give the key that duplicates share.';
    elsif dedupe_until.dedupe_for not between interval '1 microsecond' and interval '1 year' then
        raise exception 'dedupe_for is not positive, or more than a year'
            using errcode = 'QC230', hint = 'For example interval ''1 hour'', which is the default.';
    end if;
    return clock_timestamp() + coalesce(dedupe_until.dedupe_for, interval '1 hour');
end
$$;
comment on function cascade_internal.dedupe_until(text, interval) is 'When a key of deduplication is free again.';

-- Keys whose window is over, some at a time.
create or replace function cascade_internal.forget_keys(at timestamptz)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_gone bigint;
begin
    delete from cascade_internal.work_dedupe as d
     where d.ctid = any (array(
        select x.ctid from cascade_internal.work_dedupe as x
         where x.until <= forget_keys.at order by x.until limit 10000 for update skip locked));
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;
comment on function cascade_internal.forget_keys(timestamptz) is 'Removes keys of deduplication whose window is over.';
