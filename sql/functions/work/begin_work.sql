-- What makes a consumer one in work mode, and what is left of it when it goes.
create or replace function cascade_internal.check_mode(mode text, selector text, options jsonb)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if check_mode.mode is null or check_mode.mode not in ('stream', 'work') then
        raise exception 'there is no mode %', coalesce(quote_literal(left(check_mode.mode, 40)), 'null')
            using errcode = 'QC003', hint = 'A consumer reads batches (mode stream) or takes messages (mode work).';
    elsif check_mode.mode = 'stream' and (check_mode.selector is not null or coalesce(check_mode.options, '{}') <> '{}') then
        raise exception 'a stream consumer has no selector and no options'
            using errcode = 'QC003', hint = 'They are for mode => ''work''; a stream is filtered by its reader.';
    end if;
end
$$;
comment on function cascade_internal.check_mode(text, text, jsonb) is 'Refuses a mode that is none, and options for a stream.';

create or replace function cascade_internal.check_same_mode(
    queue cascade_internal.queue, subscription_id integer, consumer text, mode text, selector text, options jsonb)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_work cascade_internal.work_consumer;
begin
    select w.* into v_work from cascade_internal.work_consumer as w where w.subscription_id = check_same_mode.subscription_id;
    if (v_work.subscription_id is not null) <> (check_same_mode.mode = 'work') then
        raise exception 'consumer "%" of queue "%" exists already, in % mode', check_same_mode.consumer, (check_same_mode.queue).name,
                        case when v_work.subscription_id is null then 'stream' else 'work' end
            using errcode = 'QC218', hint = 'Its mode is chosen once: unsubscribe it first, or take another name.';
    elsif check_same_mode.mode = 'work'
          and (check_same_mode.selector is not null and check_same_mode.selector::jsonpath::text is distinct from v_work.selector::text
               or not v_work.options @> coalesce(check_same_mode.options, '{}')) then
        raise exception 'consumer "%" of queue "%" exists already, with another selector or other options', check_same_mode.consumer,
                        (check_same_mode.queue).name
            using errcode = 'QC220', hint = 'cascade.alter_consumer() changes its options; a selector is chosen once.';
    end if;
end
$$;
comment on function cascade_internal.check_same_mode(cascade_internal.queue, integer, text, text, text, jsonb)
    is 'Refuses to take a consumer for one that is different.';

-- The registers begin where no chunk is.
create or replace function cascade_internal.begin_work(queue_id integer, subscription_id integer, selector text, options jsonb)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    insert into cascade_internal.work_consumer (subscription_id, queue_id, selector)
    values (begin_work.subscription_id, begin_work.queue_id, cascade_internal.read_selector(begin_work.selector));
    insert into cascade_internal.work_count (subscription_id) values (begin_work.subscription_id);
    perform cascade_internal.store_work_options(begin_work.subscription_id, coalesce(begin_work.options, '{}'));
    execute format('create sequence cascade_internal.work_hint_%s minvalue 0 start 0', begin_work.subscription_id);
    execute format('create sequence cascade_internal.work_low_%s minvalue 0 start 0', begin_work.subscription_id);
    perform cascade_internal.set_work_register('hint', begin_work.subscription_id, 1000),
            cascade_internal.set_work_register('low', begin_work.subscription_id, 1000);
end
$$;
comment on function cascade_internal.begin_work(integer, integer, text, jsonb) is 'Makes a consumer one in work mode.';

-- Forgets the messages of a consumer: it was put elsewhere, or is about to go.
create or replace function cascade_internal.forget_messages(subscription_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    -- Claims first, as whoever completes does; and last, since one may have been open until now.
    delete from cascade_internal.work_claim as c where c.subscription_id = forget_messages.subscription_id;
    delete from cascade_internal.work_chunk as c where c.subscription_id = forget_messages.subscription_id;
    perform cascade_internal.forget_rows(forget_messages.subscription_id);
    delete from cascade_internal.work_claim as c where c.subscription_id = forget_messages.subscription_id;
    delete from cascade_internal.work_active as a where a.subscription_id = forget_messages.subscription_id;
end
$$;
comment on function cascade_internal.forget_messages(integer) is 'Forgets what a consumer had before it, but not its dead and its history.';

create or replace function cascade_internal.end_work()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform cascade_internal.forget_messages(old.subscription_id);
    delete from cascade_internal.work_dead as d where d.subscription_id = old.subscription_id;
    delete from cascade_internal.work_history as h where h.subscription_id = old.subscription_id;
    execute format('drop sequence if exists cascade_internal.work_hint_%s, cascade_internal.work_low_%1$s', old.subscription_id);
    return old;
end
$$;
comment on function cascade_internal.end_work() is 'Clears up after a consumer in work mode.';

create or replace trigger end_work after delete on cascade_internal.work_consumer
    for each row execute function cascade_internal.end_work();
