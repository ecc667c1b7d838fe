-- cascade_internal.seize(log, work, ids, which) takes messages out of wherever they are, into work_active, where the caller finds them
-- under claim -1 and says what becomes of them; returns which it got.  which: waiting, those that nobody has; claimed, those
-- that somebody has, whose claims hold them no more; any.  A message that another transaction changes right now is waited for.
create or replace function cascade_internal.seize(
    log cascade_internal.queue, work cascade_internal.work_consumer, ids bigint[], which text)
returns bigint[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_id    constant integer := (seize.work).subscription_id;
    v_claim cascade_internal.work_claim;
begin
    if seize.which in ('claimed', 'any') then
        -- Claims first: whoever completes locks them before anything else.
        for v_claim in
            select c.* from cascade_internal.work_claim as c
             where c.subscription_id = v_id
               and cascade_internal.claim_holds(c, seize.ids)
             order by c.claim_id
               for update
        loop
            perform cascade_internal.make_rows(seize.log, seize.work, v_claim, array(
                select i from unnest(seize.ids) as i where cascade_internal.claim_holds(v_claim, array[i])));
            update cascade_internal.work_active as a set claim_id = -1
             where a.claim_id = v_claim.claim_id and a.id = any (seize.ids);
            perform cascade_internal.end_claim(v_claim, false);
        end loop;
    end if;
    if seize.which in ('waiting', 'any') then
        perform cascade_internal.seize_waiting(seize.log, seize.work, seize.ids);
    end if;
    return array(select a.id from cascade_internal.work_active as a
                  where a.subscription_id = v_id and a.claim_id = -1 and a.id = any (seize.ids));
end
$$;
comment on function cascade_internal.seize(cascade_internal.queue, cascade_internal.work_consumer, bigint[], text) is 'Takes messages out of wherever they are.';

-- Whether a claim holds any of some messages, as far as this snapshot sees.
create or replace function cascade_internal.claim_holds(claim cascade_internal.work_claim, ids bigint[])
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (claim_holds.claim).has_rows
           and (exists (select from cascade_internal.work_active as a
                         where a.claim_id = (claim_holds.claim).claim_id and a.id = any (claim_holds.ids))
                or exists (select from cascade_internal.work_parcel as p
                            where p.claim_id = (claim_holds.claim).claim_id and p.ids && claim_holds.ids))
        or exists (select from cascade_internal.work_chunk as c
                    where c.subscription_id = (claim_holds.claim).subscription_id
                      and c.no = any ((claim_holds.claim).chunks)
                      and c.state = 'h'
                      and cascade_internal.open_ids(c) && claim_holds.ids);
end
$$;
comment on function cascade_internal.claim_holds(cascade_internal.work_claim, bigint[]) is 'Whether a claim holds any of some messages.';

create or replace function cascade_internal.seize_waiting(
    log cascade_internal.queue, work cascade_internal.work_consumer, ids bigint[])
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (seize_waiting.work).subscription_id;
    v_no    bigint;
    v_chunk cascade_internal.work_chunk;
    v_open  bigint[];
    v_ids   bigint[];
begin
    update cascade_internal.work_active as a set claim_id = -1
     where a.subscription_id = v_id and a.id = any (seize_waiting.ids) and a.claim_id is null;
    -- Those that are drawn are drawn back; in a new statement it is certain which ones somebody has.
    perform from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.id = any (seize_waiting.ids) order by w.id for update;
    perform cascade_internal.draw_back(v_id, seize_waiting.ids, true);
    with gone as (
        delete from cascade_internal.work_waiting as w
         where w.subscription_id = v_id and w.id = any (seize_waiting.ids)
           and w.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p where p.subscription_id = v_id)
        returning w.*)
    insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt, class,
                                              expires_at, available_at, claim_id)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt, g.class,
           g.expires_at, g.available_at, -1
      from gone as g;
    with gone as (
        delete from cascade_internal.work_held as h where h.subscription_id = v_id and h.id = any (seize_waiting.ids) returning h.*),
    alone as (
        delete from cascade_internal.work_after as f where f.subscription_id = v_id and f.id = any (seize_waiting.ids))
    insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt, class,
                                              expires_at, available_at, claim_id)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt, g.class,
           g.expires_at, g.due, -1
      from gone as g;
    for v_no in
        select c.no from cascade_internal.work_chunk as c
         where c.subscription_id = v_id
           and c.no >= cascade_internal.work_register('low', v_id)
           and c.state = 'f'
           and exists (select from unnest(seize_waiting.ids) as i where i between c.first_id and c.last_id)
         order by c.no
    loop
        select c.* into v_chunk
          from cascade_internal.work_chunk as c
         where c.subscription_id = v_id and c.no = v_no and c.state = 'f'
           for update;
        continue when not found;
        v_open := cascade_internal.open_ids(v_chunk);
        v_ids := array(select i from unnest(v_open) as i where i = any (seize_waiting.ids));
        continue when v_ids = '{}';
        v_chunk."open" := v_ids;
        insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, attempt, class, available_at, claim_id)
        select v_id, m.id, m.posted_at, m.type, m.key, m.payload, m.headers, 0, 3, m.available_at, -1
          from cascade_internal.read_chunk(seize_waiting.log, v_chunk, -1) as m;
        v_open := array(select i from unnest(v_open) as i where i <> all (v_ids) order by i);
        update cascade_internal.work_chunk as c
           set "open" = v_open,
               state = case when v_open = '{}' then 'd' else 'f' end,
               done_at = case when v_open = '{}' then clock_timestamp() end
         where c.subscription_id = v_id and c.no = v_no;
    end loop;
end
$$;
comment on function cascade_internal.seize_waiting(cascade_internal.queue, cascade_internal.work_consumer, bigint[]) is 'Takes messages that nobody has.';

-- Ends messages that were seized: they are gone for their consumer, and nobody waits for them any longer.
create or replace function cascade_internal.end_seized(work cascade_internal.work_consumer, outcome text)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_ids bigint[];
begin
    with gone as (
        delete from cascade_internal.work_active as a
         where a.subscription_id = (end_seized.work).subscription_id and a.claim_id = -1
        returning a.id, a.attempt),
    noted as (
        insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, ended_at)
        select (end_seized.work).subscription_id, g.id, g.attempt, end_seized.outcome, clock_timestamp() from gone as g)
    select array_agg(g.id) into v_ids from gone as g;
    if v_ids is not null then
        perform cascade_internal.settle(end_seized.work, v_ids, end_seized.outcome);
    end if;
end
$$;
comment on function cascade_internal.end_seized(cascade_internal.work_consumer, text) is 'Ends messages that were seized.';
