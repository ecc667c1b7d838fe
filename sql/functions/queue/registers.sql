-- Small functions are PL/pgSQL throughout: before version 18 PostgreSQL plans the body of an SQL
-- function anew on every call unless it can be put in place, which a search_path forbids.
--
-- Two sequences serve each queue as registers: numbers that every snapshot sees at once and
-- that no transaction takes back.  register_<id> holds the generation that receives events
-- and whether the ticker asks to be woken; first_<id> the oldest generation not yet emptied.
--
-- One number holds both facts of the first register, arranged so that the slot's default
-- needs one look: register % (2 * slots) is the slot, plus slots while the ticker is asleep.
create or replace function cascade_internal.register_value(gen bigint, armed boolean, slots smallint)
returns bigint
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select register_value.gen / register_value.slots * 2 * register_value.slots
         + register_value.gen % register_value.slots
         + case when register_value.armed then register_value.slots else 0 end
$$;
comment on function cascade_internal.register_value(bigint, boolean, smallint) is 'Packs a generation and the wish to be woken into one number.';

create or replace function cascade_internal.current_gen(queue_id integer, slots smallint)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_value constant bigint := pg_sequence_last_value(('cascade_internal.register_' || current_gen.queue_id)::regclass);
begin
    return v_value / (2 * current_gen.slots) * current_gen.slots + v_value % current_gen.slots;
end
$$;
comment on function cascade_internal.current_gen(integer, smallint) is 'The generation that receives events now.';

create or replace function cascade_internal.is_armed(queue_id integer, slots smallint)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_sequence_last_value(('cascade_internal.register_' || is_armed.queue_id)::regclass) / is_armed.slots % 2 = 1;
end
$$;
comment on function cascade_internal.is_armed(integer, smallint) is 'Whether inserting transactions wake the ticker.';

-- Both registers move only while the queue's row is locked.
create or replace function cascade_internal.set_register(queue cascade_internal.queue, gen bigint, armed boolean)
returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
    select setval(format('cascade_internal.register_%s', (set_register.queue).queue_id)::regclass,
                  cascade_internal.register_value(set_register.gen, set_register.armed, (set_register.queue).slots))
$$;
comment on function cascade_internal.set_register(cascade_internal.queue, bigint, boolean) is 'Moves a queue''s register.';

create or replace function cascade_internal.first_gen(queue_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_sequence_last_value(('cascade_internal.first_' || first_gen.queue_id)::regclass);
end
$$;
comment on function cascade_internal.first_gen(integer) is 'The oldest generation whose events are all there.';

create or replace function cascade_internal.oldest_gen(queue_id integer)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    return (select min(g.gen) from cascade_internal.generation as g where g.queue_id = oldest_gen.queue_id);
end
$$;
comment on function cascade_internal.oldest_gen(integer) is 'The oldest generation that is not emptied.';

-- A dump reads sequences later than tables: after a restore first_<id> may be ahead of what is
-- there.  While generations are intact it never is: they are released first, in a transaction
-- of their own.  So the register is read before the table.
create or replace function cascade_internal.mend_first(queue_id integer)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_first  constant bigint := cascade_internal.first_gen(mend_first.queue_id);
    v_oldest bigint;
begin
    select min(g.gen) into v_oldest
      from cascade_internal.generation as g
     where g.queue_id = mend_first.queue_id
       and not g.released;
    if v_first > v_oldest then
        perform setval(format('cascade_internal.first_%s', mend_first.queue_id)::regclass, v_oldest);
    end if;
end
$$;
comment on function cascade_internal.mend_first(integer) is 'Sets a register back that a restored dump had ahead.';

-- Called by the slot's default while the ticker sleeps: wakes it when the transaction
-- commits, and returns the slot.  It runs as the producer, who may call it only this way.
create or replace function cascade_internal.wake(register regclass, slots smallint)
returns "char"
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify('cascade_insert', '');
    return (pg_sequence_last_value(wake.register) % wake.slots)::text::"char";
end
$$;
comment on function cascade_internal.wake(regclass, smallint) is 'Wakes a sleeping ticker at commit.';
