"""What happens to messages between two sessions, one of which is not done yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused
from tests.fixtures.work import Work


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def post(db: Database, *, queue: str = "q", **options: Any) -> int:
    """Post a message, and return its id."""
    given = "".join(f", {name} => %s" for name in options)
    return int(db.value(f"select cascade.post('{queue}', '1'{given})", *options.values()))


@contextmanager
def at_once(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Call something in a thread, and wait for what it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert found, "it did not return"


def wait_for_lock(db: Database, conn: psycopg.Connection[Any]) -> None:
    """Wait until a session waits for a lock."""
    query = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    eventually(lambda: db.rows(query, conn.info.backend_pid))


def test_a_claim_outlives_the_chunks_of_it_that_are_forgotten(db: Database) -> None:
    work = Work(db, chunk_size=10, keep_done="0 s", backoff="constant", backoff_delay="0 s")
    work.publish_many(20)
    messages = work.claim(20)
    assert work.complete(messages[0].claim_id, *[m.id for m in messages[:10]]) == 10
    assert work.tend()["done forgotten"] == 1
    work.fail(messages[10])
    assert work.complete(messages[0].claim_id, messages[11].id) == 1
    db.rows("update cascade_internal.work_claim set until = '-infinity' returning 1")
    assert work.tend()["given back"] == 8
    assert sorted(work.drain()) == [11, *range(13, 21)]


def test_a_claim_that_a_seek_overtakes_is_over(db: Database) -> None:
    work = Work(db)
    work.publish_many(3)
    db.rows("select * from cascade.dispatch_work()")
    claiming, seeking = db.connect(autocommit=False), db.connect()
    [message, *_] = work.claim(3, conn=claiming)
    with at_once(lambda: seeking.execute("select cascade.seek('q', 'w', 'earliest')").fetchone()):
        wait_for_lock(db, seeking)
        claiming.commit()
    with refused("QC217", "is over"):
        work.complete(message.claim_id)
    work.tend()
    assert [m.attempt for m in work.claim(3)] == [1, 1, 1]
