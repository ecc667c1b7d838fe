"""The worker: what becomes of messages whatever handlers, connections and other workers do."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

import cascade
from cascade.errors import ConfigError, ConsumerNotFoundError
from tests.fixtures.database import Database

ERRORS = "select id, attempt, outcome, error from cascade_internal.work_history order by id, attempt"
QUICK = {"backoff": "constant", "backoff_delay": "20 ms", "backoff_jitter": 0}


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    subscribe(db, "w")
    return db


def subscribe(db: Database, consumer: str, **options: object) -> None:
    options = QUICK | options
    db.rows("select cascade.subscribe('q', %s, mode => 'work', options => %s)", consumer, Jsonb(options))


def publish(db: Database, count: int, kind: str | None = None) -> None:
    """Publish the numbers below count, and tick."""
    query = "insert into queue.q (type, payload) select %s, to_json(n) from generate_series(0, %s - 1) as n"
    db.main.execute(query.encode(), (kind, count))
    db.tick()


def worker(db: Database, handler: Callable[..., Any] | None = None, consumer: str = "w", **more: Any) -> cascade.Worker:
    return cascade.Worker("q", consumer, handler, dsn=db.dsn, **({"poll_s": 0.05} | more))


@asynccontextmanager
async def running(*workers: cascade.Worker) -> AsyncIterator[None]:
    """Have workers work during a block."""
    async with asyncio.TaskGroup() as group:
        for each in workers:
            group.create_task(each.run())
        try:
            yield
        finally:
            for each in workers:
                each.stop()


async def until(condition: Callable[[], Any], within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.01)


def left(db: Database) -> int:
    """Return how many claims there are, and messages with rows of their own."""
    return int(db.value("select count(*) from cascade_internal.work_claim"))


async def test_every_message_is_handled_once_by_many_workers(db: Database) -> None:
    publish(db, 3000)
    seen: Counter[int] = Counter()

    async def handle(number: int) -> None:
        seen[number] += 1
        if number % 100 == 0:
            await asyncio.sleep(0.01)

    workers = [worker(db, handle, batch=batch, concurrency=5) for batch in (1, 7, 100)]
    async with running(*workers):
        await until(lambda: len(seen) == 3000)
    assert set(seen.values()) == {1}
    assert sum(each.completed for each in workers) == 3000 and left(db) == 0


@dataclass
class Order:
    id: int
    total: float = 0.0


async def test_handlers_by_type_get_what_their_parameters_ask_for(db: Database) -> None:
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        for kind, payload in (("paid", {"id": 1, "total": 9.5}), ("sent", {"id": 2}), (None, [3])):
            await queue.publish(payload, type=kind, key="acme", headers={"trace": 1})
        await queue.tick()
        found: list[object] = []
        work = cascade.Worker(queue, "w")

        @work.on("paid")
        async def paid(order: Order, delivery: cascade.Delivery[Order]) -> None:
            found.append((order, delivery.key, delivery.headers, delivery.attempt, delivery.payload == order))

        @work.on("sent")
        def sent(delivery: cascade.Delivery[Order]) -> None:
            found.append((delivery.payload, delivery.type, threading.current_thread() is threading.main_thread()))

        @work.on()
        async def other(payload: list[int]) -> None:
            found.append(payload)

        assert await work.drain() == 3
    assert sorted(map(str, found)) == sorted(
        map(str, [(Order(1, 9.5), "acme", {"trace": 1}, 1, True), (Order(2), "sent", False), [3]])
    )


async def test_plain_functions_run_side_by_side_in_threads(db: Database) -> None:
    publish(db, 8)
    together = threading.Barrier(4, timeout=20)
    assert await worker(db, lambda number: together.wait() and None, concurrency=4).drain() == 8


async def test_a_failed_attempt_comes_again_and_its_error_is_kept(db: Database) -> None:
    publish(db, 2)
    attempts: list[tuple[int, int]] = []

    async def handle(number: int, delivery: cascade.Delivery[int]) -> None:
        attempts.append((number, delivery.attempt))
        if number == 0 and delivery.attempt < 3:
            raise ValueError("x" * 10_000 + "\0 \udc80")

    async with running(worker(db, handle)):
        await until(lambda: len(attempts) == 4)
    assert sorted(attempts) == [(0, 1), (0, 2), (0, 3), (1, 1)]
    first, second, *_ = [row for row in db.rows(ERRORS) if row[2] == "failed"]
    assert (first[1], second[1]) == (1, 2)
    assert first[3].startswith("ValueError: xxx") and "\\0 \\udc80" in first[3] and "Traceback" in first[3]
    assert "test_worker.py" in first[3]


class Refuses:
    """What handlers may raise, and how the first line of the stored error begins."""

    async def cancels(self, _: int) -> None:
        raise asyncio.CancelledError

    async def exits(self, _: int) -> None:
        raise SystemExit(3)

    def exits_in_thread(self, _: int) -> None:
        raise SystemExit(3)

    async def returns_no_json(self, _: int) -> object:
        return object()

    async def wants_an_order(self, order: Order) -> None: ...

    async def takes_too_long(self, _: int) -> None:
        await asyncio.sleep(60)

    def takes_too_long_in_thread(self, _: int) -> None:
        time.sleep(0.5)

    async def times_out_by_itself(self, _: int) -> None:
        raise TimeoutError("of its own")

    async def buries(self, _: int) -> None:
        raise cascade.Bury("no such customer")

    async def asks_for_more_time(self, _: int) -> None:
        raise cascade.Retry("not yet", after=timedelta(milliseconds=10))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cancels", "RuntimeError: the handler was cancelled by itself"),
        ("exits", "SystemExit: 3"),
        ("exits_in_thread", "SystemExit: 3"),
        ("returns_no_json", "PayloadError: the payload is not JSON"),
        ("wants_an_order", "PayloadError: the payload is no Order"),
        ("takes_too_long", "TimeoutError: the handler took longer than 0.2 s"),
        ("takes_too_long_in_thread", "TimeoutError: the handler took longer than 0.2 s, and goes on in its thread"),
        ("times_out_by_itself", "TimeoutError: of its own"),
        ("buries", "Bury: no such customer"),
        ("asks_for_more_time", "Retry: not yet"),
    ],
)
async def test_no_message_is_lost_whatever_a_handler_does(db: Database, name: str, expected: str) -> None:
    subscribe(db, "twice", max_attempts=2)
    publish(db, 1)
    dead: list[tuple[int, str]] = []
    work = worker(db, getattr(Refuses(), name), "twice", time_limit=timedelta(seconds=0.2))

    @work.on_dead()
    async def mourn(number: int, delivery: cascade.Delivery[int]) -> None:
        dead.append((number, (delivery.error or "").partition("\n")[0]))

    async with running(work):
        await until(lambda: dead)
    assert work.completed == 0 and work.failed == (1 if name == "buries" else 2)
    [(number, error)] = dead
    assert number == 0 and error.startswith(expected)
    assert db.value("select split_part(error, E'\\n', 1) from cascade_internal.work_dead") == error


async def test_a_type_without_a_handler_is_a_failure_that_says_so(db: Database) -> None:
    subscribe(db, "once", max_attempts=1)
    publish(db, 1, "lost")
    work = worker(db, None, "once")
    work.on("paid", "sent")(lambda payload: None)
    assert await work.drain() == 1
    assert "no handler takes type 'lost', only paid, sent" in db.value("select error from cascade_internal.work_dead")


async def test_a_stop_finishes_what_has_begun_and_returns_the_rest_at_once(db: Database) -> None:
    publish(db, 200)
    go, slow, seen = asyncio.Event(), list[int](), list[int]()

    async def slows_down(number: int) -> None:
        seen.append(number)
        if number >= 50:
            slow.append(number)
            await go.wait()

    first = worker(db, slows_down, concurrency=3, lease=timedelta(hours=1))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(first.run())
        await until(lambda: len(slow) == 3)
        held = "select count(*) from cascade.work_messages('q', 'w', 'active', 1000)"
        assert db.value(held) > 3, "quick handlers have it take more than it works on"
        first.stop()
        await until(lambda: db.value(held) == 3)

        async def take(number: int) -> None:
            seen.append(number)

        async with running(worker(db, take)):
            await until(lambda: len(seen) == 200)
        assert not task.done()
        go.set()
    assert sorted(seen) == [*range(200)] and first.completed == 53 and left(db) == 0


async def test_what_does_not_end_in_time_is_given_back(db: Database) -> None:
    publish(db, 2)
    begun = asyncio.Event()

    async def forever(_: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    stuck = worker(db, forever, concurrency=1, stop_within_s=0.1, lease=timedelta(hours=1))
    async with running(stuck):
        await begun.wait()
    attempts: list[int] = []
    await worker(db, lambda delivery: attempts.append(delivery.attempt)).drain()
    assert attempts == [1, 1], "an attempt that was given back does not count"


async def test_cancelling_a_worker_gives_everything_back(db: Database) -> None:
    publish(db, 10)
    begun = asyncio.Event()

    async def forever(number: int) -> None:
        if number:
            begun.set()
            await asyncio.sleep(3600)

    work = worker(db, forever, concurrency=3, lease=timedelta(hours=1))
    task = asyncio.create_task(work.run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left(db) == 0
    seen: list[int] = []
    await worker(db, seen.append).drain()
    assert sorted(seen) == [*range(1, 10)]


async def test_a_lease_is_renewed_for_as_long_as_a_handler_works(db: Database) -> None:
    publish(db, 1)
    seen: list[str] = []

    async def slow(_: int) -> None:
        seen.append("slow")
        await asyncio.sleep(1.5)

    async def other(_: int) -> None:
        seen.append("other")

    first = worker(db, slow, lease=timedelta(seconds=0.6))
    async with running(first):
        await until(lambda: seen)
        async with running(worker(db, other)):
            while not first.completed:
                db.rows("select * from cascade.tend_work()")
                await asyncio.sleep(0.1)
    assert seen == ["slow"]


async def test_a_claim_that_was_given_up_does_not_count_and_its_handler_is_ended(db: Database) -> None:
    publish(db, 2)
    begun: list[int] = []
    seen: list[tuple[str, int]] = []

    async def forever(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append(("ended", number))

    first = worker(db, forever, lease=timedelta(seconds=30))
    async with running(first):
        await until(lambda: len(begun) == 2)
        db.main.execute("update cascade_internal.work_claim set until = now() - interval '1 s'")
        first.stop()  # or it would be the one who gets them again
        db.rows("select * from cascade.tend_work()")

        async def other(number: int, delivery: cascade.Delivery[int]) -> None:
            seen.append((f"attempt {delivery.attempt}", number))

        first.lease = timedelta(seconds=0.1)  # it is time to renew it
        first._nudge()
        await until(lambda: len(seen) == 2)
        await until(lambda: first.lost == 2)
    async with running(worker(db, other)):
        await until(lambda: len(seen) == 4)
    assert seen[:2] == [("ended", 0), ("ended", 1)]
    assert sorted(seen[2:]) == [("attempt 2", 0), ("attempt 2", 1)] and first.completed == 0


async def test_a_handler_that_does_not_let_itself_be_ended_costs_its_runner_nothing(db: Database) -> None:
    publish(db, 1)
    attempts: list[int] = []

    async def stubborn(number: int, delivery: cascade.Delivery[int]) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        elif delivery.attempt == 2:
            raise asyncio.CancelledError

    only = worker(db, stubborn, concurrency=1)
    async with running(only):
        await until(lambda: attempts == [1])
        db.main.execute("update cascade_internal.work_claim set until = now() - interval '1 s'")
        db.rows("select * from cascade.tend_work()")
        only.lease = timedelta(seconds=0.1)  # it is time to renew it
        only._nudge()
        await until(lambda: only.lost == 1)
        only.lease = timedelta(seconds=30)
        await until(lambda: only.completed == 1)
    assert attempts == [1, 2, 3] and only.failed == 1


@pytest.mark.parametrize("fate", ["result", "error"])
async def test_one_message_that_is_taken_away_does_not_cost_the_others(db: Database, fate: str) -> None:
    publish(db, 4)
    begun, go = Counter[int](), asyncio.Event()

    async def handle(number: int, delivery: cascade.Delivery[int]) -> int:
        begun[number] += 1
        await go.wait()
        if number == 1 and delivery.attempt == 1 and begun[1] == 1 and fate == "error":
            raise ValueError("whoever has it now is not told of this")
        return number

    work = worker(db, handle)
    async with running(work):
        await until(lambda: len(begun) == 4)
        [taken] = db.rows("select id from cascade.work_messages('q', 'w', 'active', 100) order by id offset 1 limit 1")
        assert db.value("select cascade.release_message('q', 'w', %s)", [taken[0]]) == 1
        go.set()
        await until(lambda: work.completed == 4)
    assert begun == {0: 1, 1: 2, 2: 1, 3: 1} and (work.lost, work.failed) == (1, 0)
    states = "select state, result from cascade.work_result('q', 'w', %s)"
    assert [db.row(states, taken[0] + n) for n in range(-1, 3)] == [("done", n) for n in range(4)]


async def test_a_worker_goes_on_when_its_connections_are_cut(db: Database) -> None:
    publish(db, 400)
    seen: Counter[int] = Counter()

    async def handle(number: int) -> None:
        await asyncio.sleep(0.002)
        seen[number] += 1

    cut = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and application_name = 'cascade/w/worker'"
    )
    workers = [worker(db, handle, concurrency=2), worker(db, handle, concurrency=2)]
    async with running(*workers):
        for share in (50, 150, 250):
            await until(lambda share=share: len(seen) > share)
            db.rows(cut)
        while len(seen) < 400 or left(db):
            db.rows("select * from cascade.tend_work()")
            await asyncio.sleep(0.05)
    # What was handled when a connection broke may come again; nothing is left out, and nothing completed twice.
    assert set(seen) == {*range(400)}
    assert await worker(db, handle).drain() == 0


async def test_effects_and_completion_share_a_transaction(db: Database) -> None:
    db.main.execute("create table effect (number bigint)")
    publish(db, 3)
    async with cascade.connect(db.dsn) as client:

        async def handle(number: int, delivery: cascade.Delivery[int]) -> None:
            async with client.transaction() as conn:
                await conn.execute("insert into effect values (%s)", (number,))
                await delivery.complete(conn)
                if delivery.attempt == 1 and number:
                    raise ValueError("rolled back, and the completion with it")

        work = worker(db, handle, concurrency=1)
        async with running(work):
            await until(lambda: db.value("select count(*) from effect") == 3)
            await until(lambda: left(db) == 0)
    assert sorted(row[0] for row in db.rows("select number from effect")) == [0, 1, 2]


async def test_what_is_wrong_with_a_worker_is_said_at_once(db: Database) -> None:
    with pytest.raises(ConfigError, match="no handler"):
        await worker(db).run()
    with pytest.raises(ConfigError, match="more than nothing"):
        worker(db, print, batch=0)
    with pytest.raises(ConsumerNotFoundError, match="nobody"):
        await worker(db, len, "nobody").run()
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn, cascade.connect(conn) as client:
        with pytest.raises(ConfigError, match="a connection of its own"):
            cascade.Worker(client.queue("q"), "w", len)
    db.main.execute("select cascade.unsubscribe('q', 'w')")
    db.rows("select cascade.subscribe('q', 'w')")
    with pytest.raises(cascade.CascadeError, match="stream consumer"):
        await worker(db, len).run()


async def test_logs_say_what_happened_for_people_and_for_programs(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(db, "once", max_attempts=1)
    publish(db, 1, "paid")

    async def fails(_: int) -> None:
        raise ValueError("no money")

    with caplog.at_level(logging.INFO, "cascade.worker"):
        await worker(db, fails, "once", name="me").drain()
    [failed] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert failed.getMessage() == "queue q: message 1 failed, attempt 1: ValueError: no money; it is dead"
    facts = vars(failed)
    assert (facts["queue"], facts["consumer"], facts["worker"], facts["message_id"], facts["message_type"]) == (
        "q", "once", "me", 1, "paid",
    )  # fmt: skip
    assert (facts["attempt"], facts["due"]) == (1, None) and "Traceback" in facts["error"]
