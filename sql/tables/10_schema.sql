-- The three schemas (docs/adr/0003): producers insert into queue, everybody else calls
-- cascade, and nobody but the owner may name anything in cascade_internal.
create schema if not exists queue;
comment on schema queue is 'One table per queue and nothing else: producers insert here.';
create schema if not exists cascade;
comment on schema cascade is 'The interface of Cascade: functions and views.';
create schema if not exists cascade_internal;
comment on schema cascade_internal is 'Tables, partitions and helpers of Cascade; granted to nobody.';

create table if not exists cascade_internal.schema_version (
    version      integer not null,
    installed_at timestamptz not null default clock_timestamp(),
    installed_by text not null default current_user,
    constraint schema_version_pkey primary key (version)
);
comment on table cascade_internal.schema_version is 'Which versions of the schema were installed here, and when.';
