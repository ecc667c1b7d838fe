-- Work mode: consumers that take message after message (docs/adr/0040).  A plain message has no row of its own: it is one
-- of a chunk's.  Only exceptional ones are rows (81_work_waiting.sql, and work_active below).  Nothing here refers to the
-- subscription by a foreign key but work_consumer: hundreds of rows a second would lock its row.
create table if not exists cascade_internal.work_consumer (
    subscription_id integer not null,
    queue_id        integer not null,
    selector        jsonpath,
    options         jsonb not null default '{}',
    all_rows        boolean not null default false,
    by_key          boolean not null default false,
    max_active      integer,
    rooms           integer[],
    topics          jsonb,
    constraint work_consumer_pkey primary key (subscription_id),
    constraint work_consumer_subscription_fkey foreign key (subscription_id)
        references cascade_internal.subscription on delete cascade
);
comment on table cascade_internal.work_consumer is 'The consumers in work mode and how they want their messages.';
comment on column cascade_internal.work_consumer.all_rows is 'Every message is a row of its own: priorities, fairness or order are on.';
comment on column cascade_internal.work_consumer.by_key is 'One message at a time per key, in order.';
comment on column cascade_internal.work_consumer.max_active is 'How many messages of a topic may be in hand; null: no fairness.';

create table if not exists cascade_internal.work_count (
    subscription_id integer not null,
    unreadable      bigint not null default 0,
    misoptioned     bigint not null default 0,
    expired         bigint not null default 0,
    constraint work_count_pkey primary key (subscription_id),
    constraint work_count_consumer_fkey foreign key (subscription_id)
        references cascade_internal.work_consumer on delete cascade
);
comment on table cascade_internal.work_count is 'What was counted and not delivered, by consumer.';
comment on column cascade_internal.work_count.unreadable is 'Events that a selector could not read: they do not match.';
comment on column cascade_internal.work_count.misoptioned is 'Events whose options make no sense: they are delivered without.';

-- A chunk of the log, about a hundred events.  It is handed out once: what its holder gives back becomes rows.  Numbers
-- leave room for the pieces of a chunk that is split.  There is no index on what changes, and room on the page for the two
-- changes of a chunk's life, so neither costs more than itself; two registers say where to look.
--
--     free ──> held ──> done
--       └────────────────^ consumed at once, or all of it taken
create table if not exists cascade_internal.work_chunk (
    subscription_id integer not null,
    no              bigint not null,
    state           "char" not null default 'f',
    slot            smallint not null,
    from_tick       bigint not null,
    to_tick         bigint not null,
    txid_from       bigint not null,
    txid_to         bigint not null,
    cut_at          timestamptz not null,
    events          integer not null,
    first_id        bigint not null,
    last_id         bigint not null,
    first_tid       tid,
    last_tid        tid,
    ids             bigint[],
    tids            tid[],
    "open"          bigint[],
    claim_id        bigint,
    worker          text,
    claimed_at      timestamptz,
    done_at         timestamptz,
    constraint work_chunk_pkey primary key (subscription_id, no),
    constraint work_chunk_state_check check (state in ('f', 'h', 'd')
        and (state = 'd') = (done_at is not null) and (state = 'h') <= (claim_id is not null)),
    constraint work_chunk_ids_check check (ids is not null or last_id - first_id + 1 = events)
) with (fillfactor = 30);
comment on table cascade_internal.work_chunk is 'Plain messages, by the hundred: where they lie in the log.';
comment on column cascade_internal.work_chunk.slot is 'The partition that holds the events.';
comment on column cascade_internal.work_chunk.from_tick is 'Where the consumer stood when it was cut: until the chunk is done, the log keeps what comes after.';
comment on column cascade_internal.work_chunk.first_tid is 'Between first_tid and last_tid they lay, if they were alone there: a hint, checked against their ids.';
comment on column cascade_internal.work_chunk.ids is 'The events in order; null means all from first_id to last_id.';
comment on column cascade_internal.work_chunk.tids is 'Where each of them lay, if others were among them; a hint likewise.';
comment on column cascade_internal.work_chunk."open" is 'Those that are not finished, until the chunk is done; null means all of them.';

