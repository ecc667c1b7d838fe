-- cascade.post_many(queue, payloads, ...) inserts many events and returns their ids in input
-- order.  type, key and headers hold for all of them, types and keys give one for each.
create or replace function cascade_internal.post_many(
    queue text, payloads json[], type text, key text, headers json, types text[], keys text[], caller name)
returns bigint[]
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(post_many.queue);
    v_count constant integer := coalesce(cardinality(post_many.payloads), 0);
    v_seq   constant regclass := format('cascade_internal.event_id_%s', v_queue.queue_id)::regclass;
    v_most  constant bigint := v_queue.payload_max_bytes - coalesce(octet_length(post_many.headers::text), 0);
    v_ids   bigint[];
begin
    perform cascade_internal.check_producer(v_queue, post_many.caller);
    perform cascade_internal.check_type(t) from unnest(post_many.types || post_many.type) as t where t like 'cascade.%';
    if post_many.payloads is null then
        raise exception 'the list of payloads is null'
            using errcode = 'QC003', hint = 'Pass an array of JSON values; an empty one posts nothing.';
    elsif cardinality(post_many.types) <> v_count or cardinality(post_many.keys) <> v_count then
        raise exception '% payloads, but % types and % keys', v_count,
                        coalesce(cardinality(post_many.types), 0), coalesce(cardinality(post_many.keys), 0)
            using errcode = 'QC003', hint = 'Give as many types and keys as payloads, or none.';
    end if;
    perform cascade_internal.check_payload(v_queue, p, post_many.headers) from unnest(post_many.payloads) as p
      where p is null or pg_column_size(p) > v_most; -- Nothing inside an array is compressed.
    v_ids := array(select nextval(v_seq) from generate_series(1, v_count));
    execute format('insert into queue.%I (id, type, key, payload, headers)'
                   ' select x.id, coalesce(x.type, $5), coalesce(x.key, $6), x.payload, $7'
                   ' from unnest($1, $2, $3, $4) as x(id, payload, type, key)', v_queue.name)
      using v_ids, post_many.payloads, post_many.types, post_many.keys, post_many.type, post_many.key, post_many.headers;
    return v_ids;
end
$$;
comment on function cascade_internal.post_many(text, json[], text, text, json, text[], text[], name) is 'Inserts many events for a caller.';

create or replace function cascade.post_many(
    queue text, payloads json[], type text default null, key text default null, headers json default null,
    types text[] default null, keys text[] default null)
returns bigint[]
language sql volatile
begin atomic
    select cascade_internal.post_many(post_many.queue, post_many.payloads, post_many.type, post_many.key,
                                      post_many.headers, post_many.types, post_many.keys, current_user);
end;
comment on function cascade.post_many(text, json[], text, text, json, text[], text[]) is 'Inserts many events and returns their ids in order.';
