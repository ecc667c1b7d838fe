"""Helpers for testing what is built on work mode: call handlers inline, drain a queue, and move the clock.

None of them needs a daemon.  `run_inline` needs no database either.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

from cascade import sync
from cascade.codec import JsonCodec
from cascade.errors import NotFoundError
from cascade.names import ClaimId, EventId
from cascade.work import Delivery, results
from cascade.worker import Worker

ADVANCE: LiteralString = "select cascade_internal.advance_work_clock(%s)"
TEND: LiteralString = "select count(*) from cascade.tend_work()"


async def run_inline(
    worker: Worker,
    payload: Any,
    *,
    type: str | None = None,
    key: str | None = None,
    headers: Mapping[str, Any] | None = None,
    attempt: int = 1,
) -> Any:
    """Call the worker's handler as if it had been handed such a message; returns what the handler returns, or raises.

    The payload goes through JSON on its way, and the result must be JSON, as in earnest.
    """
    bound = worker.handlers.find(type)
    if bound is None:
        raise NotFoundError(f"no handler takes type {type!r}", hint="Add one with @worker.on(...).")
    now = datetime.now(UTC)
    also = None if headers is None else JsonCodec().encode(headers)
    row = (EventId(1), type, key, worker.codec.encode(payload), also, attempt, now, now, ClaimId(1))
    found = bound.call(*bound.arguments(Delivery(worker.queue, row, worker.codec.decode)))
    if inspect.isawaitable(found):
        found = await found
    results([found])
    return found


async def drain(worker: Worker) -> int:
    """Tick, and have the worker work until nothing is ready; returns how many attempts that were.

    What a handler publishes is worked on as well.  Delayed messages, and those that failed, wait for their time:
    see Clock.
    """
    done = 0
    while True:
        assert worker.dsn is not None
        with sync.connect(worker.dsn) as client:
            client.queue(worker.queue).tick()
        if not (now := await worker.drain()):
            return done
        done += now


@dataclass(frozen=True, slots=True)
class Clock:
    """Moves the time of all messages in work mode of a database; for databases of tests only.

    Nothing sleeps: what is due later comes nearer.  Only the owner of the schema may do that.
    """

    dsn: str

    def advance(self, by: timedelta) -> None:
        """Have so much time pass for delays, expiry, leases, retries and retention."""
        with sync.connect(self.dsn) as client:
            client.call(ADVANCE, by)
            client.call(TEND)
