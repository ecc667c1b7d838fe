-- Messages with a row of their own: first come, first served.
create or replace function cascade_internal.has_rows(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from cascade_internal.work_put_back as w
                    where w.subscription_id = has_rows.subscription_id and w.due <= clock_timestamp());
end
$$;
comment on function cascade_internal.has_rows(integer) is 'Whether rows wait.';

create or replace function cascade_internal.place_rows(work cascade_internal.work_consumer, query text, at timestamptz)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_count bigint;
begin
    execute format('insert into cascade_internal.work_put_back select %s, q.id, q."time", q.type, q.key, q.payload, q.headers, q.origin,'
                   ' q.origin_id, q.attempt, coalesce(q.due, $1) from (%s) as q', (place_rows.work).subscription_id, place_rows.query)
      using place_rows.at;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function cascade_internal.place_rows(cascade_internal.work_consumer, text, timestamptz) is 'Has messages wait as rows.';

create or replace function cascade_internal.pick_rows(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns setof cascade_internal.work_active
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with picked as (
            select w.id from cascade_internal.work_put_back as w
             where w.subscription_id = (pick_rows.work).subscription_id and w.due <= clock_timestamp()
             order by w.due, w.id limit pick_rows.count for update skip locked),
        gone as (
            delete from cascade_internal.work_put_back as w using picked as p
             where w.subscription_id = (pick_rows.work).subscription_id and w.id = p.id
            returning w.*)
        insert into cascade_internal.work_active
        select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt + 1, 3, null, g.due,
               pick_rows.claim_id, null
          from gone as g
        returning *;
end
$$;
comment on function cascade_internal.pick_rows(cascade_internal.work_consumer, integer, bigint, timestamptz, boolean) is 'Hands out rows.';

create or replace function cascade_internal.settle(work cascade_internal.work_consumer, ids bigint[], outcome text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
end
$$;
comment on function cascade_internal.settle(cascade_internal.work_consumer, bigint[], text) is 'Lets go of what waited for messages.';

create or replace function cascade_internal.has_blockers(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return false;
end
$$;
comment on function cascade_internal.has_blockers(integer) is 'Whether messages wait for others of a consumer.';

create or replace function cascade_internal.tend_rows(work cascade_internal.work_consumer, at timestamptz)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return 0;
end
$$;
comment on function cascade_internal.tend_rows(cascade_internal.work_consumer, timestamptz) is 'Looks after rows that wait.';

create or replace function cascade_internal.forget_rows(subscription_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.work_put_back as w where w.subscription_id = forget_rows.subscription_id;
end
$$;
comment on function cascade_internal.forget_rows(integer) is 'Forgets rows that wait.';

create or replace function cascade_internal.read_selector(selector text)
returns jsonpath
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return read_selector.selector::jsonpath;
end
$$;
comment on function cascade_internal.read_selector(text) is 'A selector as it was written.';

create or replace function cascade_internal.store_work_options(subscription_id integer, options jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.work_consumer as w set options = store_work_options.options
     where w.subscription_id = store_work_options.subscription_id;
end
$$;
comment on function cascade_internal.store_work_options(integer, jsonb) is 'Stores options.';

create or replace function cascade_internal.selected(
    selector jsonpath, id bigint, "time" timestamptz, type text, key text, payload json, headers json)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_build_object('id', selected.id, 'type', selected.type, 'key', selected.key, 'payload', selected.payload::jsonb,
                              'headers', selected.headers::jsonb) @@ selected.selector;
end
$$;
comment on function cascade_internal.selected(jsonpath, bigint, timestamptz, text, text, json, json) is 'Whether an event matches.';
