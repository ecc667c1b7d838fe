"""CASCADE_TEST_DSN: the tests run on a server of somebody else, as a plain role, and leave nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cascade.dev import Cluster
from cascade.errors import ConfigError
from tests.fixtures.backend import OWNER, PREFIX, borrowed, home
from tests.fixtures.database import Database

TOP = Path(__file__).parents[2]

#: One test of each kind: it runs as on our own servers, or says what the given one lacks.
RUN = (
    "tests/sql/test_access.py::test_hostile_role_names_are_quoted",
    "tests/sql/test_access.py::test_a_daemon_s_role_cannot_pass_itself_off_as_a_producer",
    "tests/sql/test_schema.py::test_another_encoding_is_refused",
)
SKIPPED = {
    "tests/sql/test_access.py::test_rights_follow_the_role_that_calls": "needs a superuser",
    "tests/sql/test_tick.py::test_a_prepared_transaction_comes_when_it_is_committed": "max_prepared_transactions = 0",
    "tests/sql/test_crash.py::test_a_tick_that_was_seen_survives_a_crash_with_its_events": "not ours to stop",
    "tests/sql/test_restore.py::test_a_restored_queue_goes_on": "needs several servers",
    "tests/cluster/test_copying.py": "stops its server, and the given one",
}
FOUND = (
    "select array(select datname from pg_database order by 1), array(select rolname from pg_roles order by 1),"
    " (select count(*) from pg_auth_members)"
)


class Given:
    """A server with a role that may create databases and roles, and has no other right."""

    def __init__(self, admin_dsn: str) -> None:
        self.admin = psycopg.connect(admin_dsn, autocommit=True)
        self.admin.execute("create role somebody login password 'own' createdb createrole")
        self.dsn = make_conninfo(admin_dsn, user="somebody", password="own", passfile="")

    def contents(self) -> object:
        """Return its databases and roles, and who is a member of what."""
        return self.admin.execute(FOUND.encode()).fetchone()

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tests on it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("CASCADE_TEST_", "PYTEST_"))}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=TOP,
            env=clean | {"CASCADE_TEST_DSN": self.dsn, "COLUMNS": "300"},
            capture_output=True,
            text=True,
            timeout=100,
        )


@contextmanager
def serve(templates: Path, **settings: str) -> Iterator[Given]:
    """Start a server to be given."""
    with Cluster.temporary(1, templates=templates, settings={"fsync": "off", **settings}, within=home()) as cluster:
        made = Given(cluster["n1"].admin_dsn)
        try:
            yield made
        finally:
            made.admin.close()


@pytest.fixture
def given(templates: Path) -> Iterator[Given]:
    with serve(templates) as made:
        yield made


def test_what_a_plain_role_s_server_cannot_do_is_skipped_with_its_reason(given: Given) -> None:
    before = given.contents()
    # As a run that was killed leaves a server.
    with psycopg.connect(given.dsn, autocommit=True) as conn:
        for statement in (
            f"create role {OWNER}",
            f"grant {OWNER} to somebody",
            f"create database t1_1 owner {OWNER}",
            f"create role {PREFIX}role",
        ):
            conn.execute(statement.encode())
    found = given.pytest(*RUN, *SKIPPED)
    assert found.returncode == 0, found.stdout
    for test in RUN:
        assert test.partition("::")[2] not in found.stdout
    for reason in SKIPPED.values():
        assert f"{reason}" in found.stdout
    assert f" {len(RUN)} passed, " in found.stdout
    assert given.contents() == before


def test_a_server_serves_one_run_at_a_time(given: Given) -> None:
    before = given.contents()
    with borrowed(given.dsn) as backend:
        with Database.fresh(backend) as db:
            assert db.queue() == "q"
            found = given.pytest("tests/unit/test_dice.py")
        assert found.returncode == pytest.ExitCode.USAGE_ERROR
        assert found.stderr.startswith("ERROR: CASCADE_TEST_DSN: another run of the tests is using this server")
        backend.create()
    assert given.contents() == before


def test_a_transaction_that_a_test_left_prepared_is_rolled_back(templates: Path) -> None:
    with serve(templates, max_prepared_transactions="5") as given:
        before = given.contents()
        with borrowed(given.dsn) as backend:
            with psycopg.connect(backend.dsn(backend.create()), autocommit=True) as conn:
                for statement in (b"begin", b"create table note ()", b"prepare transaction 'forgotten'"):
                    conn.execute(statement)
        assert given.contents() == before


def test_roles_of_an_installation_that_was_there_stay(given: Given) -> None:
    given.admin.execute("create role cascade_node")
    before = given.contents()
    with borrowed(given.dsn):
        assert given.contents() != before
    assert given.contents() == before


def test_a_role_that_may_create_nothing_is_told_what_it_needs(given: Given) -> None:
    given.admin.execute("alter role somebody nocreatedb")
    with pytest.raises(ConfigError, match=r"role somebody may not create .*\nhint: alter role somebody createdb crea"):
        with borrowed(given.dsn):
            pass
