-- The fence of a root: wanted by a row, raised by DDL.  The row stops ticks at once; the trigger waits for every
-- open writer and is met by every later one, whatever its snapshot.

-- cascade_internal.note_step(set, op_id, step, detail): every step writes a line in the database it changes, in its
-- own transaction.
create or replace function cascade_internal.note_step("set" text, op_id uuid, step text, detail jsonb default '{}')
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.journal ("set", node, op_id, step, detail)
    values (note_step."set",
            (select n.node from cascade_internal.node as n join cascade_internal.queue as q using (queue_id) where q.name = note_step."set"),
            note_step.op_id, note_step.step, coalesce(note_step.detail, '{}'));
end
$$;
comment on function cascade_internal.note_step(text, uuid, text, jsonb) is 'Writes a line into the journal.';

create or replace function cascade_internal.lock_queue("set" text)
returns cascade_internal.queue
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    perform cascade_internal.check_read_committed('changing a set');
    perform cascade_internal.commit_durably();
    perform cascade_internal.find_node(lock_queue."set");
    select q.* into v_queue from cascade_internal.queue as q where q.name = lock_queue."set" for no key update;
    return v_queue;
end
$$;
comment on function cascade_internal.lock_queue(text) is 'Locks the queue of a set for a step of an operation.';

-- The trigger.  With a limit the caller retries: while DDL waits, new writers wait behind it, so a short limit
-- keeps the pause short.  Without one, waiting already holds back new writers, which is what is wanted.
create or replace function cascade_internal.raise_trigger(queue cascade_internal.queue, wait interval)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit constant text := current_setting('lock_timeout');
begin
    if exists (select from pg_catalog.pg_trigger as t
                where t.tgrelid = format('queue.%I', (raise_trigger.queue).name)::regclass and t.tgname = 'cascade_fence') then
        return;
    end if;
    perform set_config('lock_timeout', coalesce((extract(epoch from raise_trigger.wait) * 1000)::bigint::text, '0'), true);
    begin
        execute format('create trigger cascade_fence before insert on queue.%I for each statement'
                       ' execute function cascade_internal.refuse_insert()', (raise_trigger.queue).name);
    exception when lock_not_available then
        raise exception 'queue "%" is being written to: %', (raise_trigger.queue).name,
                        coalesce((select string_agg(w.detail, '; ') from cascade_internal.queue_writers(raise_trigger.queue) as w), 'by somebody who has just ended')
            using errcode = 'lock_not_available', hint = 'Try again, wait longer, or end the transaction that is named.';
    end;
    perform set_config('lock_timeout', v_limit, true);
end
$$;
comment on function cascade_internal.raise_trigger(cascade_internal.queue, interval) is 'Makes a queue refuse inserts, after every open writer.';

-- Who holds the queue's table open for writing: sessions, and prepared transactions, which hold it for ever.
create or replace function cascade_internal.queue_writers(queue cascade_internal.queue)
returns table (pid integer, gid text, age_s numeric, query text, detail text)
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select l.pid, p.gid, round(extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::numeric, 1), left(a.query, 200),
           format('%s%s%s', coalesce('backend ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'a prepared transaction'),
                  ' (' || nullif(a.application_name, '') || ')',
                  ', open for ' || round(extract(epoch from clock_timestamp() - coalesce(a.xact_start, p.prepared))::numeric, 1) || ' s')
      from pg_catalog.pg_locks as l
      left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
      left join pg_catalog.pg_locks as x
        on l.pid is null and x.virtualtransaction = l.virtualtransaction and x.locktype = 'transactionid' and x.mode = 'ExclusiveLock'
      left join pg_catalog.pg_prepared_xacts as p on p.transaction = x.transactionid
     where l.locktype = 'relation'
       and l.granted
       and l.mode = 'RowExclusiveLock'
       and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())
       and l.relation = format('queue.%I', (queue_writers.queue).name)::regclass
       and l.pid is distinct from pg_backend_pid()
     order by 3 desc nulls first
$$;
comment on function cascade_internal.queue_writers(cascade_internal.queue) is 'Who has written to a queue in a transaction that is still open.';

-- cascade.name_writers(set): who holds the queue open for writing, on one line: a fence waits for these.  Null when it is
-- nobody.  It waits for nobody itself.
create or replace function cascade.name_writers("set" text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select string_agg(w.detail, '; ')
              from cascade_internal.queue_writers(cascade_internal.find_queue(name_writers."set")) as w);
