"""The asynchronous client: a database, its queues, and what can be done with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, LiteralString, Self, TypeVar, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from cascade import producer
from cascade.batch import Reading, worker_name
from cascade.codec import Codec, JsonCodec
from cascade.consumer import Batch, Stream, read_batch
from cascade.db import PREPARE_THRESHOLD, AsyncConnection, translated
from cascade.db import connect as open_connection
from cascade.errors import ConfigError, FencedError, TransientError
from cascade.event import Message, Options
from cascade.follow import FOLLOW_S, Chase, Trail, explained, parameters, unreachable
from cascade.names import EventId, QueueName, TickId, queue_name
from cascade.work import Work

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("cascade.client")

#: How long a worker keeps a batch without renewing it; streams renew it thrice in that time.
LEASE = timedelta(seconds=20)
IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Client:
    """One database.  Publishing and finishing go through one connection.

    A client made from a connection that the caller already has works inside the caller's
    transaction and never closes it.  One made from a DSN opens a new connection when the old
    one is lost; the call that met the loss raises TransientError, as its outcome is unknown.

    Publishing follows the root of a set for up to `follow_s` per call (0: not at all), on further
    connections; `databases` are DSNs of your own for the databases of the topology, by name.

    `prepare_threshold` is psycopg's, for every connection that the client and its streams open: a
    statement that was run so often is prepared; None never prepares, for poolers that cannot have it.
    """

    def __init__(
        self,
        target: str | AsyncConnection,
        *,
        follow_s: float = FOLLOW_S,
        databases: Mapping[str, str] | None = None,
        prepare_threshold: int | None = PREPARE_THRESHOLD,
    ) -> None:
        self.prepare_threshold = prepare_threshold
        self.dsn = target if isinstance(target, str) else None
        self._conn = None if isinstance(target, str) else target
        self._opening = asyncio.Lock()
        self._trail = Trail(self.dsn, follow_s=follow_s, databases=databases)
        self._roots: dict[str, AsyncConnection] = {}
        self._limits = producer.Limits()

    async def __aenter__(self) -> Self:
        await self.connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections that the client opened."""
        for conn in self._roots.values():
            await conn.close()
        if self.dsn is not None and self._conn is not None:
            await self._conn.close()

    async def connection(self) -> AsyncConnection:
        """Return the connection, after opening it if it is not open."""
        if self.dsn is None:
            assert self._conn is not None
            return self._conn
        async with self._opening:
            if self._conn is None or self._conn.closed:
                self._conn = await self._open(self.dsn)
                self._trail.own = parameters(self._conn)
            return self._conn

    async def _open(self, dsn: str) -> AsyncConnection:
        return await open_connection(dsn, service="client", prepare_threshold=self.prepare_threshold)

    async def at_root(
        self, queue: QueueName, send: Callable[[AsyncConnection], Awaitable[R]], *, follow: bool = True
    ) -> R:
        """Run a statement at the root of a queue, wherever that goes.

        It is sent again only after an answer that refused it, or when it could not be sent at all.
        """
        chase = self._trail.chase()
        while True:
            conn = await self._producing(queue, chase)
            try:
                with translated():
                    return await send(conn)
            except FencedError as error:
                if not follow:
                    raise
                if self.dsn is None or (conn is self._conn and await _is_in_transaction(conn)):
                    reason = "It was in a transaction of this database, which the client cannot carry elsewhere."
                    raise explained(error, reason) from error
                delay_s = chase.wait_s(error)
                self._trail.learn(queue, error)
                log.info("queue %s: %s; again in %.2f s", queue, error.args[0], delay_s)
                await asyncio.sleep(delay_s)

    async def _producing(self, queue: QueueName, chase: Chase) -> AsyncConnection:
        """Return the connection on which to publish: the caller's transaction, the root, or home."""
        route = self._trail.route(queue)
        if route is None or (self._conn is not None and await _is_in_transaction(self._conn)):
            return await self.connection()
        try:
            async with self._opening:
                found = self._roots.get(route.dsn)
                if found is None or found.closed:
                    found = self._roots[route.dsn] = await self._open(route.dsn)
                return found
        except TransientError as error:
            self._trail.forget(queue)
            if chase.is_on:
                await asyncio.sleep(chase.wait_after_loss_s(unreachable(route, error)))
        return await self.connection()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Enclose what follows in one transaction: publishing, finishing and your own writes."""
        conn = await self.connection()
        with translated():
            async with conn.transaction():
                yield conn

    def queue(self, name: str, *, codec: Codec[Any] | None = None) -> Queue[Any]:
        """Return a queue by name; whether it exists shows when it is used."""
        return Queue(self, queue_name(name), codec or JsonCodec())

    async def create_queue(self, name: str, /, **options: object) -> bool:
        """Make a queue; False when it was there already with these options."""
        return cast(bool, await self.call("select cascade.create_queue(%s, %s)", name, Jsonb(_plain(options))))

    async def alter_queue(self, name: str, /, **options: object) -> None:
        """Change options of a queue."""
        await self.call("select cascade.alter_queue(%s, %s)", name, Jsonb(_plain(options)))
        self._limits.forget()

    async def drop_queue(self, name: str, *, force: bool = False) -> None:
        """Remove a queue with all its events; with `force` also when it has consumers."""
        await self.call("select cascade.drop_queue(%s, %s)", name, force)

    async def payload_limit(self, conn: AsyncConnection, queue: QueueName) -> int:
        """Return how many bytes an event may have, as the database behind a connection said a minute ago at most."""
        if (most := self._limits.known(conn, queue)) is None:
            most = self._limits.learn(conn, queue, await (await conn.execute(producer.LIMIT, (queue,))).fetchone())
        return most

    async def call(self, query: LiteralString, *arguments: object) -> object:
        """Run a statement that returns one value."""
        with translated():
            cur = await (await self.connection()).execute(query, arguments)
            row = await cur.fetchone()
        return row[0] if row else None


class Queue(Generic[T]):
    """One queue, to publish to and to read from."""

    def __init__(self, client: Client, name: QueueName, codec: Codec[T]) -> None:
        self.client, self.name, self.codec = client, name, codec

    async def publish(
        self,
        payload: T,
        *,
        type: str | None = None,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        id: EventId | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        expires_at: datetime | None = None,
        priority: int | str | None = None,
        after: Sequence[EventId] | Mapping[str, Sequence[EventId]] | None = None,
        dedupe_key: str | None = None,
        dedupe_for: timedelta | None = None,
    ) -> EventId:
        """Insert one event and return its id; `id` uses one from `reserve_id`, where that was reserved.

        The options from `delay` on are for consumers in work mode; see cascade.Options.  With a `dedupe_key` that
        was used in the last `dedupe_for`, nothing is inserted and the id is that of the first event.
        """
        options = Options(
            delay=delay,
            deliver_at=deliver_at,
            expires_at=expires_at,
            priority=priority,
            after=after,
            dedupe_key=dedupe_key,
            dedupe_for=dedupe_for,
        )
        message = Message(payload, type, key, headers)
        query, arguments = producer.post(producer.post_arguments(self.name, self.codec, message, id), options)

        async def send(conn: AsyncConnection) -> EventId:
            row = await (await conn.execute(query, arguments)).fetchone()
            assert row is not None
            return cast(EventId, row[0])

        return await self.client.at_root(self.name, send, follow=id is None)

    async def publish_many(self, events: Iterable[T | Message[T]]) -> int:
        """Insert many events, all or none, and return how many: by COPY unless they are few."""
        items = list(events)
        table = producer.table(self.name)

        async def send(conn: AsyncConnection) -> int:
            most = await self.client.payload_limit(conn, self.name)
            if len(items) <= producer.INSERT_MOST:
                await conn.execute(producer.INSERT.format(table), producer.columns(self.codec, items, most))
                return len(items)
            async with conn.cursor() as cur, cur.copy(producer.COPY.format(table)) as copy:
                for block in producer.copy_blocks(self.codec, items, most):
                    await copy.write(block)
            return len(items)

        return await self.client.at_root(self.name, send) if items else 0

    async def reserve_id(self) -> EventId:
        """Return the id of an event to come, to be passed to `publish` once."""

        async def send(conn: AsyncConnection) -> EventId:
            row = await (await conn.execute(producer.RESERVE, (self.name,))).fetchone()
            assert row is not None
            return cast(EventId, row[0])

        return await self.client.at_root(self.name, send)

    async def tick(self) -> TickId:
        """Make a tick now; operators only, and seldom needed: the ticker does it."""
        return cast(TickId, await self.client.call("select cascade.tick(%s)", self.name))

    async def subscribe(
        self,
        consumer: str,
        *,
        at: object = "now",
        mode: str = "stream",
        selector: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> TickId:
        """Register a consumer at now, earliest, a tick id or a time; a second call changes nothing.

        In mode `work` it takes message after message, and may have a selector (jsonpath) and options.
        """
        if mode == "stream" and selector is None and options is None:
            query: LiteralString = "select cascade.subscribe(%s, %s, %s)"
            return cast(TickId, await self.client.call(query, self.name, consumer, str(at)))
        query = "select cascade.subscribe(%s, %s, %s, mode => %s, selector => %s, options => %s)"
        given = Jsonb(_plain(options or {}))
        return cast(TickId, await self.client.call(query, self.name, consumer, str(at), mode, selector, given))

    def work(self, consumer: str) -> Work[T]:
        """Return the messages as a consumer in work mode sees them: results, peeking, consuming by hand."""
        return Work(self.client, self.name, consumer, self.codec.decode)

    async def unsubscribe(self, consumer: str) -> bool:
        """Forget a consumer; False when there was none."""
        return cast(bool, await self.client.call("select cascade.unsubscribe(%s, %s)", self.name, consumer))

    async def seek(self, consumer: str, at: object) -> TickId:
        """Move a consumer to now, earliest, a tick id or a time."""
        return cast(TickId, await self.client.call("select cascade.seek(%s, %s, %s)", self.name, consumer, str(at)))

    async def next_batch(
        self,
        consumer: str,
        *,
        max_ticks: int = 1,
        max_events: int | None = None,
        worker: str | None = None,
        lease: timedelta | None = None,
    ) -> Batch[T] | None:
        """Take one batch by hand; None when there is nothing.  `stream` is the usual way."""
        reading = Reading(consumer=consumer, max_ticks=max_ticks, max_events=max_events, worker=worker, lease=lease)
        with translated():
            conn = await self.client.connection()
            return await read_batch(self.client, conn, self.name, reading, self.codec)

    def stream(
        self,
        consumer: str,
        *,
        cooperative: bool = False,
        worker: str | None = None,
        lease: timedelta = LEASE,
        max_ticks: int = 100,
        max_events: int | None = 5000,
        prefetch: bool = True,
        poll_s: float = 1.0,
    ) -> Stream[T]:
        """Return batches as they come, on connections of the stream's own.

        One process at a time reads for a consumer; others that ask stand by and take over when
        its lease ends.  With `cooperative` they share: each gets other batches, and order holds
        inside a batch only.  A batch takes all ticks that are there, up to `max_ticks` and
        `max_events`.  NOTIFY wakes the stream; without it, it looks every `poll_s`.
        """
        if self.client.dsn is None:
            raise ConfigError(
                "a stream needs connections of its own, this client has one of yours",
                hint="Use cascade.connect(dsn) for streams, or next_batch() on your connection.",
            )
        reading = Reading(
            consumer=consumer,
            max_ticks=max_ticks,
            max_events=max_events,
            worker=worker or worker_name(),
            lease=lease,
            exclusive=not cooperative,
        )
        return Stream(
            self.client.dsn,
            self.name,
            reading,
            self.codec,
            prefetch=prefetch,
            poll_s=poll_s,
            prepare_threshold=self.client.prepare_threshold,
        )


class Connecting:
    """What `connect` returns: await it, or enter it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, Client]:
        return self._client.__aenter__().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def connect(
    target: str | psycopg.AsyncConnection[Any],
    *,
    follow_s: float = FOLLOW_S,
    databases: Mapping[str, str] | None = None,
    prepare_threshold: int | None = PREPARE_THRESHOLD,
) -> Connecting:
    """Connect to a database by its DSN, or wrap a connection that the caller has.

    async with cascade.connect("service=shop") as client: ...
    client = await cascade.connect(my_connection)
    """
    client = Client(target, follow_s=follow_s, databases=databases, prepare_threshold=prepare_threshold)
    return Connecting(client)


async def _is_in_transaction(conn: AsyncConnection) -> bool:
    """Whether a transaction is open on a connection, once nobody else uses it."""
    if conn.info.transaction_status is not TransactionStatus.ACTIVE:
        return conn.info.transaction_status in IN_TRANSACTION
    async with conn.lock:
        return conn.info.transaction_status in IN_TRANSACTION


def _plain(options: Mapping[str, object]) -> dict[str, object]:
    return {name: str(value) if isinstance(value, timedelta) else value for name, value in options.items()}
