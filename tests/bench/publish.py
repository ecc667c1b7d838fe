"""Publishing from Python: publish_many against a raw COPY of text encoded beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import cascade
import cascade.sync
from tests.bench.events import copy_blocks, messages
from tests.bench.measure import Bar, Row, Samples, per_second, take_turns
from tests.bench.servers import Bench

NAME = "publish"
ABOUT = "publish_many() of 100,000 dicts, asynchronous and synchronous client, against a raw COPY"
NOTE = (
    "`publish_many` of messages whose payloads are dicts: JSON encoding and COPY escaping are measured too. "
    "Raw: psycopg's `cursor.copy` writing blocks of COPY text encoded beforehand, into the plain table of measure "
    "`bulk`. One transaction, `synchronous_commit = on`, asyncio's own event loop."
)
BAR = Bar(kind="at least", limit=0.7)


def run(bench: Bench) -> Iterator[Row]:
    """Measure both clients and the raw limit in turns."""
    count = bench.scaled(100_000, 20_000)
    events, blocks = messages(count), copy_blocks(count)

    def into_queue(publish: Callable[[str], float]) -> float:
        with bench.queue() as queue:
            bench.checkpoint()
            return publish(queue)

    async def publish_async(queue: str) -> float:
        async with cascade.connect(bench.dsn()) as client:
            loop = asyncio.get_running_loop()
            start = loop.time()
            await client.queue(queue).publish_many(events)
            return count / (loop.time() - start)

    def publish_sync(queue: str) -> float:
        with cascade.sync.connect(bench.dsn()) as client:
            return per_second(count, lambda: client.queue(queue).publish_many(events))

    def raw() -> float:
        with bench.raw_table() as table, bench.connect() as conn:
            bench.checkpoint()

            def copy() -> None:
                statement: Any = f"copy {table} (type, key, payload, headers) from stdin".encode()
                with conn.cursor() as cur, cur.copy(statement) as copying:
                    for block in blocks:
                        copying.write(block)

            return per_second(count, copy)

    found = take_turns(
        bench.turns(7, 2),
        {
            "async": lambda: into_queue(lambda queue: asyncio.run(publish_async(queue))),
            "sync": lambda: into_queue(publish_sync),
            "raw COPY": raw,
        },
    )
    samples = {name: Samples(label=name, unit="/s", values=values) for name, values in found.items()}
    title = f"publish_many of {count:,} dicts"
    yield Row(measure=NAME, title=f"{title}, async client", ours=samples["async"], theirs=samples["raw COPY"], bar=BAR)
    yield Row(measure=NAME, title=f"{title}, sync client", ours=samples["sync"], theirs=samples["raw COPY"])
