-- Failover: fences, hand-overs, ballots, certificates of loss, quarantine, and the journal that explains them.

-- A root that refuses inserts, and why.  The row is the wish; is_up says that the trigger stands, so that no
-- writer is open any more.  Copies have the trigger and no row here.
create table if not exists cascade_internal.fence (
    queue_id   integer not null,
    cause      text not null,
    detail     text,
    op_id      uuid,
    is_up      boolean not null default false,
    since      timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    constraint fence_pkey primary key (queue_id),
    constraint fence_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint fence_cause_check check (cause in ('operation', 'over', 'conflict', 'rewound')),
    constraint fence_operation_check check ((cause = 'operation') = (op_id is not null))
);
comment on table cascade_internal.fence is 'Roots that refuse inserts, and why.';
comment on column cascade_internal.fence.is_up is 'The trigger stands: every writer that began before it has ended.';
comment on column cascade_internal.fence.expires_at is 'An operation that has made no offer by then loses its fence.';

create table if not exists cascade_internal.operation (
    op_id      uuid not null,
    queue_id   integer not null,
    kind       text not null,
    target     text,
    started_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz,
    ended_at   timestamptz,
    outcome    text,
    constraint operation_pkey primary key (queue_id, op_id),
    constraint operation_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint operation_outcome_check check ((ended_at is null) = (outcome is null))
);
create unique index if not exists operation_open_idx on cascade_internal.operation (queue_id) where ended_at is null;
comment on table cascade_internal.operation is 'What operators do to a set, one at a time; kept at its root.';

-- At the old root the row decides who reigns next; elsewhere it was heard through the log.
create table if not exists cascade_internal.handover (
    queue_id      integer not null,
    uid           uuid not null,
    term_uid      uuid not null,
    from_node     text not null,
    target        text not null,
    state         text not null,
    closing_tick  bigint not null,
    closing_chain bytea,
    op_id         uuid,
    at            timestamptz not null default clock_timestamp(),
    constraint handover_pkey primary key (queue_id, uid),
    constraint handover_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint handover_state_check check (state in ('offered', 'taken', 'withdrawn', 'heard', 'done'))
);
create unique index if not exists handover_term_idx on cascade_internal.handover (queue_id, term_uid)
    where state in ('offered', 'taken', 'withdrawn');
comment on table cascade_internal.handover is 'Offers of the reign: decided at the old root, heard everywhere.';
comment on column cascade_internal.handover.uid is 'The term that the target opens when it takes the offer.';

create table if not exists cascade_internal.ballot (
    queue_id  integer not null,
    number    bigint not null,
    uid       uuid not null,
    candidate text not null,
    opened_at timestamptz not null default clock_timestamp(),
    closed_at timestamptz,
    constraint ballot_pkey primary key (queue_id, number),
    constraint ballot_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.ballot is 'Promotions that were announced to this carrier before they happened.';

-- What a failover may have lost, as a set: the events of a term that the snapshot of its fork does not see.  It
-- is published in the log, so that the next root has it too.  Ids are kept as ranges: they are few.
create table if not exists cascade_internal.certificate (
    queue_id  integer not null,
    number    integer not null,
    term_uid  uuid not null,
    new_uid   uuid not null,
    fork      jsonb not null,
    cause     text not null,
    reason    text,
    fenced_by text,
    evidence  jsonb not null default '{}',
    pending   text[] not null,
    reports   jsonb not null default '{}',
    state     text not null default 'open',
    opened_at timestamptz not null default clock_timestamp(),
    closed_at timestamptz,
    version   bigint not null default 1,
    constraint certificate_pkey primary key (queue_id, new_uid),
    constraint certificate_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint certificate_state_check check (state in ('open', 'closed') and (state = 'closed') = (closed_at is not null))
);
comment on table cascade_internal.certificate is 'What each failover may have lost, and what became of it.';
comment on column cascade_internal.certificate.pending is 'Carriers of the lost term that were neither read nor declared destroyed.';
comment on column cascade_internal.certificate.reports is 'What each carrier had beyond the fork, by what became of it: ranges of ids.';

-- The tail of a carrier that stood beyond a fork.  It belongs to the set by name: dropping the queue keeps it.
create table if not exists cascade_internal.quarantine (
    "set"     text not null,
    term_uid  uuid not null,
    id        bigint not null,
    "time"    timestamptz not null,
    txid      bigint not null,
    type      text,
    key       text,
    payload   json not null,
    headers   json,
    origin    text,
    origin_id bigint,
    state     text not null default 'held',
    new_id    bigint,
    set_aside timestamptz not null default clock_timestamp(),
    settled   timestamptz,
    constraint quarantine_pkey primary key ("set", term_uid, id),
    constraint quarantine_state_check check (state in ('held', 'republished', 'discarded', 'duplicate', 'control')
                                             and (state in ('republished', 'duplicate')) = (new_id is not null))
);
comment on table cascade_internal.quarantine is 'Events that were set aside when their node was resurrected.';
comment on column cascade_internal.quarantine.new_id is 'Where the log has a republished event or a duplicate; the own id of one that was never lost.';
comment on column cascade_internal.quarantine.state is 'Control events of a lost tail are kept for people, and counted nowhere.';

-- Who has been put back into the log, once whatever happens; copied through the log.
create table if not exists cascade_internal.republished (
    queue_id integer not null,
    term_uid uuid not null,
    id       bigint not null,
    digest   text not null,
    new_id   bigint not null,
    constraint republished_pkey primary key (queue_id, term_uid, id, digest),
    constraint republished_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.republished is 'Events of lost tails that are in the log again, and under which id.';

-- Consumers, handlers and leaves that had processed events which the set lost afterwards.
create table if not exists cascade_internal.phantom (
    "set"     text not null,
    term_uid  uuid not null,
    node      text not null,
    consumer  text not null,
    from_tick bigint not null,
    to_tick   bigint not null,
    events    bigint,
    at        timestamptz not null default clock_timestamp(),
    constraint phantom_pkey primary key ("set", term_uid, node, consumer)
);
comment on table cascade_internal.phantom is 'Who had processed what the set lost: the ticks beyond the fork.';
comment on column cascade_internal.phantom.events is 'At most so many: what was handed out counts, and what was seen again.';

-- The wanted topology of a set, changed at its root only, by compare-and-swap on the revision.
create table if not exists cascade_internal.document (
    queue_id integer not null,
    revision bigint not null,
    document jsonb not null,
    at       timestamptz not null default clock_timestamp(),
    constraint document_pkey primary key (queue_id),
    constraint document_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.document is 'The topology of each set, as it was last applied.';

create table if not exists cascade_internal.journal (
    journal_id bigint generated always as identity,
    "set"      text not null,
    node       text,
    op_id      uuid,
    step       text not null,
    detail     jsonb not null default '{}',
    by_role    text not null default session_user,
    at         timestamptz not null default clock_timestamp(),
    constraint journal_pkey primary key (journal_id)
);
comment on table cascade_internal.journal is 'What was done to the sets of this database; it explains, and drives nothing.';
