-- cascade.create_queue(queue, options) makes the table queue.<name> and all that belongs to
-- it, with a first tick.  True when it was made; false when it was there already with these
-- options; QC201 when it was there with others.
create or replace function cascade.create_queue(queue text, options jsonb default '{}')
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return cascade_internal.create_queue(create_queue.queue, create_queue.options, false);
end
$$;
comment on function cascade.create_queue(text, jsonb) is 'Makes a queue; a second call with the same options changes nothing.';

create or replace function cascade_internal.create_queue(queue text, options jsonb, is_combined boolean)
returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_queue cascade_internal.queue;
begin
    perform cascade_internal.check_name('queue', create_queue.queue);
    perform cascade_internal.check_options(create_queue.options, true);
    insert into cascade_internal.queue (name, server, slots, is_combined)
    values (create_queue.queue, cascade_internal.server_identity(), coalesce((create_queue.options->>'slots')::numeric::smallint, 3),
            create_queue.is_combined)
    on conflict on constraint queue_name_key do nothing
    returning * into v_queue;
    if v_queue.queue_id is null then
        v_queue := cascade_internal.find_queue(create_queue.queue);
        if not cascade_internal.queue_options(v_queue) @> cascade_internal.normal_options(create_queue.options) then
            raise exception 'queue "%" exists already, with other options', create_queue.queue
                using errcode = 'QC201', hint = 'cascade.alter_queue() changes them; the view cascade.queues shows them.';
        end if;
        return false;
    end if;
    v_queue := cascade_internal.store_options(v_queue.queue_id, create_queue.options);
    perform cascade_internal.create_tables(v_queue);
    perform cascade_internal.grant_admin(v_queue);
    insert into cascade_internal.generation (queue_id, gen, since)
    values (v_queue.queue_id, 0, txid_current() + v_queue.clock_offset);
    perform cascade_internal.cut(v_queue.queue_id, false);
    return true;
end
$$;
comment on function cascade_internal.create_queue(text, jsonb, boolean) is 'Makes a queue, or the queue of a combined set.';

create or replace function cascade_internal.create_tables(queue cascade_internal.queue)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_id    constant integer := (create_tables.queue).queue_id;
    v_name  constant text := (create_tables.queue).name;
    v_slots constant smallint := (create_tables.queue).slots;
    v_term  constant bigint := (create_tables.queue).term * 1000000000000;
    v_slot  integer;
    v_whens text := '';
begin
    execute format('create sequence cascade_internal.event_id_%s minvalue %s start %2$s maxvalue %s',
                   v_id, v_term + 1, v_term + 999999999999);
    execute format('create sequence cascade_internal.register_%s minvalue 0 start 0', v_id);
    execute format('create sequence cascade_internal.first_%s minvalue 0 start 0', v_id);
    perform cascade_internal.set_register(create_tables.queue, 0, false);
    perform setval(format('cascade_internal.first_%s', v_id)::regclass, 0);

    -- "case when txid_current() > 0" has the transaction take its id before it looks at the
    -- register; the inner case reads the register once.  slot is "char", one byte, so that
    -- it mostly vanishes in the row's alignment (docs/adr/0006).
    for v_slot in 0 .. v_slots - 1 loop
        v_whens := v_whens || format(' when %s then ''%1$s''::"char"', v_slot);
    end loop;
    execute format($ddl$
        create table queue.%1$I (
            id        bigint not null default nextval('cascade_internal.event_id_%2$s'),
            "time"    timestamptz not null default now(),
            txid      bigint not null default %3$s,
            slot      "char" not null default
                (case when txid_current() > 0 then
                    case pg_sequence_last_value('cascade_internal.register_%2$s') %% %4$s
                        %5$s else cascade_internal.wake('cascade_internal.register_%2$s', '%6$s') end
                 end),
            type      text,
            key       text,
            payload   json not null,
            headers   json,
            origin    text,
            origin_id bigint
        ) partition by list (slot)
        $ddl$, v_name, v_id, cascade_internal.clock_default(create_tables.queue), 2 * v_slots, v_whens, v_slots);
    execute format('comment on table queue.%I is %L', v_name,
                   case when (create_tables.queue).is_combined then 'A combined queue of Cascade: its events come from its parts.'
                        else 'A queue of Cascade: insert (type, key, payload, headers) to enqueue.' end);
    if (create_tables.queue).is_combined then
        execute format('create trigger cascade_combined before insert on queue.%I for each statement'
                       ' execute function cascade_internal.refuse_combined()', v_name);
    end if;

    for v_slot in 0 .. v_slots - 1 loop
        execute format('create table cascade_internal.event_%s_%s partition of queue.%I for values in (%2$L)'
                       ' with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', v_id, v_slot, v_name);
        -- Whoever writes to a partition by name, as copying does, need not know its slot.
        execute format('alter table only cascade_internal.event_%s_%s alter column slot set default %2$L', v_id, v_slot);
        execute format('create index event_%s_%s_txid_idx on cascade_internal.event_%1$s_%2$s (txid)', v_id, v_slot);
        if (create_tables.queue).is_copy or (create_tables.queue).is_combined then
            execute format('create index event_%s_%s_control_idx on cascade_internal.event_%1$s_%2$s (txid)'
                           ' where origin = ''.cascade''', v_id, v_slot);
        end if;
        execute format('create table cascade_internal.tick_%s_%s of cascade_internal.tick'
                       ' (constraint tick_%1$s_%2$s_pkey primary key (tick_id))'
                       ' with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', v_id, v_slot);
        execute format('create table cascade_internal.position_%s_%s of cascade_internal.position'
                       ' (constraint position_%1$s_%2$s_pkey primary key (subscription_id, n))'
                       ' with (autovacuum_enabled = false, toast.autovacuum_enabled = false)', v_id, v_slot);
    end loop;
end
$$;
comment on function cascade_internal.create_tables(cascade_internal.queue) is 'Makes the table, partitions and registers of a new queue.';

create or replace function cascade_internal.clock_default(queue cascade_internal.queue)
returns text
language sql immutable set search_path = pg_catalog, pg_temp
as $$
    select case (clock_default.queue).clock_offset
               when 0 then 'txid_current()'
               else format('txid_current() + %s', (clock_default.queue).clock_offset)
           end
$$;
comment on function cascade_internal.clock_default(cascade_internal.queue) is 'The default of txid: the offset is a constant in it, so no snapshot reads an old one.';

create or replace function cascade_internal.server_identity()
returns text
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    return (select c.system_identifier || '/' || d.oid
              from pg_control_system() as c, pg_catalog.pg_database as d
             where d.datname = current_database());
exception when others then
    return ''; -- Some managed servers hide it; a clock that goes back is noticed all the same.
end
$$;
comment on function cascade_internal.server_identity() is 'Tells one server''s transaction ids from another''s.';
