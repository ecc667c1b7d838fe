"""Ticker: cuts the events of every queue of a database into batches.

    polling ── ten looks without a tick ──> arming ── nobody is writing ──> asleep
       ^                                      │  ^ └─ writers: look again soon
       └──────── ticks come thick and fast ───┘  └────────── woken, or a second passed

Asleep, the ticker has asked inserting transactions to wake it (cascade.arm_ticker), so an event
after a pause is ticked within milliseconds at no cost while there is none.  Under traffic it
polls and nobody notifies.  NOTIFY is a hint: a lost one costs a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, LiteralString

from cascade.db import AsyncConnection, Notifications, connect, translated
from cascade.names import QueueName, TickId
from cascade.node.pipe import deadline

log = logging.getLogger("cascade.node.ticker")

MAKE_TICKS: LiteralString = "select queue, tick_id, events from cascade.make_ticks()"
ARM: LiteralString = "select cascade.arm_ticker()"
DISARM: LiteralString = "select cascade.disarm_ticker()"


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick that was made."""

    queue: QueueName
    tick_id: TickId
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the ticker looks."""

    busy_s: float = 0.005
    #: Woken by an event that is too young for a tick.
    young_s: float = 0.002
    writers_s: float = 0.025
    asleep_s: float = 1.0
    #: Looks without a tick before it goes to sleep.
    quiet_looks: int = 10
    #: Ticks in close succession, no further apart than this, before it stops asking to be woken.
    busy_ticks: int = 20
    close_s: float = 0.015


class Ticker:
    """Makes ticks when they are due.  Two tickers at once are harmless."""

    name = "ticker"

    def __init__(self, dsn: str, *, pace: Pace | None = None, timeout_s: float = 30.0) -> None:
        self._dsn = dsn
        self._pace = pace or Pace()
        self._timeout_s = timeout_s
        self._conn: AsyncConnection | None = None
        self._notifications: Notifications | None = None
        self._armed = False
        #: Nobody was writing at the last count who had looked at the register before it was armed.
        self._is_clear = False
        self._notified = False
        self._quiet = 0
        self._close = 0
        self._last_tick = 0.0
        self.turned_at: float | None = None
        self.ticks = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set."""
        conn = await connect(self._dsn, service="ticker")
        self._conn, self._armed, self._is_clear, self.turned_at = conn, False, False, None
        self._notifications = Notifications(conn)
        try:
            with translated():
                with deadline(self._timeout_s, conn):
                    await conn.execute("listen cascade_insert")
                while not stop.is_set():
                    await self._wait(await self._plan(await self.turn()), stop)
                if self._armed:
                    await self._fetch(DISARM)
        finally:
            self._conn = None
            await conn.close()

    async def turn(self) -> list[Tick]:
        """Make every tick now due, and return them."""
        ticks = [Tick(*row) for row in await self._fetch(MAKE_TICKS)]
        self.ticks += len(ticks)
        self.turned_at = time.monotonic()
        return ticks

    async def _plan(self, ticks: list[Tick]) -> float:
        """Return how long to wait before the next look, after changing the state if it is time."""
        now = time.monotonic()
        if ticks:
            self._quiet = 0
            self._close = self._close + 1 if now - self._last_tick < self._pace.close_s else 0
            self._last_tick = now
        else:
            self._quiet += 1
        if not self._armed:
            if self._quiet < self._pace.quiet_looks:
                return self._pace.busy_s
            return await self._arm()
        if self._close >= self._pace.busy_ticks:
            await self._fetch(DISARM)
            self._armed, self._close, self._is_clear = False, 0, False
            return self._pace.busy_s
        if ticks and self._notified:
            return self._pace.asleep_s
        if ticks or self._quiet >= self._pace.quiet_looks:
            # Idle, or events came without a wake-up: count in queues that were made meanwhile.
            return await self._arm()
        # Woken without a tick: the event is younger than the queue's tick_max_lag allows.
        return self._pace.young_s

    async def _arm(self) -> float:
        """Ask to be woken, and return how long to sleep."""
        [(writers,)] = await self._fetch(ARM)
        if writers is None:
            return self._pace.writers_s
        was_clear, self._is_clear = self._is_clear, writers == 0
        if not self._armed:
            self._armed, self._close = True, 0
            # What was committed between the last look and the arming woke nobody.
            self._quiet = self._pace.quiet_looks - 1
            return 0.0
        if writers:
            return self._pace.writers_s
        if not was_clear:
            # The last of those who will not notify may have committed after the last look.
            self._quiet = self._pace.quiet_looks - 1
            return 0.0
        return self._pace.asleep_s

    async def _wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Wait for a wake-up, the time to look, or the end."""
        if seconds <= 0 or stop.is_set():
            return
        assert self._notifications is not None
        if not self._armed:
            await asyncio.sleep(seconds)
            return
        self._notified = await self._notifications.wait(seconds)

    async def _fetch(self, query: LiteralString) -> list[Any]:
        assert self._conn is not None
        with deadline(self._timeout_s, self._conn):
            return await (await self._conn.execute(query)).fetchall()
