"""A crash with asynchronous commit loses no tick that anyone had seen, nor an event in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database, eventually


@pytest.fixture(params=LABELS)
def backend(request: pytest.FixtureRequest, backends: Callable[..., Backend]) -> Backend:
    """A server of its own, since it is killed: WAL is written late, as on a busy one."""
    found = backends(
        request.param,
        max_prepared_transactions="20",
        synchronous_commit="off",
        wal_writer_delay="10s",
        bgwriter_delay="10s",
    )
    found.need_server()
    return found


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    with Database.fresh(backend) as database:
        yield database


def crash(db: Database) -> None:
    """Kill the server as a power failure would, start it again, and connect again."""
    server = db.backend.need_server()
    server.kill()
    server.start()
    db.main.close()

    def answers() -> bool:
        try:
            return bool(db.connect().execute("select 1").fetchone())
        except psycopg.OperationalError:
            return False

    eventually(answers)


def test_a_tick_that_was_seen_survives_a_crash_with_its_events(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    db.insert(*range(40))
    tick = db.tick()
    seen = db.row("select event_seq, chain from cascade.ticks where tick_id = %s", tick)
    db.insert("maybe lost")
    crash(db)
    assert db.row("select event_seq, chain from cascade.ticks where tick_id = %s", tick) == seen
    assert db.drain() == list(range(40))
    before = db.value("select max(id) from queue.q") or 40
    db.insert("new")
    assert db.value("select max(id) from queue.q") > before
    assert db.tick() > tick
    assert "new" in db.drain()


def test_a_finished_batch_stays_finished(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    db.insert(1)
    db.tick()
    assert db.drain() == [1]
    crash(db)
    assert db.drain() == []


def test_a_batch_that_was_handed_out_is_not_handed_out_again_under_its_id(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    db.insert(1)
    db.tick()
    first = db.next(worker="first", lease="1 minute")
    assert first is not None
    crash(db)
    db.insert(2)
    db.tick()
    second = db.next(worker="second", lease="1 minute", max_ticks=10)
    assert second is not None
    assert db.events(second[0]) == [2]
    db.finish(first[0])
    assert db.row("select lag_events, open_batches from cascade.consumers") == (1, 1), "finished for the first alone"


def test_without_durable_ticks_a_crash_would_lose_them(db: Database) -> None:
    """The other side of the rule: on this server an ordinary commit is really lost."""
    db.main.execute("create table plain (x int)")
    db.queue()
    db.tick()
    db.main.execute("insert into plain values (1)")
    crash(db)
    assert db.value("select count(*) from plain") == 0
