-- What can be chosen for a consumer in work mode, and of what kind it is.
create or replace function cascade_internal.work_option_kinds()
returns table (name text, kind text, low numeric, high numeric, words text[])
language sql immutable
begin atomic
    values ('max_attempts', 'number', 1::numeric, 1000::numeric, null::text[]),
           ('backoff', 'word', null, null, array['constant', 'linear', 'exponential']),
           ('backoff_delay', 'interval', null, null, null),
           ('backoff_max', 'interval', null, null, null),
           ('backoff_jitter', 'fraction', 0, 1, null),
           ('chunk_size', 'number', 1, 1000, null),
           ('keep_done', 'interval', null, null, null),
           ('keep_dead', 'interval', null, null, null),
           ('watch_sessions', 'boolean', null, null, null),
           ('order', 'word', null, null, array['key']),
           ('max_active', 'number', 1, 100000, null),
           ('min_active', 'number', 0, 100000, null),
           ('shares', 'shares', null, null, null),
           ('topics', 'topics', null, null, null);
end;
comment on function cascade_internal.work_option_kinds() is 'The options of a consumer in work mode.';

-- What is wrong with options, each in a few words.
create or replace function cascade_internal.work_option_problems(options jsonb)
returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_option   record;
    v_number   numeric;
    v_problems text[] := '{}';
begin
    for v_option in
        select o.key as name, o.value, o.value #>> '{}' as text, k.kind, k.low, k.high, k.words
          from jsonb_each(work_option_problems.options) as o
          left join cascade_internal.work_option_kinds() as k on k.name = o.key
    loop
        begin
            if v_option.kind is null then
                v_problems := v_problems || format('there is no option %s', v_option.name);
            elsif v_option.value = 'null' then
                continue; -- back to the default
            elsif v_option.kind in ('number', 'fraction') then
                v_number := v_option.text::numeric;
                if v_number not between v_option.low and v_option.high or v_option.kind = 'number' and v_number <> trunc(v_number) then
                    v_problems := v_problems || format('%s is %s, out of range', v_option.name, v_option.text);
                end if;
            elsif v_option.kind = 'interval' then
                if v_option.text::interval not between interval '0' and interval '100 years' then
                    v_problems := v_problems || format('%s is negative or more than 100 years', v_option.name);
                end if;
            elsif v_option.kind = 'boolean' and jsonb_typeof(v_option.value) <> 'boolean' then
                v_problems := v_problems || format('%s is neither true nor false', v_option.name);
            elsif v_option.kind = 'word' and v_option.text <> all (v_option.words) then
                v_problems := v_problems || format('%s is %s, not %s', v_option.name, quote_literal(left(v_option.text, 40)),
                                                   array_to_string(v_option.words, ', '));
            elsif v_option.kind = 'shares' then
                if jsonb_typeof(v_option.value) <> 'array' or jsonb_array_length(v_option.value) <> 4
                   or exists (select from jsonb_array_elements_text(v_option.value) as s where s::numeric not between 0 and 100)
                   or (select sum(s::numeric) from jsonb_array_elements_text(v_option.value) as s) <> 100 then
                    v_problems := v_problems || 'shares are not four percentages that make 100'::text;
                end if;
            elsif v_option.kind = 'topics' then
                if jsonb_typeof(v_option.value) <> 'object'
                   or exists (select from jsonb_each_text(v_option.value) as t
                               where t.value is null or t.value::numeric not between 1 and 100000 or t.value::numeric <> trunc(t.value::numeric)) then
                    v_problems := v_problems || 'topics are not types with how many messages of each may be in hand'::text;
                end if;
            end if;
        exception when data_exception or null_value_not_allowed then
            v_problems := v_problems || format('%s is %s, which is no %s', v_option.name, left(v_option.value::text, 40), v_option.kind);
        end;
    end loop;
    if work_option_problems.options ? 'order'
       and work_option_problems.options ?| array['max_active', 'min_active', 'shares', 'topics'] then
        v_problems := v_problems || 'order goes with neither max_active, min_active, shares nor topics: one message of a key at a time is fair'::text;
    elsif not work_option_problems.options ? 'max_active'
          and work_option_problems.options ?| array['min_active', 'shares', 'topics'] then
        v_problems := v_problems || 'min_active, shares and topics need max_active'::text;
    end if;
    return v_problems;
end
$$;
comment on function cascade_internal.work_option_problems(jsonb) is 'What is wrong with options of work mode.';

