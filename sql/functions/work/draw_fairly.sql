-- Document 002 in words: each topic has a maximum of messages in hand; each class has its share of that, and never lends it to a
-- lower one, which throttles a flood of unimportant messages by itself.  A class draws up to half its share at a time.  Within it
-- organisations are drawn at random and its room is divided among them; what one cannot fill goes to the others.  Within an
-- organisation the oldest message goes first.
create or replace function cascade_internal.draw_fairly(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz, in_caller boolean)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id      constant integer := (draw_fairly.work).subscription_id;
    v_kind    record;
    v_rooms   integer[];
    v_active  integer[];
    v_room    integer;
    v_free    integer;
    v_class   smallint;
    v_found   bigint[];
    v_ids     bigint[] := '{}';
begin
    for v_kind in select t.topic, t.classes from cascade_internal.waiting_topics(v_id) as t loop
        v_rooms := coalesce(cascade_internal.as_integers((draw_fairly.work).topics->v_kind.topic), (draw_fairly.work).rooms);
        v_active := cascade_internal.count_active(v_id, v_kind.topic);
        v_free := coalesce(((draw_fairly.work).options->'topics'->>v_kind.topic)::numeric::integer, (draw_fairly.work).max_active)
                  - v_active[1] - v_active[2] - v_active[3] - v_active[4];
        foreach v_class in array v_kind.classes loop
            v_room := least(v_rooms[v_class] - v_active[v_class], (v_rooms[v_class] + 1) / 2, v_free);
            if draw_fairly.in_caller then
                v_room := least(v_room, draw_fairly.count - cardinality(v_ids));
            end if;
            continue when v_room <= 0;
            v_found := cascade_internal.draw_class(v_id, v_class, v_kind.topic, v_room, draw_fairly.at);
            v_free := v_free - cardinality(v_found);
            v_ids := v_ids || v_found;
            if not draw_fairly.in_caller then
                insert into cascade_internal.work_parcel (subscription_id, class, topic, ids)
                select v_id, v_class, v_kind.topic, v_found[n : n + draw_fairly.count - 1]
                  from generate_series(1, cardinality(v_found), draw_fairly.count) as n
                 order by n;
            end if;
        end loop;
        exit when cardinality(v_ids) >= draw_fairly.count;
    end loop;
    if draw_fairly.in_caller then
        -- Their rows are locked; some may have been drawn just before, as this new statement sees.
        perform cascade_internal.move_ids(
            draw_fairly.work,
            array(select unnest(v_ids) except
                  select unnest(p.ids) from cascade_internal.work_parcel as p where p.subscription_id = v_id),
            draw_fairly.claim_id);
    end if;
end
$$;
comment on function cascade_internal.draw_fairly(cascade_internal.work_consumer, integer, bigint, timestamptz, boolean)
    is 'Draws messages by class and organisation.';

-- How many messages of a topic are drawn or in hand, by class.
create or replace function cascade_internal.count_active(subscription_id integer, topic text)
returns integer[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select array[coalesce(sum(x.messages) filter (where x.class = 1), 0), coalesce(sum(x.messages) filter (where x.class = 2), 0),
                         coalesce(sum(x.messages) filter (where x.class = 3), 0), coalesce(sum(x.messages) filter (where x.class = 4), 0)]::integer[]
              from (select p.class, cardinality(p.ids) as messages
                      from cascade_internal.work_parcel as p
                     where p.subscription_id = count_active.subscription_id and p.topic = count_active.topic
                    union all
                    select a.class, 1
                      from cascade_internal.work_active as a
                     where a.subscription_id = count_active.subscription_id and coalesce(a.type, '') = count_active.topic) as x);
end
$$;
comment on function cascade_internal.count_active(integer, text) is 'How many messages of a topic are drawn or in hand, by class.';

create or replace function cascade_internal.as_integers(value jsonb)
returns integer[]
language sql immutable
begin atomic
    select array_agg(x.number::integer order by x.n) from jsonb_array_elements_text(as_integers.value) with ordinality as x(number, n);
end;
comment on function cascade_internal.as_integers(jsonb) is 'A list of numbers.';

