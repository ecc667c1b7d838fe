-- A selector is a jsonpath over {id, type, key, payload, headers, time}.  An event matches when the first item that the path
-- finds is neither false nor null: a predicate that holds, or something that is there.  time is text in UTC, as in
-- 2026-01-31T12:00:00.000000Z, so that it compares as it reads.
--
-- False means that it does not match; null, that jsonb cannot hold the event: such a one matches nothing and is counted.
create or replace function cascade_internal.selected(
    selector jsonpath, id bigint, "time" timestamptz, type text, key text, payload json, headers json)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_found jsonb;
begin
    v_found := jsonb_path_query_first_tz(
        jsonb_build_object('id', selected.id, 'type', selected.type, 'key', selected.key,
                           'time', to_char(selected."time" at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                           'payload', selected.payload::jsonb, 'headers', selected.headers::jsonb),
        selected.selector, '{}', true);
    return v_found is not null and v_found not in ('false', 'null');
exception when data_exception or program_limit_exceeded or feature_not_supported then
    return null;
end
$$;
comment on function cascade_internal.selected(jsonpath, bigint, timestamptz, text, text, json, json)
    is 'Whether an event matches a selector; null if it cannot be read.';

-- cascade_internal.read_selector(selector): the jsonpath, or QC232 that says at which character it goes wrong.  PostgreSQL names
-- the token, not the place: that is where cutting the text shorter changes the error.
create or replace function cascade_internal.read_selector(selector text)
returns jsonpath
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_problem text := cascade_internal.selector_problem(read_selector.selector);
    v_token   text;
    v_bad     integer := length(read_selector.selector);
    v_good    integer := 0;
    v_middle  integer;
begin
    if read_selector.selector is null then
        return null;
    elsif v_bad > 4000 then
        raise exception 'the selector has % characters', v_bad
            using errcode = 'QC232', hint = 'Up to 4000.';
    elsif v_problem is null then
        -- Without its strings, only a variable is a dollar before a name.  Reading one fails, whatever the event.
        if regexp_replace(read_selector.selector::jsonpath::text, '"(\\.|[^"\\])*"', 'S', 'g') like '%$S%' then
            raise exception 'the selector is no jsonpath: there are no variables, at character %',
                            strpos(read_selector.selector, substring(read_selector.selector from '\$["_[:alpha:]]'))
                using errcode = 'QC232', hint = 'Write the value.';
        end if;
        return read_selector.selector::jsonpath;
    end if;
    while v_bad - v_good > 1 loop
        v_middle := (v_bad + v_good) / 2;
        if cascade_internal.selector_problem(left(read_selector.selector, v_middle)) is not distinct from v_problem then
            v_bad := v_middle;
        else
            v_good := v_middle;
        end if;
    end loop;
    v_token := substring(v_problem from 'at or near "(.*)" of jsonpath input');
    if v_token is not null and right(left(read_selector.selector, v_bad), length(v_token)) = v_token then
        v_bad := v_bad - length(v_token) + 1;
    elsif v_problem like '%at end of jsonpath input' then
        v_bad := length(read_selector.selector) + 1;
    elsif v_problem like '@ %' then
        v_bad := strpos(read_selector.selector, '@');
    end if;
    raise exception 'the selector is no jsonpath: %, at character %', v_problem, greatest(v_bad, 1)
        using errcode = 'QC232',
              hint = 'For example $.payload.total > 100 && $.type starts with "order."; there are id, type, key, payload, headers and time.';
end
$$;
comment on function cascade_internal.read_selector(text) is 'A selector as a jsonpath, or QC232.';

create or replace function cascade_internal.selector_problem(selector text)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    perform selector_problem.selector::jsonpath;
    return null;
exception when others then
    return sqlerrm;
end
$$;
comment on function cascade_internal.selector_problem(text) is 'What is wrong with a selector; null if nothing is.';