-- Writes the options of a consumer, after checking them together; the same columns serve every claim.  With fairness switched on
-- or off its waiting messages are keyed anew.
create or replace function cascade_internal.store_work_options(subscription_id integer, options jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_work     cascade_internal.work_consumer;
    v_options  jsonb;
    v_problems text[];
begin
    if store_work_options.options is null or jsonb_typeof(store_work_options.options) <> 'object' then
        raise exception 'options are not a JSON object'
            using errcode = 'QC002', hint = 'For example {"max_attempts": 10}.';
    end if;
    select w.* into strict v_work
      from cascade_internal.work_consumer as w
     where w.subscription_id = store_work_options.subscription_id
       for no key update;
    v_options := jsonb_strip_nulls(v_work.options || store_work_options.options);
    -- An unknown name with a null is a mistake all the same.
    v_problems := cascade_internal.work_option_problems(v_options)
                  || array(select format('there is no option %s', o) from jsonb_object_keys(store_work_options.options - array(
                               select k.name from cascade_internal.work_option_kinds() as k)) as o where not v_options ? o);
    if v_problems <> '{}' then
        raise exception 'bad options: %', array_to_string(v_problems, '; ')
            using errcode = 'QC002',
                  hint = format('Known are %s.', (select string_agg(k.name, ', ') from cascade_internal.work_option_kinds() as k));
    end if;
    -- 100.0 and "100" are 100.
    v_options := v_options || coalesce((
        select jsonb_object_agg(k.name, (v_options->>k.name)::numeric::integer)
          from cascade_internal.work_option_kinds() as k
         where k.kind = 'number' and v_options ? k.name), '{}');
    update cascade_internal.work_consumer as w
       set options = v_options,
           all_rows = v_options ?| array['max_active', 'order'],
           by_key = v_options ? 'order',
           max_active = (v_options->>'max_active')::numeric::integer,
           rooms = cascade_internal.class_rooms(v_options, (v_options->>'max_active')::numeric::integer),
           topics = (select jsonb_object_agg(t.key, cascade_internal.class_rooms(v_options, t.value::numeric::integer))
                       from jsonb_each_text(v_options->'topics') as t)
     where w.subscription_id = v_work.subscription_id
    returning w.* into v_work;
    if v_work.max_active is null then
        perform cascade_internal.end_fairness(v_work);
    end if;
    perform cascade_internal.key_anew(v_work);
end
$$;
comment on function cascade_internal.store_work_options(integer, jsonb) is 'Checks and writes options of a consumer in work mode.';

-- How many messages of each class may be in hand: its share, but the guaranteed minimum at least, as far as the maximum allows
-- that for all four.  What that gives the low classes more than their share, the highest give up.
create or replace function cascade_internal.class_rooms(options jsonb, max_active integer)
returns integer[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_shares constant numeric[] := coalesce(array(select s::numeric from jsonb_array_elements_text(class_rooms.options->'shares') as s), '{}')
                                   || '{40, 30, 20, 10}'::numeric[];
    v_least  constant integer := greatest(1, least(coalesce((class_rooms.options->>'min_active')::numeric::integer, 5), class_rooms.max_active / 4));
    v_rooms  integer[] := '{}';
begin
    if class_rooms.max_active is null then
        return null;
    end if;
    for v_class in 1 .. 4 loop
        v_rooms := v_rooms || greatest(v_least, floor(class_rooms.max_active * v_shares[v_class] / 100)::integer);
    end loop;
    for v_class in 1 .. 4 loop
        exit when v_rooms[1] + v_rooms[2] + v_rooms[3] + v_rooms[4] <= class_rooms.max_active;
        v_rooms[v_class] := greatest(v_least, v_rooms[v_class]
                                              - (v_rooms[1] + v_rooms[2] + v_rooms[3] + v_rooms[4] - class_rooms.max_active));
    end loop;
    return v_rooms;
end
$$;
comment on function cascade_internal.class_rooms(jsonb, integer) is 'How many messages of each class may be in hand.';

-- How a message is drawn.
create or replace function cascade_internal.draw_topic(work cascade_internal.work_consumer, type text)
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return case when (draw_topic.work).max_active is null then '' else coalesce(draw_topic.type, '') end;
end
$$;
comment on function cascade_internal.draw_topic(cascade_internal.work_consumer, text) is 'The topic under which a message is drawn.';

create or replace function cascade_internal.draw_org(work cascade_internal.work_consumer, id bigint, key text)
returns bigint
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return case when (draw_org.work).by_key then hashtextextended(coalesce('k' || draw_org.key, draw_org.id::text), 0)
                when (draw_org.work).max_active is not null then hashtextextended(coalesce(draw_org.key, ''), 0)
                else 0 end;
end
$$;
comment on function cascade_internal.draw_org(cascade_internal.work_consumer, bigint, text) is 'The organisation under which a message is drawn; those without a key are one, or each for itself where keys are an order.';

create or replace function cascade_internal.key_anew(work cascade_internal.work_consumer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.work_waiting as w
       set topic = cascade_internal.draw_topic(key_anew.work, w.type), org = cascade_internal.draw_org(key_anew.work, w.id, w.key)
     where w.subscription_id = (key_anew.work).subscription_id
       and (w.topic, w.org) is distinct from
           (cascade_internal.draw_topic(key_anew.work, w.type), cascade_internal.draw_org(key_anew.work, w.id, w.key));
    update cascade_internal.work_held as h
       set topic = cascade_internal.draw_topic(key_anew.work, h.type), org = cascade_internal.draw_org(key_anew.work, h.id, h.key)
     where h.subscription_id = (key_anew.work).subscription_id
       and (h.topic, h.org) is distinct from
           (cascade_internal.draw_topic(key_anew.work, h.type), cascade_internal.draw_org(key_anew.work, h.id, h.key));
end
$$;
comment on function cascade_internal.key_anew(cascade_internal.work_consumer) is 'Keys waiting messages anew after fairness was switched on or off.';

-- Without fairness there are no parcels: what somebody has in hand becomes rows of work_active, what was only drawn waits again.
create or replace function cascade_internal.end_fairness(work cascade_internal.work_consumer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_claim bigint;
begin
    -- Nobody draws meanwhile, nor after this (may_draw).
    perform pg_advisory_xact_lock(1467642722, (end_fairness.work).subscription_id);
    delete from cascade_internal.work_parcel as p
     where p.subscription_id = (end_fairness.work).subscription_id and p.claim_id is null;
    -- A claim first, and then what it holds, as everybody does.
    for v_claim in
        select distinct p.claim_id from cascade_internal.work_parcel as p
         where p.subscription_id = (end_fairness.work).subscription_id
         order by p.claim_id
    loop
        perform from cascade_internal.work_claim as c where c.claim_id = v_claim for update;
        perform cascade_internal.unpack_parcels(end_fairness.work, v_claim, null);
    end loop;
end
$$;
comment on function cascade_internal.end_fairness(cascade_internal.work_consumer) is 'Gives up the parcels of a consumer.';
