"""Processor: runs a branch's handler over the queue that the copier fills, at a pace of its own.

It is a consumer of the local queue.  A handler that fails stops the processing, not the copying.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import LiteralString, Protocol

import psycopg

from cascade import client, sync
from cascade.errors import CascadeError
from cascade.node.handler import Handler, is_async
from cascade.node.home import Home
from cascade.node.signals import Wakeups, listening

log = logging.getLogger("cascade.node.processor")

NOTE_ERROR: LiteralString = "select cascade.note_error(%s, %s)"
LOCK: LiteralString = "select pg_try_advisory_lock(1127303507, 2000000 + %s)"
CONSUMER = ".handler"
STANDBY_S = 2.0


class HandlerFailedError(CascadeError):
    """A handler raised; its transaction was rolled back, and the batch comes again."""


class HasError(Protocol):
    """A service that tells what its handler raised."""

    error: str | None


@contextmanager
def handling(service: HasError) -> Iterator[None]:
    """Call a handler: note its error, or that there is none any more."""
    try:
        yield
    except asyncio.CancelledError:
        raise
    except Exception as error:
        if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(("08", "57P")):
            raise  # The database went away: nothing that the handler could help.
        service.error = f"{type(error).__name__}: {error}"
        raise HandlerFailedError(f"the handler raised {service.error}") from error
    service.error = None


@asynccontextmanager
async def noting(home: Home) -> AsyncIterator[None]:
    """Store in the database what a handler raised, for everybody to see."""
    try:
        yield
    except HandlerFailedError as error:
        conn = await home.connect("handler")
        try:
            await home.call(conn, NOTE_ERROR, home.set, str(error))
        finally:
            await conn.close()
        raise


class Processor:
    """Calls the handler for every batch of a branch."""

    def __init__(self, home: Home, handler: Handler, *, poll_s: float = 1.0) -> None:
        self.name = f"{home.set}/processor"
        self.home, self._handler, self._poll_s = home, handler, poll_s
        self.wakeups = Wakeups()
        self.turned_at: float | None = None
        self.note: str | None = None
        self.error: str | None = None
        self._is_noted = False

    async def run(self, stop: asyncio.Event) -> None:
        """Process batches until `stop` is set."""
        self.turned_at = None
        self._is_noted = True
        conn = await self.home.connect("processor")
        try:
            me = await self.home.describe(conn)
            await self.home.call(conn, "select cascade.set_processing(%s, true)", self.home.set)
            channel = f"cascade_tick_{me.queue_id}"
            async with listening(self.home.dsn, channel, self.wakeups, service=f"{self.home.set}/listen"):
                while not stop.is_set() and not await self.home.call(conn, LOCK, me.queue_id):
                    self.note, self.turned_at = "another daemon processes", time.monotonic()
                    await self.wakeups.wait(STANDBY_S)
                self.note = None
                async with noting(self.home):
                    if is_async(self._handler):
                        await self._turns(stop)
                    else:
                        await asyncio.to_thread(self._turns_sync, stop, asyncio.get_running_loop())
        finally:
            await conn.close()

    async def _turns(self, stop: asyncio.Event) -> None:
        async with client.connect(self.home.dsn) as found:
            queue = found.queue(self.home.set)
            while not stop.is_set():
                batch = await queue.next_batch(CONSUMER, max_ticks=100, max_events=5000)
                if batch is not None:
                    async with batch.transaction() as conn:
                        if len(batch):
                            with handling(self):
                                await self._handler(batch, conn)
                            if self._is_noted:
                                await conn.execute(NOTE_ERROR, (self.home.set, None))
                                self._is_noted = False
                self.turned_at = time.monotonic()
                if batch is None:
                    await self.wakeups.wait(self._poll_s)

    def _turns_sync(self, stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        with sync.connect(self.home.dsn) as found:
            queue = found.queue(self.home.set)
            while not stop.is_set():
                batch = queue.next_batch(CONSUMER, max_ticks=100, max_events=5000)
                if batch is not None:
                    with batch.transaction() as conn:
                        if len(batch):
                            with handling(self):
                                self._handler(batch, conn)
                            if self._is_noted:
                                conn.execute(NOTE_ERROR, (self.home.set, None))
                                self._is_noted = False
                self.turned_at = time.monotonic()
                if batch is None:
                    asyncio.run_coroutine_threadsafe(self.wakeups.wait(self._poll_s), loop).result()
