"""Processor: runs a branch's handler over the queue that the copier fills, at a pace of its own.

It is a consumer of the local queue.  A handler that fails stops the processing, not the copying.

A transaction in which a handler runs may be open for long, and holds what the next daemon needs.  So its session
holds an advisory lock by which that daemon finds it, should this one freeze (see guard.py); and what Cascade
itself does in it waits for nobody for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import LiteralString, Protocol

import psycopg

from cascade import sync
from cascade.client import Client
from cascade.db import AsyncConnection, Connection, connect_sync, translated
from cascade.errors import CascadeError
from cascade.node.handler import Handler, is_async
from cascade.node.home import HURRY, Home
from cascade.node.pipe import Deadline, deadline, deadline_sync
from cascade.node.signals import Wakeups, listening

log = logging.getLogger("cascade.node.processor")

NOTE_ERROR: LiteralString = "select cascade.note_error(%s, %s)"
LOCK: LiteralString = "select pg_try_advisory_lock(1127303507, 2000000 + %s)"
#: Shared: the session of a daemon that is gone keeps nobody waiting, and is ended by the next one.
HOLD: LiteralString = "select pg_advisory_lock_shared(1127303507, 4000000 + %s)"
TAKE_TIME: LiteralString = "set local lock_timeout to default"
CONSUMER = ".handler"
STANDBY_S = 2.0
#: Taking a batch reads its events too, and may take as many times the patience for a single answer.
READING = 4


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


@contextmanager
def handler_connection(home: Home, queue_id: int) -> Iterator[Connection]:
    """Yield a connection for a synchronous handler, which the next daemon can end."""
    with connect_sync(home.dsn, service=f"{home.set}/handler") as conn:
        with translated(), deadline_sync(home.link_timeout_s, conn):
            conn.execute(HOLD, (queue_id,))
            conn.execute(HURRY, (home.lock_timeout,))
        yield conn


@asynccontextmanager
async def unhurried(home: Home, conn: AsyncConnection, timer: Deadline) -> AsyncIterator[None]:
    """Let a handler take its time inside a transaction, and wait for locks as long as its database lets it."""
    await conn.execute(TAKE_TIME)
    timer.end()
    try:
        yield
    finally:
        timer.extend()
    await conn.execute(HURRY, (home.lock_timeout,))


@contextmanager
def unhurried_sync(home: Home, conn: Connection, timer: Deadline) -> Iterator[None]:
    """Let a handler take its time, as above, in a thread."""
    conn.execute(TAKE_TIME)
    timer.end()
    try:
        yield
    finally:
        timer.extend()
    conn.execute(HURRY, (home.lock_timeout,))


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
                        await self._turns(stop, conn)
                    else:
                        await asyncio.to_thread(self._turns_sync, stop, asyncio.get_running_loop(), me.queue_id)
        finally:
            await conn.close()

    async def _turns(self, stop: asyncio.Event, conn: AsyncConnection) -> None:
        # On the connection that holds the processor's lock.
        await self.home.call(conn, HURRY, self.home.lock_timeout)
        queue = Client(conn).queue(self.home.set)
        while not stop.is_set():
            with deadline(self.home.link_timeout_s * READING, conn) as timer:
                batch = await queue.next_batch(CONSUMER, max_ticks=100, max_events=5000)
                if batch is not None:
                    timer.extend()
                    async with batch.transaction():
                        if len(batch):
                            async with unhurried(self.home, conn, timer):
                                with handling(self):
                                    await self._handler(batch, conn)
                            if self._is_noted:
                                await conn.execute(NOTE_ERROR, (self.home.set, None))
                                self._is_noted = False
            self.turned_at = time.monotonic()
            if batch is None:
                await self.wakeups.wait(self._poll_s)

    def _turns_sync(self, stop: asyncio.Event, loop: asyncio.AbstractEventLoop, queue_id: int) -> None:
        with handler_connection(self.home, queue_id) as conn:
            queue = sync.connect(conn).queue(self.home.set)
            while not stop.is_set():
                with deadline_sync(self.home.link_timeout_s * READING, conn) as timer:
                    batch = queue.next_batch(CONSUMER, max_ticks=100, max_events=5000)
                    if batch is not None:
                        timer.extend()
                        with batch.transaction():
                            if len(batch):
                                with unhurried_sync(self.home, conn, timer):
                                    with handling(self):
                                        self._handler(batch, conn)
                                if self._is_noted:
                                    conn.execute(NOTE_ERROR, (self.home.set, None))
                                    self._is_noted = False
                self.turned_at = time.monotonic()
                if batch is None:
                    asyncio.run_coroutine_threadsafe(self.wakeups.wait(self._poll_s), loop).result()
