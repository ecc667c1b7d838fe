-- cascade.complete(claim_id, ids, results) ends messages of a claim, all that is left of it without ids, and returns how many.
-- results, if given, stand beside ids and are kept for keep_done.  All or nothing: an id that the claim does not
-- hold (any more) raises QC217, as does a claim that is over, and then nothing was completed.
create or replace function cascade_internal.complete(claim_id bigint, ids bigint[], results json[], caller name)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_found record;
begin
    perform cascade_internal.check_read_committed('work mode');
    v_found := cascade_internal.find_claim(complete.claim_id, complete.caller);
    return cascade_internal.finish_messages(v_found.work, v_found.claim, complete.ids, complete.results);
end
$$;
comment on function cascade_internal.complete(bigint, bigint[], json[], name) is 'Ends messages of a claim, for a caller.';

create or replace function cascade.complete(claim_id bigint, ids bigint[] default null, results json[] default null)
returns integer
language sql volatile
begin atomic
    select cascade_internal.complete(complete.claim_id, complete.ids, complete.results, current_user);
end;
comment on function cascade.complete(bigint, bigint[], json[]) is 'Ends messages of a claim; all that is left of it without ids.';

create or replace function cascade_internal.finish_messages(
    work cascade_internal.work_consumer, claim cascade_internal.work_claim, ids bigint[], results json[])
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_done   bigint[];
    v_no     bigint;
    v_events integer;
    v_count  integer := 0;
begin
    -- Almost always it is all of a claim that holds plain messages only.
    if finish_messages.ids is null and finish_messages.results is null and not (finish_messages.claim).has_rows
       and not cascade_internal.has_blockers((finish_messages.claim).subscription_id) then
        -- One by one: for "= any" the planner, without statistics, may read all chunks of the consumer.
        foreach v_no in array (finish_messages.claim).chunks loop
            update cascade_internal.work_chunk as c
               set state = 'd', done_at = clock_timestamp()
             where c.subscription_id = (finish_messages.claim).subscription_id
               and c.no = v_no
               and c.state = 'h'
            returning coalesce(cardinality(c."open"), c.events) into v_events;
            v_count := v_count + coalesce(v_events, 0);
        end loop;
        if v_count = 0 then
            perform cascade_internal.raise_claim_lost((finish_messages.claim).claim_id); -- A seek overtook it.
        end if;
        delete from cascade_internal.work_claim as c where c.claim_id = (finish_messages.claim).claim_id;
        return v_count;
    end if;
    if finish_messages.results is not null and coalesce(cardinality(finish_messages.ids), -1) <> cardinality(finish_messages.results) then
        raise exception '% results for % ids', cardinality(finish_messages.results), coalesce(cardinality(finish_messages.ids), 0)
            using errcode = 'QC003', hint = 'Give one result for each id; null is none.';
    end if;
    v_done := cascade_internal.remove_from_claim(finish_messages.work, finish_messages.claim, finish_messages.ids, finish_messages.results);
    return cardinality(v_done);
end
$$;
comment on function cascade_internal.finish_messages(cascade_internal.work_consumer, cascade_internal.work_claim, bigint[], json[])
    is 'Ends messages of a locked claim.';

-- Takes finished messages out of a locked claim; the claim goes with its last one.
create or replace function cascade_internal.remove_from_claim(
    work cascade_internal.work_consumer, claim cascade_internal.work_claim, ids bigint[], results json[])
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (remove_from_claim.work).subscription_id;
    v_now   constant timestamptz := clock_timestamp();
    v_plain bigint[];
    v_rows  bigint[] := '{}';
    v_all   bigint[];
