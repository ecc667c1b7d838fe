"""Worker: claims messages of a consumer in work mode, has handlers work on them, and tells what became of each.

One connection does it all.  Its turns are short statements: whatever ended since the last one is told, and the next
messages are claimed, in one call where that is possible; handlers work meanwhile.

    claimed ──> waiting here ──> handler ──> returned ──> completed
                    │               ├──────> raised ────> failed: comes again, or is dead
                    └──> stop ──────┴──────> given back at once

A message is never lost: what is not told is handed out again once the lease has run out, or the session is gone.
A claim that was given up in the meantime cannot be completed; whoever has it now does that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, TypeVar, cast

import psycopg

from cascade import work
from cascade.batch import CHANNEL, worker_name
from cascade.calling import Caller, HandlerMissingError, OvertimeError, describe
from cascade.client import Queue
from cascade.codec import Codec, JsonCodec
from cascade.db import PREPARE_THRESHOLD, AsyncConnection, Notifications, connect, raw_json, translated
from cascade.errors import CascadeError, ConfigError, ConflictError, TransientError
from cascade.hand import Claim, Failure, Hand
from cascade.handlers import Bound, Handlers
from cascade.names import queue_name
from cascade.retry import Backoff
from cascade.work import LEASE, Bury, Delivery, Retry, Row, results

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("cascade.worker")

#: A worker holds what it can do in so long, so that others have something to do as well.
AHEAD_S = 0.1
#: Completions wait so long for others of their claim, unless the worker is about to speak anyway.
GROUP_S = 0.05
#: Handlers that never wait let others have their turn so often.
YIELD_S = 0.005
#: How long leaving may take: giving back what is in hand is worth so much.
CLOSE_WITHIN_S = 5.0
#: What a database that comes and goes may raise.
PASSING = (TransientError, psycopg.OperationalError, TimeoutError, OSError)


class Worker:
    """Works for one consumer; any number of workers, in any number of processes, may work for the same one.

    The database is that of the queue's client, or `dsn`, or CASCADE_DSN; one connection is used.

    `handler`, and those added by `on`, are coroutines or plain functions; the latter run in threads.  What they
    return is stored as the message's result; what they raise makes the attempt a failed one.

    `concurrency` messages are worked on at a time, and at most `batch` claimed at a time.  A lease is renewed for as
    long as its messages are here; `time_limit` is what one attempt may take.
    """

    def __init__(
        self,
        queue: str | Queue[Any],
        consumer: str,
        handler: Callable[..., Any] | None = None,
        *,
        dsn: str | None = None,
        concurrency: int = 10,
        batch: int = 100,
        lease: timedelta = LEASE,
        time_limit: timedelta | None = None,
        name: str | None = None,
        codec: Codec[Any] | None = None,
        poll_s: float = 1.0,
        stop_within_s: float = 30.0,
    ) -> None:
        self.dsn = dsn or os.environ.get("CASCADE_DSN")
        self._prepare_threshold: int | None = PREPARE_THRESHOLD
        if isinstance(queue, Queue):
            if queue.client.dsn is None:
                raise ConfigError(
                    "a worker needs a connection of its own, this client has one of yours",
                    hint="Use cascade.connect(dsn); in a transaction of yours, queue.work(consumer).consume() works.",
                )
            self.dsn, self._prepare_threshold = queue.client.dsn, queue.client.prepare_threshold
            codec, queue = codec or queue.codec, queue.name
        if concurrency < 1 or batch < 1 or lease <= timedelta():
            raise ConfigError("concurrency, batch and lease are more than nothing")
        self.queue, self.consumer, self.name = queue_name(queue), consumer, name or worker_name()
        self.concurrency, self.batch, self.lease = concurrency, batch, lease
        self.time_limit, self.stop_within_s = time_limit, stop_within_s
        self._poll_s = poll_s
        self.codec: Codec[Any] = codec or JsonCodec()
        self.handlers = Handlers(self.codec)
        if handler is not None:
            self.handlers.add(handler, (), time_limit=time_limit)
        #: Counts since the start: attempts that were completed, failed, and lost to others.
        self.completed = self.failed = self.lost = 0
        self._caller = Caller(consumer)
        self._reset()

    def _reset(self) -> None:
        self._hand = Hand()
        self._waiting: deque[Delivery[Any]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._running: dict[Delivery[Any], asyncio.Task[Any]] = {}
        self._abandoned: set[Delivery[Any]] = set()
        self._returned: list[Delivery[Any]] = []
        self._deaf = False
        self._conn: AsyncConnection | None = None
        self._notifications: Notifications | None = None
        self._may_have, self._looked_at = True, 0.0
        #: When the first of the messages that failed here is due, by the monotonic clock.
        self._due_at = math.inf
        self._stopping, self._until_empty = False, False
        #: When handlers that are still at work are no longer waited for, after a stop.
        self._ends_at = math.inf
        self._attempt_s = 1.0
        self._yielded_at = 0.0

    # What handles what

    def on(self, *types: str, time_limit: timedelta | None = None) -> Callable[[F], F]:
        """Have a function handle messages of these types; without any, all that no other handler takes."""

        def add(function: F) -> F:
            self.handlers.add(function, types, time_limit=time_limit or self.time_limit)
            return function

        return add

    def on_dead(self, *types: str, time_limit: timedelta | None = None) -> Callable[[F], F]:
        """Have a function called once for each message that dies in this worker's hands; `delivery.error` says why."""

        def add(function: F) -> F:
            self.handlers.add_dead(function, types, time_limit=time_limit or self.time_limit)
            return function

        return add

    # Running

    def run_forever(self) -> None:
        """Work until SIGTERM or SIGINT; for the main thread of a program."""

        async def run() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            await self.run()

        asyncio.run(run())

    def stop(self) -> None:
        """Take nothing new, give back what has not begun, finish what has; `run` returns then."""
        self._stopping = True
        self._ends_at = min(self._ends_at, time.monotonic() + self.stop_within_s)
        self._nudge()

    async def run(self) -> None:
        """Work until `stop`; errors that would come again, such as a consumer that is not there, are raised."""
        await self._run()

    async def drain(self) -> int:
        """Work until nothing is ready, and return how many attempts that were; delayed messages are not waited for."""
        before = self.completed + self.failed
        await self._run(until_empty=True)
        return self.completed + self.failed - before

    async def _run(self, *, until_empty: bool = False) -> None:
        if self.dsn is None:
            raise ConfigError("no database was named", hint="Pass dsn=..., or a queue of a client, or set CASCADE_DSN.")
        if not self.handlers:
            raise ConfigError("the worker has no handler", hint="Pass one, or decorate functions with @worker.on(...).")
        self._until_empty = until_empty
        log.info("%s works for %s of queue %s", self.name, self.consumer, self.queue, extra=self._facts())
        try:
            async with asyncio.TaskGroup() as group:
                names = [f"{self.consumer}-{number}" for number in range(self.concurrency)]
                runners = [group.create_task(self._runner(), name=name) for name in names]
                # Not of the group: when that is cancelled, a claim may be under way, and only the reply says which.
                turns = asyncio.create_task(self._turns(runners), name=f"{self.consumer}-turns")
                try:
                    await self._outlast(turns)
                finally:
                    for runner in runners:
                        runner.cancel()
        finally:
            await self._close()
            counts = {"completed": self.completed, "failed": self.failed, "lost": self.lost}
            log.info("%s stopped: %s completed, %s failed", self.name, self.completed, self.failed,
                     extra=self._facts() | counts)  # fmt: skip
            self._reset()
        if (error := turns.exception()) is not None:
            raise error

    async def _outlast(self, turns: asyncio.Task[None]) -> None:
        """Wait for the turns to end; being cancelled here is to stop without patience."""
        try:
            await asyncio.wait((turns,))
        except asyncio.CancelledError:
            self._ends_at = time.monotonic()
            self.stop()
            await asyncio.wait((turns,), timeout=CLOSE_WITHIN_S)
            raise
        finally:
            turns.cancel()
            await asyncio.wait((turns,), timeout=CLOSE_WITHIN_S)

    # Turns

    async def _turns(self, runners: list[asyncio.Task[None]]) -> None:
        delays = Backoff().delays()
        while not self._is_done():
            try:
                conn = await self._connection()
                with translated():
                    await self._turn_until_idle(conn, runners)
                    delays = Backoff().delays()
                    if not self._is_done():
                        await self._wait()
            except PASSING as error:
                if time.monotonic() > self._ends_at + CLOSE_WITHIN_S:
                    return
                delay = next(delays)
                log.warning("queue %s: %s; again in %.1f s", self.queue, error, delay, extra=self._facts())
                await self._disconnect()
                await asyncio.sleep(delay)

    async def _turn_until_idle(self, conn: AsyncConnection, runners: list[asyncio.Task[None]]) -> None:
        while True:
            if self._stopping:
                self._give_back_waiting()
                if time.monotonic() >= self._ends_at:
                    for runner in runners:
                        runner.cancel()
                    await asyncio.wait(runners)
            if not await self._turn(conn):
                return

    def _is_done(self) -> bool:
        if self._hand or self._waiting or self._running or self._returned:
            return False
        return self._stopping or (self._until_empty and not self._may_have)

    async def _turn(self, conn: AsyncConnection) -> bool:
        """Say one thing to the database, if there is something to say."""
        hand, now = self._hand, time.monotonic()
        if hand.failures:
            await self._tell_failure(conn, hand.failures[0])
        elif self._returned:
            await self._tell_returned(conn)
        elif stale := hand.stale(now - self.lease.total_seconds() / 3):
            for claim in stale:
                await self._renew(conn, claim)
        elif over := hand.over():
            await self._tell_done(conn, over)
        elif room := self._room():
            await self._claim(conn, work.CLAIM, self.queue, self.consumer, room, self.lease, self.name)
        elif late := hand.late(now - GROUP_S):
            await self._tell_done(conn, late)
        else:
            return False
        return True

    def _room(self) -> int:
        """Return how many more messages to ask for: as many as are done soon, so that others have work too."""
        if self._stopping or not self._may_have:
            return 0
        ahead = self.concurrency * (1 + AHEAD_S / max(self._attempt_s, 1e-6))
        limit = int(max(self.concurrency, min(ahead, 2 * self.batch)))
        held = self._hand.held
        if held >= self.concurrency and 2 * held > limit:
            return 0
        return min(self.batch, limit - held)

    async def _claim(self, conn: AsyncConnection, query: LiteralString, *arguments: object) -> None:
        self._looked_at = time.monotonic()
        with translated():
            async with conn.cursor(binary=True) as cur:
                raw_json(cur.adapters)
                rows = await (await cur.execute(query, arguments)).fetchall()
        self._may_have = bool(rows)
        if rows:
            decode = self.codec.decode
            deliveries = [Delivery(self.queue, cast(Row, row), decode) for row in rows]
            self._hand.take(deliveries, time.monotonic())
            self._waiting.extend(deliveries)
            self._wake(len(deliveries))

    async def _tell_done(self, conn: AsyncConnection, claim: Claim) -> None:
        """Tell what is completed of a claim; if that ends it, claim as well."""
        count, (ids, found), is_over = len(claim.done), claim.report(), claim.is_over
        told = results(found) if found else None
        try:
            if not count:
                pass  # Every message of it was settled otherwise.
            elif is_over and (room := self._room()):
                await self._claim(conn, work.COMPLETE_AND_CLAIM, claim.id, ids, told, room, self.lease)
            else:
                await _execute(conn, work.COMPLETE, claim.id, ids, told)
            self.completed += count
        except ConflictError as error:
            if not await self._is_ours(conn, claim, error):
                return
            for message, result in zip(claim.done[:count], told or [None] * count, strict=True):
                if await self._try(conn, work.COMPLETE, claim.id, [message], result and [result]):
                    self.completed += 1
        claim.told(count)
        if is_over:
            self._hand.drop(claim)

    async def _tell_failure(self, conn: AsyncConnection, failure: Failure) -> None:
        delivery, claim = failure.delivery, self._hand.get(failure.delivery)
        assert claim is not None, "what failed is forgotten with its claim"
        due: datetime | None = None
        try:
            if failure.is_hopeless:
                await _execute(conn, work.BURY, claim.id, delivery.id, failure.error)
            else:
                due = await self._fail(conn, claim, failure)
        except ConflictError as error:
            if not await self._is_ours(conn, claim, error):
                return
            self.lost += 1
        else:
            self.failed += 1
            self._log_failure(failure, due)
            if due is None and self.handlers.find_dead(delivery.type) is not None:
                delivery.error = failure.error
                self._waiting.append(delivery)
                self._wake(1)
        self._hand.settle(delivery)
        self._hand.failures.remove(failure)

    async def _fail(self, conn: AsyncConnection, claim: Claim, failure: Failure) -> datetime | None:
        """Tell that an attempt failed, and return when the next one is due; None when there is none."""
        pause = None if failure.retry_in_s is None else timedelta(seconds=failure.retry_in_s)
        [due] = await _execute(conn, work.FAIL, claim.id, failure.delivery.id, failure.error, pause)
        if not isinstance(due, datetime):
            return None
        wait_s = max((due - datetime.now(UTC)).total_seconds(), 0.0)
        self._due_at = min(self._due_at, time.monotonic() + wait_s)
        return due

    async def _tell_returned(self, conn: AsyncConnection) -> None:
        """Give messages back, claim by claim; their attempts do not count."""
        claim_id = self._returned[0].claim_id
        claim = self._hand.get(self._returned[0])
        some = [delivery for delivery in self._returned if delivery.claim_id == claim_id]
        if claim is not None:
            try:
                await _execute(conn, work.RELEASE, claim.id, [delivery.id for delivery in some])
            except ConflictError as error:
                if not await self._is_ours(conn, claim, error):
                    return
                for delivery in some:
                    await self._try(conn, work.RELEASE, claim.id, [delivery.id])
            for delivery in some:
                self._hand.settle(delivery)
        self._returned = [delivery for delivery in self._returned if delivery.claim_id != claim_id]

    async def _try(self, conn: AsyncConnection, query: LiteralString, *arguments: object) -> bool:
        """Say something about one message; False when it was taken from the claim meanwhile."""
        try:
            await _execute(conn, query, *arguments)
        except ConflictError as error:
            log.warning("queue %s: %s", self.queue, error, extra=self._facts())
            self.lost += 1
            return False
        return True

    async def _renew(self, conn: AsyncConnection, claim: Claim) -> None:
        try:
            await _execute(conn, work.EXTEND, claim.id, self.lease)
            claim.renewed_at = time.monotonic()
        except ConflictError as error:
            self._lose(claim, error)

    async def _is_ours(self, conn: AsyncConnection, claim: Claim, error: ConflictError) -> bool:
        """After a refusal: whether only a message was taken from a claim; one that is over is forgotten."""
        try:
            await _execute(conn, work.EXTEND, claim.id, self.lease)
        except ConflictError:
            self._lose(claim, error)
            return False
        return True

    def _lose(self, claim: Claim, error: ConflictError) -> None:
        """Forget a claim that was given up: others have its messages, or will."""
        log.warning("queue %s: claim %s: %s", self.queue, claim.id, error, extra=self._facts())
        self._hand.drop(claim)
        self.lost += claim.open + len(claim.done)
        self._waiting = deque(d for d in self._waiting if d.claim_id != claim.id or d.error is not None)
        self._returned = [delivery for delivery in self._returned if delivery.claim_id != claim.id]
        self._hand.failures = [f for f in self._hand.failures if f.delivery.claim_id != claim.id]
        for delivery, task in list(self._running.items()):
            if delivery.claim_id == claim.id and delivery.error is None:
                self._abandoned.add(delivery)
                task.cancel()

    def _give_back_waiting(self) -> None:
        """Return what nobody has begun; handlers of the dead are not put off."""
        some = [delivery for delivery in self._waiting if delivery.error is None]
        self._returned += some
        self._waiting = deque(delivery for delivery in self._waiting if delivery.error is not None)

    # Waiting

    async def _wait(self) -> None:
        """Wait for a handler that ends, a notification, or the time to do something anyway."""
        assert self._notifications is not None
        now = time.monotonic()
        moments = [self._looked_at + self._poll_s if not self._may_have else now + self._poll_s]
        moments += [claim.renewed_at + self.lease.total_seconds() / 3 for claim in self._hand]
        moments += [claim.done_at + GROUP_S for claim in self._hand if claim.done]
        moments.append(min(self._due_at, self._ends_at))
        came = await self._notifications.wait(max(min(moments) - now, 0.0))
        now = time.monotonic()
        if came or now - self._looked_at >= self._poll_s or now >= self._due_at:
            self._may_have = True
            if now >= self._due_at:
                self._due_at = math.inf

    def _nudge(self) -> None:
        if self._notifications is not None:
            self._notifications.nudge()

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # The connection

    async def _connection(self) -> AsyncConnection:
        if self._conn is not None and not self._conn.closed:
            return self._conn
        assert self.dsn is not None
        conn = await connect(self.dsn, service=f"{self.consumer}/worker", prepare_threshold=self._prepare_threshold)
        try:
            self._notifications = Notifications(conn)
            await self._listen(conn)
        except BaseException:
            await conn.close()
            raise
        self._conn, self._may_have = conn, True
        # What is in hand is ours still, if nobody has given it up: the session that says so is a new one.
        for claim in self._hand:
            claim.renewed_at = -math.inf
        return conn

    async def _listen(self, conn: AsyncConnection) -> None:
        """Have ready messages announced; where that is refused, as by some poolers, looking now and then is enough."""
        with translated():
            row = await (await conn.execute(work.CHANNEL, (self.queue, self.consumer))).fetchone()
            ticks = await (await conn.execute(CHANNEL, (self.queue,))).fetchone()
        assert row is not None and ticks is not None
        try:
            with translated():
                await conn.execute(f"listen {row[0]}".encode())
                await conn.execute(f"listen {ticks[0]}".encode())
        except (CascadeError, psycopg.Error) as error:
            if conn.closed:
                raise
            if not self._deaf:
                log.warning("queue %s: LISTEN failed, so looking every %g s: %s", self.queue, self._poll_s, error)
            self._deaf = True

    async def _disconnect(self) -> None:
        if self._conn is not None:
            with suppress(psycopg.Error):
                await self._conn.close()
        self._conn = self._notifications = None

    async def _close(self) -> None:
        """Leave: tell what is done, give back the rest, within a deadline."""
        self._stopping = True
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                if self._hand and self._conn is not None and not self._conn.closed:
                    await self._leave(self._conn)
        except (CascadeError, psycopg.Error, TimeoutError) as error:
            # The end of the session gives it back as well, as soon as that is noticed.
            log.warning(
                "queue %s: what was in hand could not be given back: %s", self.queue, error, extra=self._facts()
            )
        self._caller.close()
        await self._disconnect()

    async def _leave(self, conn: AsyncConnection) -> None:
        while self._hand.failures:
            await self._tell_failure(conn, self._hand.failures[0])
        for claim in self._hand:
            with suppress(ConflictError):
                if claim.done:
                    await self._tell_done(conn, claim)
                if claim.open:
                    await _execute(conn, work.RELEASE, claim.id, None)

    # Handling

    async def _runner(self) -> None:
        """Handle one message after the other."""
        loop = asyncio.get_running_loop()
        while True:
            while self._waiting:
                delivery = self._waiting.popleft()
                if delivery.error is None:
                    await self._handle(delivery)
                else:
                    await self._handle_dead(delivery)
                if time.monotonic() - self._yielded_at > YIELD_S:
                    await asyncio.sleep(0)
                    self._yielded_at = time.monotonic()
            waiter: asyncio.Future[None] = loop.create_future()
            self._idle.append(waiter)
            self._nudge()
            await waiter

    async def _handle(self, delivery: Delivery[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        began = time.monotonic()
        self._running[delivery] = task
        try:
            result = await self._call(self.handlers.find(delivery.type), delivery)
            if result is not None:
                results([result])  # raises if it is not JSON
        except asyncio.CancelledError:
            if delivery in self._abandoned:
                return
            if task.cancelling():
                self._returned.append(delivery)
                raise
            self._note_failure(delivery, RuntimeError("the handler was cancelled by itself"))
        except OvertimeError as error:
            self._note_failure(delivery, error)
            self._nudge()
            # Its place is taken for as long as the thread runs.
            await asyncio.wait((error.future,))
        except (Exception, SystemExit) as error:
            self._note_failure(delivery, error)
        else:
            now = time.monotonic()
            self._attempt_s += 0.2 * (now - began - self._attempt_s)
            claim = self._hand.finish(delivery, result, now)
            if claim is None:
                self._log_late(delivery)
            elif delivery.is_settled:
                self.completed += 1
        finally:
            self._running.pop(delivery, None)
            # Whether or not the handler let itself be ended, its task goes on.
            if delivery in self._abandoned:
                self._abandoned.discard(delivery)
                task.uncancel()
        self._nudge()

    async def _call(self, bound: Bound | None, delivery: Delivery[Any]) -> Any:
        if bound is None:
            known = ", ".join(self.handlers.types)
            raise HandlerMissingError(
                f"no handler takes type {delivery.type!r}, only {known}",
                hint="Add one with @worker.on(...), or have a selector keep such messages from this consumer.",
            )
        return await self._caller.call(bound, delivery, self.concurrency)

    @property
    def is_held_up(self) -> bool:
        """Whether a handler is still at it in its thread, which keeps the process, after `run` has returned."""
        return self._caller.is_busy

    async def _handle_dead(self, delivery: Delivery[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running[delivery] = task
        try:
            await self._call(self.handlers.find_dead(delivery.type), delivery)
        except Exception:
            log.exception("queue %s: the handler of the dead failed for message %s", self.queue, delivery.id,
                          extra=self._facts(delivery))  # fmt: skip
        finally:
            self._running.pop(delivery, None)
        self._nudge()

    def _note_failure(self, delivery: Delivery[Any], error: BaseException) -> None:
        if self._hand.get(delivery) is None:
            self._log_late(delivery)
            return
        after = error.after if isinstance(error, Retry) else None
        self._hand.failures.append(
            Failure(
                delivery=delivery,
                error=describe(error),
                retry_in_s=None if after is None else after.total_seconds(),
                is_hopeless=isinstance(error, Bury),
            )
        )

    # Logs

    def _facts(self, delivery: Delivery[Any] | None = None) -> dict[str, object]:
        """Return what every log record carries, for programs."""
        found: dict[str, object] = {"queue": self.queue, "consumer": self.consumer, "worker": self.name}
        if delivery is not None:
            found |= {"message_id": delivery.id, "message_type": delivery.type, "attempt": delivery.attempt}
        return found

    def _log_failure(self, failure: Failure, due: datetime | None) -> None:
        delivery = failure.delivery
        what = failure.error.partition("\n")[0]
        after = "it is dead" if due is None else f"again at {due.isoformat(timespec='milliseconds')}"
        log.warning(
            "queue %s: message %s failed, attempt %s: %s; %s", self.queue, delivery.id, delivery.attempt, what, after,
            extra=self._facts(delivery) | {"error": failure.error, "due": due},
        )  # fmt: skip

    def _log_late(self, delivery: Delivery[Any]) -> None:
        log.warning("queue %s: message %s was given up before its handler ended; it does not count", self.queue,
                    delivery.id, extra=self._facts(delivery))  # fmt: skip


async def _execute(conn: AsyncConnection, query: LiteralString, *arguments: object) -> tuple[object, ...]:
    """Run a statement that returns one row."""
    with translated():
        row = await (await conn.execute(query, arguments)).fetchone()
    assert row is not None
    return row