-- Draws up to room messages of one class and topic that are not drawn yet.  Their rows are locked, so that nobody takes them away
-- until the caller's transaction has said that they are drawn.
create or replace function cascade_internal.draw_class(
    subscription_id integer, class smallint, topic text, room integer, at timestamptz)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_drawn bigint[] := array(
        select unnest(p.ids) from cascade_internal.work_parcel as p
         where p.subscription_id = draw_class.subscription_id and p.class = draw_class.class and p.topic = draw_class.topic);
    v_most  constant integer := cardinality(v_drawn) + draw_class.room;
    v_orgs  bigint[] := cascade_internal.draw_orgs(draw_class.subscription_id, draw_class.class, draw_class.topic, v_most);
    v_ids   bigint[] := '{}';
    v_each  integer;
    v_found bigint[];
    v_given bigint[];
begin
    -- Each round divides what is left among those who had as much as they were asked for.
    while v_orgs <> '{}' and cardinality(v_ids) < draw_class.room loop
        v_each := ceil((draw_class.room - cardinality(v_ids))::numeric / cardinality(v_orgs));
        select coalesce(array_agg(f.id order by f.n, f.id), '{}'), array_agg(f.org) into v_found, v_given
          from (select x.id, o.org, o.n
                  from unnest(v_orgs) with ordinality as o(org, n)
                 cross join lateral (
                    select w.id
                      from cascade_internal.work_waiting as w
                     where w.subscription_id = draw_class.subscription_id and w.class = draw_class.class and w.topic = draw_class.topic
                       and w.org = o.org
                       and w.id not in (select unnest(v_drawn))
                       and (w.expires_at > draw_class.at or w.expires_at is null)
                     order by w.id
                     limit v_each
                       for update skip locked) as x
                 limit draw_class.room - cardinality(v_ids)) as f;
        exit when v_found = '{}';
        v_ids := v_ids || v_found;
        v_drawn := v_drawn || v_found;
        v_orgs := array(select g from unnest(v_given) as g group by g having count(*) >= v_each);
    end loop;
    return v_ids;
end
$$;
comment on function cascade_internal.draw_class(integer, smallint, text, integer, timestamptz) is 'Draws messages of one class and topic.';

-- The topics of which messages wait, and in which classes, in a random order.  Each costs an index probe per class, however many
-- messages it has.
create or replace function cascade_internal.waiting_topics(subscription_id integer)
returns table (topic text, classes smallint[])
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with recursive step(class, topic) as (
            select c.class, (select w.topic from cascade_internal.work_waiting as w
                              where w.subscription_id = waiting_topics.subscription_id and w.class = c.class
                              order by w.topic limit 1)
              from (values (1::smallint), (2::smallint), (3::smallint), (4::smallint)) as c(class)
            union all
            select s.class, (select w.topic from cascade_internal.work_waiting as w
                              where w.subscription_id = waiting_topics.subscription_id and w.class = s.class and w.topic > s.topic
                              order by w.topic limit 1)
              from step as s
             where s.topic is not null)
        select s.topic, array_agg(s.class order by s.class)
          from step as s
         where s.topic is not null
         group by s.topic
         order by random();
end
$$;
comment on function cascade_internal.waiting_topics(integer) is 'The topics of which messages wait.';

-- Organisations of which messages of a class and topic wait, up to so many, beginning at a random place of the circle on which their hashes
-- lie.  Each costs one index probe.
create or replace function cascade_internal.draw_orgs(subscription_id integer, class smallint, topic text, most integer)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_start constant bigint := hashtextextended(random()::text, 0);
    v_low   constant bigint := -9223372036854775808;
    v_orgs  bigint[] := cascade_internal.next_orgs(draw_orgs.subscription_id, draw_orgs.class, draw_orgs.topic, v_start, 9223372036854775807, draw_orgs.most);
begin
    if cardinality(v_orgs) < draw_orgs.most then
        v_orgs := v_orgs || cascade_internal.next_orgs(draw_orgs.subscription_id, draw_orgs.class, draw_orgs.topic, v_low, v_start - 1,
                                                       draw_orgs.most - cardinality(v_orgs));
    end if;
    return v_orgs;
