-- A reign is what one node does without a break: its term, and those it opened itself after it, because an offer was withdrawn, ids
-- ran out, or its server changed.  Whoever is promoted from any of them ends them all.
create or replace function cascade_internal.is_continued(term cascade_internal.term)
returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return (is_continued.term).cause in ('withdrawn', 'range', 'rewind')
       and exists (select from cascade_internal.term as p
                    where p.queue_id = (is_continued.term).queue_id and p.uid = (is_continued.term).parent_uid and p.node = (is_continued.term).node);
end
$$;
comment on function cascade_internal.is_continued(cascade_internal.term) is 'Whether a term goes on with the reign of the one before it.';

create or replace function cascade_internal.reign_of(queue_id integer, uid uuid)
returns uuid
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_term cascade_internal.term;
    v_uid  uuid := reign_of.uid;
begin
    loop
        select t.* into v_term from cascade_internal.term as t where t.queue_id = reign_of.queue_id and t.uid = v_uid;
        exit when v_term.uid is null or not cascade_internal.is_continued(v_term);
        v_uid := v_term.parent_uid;
    end loop;
    return v_uid;
end
$$;
comment on function cascade_internal.reign_of(integer, uuid) is 'The term with which a reign began.';

-- The pairs of terms of which neither ended the other: two numbers alike, or two promotions from one reign.
create or replace function cascade_internal.rival_terms(queue_id integer)
returns table (one uuid, other uuid)
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    return query
        with known as (
            select t.uid, t.number, t.parent_uid, cascade_internal.is_continued(t) as is_continued,
                   cascade_internal.reign_of(t.queue_id, t.parent_uid) as parent_reign
              from cascade_internal.term as t where t.queue_id = rival_terms.queue_id and t.voided_by is null)
        select a.uid, b.uid
          from known as a join known as b on a.uid < b.uid
         where (a.number = b.number
                or a.is_continued = b.is_continued
                   and case when a.is_continued then a.parent_uid = b.parent_uid else a.parent_reign is not distinct from b.parent_reign end)
           and not exists (select from cascade_internal.path_terms(rival_terms.queue_id, a.uid) as p where p.uid = b.uid)
           and not exists (select from cascade_internal.path_terms(rival_terms.queue_id, b.uid) as p where p.uid = a.uid);
end
$$;
comment on function cascade_internal.rival_terms(integer) is 'Pairs of terms that exclude one another.';

-- The promotion that ended the reign in which a tick lies, before that tick or, for a root, anywhere.
create or replace function cascade_internal.ended_by(queue_id integer, tick cascade_internal.tick, is_root boolean)
returns cascade_internal.term
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    v_reign constant uuid := cascade_internal.reign_of(ended_by.queue_id, (ended_by.tick).term_uid);
    v_term  cascade_internal.term;
begin
    select t.* into v_term
      from cascade_internal.term as t
     where t.queue_id = ended_by.queue_id and t.voided_by is null
       and not exists (select from cascade_internal.path_terms(ended_by.queue_id, (ended_by.tick).term_uid) as p where p.uid = t.uid)
       and (cascade_internal.is_past(ended_by.tick, t)
            or not cascade_internal.is_continued(t)
               and cascade_internal.reign_of(ended_by.queue_id, t.parent_uid) = v_reign
               and (ended_by.is_root
                    or not exists (select from cascade_internal.path_terms(ended_by.queue_id, t.uid) as p where p.uid = (ended_by.tick).term_uid)))
     order by t.number
     limit 1;
    return v_term;
end
$$;
comment on function cascade_internal.ended_by(integer, cascade_internal.tick, boolean) is 'The term that ended the reign of a tick, if one did.';
