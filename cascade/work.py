"""Work mode: a message in a worker's hands, what became of one, and the statements that move them.

waiting ──> active ──> done
  ^ └─ delayed  │ └──> dead ──> replayed: waiting again
  └──── failed ─┘
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, LiteralString, TypeAlias, TypeVar, cast

from cascade.codec import JsonCodec
from cascade.db import AsyncConnection, Connection, raw_json, translated
from cascade.errors import CascadeError, NotFoundError
from cascade.event import OPTIONS
from cascade.names import ClaimId, EventId, QueueName

if TYPE_CHECKING:
    from cascade.client import Client as AsyncClient
    from cascade.sync import Client as SyncClient

T = TypeVar("T")

#: How long a worker keeps messages without saying that it is still at work.
LEASE = timedelta(seconds=30)

#: A message that was just published comes to its consumers with the next tick.
NEW_S = 10.0

COLUMNS = "id, type, key, payload, headers, attempt, posted_at, available_at, claim_id"
CLAIM: LiteralString = f"select {COLUMNS} from cascade.claim(%s, %s, %s, %s, %s)"
COMPLETE_AND_CLAIM: LiteralString = f"select {COLUMNS} from cascade.complete_and_claim(%s, %s, %s::json[], %s, %s)"
COMPLETE: LiteralString = "select cascade.complete(%s, %s, %s::json[])"
FAIL: LiteralString = "select cascade.fail(%s, %s, %s, %s)"
BURY: LiteralString = "select cascade.bury(%s, %s, %s)"
RELEASE: LiteralString = "select cascade.release(%s, %s)"
EXTEND: LiteralString = "select cascade.extend(%s, %s)"
CONSUME: LiteralString = f"select {COLUMNS} from cascade.consume(%s, %s, %s)"
PEEK: LiteralString = f"select {COLUMNS} from cascade.peek(%s, %s, %s)"
CHANNEL: LiteralString = "select cascade.work_channel(%s, %s)"
RESULT: LiteralString = "select state, result, error, attempts, finished_at from cascade.work_result(%s, %s, %s)"

Row: TypeAlias = tuple[EventId, str | None, str | None, str, str | None, int, datetime, datetime, ClaimId | None]
_encode = JsonCodec().encode


class Delivery(Generic[T]):
    """One message, handed to one worker.  The payload is decoded each time it is asked for."""

    __slots__ = ("_decode", "_row", "error", "is_settled", "queue")

    def __init__(self, queue: QueueName, row: Row, decode: Callable[[str], T]) -> None:
        self.queue, self._row, self._decode = queue, row, decode
        #: What ended the last attempt, for handlers of the dead.
        self.error: str | None = None
        self.is_settled = False

    @property
    def id(self) -> EventId:
        """Identifies the message on every node, for ever, through all its attempts."""
        return self._row[0]

    @property
    def type(self) -> str | None:
        """What happened."""
        return self._row[1]

    @property
    def key(self) -> str | None:
        """Whom it concerns."""
        return self._row[2]

    @property
    def payload(self) -> T:
        """The payload, decoded."""
        return self._decode(self._row[3])

    @property
    def payload_text(self) -> str:
        """The payload as it was inserted, byte for byte."""
        return self._row[3]

    @property
    def headers(self) -> Any:
        """The headers, decoded, without Cascade's own; None when there are none."""
        if self._row[4] is None:
            return None
        found = json.loads(self._row[4])
        if isinstance(found, dict):
            found.pop(OPTIONS, None)
        return found or None

    @property
    def attempt(self) -> int:
        """How often this consumer was handed the message, this time included."""
        return self._row[5]

    @property
    def posted_at(self) -> datetime:
        """When it was published."""
        return self._row[6]

    @property
    def available_at(self) -> datetime:
        """Since when it could be had: later than posted_at after a delay or a failure."""
        return self._row[7]

    @property
    def claim_id(self) -> ClaimId | None:
        """The claim that holds it; None when it was consumed."""
        return self._row[8]

    async def complete(self, conn: AsyncConnection, result: object = None) -> None:
        """Complete it in the transaction open on a connection of yours, together with your own writes."""
        with translated():
            await conn.execute(COMPLETE, (self.claim_id, [self.id], results([result])))
        self.is_settled = True

    def complete_sync(self, conn: Connection, result: object = None) -> None:
        """Do the same on a synchronous connection."""
        with translated():
            conn.execute(COMPLETE, (self.claim_id, [self.id], results([result])))
        self.is_settled = True

    def __repr__(self) -> str:
        return f"<Delivery {self.id} type={self.type!r} key={self.key!r} attempt={self.attempt}>"


