-- cascade_internal.is_operator(caller): the owner of the schema, and members of
-- cascade_admin and cascade_node, where those roles exist.
create or replace function cascade_internal.is_operator(caller name)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_has_role(is_operator.caller, (select n.nspowner from pg_catalog.pg_namespace as n where n.nspname = 'cascade'), 'usage')
        or exists (select
                     from pg_catalog.pg_roles as r
                    where r.rolname in ('cascade_admin', 'cascade_node')
                      and pg_has_role(is_operator.caller, r.oid, 'usage'));
end
$$;
comment on function cascade_internal.is_operator(name) is 'Whether a role may do everything.';
