"""Dispatcher: has new events ready for consumers in work mode, and late ones when they are due.

A tick of a queue that has such consumers wakes it, and so does the moment when the next delayed message, or the next
attempt at one, is due.  Workers that find nothing do the same for themselves: two at once are harmless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, LiteralString

from cascade.db import AsyncConnection, Notifications, connect, translated
from cascade.names import QueueName
from cascade.node.pipe import deadline

log = logging.getLogger("cascade.node.dispatcher")

DISPATCH: LiteralString = "select queue_name, consumer, messages from cascade.dispatch_work()"
CHANNELS: LiteralString = "select channel from cascade.work_channels() as channel"
DUE: LiteralString = "select extract(epoch from cascade.next_work_due() - clock_timestamp())::float8"


@dataclass(frozen=True, slots=True)
class Moved:
    """How many messages were made ready for a consumer."""

    queue: QueueName
    consumer: str
    messages: int


class Dispatcher:
    """Moves what is new or due to the consumers in work mode, of every queue of a database."""

    name = "dispatcher"

    def __init__(self, dsn: str, *, interval_s: float = 1.0, timeout_s: float = 60.0) -> None:
        self._dsn, self._interval_s, self._timeout_s = dsn, interval_s, timeout_s
        self._conn: AsyncConnection | None = None
        self._channels: set[str] = set()
        self._looked_at = 0.0
        self.turned_at: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set."""
        self.turned_at = None
        self._conn = await connect(self._dsn, service="dispatcher")
        self._channels, self._looked_at = set(), 0.0
        notifications = Notifications(self._conn)
        try:
            while not stop.is_set():
                await self._listen()
                if not await self.turn():
                    [[due_s]] = await self._fetch(DUE)
                    wait_s = self._interval_s if due_s is None else min(max(due_s, 0.0), self._interval_s)
                    # What was due and did not move waits for something else: not at full speed.
                    await notifications.wait(max(wait_s, 0.01))
        finally:
            await self._conn.close()

    async def turn(self) -> list[Moved]:
        """Move what there is, and return what was moved."""
        moved = [Moved(*row) for row in await self._fetch(DISPATCH)]
        self.turned_at = time.monotonic()
        return moved

    async def _listen(self) -> None:
        """Have ticks announced of the queues that have consumers in work mode by now."""
        if time.monotonic() - self._looked_at < self._interval_s:
            return
        self._looked_at = time.monotonic()
        found = {str(channel) for (channel,) in await self._fetch(CHANNELS)}
        for channel in found - self._channels:
            await self._execute(f"listen {channel}".encode())
        for channel in self._channels - found:
            await self._execute(f"unlisten {channel}".encode())
        self._channels = found

    async def _fetch(self, query: LiteralString) -> list[Any]:
        assert self._conn is not None
        with translated(), deadline(self._timeout_s, self._conn):
            return await (await self._conn.execute(query)).fetchall()

    async def _execute(self, query: bytes) -> None:
        assert self._conn is not None
        with translated(), deadline(self._timeout_s, self._conn):
            await self._conn.execute(query)