class Retry(Exception):
    """Raised by a handler: this attempt failed; the next one comes after `after`, or by the usual back-off."""

    def __init__(self, reason: str = "to be tried again", *, after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Bury(Exception):
    """Raised by a handler: no attempt will ever succeed; the message goes to the dead letters at once."""


class NotDoneError(CascadeError):
    """What was waited for ended without a result: it is dead, expired, cancelled or was taken away."""


class MessageUnknownError(NotFoundError):
    """The consumer has no such message: not yet, no longer, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What has become of a message: waiting, delayed, active, done, dead, expired, cancelled, taken or unknown."""

    state: str
    result: Any
    error: str | None
    attempts: int | None
    finished_at: datetime | None

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in ("done", "dead", "expired", "cancelled", "taken")


def results(values: Sequence[object]) -> list[str | None] | None:
    """Return results as the database wants them; None when there are none."""
    if all(value is None for value in values):
        return None
    return [None if value is None else _encode(value) for value in values]


def outcome(row: Sequence[Any] | None, queue: QueueName, message: EventId) -> Outcome:
    """Return what RESULT said."""
    if row is None or row[0] == "unknown":
        raise MessageUnknownError(
            f"message {message} of queue {queue} is not known to this consumer",
            hint="It was never published, or is not ticked yet, or its result was purged: see keep_done.",
        )
    state, result, error, attempts, finished_at = row
    return Outcome(state=state, result=result, error=error, attempts=attempts, finished_at=finished_at)


def _result_of(found: Outcome, message: EventId) -> Any:
    if found.state == "done":
        return found.result
    raise NotDoneError(
        f"message {message} is {found.state}" + (f": {found.error}" if found.error else ""),
        hint="`cascade dead show` has the attempts; `cascade dead replay` gives it another chance."
        if found.state == "dead"
        else None,
    )


class Work(Generic[T]):
    """The messages of one queue for one consumer in work mode, seen from the outside; `Worker` works on them."""

    def __init__(self, client: AsyncClient, queue: QueueName, consumer: str, decode: Callable[[str], T]) -> None:
        self._client, self.queue, self.consumer, self._decode = client, queue, consumer, decode

    async def outcome(self, message: EventId) -> Outcome:
        """Return what has become of a message."""
        with translated():
            cur = await (await self._client.connection()).execute(RESULT, (self.queue, self.consumer, message))
            return outcome(await cur.fetchone(), self.queue, message)

    async def wait(self, message: EventId, *, timeout_s: float | None = None) -> Any:
        """Wait until a message is done and return its result; NotDoneError when it ended otherwise."""
        async with asyncio.timeout(timeout_s):
            for pause_s, is_new in _looks():
                try:
                    if (found := await self.outcome(message)).is_final:
                        return _result_of(found, message)
                except MessageUnknownError:
                    if not is_new:
                        raise
                await asyncio.sleep(pause_s)
        raise AssertionError("there is always another look")

    async def consume(self, conn: AsyncConnection, count: int = 1) -> list[Delivery[T]]:
        """Take messages in the transaction open on a connection; a rollback gives them back, a commit completes."""
        return await self._fetch(conn, CONSUME, count)

    async def peek(self, count: int = 1) -> list[Delivery[T]]:
        """Return what would be handed out next, without taking it."""
        return await self._fetch(await self._client.connection(), PEEK, count)

    async def _fetch(self, conn: AsyncConnection, query: LiteralString, count: int) -> list[Delivery[T]]:
        with translated():
            async with conn.cursor(binary=True) as cur:
                raw_json(cur.adapters)
                rows = await (await cur.execute(query, (self.queue, self.consumer, count))).fetchall()
        return [Delivery(self.queue, cast(Row, row), self._decode) for row in rows]


class SyncWork(Generic[T]):
    """The same on the synchronous client."""

    def __init__(self, client: SyncClient, queue: QueueName, consumer: str, decode: Callable[[str], T]) -> None:
        self._client, self.queue, self.consumer, self._decode = client, queue, consumer, decode

    def outcome(self, message: EventId) -> Outcome:
        """Return what has become of a message."""
        with translated():
            row = self._client.connection().execute(RESULT, (self.queue, self.consumer, message)).fetchone()
        return outcome(row, self.queue, message)

    def wait(self, message: EventId, *, timeout_s: float | None = None) -> Any:
        """Wait until a message is done and return its result; NotDoneError when it ended otherwise."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        for pause_s, is_new in _looks():
            try:
                if (found := self.outcome(message)).is_final:
                    return _result_of(found, message)
            except MessageUnknownError:
                if not is_new:
                    raise
            if ends_at is not None and time.monotonic() + pause_s > ends_at:
                raise TimeoutError(f"message {message} is not done")
            time.sleep(pause_s)
        raise AssertionError("there is always another look")

    def consume(self, conn: Connection, count: int = 1) -> list[Delivery[T]]:
        """Take messages in the transaction open on a connection; a rollback gives them back, a commit completes."""
        return self._fetch(conn, CONSUME, count)

    def peek(self, count: int = 1) -> list[Delivery[T]]:
        """Return what would be handed out next, without taking it."""
        return self._fetch(self._client.connection(), PEEK, count)

    def _fetch(self, conn: Connection, query: LiteralString, count: int) -> list[Delivery[T]]:
        with translated(), conn.cursor(binary=True) as cur:
            raw_json(cur.adapters)
            rows = cur.execute(query, (self.queue, self.consumer, count)).fetchall()
        return [Delivery(self.queue, cast(Row, row), self._decode) for row in rows]


def _looks() -> Iterator[tuple[float, bool]]:
    """Yield how long to wait until the next look, and whether the message may not have come to the consumer yet.

    A result is usually there soon, or much later.
    """
    pause_s, begun = 0.005, time.monotonic()
    while True:
        yield pause_s, time.monotonic() - begun < NEW_S
        pause_s = min(pause_s * 1.5, 0.5)
