"""The daemon's part in work mode: new and due messages are made ready, those of dead workers taken back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import cascade
from cascade.node.dispatcher import Dispatcher, Moved
from cascade.node.janitor import Janitor
from cascade.node.roles import services_of_database
from tests.fixtures.database import Database, eventually

READY = "select count(*) from cascade.work_messages('q', 'w', 'waiting', 100)"


@pytest.fixture
async def served(db: Database) -> AsyncIterator[Database]:
    """A database with a queue and a consumer, and all that a daemon does for it."""
    db.queue()
    db.rows("select cascade.subscribe('q', 'w', mode => 'work')")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for service in services_of_database(db.dsn, link_s=15.0, rotate_every_s=5.0):
            group.create_task(service.run(stop), name=service.name)
        yield db
        stop.set()


async def until(db: Database, query: str, expected: Any) -> None:
    await asyncio.to_thread(eventually, lambda: db.value(query) == expected)


def claim_elsewhere(db: Database) -> subprocess.Popen[bytes]:
    """Have another process claim a message for a day."""
    claim = (
        "import psycopg, sys, time\n"
        "conn = psycopg.connect(sys.argv[1], autocommit=True)\n"
        "conn.execute(\"select * from cascade.claim('q', 'w', 1, '1 day')\")\n"
        "time.sleep(3600)"
    )
    return subprocess.Popen([sys.executable, "-c", claim, db.dsn])


async def test_messages_are_ready_before_anybody_asks(served: Database) -> None:
    served.insert(1, 2, 3)
    await until(served, READY, 3)


async def test_a_delayed_message_is_ready_when_it_is_due_and_workers_are_told(served: Database) -> None:
    listener = served.connect()
    listener.execute(f"listen {served.value('select cascade.work_channel(%s, %s)', 'q', 'w')}".encode())
    async with cascade.connect(served.dsn) as client:
        await client.queue("q").publish(1, delay=timedelta(seconds=0.7))
    await until(served, "select count(*) from cascade.work_messages('q', 'w', 'delayed', 100)", 1)
    list(listener.notifies(timeout=0.1))
    await until(served, READY, 1)
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    late = served.value("select extract(epoch from clock_timestamp() - available_at) from cascade.peek('q', 'w')")
    assert late >= 0


async def test_a_dispatcher_that_sleeps_is_told_what_is_due_in_a_moment(db: Database) -> None:
    """A failure, and a delayed message that a worker has dispatched for itself."""
    db.queue()
    db.rows("select cascade.subscribe('q', 'w', mode => 'work')")
    db.insert(1)
    db.tick()
    claim_id, first = db.rows("select claim_id, id from cascade.claim('q', 'w')")[0]
    dispatcher = Dispatcher(db.dsn, interval_s=3600)
    sleeping = asyncio.create_task(dispatcher.run(asyncio.Event()))
    asleep = (
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'"
        " and query like '%next_work_due%' and pid <> pg_backend_pid()"
    )
    await until(db, asleep, 1)
    db.rows("select cascade.fail(%s, %s, 'no', '300 ms')", claim_id, first)
    await until(db, READY, 1)
    await until(db, asleep, 1)
    with db.connect(autocommit=False) as ours:
        ours.execute("select cascade.post('q', '2', delay => '300 ms')")
        ours.commit()
        ours.execute("select cascade.tick('q')")
        ours.execute("select * from cascade.dispatch_work()")
    await until(db, READY, 2)
    sleeping.cancel()
    await asyncio.wait((sleeping,))


async def test_a_queue_that_is_made_later_is_dispatched_as_well(served: Database) -> None:
    served.queue("later")
    served.rows("select cascade.subscribe('later', 'w', mode => 'work')")
    served.insert(1, queue="later")
    await until(served, "select count(*) from cascade.work_messages('later', 'w', 'waiting', 100)", 1)


async def test_messages_of_a_killed_worker_are_taken_back_at_once(served: Database) -> None:
    served.rows("select cascade.alter_consumer('q', 'w', '{\"backoff_delay\": \"0 s\"}')")
    served.insert(1)
    await until(served, READY, 1)
    process = claim_elsewhere(served)
    await until(served, "select count(*) from cascade.work_messages('q', 'w', 'active', 100)", 1)
    process.kill()
    process.wait(20)
    await until(served, READY, 1)
    assert served.value("select attempt from cascade.claim('q', 'w')") == 2


async def test_a_turn_says_what_it_did(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'w', mode => 'work')")
    dispatcher, janitor = Dispatcher(db.dsn), Janitor(db.dsn)
    stop = asyncio.Event()
    for service in (dispatcher, janitor):
        stop.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(service.run(stop))
            while service.turned_at is None:
                await asyncio.sleep(0.01)
                assert not task.done()
            stop.set()
    dispatcher._conn = await (await cascade.connect(db.dsn)).connection()
    db.insert(1, 2)
    db.tick()
    assert await dispatcher.turn() == [Moved("q", "w", 2)]  # type: ignore[arg-type]
    assert await dispatcher.turn() == []
    await dispatcher._conn.close()
