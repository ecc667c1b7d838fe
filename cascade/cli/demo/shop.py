"""The shop: producers that remember every order that was acknowledged, and a consumer on every carrier."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import suppress
from typing import Any, LiteralString

import psycopg

from cascade.cli import until
from cascade.cli.demo.places import SET, Places
from cascade.client import Client, connect
from cascade.consumer import Batch, Stream
from cascade.errors import BatchLostError, CascadeError, FencedError, TransientError
from cascade.event import Message

CONSUMER = "billing"
ORDERS: LiteralString = "insert into shop.orders select unnest(%s::bigint[])"
#: An event that was republished after a failover says in origin_id which one it was; that may have been handled here.
HANDLED: LiteralString = """
    insert into shop.handled
    select n.order_id, n.event_id
      from unnest(%s::bigint[], %s::bigint[], %s::bigint[]) as n(order_id, event_id, old_id)
     where not exists (select from shop.handled as h where h.event_id = n.old_id)
"""


class Shop:
    """Writes orders and their events at the root, each lot in one transaction."""

    def __init__(self, where: Places, rate: int) -> None:
        self.where, self.rate = where, rate
        self.root: str | None = where.root
        self.order_ids = itertools.count(1)
        #: Orders whose COMMIT was answered, and those of which nobody can say until somebody looks.
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self.rolled_back = 0
        self.last_at = 0.0
        self.streams: dict[str, Stream[Any]] = {}
        self.is_closed = asyncio.Event()
        self.is_over = asyncio.Event()

    def headline(self) -> str:
        """Return what the producers did so far."""
        return f"{len(self.acknowledged)} orders committed, {self.rolled_back} rolled back"

    def open(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Let producers publish until the shop is closed: single orders, and bursts."""
        self.is_closed.clear()
        singles = -(-self.rate // 250)
        tasks = [group.create_task(self.produce(1, singles / self.rate), name="singles") for _ in range(singles)]
        return [*tasks, group.create_task(self.produce(50 + self.rate // 2, 2.0), name="bursts")]

    async def produce(self, size: int, every_s: float) -> None:
        """Publish where the root is; without one, wait until there is."""
        while not self.is_closed.is_set():
            if (root := self.root) is None:
                await until(lambda: self.root is not None or self.is_closed.is_set(), timeout_s=1.0)
                continue
            with suppress(TransientError, FencedError):
                async with connect(self.where.dsn(root)) as client:
                    await self.publish(client, root, size, every_s)
            await until(lambda: self.root != root or self.is_closed.is_set(), timeout_s=0.1)

    async def publish(self, client: Client, root: str, size: int, every_s: float) -> None:
        """Publish at one node as long as it is the root; of single orders one in twenty is rolled back."""
        due = time.monotonic()
        while not self.is_closed.is_set() and self.root == root:
            await self.place(client, size, is_undone=size == 1 and random.random() < 0.05)
            due = max(due + every_s, time.monotonic() - 1)
            await until(self.is_closed.is_set, timeout_s=due - time.monotonic())

    async def place(self, client: Client, size: int, *, is_undone: bool = False) -> None:
        """Write some orders and their events in one transaction, and remember what became of it."""
        lot = list(itertools.islice(self.order_ids, size))
        messages = (Message({"order": n}, "order.placed", f"customer-{n % 97}") for n in lot)
        maybe: list[int] = []
        try:
            async with client.transaction() as conn:
                await conn.execute(ORDERS, (lot,))
                await client.queue(SET).publish_many(messages)
                if is_undone:
                    raise psycopg.Rollback
                maybe = lot
        except CascadeError:
            self.unknown.update(maybe)
            raise
        self.acknowledged.update(maybe)
        self.rolled_back += len(lot) - len(maybe)
        self.last_at = time.monotonic()

    async def write_past_the_root(self, name: str) -> int:
        """Write to a node as long as it takes orders, as a program does that nobody told; return how many it took."""
        count = 0
        async with connect(self.where.dsn(name)) as client:
            with suppress(FencedError):
                while not self.is_over.is_set():
                    await self.place(client, 1)
                    count += 1
                    await asyncio.sleep(0.02)
        return count

    async def consume(self, name: str) -> None:
        """Handle every event on one node until the shop is over, whatever happens to its database."""
        while not self.is_over.is_set():
            with suppress(TransientError):
                async with connect(self.where.dsn(name)) as client:
                    orders = client.queue(SET)
                    await orders.subscribe(CONSUMER, at="earliest")
                    self.streams[name] = orders.stream(CONSUMER)
                    async with self.streams[name] as stream:
                        async for batch in stream:
                            with suppress(BatchLostError):
                                async with batch:
                                    await self.handle(batch)
            await until(self.is_over.is_set, timeout_s=0.2)

    async def handle(self, batch: Batch[Any]) -> None:
        """Write down what was handled, in the transaction that finishes the batch."""
        lists = (
            [event.payload["order"] for event in batch],
            [event.id for event in batch],
            [event.origin_id for event in batch],
        )
        async with batch.transaction() as conn:
            await conn.execute(HANDLED, lists)

    def end(self) -> None:
        """Have the consumers end."""
        self.is_over.set()
        for stream in self.streams.values():
            stream.stop()
