-- Run once by each server of deploy/compose.yaml, in the new database: the role that owns Cascade there.
\set password `cat /run/secrets/cascade_password`
create role cascade login password :'password';
grant connect, create on database :"DBNAME" to cascade;
-- The handler of the leaf makes a table.
grant usage, create on schema public to cascade;
