-- Combined sets: where each part stands, as the log of the combined set says.  A merge-leaf's place is its own newest
-- tick; these rows are for carriers without one, and for those that have to begin.
create table if not exists cascade_internal.part (
    queue_id integer not null,
    part     text not null,
    set_uid  uuid not null,
    mark     jsonb not null,
    fork     jsonb,
    constraint part_pkey primary key (queue_id, part),
    constraint part_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.part is 'The parts of each combined set that is carried here.';
comment on column cascade_internal.part.mark is 'The part''s tick at the last switch of generations; what came later is in the log.';
comment on column cascade_internal.part.fork is 'The part''s tick where the present term of the combined set began.';

-- What the combined queue has of a part, and the part's path has not, or not any more: if it is put back into the
-- part, it must not come a second time.
create table if not exists cascade_internal.merged_already (
    queue_id  integer not null,
    part      text not null,
    origin    text not null,
    first_id  bigint not null,
    last_id   bigint not null,
    fork_uid  uuid not null,
    constraint merged_already_pkey primary key (queue_id, part, origin, first_id, fork_uid),
    constraint merged_already_range_check check (first_id <= last_id),
    constraint merged_already_queue_fkey foreign key (queue_id)
        references cascade_internal.queue on delete cascade
);
comment on table cascade_internal.merged_already is 'Events that a combined queue has although its part lost them: they are skipped if they come again.';
comment on column cascade_internal.merged_already.first_id is 'A range of ids: every merge looks at all of them, so a large loss must not be many rows.';
comment on column cascade_internal.merged_already.fork_uid is 'The control event that said so.';
