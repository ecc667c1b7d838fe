-- What was repaired on this node, for ever: which stretches of the log, and every event that was taken out or put in.  They belong to
-- the set by name: dropping the queue keeps them.
create table if not exists cascade_internal.repair (
    repair_id bigint generated always as identity,
    "set"     text not null,
    node      text not null,
    plan      uuid not null,
    provider  text not null,
    stretches jsonb not null,
    ticks     jsonb not null,
    removed   bigint not null,
    added     bigint not null,
    consumers jsonb not null,
    by_role   text not null default session_user,
    at        timestamptz not null default clock_timestamp(),
    constraint repair_pkey primary key (repair_id),
    constraint repair_plan_key unique ("set", node, plan)
);
comment on table cascade_internal.repair is 'Repairs of this node''s copy, and what they changed.';
comment on column cascade_internal.repair.ticks is 'Ticks that were taken out, as they were.';
comment on column cascade_internal.repair.consumers is 'Who had passed the ticks that were repaired, and so does not see what was put in.';

create table if not exists cascade_internal.repair_event (
    repair_id  bigint not null,
    is_removed boolean not null,
    id         bigint not null,
    "time"     timestamptz not null,
    txid       bigint not null,
    type       text,
    key        text,
    payload    json not null,
    headers    json,
    origin     text,
    origin_id  bigint,
    constraint repair_event_repair_fkey foreign key (repair_id)
        references cascade_internal.repair on delete cascade
);
create index if not exists repair_event_repair_idx on cascade_internal.repair_event (repair_id, id);
comment on table cascade_internal.repair_event is 'Events that a repair took out, whole, and those that it put in.';
