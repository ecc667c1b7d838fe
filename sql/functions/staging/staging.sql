-- Publishing many rows from many sessions, all or none:
--
--     begin_staging    by one, who plans
--     stage            by many, each its part; an attempt that fails leaves rows that count for nothing
--     publish_staging  by the one, who names the attempts that count: one transaction
--     drop_staging     by the one, who has given up
--
-- The rights are those of producers.  Who calls is told by the outer functions, as with post() (docs/adr/0005).

-- A name makes a job of its own: once published it is never published again, and who begins it anew before that
-- takes it over from whoever had begun it.  Returns null when it was published.
create or replace function cascade_internal.begin_staging(queue text, name text, verbatim boolean, caller name)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue   cascade_internal.queue := cascade_internal.find_queue(begin_staging.queue);
    v_staging cascade_internal.staging;
    v_old     uuid;
begin
    perform cascade_internal.check_producer(v_queue, begin_staging.caller);
    if begin_staging.verbatim and not cascade_internal.is_operator(begin_staging.caller) then
        raise exception 'role "%" may not say when an event was made, or where it comes from', begin_staging.caller
            using errcode = 'QC301', hint = 'That is for operators: leave the time and the origin to the queue.';
    end if;
    perform cascade_internal.commit_durably();
    -- Of those that nobody finished, and of those whose replies nobody waits for any more.
    for v_old in
        delete from cascade_internal.staging as s
         where s.queue_id = v_queue.queue_id
           and s.begun_at < clock_timestamp() - interval '7 days'
           and (s.name is null or s.published_at is null)
        returning s.staging_uid
    loop
        delete from cascade_internal.staged as d where d.staging_uid = v_old;
    end loop;
    loop
        select s.* into v_staging
          from cascade_internal.staging as s
         where s.queue_id = v_queue.queue_id and s.name = begin_staging.name
           for update;
        if v_staging.published_at is not null then
            return null;
        end if;
        delete from cascade_internal.staged as d where d.staging_uid = v_staging.staging_uid;
        delete from cascade_internal.staging as s where s.staging_uid = v_staging.staging_uid;
        insert into cascade_internal.staging (queue_id, name, begun_by, is_verbatim)
        values (v_queue.queue_id, begin_staging.name, begin_staging.caller, coalesce(begin_staging.verbatim, false))
        on conflict on constraint staging_name_key do nothing
        returning staging.staging_uid into v_old;
        -- Of two who begin it at once the second takes it over, too.
        exit when found;
    end loop;
    return v_old;
end
$$;
comment on function cascade_internal.begin_staging(text, text, boolean, name) is 'Begins to publish many rows, for a caller.';

create or replace function cascade.begin_staging(queue text, name text default null, verbatim boolean default false)
returns uuid
language sql volatile
begin atomic
    select cascade_internal.begin_staging(begin_staging.queue, begin_staging.name, begin_staging.verbatim, current_user);
end;
comment on function cascade.begin_staging(text, text, boolean) is 'Begins to publish many rows from many sessions, all or none; null when this job was published.';

create or replace function cascade_internal.find_staging(staging uuid, caller name)
returns cascade_internal.staging
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_staging cascade_internal.staging;
begin
    select s.* into v_staging
      from cascade_internal.staging as s
     where s.staging_uid = find_staging.staging
       and (s.begun_by = find_staging.caller or cascade_internal.is_operator(find_staging.caller));
    if not found then
        raise exception 'nothing is staged as %', find_staging.staging
            using errcode = 'QC209', hint = 'It was given up, or begun again by a job of the same name: run the job again.';
    end if;
    return v_staging;
end
$$;
comment on function cascade_internal.find_staging(uuid, name) is 'A staging that a caller began, or QC209.';

-- Rows of one attempt; first counts them, so that a call may be repeated: it changes nothing then.
create or replace function cascade_internal.stage(
    staging uuid, task integer, attempt bigint, first bigint, types text[], keys text[], payloads json[], headers json[],
    times timestamptz[], origins text[], origin_ids bigint[], caller name)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_staging cascade_internal.staging := cascade_internal.find_staging(stage.staging, stage.caller);
    v_queue   cascade_internal.queue;
begin
    -- Publishing and giving up wait for this call, or it comes too late: no row is left behind that nobody will remove.
    perform from cascade_internal.staging as s
      where s.staging_uid = v_staging.staging_uid and s.published_at is null
        for key share;
    if not found then
        raise exception 'what was staged as % is published, or was given up', v_staging.staging_uid
            using errcode = 'QC209', hint = 'Rows that come after that count for nothing: run the job again if it failed.';
    end if;
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_staging.queue_id;
    perform cascade_internal.check_producer(v_queue, stage.caller);
    perform cascade_internal.check_type(t) from unnest(stage.types) as t where t like 'cascade.%';
    if not v_staging.is_verbatim and (stage.times is not null or stage.origins is not null or stage.origin_ids is not null) then
        raise exception 'times and origins were not announced'
            using errcode = 'QC003', hint = 'cascade.begin_staging(..., verbatim => true) does that.';
    elsif exists (select from unnest(stage.origins) as o where o like '.%') then
        raise exception 'origins that begin with a dot are reserved'
            using errcode = 'QC003', hint = 'They are for Cascade''s own events: leave those out.';
    end if;
    perform cascade_internal.check_payload(v_queue, x.payload, x.headers)
       from unnest(stage.payloads, stage.headers) as x(payload, headers)
      where x.payload is null
         or pg_column_size(x.payload) + coalesce(pg_column_size(x.headers), 0) > v_queue.payload_max_bytes;
    insert into cascade_internal.staged (staging_uid, task, attempt, n, type, key, payload, headers, "time", origin, origin_id)
    select v_staging.staging_uid, stage.task, stage.attempt, stage.first + x.n, x.type, x.key, x.payload, x.headers,
           x."time", x.origin, x.origin_id
      from unnest(stage.types, stage.keys, stage.payloads, stage.headers, stage.times, stage.origins, stage.origin_ids)
           with ordinality as x(type, key, payload, headers, "time", origin, origin_id, n)
    on conflict on constraint staged_pkey do nothing;
