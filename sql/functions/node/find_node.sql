-- cascade_internal.find_node(set) returns this database's node in a set, or raises QC105.
create or replace function cascade_internal.find_node("set" text)
returns cascade_internal.node
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node;
begin
    select n.* into v_node
      from cascade_internal.node as n
      join cascade_internal.queue as q using (queue_id)
     where q.name = find_node."set";
    if not found then
        raise exception 'this database has no node in set "%"', coalesce(find_node."set", '(null)')
            using errcode = 'QC105', hint = 'cascade set create makes a set and its root; the daemon makes branches and leaves.';
    end if;
    return v_node;
end
$$;
comment on function cascade_internal.find_node(text) is 'This database''s node in a set, or QC105.';

create or replace function cascade_internal.find_root("set" text)
returns cascade_internal.node
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node := cascade_internal.find_node(find_root."set");
begin
    if v_node.role <> 'root' then
        raise exception 'node "%" is a % of set "%"; only the root "%" decides this',
                        v_node.node, v_node.role, find_root."set", cascade_internal.root_name(v_node.queue_id)
            using errcode = 'QC206', hint = 'Connect to the root''s database; the view cascade.locations says where it is.';
    end if;
    return v_node;
end
$$;
comment on function cascade_internal.find_root(text) is 'This database''s node, which must be the root, or QC206.';

create or replace function cascade_internal.root_name(queue_id integer)
returns text
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (select m.node from cascade_internal.member as m
             where m.queue_id = root_name.queue_id and m.role = 'root'
             order by m.version desc limit 1);
end
$$;
comment on function cascade_internal.root_name(integer) is 'The node that is the root of a queue''s set.';

-- A node that was dropped gets nothing more, so nobody should copy from it: they would just wait.  It
-- learns of it from its provider's answer, or from the log, whichever comes first.
create or replace function cascade_internal.is_dropped(queue_id integer)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select
                     from cascade_internal.node as n
                     left join cascade_internal.member as m on m.queue_id = n.queue_id and m.node = n.node
                    where n.queue_id = is_dropped.queue_id
                      and (m.state <> 'live' or n.answer = 'dropped'));
end
$$;
comment on function cascade_internal.is_dropped(integer) is 'Whether this database''s own node was dropped or marked dead.';

create or replace function cascade_internal.raise_is_copy(queue cascade_internal.queue, what text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_node cascade_internal.node;
    v_root text := cascade_internal.root_name((raise_is_copy.queue).queue_id);
begin
    select n.* into v_node from cascade_internal.node as n where n.queue_id = (raise_is_copy.queue).queue_id;
    raise exception 'queue "%" % here: this database is % "%" of the set, the root is "%"',
                    (raise_is_copy.queue).name, raise_is_copy.what, v_node.role, v_node.node, v_root
        using errcode = 'QC401',
              hint = format('Do it at the root%s.',
                            (select ', database ' || (m.location->>'database') from cascade_internal.member as m
                              where m.queue_id = v_node.queue_id and m.node = v_root));
end
$$;
comment on function cascade_internal.raise_is_copy(cascade_internal.queue, text) is 'Raises QC401, naming the role and the root.';

-- The fence: a trigger on the parent table, which every producer meets and no copier does.
create or replace function cascade_internal.refuse_insert()
returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform cascade_internal.raise_is_copy(cascade_internal.find_queue(tg_table_name), 'takes no inserts');
    return null;
end
$$;
comment on function cascade_internal.refuse_insert() is 'Makes a queue refuse inserts.';

create or replace function cascade_internal.check_droppable(queue cascade_internal.queue, force boolean)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_others text;
begin
    select string_agg(quote_ident(m.node), ', ' order by m.node) into v_others
      from cascade_internal.member as m
      join cascade_internal.node as n using (queue_id)
     where m.queue_id = (check_droppable.queue).queue_id
       and n.role = 'root'
       and m.node <> n.node
       and m.state = 'live';
    if v_others is not null and not check_droppable.force then
        raise exception 'queue "%" belongs to a set with other members: %', (check_droppable.queue).name, v_others
            using errcode = 'QC202', hint = 'Drop them first (cascade node drop), or pass force => true.';
    end if;
end
$$;
comment on function cascade_internal.check_droppable(cascade_internal.queue, boolean) is 'Refuses to drop the root of a set that has other members.';

-- cascade.node_generation(set): whether anything was switched, paused or dropped since; cheap.
create or replace function cascade.node_generation("set" text)
returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (cascade_internal.find_node(node_generation."set")).generation;
end
$$;
comment on function cascade.node_generation(text) is 'The generation of this database''s node in a set.';
