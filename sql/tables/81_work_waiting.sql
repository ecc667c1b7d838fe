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
