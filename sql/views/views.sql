create or replace view cascade.queues as
select q.* from cascade_internal.list_queues(current_user) as q;
comment on view cascade.queues is 'Queues, their last tick, size and options; ids_after_tick counts ids taken since the last tick.';

create or replace view cascade.ticks as
select t.* from cascade_internal.list_ticks() as t;
comment on view cascade.ticks is 'Every tick still held; events is the number of events in the batch that ends with it.';

create or replace view cascade.consumers as
select c.* from cascade_internal.list_consumers(current_user) as c;
comment on view cascade.consumers is 'Where every consumer stands and how far it is behind, in ticks, events and seconds.';

create or replace view cascade.rotation as
select r.* from cascade_internal.list_rotation() as r;
comment on view cascade.rotation is 'Which generation each queue writes to, what is still held, and what keeps it.';

create or replace view cascade.nodes as
select n.* from cascade_internal.list_nodes() as n;
comment on view cascade.nodes is 'This database''s node in each set: its role, where it stands, and what its provider said.';

create or replace view cascade.members as
select m.* from cascade_internal.list_members() as m;
comment on view cascade.members is 'The members of each set, and how far each was heard to have come; the root hears of all.';

create or replace view cascade.locations as
select m."set", m.node, m.role, m.location->>'database' as database, m.location->>'dsn' as dsn
  from cascade_internal.list_members() as m
 where m.state = 'live';
comment on view cascade.locations is 'Where every live member is; no passwords are kept here.';

create or replace view cascade.parts as
select p.* from cascade_internal.list_parts() as p;
comment on view cascade.parts is 'The parts of each combined set, how far each is merged, and the merge-leaf here that copies or tracks it.';

create or replace view cascade.terms as
select t.* from cascade_internal.list_terms() as t;
comment on view cascade.terms is 'The reigns of each set''s roots.';

create or replace view cascade.certificates as
select c.* from cascade_internal.list_certificates() as c;
comment on view cascade.certificates is 'What each failover may have lost, and what became of it; tail = republished + discarded + duplicates + held.';

create or replace view cascade.quarantine as
select q.* from cascade_internal.list_quarantine() as q;
comment on view cascade.quarantine is 'Events that were set aside in this database, by term and state; cascade.read_quarantine() reads them.';

create or replace view cascade.journal as
select j.* from cascade_internal.list_journal() as j;
comment on view cascade.journal is 'Every step of an operation in this database: it explains, and drives nothing.';

create or replace view cascade.repairs as
select r.* from cascade_internal.list_repairs() as r;
comment on view cascade.repairs is 'Repairs of this database''s copies; cascade.read_repair() reads the events they took out or put in.';

create or replace view cascade.staged_jobs as
select q.name as queue, s.name as job, s.begun_by, s.begun_at, s.published_at, s.events
  from cascade_internal.staging as s
  join cascade_internal.queue as q using (queue_id);
comment on view cascade.staged_jobs is 'Jobs that publish many rows at once; a named one stays listed, and is never published again.';

create or replace view cascade.work as
select w.* from cascade_internal.list_work(current_user) as w;
comment on view cascade.work is 'What waits for consumers in work mode, by class, and what they work on.';

create or replace view cascade.work_stats as
select w.* from cascade_internal.list_work_stats(current_user) as w;
comment on view cascade.work_stats is 'What consumers in work mode did lately, how long it took, and what was counted and not delivered.';
