"""Publishing many rows from many sessions: all of them once, or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.fixtures.database import Database, eventually


def refused(db: Database, query: str, *arguments: Any) -> str:
    """Return the SQLSTATE with which a statement fails."""
    with pytest.raises(psycopg.Error) as caught:
        db.rows(query, *arguments)
    assert caught.value.sqlstate is not None
    return caught.value.sqlstate


def stage(
    db: Database, staging: uuid.UUID, task: int, attempt: int, *payloads: str, first: int = 0, **more: Any
) -> None:
    count = len(payloads)
    db.rows(
        "select cascade.stage(%s, %s, %s, %s, %s::text[], %s::text[], %s::text[]::json[], %s::text[]::json[],"
        " %s::timestamptz[], %s::text[], %s::bigint[])",
        staging, task, attempt, first, more.get("types", [None] * count), [f"k{task}"] * count, list(payloads),
        [None] * count, more.get("times"), more.get("origins"), more.get("origin_ids"),
    )  # fmt: skip


def publish(db: Database, staging: uuid.UUID, **counts: tuple[int, int]) -> int:
    """Publish tasks, given as t<task>=(attempt, rows)."""
    tasks = [int(name[1:]) for name in counts]
    return int(
        db.value(
            "select cascade.publish_staging(%s, %s::integer[], %s::bigint[], %s::bigint[])",
            staging, tasks, [attempt for attempt, _ in counts.values()], [rows for _, rows in counts.values()],
        )
    )  # fmt: skip


def drop(db: Database, staging: uuid.UUID) -> int:
    """Give staged rows up; returns 1 when there was something."""
    return int(db.value("select cascade.drop_staging(%s)", staging))


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Make a call while the block runs, which lets it end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def wait_for_lock(db: Database) -> None:
    """Wait until a session of this database waits for another."""
    conn = db.connect()
    query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    eventually(lambda: conn.execute(query).fetchone() is not None)


def log(db: Database) -> list[Any]:
    return [row[0] for row in db.rows("select payload from queue.q order by id")]


def test_only_the_attempts_that_count_are_published_and_once(db: Database) -> None:
    db.queue()
    staging = db.value("select cascade.begin_staging('q')")
    stage(db, staging, 1, 10, "1", "2")
    stage(db, staging, 0, 11, "3")
    stage(db, staging, 0, 12, "4", "5")
    stage(db, staging, 0, 12, "6", first=2)
    stage(db, staging, 0, 12, "6", first=2)  # Its reply was lost.
    assert log(db) == []
    assert publish(db, staging, t0=(12, 3), t1=(10, 2)) == 5
    assert log(db) == [4, 5, 6, 1, 2]
    assert publish(db, staging, t0=(12, 3), t1=(10, 2)) == 5
    assert db.value("select cascade.drop_staging(%s)", staging) is False
    assert len(log(db)) == 5
    assert db.value("select count(*) from cascade_internal.staged") == 0
    assert len({row[0] for row in db.rows("select txid from queue.q")}) == 1


def test_what_is_given_up_or_incomplete_is_not_published(db: Database) -> None:
    db.queue()
    staging = db.value("select cascade.begin_staging('q')")
    stage(db, staging, 0, 1, "1")
    with pytest.raises(psycopg.Error, match="of 2 rows that task 0 staged, 1 are there"):
        publish(db, staging, t0=(1, 2))
    assert refused(db, "select cascade.publish_staging(%s, '{0}', '{2}', '{1}')", staging) == "QC209"
    assert db.value("select cascade.drop_staging(%s)", staging) is True
    assert db.value("select cascade.drop_staging(%s)", staging) is False
    with pytest.raises(psycopg.Error, match="nothing is staged as"):
        publish(db, staging, t0=(1, 1))
    assert log(db) == []


def test_a_named_job_is_published_once_and_taken_over_by_who_runs_it_again(db: Database) -> None:
    db.queue()
    db.queue("other")
    first = db.value("select cascade.begin_staging('q', 'nightly')")
    stage(db, first, 0, 1, "1")
    second = db.value("select cascade.begin_staging('q', 'nightly')")
    assert refused(db, "select cascade.publish_staging(%s, '{0}', '{1}', '{1}')", first) == "QC209"
    stage(db, second, 0, 1, "2")
    assert publish(db, second, t0=(1, 1)) == 1
    assert db.value("select cascade.begin_staging('q', 'nightly')") is None
    assert db.value("select cascade.begin_staging('other', 'nightly')") is not None
    # What is a week old is forgotten, but not that a named job was published.
    db.value("select cascade.begin_staging('q')")
    stage(db, db.value("select cascade.begin_staging('q', 'unfinished')"), 0, 1, "9")
    db.admin().execute("update cascade_internal.staging set begun_at = begun_at - interval '8 days'")
    db.value("select cascade.begin_staging('q')")
    assert {row[0] for row in db.rows("select name from cascade_internal.staging where queue_id = 1")} == {
        "nightly",
        None,
    }
    assert db.value("select count(*) from cascade_internal.staged") == 0
    assert log(db) == [2]


def test_of_two_who_begin_a_job_at_once_the_second_takes_it_over(db: Database) -> None:
    db.queue()
    conn = db.connect(autocommit=False)
    row = conn.execute("select cascade.begin_staging('q', 'nightly')").fetchone()
    assert row is not None
    with in_thread(lambda: db.value("select cascade.begin_staging('q', 'nightly')")) as begun, conn:
        wait_for_lock(db)
    assert begun.result() not in (None, row[0])
    assert refused(db, "select cascade.publish_staging(%s, '{}', '{}', '{}')", row[0]) == "QC209"


@pytest.mark.parametrize("is_published", [True, False])
def test_rows_that_come_too_late_are_refused_and_leave_nothing(db: Database, is_published: bool) -> None:
    """A task may still be handing over its rows when the job has ended."""
    db.queue()
    staging = db.value("select cascade.begin_staging('q', 'nightly')")
    stage(db, staging, 0, 1, "1")
    conn = db.connect(autocommit=False)
    conn.execute(
        "select cascade.stage(%s, 0, 2, 0, '{null}', '{null}', '{\"2\"}'::text[]::json[], '{null}'::json[])", (staging,)
    )

    def end() -> int:
        return publish(db, staging, t0=(1, 1)) if is_published else drop(db, staging)

    with in_thread(end) as ended, conn:
        wait_for_lock(db)
    assert ended.result() == 1
    with pytest.raises(psycopg.Error) as caught:
        stage(db, staging, 0, 3, "3")
    assert caught.value.sqlstate == "QC209"
    assert db.value("select count(*) from cascade_internal.staged") == 0


def test_staged_rows_keep_the_rules_of_producers(db: Database) -> None:
    db.queue(payload_max_bytes=1000)
    staging = db.value("select cascade.begin_staging('q')")
    for wrong, state in (
        (lambda: stage(db, staging, 0, 1, '"' + "x" * 1000 + '"'), "QC303"),
        (lambda: stage(db, staging, 0, 1, "{"), "22P02"),
        (lambda: stage(db, staging, 0, 1, None), "QC302"),  # type: ignore[arg-type]
        (lambda: stage(db, staging, 0, 1, "1", types=["cascade.tick"]), "QC003"),
        (lambda: stage(db, staging, 0, 1, "1", origins=["eu"]), "QC003"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            wrong()
        assert caught.value.sqlstate == state
    exact = db.value("select cascade.begin_staging('q', verbatim => true)")
    with pytest.raises(psycopg.Error, match="origins that begin with a dot are reserved"):
        stage(db, exact, 0, 1, "1", origins=[".cascade"])
    stage(db, exact, 0, 1, "1", times=["2020-01-01 UTC"], origins=["eu"], origin_ids=[7])
    stage(db, exact, 0, 1, "2", first=1)
    assert publish(db, exact, t0=(1, 2)) == 2
    found = db.rows("select time = '2020-01-01 UTC', origin, origin_id from queue.q order by id")
    assert found == [(True, "eu", 7), (False, None, None)]


def test_a_producer_stages_for_itself_only(db: Database) -> None:
    db.queue()
    name = f"staging_{db.name}"
    admin = db.admin()
    admin.execute(sql.SQL("create role {} login password 'test'").format(sql.Identifier(name)))
    try:
        db.rows("select cascade.grant_producer('q', %s)", name)
        conn = db.connect(name)
        row: Any = conn.execute("select cascade.begin_staging('q')").fetchone()
        theirs = db.value("select cascade.begin_staging('q')")
        with pytest.raises(psycopg.Error, match="nothing is staged as"):
            conn.execute("select cascade.publish_staging(%s, '{}', '{}', '{}')", (theirs,))
        assert conn.execute("select cascade.drop_staging(%s)", (theirs,)).fetchone() == (False,)
        with pytest.raises(psycopg.Error, match="may not say when an event was made"):
            conn.execute("select cascade.begin_staging('q', verbatim => true)")
        conn.execute("select cascade.stage(%s, 0, 0, 0, '{t}', '{k}', '{1}', '{null}')", row)
        db.rows("select cascade.revoke_producer('q', %s)", name)
        with pytest.raises(psycopg.Error):
            conn.execute("select cascade.publish_staging(%s, '{0}', '{0}', '{1}')", row)
        conn.close()
    finally:
        admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))
    assert log(db) == []
