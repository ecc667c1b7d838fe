create table if not exists cascade_internal.subscription (
    subscription_id integer generated always as identity,
    queue_id        integer not null,
    consumer        text not null,
    is_work         boolean not null default false,
    is_movable      boolean not null default true,
    moving_to       text,
    created_at      timestamptz not null default clock_timestamp(),
    constraint subscription_pkey primary key (subscription_id),
    constraint subscription_consumer_key unique (queue_id, consumer),
    constraint subscription_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.subscription is 'Which consumers read which queues.';
comment on column cascade_internal.subscription.is_work is 'It takes messages one by one (80_work.sql) and reads no batches.';
comment on column cascade_internal.subscription.is_movable is 'Every carrier of the set keeps what it needs, so that it can go on elsewhere.';
comment on column cascade_internal.subscription.moving_to is 'The node to which it is being moved; it holds its place and reads nothing here.';

-- Where a consumer stands is a journal: every call that changes it appends the whole new
-- state as row n + 1, so nothing is updated and a held xmin horizon costs nothing.  The
-- journal of queue 7 is in the typed tables position_7_0 ... and leaves with the events.
do $$
begin
    if to_regtype('cascade_internal.open_batch') is null then
        create type cascade_internal.open_batch as (
            batch_id  bigint,
            from_tick bigint,
            to_tick   bigint,
            events    bigint,
            worker    text,
            until     timestamptz,
            attempt   integer
        );
        comment on type cascade_internal.open_batch is 'A batch that was handed out and is not finished.';
        comment on column cascade_internal.open_batch.worker is 'Who holds it; null after it was given back.';
        comment on column cascade_internal.open_batch.until is 'When its lease runs out.';

        create type cascade_internal.position as (
            subscription_id integer,
            n               bigint,
            tick_id         bigint,
            head            bigint,
            head_total      bigint,
            open_batches    cascade_internal.open_batch[],
            action          text,
            batch_id        bigint,
            at              timestamptz
        );
        comment on type cascade_internal.position is 'The state of a consumer after its n-th action.';
        comment on column cascade_internal.position.tick_id is 'Everything up to this tick is finished.';
        comment on column cascade_internal.position.head is 'Everything up to this tick was handed out.';
        comment on column cascade_internal.position.head_total is 'total of that tick.';
    end if;
end
$$;

-- Events that one consumer put back for later.  A row asked for by a batch becomes active
-- when that batch is finished, and goes when the batch that delivered it is.
create table if not exists cascade_internal.retry (
    subscription_id integer not null,
    event_id        bigint not null,
    attempt         integer not null,
    due             timestamptz not null,
    requested_by    bigint not null,
    active          boolean not null default false,
    batch_id        bigint,
    "time"          timestamptz not null,
    txid            bigint not null,
    type            text,
    key             text,
    payload         json,
    headers         json,
    origin          text,
    origin_id       bigint,
    constraint retry_pkey primary key (subscription_id, event_id, attempt),
    constraint retry_subscription_fkey foreign key (subscription_id)
        references cascade_internal.subscription on delete cascade,
    constraint retry_delivered_check check (batch_id is null or active)
);
create index if not exists retry_due_idx on cascade_internal.retry (subscription_id, due)
    where active and batch_id is null;
create index if not exists retry_batch_idx on cascade_internal.retry (batch_id) where batch_id is not null;
create index if not exists retry_requested_idx on cascade_internal.retry (requested_by) where not active;
comment on table cascade_internal.retry is 'Events put back by one consumer, whole, so that rotation need not wait for them.';

-- Who may read as which consumer.  Role names, not oids, so that a dump restores anywhere.
create table if not exists cascade_internal.consumer_grant (
    queue_id  integer not null,
    consumer  text not null,
    role_name text not null,
    constraint consumer_grant_pkey primary key (queue_id, consumer, role_name),
    constraint consumer_grant_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.consumer_grant is 'Roles that may act as a consumer.';