end
$$;
comment on function cascade.name_writers(text) is 'Who has written to a queue and not ended the transaction.';

-- cascade.begin_operation(set, op_id, kind, target, expires): one at a time per set.  The same one may begin again.
create or replace function cascade.begin_operation("set" text, op_id uuid, kind text, target text, expires interval default '30 s')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(begin_operation."set");
    v_queue cascade_internal.queue := cascade_internal.lock_queue(begin_operation."set");
    v_open  cascade_internal.operation;
begin
    perform cascade_internal.expire_operation(v_queue);
    select o.* into v_open from cascade_internal.operation as o where o.queue_id = v_queue.queue_id and o.ended_at is null;
    if v_open.op_id is not null and v_open.op_id <> begin_operation.op_id then
        raise exception 'set "%" has an open operation: % to %, begun % s ago', begin_operation."set", v_open.kind, coalesce(v_open.target, 'nobody'),
                        round(extract(epoch from clock_timestamp() - v_open.started_at))
            using errcode = 'QC210', hint = 'Let it end: it expires by itself unless it has made an offer; cascade plan shows where it stands.';
    elsif v_open.op_id is null then
        insert into cascade_internal.operation (op_id, queue_id, kind, target, expires_at)
        values (begin_operation.op_id, v_queue.queue_id, begin_operation.kind, begin_operation.target, clock_timestamp() + begin_operation.expires)
        returning operation.* into v_open;
        perform cascade_internal.note_step(begin_operation."set", begin_operation.op_id, 'begin ' || begin_operation.kind,
                                           jsonb_build_object('target', begin_operation.target));
    end if;
    return to_jsonb(v_open) - 'queue_id';
end
$$;
comment on function cascade.begin_operation(text, uuid, text, text, interval) is 'Opens an operation on a set, at its root.';

