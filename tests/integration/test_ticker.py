"""The ticker: polls under traffic, sleeps when idle, is woken by inserts; rotation beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from cascade.node.rotator import Rotator
from cascade.node.ticker import Pace, Tick, Ticker
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database

#: Looks so seldom when asleep that only a notification can explain a tick.
SLEEPY = Pace(asleep_s=3600)


@pytest.fixture
def db(db: Database) -> Database:
    """A database whose ticker may fall asleep: it polls where transactions may be prepared."""
    db.backend.need_none_prepared()
    return db


@asynccontextmanager
async def running(service: Ticker | Rotator) -> AsyncIterator[None]:
    """Run a service beside the test."""
    stop = asyncio.Event()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(service.run(stop))
        try:
            yield
        finally:
            stop.set()
            if isinstance(service, Ticker):
                task.cancel()


async def until(condition: Callable[[], object], *, within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def armed(db: Database) -> bool:
    return bool(db.value("select bool_and(cascade_internal.is_armed(queue_id, slots)) from cascade_internal.queue"))


def ticked(db: Database) -> int:
    return int(db.value("select sum(events) from cascade.ticks") or 0)


async def test_an_insert_wakes_a_sleeping_ticker(db: Database) -> None:
    db.queue()
    async with running(Ticker(db.dsn, pace=SLEEPY)):
        for number in range(1, 4):
            await until(lambda: armed(db))
            db.insert(number)
            await until(lambda number=number: ticked(db) == number)  # type: ignore[misc]


@pytest.mark.parametrize("way", ["insert", "copy", "post"])
async def test_every_way_in_wakes_it(db: Database, way: str) -> None:
    db.queue()
    async with running(Ticker(db.dsn, pace=SLEEPY)):
        await until(lambda: armed(db))
        if way == "insert":
            db.main.execute("insert into queue.q (payload) select '1' from generate_series(1, 100)")
        elif way == "copy":
            with db.main.cursor() as cur, cur.copy("copy queue.q (payload) from stdin") as copy:
                for _ in range(100):
                    copy.write_row(("1",))
        else:
            db.rows("select cascade.post_many('q', array_fill('1'::json, '{100}'))")
        await until(lambda: ticked(db) == 100)


async def test_a_writer_that_began_before_the_ticker_slept_is_noticed(db: Database) -> None:
    """It looked at the register before it was armed, so it will not notify."""
    db.queue()
    early = db.connect(autocommit=False)
    db.insert("early", conn=early)
    async with running(Ticker(db.dsn, pace=SLEEPY)):
        await until(lambda: armed(db))
        early.commit()
        await until(lambda: ticked(db) == 1)


async def test_under_traffic_nobody_notifies(db: Database) -> None:
    db.queue(tick_max_lag="0")
    listener = db.connect()
    async with running(Ticker(db.dsn, pace=Pace(close_s=2.0, busy_ticks=5))):
        await until(lambda: armed(db))

        def busy() -> bool:
            db.insert(*range(20))
            return not armed(db)

        await until(busy)
        listener.execute("listen cascade_insert")
        assert not armed(db)
        db.insert(*range(20))
        assert list(listener.notifies(timeout=0.05)) == []
        await until(lambda: armed(db))


async def test_a_queue_made_later_is_armed_too(db: Database) -> None:
    db.queue()
    async with running(Ticker(db.dsn, pace=Pace(asleep_s=0.2))):
        await until(lambda: armed(db))
        db.queue("later")
        await until(lambda: armed(db))
        db.insert(1, queue="later")
        await until(lambda: ticked(db) == 1)


class Counting(Ticker):
    """A ticker that counts how often it looked."""

    looks = 0

    async def turn(self) -> list[Tick]:
        self.looks += 1
        return await super().turn()


async def test_a_queue_made_under_traffic_is_armed_too(db: Database) -> None:
    """Every slow look finds events there, so the ticker never has a quiet moment."""
    async with running(Ticker(db.dsn, pace=Pace(asleep_s=0.3))):
        db.queue("first")
        await until(lambda: armed(db))
        db.queue("second")

        def traffic() -> bool:
            db.insert(1, queue="second")
            return armed(db)

        await until(traffic)


async def test_where_transactions_may_be_prepared_the_ticker_polls(backends: Callable[..., Backend]) -> None:
    """A transaction that has notified cannot be prepared: producers must never notify there."""
    with Database.fresh(backends(LABELS[0], max_prepared_transactions="20")) as db:
        db.backend.need_prepared()
        db.queue()
        # As restored from the dump of a server where the ticker slept.
        db.main.execute("select cascade_internal.set_register(q, 0, true) from cascade_internal.queue as q")
        ticker = Counting(db.dsn)
        async with running(ticker):
            for number in range(1, 4):
                # Long enough without an event for it to fall asleep anywhere else.
                await until(lambda looks=ticker.looks + 30: ticker.looks > looks)  # type: ignore[misc]
                other = db.connect()
                other.execute("begin")
                db.insert("prepared", conn=other)
                other.execute(f"prepare transaction 'p{number}_{db.name}'".encode())
                other.execute(f"commit prepared 'p{number}_{db.name}'".encode())
                await until(lambda number=number: ticked(db) == number)  # type: ignore[misc]
                assert not armed(db)


async def test_two_tickers_are_harmless(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    async with running(Ticker(db.dsn)), running(Ticker(db.dsn)):
        for number in range(100):
            db.insert(number)
        await until(lambda: ticked(db) == 100)
    assert db.drain(max_ticks=10) == list(range(100))


async def test_a_ticker_that_stops_leaves_nobody_notifying(db: Database) -> None:
    db.queue()
    stop = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(Ticker(db.dsn, pace=Pace(asleep_s=0.2)).run(stop))
        await until(lambda: armed(db))
        stop.set()
    assert not armed(db)


async def test_the_rotator_frees_the_disk_by_itself(db: Database) -> None:
    db.queue(rotation_period="0.2 s", tick_idle="0.1 s")
    db.main.execute("insert into queue.q (payload) select to_json(repeat('x', 500)) from generate_series(1, 3000)")
    async with running(Ticker(db.dsn)), running(Rotator(db.dsn, interval_s=0.05)):
        await until(lambda: db.value("select count(*) from queue.q") == 0)


async def test_a_lost_database_ends_the_run_with_a_named_error(db: Database) -> None:
    from cascade.errors import TransientError

    db.queue()
    stop = asyncio.Event()
    ticker = Ticker(db.dsn)
    task = asyncio.create_task(ticker.run(stop))
    await until(lambda: ticker.turned_at is not None)
    db.terminate("cascade/ticker")
    with pytest.raises((TransientError, psycopg.OperationalError)):
        async with asyncio.timeout(20):
            await task
