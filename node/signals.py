"""Wake-ups: hints that there may be something to do, whatever they come through.

A hint may be lost, late or wrong; polling is what makes progress.  LISTEN is one source; others
call `Wakeups.wake` just the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg

from cascade.db import Notifications, connect
from cascade.errors import CascadeError
from cascade.node.pipe import deadline
from cascade.retry import Backoff

log = logging.getLogger("cascade.node.signals")

#: A listening connection is asked so often whether it still lives.
ALIVE_S = 10.0


class Wakeups:
    """What one service waits for; hints that come while it works are not lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Hint that there may be something to do."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, but not longer than this; True when one came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        was_set = self._event.is_set()
        self._event.clear()
        return was_set


@asynccontextmanager
async def listening(dsn: str, channel: str, wakeups: Wakeups, *, service: str) -> AsyncIterator[None]:
    """Turn notifications on a channel into wake-ups for the length of a block."""
    # It lives as long as the block and fails nobody: a group would make its trouble the block's.
    task = asyncio.create_task(_listen(dsn, channel, wakeups, service), name=f"listen {channel}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=ALIVE_S)


async def _listen(dsn: str, channel: str, wakeups: Wakeups, service: str) -> None:
    delays = Backoff(most_s=5.0).delays()
    while True:
        try:
            conn = await connect(dsn, service=service)
            try:
                notifications = Notifications(conn)
                with deadline(ALIVE_S, conn):
                    await conn.execute(f"listen {channel}".encode())
                # What was committed before the LISTEN announced itself to nobody.
                wakeups.wake()
                while True:
                    if await notifications.wait(ALIVE_S):
                        wakeups.wake()
                    else:
                        with deadline(ALIVE_S, conn):
                            await conn.execute("select 1")
                    delays = Backoff(most_s=5.0).delays()
            finally:
                conn.pgconn.finish()
        except (CascadeError, psycopg.Error, OSError) as error:
            log.debug("listening to %s: %s", channel, error)
            await asyncio.sleep(next(delays))
