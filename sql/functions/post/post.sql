-- cascade.post(queue, payload, type, key, headers, id, options ...) inserts one event and returns its id.
-- With id it uses one that cascade.reserve_id() handed out, once.
--
-- The options say how consumers in work mode are to get it; streams do not look at them.  They are checked
-- here (QC230, QC231) and travel with the event, as its header "cascade.options".
--
--     delay        deliver it after so long; or
--     deliver_at   not before then
--     expires_at   never after then: an expired message is counted, and delivered to nobody
--     priority     1 urgent, 2 high, 3 normal, 4 low
--     after        ids of messages of this queue that the same consumer must have done before
--     after_in     the same of other queues on the node: {"payments": [17, 18]}
--     dedupe_key   post nothing if the queue was posted this key within dedupe_for: the first id is returned
--     dedupe_for   how long the key is held, by default an hour
--
-- The outer function is parsed when it is created and runs as the caller: it tells the inner
-- one, truthfully, who calls.  Nobody else can call the inner one, since nobody may use
-- names of cascade_internal (docs/adr/0005).
create or replace function cascade_internal.post(
    queue text, payload json, type text, key text, headers json, id bigint, caller name, delay interval, deliver_at timestamptz,
    expires_at timestamptz, priority integer, after bigint[], after_in jsonb, dedupe_key text, dedupe_for interval)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(post.queue);
    v_id    bigint;
    v_last  cascade_internal.tick;
    v_txid  constant bigint := txid_current() + v_queue.clock_offset;
    v_key   text;
begin
    perform cascade_internal.check_producer(v_queue, post.caller);
    perform cascade_internal.check_type(post.type);
    if num_nonnulls(post.delay, post.deliver_at, post.expires_at, post.priority, post.after, post.after_in, post.dedupe_key, post.dedupe_for) > 0 then
        post.headers := cascade_internal.add_options(post.headers, post.delay, post.deliver_at, post.expires_at, post.priority,
                                                     post.after, post.after_in, post.dedupe_key, clock_timestamp());
    end if;
    perform cascade_internal.check_payload(v_queue, post.payload, post.headers);
    if cascade_internal.has_options(post.headers) then
        v_key := cascade_internal.check_message_options(v_queue, post.headers, post.id);
    end if;
    if v_key is not null or post.dedupe_for is not null then
        v_id := cascade_internal.post_once(v_queue, post.payload, post.type, post.key, post.headers, post.id, v_key, post.dedupe_for);
        if v_id is distinct from post.id then
            return v_id;
        end if;
    elsif post.id is null then
        execute format('insert into queue.%I (type, key, payload, headers) values ($1, $2, $3, $4) returning id', v_queue.name)
           into v_id
          using post.type, post.key, post.payload, post.headers;
        return v_id;
    end if;
    delete from cascade_internal.reservation as r
     where r.queue_id = v_queue.queue_id
       and r.id = post.id
       and r.reserved_by = post.caller;
    if not found then
        raise exception 'id % is not reserved in queue "%", or was used', post.id, post.queue
            using errcode = 'QC205', hint = 'cascade.reserve_id() hands out ids; each can be posted once, by the role that reserved it.';
    end if;
    -- repair_clock() finds what was inserted after a restore by its id; this one would be missed.
    v_last := cascade_internal.newest_tick(v_queue.queue_id, v_queue.slots);
    if v_txid < v_last.high and v_txid <> all (v_last."open") then
        raise exception 'queue "%" was restored and has not ticked yet', post.queue
            using errcode = 'QC501', hint = 'select cascade.tick() first, then post again.';
    end if;
    execute format('insert into queue.%I (id, type, key, payload, headers) values ($1, $2, $3, $4, $5)', v_queue.name)
      using post.id, post.type, post.key, post.payload, post.headers;
    return post.id;
end
$$;
comment on function cascade_internal.post(text, json, text, text, json, bigint, name, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text, interval)
    is 'Inserts one event for a caller.';