create or replace function cascade_internal.end_operation(queue_id integer, op_id uuid, outcome text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    update cascade_internal.operation as o set ended_at = clock_timestamp(), outcome = end_operation.outcome
     where o.queue_id = end_operation.queue_id
       and o.op_id = coalesce(end_operation.op_id, o.op_id)
       and o.ended_at is null;
end
$$;
comment on function cascade_internal.end_operation(integer, uuid, text) is 'Ends an operation, or whichever is open.';

-- An operation whose tool has died ends by itself, with its fence, unless it made an offer: then the term is over.
create or replace function cascade_internal.expire_operation(queue cascade_internal.queue)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_open cascade_internal.operation;
begin
    select o.* into v_open from cascade_internal.operation as o
     where o.queue_id = (expire_operation.queue).queue_id and o.ended_at is null and o.expires_at < clock_timestamp();
    if not found or exists (select from cascade_internal.handover as h
                             where h.queue_id = v_open.queue_id and h.op_id = v_open.op_id and h.state in ('offered', 'taken')) then
        return false;
    end if;
    perform cascade_internal.lower_fence(expire_operation.queue, v_open.op_id);
    perform cascade_internal.end_operation(v_open.queue_id, v_open.op_id, 'expired');
    perform cascade_internal.note_step((expire_operation.queue).name, v_open.op_id, 'expired');
    return true;
end
$$;
comment on function cascade_internal.expire_operation(cascade_internal.queue) is 'Ends an operation whose time is over.';

create or replace function cascade_internal.lower_fence(queue cascade_internal.queue, op_id uuid)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.fence as f
     where f.queue_id = (lower_fence.queue).queue_id and f.cause = 'operation' and f.op_id = lower_fence.op_id;
    if not found then
        return false;
    end if;
    execute format('drop trigger if exists cascade_fence on queue.%I', (lower_fence.queue).name);
    return true;
end
$$;
comment on function cascade_internal.lower_fence(cascade_internal.queue, uuid) is 'Takes an operation''s fence down.';

-- cascade.raise_fence(set, op_id, wait): inserts are refused from now on, with an error that says why.
create or replace function cascade.raise_fence("set" text, op_id uuid, wait interval default '300 ms')
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_root  cascade_internal.node := cascade_internal.find_root(raise_fence."set");
    -- The queue's row first, the table after it, as everybody does who posts a control event.
    v_queue cascade_internal.queue := cascade_internal.lock_queue(raise_fence."set");
    v_open  cascade_internal.operation;
    v_fence cascade_internal.fence;
begin
    select o.* into v_open from cascade_internal.operation as o
     where o.queue_id = v_queue.queue_id and o.op_id = raise_fence.op_id and o.ended_at is null;
    if not found then
        raise exception 'set "%" has no such open operation', raise_fence."set"
            using errcode = 'QC210', hint = 'It may have expired: begin again.';
    end if;
    select f.* into v_fence from cascade_internal.fence as f where f.queue_id = v_queue.queue_id;
    if found and v_fence.cause <> 'operation' then
        raise exception 'set "%" is fenced at its root already: %', raise_fence."set", coalesce(v_fence.detail, v_fence.cause)
            using errcode = 'QC401', hint = 'Its term is over; cascade plan says what to do.';
    end if;
    perform cascade_internal.raise_trigger(v_queue, raise_fence.wait);
    insert into cascade_internal.fence as f (queue_id, cause, detail, op_id, is_up, expires_at)
    values (v_queue.queue_id, 'operation', format('%s to %s is under way', v_open.kind, v_open.target), raise_fence.op_id, true, v_open.expires_at)
    on conflict on constraint fence_pkey do update set op_id = excluded.op_id, is_up = true, expires_at = excluded.expires_at
    returning f.* into v_fence;
    perform cascade_internal.note_step(raise_fence."set", raise_fence.op_id, 'fence');
    return to_jsonb(v_fence) - 'queue_id';
end
$$;
comment on function cascade.raise_fence(text, uuid, interval) is 'Has a root refuse inserts while an operation is under way.';

-- cascade.drop_fence(set, op_id): before the offer an operation can be given up.  False when it was already.
create or replace function cascade.drop_fence("set" text, op_id uuid)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(drop_fence."set");
    v_done  boolean;
begin
    if exists (select from cascade_internal.handover as h
                where h.queue_id = v_queue.queue_id and h.op_id = drop_fence.op_id and h.state in ('offered', 'taken')) then
        raise exception 'the reign of set "%" was offered already', drop_fence."set"
            using errcode = 'QC209', hint = 'An offer that was not taken can be withdrawn; one that was taken only goes forward.';
    end if;
    v_done := cascade_internal.lower_fence(v_queue, drop_fence.op_id);
    perform cascade_internal.end_operation(v_queue.queue_id, drop_fence.op_id, 'given up');
    perform cascade_internal.note_step(drop_fence."set", drop_fence.op_id, 'give up');
    return v_done;
end
$$;
comment on function cascade.drop_fence(text, uuid) is 'Gives up an operation that has made no offer.';

-- A root whose term is over, or in doubt.  Ticks stop with this row; complete_fence() raises the trigger.  What is
-- inserted in between is part of the tail.
create or replace function cascade_internal.want_fence(queue cascade_internal.queue, cause text, detail text)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.fence as f (queue_id, cause, detail)
    values ((want_fence.queue).queue_id, want_fence.cause, want_fence.detail)
    on conflict on constraint fence_pkey do update
       set cause = excluded.cause, detail = excluded.detail, op_id = null, expires_at = null
     where f.cause = 'operation' or (f.cause in ('conflict', 'rewound') and excluded.cause = 'over');
    if not found then
        return false;
    end if;
    update cascade_internal.queue as q set is_copy = true where q.queue_id = (want_fence.queue).queue_id and not q.is_copy;
    update cascade_internal.node as n set generation = n.generation + 1 where n.queue_id = (want_fence.queue).queue_id;
    perform cascade_internal.end_operation((want_fence.queue).queue_id, null, 'overtaken: ' || want_fence.cause);
    perform cascade_internal.note_step((want_fence.queue).name, null, 'stand down', jsonb_build_object('cause', want_fence.cause, 'detail', want_fence.detail));
    perform pg_notify('cascade_node', (want_fence.queue).name);
    return true;
end
$$;
comment on function cascade_internal.want_fence(cascade_internal.queue, text, text) is 'Stops the ticks of a root whose term is over or in doubt.';

-- cascade.complete_fence(set): raises the trigger of a fence that is wanted, however long it takes.
create or replace function cascade.complete_fence("set" text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.lock_queue(complete_fence."set");
begin
    if not exists (select from cascade_internal.fence as f where f.queue_id = v_queue.queue_id and not f.is_up) then
        return false;
    end if;
    perform cascade_internal.raise_trigger(v_queue, null);
    update cascade_internal.fence as f set is_up = true where f.queue_id = v_queue.queue_id;
    perform cascade_internal.note_step(complete_fence."set", null, 'fenced');
    return true;
end
$$;
comment on function cascade.complete_fence(text) is 'Raises the fence of a root that stands down.';
