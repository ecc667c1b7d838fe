-- cascade.post_many(queue, payloads, ...) inserts many events and returns their ids in input
-- order.  type, key, headers and the options of cascade.post() hold for all of them; types, keys and
-- dedupe_keys give one for each.  In the place of a duplicate stands the id of the first.
create or replace function cascade_internal.post_many(
    queue text, payloads json[], type text, key text, headers json, types text[], keys text[], caller name, delay interval,
    deliver_at timestamptz, expires_at timestamptz, priority integer, after bigint[], after_in jsonb, dedupe_keys text[],
    dedupe_for interval)
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(post_many.queue);
    v_count constant integer := coalesce(cardinality(post_many.payloads), 0);
    v_seq   constant regclass := format('cascade_internal.event_id_%s', v_queue.queue_id)::regclass;
    v_some  constant boolean := num_nonnulls(post_many.delay, post_many.deliver_at, post_many.expires_at, post_many.priority,
                                             post_many.after, post_many.after_in) > 0;
    v_each  json[];
    v_most  bigint;
    v_ids   bigint[];
begin
    perform cascade_internal.check_producer(v_queue, post_many.caller);
    if post_many.dedupe_keys is not null then
        v_each := array(
            select case when k.dedupe_key is null and not v_some then post_many.headers
                        else cascade_internal.add_options(post_many.headers, post_many.delay, post_many.deliver_at, post_many.expires_at,
                                 post_many.priority, post_many.after, post_many.after_in, k.dedupe_key, clock_timestamp())
                   end
              from unnest(post_many.dedupe_keys) with ordinality as k(dedupe_key, n)
             order by k.n);
        post_many.headers := v_each[1];
    elsif v_some then
        post_many.headers := cascade_internal.add_options(post_many.headers, post_many.delay, post_many.deliver_at, post_many.expires_at,
                                                          post_many.priority, post_many.after, post_many.after_in, null, clock_timestamp());
    end if;
    v_most := v_queue.payload_max_bytes - coalesce(octet_length(post_many.headers::text), 0);
    perform cascade_internal.check_type(t) from unnest(post_many.types || post_many.type) as t where t like 'cascade.%';
    if post_many.payloads is null then
        raise exception 'the list of payloads is null'
            using errcode = 'QC003', hint = 'Pass an array of JSON values; an empty one posts nothing.';
    elsif cardinality(post_many.types) <> v_count or cardinality(post_many.keys) <> v_count then
        raise exception '% payloads, but % types and % keys', v_count,
                        coalesce(cardinality(post_many.types), 0), coalesce(cardinality(post_many.keys), 0)
            using errcode = 'QC003', hint = 'Give as many types and keys as payloads, or none.';
    elsif cardinality(post_many.dedupe_keys) <> v_count then
        raise exception '% payloads, but % dedupe_keys', v_count, cardinality(post_many.dedupe_keys)
            using errcode = 'QC003', hint = 'Give as many dedupe_keys as payloads, null for those without, or none.';
    end if;
    if cascade_internal.has_options(post_many.headers)
       and cascade_internal.check_message_options(v_queue, post_many.headers, null) is not null and v_each is null then
        raise exception 'one dedupe_key is given for all payloads'
            using errcode = 'QC230', hint = 'Pass dedupe_keys, one for each payload.';
    end if;
    perform cascade_internal.check_payload(v_queue, p, post_many.headers) from unnest(post_many.payloads) as p
      where p is null or pg_column_size(p) > v_most; -- Nothing inside an array is compressed.
    if post_many.dedupe_keys is not null or post_many.dedupe_for is not null then
        return cascade_internal.post_many_once(v_queue, post_many.payloads, post_many.type, post_many.key, v_each, post_many.types,
                                               post_many.keys, post_many.dedupe_keys, post_many.dedupe_for);
    end if;
    v_ids := array(select nextval(v_seq) from generate_series(1, v_count));
    execute format('insert into queue.%I (id, type, key, payload, headers)'
                   ' select x.id, coalesce(x.type, $5), coalesce(x.key, $6), x.payload, $7'
                   ' from unnest($1, $2, $3, $4) as x(id, payload, type, key)', v_queue.name)
      using v_ids, post_many.payloads, post_many.types, post_many.keys, post_many.type, post_many.key, post_many.headers;
    return v_ids;
end
$$;
comment on function cascade_internal.post_many(text, json[], text, text, json, text[], text[], name, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text[], interval)
    is 'Inserts many events for a caller.';

create or replace function cascade.post_many(
    queue text, payloads json[], type text default null, key text default null, headers json default null,
    types text[] default null, keys text[] default null, delay interval default null, deliver_at timestamptz default null,
    expires_at timestamptz default null, priority integer default null, after bigint[] default null, after_in jsonb default null,
    dedupe_keys text[] default null, dedupe_for interval default null)
returns bigint[]
language sql volatile
begin atomic
    select cascade_internal.post_many(post_many.queue, post_many.payloads, post_many.type, post_many.key,
                                      post_many.headers, post_many.types, post_many.keys, current_user, post_many.delay,
                                      post_many.deliver_at, post_many.expires_at, post_many.priority, post_many.after,
                                      post_many.after_in, post_many.dedupe_keys, post_many.dedupe_for);
end;
comment on function cascade.post_many(text, json[], text, text, json, text[], text[], interval, timestamptz, timestamptz, integer, bigint[], jsonb, text[], interval)
    is 'Inserts many events and returns their ids in order.';

-- The events whose keys nobody holds.  Keys are taken in their order, so that two posts with the same
-- keys wait for one another, and never both.
create or replace function cascade_internal.post_many_once(
    queue cascade_internal.queue, payloads json[], type text, key text, headers json[], types text[], keys text[],
    dedupe_keys text[], dedupe_for interval)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_seq   constant regclass := format('cascade_internal.event_id_%s', (post_many_once.queue).queue_id)::regclass;
    v_ids   bigint[] := array(select nextval(v_seq) from generate_subscripts(post_many_once.payloads, 1));
    v_first bigint[] := v_ids;
    v_key   record;
begin
    -- The key of one that was posted here must not answer for a queue that takes no events any more.
    perform cascade_internal.check_takes_inserts(post_many_once.queue, 'takes no inserts');
    if post_many_once.dedupe_keys is null then
        perform cascade_internal.dedupe_until(null, post_many_once.dedupe_for);
    end if;
    for v_key in
        select k.n, k.dedupe_key from unnest(post_many_once.dedupe_keys) with ordinality as k(dedupe_key, n)
         order by k.dedupe_key, k.n
    loop
        continue when v_key.dedupe_key is null;
        v_first[v_key.n] := cascade_internal.hold_key((post_many_once.queue).queue_id, v_key.dedupe_key, v_ids[v_key.n],
                                                      cascade_internal.dedupe_until(v_key.dedupe_key, post_many_once.dedupe_for));
    end loop;
    execute format('insert into queue.%I (id, type, key, payload, headers)'
                   ' select x.id, coalesce(x.type, $7), coalesce(x.key, $8), x.payload, x.headers'
                   ' from unnest($1, $2, $3, $4, $5, $6) as x(id, first, payload, headers, type, key)'
                   ' where x.id = x.first', (post_many_once.queue).name)
      using v_ids, v_first, post_many_once.payloads, post_many_once.headers, post_many_once.types, post_many_once.keys, post_many_once.type, post_many_once.key;
    return v_first;
end
$$;
comment on function cascade_internal.post_many_once(cascade_internal.queue, json[], text, text, json[], text[], text[], text[], interval)
    is 'Inserts the events of many whose keys nobody holds.';
