-- The tail of a former combined-root.  What it had merged beyond the fork is merged again by the new one, from the parts; only what a part
-- has lost as well is nowhere else.  So each event is looked up by where it came from: if the log has it, it is a duplicate,
-- else an orphan, which may be the only copy, and can be put back.

-- Those of the events set aside at some node that a combined log has, by origin and content; compare cascade.find_logged().
create or replace function cascade_internal.find_merged(queue cascade_internal.queue, keys jsonb)
returns jsonb
language plpgsql volatile set search_path = pg_catalog, pg_temp set jit = off
as $$
declare
    v_found jsonb;
begin
    execute format(
        'with k as materialized (select * from jsonb_to_recordset($1) as k(term_uid uuid, id bigint, digest text, origin text, origin_id bigint) where k.origin is not null)'
        ' select coalesce(jsonb_agg(jsonb_build_object(''term_uid'', k.term_uid, ''id'', k.id, ''new_id'', e.id)), ''[]'')'
        ' from k join (%s) as e on e.origin_id = k.origin_id and e.origin = k.origin'
        ' where cascade_internal.event_digest(e."time", e.type, e.key, e.payload::text, e.headers::text) = k.digest',
        (select string_agg(format('select * from cascade_internal.event_%s_%s', (find_merged.queue).queue_id, s), ' union all ')
           from generate_series(0, (find_merged.queue).slots - 1) as s))
       into v_found using find_merged.keys;
    return v_found;
end
$$;
comment on function cascade_internal.find_merged(cascade_internal.queue, jsonb) is 'Which of the events set aside at some node a combined log has.';

-- Whether a part's path may still bring an event that came from it: then it is not known yet whether the part has lost it.
create or replace function cascade_internal.may_still_come(queue cascade_internal.queue, origin text, origin_id bigint)
returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_id     constant integer := (may_still_come.queue).queue_id;
    -- Otherwise it came through another combined set, and any part may be that.
    v_is_own constant boolean := exists (select from cascade_internal.part as p where p.queue_id = v_id and p.part = may_still_come.origin);
    v_term   constant bigint := may_still_come.origin_id / 1000000000000;
    v_part   record;
begin
    for v_part in
        select c.part, (m).tick_id / 1000000000000 as term, (m).event_seq, (m)."open" <> '{}' as is_open
          from cascade_internal.current_marks(may_still_come.queue) as c
         cross join lateral jsonb_populate_record(null::cascade_internal.tick, c.mark) as m
         where c.part = may_still_come.origin or not v_is_own
    loop
        -- Merged into a later term, or beyond its id with nothing left open: whatever the part has of it is here.
        if v_part.is_open and (v_part.term = v_term or not v_is_own)
           or v_is_own and (v_part.term < v_term or v_part.term = v_term and v_part.event_seq < may_still_come.origin_id) then
            return v_part.part;
        end if;
    end loop;
    return null;
end
$$;
comment on function cascade_internal.may_still_come(cascade_internal.queue, text, bigint) is 'The part that may still bring an event; null when none does.';

-- Puts an orphan into the combined log, once; compare cascade.republish().  If somebody puts it back into its part as well, it is skipped there.
create or replace function cascade_internal.republish_orphan(queue cascade_internal.queue, event jsonb, digest text)
returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
    v_origin  constant text := republish_orphan.event->>'origin';
    v_first   constant bigint := (republish_orphan.event->>'origin_id')::bigint;
    v_id      bigint := (cascade_internal.find_merged(republish_orphan.queue, jsonb_build_array(jsonb_build_object(
                            'origin', v_origin, 'origin_id', v_first, 'digest', republish_orphan.digest)))->0->>'new_id')::bigint;
    v_part    text;
    v_place   record;
    v_said    jsonb;
begin
    if v_id is not null then
        return v_id;
    end if;
    v_part := cascade_internal.may_still_come(republish_orphan.queue, v_origin, v_first);
    if v_part is not null then
        raise exception 'event % of set "%" may still come with part "%"', v_first, v_origin, v_part
            using errcode = 'QC209', hint = 'Wait until that part is merged further, then look again: what has come by then is a duplicate.';
    end if;
    v_place := cascade_internal.enter_combined(republish_orphan.queue);
    execute format('insert into cascade_internal.event_%s_%s ("time", txid, type, key, payload, headers, origin, origin_id)'
                   ' values ($1, $2, $3, $4, $5, $6, $7, $8) returning id', (republish_orphan.queue).queue_id, v_place.slot)
       into v_id
      using (republish_orphan.event->>'time')::timestamptz, v_place.txid, republish_orphan.event->>'type', republish_orphan.event->>'key',
            (republish_orphan.event->>'payload')::json, (republish_orphan.event->>'headers')::json, v_origin, v_first;
    for v_part in select p.part from cascade_internal.part as p where p.queue_id = (republish_orphan.queue).queue_id
                     and (p.part = v_origin or not exists (select from cascade_internal.part as o where o.queue_id = p.queue_id and o.part = v_origin)) loop
        v_said := jsonb_build_object('uid', gen_random_uuid(), 'part', v_part, 'merged', jsonb_build_array(jsonb_build_array(v_origin, v_first, v_first)));
        perform cascade_internal.post_mark(republish_orphan.queue, 'cascade.merged', v_said);
        perform cascade_internal.learn_merged(republish_orphan.queue, v_said);
    end loop;
    return v_id;
end
$$;
comment on function cascade_internal.republish_orphan(cascade_internal.queue, jsonb, text) is 'Puts an event that a part has lost into a combined log.';
