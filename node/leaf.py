"""Leaf: processes its provider's events as they are read, and keeps none of them.

The handler runs in the transaction that moves the position, so its effects happen exactly once.  A
handler that fails stops the leaf where it stands; the batch comes again after a growing wait.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.batch import Held
from cascade.codec import JsonCodec
from cascade.db import AsyncConnection, raw_json, translated
from cascade.event import Event
from cascade.names import BatchId, TickId
from cascade.node.copier import BEGIN, Copier, Pace, Range
from cascade.node.handler import Handler, is_async
from cascade.node.home import Home, Standing
from cascade.node.pipe import COLUMNS, deadline, deadline_sync
from cascade.node.processor import NOTE_ERROR, handler_connection, handling, noting, unhurried, unhurried_sync

FINISH_LEAF: LiteralString = "select cascade.finish_leaf_copy(%s, %s::jsonb, %s)"
ROWS = "select {}, 1 from ({}) as e order by id"
_ORIGIN, _TYPE, _PAYLOAD = 7, 3, 5


class LeafCopier(Copier):
    """Reads, processes and forgets."""

    def __init__(self, home: Home, handler: Handler | None, *, pace: Pace | None = None) -> None:
        super().__init__(home, pace=pace or Pace(max_ticks=100, max_events=5000, max_bytes=8 * 1024 * 1024))
        self._handler = handler
        self.error: str | None = None
        self._is_noted = True

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the provider until `stop` is set."""
        self._is_noted = True
        async with noting(self.home):
            await super().run(stop)

    def adapt(self, provider: AsyncConnection) -> None:
        """Have the events arrive as values, for the handler, and JSON as text."""
        raw_json(provider.adapters)

    async def copy(
        self, local: AsyncConnection, provider: AsyncConnection, me: Standing, after: tuple[int, bytes], found: Range
    ) -> None:
        """Read a range, process it and move past it, in one transaction."""
        if found.columns is not None:
            # The provider has looked once more already.
            rows = sorted((*row, 1) for row in zip(*found.columns, strict=True)) if found.columns[0] else []
        else:
            self.doubt()
            rows = await self._read(provider, found.query)
            self.learn(len(rows), sum(len(row[_PAYLOAD]) for row in rows))
            await self.check(provider, me, after, found)
        controls = [
            {"type": row[_TYPE], "payload": json.loads(row[_PAYLOAD])} for row in rows if row[_ORIGIN] == ".cascade"
        ]
        decode = JsonCodec().decode
        events = [Event[Any](row, decode) for row in rows if row[_ORIGIN] != ".cascade"]
        batch = Held[Any](BatchId(0), TickId(after[0]), TickId(found.to_tick), events)
        begin = (self.home.set, me.provider, me.generation, *after)
        finish = (self.home.set, found.ticks, Jsonb(controls))
        if self._handler is None or is_async(self._handler) or not events:
            await self._apply(local, batch, begin, finish)
        else:
            await asyncio.to_thread(self._apply_sync, me.queue_id, batch, begin, finish)
        self.events += len(events)

    async def _read(self, provider: AsyncConnection, query: str) -> list[Any]:
        with translated(), deadline(self.home.link_timeout_s, provider):
            async with provider.cursor(binary=True) as cur:
                await cur.execute(ROWS.format(COLUMNS, query).encode())
                return await cur.fetchall()

    async def _apply(
        self, local: AsyncConnection, batch: Held[Any], begin: tuple[object, ...], finish: tuple[object, ...]
    ) -> None:
        with translated(), deadline(self.home.link_timeout_s, local) as timer:
            async with local.transaction():
                await local.execute(BEGIN, begin)
                if self._handler is not None and len(batch):
                    async with unhurried(self.home, local, timer):
                        with handling(self):
                            await self._handler(batch, local)
                    if self._is_noted:
                        await local.execute(NOTE_ERROR, (self.home.set, None))
                await local.execute(FINISH_LEAF, finish)
        self._is_noted = False

    def _apply_sync(
        self, queue_id: int, batch: Held[Any], begin: tuple[object, ...], finish: tuple[object, ...]
    ) -> None:
        assert self._handler is not None
        with handler_connection(self.home, queue_id) as conn:
            with translated(), deadline_sync(self.home.link_timeout_s, conn) as timer, conn.transaction():
                conn.execute(BEGIN, begin)
                with unhurried_sync(self.home, conn, timer):
                    with handling(self):
                        self._handler(batch, conn)
                if self._is_noted:
                    conn.execute(NOTE_ERROR, (self.home.set, None))
                conn.execute(FINISH_LEAF, finish)
        self._is_noted = False
