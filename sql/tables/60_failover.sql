-- Why the root of a set takes no inserts now.  What refuses them is the trigger; this row says why.
create table if not exists cascade_internal.fence (
    queue_id   integer not null,
    cause      text not null,
    detail     text,
    op_id      uuid,
    since      timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    constraint fence_pkey primary key (queue_id),
    constraint fence_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint fence_cause_check check (cause in ('operation', 'over', 'conflict', 'rewound'))
);
comment on table cascade_internal.fence is 'Why a root is fenced.';
