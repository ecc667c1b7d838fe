-- Rows that many sessions hand over bit by bit and one transaction publishes: what a job of Spark writes.
create table if not exists cascade_internal.staging (
    staging_uid  uuid not null default gen_random_uuid(),
    queue_id     integer not null,
    name         text,
    begun_by     text not null,
    begun_at     timestamptz not null default clock_timestamp(),
    is_verbatim  boolean not null,
    published_at timestamptz,
    events       bigint,
    constraint staging_pkey primary key (staging_uid),
    constraint staging_name_key unique (queue_id, name),
    constraint staging_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint staging_published_check check ((published_at is null) = (events is null))
);
comment on table cascade_internal.staging is 'Jobs that publish many rows in one transaction, and those that did.';

-- Unlogged: what a crash takes was published to nobody, and publishing counts what is there.
create unlogged table if not exists cascade_internal.staged (
    staging_uid uuid not null,
    task        integer not null,
    attempt     bigint not null,
    n           bigint not null,
    type        text,
    key         text,
    payload     json not null,
    headers     json,
    "time"      timestamptz,
    origin      text,
    origin_id   bigint,
    constraint staged_pkey primary key (staging_uid, task, attempt, n)
);
comment on table cascade_internal.staged is 'Rows that wait to be published, by the attempt of a task that handed them over.';
