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

-- Where the root of a set is now, as far as this database knows; a location never holds a password.  An old root
-- whose offer was taken knows who reigns next before anybody published it.
create or replace function cascade_internal.root_location(queue_id integer, out node text, out database text, out dsn text)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    select m.node, m.location->>'database', m.location->>'dsn'
      into root_location.node, root_location.database, root_location.dsn
      from cascade_internal.member as m
      left join (select h.target
                   from cascade_internal.handover as h
                   join cascade_internal.queue as q on q.queue_id = h.queue_id and q.term_uid = h.term_uid
                   join cascade_internal.node as n on n.queue_id = h.queue_id and n.role = 'root'
                  where h.queue_id = root_location.queue_id and h.state = 'taken') as t on t.target = m.node
     where m.queue_id = root_location.queue_id and (m.role = 'root' or t.target is not null)
     order by t.target is not null desc, m.version desc limit 1;
end
$$;
comment on function cascade_internal.root_location(integer) is 'Where the root of a queue''s set is, as far as is known here.';

-- Raises QC401.  DETAIL is for programs: {"set", "role", "node", "root", "database", "dsn", "cause"}.  The root
-- is null where an operator has to decide first, and this node's own name while it is being moved: then
-- the same statement succeeds in a moment, here or where the next refusal says.
create or replace function cascade_internal.raise_is_copy(queue cascade_internal.queue, what text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_name  constant text := (raise_is_copy.queue).name;
    v_node  cascade_internal.node;
    v_fence cascade_internal.fence;
    v_root  text;
    v_base  text;
    v_dsn   text;
    v_fact  text;
    v_hint  text;
begin
    select n.* into v_node from cascade_internal.node as n where n.queue_id = (raise_is_copy.queue).queue_id;
    select f.* into v_fence from cascade_internal.fence as f where f.queue_id = (raise_is_copy.queue).queue_id;
    select r.node, r.database, r.dsn into v_root, v_base, v_dsn from cascade_internal.root_location((raise_is_copy.queue).queue_id) as r;
    v_hint := format('Do it at the root%s.', ', database ' || v_base);
    if v_node.role is distinct from 'root' then
        v_fence.cause := null;
        v_fact := format('this database is %s "%s" of the set, the root is "%s"', v_node.role, v_node.node, v_root);
    elsif v_fence.cause = 'conflict' then
        v_root := null; v_base := null; v_dsn := null;
        v_fact := format('root "%s" is fenced, another node was made the root too%s', v_node.node, ': ' || v_fence.detail);
        v_hint := format('An operator keeps one of them: cascade resolve %s --keep UID.', v_name);
    elsif v_root <> v_node.node then
        v_fact := format('the reign of "%s" is over, the root is "%s"%s', v_node.node, v_root, ': ' || v_fence.detail);
    elsif v_fence.cause in ('over', 'rewound') then
        v_root := null; v_base := null; v_dsn := null;
        v_fact := format('root "%s" is fenced, %s%s', v_node.node,
                         case v_fence.cause when 'over' then 'its reign is over' else 'its database has lost events that other nodes have' end,
                         ': ' || v_fence.detail);
        v_hint := 'Where the next root is, is not known here: cascade status shows it; cascade failover makes one.';
    else
        v_root := v_node.node;
        v_fence.cause := 'operation';
        v_fact := format('root "%s" is fenced, the root is being moved%s', v_node.node, ': ' || v_fence.detail);
        v_hint := format('Try again in a moment%s.', ', at the latest at ' || v_fence.expires_at::text);
    end if;
    raise exception 'queue "%" % here: %', v_name, raise_is_copy.what, v_fact
        using errcode = 'QC401', hint = v_hint,
              detail = jsonb_build_object('set', v_name, 'role', v_node.role, 'node', v_node.node, 'root', v_root,
                                          'database', v_base, 'dsn', v_dsn, 'cause', v_fence.cause);
end
$$;
comment on function cascade_internal.raise_is_copy(cascade_internal.queue, text) is 'Raises QC401: why, and where the root is.';

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