-- Who holds what: one row per claim, whatever it holds.  It is there as long as the claim is good.
create table if not exists cascade_internal.work_claim (
    claim_id        bigint not null,
    subscription_id integer not null,
    worker          text,
    role_name       name not null,
    pid             integer not null,
    claimed_at      timestamptz not null,
    seen_at         timestamptz not null,
    until           timestamptz not null,
    chunks          bigint[] not null default '{}',
    has_rows        boolean not null default false,
    constraint work_claim_pkey primary key (claim_id)
);
create index if not exists work_claim_subscription_idx on cascade_internal.work_claim (subscription_id);
comment on table cascade_internal.work_claim is 'Claims that are good, and until when.';
comment on column cascade_internal.work_claim.role_name is 'Who claimed, and need not be asked again whether it may; nobody after rights were taken back.';
comment on column cascade_internal.work_claim.pid is 'The session that claimed, or extended it last: if it ends, the claim does.';
comment on column cascade_internal.work_claim.seen_at is 'When that session was alive: one of the same number that began later is another one.';
create sequence if not exists cascade_internal.work_claim_id;

-- Messages with a row of their own that are in somebody's hands, or about to be.
create table if not exists cascade_internal.work_active (
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
    claim_id        bigint,
    org             bigint,
    constraint work_active_pkey primary key (subscription_id, id)
);
create index if not exists work_active_claim_idx on cascade_internal.work_active (claim_id) where claim_id is not null;
create index if not exists work_active_unclaimed_idx on cascade_internal.work_active (subscription_id) where claim_id is null;
comment on table cascade_internal.work_active is 'Messages with a row of their own that are worked on.';
comment on column cascade_internal.work_active.attempt is 'How often it was handed out, this time included.';
comment on column cascade_internal.work_active.claim_id is 'Null: drawn, and not yet asked for.';

create table if not exists cascade_internal.work_dead (
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
    died_at         timestamptz not null,
    error           text,
    constraint work_dead_pkey primary key (subscription_id, id)
);
comment on table cascade_internal.work_dead is 'Messages that failed too often, or were buried, until they are replayed or purged.';

-- What became of each attempt at a message with a row of its own, and every result.  Partitions are hours or days
-- (tend_work makes and drops them); the default one takes what comes while there is none.
create table if not exists cascade_internal.work_history (
    subscription_id integer not null,
    id              bigint not null,
    attempt         integer not null,
    outcome         text not null,
    worker          text,
    claimed_at      timestamptz,
    ended_at        timestamptz not null,
    error           text,
    result          json,
    constraint work_history_pkey primary key (subscription_id, id, attempt, ended_at),
    constraint work_history_outcome_check check (
        outcome in ('done', 'failed', 'lost', 'buried', 'expired', 'taken', 'cancelled', 'replayed'))
) partition by range (ended_at);
create table if not exists cascade_internal.work_history_default partition of cascade_internal.work_history default;
comment on table cascade_internal.work_history_default is 'Ends of attempts for which no partition was made in time.';
comment on table cascade_internal.work_history is 'What became of every attempt, and the results.';

-- What claim, consume, peek and take return, and what work_messages does.
do $$
begin
    if to_regtype('cascade.message') is null then
        create type cascade.message as (
            id           bigint,
            queue        text,
            type         text,
            key          text,
            payload      json,
            headers      json,
            attempt      integer,
            posted_at    timestamptz,
            available_at timestamptz,
            claim_id     bigint
        );
        comment on type cascade.message is 'A message, as a consumer in work mode is given it.';
        create type cascade.work_message as (
            id          bigint,
            state       text,
            class       smallint,
            type        text,
            key         text,
            attempt     integer,
            posted_at   timestamptz,
            due_at      timestamptz,
            expires_at  timestamptz,
            worker      text,
            claimed_at  timestamptz,
            lease_until timestamptz,
            waits_for   bigint[],
            error       text
        );
        comment on type cascade.work_message is 'A message, as cascade.work_messages() lists it.';
    end if;
end
$$;
