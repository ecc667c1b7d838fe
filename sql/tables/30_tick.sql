-- The ticks of queue 7 are in the typed tables tick_7_0 ... tick_7_<slots - 1>, next to the
-- event partitions, and leave with them.
do $$
begin
    if to_regtype('cascade_internal.tick') is null then
        create type cascade_internal.tick as (
            tick_id   bigint,
            prev_tick bigint,
            "time"    timestamptz,
            low       bigint,
            high      bigint,
            "open"    bigint[],
            event_seq bigint,
            total     bigint,
            term_uid  uuid,
            chain     bytea,
            gen       bigint,
            gen_low   bigint
        );
        comment on type cascade_internal.tick is 'A cut through the log: which transactions had committed.';
        comment on column cascade_internal.tick.low is 'Oldest transaction still open (the snapshot''s xmin), on the queue''s clock.';
        comment on column cascade_internal.tick.high is 'First transaction not yet begun (the snapshot''s xmax), on the queue''s clock.';
        comment on column cascade_internal.tick."open" is 'Transactions between low and high that were open.';
        comment on column cascade_internal.tick.event_seq is 'Highest event id handed out, read after the snapshot.';
        comment on column cascade_internal.tick.total is 'Events in all batches up to this tick, control events aside: the difference of two ticks counts the events between them.';
        comment on column cascade_internal.tick.chain is 'Hash over the previous chain, the term, this tick and a random value: equal chains prove equal paths.';
        comment on column cascade_internal.tick.gen is 'Generation that received events when the tick was made; local to this database.';
        comment on column cascade_internal.tick.gen_low is 'Oldest generation that may still hold events of later batches; local to this database.';
    end if;
end
$$;
