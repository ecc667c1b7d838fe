"""Read events: a batch as an async context manager, and a stream of batches.

A stream keeps up to three connections: one looks for batches and reads them ahead, one finishes
them, and once a batch takes long, one renews leases: on the second, a renewal could fall into
the handler's transaction.  What happens to a batch:

    handed out ──> `async with` ends ──> finished
        │   └────> an error, or stop ──> given back ──> handed out again, to anybody
        └────────> lease not renewed ──> taken over: finishing raises BatchLostError
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, LiteralString, Protocol, Self, TypeVar

import psycopg

from cascade.batch import CHANNEL, EVENTS, FINISH, NEXT_BATCH, RELEASE, RENEW, RETRY, Held, Reading
from cascade.codec import Codec
from cascade.db import PREPARE_THRESHOLD, AsyncConnection, Notifications, connect, raw_json, translated
from cascade.errors import BatchLostError, CascadeError, TransientError
from cascade.event import Event
from cascade.names import BatchId, EventId, QueueName, TickId
from cascade.retry import Backoff

T = TypeVar("T")
log = logging.getLogger("cascade.consumer")

#: How long closing a stream may take: giving back what was read ahead is worth so much.
CLOSE_WITHIN_S = 5.0


class Home(Protocol):
    """Where a batch is finished: a client, or the stream that handed it out."""

    async def connection(self) -> AsyncConnection:
        """Return a connection that works, or raise TransientError."""


class Batch(Held[T]):
    """A batch on the asynchronous client.

    As an async context manager it finishes on success and is given back on error.
    """

    def __init__(
        self, home: Home, batch_id: BatchId, from_tick: TickId, to_tick: TickId, events: list[Event[T]]
    ) -> None:
        super().__init__(batch_id, from_tick, to_tick, events)
        self._home = home

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            await self.finish()
        else:
            # The error that ended the work is what the caller must see.
            with suppress(CascadeError, psycopg.Error):
                await self.release()

    async def finish(self, conn: AsyncConnection | None = None) -> None:
        """Move the consumer past this batch.

        With `conn` it happens in the transaction open there, together with the handler's own
        writes: both or neither, and never twice.  Without, it may be repeated after a failure.
        """
        with self.closing(), translated():
            if conn is not None:
                await conn.execute(FINISH, (self.id, True))
            else:
                await _once_more(self._home, FINISH, (self.id, False))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Enclose the handler's writes and the finishing in one transaction.

        If it raises TransientError the outcome may be unknown: should the transaction have been
        committed, the batch does not come again; if not, it does.
        """
        conn = await self._home.connection()
        with self.closing(), translated():
            async with conn.transaction():
                yield conn
                await conn.execute(FINISH, (self.id, True))

    async def release(self) -> None:
        """Give the batch back: the next who asks gets it, whole."""
        self.is_open, self.is_released = False, True
        with translated():
            await (await self._home.connection()).execute(RELEASE, (self.id,))

    async def renew(self, lease: timedelta, conn: AsyncConnection | None = None) -> None:
        """Extend the lease; a stream does this by itself, on a connection of its own."""
        with translated():
            await (conn or await self._home.connection()).execute(RENEW, (self.id, lease))

    async def retry(self, event: Event[T] | EventId, *, after: timedelta) -> int:
        """Have one event delivered again after a while; returns its next attempt's number.

        It holds once the batch is finished.
        """
        event_id = event.id if isinstance(event, Event) else event
        with translated():
            cur = await (await self._home.connection()).execute(RETRY, (self.id, event_id, after))
            row = await cur.fetchone()
        assert row is not None
        return int(str(row[0]))


async def _once_more(home: Home, query: LiteralString, arguments: tuple[object, ...]) -> None:
    """Run a statement that may be repeated, again on a new connection if the first one broke."""
    try:
        await (await home.connection()).execute(query, arguments)
    except psycopg.OperationalError:
        await (await home.connection()).execute(query, arguments)


