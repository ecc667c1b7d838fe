-- cascade.renew_batch(batch_id, lease) extends a worker's lease and returns when it ends.
create or replace function cascade_internal.change_lease(batch_id bigint, worker_gone boolean, lease interval, caller name)
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_found    record;
    v_position cascade_internal.position;
    v_batch    cascade_internal.open_batch;
begin
    if change_lease.lease is null or change_lease.lease not between interval '1 ms' and interval '1 year' then
        raise exception 'the lease must be positive, and a year at most' using errcode = 'QC003', hint = 'For example interval ''30 s''.';
    end if;
    v_found := cascade_internal.find_batch(change_lease.batch_id, change_lease.caller, true);
    v_position := v_found."position";
    v_batch := v_found.batch;
    if v_batch.batch_id is null then
        perform cascade_internal.raise_batch_lost(change_lease.batch_id);
    end if;
    if change_lease.worker_gone then
        v_batch.worker := null;
        v_batch.until := null;
        delete from cascade_internal.retry as r
         where r.requested_by = change_lease.batch_id
           and not r.active;
    elsif v_batch.worker = '' then
        return v_batch.until;
    else
        v_batch.until := clock_timestamp() + change_lease.lease;
    end if;
    v_position.n := v_position.n + 1;
    v_position.open_batches := array(
        select case when o.batch_id = change_lease.batch_id then v_batch else o end from unnest(v_position.open_batches) as o);
    v_position.action := case when change_lease.worker_gone then 'release' else 'renew' end;
    v_position.batch_id := change_lease.batch_id;
    v_position.at := clock_timestamp();
    perform cascade_internal.append_position(v_found.queue, v_position);
    return v_batch.until;
end
$$;
comment on function cascade_internal.change_lease(bigint, boolean, interval, name) is 'Extends or ends a lease, for a caller.';

create or replace function cascade.renew_batch(batch_id bigint, lease interval)
returns timestamptz
language sql volatile
begin atomic
    select cascade_internal.change_lease(renew_batch.batch_id, false, renew_batch.lease, current_user);
end;
comment on function cascade.renew_batch(bigint, interval) is 'Extends the lease of a batch.';

-- cascade.release_batch(batch_id) gives a batch back: the next who asks gets it, whole.
create or replace function cascade.release_batch(batch_id bigint)
returns void
language sql volatile
begin atomic
    select cascade_internal.change_lease(release_batch.batch_id, true, interval '1 s', current_user);
end;
comment on function cascade.release_batch(bigint) is 'Gives a batch back at once.';
