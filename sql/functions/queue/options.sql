-- The options of a queue are columns of cascade_internal.queue.  check_options refuses
-- unknown names and impossible values, all named, before anything is changed.
create or replace function cascade_internal.check_options(options jsonb, creating boolean)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_key      text;
    v_value    text;
    v_number   numeric;
    v_problems text[] := '{}';
    v_known    constant text[] := array['tick_max_events', 'tick_max_lag', 'tick_idle', 'rotation_period', 'payload_max_bytes', 'slots'];
begin
    if check_options.options is null or jsonb_typeof(check_options.options) <> 'object' then
        raise exception 'options are not a JSON object'
            using errcode = 'QC002', hint = format('For example {"tick_max_events": 1000}; known are %s.', array_to_string(v_known, ', '));
    end if;
    for v_key, v_value in select o.key, o.value from jsonb_each_text(check_options.options) as o loop
        begin
            if v_value is null then
                v_problems := v_problems || format('%s is null', v_key);
            elsif v_key in ('tick_max_events', 'payload_max_bytes', 'slots') then
                v_number := v_value::numeric;
                if v_number <> trunc(v_number)
                   or v_number < (case v_key when 'slots' then 3 else 1 end)
                   or v_number > (case v_key when 'slots' then 10 when 'payload_max_bytes' then 536870912 else 1000000000 end) then
                    v_problems := v_problems || format('%s is %s, out of range', v_key, v_value);
                end if;
                if v_key = 'slots' and not check_options.creating then
                    v_problems := v_problems || 'slots can only be chosen when the queue is created'::text;
                end if;
            elsif v_key in ('tick_max_lag', 'tick_idle', 'rotation_period') then
                if v_value::interval < interval '0' then
                    v_problems := v_problems || format('%s is negative', v_key);
                elsif v_value::interval > interval '100 years' then
                    v_problems := v_problems || format('%s is more than 100 years', v_key);
                end if;
            else
                v_problems := v_problems || format('there is no option %s', v_key);
            end if;
        exception when data_exception then
            v_problems := v_problems || format('%s is %s, which is no %s', v_key, quote_literal(left(v_value, 40)),
                case when v_key in ('tick_max_events', 'payload_max_bytes', 'slots') then 'number' else 'interval' end);
        end;
    end loop;
    if v_problems <> '{}' then
        raise exception 'bad options: %', array_to_string(v_problems, '; ')
            using errcode = 'QC002', hint = format('Known are %s.', array_to_string(v_known, ', '));
    end if;
end
$$;
comment on function cascade_internal.check_options(jsonb, boolean) is 'Refuses options that cannot be, with QC002.';

create or replace function cascade_internal.store_options(queue_id integer, options jsonb)
returns cascade_internal.queue
language sql set search_path = pg_catalog, pg_temp
as $$
    update cascade_internal.queue as q
       set tick_max_events = coalesce((store_options.options->>'tick_max_events')::numeric::integer, q.tick_max_events),
           tick_max_lag = coalesce((store_options.options->>'tick_max_lag')::interval, q.tick_max_lag),
           tick_idle = coalesce((store_options.options->>'tick_idle')::interval, q.tick_idle),
           rotation_period = coalesce((store_options.options->>'rotation_period')::interval, q.rotation_period),
           payload_max_bytes = coalesce((store_options.options->>'payload_max_bytes')::numeric::integer, q.payload_max_bytes)
     where q.queue_id = store_options.queue_id
    returning q.*
$$;
comment on function cascade_internal.store_options(integer, jsonb) is 'Writes checked options.';

create or replace function cascade_internal.queue_options(queue cascade_internal.queue)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'slots', (queue_options.queue).slots,
        'tick_max_events', (queue_options.queue).tick_max_events,
        'tick_max_lag', (queue_options.queue).tick_max_lag,
        'tick_idle', (queue_options.queue).tick_idle,
        'rotation_period', (queue_options.queue).rotation_period,
        'payload_max_bytes', (queue_options.queue).payload_max_bytes)
$$;
comment on function cascade_internal.queue_options(cascade_internal.queue) is 'All options of a queue.';

-- '1 s' and '00:00:01', 500 and "500" are the same wish.
create or replace function cascade_internal.normal_options(options jsonb)
returns jsonb
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_object_agg(o.key,
               case when o.key in ('tick_max_events', 'payload_max_bytes', 'slots') then to_jsonb(o.value::numeric)
                    else to_jsonb(o.value::interval) end), '{}')
      from jsonb_each_text(normal_options.options) as o
$$;
comment on function cascade_internal.normal_options(jsonb) is 'Options as queue_options writes them.';
