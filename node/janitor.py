"""Janitor: takes messages back from workers that are gone, and throws away what was kept long enough."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import LiteralString

from cascade.db import AsyncConnection, connect, translated
from cascade.names import QueueName
from cascade.node.pipe import deadline
from cascade.node.service import pause

log = logging.getLogger("cascade.node.janitor")

TEND: LiteralString = "select queue_name, consumer, action, messages from cascade.tend_work()"


@dataclass(frozen=True, slots=True)
class Tended:
    """What was done for a consumer, or for all of them."""

    queue: QueueName | None
    consumer: str | None
    action: str
    messages: int


class Janitor:
    """Looks after the consumers in work mode, of every queue of a database.  Two at once are harmless."""

    name = "janitor"

    def __init__(self, dsn: str, *, interval_s: float = 1.0, timeout_s: float = 60.0) -> None:
        self._dsn, self._interval_s, self._timeout_s = dsn, interval_s, timeout_s
        self._conn: AsyncConnection | None = None
        self.turned_at: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set."""
        self.turned_at = None
        self._conn = await connect(self._dsn, service="janitor")
        try:
            while not stop.is_set():
                await self.turn()
                await pause(stop, self._interval_s)
        finally:
            await self._conn.close()

    async def turn(self) -> list[Tended]:
        """Look after everybody once, and return what was done."""
        assert self._conn is not None
        with translated(), deadline(self._timeout_s, self._conn):
            rows = await (await self._conn.execute(TEND)).fetchall()
        self.turned_at = time.monotonic()
        done = [Tended(*row) for row in rows]  # type: ignore[arg-type]
        for step in done:
            whose = "" if step.queue is None else f"queue {step.queue}, consumer {step.consumer}: "
            log.info("%s%s: %s", whose, step.action, step.messages)
        return done
