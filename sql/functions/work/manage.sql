-- What operators do with messages by id, and with dead ones.

-- cascade.retry_message(queue, consumer, ids) makes messages ready now that wait for their next attempt or were delayed; returns how many.
create or replace function cascade_internal.retry_message(queue text, consumer text, ids bigint[], caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(retry_message.queue, retry_message.consumer, retry_message.caller);
    v_count bigint;
begin
    update cascade_internal.work_held as h
       set due = clock_timestamp()
     where h.subscription_id = (v_found.work).subscription_id
       and h.id = any (retry_message.ids)
       and h.due > clock_timestamp();
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform cascade_internal.tend_rows(v_found.work, clock_timestamp());
    end if;
    return v_count;
end
$$;
comment on function cascade_internal.retry_message(text, text, bigint[], name) is 'Makes messages ready now, for a caller.';

create or replace function cascade.retry_message(queue text, consumer text, ids bigint[])
returns bigint
language sql volatile
begin atomic
    select cascade_internal.retry_message(retry_message.queue, retry_message.consumer, retry_message.ids, current_user);
end;
comment on function cascade.retry_message(text, text, bigint[]) is 'Makes messages ready now that were to wait.';

-- cascade.bury_message(queue, consumer, ids) declares messages dead that nobody has in hand; returns how many.
create or replace function cascade_internal.bury_message(queue text, consumer text, ids bigint[], caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(bury_message.queue, bury_message.consumer, bury_message.caller);
    v_ids   bigint[];
    v_claim cascade_internal.work_claim;
begin
    perform cascade_internal.check_read_committed('work mode');
    v_ids := cascade_internal.seize(v_found.log, v_found.work, bury_message.ids, 'waiting');
    v_claim.subscription_id := (v_found.work).subscription_id;
    perform cascade_internal.note_ends(v_claim, v_ids, 'buried', format('buried by role %s', quote_ident(bury_message.caller)));
    perform cascade_internal.give_back(v_found.work, v_ids, null, 0, format('buried by role %s', quote_ident(bury_message.caller)));
    return cardinality(v_ids);
end
$$;
comment on function cascade_internal.bury_message(text, text, bigint[], name) is 'Declares messages dead, for a caller.';

create or replace function cascade.bury_message(queue text, consumer text, ids bigint[])
returns bigint
language sql volatile
begin atomic
    select cascade_internal.bury_message(bury_message.queue, bury_message.consumer, bury_message.ids, current_user);
end;
comment on function cascade.bury_message(text, text, bigint[]) is 'Declares messages dead that nobody has in hand.';

-- cascade.release_message(queue, consumer, ids) takes messages from whoever has them in hand, and gives them back at once; returns how
-- many.  Their holder can no longer complete them.
create or replace function cascade_internal.release_message(queue text, consumer text, ids bigint[], caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(release_message.queue, release_message.consumer, release_message.caller);
    v_ids   bigint[];
begin
    perform cascade_internal.check_read_committed('work mode');
    v_ids := cascade_internal.seize(v_found.log, v_found.work, release_message.ids, 'claimed');
    perform cascade_internal.give_back(v_found.work, v_ids, clock_timestamp(), -1, null);
    return cardinality(v_ids);
end
$$;
comment on function cascade_internal.release_message(text, text, bigint[], name) is 'Takes messages from whoever has them, for a caller.';

create or replace function cascade.release_message(queue text, consumer text, ids bigint[])
returns bigint
language sql volatile
begin atomic
    select cascade_internal.release_message(release_message.queue, release_message.consumer, release_message.ids, current_user);
end;
comment on function cascade.release_message(text, text, bigint[]) is 'Takes messages from whoever has them in hand.';

-- cascade.purge_work(queue, consumer, ids, state) removes messages that nobody has in hand, all of them without ids; state is waiting for
-- those that could be claimed, delayed for those that could not yet, and null for both.  Returns how many.
create or replace function cascade_internal.purge_work(queue text, consumer text, ids bigint[], state text, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(purge_work.queue, purge_work.consumer, purge_work.caller);
    v_id    constant integer := (v_found.work).subscription_id;
    v_ids   bigint[] := purge_work.ids;
    v_count bigint := 0;
begin
    perform cascade_internal.check_read_committed('work mode');
    if purge_work.state not in ('waiting', 'delayed') then
        raise exception 'messages in state % are not purged', quote_literal(left(purge_work.state, 40))
            using errcode = 'QC003', hint = 'waiting or delayed; cascade.purge_dead() removes dead ones.';
    end if;
    if v_ids is null and coalesce(purge_work.state, 'waiting') = 'waiting' then
        -- Chunks are many: none is read.
        with gone as (
            update cascade_internal.work_chunk as c
               set state = 'd', done_at = clock_timestamp()
             where c.subscription_id = v_id and c.state = 'f'
            returning coalesce(cardinality(c."open"), c.events) as events)
        select coalesce(sum(g.events), 0) into v_count from gone as g;
        -- Whoever waits for one of them is to look again.
        update cascade_internal.work_blocker as b
           set is_certain = false, look_at = '-infinity'
         where b.by_subscription = v_id and b.state = 'w' and v_count > 0;
    end if;
    v_ids := array(
        select x.id from (
            select w.id, 'waiting' as state from cascade_internal.work_waiting as w
             where w.subscription_id = v_id and not cascade_internal.is_in_parcel(v_id, w.id, true)
            union all select a.id, 'waiting' from cascade_internal.work_active as a where a.subscription_id = v_id and a.claim_id is null
            union all select h.id, 'delayed' from cascade_internal.work_held as h where h.subscription_id = v_id) as x
         where (v_ids is null or x.id = any (v_ids)) and x.state = coalesce(purge_work.state, x.state))
        || case when coalesce(purge_work.state, 'waiting') = 'waiting' then v_ids end;
    v_count := v_count + cardinality(cascade_internal.seize(v_found.log, v_found.work, v_ids, 'waiting'));
    perform cascade_internal.end_seized(v_found.work, 'cancelled');
    return v_count;
end
$$;
comment on function cascade_internal.purge_work(text, text, bigint[], text, name) is 'Removes messages that nobody has, for a caller.';

create or replace function cascade.purge_work(queue text, consumer text, ids bigint[] default null, state text default null)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.purge_work(purge_work.queue, purge_work.consumer, purge_work.ids, purge_work.state, current_user);
end;
comment on function cascade.purge_work(text, text, bigint[], text) is 'Removes messages that nobody has in hand.';

-- The dead messages that are meant: by id, by a selector, by age; all of them without.
create or replace function cascade_internal.find_dead(
    work cascade_internal.work_consumer, ids bigint[], selector text, older_than interval)
returns bigint[]
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_selector constant jsonpath := cascade_internal.read_selector(find_dead.selector);
begin
    return array(
        select d.id from cascade_internal.work_dead as d
         where d.subscription_id = (find_dead.work).subscription_id
           and (find_dead.ids is null or d.id = any (find_dead.ids))
           and (find_dead.older_than is null or d.died_at < clock_timestamp() - find_dead.older_than)
           and (v_selector is null or cascade_internal.selected(v_selector, d.id, d."time", d.type, d.key, d.payload, d.headers) is true)
         order by d.id
           for update);
end
$$;
comment on function cascade_internal.find_dead(cascade_internal.work_consumer, bigint[], text, interval) is 'The dead messages that are meant.';

-- cascade.replay(queue, consumer, ids, selector) gives dead messages another life: their attempts begin anew, under the same id and with the
-- same options.  By id, by a selector, or all of them; returns how many.
create or replace function cascade_internal.replay(queue text, consumer text, ids bigint[], selector text, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(replay.queue, replay.consumer, replay.caller);
    v_id    constant integer := (v_found.work).subscription_id;
    v_ids   bigint[];
begin
    perform cascade_internal.check_read_committed('work mode');
    v_ids := cascade_internal.find_dead(v_found.work, replay.ids, replay.selector, null);
    if v_ids = '{}' then
        return 0;
    end if;
    perform cascade_internal.settle(v_found.work, v_ids, 'replayed');
    perform cascade_internal.place_rows(v_found.work, format(
        'select e.id, e."time", e.type, e.key, e.payload, e.headers, e.origin, e.origin_id, 0 as attempt, null::timestamptz as due'
        ' from cascade_internal.work_dead as e where e.subscription_id = %s and e.id = any (%L::bigint[])', v_id, v_ids), clock_timestamp());
    with gone as (
        delete from cascade_internal.work_dead as d where d.subscription_id = v_id and d.id = any (v_ids) returning d.id, d.attempt)
    insert into cascade_internal.work_history (subscription_id, id, attempt, outcome, worker, ended_at)
    select v_id, g.id, g.attempt, 'replayed', replay.caller, clock_timestamp() from gone as g;
    perform pg_notify('cascade_work_' || v_id, '');
    return cardinality(v_ids);
end
$$;
comment on function cascade_internal.replay(text, text, bigint[], text, name) is 'Gives dead messages another life, for a caller.';

create or replace function cascade.replay(queue text, consumer text, ids bigint[] default null, selector text default null)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.replay(replay.queue, replay.consumer, replay.ids, replay.selector, current_user);
end;
comment on function cascade.replay(text, text, bigint[], text) is 'Gives dead messages another life.';

-- cascade.purge_dead(queue, consumer, ids, selector, older_than) forgets dead messages; those that waited for them go on.  Returns how many.
create or replace function cascade_internal.purge_dead(
    queue text, consumer text, ids bigint[], selector text, older_than interval, caller name)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record := cascade_internal.find_work(purge_dead.queue, purge_dead.consumer, purge_dead.caller);
begin
    perform cascade_internal.check_read_committed('work mode');
    return cascade_internal.drop_dead(v_found.work, cascade_internal.find_dead(v_found.work, purge_dead.ids, purge_dead.selector,
                                                                               purge_dead.older_than));
end
$$;
comment on function cascade_internal.purge_dead(text, text, bigint[], text, interval, name) is 'Forgets dead messages, for a caller.';

create or replace function cascade.purge_dead(
    queue text, consumer text, ids bigint[] default null, selector text default null, older_than interval default null)
returns bigint
language sql volatile
begin atomic
    select cascade_internal.purge_dead(purge_dead.queue, purge_dead.consumer, purge_dead.ids, purge_dead.selector, purge_dead.older_than,
                                       current_user);
end;
comment on function cascade.purge_dead(text, text, bigint[], text, interval) is 'Forgets dead messages.';

create or replace function cascade_internal.drop_dead(work cascade_internal.work_consumer, ids bigint[])
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    delete from cascade_internal.work_dead as d where d.subscription_id = (drop_dead.work).subscription_id and d.id = any (drop_dead.ids);
    if drop_dead.ids <> '{}' then
        perform cascade_internal.settle(drop_dead.work, drop_dead.ids, 'cancelled');
    end if;
    return cardinality(drop_dead.ids);
end
$$;
comment on function cascade_internal.drop_dead(cascade_internal.work_consumer, bigint[]) is 'Forgets dead messages.';