async def read_batch(
    home: Home,
    conn: AsyncConnection,
    queue: QueueName,
    reading: Reading,
    codec: Codec[T],
    after: BatchId | None = None,
    finishing: Batch[T] | None = None,
) -> Batch[T] | None:
    """Take the next batch and read its events; None when there is nothing to do.

    Another batch is finished in the same step: both or neither.
    """
    # A batch may be empty, and is false then.
    arguments = reading.arguments(queue, after=after, finish=None if finishing is None else finishing.id)
    async with conn.cursor(binary=True) as cur:
        raw_json(cur.adapters)
        with nullcontext() if finishing is None else finishing.closing(), translated():
            await cur.execute(NEXT_BATCH, arguments)
        row: Any = await cur.fetchone()
        if row is None:
            return None
        await cur.execute(EVENTS, (row[0],))
        rows: list[Any] = await cur.fetchall()
    decode = codec.decode
    return Batch(home, row[0], row[1], row[2], [Event(event, decode) for event in rows])


class Stream(Generic[T]):
    """Batches in order, for as long as somebody asks for them.

    Iterate over it, inside `async with` if leaving early must give unread batches back at
    once.  It reconnects for ever, with growing waits; `stop()` ends it after the batch at hand.
    """

    def __init__(
        self,
        dsn: str,
        queue: QueueName,
        reading: Reading,
        codec: Codec[T],
        *,
        prefetch: bool,
        poll_s: float,
        prepare_threshold: int | None = PREPARE_THRESHOLD,
    ) -> None:
        self._dsn, self._queue, self._reading, self._codec = dsn, queue, reading, codec
        self._prefetch, self._poll_s, self._prepare_threshold = prefetch, poll_s, prepare_threshold
        self._reader: AsyncConnection | None = None
        self._notifications: Notifications | None = None
        self._writer: AsyncConnection | None = None
        self._keeper: AsyncConnection | None = None
        self._batches: AsyncIterator[Batch[T]] | None = None
        self._open: dict[BatchId, Batch[T]] = {}
        self._opening = asyncio.Lock()
        self._is_stopping = False
        self._is_deaf = False
        #: Set when the reading now under way is to end as soon as it holds no unknown batch.
        self._leave = asyncio.Event()
        self.reconnects = 0

    def stop(self) -> None:
        """End the stream once the batch at hand is done; may be called from a signal handler."""
        self._is_stopping = True
        self._leave.set()

    def __aiter__(self) -> AsyncIterator[Batch[T]]:
        self._batches = self._run()
        return self._batches

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._batches is not None:
            await self._batches.aclose()  # type: ignore[attr-defined]

    async def connection(self) -> AsyncConnection:
        """Return the connection on which batches are finished; reader and handler may ask at once."""
        async with self._opening:
            if self._writer is None or self._writer.closed:
                self._writer = await self._connect("finish")
            return self._writer

    async def _connect(self, purpose: str) -> AsyncConnection:
        return await connect(
            self._dsn, service=f"{self._reading.consumer}/{purpose}", prepare_threshold=self._prepare_threshold
        )

    async def _run(self) -> AsyncIterator[Batch[T]]:
        # Tasks live as long as the generator, which a TaskGroup cannot enclose across a yield;
        # the finally clause below is what ends them.
        keeper = asyncio.create_task(self._keep_leases(), name="cascade-leases")
        ahead: asyncio.Task[Batch[T] | None] | None = None
        try:
            ahead = self._read_on(None)
            while (batch := await _outcome(ahead)) is not None:
                ahead = self._read_on(batch.id) if self._prefetch else None
                yield batch
                if (self._is_stopping or ahead is not None) and batch.is_open:
                    await batch.finish()
                self._open.pop(batch.id, None)
                if self._is_stopping:
                    break
                if batch.is_released and ahead is not None:
                    # It comes again: what was read ahead must not come before it.
                    if (found := await self._end_reading(ahead)) is not None:
                        self._open.pop(found.id, None)
                        await found.release()
                    ahead = None
                if ahead is None:
                    ahead = self._read_on(None, finishing=batch if batch.is_open else None)
        finally:
            await self._close(keeper, ahead)

    def _read_on(self, after: BatchId | None, *, finishing: Batch[T] | None = None) -> asyncio.Task[Batch[T] | None]:
        """Start reading the next batch."""
        self._leave = asyncio.Event()
        if self._is_stopping:
            self._leave.set()
        return asyncio.create_task(self._fetch(after, finishing, self._leave), name="cascade-read")

    async def _end_reading(self, ahead: asyncio.Task[Batch[T] | None]) -> Batch[T] | None:
        """End the reading ahead and return what it found.

        It is not cancelled while it asks for a batch: the server may have handed one out, and
        only the reply says which; it would be nobody's until its lease ends.
        """
        self._leave.set()
        await asyncio.wait((ahead,), timeout=CLOSE_WITHIN_S)
        ahead.cancel()
        with suppress(asyncio.CancelledError, CascadeError, psycopg.Error):
            return await ahead
        return None

    async def _close(self, keeper: asyncio.Task[None], ahead: asyncio.Task[Batch[T] | None] | None) -> None:
        """End the tasks, give back what was read ahead, close the connections."""
        keeper.cancel()
        await asyncio.wait((keeper,))
        if ahead is not None:
            await self._end_reading(ahead)
        with suppress(CascadeError, psycopg.Error, TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                for batch in list(self._open.values()):
                    if batch.is_open:
                        await batch.release()
        for conn in (self._reader, self._writer, self._keeper):
            if conn is not None:
                await conn.close()

    async def _fetch(self, after: BatchId | None, finishing: Batch[T] | None, leave: asyncio.Event) -> Batch[T] | None:
        """Wait for the next batch that has events; None once there is nobody to wait for it."""
        delays = Backoff().delays()
        while not leave.is_set():
            try:
                conn = await self._listening()
                with translated():
                    batch = await read_batch(self, conn, self._queue, self._reading, self._codec, after, finishing)
                finishing = None
                delays = Backoff().delays()
                if batch is None:
                    await self._wait(leave)
                elif not batch.events:
                    # Not on the connection for finishing: there a handler's transaction may be open.
                    finishing = batch
                else:
                    self._open[batch.id] = batch
                    return batch
            except BatchLostError:
                # A batch that somebody has finished or moved away between taking and reading it.
                if finishing is not None and finishing.events:
                    raise
                finishing = None
            except TransientError as error:
                delay = next(delays)
                log.warning("queue %s: %s; again in %.1f s", self._queue, error, delay)
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await leave.wait()
        if finishing is not None:
            with finishing.closing(), translated():
                await (await self._listening()).execute(FINISH, (finishing.id, False))
        return None

    async def _listening(self) -> AsyncConnection:
        """Return the reading connection; a new one listens to the queue's ticks first, if it can."""
        if self._reader is None or self._reader.closed:
            if self._reader is not None:
                self.reconnects += 1
            conn = await self._connect("read")
            try:
                with translated():
                    row = await (await conn.execute(CHANNEL, (self._queue,))).fetchone()
                assert row is not None
                await self._listen(conn, str(row[0]))
            except BaseException:
                await conn.close()
                raise
            self._reader, self._notifications = conn, Notifications(conn)
        return self._reader

    async def _listen(self, conn: AsyncConnection, channel: str) -> None:
        """Have ticks announced; where that is refused, as by some poolers, looking now and then is enough."""
        try:
            with translated():
                await conn.execute(f"listen {channel}".encode())
        except (CascadeError, psycopg.Error) as error:
            if conn.closed:
                raise
            if not self._is_deaf:
                log.warning("queue %s: LISTEN failed, so looking every %g s: %s", self._queue, self._poll_s, error)
            self._is_deaf = True

    async def _wait(self, leave: asyncio.Event) -> None:
        """Wait for a tick to be announced, or for the time to look anyway."""
        assert self._notifications is not None
        leaving = asyncio.create_task(leave.wait())
        listening = asyncio.create_task(self._notifications.wait(self._poll_s))
        try:
            await asyncio.wait((leaving, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            listening.cancel()
        with suppress(asyncio.CancelledError):
            with translated():
                await listening

    async def _keep_leases(self) -> None:
        """Renew the leases of all batches at hand, thrice per lease."""
        lease = self._reading.lease
        if lease is None:
            return
        while True:
            await asyncio.sleep(lease.total_seconds() / 3)
            for batch in [batch for batch in self._open.values() if batch.is_open]:
                try:
                    if self._keeper is None or self._keeper.closed:
                        self._keeper = await self._connect("lease")
                    await batch.renew(lease, self._keeper)
                except BatchLostError as error:
                    # Finished a moment ago, or lost: then finishing it says so.
                    log.debug("queue %s: %s", self._queue, error)
                except (TransientError, psycopg.Error) as error:
                    log.warning("queue %s: lease of batch %s not renewed: %s", self._queue, batch.id, error)


async def _outcome(task: asyncio.Task[T]) -> T:
    """Wait for a task; being cancelled here does not cancel it."""
    await asyncio.wait((task,))
    return task.result()
