"""The client without asyncio: `cascade.sync.connect`.

The same statements and the same guarantees as the asynchronous client.  A stream here reads
one batch at a time on the client's own connection; work that may outlast the lease calls
`batch.renew()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, LiteralString, Self, TypeVar, cast

import psycopg
from psycopg.types.json import Jsonb

from cascade import batch as statements
from cascade import producer
from cascade.batch import Held, Reading, worker_name
from cascade.client import IN_TRANSACTION, _plain
from cascade.codec import Codec, JsonCodec
from cascade.db import PREPARE_THRESHOLD, Connection, connect_sync, raw_json, translated
from cascade.errors import CascadeError, FencedError, TransientError
from cascade.event import Event, Message, Options
from cascade.follow import FOLLOW_S, Chase, Trail, explained, parameters, unreachable
from cascade.names import BatchId, EventId, QueueName, TickId, queue_name
from cascade.retry import Backoff
from cascade.work import SyncWork

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("cascade.consumer")

#: Nobody renews for a synchronous handler, so its lease is long.
LEASE = timedelta(minutes=5)


class Client:
    """One database; see cascade.client.Client."""

    def __init__(
        self,
        target: str | Connection,
        *,
        follow_s: float = FOLLOW_S,
        databases: Mapping[str, str] | None = None,
        prepare_threshold: int | None = PREPARE_THRESHOLD,
    ) -> None:
        self._prepare_threshold = prepare_threshold
        self._dsn = target if isinstance(target, str) else None
        self._conn = None if isinstance(target, str) else target
        self._trail = Trail(self._dsn, follow_s=follow_s, databases=databases)
        self._roots: dict[str, Connection] = {}
        self._limits = producer.Limits()

    def __enter__(self) -> Self:
        self.connection()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that the client opened."""
        for conn in self._roots.values():
            conn.close()
        if self._dsn is not None and self._conn is not None:
            self._conn.close()

    def connection(self) -> Connection:
        """Return the connection, after opening it if it is not open."""
        if self._conn is None or (self._conn.closed and self._dsn is not None):
            assert self._dsn is not None
            self._conn = self._open(self._dsn)
            self._trail.own = parameters(self._conn)
        return self._conn

    def _open(self, dsn: str) -> Connection:
        return connect_sync(dsn, service="client", prepare_threshold=self._prepare_threshold)

    def at_root(self, queue: QueueName, send: Callable[[Connection], R], *, follow: bool = True) -> R:
        """Run a statement at the root of a queue, wherever that goes; see cascade.client.Client."""
        chase = self._trail.chase()
        while True:
            conn = self._producing(queue, chase)
            try:
                with translated():
                    return send(conn)
            except FencedError as error:
                if not follow:
                    raise
                if self._dsn is None or (conn is self._conn and _is_in_transaction(conn)):
                    reason = "It was in a transaction of this database, which the client cannot carry elsewhere."
                    raise explained(error, reason) from error
                delay_s = chase.wait_s(error)
                self._trail.learn(queue, error)
                log.info("queue %s: %s; again in %.2f s", queue, error.args[0], delay_s)
                time.sleep(delay_s)

    def _producing(self, queue: QueueName, chase: Chase) -> Connection:
        """Return the connection on which to publish: the caller's transaction, the root, or home."""
        route = self._trail.route(queue)
        if route is None or (self._conn is not None and _is_in_transaction(self._conn)):
            return self.connection()
        try:
            found = self._roots.get(route.dsn)
            if found is None or found.closed:
                found = self._roots[route.dsn] = self._open(route.dsn)
            return found
        except TransientError as error:
            self._trail.forget(queue)
            if chase.is_on:
                time.sleep(chase.wait_after_loss_s(unreachable(route, error)))
        return self.connection()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Enclose what follows in one transaction."""
        with translated(), self.connection().transaction():
            yield self.connection()

    def queue(self, name: str, *, codec: Codec[Any] | None = None) -> Queue[Any]:
        """Return a queue by name; whether it exists shows when it is used."""
        return Queue(self, queue_name(name), codec or JsonCodec())

    def create_queue(self, name: str, /, **options: object) -> bool:
        """Make a queue; False when it was there already with these options."""
        return cast(bool, self.call("select cascade.create_queue(%s, %s)", name, Jsonb(_plain(options))))

    def alter_queue(self, name: str, /, **options: object) -> None:
        """Change options of a queue."""
        self.call("select cascade.alter_queue(%s, %s)", name, Jsonb(_plain(options)))
        self._limits.forget()

    def drop_queue(self, name: str, *, force: bool = False) -> None:
        """Remove a queue with all its events; with `force` also when it has consumers."""
        self.call("select cascade.drop_queue(%s, %s)", name, force)

    def payload_limit(self, conn: Connection, queue: QueueName) -> int:
        """Return how many bytes an event may have; see cascade.client.Client."""
        if (most := self._limits.known(conn, queue)) is None:
            most = self._limits.learn(conn, queue, conn.execute(producer.LIMIT, (queue,)).fetchone())
        return most

    def call(self, query: LiteralString, *arguments: object) -> object:
        """Run a statement that returns one value."""
        with translated():
            row = self.connection().execute(query, arguments).fetchone()
        return row[0] if row else None


class Queue(Generic[T]):
    """One queue; see cascade.client.Queue."""

    def __init__(self, client: Client, name: QueueName, codec: Codec[T]) -> None:
        self._client, self.name, self._codec = client, name, codec

    def publish(
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
        query, arguments = producer.post(producer.post_arguments(self.name, self._codec, message, id), options)

        def send(conn: Connection) -> EventId:
            row = conn.execute(query, arguments).fetchone()
            assert row is not None
            return cast(EventId, row[0])

        return self._client.at_root(self.name, send, follow=id is None)

    def publish_many(self, events: Iterable[T | Message[T]]) -> int:
        """Insert many events, all or none, and return how many: by COPY unless they are few."""
        items = list(events)
        table = producer.table(self.name)

        def send(conn: Connection) -> int:
            most = self._client.payload_limit(conn, self.name)
            if len(items) <= producer.INSERT_MOST:
                conn.execute(producer.INSERT.format(table), producer.columns(self._codec, items, most))
                return len(items)
            with conn.cursor() as cur, cur.copy(producer.COPY.format(table)) as copy:
                for block in producer.copy_blocks(self._codec, items, most):
                    copy.write(block)
            return len(items)

        return self._client.at_root(self.name, send) if items else 0

    def reserve_id(self) -> EventId:
        """Return the id of an event to come, to be passed to `publish` once."""

        def send(conn: Connection) -> EventId:
            row = conn.execute(producer.RESERVE, (self.name,)).fetchone()
            assert row is not None
            return cast(EventId, row[0])

        return self._client.at_root(self.name, send)

    def tick(self) -> TickId:
        """Make a tick now; operators only, and seldom needed: the ticker does it."""
        return cast(TickId, self._client.call("select cascade.tick(%s)", self.name))

    def subscribe(
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
            return cast(TickId, self._client.call(query, self.name, consumer, str(at)))
        query = "select cascade.subscribe(%s, %s, %s, mode => %s, selector => %s, options => %s)"
        given = Jsonb(_plain(options or {}))
        return cast(TickId, self._client.call(query, self.name, consumer, str(at), mode, selector, given))

    def work(self, consumer: str) -> SyncWork[T]:
        """Return the messages as a consumer in work mode sees them: results, peeking, consuming by hand."""
        return SyncWork(self._client, self.name, consumer, self._codec.decode)

    def unsubscribe(self, consumer: str) -> bool:
        """Forget a consumer; False when there was none."""
        return cast(bool, self._client.call("select cascade.unsubscribe(%s, %s)", self.name, consumer))

    def seek(self, consumer: str, at: object) -> TickId:
        """Move a consumer to now, earliest, a tick id or a time."""
        return cast(TickId, self._client.call("select cascade.seek(%s, %s, %s)", self.name, consumer, str(at)))

    def next_batch(
        self,
        consumer: str,
        *,
        max_ticks: int = 1,
        max_events: int | None = None,
        worker: str | None = None,
        lease: timedelta | None = None,
    ) -> Batch[T] | None:
        """Take one batch by hand; None when there is nothing."""
        reading = Reading(consumer=consumer, max_ticks=max_ticks, max_events=max_events, worker=worker, lease=lease)
        return self._read(reading)

    def stream(
        self,
        consumer: str,
        *,
        cooperative: bool = False,
        worker: str | None = None,
        lease: timedelta = LEASE,
        max_ticks: int = 100,
        max_events: int | None = 5000,
        poll_s: float = 1.0,
    ) -> Iterator[Batch[T]]:
        """Yield batches as they come, for ever; leave the loop to stop."""
        reading = Reading(
            consumer=consumer,
            max_ticks=max_ticks,
            max_events=max_events,
            worker=worker or worker_name(),
            lease=lease,
            exclusive=not cooperative,
        )
        delays = Backoff().delays()
        listening: Connection | None = None
        is_deaf = False
        done: Batch[T] | None = None
        while True:
            try:
                conn = self._client.connection()
                if listening is not conn:
                    problem = self._listen(conn)
                    if problem is not None and not is_deaf:
                        log.warning("queue %s: LISTEN failed, so looking every %g s: %s", self.name, poll_s, problem)
                    is_deaf, listening = problem is not None, conn
                batch = self._read(reading, finishing=done)
                done = None
                delays = Backoff().delays()
            except TransientError as error:
                delay = next(delays)
                log.warning("queue %s: %s; again in %.1f s", self.name, error, delay)
                time.sleep(delay)
                continue
            if batch is None:
                with suppress(psycopg.OperationalError):
                    list(conn.notifies(timeout=poll_s, stop_after=1))
                continue
            if batch.events:
                try:
                    yield batch
                except GeneratorExit:
                    if batch.is_open:
                        batch.release()
                    raise
            if batch.is_open:
                done = batch

    def _listen(self, conn: Connection) -> Exception | None:
        """Have ticks announced, or return why not: where it is refused, looking now and then is enough."""
        channel = self._client.call(statements.CHANNEL, self.name)
        try:
            with translated():
                conn.execute(f"listen {channel}".encode())
        except (CascadeError, psycopg.Error) as error:
            if conn.closed:
                raise
            return error
        return None

    def _read(self, reading: Reading, *, finishing: Batch[T] | None = None) -> Batch[T] | None:
        """Take a batch and read it; another one is finished in the same step: both or neither."""
        conn = self._client.connection()
        # A batch may be empty, and is false then.
        arguments = reading.arguments(self.name, finish=None if finishing is None else finishing.id)
        with translated(), conn.cursor(binary=True) as cur:
            raw_json(cur.adapters)
            with nullcontext() if finishing is None else finishing.closing(), translated():
                cur.execute(statements.NEXT_BATCH, arguments)
            row: Any = cur.fetchone()
            if row is None:
                return None
            rows: list[Any] = cur.execute(statements.EVENTS, (row[0],)).fetchall()
        return Batch(self._client, row[0], row[1], row[2], [Event(event, self._codec.decode) for event in rows])


class Batch(Held[T]):
    """A batch on the synchronous client; as a context manager it finishes on success."""

    def __init__(
        self, client: Client, batch_id: BatchId, from_tick: TickId, to_tick: TickId, events: list[Event[T]]
    ) -> None:
        super().__init__(batch_id, from_tick, to_tick, events)
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if error is None:
            self.finish()
        else:
            with suppress(CascadeError, psycopg.Error):
                self.release()

    def finish(self, conn: Connection | None = None) -> None:
        """Move the consumer past this batch; with `conn`, in the transaction open there."""
        with self.closing(), translated():
            (conn or self._client.connection()).execute(statements.FINISH, (self.id, conn is not None))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Enclose the handler's writes and the finishing in one transaction."""
        with self.closing(), translated():
            conn = self._client.connection()
            with conn.transaction():
                yield conn
                conn.execute(statements.FINISH, (self.id, True))

    def release(self) -> None:
        """Give the batch back: the next who asks gets it, whole."""
        self.is_open, self.is_released = False, True
        with translated():
            self._client.connection().execute(statements.RELEASE, (self.id,))

    def renew(self, lease: timedelta = LEASE) -> None:
        """Extend the lease."""
        with translated():
            self._client.connection().execute(statements.RENEW, (self.id, lease))

    def retry(self, event: Event[T] | EventId, *, after: timedelta) -> int:
        """Have one event delivered again after a while; it holds once the batch is finished."""
        event_id = event.id if isinstance(event, Event) else event
        return cast(int, self._client.call(statements.RETRY, self.id, event_id, after))


def connect(
    target: str | psycopg.Connection[Any],
    *,
    follow_s: float = FOLLOW_S,
    databases: Mapping[str, str] | None = None,
    prepare_threshold: int | None = PREPARE_THRESHOLD,
) -> Client:
    """Connect to a database by its DSN, or wrap a connection that the caller has."""
    return Client(target, follow_s=follow_s, databases=databases, prepare_threshold=prepare_threshold)


def _is_in_transaction(conn: Connection) -> bool:
    """Whether a transaction is open on a connection."""
    return conn.info.transaction_status in IN_TRANSACTION