end
$$;
comment on function cascade_internal.stage(uuid, integer, bigint, bigint, text[], text[], json[], json[], timestamptz[], text[], bigint[], name)
    is 'Hands over rows that are to be published later, for a caller.';

create or replace function cascade.stage(
    staging uuid, task integer, attempt bigint, first bigint, types text[], keys text[], payloads json[], headers json[],
    times timestamptz[] default null, origins text[] default null, origin_ids bigint[] default null)
returns void
language sql volatile
begin atomic
    select cascade_internal.stage(stage.staging, stage.task, stage.attempt, stage.first, stage.types, stage.keys, stage.payloads,
                                  stage.headers, stage.times, stage.origins, stage.origin_ids, current_user);
end;
comment on function cascade.stage(uuid, integer, bigint, bigint, text[], text[], json[], json[], timestamptz[], text[], bigint[])
    is 'Hands over rows that are to be published later.';

-- Publishes the rows of the attempts that count, in the order of tasks and rows, and returns how many.  Called
-- again it returns the same: who lost the reply asks once more.
create or replace function cascade_internal.publish_staging(
    staging uuid, tasks integer[], attempts bigint[], counts bigint[], caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_staging cascade_internal.staging := cascade_internal.find_staging(publish_staging.staging, publish_staging.caller);
    v_queue   cascade_internal.queue;
    v_missing record;
begin
    perform cascade_internal.commit_durably();
    select s.* into v_staging
      from cascade_internal.staging as s where s.staging_uid = v_staging.staging_uid for update;
    if v_staging.published_at is not null then
        return v_staging.events;
    elsif v_staging.staging_uid is null then
        perform cascade_internal.find_staging(publish_staging.staging, publish_staging.caller);
    end if;
    select q.* into v_queue from cascade_internal.queue as q where q.queue_id = v_staging.queue_id;
    perform cascade_internal.check_producer(v_queue, publish_staging.caller);
    select c.task, c.count, coalesce(f.found, 0) as found into v_missing
      from unnest(publish_staging.tasks, publish_staging.attempts, publish_staging.counts) as c(task, attempt, count)
      left join (select d.task, d.attempt, count(*) as found
                   from cascade_internal.staged as d
                  where d.staging_uid = v_staging.staging_uid
                  group by d.task, d.attempt) as f
        on (f.task, f.attempt) = (c.task, c.attempt)
     where coalesce(f.found, 0) <> c.count
     limit 1;
    if found then
        raise exception 'of % rows that task % staged, % are there', v_missing.count, v_missing.task, v_missing.found
            using errcode = 'QC209', hint = 'The server has crashed meanwhile, and staged rows do not survive that: run the job again.';
    end if;
    execute format(
        'insert into queue.%I (type, key, payload, headers%s)'
        ' select d.type, d.key, d.payload, d.headers%s'
        ' from cascade_internal.staged as d'
        ' join unnest($2, $3) as c(task, attempt) on (d.task, d.attempt) = (c.task, c.attempt)'
        ' where d.staging_uid = $1 order by d.task, d.n',
        v_queue.name, case when v_staging.is_verbatim then ', "time", origin, origin_id' else '' end,
        case when v_staging.is_verbatim then ', coalesce(d."time", now()), d.origin, d.origin_id' else '' end)
      using v_staging.staging_uid, publish_staging.tasks, publish_staging.attempts;
    get diagnostics v_staging.events = row_count;
    delete from cascade_internal.staged as d where d.staging_uid = v_staging.staging_uid;
    update cascade_internal.staging as s
       set published_at = clock_timestamp(), events = v_staging.events
     where s.staging_uid = v_staging.staging_uid;
    return v_staging.events;
end
$$;
comment on function cascade_internal.publish_staging(uuid, integer[], bigint[], bigint[], name) is 'Publishes staged rows, for a caller.';

create or replace function cascade.publish_staging(staging uuid, tasks integer[], attempts bigint[], counts bigint[])
returns bigint
language sql volatile
begin atomic
    select cascade_internal.publish_staging(publish_staging.staging, publish_staging.tasks, publish_staging.attempts,
                                            publish_staging.counts, current_user);
end;
comment on function cascade.publish_staging(uuid, integer[], bigint[], bigint[]) is 'Publishes the staged rows of the attempts that count, once.';

create or replace function cascade_internal.drop_staging(staging uuid, caller name)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.staging as s
     where s.staging_uid = drop_staging.staging
       and s.published_at is null
       and (s.begun_by = drop_staging.caller or cascade_internal.is_operator(drop_staging.caller));
    if not found then
        return false;
    end if;
    delete from cascade_internal.staged as d where d.staging_uid = drop_staging.staging;
    return true;
end
$$;
comment on function cascade_internal.drop_staging(uuid, name) is 'Gives staged rows up, for a caller.';

create or replace function cascade.drop_staging(staging uuid)
returns boolean
language sql volatile
begin atomic
    select cascade_internal.drop_staging(drop_staging.staging, current_user);
end;
comment on function cascade.drop_staging(uuid) is 'Gives staged rows up; false when they are gone, or published.';
