-- cascade_internal.pick_rows(work, count, claim_id, at, in_caller) hands out up to count messages that have rows: it moves them to
-- work_active under a claim.  in_caller: they are gone for good with the caller's transaction, which may be a long one.
--
-- With a maximum of active messages they are drawn by class and organisation, in batches of half the maximum (docs/adr/0042); what
-- was drawn and not yet asked for is handed out first, so nothing in hand is ever overtaken.  Only one session draws at a
-- time, for it has to count.
create or replace function cascade_internal.pick_rows(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns setof cascade_internal.work_active
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_left integer := pick_rows.count;
begin
    perform cascade_internal.bring_due(pick_rows.work, pick_rows.at, 1000);
    if (pick_rows.work).by_key then
        perform cascade_internal.draw_keys(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
    elsif (pick_rows.work).max_active is null then
        perform cascade_internal.draw_in_order(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
    else
        v_left := v_left - cascade_internal.take_drawn(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
        if v_left > 0 and cascade_internal.may_draw((pick_rows.work).subscription_id, v_left = pick_rows.count, pick_rows.in_caller) then
            v_left := v_left - cascade_internal.take_drawn(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
            perform cascade_internal.draw_fairly(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, pick_rows.in_caller);
        end if;
    end if;
    return query
        select a.*
          from cascade_internal.work_active as a
         where a.claim_id = pick_rows.claim_id
           and a.subscription_id = (pick_rows.work).subscription_id;
end
$$;
comment on function cascade_internal.pick_rows(cascade_internal.work_consumer, integer, bigint, timestamptz, boolean)
    is 'Hands out messages that have rows.';

-- Whether a consumer has messages with rows that may be handed out, or could be soon; cheap.
create or replace function cascade_internal.has_rows(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from cascade_internal.work_waiting as w where w.subscription_id = has_rows.subscription_id)
        or exists (select from cascade_internal.work_active as a where a.subscription_id = has_rows.subscription_id and a.claim_id is null)
        or exists (select from cascade_internal.work_held as h where h.subscription_id = has_rows.subscription_id and h.waits = 0
                      and h.due <= clock_timestamp())
        or exists (select from cascade_internal.work_blocker as b where b.state = 'r');
end
$$;
comment on function cascade_internal.has_rows(integer) is 'Whether a consumer may have messages with rows to hand out.';

-- Messages that are due now become waiting ones, up to so many; returns how many.
create or replace function cascade_internal.bring_due(work cascade_internal.work_consumer, at timestamptz, most integer)
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_id    constant integer := (bring_due.work).subscription_id;
    v_count bigint;
begin
    if exists (select from cascade_internal.work_blocker as b where b.state = 'r') then
        perform cascade_internal.let_go();
    end if;
    if not exists (select from cascade_internal.work_held as h
                    where h.subscription_id = v_id and h.waits = 0 and h.due <= bring_due.at) then
        return 0;
    end if;
    with gone as (
        delete from cascade_internal.work_held as h
         where h.ctid = any (array(
            select x.ctid from cascade_internal.work_held as x
             where x.subscription_id = v_id and x.waits = 0 and x.due <= bring_due.at
             order by x.due
             limit bring_due.most
               for update skip locked))
        returning h.*)
    insert into cascade_internal.work_waiting (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt, class,
                                               expires_at, available_at, topic, org)
    select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id, g.attempt, g.class,
           g.expires_at, g.due, g.topic, g.org
      from gone as g;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function cascade_internal.bring_due(cascade_internal.work_consumer, timestamptz, integer) is 'Lets messages that are due be handed out.';

-- Whether this session may draw.  A claim holds the right until its transaction ends, since until then nobody else can
-- count what it drew; a transaction of the caller's, which may be long, draws only for itself and leaves others to it.  Who would
-- have nothing otherwise waits a moment for another claim to commit.
create or replace function cascade_internal.may_draw(subscription_id integer, has_nothing boolean, in_caller boolean)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    for v_look in 1 .. case when may_draw.in_caller then 0 when may_draw.has_nothing then 20 else 1 end loop
        if pg_try_advisory_xact_lock(1467642722, may_draw.subscription_id) then
            return true;
        elsif may_draw.has_nothing then
            perform pg_sleep(0.002);
        end if;
    end loop;
    return may_draw.in_caller;
end
$$;
comment on function cascade_internal.may_draw(integer, boolean, boolean) is 'Whether this session may draw messages of a consumer.';

-- Hands out what was drawn before.
create or replace function cascade_internal.take_drawn(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz)
returns integer
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_count integer;
begin
    update cascade_internal.work_active as a
       set claim_id = take_drawn.claim_id, attempt = a.attempt + 1
     where a.ctid = any (array(
        select x.ctid from cascade_internal.work_active as x
         where x.subscription_id = (take_drawn.work).subscription_id
           and x.claim_id is null
           and (x.expires_at > take_drawn.at or x.expires_at is null)
         limit take_drawn.count
           for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
comment on function cascade_internal.take_drawn(cascade_internal.work_consumer, integer, bigint, timestamptz) is 'Hands out what was drawn before.';

-- Moves waiting messages of some organisations to work_active, up to each of them each and most in all; the first `claimed` of them are under
-- the claim.  Returns how many each organisation gave.  Expired ones are removed on the way, and count for nothing.
create or replace function cascade_internal.move_waiting(
    work cascade_internal.work_consumer, class smallint, topic text, orgs bigint[], each integer, most integer, claimed integer,
    claim_id bigint, at timestamptz)
returns integer[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id      constant integer := (move_waiting.work).subscription_id;
    v_counts  integer[];
    v_expired bigint[];
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         where w.class = move_waiting.class
           and w.ctid = any (array(
            select x.ctid
              from unnest(move_waiting.orgs) with ordinality as o(org, n)
             cross join lateral (
                select y.ctid, y.id
                  from cascade_internal.work_waiting as y
                 where y.subscription_id = v_id and y.class = move_waiting.class and y.topic = move_waiting.topic and y.org = o.org
                 order by y.id
                 limit move_waiting.each
                   for update skip locked) as x
             limit move_waiting.most))
        returning w.*),
    good as (
        select g.*, row_number() over () <= move_waiting.claimed as is_claimed
          from gone as g
         where g.expires_at > move_waiting.at or g.expires_at is null),
    active as (
        insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                                  class, expires_at, available_at, claim_id, org)
        select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id,
               g.attempt + g.is_claimed::integer, g.class, g.expires_at, g.available_at,
               case when g.is_claimed then move_waiting.claim_id end, g.org
          from good as g)
    select array(select count(g.id)::integer
                   from unnest(move_waiting.orgs) with ordinality as o(org, n)
                   left join good as g on g.org = o.org
                  group by o.n order by o.n),
           array(select g.id from gone as g where g.expires_at <= move_waiting.at)
      into v_counts, v_expired;
    if v_expired <> '{}' then
        perform cascade_internal.note_expired(move_waiting.work, v_expired);
    end if;
    return v_counts;
end
$$;
comment on function cascade_internal.move_waiting(cascade_internal.work_consumer, smallint, text, bigint[], integer, integer, integer, bigint, timestamptz)
    is 'Moves waiting messages of some organisations to the active ones.';

-- Without fairness: by class, then as they were published.  Those of the lowest class come after the plain ones, which are no rows.
create or replace function cascade_internal.draw_in_order(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_left integer := draw_in_order.count;
begin
    for v_class in 1 .. 4 loop
        exit when v_left <= 0
               or v_class = 4 and exists (
                   select from cascade_internal.work_chunk as c
                    where c.subscription_id = (draw_in_order.work).subscription_id and c.state = 'f'
                      and c.no >= cascade_internal.work_register('low', (draw_in_order.work).subscription_id));
        v_left := v_left - (cascade_internal.move_waiting(draw_in_order.work, v_class::smallint, '', '{0}', v_left, v_left, v_left,
                                                          draw_in_order.claim_id, draw_in_order.at))[1];
    end loop;
end
$$;
comment on function cascade_internal.draw_in_order(cascade_internal.work_consumer, integer, bigint, timestamptz) is 'Hands out waiting messages by class and id.';
