"""Reading events into Python: next batch, its events, finish, until the queue is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import cascade
import cascade.sync
from cascade.event import Event
from tests.bench.events import insert_many, pgq_many
from tests.bench.measure import Bar, Row, Samples, per_second, take_turns
from tests.bench.servers import PGQ_DATABASE, Bench, driver_name

NAME = "read"
ABOUT = "reading 200,000 events in batches of 500 and of 5,000 into Python, against PgQ"
NOTE = (
    "Every batch is one tick. Cascade: `queue.stream` (async: two connections, reading ahead) and `queue.next_batch`, "
    "async and sync, all in the table, fastest first. The bar is held against the fastest, which is picked after the "
    "fact from the same rounds: among four noisy paths that flatters Cascade a little, more so with fewer rounds. "
    "PgQ: `pgq.next_batch`, `pgq.get_batch_events` with fetchall, `pgq.finish_batch`, a commit after each. "
    "Each event's id, type and payload text are looked at. `synchronous_commit = on`, events in shared buffers."
)
BAR = Bar(kind="at least", limit=1.0)


def run(bench: Bench) -> Iterator[Row]:
    """Measure every path for both batch sizes."""
    count = bench.scaled(200_000, 20_000)
    for size in (500, 5_000):
        with ExitStack() as stack:
            batches = count // size
            bench.say(f"filling {batches} batches of {size}")
            queue = stack.enter_context(bench.queue())
            _fill(bench, "cascade", insert_many(f"queue.{queue}", size), f"select cascade.tick('{queue}')", batches)
            sides = {name: partial(_ours, bench, queue, count, path) for name, path in PATHS.items()}
            if bench.has_pgq:
                rival = stack.enter_context(bench.pgq_queue())
                _fill(bench, PGQ_DATABASE, pgq_many(rival, size), f"select pgq.ticker('{rival}')", batches)
                sides["PgQ"] = partial(_pgq, bench, rival, count)
            bench.say("reading")
            found = take_turns(bench.turns(3), sides)
        samples = {name: Samples(label=name, unit="/s", values=values) for name, values in found.items()}
        theirs = samples.pop("PgQ", None)
        ranked = sorted(samples.values(), key=lambda side: side.median, reverse=True)
        for side in ranked:
            yield Row(
                measure=NAME,
                title=f"read {count:,} in batches of {size:,}",
                ours=side,
                theirs=theirs,
                rival=f"PgQ, {driver_name()}",
                bar=BAR if side is ranked[0] else None,
            )


def _fill(bench: Bench, database: str, insert: str, tick: str, batches: int) -> None:
    with bench.connect(database, synchronous=False) as conn:
        for _ in range(batches):
            conn.execute(insert.encode())
            conn.execute(tick.encode())


def _ours(bench: Bench, queue: str, count: int, path: Callable[[str, str, int], float]) -> float:
    consumer = "reader"
    with bench.connect() as conn:
        conn.execute("select cascade.subscribe(%s, %s, 'earliest')", (queue, consumer))
    try:
        return path(bench.dsn(), queue, count)
    finally:
        with bench.connect() as conn:
            conn.execute("select cascade.unsubscribe(%s, %s)", (queue, consumer))


def _touch(events: list[Event[object]]) -> int:
    for event in events:
        _ = event.id, event.type, event.payload_text
    return len(events)


def _async_stream(dsn: str, name: str, count: int) -> float:
    async def read() -> float:
        async with cascade.connect(dsn) as client:
            loop = asyncio.get_running_loop()
            start, left = loop.time(), count
            async with client.queue(name).stream("reader", max_ticks=1) as stream:
                async for batch in stream:
                    async with batch:
                        left -= _touch(batch.events)
                    if left <= 0:
                        return count / (loop.time() - start)
        raise AssertionError("a stream ends only when it is left")

    return asyncio.run(read())


def _async_next(dsn: str, name: str, count: int) -> float:
    async def read() -> float:
        async with cascade.connect(dsn) as client:
            loop = asyncio.get_running_loop()
            start, left, queue = loop.time(), count, client.queue(name)
            while left > 0 and (batch := await queue.next_batch("reader")) is not None:
                async with batch:
                    left -= _touch(batch.events)
            assert left == 0
            return count / (loop.time() - start)

    return asyncio.run(read())


def _sync_stream(dsn: str, name: str, count: int) -> float:
    def read() -> None:
        left = count
        for batch in client.queue(name).stream("reader", max_ticks=1):
            left -= _touch(batch.events)
            if left <= 0:
                batch.finish()
                return

    with cascade.sync.connect(dsn) as client:
        return per_second(count, read)


def _sync_next(dsn: str, name: str, count: int) -> float:
    def read() -> None:
        left, queue = count, client.queue(name)
        while left > 0 and (batch := queue.next_batch("reader")) is not None:
            with batch:
                left -= _touch(batch.events)
        assert left == 0

    with cascade.sync.connect(dsn) as client:
        return per_second(count, read)


PATHS = {
    "async stream": _async_stream,
    "async next_batch": _async_next,
    "sync stream": _sync_stream,
    "sync next_batch": _sync_next,
}


def _pgq(bench: Bench, queue: str, count: int) -> float:
    conn = bench.pgq_driver()
    cur = conn.cursor()
    cur.execute("select pgq.register_consumer_at(%s, 'reader', 1)", (queue,))
    conn.commit()

    def read() -> None:
        left = count
        while left > 0:
            cur.execute("select pgq.next_batch(%s, 'reader')", (queue,))
            batch = cur.fetchone()[0]
            conn.commit()
            cur.execute("select * from pgq.get_batch_events(%s)", (batch,))
            for event in cur.fetchall():
                _ = event[0], event[4], event[5]
                left -= 1
            cur.execute("select pgq.finish_batch(%s)", (batch,))
            conn.commit()

    rate = per_second(count, read)
    cur.execute("select pgq.unregister_consumer(%s, 'reader')", (queue,))
    conn.commit()
    conn.close()
    return rate
