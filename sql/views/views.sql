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