begin
    v_plain := cascade_internal.finish_chunks(remove_from_claim.claim, remove_from_claim.ids, v_now);
    if (remove_from_claim.claim).has_rows then
        with gone as (
            delete from cascade_internal.work_active as a
             where a.claim_id = (remove_from_claim.claim).claim_id
               and (remove_from_claim.ids is null or a.id = any (remove_from_claim.ids))
            returning a.id, a.attempt),
        noted as (
            insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, claimed_at, ended_at, result)
            select v_id, g.id, g.attempt, 'done', (remove_from_claim.claim).worker, (remove_from_claim.claim).claimed_at, v_now, r.result
              from gone as g
              left join unnest(remove_from_claim.ids, remove_from_claim.results) as r(id, result) on r.id = g.id)
        select array_agg(g.id) into v_rows from gone as g;
        v_rows := coalesce(v_rows, '{}')
                  || cascade_internal.finish_parcels(remove_from_claim.work, remove_from_claim.claim, remove_from_claim.ids,
                                                     remove_from_claim.results, v_now);
    end if;
    if cardinality(v_plain) + cardinality(v_rows) <> cardinality(remove_from_claim.ids) then
        v_all := v_plain || v_rows;
        perform cascade_internal.raise_claim_lost((remove_from_claim.claim).claim_id, coalesce(i, 0))
           from unnest(remove_from_claim.ids) with ordinality as u(i, n)
          where i <> all (v_all) or i is null or exists (select from unnest(remove_from_claim.ids) with ordinality as o(i, n) where o.i = u.i and o.n < u.n)
          limit 1;
    end if;
    if remove_from_claim.results is not null and v_plain <> '{}' then
        insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, claimed_at, ended_at, result)
        select v_id, r.id, 1, 'done', (remove_from_claim.claim).worker, (remove_from_claim.claim).claimed_at, v_now, r.result
          from unnest(remove_from_claim.ids, remove_from_claim.results) as r(id, result)
         where r.result is not null and r.id = any (v_plain);
    end if;
    if v_rows <> '{}' or v_plain <> '{}' and cascade_internal.has_blockers(v_id) then
        perform cascade_internal.settle(remove_from_claim.work, v_plain || v_rows, 'done');
    end if;
    perform cascade_internal.end_claim(remove_from_claim.claim, remove_from_claim.ids is null);
    return v_plain || v_rows;
end
$$;
comment on function cascade_internal.remove_from_claim(cascade_internal.work_consumer, cascade_internal.work_claim, bigint[], json[])
    is 'Takes finished messages out of a claim.';

-- Marks plain messages of a claim as done, all that are left of it without ids, and returns them.
create or replace function cascade_internal.finish_chunks(claim cascade_internal.work_claim, ids bigint[], at timestamptz)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_chunk cascade_internal.work_chunk;
    v_done  bigint[];
    v_left  bigint[];
    v_all   bigint[] := '{}';
    v_no    bigint;
begin
    foreach v_no in array (finish_chunks.claim).chunks loop
        select c.* into v_chunk
          from cascade_internal.work_chunk as c
         where c.subscription_id = (finish_chunks.claim).subscription_id and c.no = v_no
           for no key update;
        continue when not found; -- All of it was done long ago, or the consumer was put elsewhere.
        v_done := cascade_internal.open_ids(v_chunk);
        v_left := '{}';
        if finish_chunks.ids <> v_done then
            v_left := array(select i from unnest(v_done) as i where i <> all (finish_chunks.ids) order by i);
            v_done := array(select i from unnest(v_done) as i where i = any (finish_chunks.ids));
        end if;
        continue when v_done = '{}';
        v_all := v_all || v_done;
        if v_left = '{}' then
            update cascade_internal.work_chunk as c
               set state = 'd', "open" = '{}', done_at = finish_chunks.at
             where c.subscription_id = v_chunk.subscription_id and c.no = v_no;
        else
            update cascade_internal.work_chunk as c set "open" = v_left
             where c.subscription_id = v_chunk.subscription_id and c.no = v_no;
        end if;
    end loop;
    return v_all;
end
$$;
comment on function cascade_internal.finish_chunks(cascade_internal.work_claim, bigint[], timestamptz) is 'Marks plain messages of a claim as done.';

-- A claim is over when nothing of it is left.
create or replace function cascade_internal.end_claim(claim cascade_internal.work_claim, surely boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if end_claim.surely
       or not exists (select from cascade_internal.work_chunk as c
                       where c.subscription_id = (end_claim.claim).subscription_id
                         and c.no = any ((end_claim.claim).chunks) and c.state = 'h')
          and not ((end_claim.claim).has_rows
                   and (exists (select from cascade_internal.work_active as a where a.claim_id = (end_claim.claim).claim_id)
                        or exists (select from cascade_internal.work_parcel as p where p.claim_id = (end_claim.claim).claim_id))) then
        delete from cascade_internal.work_claim as c where c.claim_id = (end_claim.claim).claim_id;
    end if;
end
$$;
comment on function cascade_internal.end_claim(cascade_internal.work_claim, boolean) is 'Forgets a claim of which nothing is left.';
