-- What stands between the log and the workers' hands: the messages that wait as rows, and why.

-- Keys of deduplication, at the root.  The options themselves are in the events; this only decides who was first.
create table if not exists cascade_internal.work_dedupe (
    queue_id   integer not null,
    dedupe_key text not null,
    id         bigint not null,
    until      timestamptz not null,
    constraint work_dedupe_pkey primary key (queue_id, dedupe_key),
    constraint work_dedupe_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
create index if not exists work_dedupe_until_idx on cascade_internal.work_dedupe (until);
comment on table cascade_internal.work_dedupe is 'Which event was posted first with a key, and how long others with that key are not.';

-- Messages that may be handed out, by class.  topic and org are how they are drawn: under fairness the type and a hash of the
-- key, under order by key a hash of the key alone; other consumers' messages have neither, and go in the order of their ids.
create table if not exists cascade_internal.work_waiting (
    subscription_id integer not null,
    id              bigint not null,
    "time"          timestamptz not null,
    type            text,
    key             text,
    payload         json not null,
    headers         json,
    origin          text,
    origin_id       bigint,
    attempt         integer not null,
    class           smallint not null,
    expires_at      timestamptz,
    available_at    timestamptz not null,
    topic           text not null,
    org             bigint not null,
    constraint work_waiting_pkey primary key (subscription_id, id, class)
) partition by list (class);
do $$
begin
    for v_class in 1 .. 4 loop
        execute format('create table if not exists cascade_internal.work_waiting_%s partition of cascade_internal.work_waiting'
                       ' for values in (%1$s) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)', v_class);
        execute format('comment on table cascade_internal.work_waiting_%s is %L', v_class,
                       'Waiting messages of class ' || v_class || (array[': urgent.', ': high.', ': normal.', ': low.'])[v_class]);
    end loop;
end
$$;
-- The newest first: whoever looks for an organisation finds a message there, and not where the oldest ones were.
create index if not exists work_waiting_draw_idx on cascade_internal.work_waiting (subscription_id, topic, org, id desc);
create index if not exists work_waiting_expires_idx on cascade_internal.work_waiting (subscription_id, expires_at)
    where expires_at is not null;
comment on table cascade_internal.work_waiting is 'Messages with a row of their own that may be handed out, a table for each class.';
comment on column cascade_internal.work_waiting.available_at is 'Since when.';

-- Messages that may not be handed out yet.
create table if not exists cascade_internal.work_held (
    subscription_id integer not null,
    id              bigint not null,
    "time"          timestamptz not null,
    type            text,
    key             text,
    payload         json not null,
    headers         json,
    origin          text,
    origin_id       bigint,
    attempt         integer not null,
    class           smallint not null,
    expires_at      timestamptz,
    due             timestamptz not null,
    waits           integer not null default 0,
    topic           text not null,
    org             bigint not null,
    constraint work_held_pkey primary key (subscription_id, id),
    constraint work_held_waits_check check (waits >= 0)
);
create index if not exists work_held_due_idx on cascade_internal.work_held (subscription_id, due) where waits = 0;
create index if not exists work_held_expires_idx on cascade_internal.work_held (subscription_id, expires_at) where expires_at is not null;
create index if not exists work_held_retry_idx on cascade_internal.work_held (subscription_id, org) where attempt > 0;
comment on table cascade_internal.work_held is 'Messages that are not due, or wait for others.';
comment on column cascade_internal.work_held.due is 'Not before then.';
comment on column cascade_internal.work_held.waits is 'For how many messages it waits.';

-- Who waits for whom.  A message that many wait for is one row of work_blocker: completing it changes that row alone, and those
-- who waited are let go some at a time.
--
--     waiting ──> released ──> gone, with the last that waited
--        ^ v
--       dead
create table if not exists cascade_internal.work_blocker (
    by_subscription integer not null,
    after_id        bigint not null,
    state           "char" not null default 'w',
    is_certain      boolean not null default false,
    horizon         bigint,
    look_at         timestamptz not null default '-infinity',
    constraint work_blocker_pkey primary key (by_subscription, after_id),
    constraint work_blocker_state_check check (state in ('w', 'd', 'r'))
);
create index if not exists work_blocker_released_idx on cascade_internal.work_blocker (state) where state = 'r';
create index if not exists work_blocker_look_idx on cascade_internal.work_blocker (look_at) where state = 'w' and not is_certain;
comment on table cascade_internal.work_blocker is 'Messages for which others wait.';
comment on column cascade_internal.work_blocker.by_subscription is 'The consumer that has to do it: of the same name as the one that waits.';
comment on column cascade_internal.work_blocker.is_certain is 'Whoever completes it will see this row; until then it is looked at again.';
comment on column cascade_internal.work_blocker.horizon is 'A transaction id: once all below have ended, nobody can have missed the row.';

create table if not exists cascade_internal.work_after (
    subscription_id integer not null,
    id              bigint not null,
    by_subscription integer not null,
    after_id        bigint not null,
    constraint work_after_pkey primary key (subscription_id, id, by_subscription, after_id)
);
create index if not exists work_after_blocker_idx on cascade_internal.work_after (by_subscription, after_id);
comment on table cascade_internal.work_after is 'Which message waits for which.';

-- What the functions pass around.
do $$
begin
    if to_regtype('cascade_internal.work_options') is null then
        create type cascade_internal.work_options as (
            deliver_at timestamptz,
            expires_at timestamptz,
            class      smallint,
            after      bigint[],
            after_in   jsonb,
            dedupe_key text,
            problem    text
        );
        comment on type cascade_internal.work_options is 'What an event says about how it is to be worked.';
        comment on column cascade_internal.work_options.problem is 'What is wrong with it; then it counts for nothing.';
    end if;
    if to_regtype('cascade_internal.blocker') is null then
        create type cascade_internal.blocker as (by_subscription integer, after_id bigint);
        comment on type cascade_internal.blocker is 'A message for which another waits, and the consumer that has to do it.';
    end if;
end
$$;

-- Messages of one class and topic that were drawn under fairness, some together: they stay where they wait, and this row alone says that they are in
-- hand, or about to be (docs/adr/0042).
create sequence if not exists cascade_internal.work_parcel_no;
create table if not exists cascade_internal.work_parcel (
    subscription_id integer not null,
    no              bigint not null default nextval('cascade_internal.work_parcel_no'),
    claim_id        bigint,
    class           smallint not null,
    topic           text not null,
    ids             bigint[] not null,
    constraint work_parcel_pkey primary key (subscription_id, no),
    constraint work_parcel_ids_check check (cardinality(ids) > 0)
);
create index if not exists work_parcel_claim_idx on cascade_internal.work_parcel (claim_id) where claim_id is not null;
comment on table cascade_internal.work_parcel is 'Waiting messages that were drawn, and who has them.';
comment on column cascade_internal.work_parcel.claim_id is 'Null: drawn, and not yet asked for.';
