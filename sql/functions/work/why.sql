-- cascade.why(queue, consumer, id) says what a message is waiting for: a row for each reason, and one for a message that waits for
-- none.  state is waiting, delayed, blocked, active, dead, finished (done, expired, taken, or not for this consumer) or unknown.  Of a message
-- that waits for others each is named, with what is known of it; a circle of messages that wait for one another is shown.
create or replace function cascade_internal.why(queue text, consumer text, id bigint, caller name)
returns table (state text, reason text, due timestamptz, waits_for text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_work constant cascade_internal.work_consumer := (cascade_internal.find_work(why.queue, why.consumer, why.caller)).work;
    v_id   constant integer := v_work.subscription_id;
    v_row  record;
begin
    select h.* into v_row from cascade_internal.work_held as h where h.subscription_id = v_id and h.id = why.id;
    if found then
        why.due := v_row.due;
        why.state := 'blocked';
        for why.waits_for, why.reason in
            select q.name || '/' || a.after_id, cascade_internal.describe_blocker(v_id, why.id, a.by_subscription, a.after_id)
              from cascade_internal.work_after as a
              left join cascade_internal.work_consumer as w on w.subscription_id = a.by_subscription
              left join cascade_internal.queue as q on q.queue_id = w.queue_id
             where a.subscription_id = v_id and a.id = why.id
             order by a.by_subscription, a.after_id
        loop
            return next;
        end loop;
        why.waits_for := null;
        if v_row.due > clock_timestamp() then
            why.state := case when v_row.waits > 0 then 'blocked' else 'delayed' end;
            why.reason := case when v_row.attempt > 0 then format('attempt %s failed; the next is not before %s', v_row.attempt, v_row.due)
                               else format('not before %s', v_row.due) end;
            return next;
        elsif v_row.waits = 0 then
            why.state := 'waiting';
            why.reason := 'it is due: the next claim can have it';
            return next;
        end if;
        return;
    end if;
    select w.* into v_row from cascade_internal.work_waiting as w where w.subscription_id = v_id and w.id = why.id;
    if found then
        why.due := v_row.available_at;
        why.state := case when cascade_internal.is_in_parcel(v_id, why.id, true) then 'active' else 'waiting' end;
        why.reason := case when why.state = 'active' then cascade_internal.describe_holder(
                                (select p.claim_id from cascade_internal.work_parcel as p
                                  where p.subscription_id = v_id and p.claim_id is not null and why.id = any (p.ids)))
                           when cascade_internal.is_in_parcel(v_id, why.id, false) then 'it is drawn: one of the next claims has it'
                           when v_work.by_key then coalesce(cascade_internal.describe_key(v_id, v_row.org, v_row.id), 'the next claim can have it')
                           when v_work.max_active is not null
                           then format('class %s of type "%s": %s wait before it in its organisation "%s"; up to %s of the class may be in hand, and %s are',
                                       v_row.class, v_row.type,
                                       (select count(*) from cascade_internal.work_waiting as w
                                         where w.subscription_id = v_id and w.class = v_row.class and w.topic = v_row.topic and w.org = v_row.org
                                           and w.id < v_row.id),
                                       v_row.key,
                                       (coalesce(cascade_internal.as_integers(v_work.topics->v_row.topic), v_work.rooms))[v_row.class],
                                       (cascade_internal.count_active(v_id, v_row.topic))[v_row.class])
                           else 'the next claim can have it' end;
        return next;
        return;
    end if;
    select a.* into v_row from cascade_internal.work_active as a where a.subscription_id = v_id and a.id = why.id;
    if found then
        why.state := 'active';
        why.reason := cascade_internal.describe_holder(v_row.claim_id);
        why.due := v_row.available_at;
        return next;
        return;
    end if;
    select d.* into v_row from cascade_internal.work_dead as d where d.subscription_id = v_id and d.id = why.id;
    if found then
        why.state := 'dead';
        why.reason := format('it died after %s attempts: %s', v_row.attempt, coalesce(v_row.error, 'no reason was given'));
        return next;
        return;
    end if;
    select c.state, c.claim_id, c.cut_at into v_row
      from cascade_internal.work_chunk as c
     where c.subscription_id = v_id and c.no >= cascade_internal.work_register('low', v_id) and c.state <> 'd'
       and why.id between c.first_id and c.last_id
       and why.id = any (cascade_internal.open_ids(c))
     limit 1;
    if found then
        why.state := case v_row.state when 'h' then 'active' else 'waiting' end;
        why.reason := case v_row.state when 'h' then cascade_internal.describe_holder(v_row.claim_id) else 'the next claims can have it' end;
        why.due := v_row.cut_at;
    elsif cascade_internal.was_dispatched(v_work, why.id) then
        why.state := 'finished';
        why.reason := 'it is done, expired or taken, or was not for this consumer';
    else
        why.state := 'unknown';
        why.reason := cascade_internal.describe_unseen(v_work, why.id);
    end if;
    return next;
end
$$;
comment on function cascade_internal.why(text, text, bigint, name) is 'What a message is waiting for, for a caller.';

create or replace function cascade.why(queue text, consumer text, id bigint)
returns table (state text, reason text, due timestamptz, waits_for text)
language sql stable rows 1
begin atomic
    select w.state, w.reason, w.due, w.waits_for
      from cascade_internal.why(why.queue, why.consumer, why.id, current_user) as w;
end;
comment on function cascade.why(text, text, bigint) is 'What a message is waiting for.';

-- An event that was not given to a consumer yet.
create or replace function cascade_internal.describe_unseen(work cascade_internal.work_consumer, id bigint)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_log cascade_internal.queue := (select q from cascade_internal.queue as q where q.queue_id = (describe_unseen.work).queue_id);
begin
    return case when exists (select from cascade_internal.reservation as r where r.queue_id = v_log.queue_id and r.id = describe_unseen.id)
                then 'its id is reserved, and it was not posted yet'
                when describe_unseen.id > (cascade_internal.newest_tick(v_log.queue_id, v_log.slots)).event_seq
                then 'it has not been posted, or not ticked'
                else 'it is not in the queue: its transaction is open, or was rolled back, or it was not ticked or dispatched yet' end;
end
$$;
comment on function cascade_internal.describe_unseen(cascade_internal.work_consumer, bigint) is 'What is known of an event that was not dispatched.';

create or replace function cascade_internal.describe_holder(claim_id bigint)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select coalesce((select format('worker %s has it until %s', coalesce(quote_ident(c.worker), 'of session ' || c.pid), c.until)
                       from cascade_internal.work_claim as c where c.claim_id = describe_holder.claim_id),
                    'a transaction that is still open has it')
$$;
comment on function cascade_internal.describe_holder(bigint) is 'Who has a message.';

-- What keeps a key: the message of it that is in hand, or waits for its next attempt, or the oldest one.
create or replace function cascade_internal.describe_key(subscription_id integer, org bigint, id bigint)
returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
    select x.reason
      from (select 1 as n, format('message %s of its key is in hand: %s', a.id, cascade_internal.describe_holder(a.claim_id)) as reason
              from cascade_internal.work_active as a
             where a.subscription_id = describe_key.subscription_id and a.org = describe_key.org
            union all
            select 2, format('message %s of its key failed, and is tried again at %s', h.id, h.due)
              from cascade_internal.work_held as h
             where h.subscription_id = describe_key.subscription_id and h.org = describe_key.org and h.attempt > 0
            union all
            (select 3, format('message %s of its key comes first', w.id)
               from cascade_internal.work_waiting as w
              where w.subscription_id = describe_key.subscription_id and w.org = describe_key.org and w.id < describe_key.id
              order by w.id limit 1)) as x
     order by x.n
     limit 1
$$;
comment on function cascade_internal.describe_key(integer, bigint, bigint) is 'What keeps a message of a key waiting; null if nothing does.';

-- What is known of a message for which another one waits.
create or replace function cascade_internal.describe_blocker(subscription_id integer, id bigint, by_subscription integer, after_id bigint)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_state constant text := cascade_internal.blocker_state(describe_blocker.by_subscription, describe_blocker.after_id);
    v_path  text;
begin
    -- A circle: from the message waited for, back to the one that waits.
    with recursive step(subscription_id, id, path) as (
        select describe_blocker.by_subscription, describe_blocker.after_id, array[describe_blocker.after_id]
        union all
        select a.by_subscription, a.after_id, s.path || a.after_id
          from step as s
          join cascade_internal.work_after as a on a.subscription_id = s.subscription_id and a.id = s.id
         where cardinality(s.path) < 50
           and not (s.subscription_id = describe_blocker.subscription_id and s.id = describe_blocker.id)
           and not (a.after_id = any (s.path[2 :])))
    select array_to_string(describe_blocker.id || s.path, ' -> ') into v_path
      from step as s
     where s.subscription_id = describe_blocker.subscription_id and s.id = describe_blocker.id
     limit 1;
    if v_path is not null then
        return format('they wait for one another: %s; none will ever go, so cancel one', v_path);
    end if;
    return case v_state
        when 'dead' then (select format('message %s is dead: %s; replay it or cancel it', d.id, coalesce(d.error, 'no reason was given'))
                            from cascade_internal.work_dead as d
                           where d.subscription_id = describe_blocker.by_subscription and d.id = describe_blocker.after_id)
        when 'open' then format('message %s is not done', describe_blocker.after_id)
        when 'finished' then format('message %s is done: this one is let go in a moment', describe_blocker.after_id)
        else format('message %s: %s', describe_blocker.after_id, cascade_internal.describe_unseen(
                        (select w from cascade_internal.work_consumer as w where w.subscription_id = describe_blocker.by_subscription),
                        describe_blocker.after_id)) end;
end
$$;
comment on function cascade_internal.describe_blocker(integer, bigint, integer, bigint) is 'What is known of a message for which another one waits.';
