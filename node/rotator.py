"""Rotator: empties event partitions that nobody needs any more."""

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

log = logging.getLogger("cascade.node.rotator")

ROTATE: LiteralString = "select queue_name, action, generation, detail from cascade.rotate()"


@dataclass(frozen=True, slots=True)
class Step:
    """What rotation did to a queue, or what it waits for."""

    queue: QueueName
    action: str
    generation: int
    detail: str | None


class Rotator:
    """Takes rotation step by step; each step is a transaction of its own."""

    name = "rotator"

    def __init__(self, dsn: str, *, interval_s: float = 5.0, timeout_s: float = 60.0) -> None:
        self._dsn, self._interval_s, self._timeout_s = dsn, interval_s, timeout_s
        self._conn: AsyncConnection | None = None
        self.turned_at: float | None = None
        self._waits: dict[QueueName, str | None] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set."""
        self.turned_at = None
        self._conn = await connect(self._dsn, service="rotator")
        try:
            while not stop.is_set():
                steps = await self.turn()
                if all(step.action == "waiting" for step in steps):
                    await pause(stop, self._interval_s)
        finally:
            await self._conn.close()

    async def turn(self) -> list[Step]:
        """Take the next step of every queue, and return what was done."""
        assert self._conn is not None
        with translated(), deadline(self._timeout_s, self._conn):
            rows = await (await self._conn.execute(ROTATE)).fetchall()
        self.turned_at = time.monotonic()
        steps = [Step(*row) for row in rows]  # type: ignore[arg-type]
        for step in steps:
            self._tell(step)
        return steps

    def _tell(self, step: Step) -> None:
        """Log every step, but a wait only when its reason changes."""
        if step.action != "waiting":
            log.info("queue %s: generation %s %s", step.queue, step.generation, step.action)
            self._waits.pop(step.queue, None)
        elif self._waits.get(step.queue) != step.detail:
            log.info("queue %s: generation %s waits: %s", step.queue, step.generation, step.detail)
            self._waits[step.queue] = step.detail
