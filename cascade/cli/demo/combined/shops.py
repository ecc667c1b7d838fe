"""The shops: producers of every part, who remember what was acknowledged; headquarters: consumers on every carrier."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

from cascade.cli import until
from cascade.cli.demo.combined.places import CARRIERS, PARTS, SET
from cascade.cli.demo.places import Places
from cascade.client import Client, connect
from cascade.consumer import Batch, Stream
from cascade.errors import BatchLostError, CascadeError, TransientError
from cascade.event import Message

CONSUMER = "headquarters"
#: The carrier that is neither killed nor promoted.
FAR_END = "s3"
#: Where a node went back to a fork, what was handled beyond it is merged again, with another id: its origin tells.
HANDLED: LiteralString = """
    insert into hq.handled (origin, origin_id) select * from unnest(%s::text[], %s::bigint[])
    on conflict (origin, origin_id) do nothing
"""


@dataclass(slots=True)
class Book:
    """What one shop was told of its orders."""

    acknowledged: set[int] = field(default_factory=set)
    #: Those of whose COMMIT nobody can say what became of it until somebody looks.
    unknown: set[int] = field(default_factory=set)
    rolled_back: int = 0


class Shops:
    """Four shops, each with a queue, and headquarters, which handle what all of them have."""

    def __init__(self, where: Places, rate: int) -> None:
        self.where, self.rate = where, rate
        self.order_ids = itertools.count(1)
        self.books = {part: Book() for part in PARTS}
        #: How many events were handled at each carrier, by part, as far as this process knows.
        self.handled: dict[str, Counter[str]] = {name: Counter() for name in CARRIERS}
        #: The event handled last at the far end, for people.
        self.newest = ""
        self.streams: dict[str, Stream[Any]] = {}
        self.is_closed = asyncio.Event()
        self.is_over = asyncio.Event()

    @property
    def committed(self) -> int:
        """How many orders were acknowledged in all."""
        return sum(len(book.acknowledged) for book in self.books.values())

    def headline(self) -> str:
        """Return what the shops committed so far, and what has come out at the far end of the combined set."""
        shops = "  ".join(f"{part} {len(book.acknowledged)}" for part, book in self.books.items())
        merged = self.handled[FAR_END].total()
        said = f"orders: {shops}    in {SET} at {FAR_END}: {merged}    under way: {self.committed - merged}"
        return f"{said}\nthe newest there: {self.newest}" if self.newest else said

    def open(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Let every shop publish until they are closed: single orders, and a burst now and then, not all at once."""
        self.is_closed.clear()
        rate = max(1, self.rate // len(PARTS))
        tasks = []
        for number, part in enumerate(PARTS):
            singles = self.produce(part, 1, 1 / rate)
            bursts = self.produce(part, 10 + rate, 2.0 + number / 4)
            tasks += [
                group.create_task(singles, name=f"{part} singles"),
                group.create_task(bursts, name=f"{part} bursts"),
            ]
        return tasks

    async def produce(self, part: str, size: int, every_s: float) -> None:
        """Publish in one shop."""
        while not self.is_closed.is_set():
            with suppress(TransientError):
                async with connect(self.where.dsn(self.where.topology.sets[part].root.name)) as client:
                    await self.publish(client, part, size, every_s)

    async def publish(self, client: Client, part: str, size: int, every_s: float) -> None:
        """Publish over one connection; of single orders one in twenty is rolled back."""
        due = time.monotonic()
        while not self.is_closed.is_set():
            await self.place(client, part, size, is_undone=size == 1 and random.random() < 0.05)
            due = max(due + every_s, time.monotonic() - 1)
            await until(self.is_closed.is_set, timeout_s=due - time.monotonic())

    async def place(self, client: Client, part: str, size: int, *, is_undone: bool) -> None:
        """Publish some orders in one transaction, and remember what became of it."""
        book, lot = self.books[part], list(itertools.islice(self.order_ids, size))
        messages = (Message({"order": n, "shop": part}, "order.placed", f"customer-{n % 97}") for n in lot)
        maybe: list[int] = []
        try:
            async with client.transaction():
                await client.queue(part).publish_many(messages)
                if is_undone:
                    raise psycopg.Rollback
                maybe = lot
        except CascadeError:
            book.unknown.update(maybe)
            raise
        book.acknowledged.update(maybe)
        book.rolled_back += len(lot) - len(maybe)

    async def consume(self, name: str) -> None:
        """Handle every event of the combined set on one carrier until all is over, whatever happens to its database."""
        while not self.is_over.is_set():
            with suppress(TransientError):
                async with connect(self.where.dsn(name)) as client:
                    merged = client.queue(SET)
                    await merged.subscribe(CONSUMER, at="earliest")
                    self.streams[name] = merged.stream(CONSUMER)
                    async with self.streams[name] as stream:
                        async for batch in stream:
                            with suppress(BatchLostError):
                                async with batch:
                                    await self.handle(name, batch)
            await until(self.is_over.is_set, timeout_s=0.2)

    async def handle(self, name: str, batch: Batch[Any]) -> None:
        """Write down what was handled, in the transaction that finishes the batch."""
        events = list(batch)
        origins = [str(event.origin) for event in events]
        async with batch.transaction() as conn:
            await conn.execute(HANDLED, (origins, [event.origin_id for event in events]))
        self.handled[name].update(origins)
        if events and name == FAR_END:
            last = events[-1]
            self.newest = f"{last.id}, in {last.origin} {last.origin_id}: {last.type} of {last.key}"

    def end(self) -> None:
        """Have the consumers end."""
        self.is_over.set()
        for stream in self.streams.values():
            stream.stop()
