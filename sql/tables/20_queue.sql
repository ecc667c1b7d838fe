-- One row per queue.  Ticks, copies and switches of generation lock it; it is changed only
-- by create_queue, alter_queue and a repair of the clock, so it collects no dead tuples.
create table if not exists cascade_internal.queue (
    queue_id          integer generated always as identity,
    name              text not null,
    slots             smallint not null default 3,
    term              bigint not null default 0,
    term_uid          uuid not null default gen_random_uuid(),
    clock_offset      bigint not null default 0,
    is_copy           boolean not null default false,
    is_combined       boolean not null default false,
    server            text not null,
    timeline          text,
    tick_max_events   integer not null default 500,
    tick_max_lag      interval not null default '10 ms',
    tick_idle         interval not null default '1 min',
    rotation_period   interval not null default '1 hour',
    payload_max_bytes integer not null default 67108864,
    created_at        timestamptz not null default clock_timestamp(),
    constraint queue_pkey primary key (queue_id),
    constraint queue_name_key unique (name),
    constraint queue_slots_check check (slots between 3 and 10),
    constraint queue_term_check check (term between 0 and 9000000)
);
comment on table cascade_internal.queue is 'The queues of this database and their options.';
comment on column cascade_internal.queue.is_combined is 'Its events come from other sets: producers cannot insert, merge-leaves write into its partitions.';
comment on column cascade_internal.queue.clock_offset is 'txid of an event = txid_current() + clock_offset.';
comment on column cascade_internal.queue.is_copy is 'Events come from a provider: no inserts, no ticks of its own.';
comment on column cascade_internal.queue.timeline is 'The server''s timeline when this node became the root of a set: another one may have lost the tail.';
comment on column cascade_internal.queue.server is 'The server and database on which the clock was last set.';

-- A generation is one filling of a partition.  since is the clock of a transaction that
-- began after the register had moved here: every row of an older generation has a lower txid.
create table if not exists cascade_internal.generation (
    queue_id    integer not null,
    gen         bigint not null,
    since       bigint not null,
    switched_at timestamptz not null default clock_timestamp(),
    released    boolean not null default false,
    constraint generation_pkey primary key (queue_id, gen),
    constraint generation_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.generation is 'Fillings of partitions that still hold events; released ones wait to be emptied.';

create table if not exists cascade_internal.reservation (
    queue_id    integer not null,
    id          bigint not null,
    reserved_by text not null,
    reserved_at timestamptz not null default clock_timestamp(),
    constraint reservation_pkey primary key (queue_id, id),
    constraint reservation_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.reservation is 'Event ids handed out by reserve_id and not used yet.';
