-- cascade.merge_marks(set, from_tick, to_tick): the marks in a combined log, after one tick up to another: what was merged in which
-- transaction, and which events of a part were lost to it.  With them every event of the combined queue can be traced to a range
-- of its part's ticks: an audit compares the two.
create or replace function cascade.merge_marks("set" text, from_tick bigint, to_tick bigint)
returns table (id bigint, txid bigint, type text, mark jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
declare
    v_queue cascade_internal.queue := cascade_internal.find_queue(merge_marks."set");
    v_from  cascade_internal.tick := cascade_internal.whole_tick(v_queue, merge_marks.from_tick);
    v_to    cascade_internal.tick := cascade_internal.find_tick(v_queue.queue_id, v_queue.slots, merge_marks.to_tick);
begin
    if not v_queue.is_combined then
        raise exception 'queue "%" combines nothing', v_queue.name
            using errcode = 'QC208', hint = 'Only combined sets have marks.';
    elsif v_to.tick_id is null or v_to.tick_id < v_from.tick_id then
        raise exception 'queue "%" has no tick % after tick %', v_queue.name, merge_marks.to_tick, merge_marks.from_tick
            using errcode = 'QC103', hint = 'The view cascade.ticks lists them.';
    end if;
    return query execute format('select e.id, e.txid, e.type, e.payload::jsonb from (%s) as e order by e.id',
        cascade_internal.batch_arms(v_queue, v_from, v_to, 'e.id, e.txid, e.type, e.payload',
            'e.origin = ''.cascade'' and e.type in (''cascade.tick'', ''cascade.fork'', ''cascade.merged'')'));
end
$$;
comment on function cascade.merge_marks(text, bigint, bigint) is 'The marks in a range of a combined log.';
