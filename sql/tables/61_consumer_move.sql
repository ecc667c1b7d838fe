-- Consumers that go from one node to another.  While one is under way its subscription stays at the
-- old node and holds its place, for the whole set, so that the new node has what it needs:
--
--     at home ──> moving ──> moved, and the subscription is gone
--        ^           │
--        └───────────┘ taken back, after the new node has refused it for good
create table if not exists cascade_internal.consumer_move (
    queue_id integer not null,
    consumer text not null,
    move_uid uuid not null default gen_random_uuid(),
    to_node  text not null,
    tick_id  bigint not null,
    state    text not null default 'moving',
    cause    text not null default 'planned',
    at       timestamptz not null default clock_timestamp(),
    constraint consumer_move_pkey primary key (queue_id, consumer),
    constraint consumer_move_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint consumer_move_state_check check (state in ('moving', 'moved'))
);
comment on table cascade_internal.consumer_move is 'Consumers that left this node, or are about to, and where they went.';
comment on column cascade_internal.consumer_move.cause is 'planned, or why it was re-created elsewhere.';

-- What arrived here, or was refused for good, by the move's uid: asking again gets the same answer.
create table if not exists cascade_internal.consumer_arrival (
    queue_id  integer not null,
    move_uid  uuid not null,
    consumer  text not null,
    from_node text not null,
    tick_id   bigint,
    is_taken  boolean not null,
    at        timestamptz not null default clock_timestamp(),
    constraint consumer_arrival_pkey primary key (queue_id, move_uid),
    constraint consumer_arrival_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade,
    constraint consumer_arrival_tick_check check (is_taken = (tick_id is not null))
);
comment on table cascade_internal.consumer_arrival is 'Consumers that came from other nodes, or were refused for good.';

-- Where the consumers of a root stand, as it last published, in case it is lost.
create table if not exists cascade_internal.root_consumer (
    queue_id integer not null,
    node     text not null,
    consumer text not null,
    tick_id  bigint not null,
    total    bigint,
    retries  bigint not null default 0,
    roles    text[] not null default '{}',
    work     jsonb,
    term_uid uuid,
    at       timestamptz not null default clock_timestamp(),
    constraint root_consumer_pkey primary key (queue_id, node, consumer),
    constraint root_consumer_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.root_consumer is 'Where the consumers of each root stood, as it published.';
comment on column cascade_internal.root_consumer.total is 'total of that tick; at the root itself, to see what has moved.';
comment on column cascade_internal.root_consumer.work is 'In work mode its selector and options; null for a stream.';
comment on column cascade_internal.root_consumer.retries is 'How many events it had put back: those are at the root only.';
