-- cascade.version() is the version of the installed schema.
create or replace function cascade.version()
returns integer
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
as $$
begin
    return (select max(v.version) from cascade_internal.schema_version as v);
end
$$;
comment on function cascade.version() is 'The version of the installed schema.';
