-- The cascade: which node of which set this database is, who the others are, and what was heard
-- of them.  A set and its queue have one name, so the queue's id serves for both.
create table if not exists cascade_internal.node (
    queue_id      integer not null,
    set_uid       uuid not null,
    node          text not null,
    node_no       smallint not null,
    role          text not null,
    provider      text,
    generation    bigint not null default 1,
    state         text not null default 'running',
    answer        text,
    answer_detail text,
    answered_at   timestamptz,
    error         text,
    error_at      timestamptz,
    file_provider text,
    known_from    bigint,
    into_set      text,
    created_at    timestamptz not null default clock_timestamp(),
    constraint node_pkey primary key (queue_id),
    constraint node_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint node_role_check check (role in ('root', 'branch', 'leaf')),
    constraint node_into_check check (into_set is null or role = 'leaf'),
    constraint node_state_check check (state in ('running', 'paused')),
    constraint node_provider_check check ((role = 'root') = (provider is null)),
    constraint node_answer_check check (answer in ('dropped', 'dirty', 'conflict', 'stale', 'rewound',
                                                   'diverged', 'expired', 'behind', 'on path'))
);
comment on table cascade_internal.node is 'This database''s part in each set.';
comment on column cascade_internal.node.generation is 'Raised by every switch, pause, drop and learned term: what was fetched before cannot land after.';
comment on column cascade_internal.node.answer is 'What the provider said at the last join.';
comment on column cascade_internal.node.error is 'What stops the node''s handler, or its copying, now.';
comment on column cascade_internal.node.file_provider is 'The provider that the topology file asked for when it was last obeyed.';
comment on column cascade_internal.node.into_set is 'The combined set that it feeds: such a leaf is shown as a merge-leaf.';
comment on column cascade_internal.node.known_from is 'A provider at or beyond this tick knows this member.';

-- Written at the root only, and published as control events: every carrier has the same prefix.
create table if not exists cascade_internal.member (
    queue_id   integer not null,
    node       text not null,
    node_no    smallint not null,
    role       text not null,
    state      text not null default 'live',
    generation bigint not null default 1,
    since_tick bigint not null,
    location   jsonb not null default '{}',
    version    bigint not null,
    changed_at timestamptz not null default clock_timestamp(),
    into_set   text,
    reign      bigint,
    constraint member_pkey primary key (queue_id, node),
    constraint member_node_no_key unique (queue_id, node_no),
    constraint member_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint member_role_check check (role in ('root', 'branch', 'leaf')),
    constraint member_state_check check (state in ('live', 'dead', 'dropped')),
    constraint member_node_no_check check (node_no between 1 and 99)
);
comment on table cascade_internal.member is 'The members of each set, as the root published them.';
comment on column cascade_internal.member.into_set is 'The combined set that it feeds, if it is a merge-leaf.';
comment on column cascade_internal.member.reign is 'The term of that set in which it began to copy; null while it only tracks.';
comment on column cascade_internal.member.generation is 'Tells of an older generation are ignored.';
comment on column cascade_internal.member.since_tick is 'The global watermark when the member was added: it stands there until it tells more.';
comment on column cascade_internal.member.location is 'Where it lives: {"database": name, "dsn": text without a password}.';
comment on column cascade_internal.member.version is 'Counts the root''s changes: a row is replaced by a newer one only.';

-- What was heard from below: rows are passed on unchanged, and the greatest counts.  It is
-- updated in place, but at most once a second and member.
create table if not exists cascade_internal.told (
    queue_id   integer not null,
    node       text not null,
    generation bigint not null,
    term_uid   uuid not null,
    tick_id    bigint not null,
    is_direct  boolean not null default false,
    is_waiting boolean not null default false,
    at         timestamptz not null,
    heard_at   timestamptz not null default clock_timestamp(),
    constraint told_pkey primary key (queue_id, node),
    constraint told_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
) with (fillfactor = 50);
comment on table cascade_internal.told is 'How far each member below this node has come, as it told.';
comment on column cascade_internal.told.is_direct is 'It copies from this node, which keeps what it needs.';
comment on column cascade_internal.told.is_waiting is 'Its rotation waits for the global watermark.';
comment on column cascade_internal.told.at is 'When it said so, by its own clock.';

-- The reigns of the set's roots, for ever.
create table if not exists cascade_internal.term (
    queue_id   integer not null,
    uid        uuid not null,
    number     bigint not null,
    node       text not null,
    parent_uid uuid,
    fork       jsonb,
    cause      text not null,
    reason     text,
    at         timestamptz not null default clock_timestamp(),
    voided_by  uuid,
    constraint term_pkey primary key (queue_id, uid),
    constraint term_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint term_parent_check check ((parent_uid is null) = (fork is null))
);
comment on table cascade_internal.term is 'The reign of one root each: number, parent, and the whole tick at which it forked.';
comment on column cascade_internal.term.voided_by is 'The term that an operator kept instead of this one.';
