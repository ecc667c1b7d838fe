-- cascade_internal.has_options(headers): whether an event says how it is to be worked.  Its options are
-- one reserved header, so that they travel with it to every node:
--
--     {"trace": "5f1c", "cascade.options": {"deliver_at": "2026-01-01T00:00:00Z", "priority": 1}}
create or replace function cascade_internal.has_options(headers json)
returns boolean
language sql immutable parallel safe
begin atomic
    select has_options.headers is not null and strpos(has_options.headers::text, '"cascade.options"') > 0;
end;
comment on function cascade_internal.has_options(json) is 'Whether an event has options of work mode; cheap.';

-- The options of one event.  Whoever inserts writes what he likes, so this never raises: what cannot be
-- is told in `problem`, and the message is then a plain one.
create or replace function cascade_internal.message_options(
    headers json, posted timestamptz)
returns cascade_internal.work_options
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_options cascade_internal.work_options;
    v_name    text;
    v_value   jsonb;
    v_text    text;
begin
    v_options.class := 3;
    if not cascade_internal.has_options(message_options.headers) then
        return v_options;
    elsif json_typeof(message_options.headers) <> 'object' or message_options.headers->'cascade.options' is null then
        return v_options; -- The words stand somewhere deeper: they are the application's.
    elsif json_typeof(message_options.headers->'cascade.options') <> 'object' then
        v_options.problem := 'cascade.options is not a JSON object';
        return v_options;
    end if;
    for v_name, v_value in select o.key, o.value from jsonb_each((message_options.headers->>'cascade.options')::jsonb) as o loop
        continue when v_value = 'null';
        v_text := v_value #>> '{}';
        case v_name
            when 'deliver_at' then v_options.deliver_at := cascade_internal.read_time(v_text);
            when 'delay' then v_options.deliver_at := message_options.posted + cascade_internal.read_delay(v_text);
            when 'expires_at' then v_options.expires_at := cascade_internal.read_time(v_text);
            when 'priority' then v_options.class := v_text::smallint;
            when 'after' then v_options.after := cascade_internal.read_ids(v_value);
            when 'after_in' then v_options.after_in := v_value;
            when 'dedupe_key' then v_options.dedupe_key := v_text;
            else raise exception 'there is no option "%"', v_name using errcode = '22023';
        end case;
        if v_name = 'priority' and v_options.class not between 1 and 4 then
            raise exception 'out of range' using errcode = '22023';
        elsif v_name = 'after_in' then
            perform cascade_internal.read_ids(i.value) from jsonb_each(v_value) as i;
        end if;
    end loop;
    if v_options.expires_at <= v_options.deliver_at then
        raise exception 'it expires before it is to be delivered' using errcode = '22023';
    end if;
    return v_options;
exception when data_exception or program_limit_exceeded then
    v_options.problem := case when v_name is null or sqlerrm like 'there is no option%' or sqlerrm like 'it expires%' then sqlerrm
                                    else format('%s is %s: %s', v_name, left(v_value::text, 60), sqlerrm) end;
    return (null, null, 3, null, null, null, v_options.problem)::cascade_internal.work_options;
end
$$;
comment on function cascade_internal.message_options(json, timestamptz) is 'What an event says about how it is to be worked; never raises.';

-- A time means the same on every node only with its zone; 'now' and 'tomorrow' never do.
create or replace function cascade_internal.read_time(value text)
returns timestamptz
language plpgsql stable set search_path = pg_catalog, pg_temp set datestyle = 'ISO, YMD'
as $$
begin
    if read_time.value !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d(:?\d\d)?)$' then
        raise exception 'not a time with its zone, as in 2026-01-31T12:00:00Z' using errcode = '22007';
    end if;
    return read_time.value::timestamptz;
end
$$;
comment on function cascade_internal.read_time(text) is 'A point in time, with its zone.';

create or replace function cascade_internal.read_delay(value text)
returns interval
language plpgsql immutable set search_path = pg_catalog, pg_temp set intervalstyle = 'postgres'
as $$
declare
    v_delay interval := case when read_delay.value ~ '^\d+(\.\d+)?$' then make_interval(secs => read_delay.value::double precision)
                             else read_delay.value::interval end;
begin
    if v_delay not between interval '0' and interval '100 years' then
        raise exception 'negative, or more than 100 years' using errcode = '22023';
    end if;
    return v_delay;
end
$$;
comment on function cascade_internal.read_delay(text) is 'A delay: an interval, or a number of seconds.';

create or replace function cascade_internal.read_ids(value jsonb)
returns bigint[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[];
begin
    if jsonb_typeof(read_ids.value) <> 'array' then
        raise exception 'not a list of ids' using errcode = '22023';
    end if;
    v_ids := array(select distinct i.value::bigint from jsonb_array_elements_text(read_ids.value) as i order by 1);
    if array_position(v_ids, null) is not null or v_ids[1] < 1 then
        raise exception 'an id is null or below 1' using errcode = '22023';
    elsif cardinality(v_ids) > 1000 then
        raise exception 'more than 1000 ids' using errcode = '22023';
    end if;
    return v_ids;
end
$$;
comment on function cascade_internal.read_ids(jsonb) is 'A list of event ids; strings are taken too, since JSON output has them so.';
