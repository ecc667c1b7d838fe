-- cascade_internal.pick_rows(work, count, claim_id, at, in_caller) hands out up to count messages that have rows: it moves them to
-- work_active under a claim.  in_caller: they are gone for good with the caller's transaction, which may be a long one.
--
-- With a maximum of active messages they are drawn by class and organisation, in batches of half the maximum (docs/adr/0042), and stay
-- where they are until they are done.  What was drawn and not yet asked for is handed out first, so nothing drawn is ever
-- overtaken.  Only one session draws at a time, for it has to count.
create or replace function cascade_internal.pick_rows(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns setof cascade_internal.work_active
language plpgsql volatile
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_id   constant integer := (pick_rows.work).subscription_id;
    v_left integer := pick_rows.count;
begin
    perform cascade_internal.bring_due(pick_rows.work, pick_rows.at, 1000);
    if (pick_rows.work).by_key then
        perform cascade_internal.draw_keys(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
    else
        v_left := v_left - cascade_internal.take_parcels(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, pick_rows.in_caller);
        if v_left > 0 and (pick_rows.work).max_active is null then
            perform cascade_internal.draw_in_order(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at);
        elsif v_left > 0 and pick_rows.in_caller then
            perform cascade_internal.draw_fairly(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, true);
        elsif v_left > 0 and cascade_internal.may_draw(v_id, v_left = pick_rows.count) then
            -- Somebody may have drawn while this session waited for its turn.
            v_left := v_left - cascade_internal.take_parcels(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, false);
            if v_left > 0 then
                perform cascade_internal.draw_fairly(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, false);
                perform cascade_internal.take_parcels(pick_rows.work, v_left, pick_rows.claim_id, pick_rows.at, false);
            end if;
        elsif v_left = 0 and not pick_rows.in_caller and (pick_rows.work).max_active is not null
              and cascade_internal.is_nearly_drawn_out(v_id) and cascade_internal.may_draw(v_id, false) then
            -- Before the next ones find nothing, and have to wait for each other.
            perform cascade_internal.draw_fairly(pick_rows.work, pick_rows.count, null, pick_rows.at, false);
        end if;
    end if;
    return query select r.* from cascade_internal.read_parcels(pick_rows.work, pick_rows.claim_id, pick_rows.at) as r;
    if (pick_rows.work).max_active is null or pick_rows.in_caller then
        return query
            select a.*
              from cascade_internal.work_active as a
             where a.claim_id = pick_rows.claim_id
               and a.subscription_id = v_id;
    end if;
end
$$;
comment on function cascade_internal.pick_rows(cascade_internal.work_consumer, integer, bigint, timestamptz, boolean)
    is 'Hands out messages that have rows.';

-- Whether hardly anything is left of what was drawn.
create or replace function cascade_internal.is_nearly_drawn_out(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform from cascade_internal.work_parcel as p
      where p.subscription_id = is_nearly_drawn_out.subscription_id and p.claim_id is null
      order by p.no offset 3 limit 1;
    return not found;
end
$$;
comment on function cascade_internal.is_nearly_drawn_out(integer) is 'Whether hardly anything is left of what was drawn.';

-- Whether a consumer has messages with rows that may be handed out, or could be soon; cheap.  It begins with the newest: where the oldest
-- were, a vacuum may be due.
create or replace function cascade_internal.has_rows(subscription_id integer)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from cascade_internal.work_parcel as p where p.subscription_id = has_rows.subscription_id and p.claim_id is null) then
        return true;
    end if;
    perform from cascade_internal.work_waiting as w where w.subscription_id = has_rows.subscription_id order by w.id desc limit 1;
    return found
        or exists (select from cascade_internal.work_held as h where h.subscription_id = has_rows.subscription_id and h.waits = 0
                      and h.due <= clock_timestamp())
        or exists (select from cascade_internal.work_blocker as b where b.state = 'r');
end
$$;
comment on function cascade_internal.has_rows(integer) is 'Whether a consumer may have messages with rows to hand out.';

-- Messages that are due now become waiting ones, up to so many; returns how many.
create or replace function cascade_internal.bring_due(work cascade_internal.work_consumer, at timestamptz, most integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (bring_due.work).subscription_id;
    v_count bigint;
begin
    if exists (select from cascade_internal.work_blocker as b where b.state = 'r') then
        perform cascade_internal.release_followers();
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

-- Whether this session may draw: it holds the right until its transaction ends, since until then nobody else can count what it drew.  Who
-- would have nothing otherwise waits a moment for another claim to commit.
create or replace function cascade_internal.may_draw(subscription_id integer, has_nothing boolean)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    for v_look in 1 .. case when may_draw.has_nothing then 50 else 1 end loop
        if pg_try_advisory_xact_lock(1467642722, may_draw.subscription_id) then
            -- Fairness may have been switched off since the caller looked.
            return exists (select from cascade_internal.work_consumer as w
                            where w.subscription_id = may_draw.subscription_id and w.max_active is not null);
        elsif may_draw.has_nothing then
            perform pg_sleep(0.001);
        end if;
    end loop;
    return false;
end
$$;
comment on function cascade_internal.may_draw(integer, boolean) is 'Whether this session may draw messages of a consumer.';

-- Moves the oldest waiting messages of an organisation to work_active, under a claim, and returns how many.  Expired ones are removed
-- on the way, and count for nothing.
create or replace function cascade_internal.move_waiting(
    work cascade_internal.work_consumer, class smallint, org bigint, most integer, claim_id bigint, at timestamptz)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (move_waiting.work).subscription_id;
    v_count   integer;
    v_expired bigint[];
begin
    with gone as (
        delete from cascade_internal.work_waiting as w
         where w.class = move_waiting.class
           and w.ctid = any (array(
            select x.ctid
              from cascade_internal.work_waiting as x
             where x.subscription_id = v_id and x.class = move_waiting.class and x.topic = '' and x.org = move_waiting.org
               and x.id not in (select unnest(p.ids) from cascade_internal.work_parcel as p where p.subscription_id = v_id)
             order by x.id
             limit move_waiting.most
               for update skip locked))
        returning w.*),
    active as (
        insert into cascade_internal.work_active (subscription_id, id, "time", type, key, payload, headers, origin, origin_id, attempt,
                                                  class, expires_at, available_at, claim_id, org)
        select g.subscription_id, g.id, g."time", g.type, g.key, g.payload, g.headers, g.origin, g.origin_id,
               g.attempt + 1, g.class, g.expires_at, g.available_at, move_waiting.claim_id, g.org
          from gone as g
         where g.expires_at > move_waiting.at or g.expires_at is null)
    select count(*) filter (where g.expires_at > move_waiting.at or g.expires_at is null),
           coalesce(array_agg(g.id) filter (where g.expires_at <= move_waiting.at), '{}')
      into v_count, v_expired
      from gone as g;
    if v_expired <> '{}' then
        perform cascade_internal.note_expired(move_waiting.work, v_expired);
    end if;
    return v_count;
end
$$;
comment on function cascade_internal.move_waiting(cascade_internal.work_consumer, smallint, bigint, integer, bigint, timestamptz)
    is 'Moves waiting messages of an organisation to the active ones.';

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
        v_left := v_left - cascade_internal.move_waiting(draw_in_order.work, v_class::smallint, 0, v_left, draw_in_order.claim_id,
                                                         draw_in_order.at);
    end loop;
end
$$;
comment on function cascade_internal.draw_in_order(cascade_internal.work_consumer, integer, bigint, timestamptz) is 'Hands out waiting messages by class and id.';