end
$$;
comment on function cascade_internal.draw_orgs(integer, smallint, text, integer) is 'Some organisations of which messages wait.';

create or replace function cascade_internal.next_orgs(
    subscription_id integer, class smallint, topic text, first bigint, last bigint, most integer)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        with recursive step(org) as (
            (select w.org
               from cascade_internal.work_waiting as w
              where w.subscription_id = next_orgs.subscription_id and w.class = next_orgs.class and w.topic = next_orgs.topic
                and w.org between next_orgs.first and next_orgs.last
              order by w.org limit 1)
            union all
            select (select w.org
                      from cascade_internal.work_waiting as w
                     where w.subscription_id = next_orgs.subscription_id and w.class = next_orgs.class and w.topic = next_orgs.topic
                       and w.org > s.org and w.org <= next_orgs.last
                     order by w.org limit 1)
              from step as s
             where s.org is not null)
        select s.org from step as s where s.org is not null limit next_orgs.most);
end
$$;
comment on function cascade_internal.next_orgs(integer, smallint, text, bigint, bigint, integer) is 'Organisations of which messages wait, along the circle.';

-- One message at a time per key, the oldest first.  Who takes a key's message holds the key until his transaction ends, and looks at
-- it only then, with a new snapshot: so no two ever have one key at once.  A key is busy while a message of it is in hand, and
-- while one that failed waits for its next attempt.
create or replace function cascade_internal.draw_keys(
    work cascade_internal.work_consumer, count integer, claim_id bigint, at timestamptz)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id   constant integer := (draw_keys.work).subscription_id;
    v_left integer := draw_keys.count;
    v_busy constant bigint[] := cascade_internal.busy_keys(v_id);
    v_org  bigint;
begin
    foreach v_org in array cascade_internal.draw_orgs(v_id, 3::smallint, '', v_left + cardinality(v_busy) + 20) loop
        continue when v_org = any (v_busy) or not pg_try_advisory_xact_lock(hashint8extended(v_org, v_id));
        v_left := v_left - cascade_internal.draw_key(draw_keys.work, v_org, draw_keys.claim_id, draw_keys.at);
        exit when v_left <= 0;
    end loop;
end
$$;
comment on function cascade_internal.draw_keys(cascade_internal.work_consumer, integer, bigint, timestamptz) is 'Hands out one message each of keys that are free.';

create or replace function cascade_internal.busy_keys(subscription_id integer)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select a.org from cascade_internal.work_active as a where a.subscription_id = busy_keys.subscription_id and a.org is not null
                 union
                 select h.org from cascade_internal.work_held as h where h.subscription_id = busy_keys.subscription_id and h.attempt > 0);
end
$$;
comment on function cascade_internal.busy_keys(integer) is 'Keys of which a message is in hand, or waits for its next attempt.';

-- The oldest message of a key that the caller holds: 1 if it was handed out.  One that somebody is removing keeps the key waiting.
create or replace function cascade_internal.draw_key(
    work cascade_internal.work_consumer, org bigint, claim_id bigint, at timestamptz)
returns integer
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id constant integer := (draw_key.work).subscription_id;
begin
    if exists (select from cascade_internal.work_active as a where a.subscription_id = v_id and a.org = draw_key.org)
       or exists (select from cascade_internal.work_held as h where h.subscription_id = v_id and h.org = draw_key.org and h.attempt > 0) then
        return 0;
    end if;
    loop
        perform from cascade_internal.work_waiting as w
          where w.subscription_id = v_id and w.class = 3
            and w.id = (select o.id from cascade_internal.work_waiting as o
                         where o.subscription_id = v_id and o.class = 3 and o.topic = '' and o.org = draw_key.org
                         order by o.id limit 1)
            for update skip locked;
        if not found then
            return 0;
        elsif cascade_internal.move_waiting(draw_key.work, 3::smallint, draw_key.org, 1, draw_key.claim_id, draw_key.at) = 1 then
            return 1;
        end if;
        -- That one had expired, and is gone: the next.
    end loop;
end
$$;
comment on function cascade_internal.draw_key(cascade_internal.work_consumer, bigint, bigint, timestamptz) is 'Hands out the oldest message of a key, if it is free.';
