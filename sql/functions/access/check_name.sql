-- cascade_internal.check_name(kind, name): names are quoted wherever they are used, but a
-- queue is also a table name of at most 63 bytes and turns up in paths and metric labels.
create or replace function cascade_internal.check_name(kind text, name text)
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if check_name.name is null or check_name.name = '' then
        raise exception 'the % name is %', check_name.kind, case when check_name.name is null then 'null' else 'empty' end
            using errcode = 'QC001', hint = 'Give it a name.';
    elsif check_name.kind = 'queue' and check_name.name !~ '^[A-Za-z0-9_][A-Za-z0-9_-]{0,39}$' then
        raise exception 'queue name % cannot be used', quote_literal(left(check_name.name, 80))
            using errcode = 'QC001',
                  hint = 'Up to 40 letters, digits, underscores and hyphens, not beginning with a hyphen.';
    elsif check_name.kind <> 'queue'
          and (length(check_name.name) > 100 or check_name.name ~ '[[:cntrl:]]' or check_name.name ~ '^\.') then
        raise exception '% name % cannot be used', check_name.kind, quote_literal(left(check_name.name, 80))
            using errcode = 'QC001',
                  hint = 'Up to 100 characters, no control characters; a leading dot is for Cascade itself.';
    end if;
end
$$;
comment on function cascade_internal.check_name(text, text) is 'Refuses names that cannot be used, with QC001.';
