"""Installing, upgrading and removing the schema."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pytest

from cascade.errors import SchemaError
from cascade.sql import VERSION, migrate, read_folder
from tests.fixtures.backend import OWNER, PREFIX, Backend
from tests.fixtures.database import Database
from tests.fixtures.roles import role_on


@pytest.fixture
def empty(backend: Backend) -> Iterator[Database]:
    """A database without the schema."""
    with Database.fresh(backend, with_schema=False) as database:
        yield database


CATALOGUE = """
    select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)) from pg_proc as p
     where p.pronamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)
    union all
    select 'column', a.attrelid::regclass || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || a.attnotnull
      from pg_attribute as a join pg_class as c on c.oid = a.attrelid
     where c.relnamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace) and a.attnum > 0
    union all
    select 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) from pg_constraint
     where connamespace = 'cascade_internal'::regnamespace
    order by 1, 2"""

RIGHTS = """
    select p.oid::regprocedure::text, (select array_agg(a::text order by a::text) from unnest(p.proacl) as a)
      from pg_proc as p where p.pronamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)
     order by 1"""


def test_installing_twice_changes_nothing(empty: Database) -> None:
    assert migrate.status(empty.main).state == "missing"
    assert migrate.install(empty.main).state == "current"
    before = empty.rows(CATALOGUE)
    empty.queue()
    empty.insert(1)
    migrate.install(empty.main)
    empty.rows("select cascade.drop_queue('q')")
    assert empty.rows(CATALOGUE) == before
    assert empty.rows("select version from cascade_internal.schema_version") == [(VERSION,)]


def test_the_owner_needs_no_superuser_and_no_right_to_create_roles(empty: Database) -> None:
    rights = empty.row("select rolsuper, rolcreaterole, rolcreatedb, rolreplication from pg_roles where rolname = user")
    assert rights == (False, False, False, False)
    migrate.install(empty.main)
    assert empty.rows("select extname from pg_extension where extname <> 'plpgsql'") == []


def test_two_installations_at_once_make_one(empty: Database) -> None:
    connections = [empty.connect() for _ in range(4)]
    failures: list[Exception] = []

    def install(conn: psycopg.Connection[object]) -> None:
        try:
            migrate.install(conn)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=install, args=(conn,)) for conn in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert empty.rows("select version from cascade_internal.schema_version") == [(VERSION,)]


def test_a_failed_installation_leaves_nothing(empty: Database) -> None:
    empty.main.execute("create schema cascade")
    empty.main.execute("create view cascade.queues as select 1 as x")
    with pytest.raises(psycopg.Error):
        migrate.install(empty.main)
    assert empty.value("select to_regnamespace('cascade_internal')") is None


Files = Mapping[str, Sequence[tuple[str, str]]]

#: Two releases of a table and a function: the second has a column more, and another type returned under another name.
OLD: Files = {
    "tables": [("tables/99_parcel.sql", "create table if not exists cascade_internal.parcel (n integer not null);")],
    "functions": [
        (
            "functions/parcel.sql",
            "create or replace function cascade_internal.old_parcel() returns bigint language sql"
            " begin atomic select count(p.n) from cascade_internal.parcel as p; end;",
        )
    ],
}
NEW: Files = {
    "tables": [
        (
            "tables/99_parcel.sql",
            "create table if not exists cascade_internal.parcel (n bigint not null, weight integer not null);",
        )
    ],
    "functions": [
        (
            "functions/parcel.sql",
            "create or replace function cascade_internal.new_parcel() returns bigint language sql"
            " begin atomic select sum(p.weight) from cascade_internal.parcel as p; end;",
        )
    ],
    # By their names `post` would come first.  The column that the new function needs must be there before it, and
    # the type can be changed only once the old function, which depends on it, is gone.
    "migrations": [
        (
            f"migrations/{VERSION:04}_weigh_parcels.post.sql",
            "drop function cascade_internal.old_parcel();"
            " alter table cascade_internal.parcel alter n type bigint;"
            " update cascade_internal.parcel set weight = weight * 10;",
        ),
        (
            f"migrations/{VERSION:04}_weigh_parcels.pre.sql",
            "alter table cascade_internal.parcel add weight integer not null default 7;"
            " alter table cascade_internal.parcel alter weight drop default;",
        ),
    ],
}


def release(monkeypatch: pytest.MonkeyPatch, more: Files) -> None:
    """Have the installer find these files beside its own."""
    monkeypatch.setattr(migrate, "read_folder", lambda name: [*read_folder(name), *more.get(name, ())])


def test_an_older_schema_becomes_what_a_fresh_one_is(
    backend: Backend, empty: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, OLD)
    migrate.install(empty.main)
    empty.main.execute("update cascade_internal.schema_version set version = version - 1")
    empty.main.execute("insert into cascade_internal.parcel values (1), (2)")
    empty.queue()
    empty.rows("select cascade.subscribe('q', 'c')")
    empty.insert("before")
    assert migrate.status(empty.main).state == "older"

    release(monkeypatch, NEW)
    for _ in range(2):  # A second time runs no migration again.
        assert migrate.install(empty.main).state == "current"
        assert empty.rows("select n, weight from cascade_internal.parcel order by n") == [(1, 70), (2, 70)]
    assert empty.value("select cascade_internal.new_parcel()") == 140
    versions = empty.rows("select version from cascade_internal.schema_version order by version")
    assert versions == [(VERSION - 1,), (VERSION,)]
    empty.insert("after")
    empty.tick()
    assert empty.drain() == ["before", "after"]

    empty.rows("select cascade.drop_queue('q', true)")
    with Database.fresh(backend, with_schema=False) as fresh:
        migrate.install(fresh.main)
        # No migration ran there, for it would have failed; and nothing tells the two apart.
        assert fresh.rows("select version from cascade_internal.schema_version") == [(VERSION,)]
        assert fresh.rows(CATALOGUE) == empty.rows(CATALOGUE)
        assert fresh.rows(RIGHTS) == empty.rows(RIGHTS)


def test_a_migration_that_fails_leaves_the_older_schema(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, OLD)
    migrate.install(empty.main)
    empty.main.execute("update cascade_internal.schema_version set version = version - 1")
    before = empty.rows(CATALOGUE)
    broken = (f"migrations/{VERSION:04}_z_broken.post.sql", "select 1 / 0;")
    release(monkeypatch, {**NEW, "migrations": [*NEW["migrations"], broken]})
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate.install(empty.main)
    assert migrate.status(empty.main).state == "older"
    assert empty.rows(CATALOGUE) == before


def test_migrations_are_named_so_that_they_run() -> None:
    for path, _ in read_folder("migrations"):
        found = re.fullmatch(r"migrations/(\d{4})_[a-z0-9_]+\.(pre|post)\.sql", path)
        assert found and 1 < int(found[1]) <= VERSION, path


def test_a_newer_schema_is_refused(db: Database) -> None:
    db.main.execute("insert into cascade_internal.schema_version (version) values (%s)", (VERSION + 1,))
    with pytest.raises(SchemaError, match=f"version {VERSION + 1}, this is version {VERSION}"):
        migrate.install(db.main)
    with pytest.raises(psycopg.Error, match=f"has version {VERSION + 1}"), db.main.transaction():
        db.main.execute(migrate.script().encode())


def test_a_role_that_may_not_install_is_told_what_it_needs(empty: Database) -> None:
    with role_on(empty) as role, pytest.raises(SchemaError, match="CREATE on the database"):
        migrate.install(empty.connect(role))


def test_another_encoding_is_refused(backend: Backend) -> None:
    name = f"{PREFIX}latin"
    made = f"create database {name} owner {OWNER} template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'"
    with psycopg.connect(backend.admin_dsn, autocommit=True) as conn:
        conn.execute(made.encode())
    try:
        with psycopg.connect(backend.dsn(name), autocommit=True) as latin:
            with pytest.raises(psycopg.Error, match="encoded in LATIN1"):
                migrate.install(latin)
    finally:
        backend.drop(name)


def test_uninstalling_removes_everything(db: Database) -> None:
    db.queue()
    with pytest.raises(SchemaError, match="there are 1 queues"):
        migrate.uninstall(db.main)
    assert migrate.uninstall(db.main, force=True) is True
    assert migrate.uninstall(db.main) is False
    left = db.rows("select nspname from pg_namespace where nspname in ('queue', 'cascade', 'cascade_internal')")
    assert left == []
    migrate.install(db.main)
    assert migrate.status(db.main).state == "current"


def test_psql_alone_can_install_it(empty: Database) -> None:
    psql = empty.backend.need_tool("psql")
    for _ in range(2):
        subprocess.run([psql, "-X", "-q", empty.dsn], input=migrate.psql_script(), text=True, check=True)
    assert migrate.status(empty.main).state == "current"
    empty.queue()


def test_every_object_carries_a_comment(db: Database) -> None:
    missing = db.rows(
        "select p.oid::regprocedure::text from pg_proc as p"
        " where p.pronamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)"
        " and obj_description(p.oid, 'pg_proc') is null"
        " union all select c.oid::regclass::text from pg_class as c"
        " where c.relnamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)"
        " and c.relkind in ('r', 'v', 'c') and obj_description(c.oid, 'pg_class') is null"
        " and obj_description(c.reltype, 'pg_type') is null"
    )
    assert missing == []


def test_every_code_that_sql_raises_has_a_class() -> None:
    from cascade.errors import BY_SQLSTATE

    used = set(re.findall(r"'(QC\d{3})'", migrate.script()))
    assert used <= set(BY_SQLSTATE), used - set(BY_SQLSTATE)
