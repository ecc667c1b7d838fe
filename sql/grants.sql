-- Who may do what, applied again on every install.  A producer or consumer of one queue is
-- granted its functions by grant_producer and grant_consumer.
--
-- cascade_admin    everything
-- cascade_node     what the daemon needs: ticks, rotation, reading the views
do $$
declare
    v_role     text;
    v_function record;
begin
    foreach v_role in array array['cascade_admin', 'cascade_node'] loop
        if not exists (select from pg_catalog.pg_roles as r where r.rolname = v_role) then
            begin
                execute format('create role %I nologin', v_role);
            exception when insufficient_privilege then
                -- Without CREATEROLE the owner of the schema does everything; an
                -- administrator may create the roles later and install again.
                null;
            when duplicate_object or unique_violation then
                null; -- Another database's install was quicker: roles belong to the server.
            end;
        end if;
    end loop;

    -- Functions reached through a default, a view or a function of cascade run with
    -- the caller's rights; nobody can name them, since nobody may use the schema.
    revoke all on schema cascade_internal from public;
    revoke all on all functions in schema cascade, cascade_internal from public;
    for v_function in
        select p.oid::regprocedure as signature
          from pg_catalog.pg_proc as p
         where p.pronamespace = 'cascade_internal'::regnamespace
           and (p.prosecdef and p.proname not in ('post', 'post_many', 'reserve_id', 'begin_staging', 'stage', 'publish_staging', 'drop_staging') or p.proname = 'wake')
    loop
        execute format('grant execute on function %s to public', v_function.signature);
    end loop;

    foreach v_role in array array['cascade_admin', 'cascade_node'] loop
        if exists (select from pg_catalog.pg_roles as r where r.rolname = v_role) then
            execute format('grant usage on schema cascade, queue to %I', v_role);
            -- Copying names partitions.  Operators may do everything anyway (docs/adr/0005).
            execute format('grant usage on schema cascade_internal to %I', v_role);
            execute format('grant select on all tables in schema cascade to %I', v_role);
            if v_role = 'cascade_admin' then
                execute format('grant execute on all functions in schema cascade to %I', v_role);
                execute format('grant execute on function %s to %I', cascade_internal.producer_functions(), v_role);
            else
                execute format('grant execute on function cascade.tick(text), cascade.make_ticks(), cascade.rotate(text),'
                               ' cascade.arm_ticker(), cascade.disarm_ticker(), cascade.version(), %s, %s to %I',
                               cascade_internal.consumer_functions(), cascade_internal.node_functions(), v_role);
            end if;
        end if;
    end loop;

    perform cascade_internal.grant_admin(q) from cascade_internal.queue as q;

    -- A new version may have new functions: whoever was granted some gets the others.
    for v_function in
        select distinct r.rolname, x.grantee, p.proname
          from pg_catalog.pg_proc as p
         cross join lateral aclexplode(p.proacl) as x
          join pg_catalog.pg_roles as r on r.oid = x.grantee
         where p.pronamespace = 'cascade'::regnamespace
           and p.proname in ('post', 'next_batch')
           and r.rolname not in ('cascade_admin', 'cascade_node')
           and x.grantee <> p.proowner
    loop
        execute format('grant execute on function %s to %I',
                       case v_function.proname when 'post' then cascade_internal.producer_functions()
                            else cascade_internal.consumer_functions() end, v_function.rolname);
    end loop;
end
$$;
