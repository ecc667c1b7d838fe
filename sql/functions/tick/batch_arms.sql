-- cascade_internal.batch_arms(queue, prev, cur, columns, also) returns the query for the events
-- between two ticks, as text: numbers are literals, so every plan is made for them (a
-- generic one is 10 to 30 times slower), and partitions are named, so a reader never
-- meets the producers' locks on the parent.
--
-- In the batch are the transactions that cur sees and prev did not: those from prev.high up
-- to cur.high that are not open at cur, and those open at prev that no longer are.  Control
-- events belong to a batch, but are not shown to consumers.
create or replace function cascade_internal.batch_arms(
    queue cascade_internal.queue, prev cascade_internal.tick, cur cascade_internal.tick, columns text, also text default '')
returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_open  bigint[] := '{}';
    v_ended bigint[] := '{}';
    v_gen   bigint;
    v_arms  text[] := '{}';
    v_from  text;
begin
    if (batch_arms.cur)."open" <> '{}' then
        v_open := array(select x from unnest((batch_arms.cur)."open") as x where x >= (batch_arms.prev).high);
    end if;
    if (batch_arms.prev)."open" <> '{}' then
        v_ended := array(select x from unnest((batch_arms.prev)."open") as x
                         except select x from unnest((batch_arms.cur)."open") as x order by 1);
    end if;
    for v_gen in (batch_arms.prev).gen_low .. (batch_arms.cur).gen loop
        v_from := format('select %s from cascade_internal.event_%s_%s as e where %s', batch_arms.columns,
                         (batch_arms.queue).queue_id, v_gen % (batch_arms.queue).slots,
                         case batch_arms.also when '' then '' else batch_arms.also || ' and ' end);
        v_arms := v_arms || (v_from || format('e.txid >= %s and e.txid < %s', (batch_arms.prev).high, (batch_arms.cur).high)
                             || case when v_open = '{}' then '' else format(' and e.txid <> all (%L::bigint[])', v_open) end);
        if v_ended <> '{}' then
            v_arms := v_arms || (v_from || format('e.txid = any (%L::bigint[])', v_ended));
        end if;
    end loop;
    return array_to_string(v_arms, ' union all ');
end
$$;
comment on function cascade_internal.batch_arms(cascade_internal.queue, cascade_internal.tick, cascade_internal.tick, text, text)
    is 'The query for the events between two ticks.';