create or replace function cascade.post(
    queue text, payload json, type text default null, key text default null, headers json default null, id bigint default null,
    delay interval default null, deliver_at timestamptz default null, expires_at timestamptz default null, priority integer default null,
    after bigint[] default null, after_in jsonb default null, dedupe_key text default null, dedupe_for interval default null)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.post(post.queue, post.payload, post.type, post.key, post.headers, post.id, current_user,
                                 post.delay, post.deliver_at, post.expires_at, post.priority, post.after, post.after_in,
                                 post.dedupe_key, post.dedupe_for);
end;
comment on function cascade.post(text, json, text, text, json, bigint, interval, timestamptz, timestamptz, integer, bigint[], jsonb, text, interval)
    is 'Inserts one event and returns its id.';

-- Returns the id under which an event is in the queue, or is to be: another one than asked for, and than
-- null, has been inserted, here or before.
create or replace function cascade_internal.post_once(
    queue cascade_internal.queue, payload json, type text, key text, headers json, id bigint, dedupe_key text, dedupe_for interval)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    bigint := coalesce(post_once.id, nextval(format('cascade_internal.event_id_%s', (post_once.queue).queue_id)::regclass));
    v_first bigint;
begin
    -- The key of one that was posted here must not answer for a queue that takes no events any more.
    perform cascade_internal.check_takes_inserts(post_once.queue, 'takes no inserts');
    v_first := cascade_internal.hold_key((post_once.queue).queue_id, post_once.dedupe_key, v_id,
                                         cascade_internal.dedupe_until(post_once.dedupe_key, post_once.dedupe_for));
    if v_first = v_id and post_once.id is null then
        execute format('insert into queue.%I (id, type, key, payload, headers) values ($1, $2, $3, $4, $5)', (post_once.queue).name)
          using v_id, post_once.type, post_once.key, post_once.payload, post_once.headers;
    end if;
    return v_first;
end
$$;
comment on function cascade_internal.post_once(cascade_internal.queue, json, text, text, json, bigint, text, interval)
    is 'Inserts one event unless its key is held.';

create or replace function cascade_internal.check_type(type text)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if check_type.type like 'cascade.%' then
        raise exception 'type "%" is reserved', check_type.type
            using errcode = 'QC003', hint = 'Types that begin with "cascade." are for Cascade''s own events.';
    end if;
end
$$;
comment on function cascade_internal.check_type(text) is 'Refuses the types of control events.';

-- The table itself refuses a null payload; a limit of size in a check constraint would cost a
-- single INSERT a quarter of its rate (docs/adr/0006), so it is kept here and in the client.
--
-- What counts is the text.  pg_column_size() is quick and never below that, unless the value comes
-- compressed from a table; so the text is made only for such a value, and for one near the limit.
create or replace function cascade_internal.check_payload(queue cascade_internal.queue, payload json, headers json)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes bigint := pg_column_size(check_payload.payload) + coalesce(pg_column_size(check_payload.headers), 0);
begin
    if v_bytes is null then
        raise exception 'the payload is null'
            using errcode = 'QC302', hint = 'An event says something: pass JSON; ''null''::json is a JSON null.';
    elsif v_bytes <= (check_payload.queue).payload_max_bytes
          and pg_column_compression(check_payload.payload) is null and pg_column_compression(check_payload.headers) is null then
        return;
    end if;
    v_bytes := octet_length(check_payload.payload::text) + coalesce(octet_length(check_payload.headers::text), 0);
    if v_bytes > (check_payload.queue).payload_max_bytes then
        raise exception 'payload and headers have % bytes, queue "%" takes %',
                        v_bytes, (check_payload.queue).name, (check_payload.queue).payload_max_bytes
            using errcode = 'QC303',
                  hint = 'Store large things elsewhere and post where they are, or raise payload_max_bytes with cascade.alter_queue().';
    end if;
end
$$;
comment on function cascade_internal.check_payload(cascade_internal.queue, json, json) is 'Refuses null and oversized payloads.';
