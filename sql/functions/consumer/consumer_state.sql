-- Where every consumer of a queue stands, with its tick.
create or replace function cascade_internal.consumer_state(queue cascade_internal.queue)
returns table (consumer text, subscription_id integer, tick_id bigint, "time" timestamptz, total bigint, gen_low bigint,
               head bigint, open_batches cascade_internal.open_batch[], at timestamptz, is_movable boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_subscription cascade_internal.subscription;
    v_position     cascade_internal.position;
    v_tick         cascade_internal.tick;
begin
    for v_subscription in
        select s.* from cascade_internal.subscription as s
         where s.queue_id = (consumer_state.queue).queue_id
         order by s.consumer
    loop
        v_position := cascade_internal.newest_position(consumer_state.queue, v_subscription.subscription_id);
        v_tick := cascade_internal.find_tick((consumer_state.queue).queue_id, (consumer_state.queue).slots, v_position.tick_id);
        consumer_state.consumer := v_subscription.consumer;
        consumer_state.subscription_id := v_subscription.subscription_id;
        consumer_state.tick_id := v_position.tick_id;
        consumer_state."time" := v_tick."time";
        consumer_state.total := v_tick.total;
        consumer_state.gen_low := v_tick.gen_low;
        consumer_state.head := v_position.head;
        consumer_state.open_batches := v_position.open_batches;
        consumer_state.at := v_position.at;
        consumer_state.is_movable := v_subscription.is_movable;
        return next;
    end loop;
end
$$;
comment on function cascade_internal.consumer_state(cascade_internal.queue) is 'Where every consumer of a queue stands.';
