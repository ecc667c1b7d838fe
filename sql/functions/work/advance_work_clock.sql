-- cascade_internal.advance_work_clock(by) has time pass for every message in work mode: what is due, expires, is leased or kept comes
-- nearer by so much.  For tests of applications (cascade.testing.Clock), and for the owner of the schema alone.
create or replace function cascade_internal.advance_work_clock(by interval)
returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_table   text;
    v_columns text[];
begin
    for v_table, v_columns in values
        ('work_held', '{due, expires_at}'::text[]),
        ('work_waiting', '{available_at, expires_at}'),
        ('work_claim', '{until}'),
        ('work_chunk', '{done_at}'),
        ('work_dead', '{died_at, expires_at}'),
        ('work_history', '{ended_at}'),
        ('work_dedupe', '{until}')
    loop
        execute format('update cascade_internal.%I set %s', v_table,
                       (select string_agg(format('%I = %1$I - $1', c), ', ') from unnest(v_columns) as c))
          using advance_work_clock.by;
    end loop;
end
$$;
comment on function cascade_internal.advance_work_clock(interval) is 'Has time pass for messages in work mode, in tests.';
