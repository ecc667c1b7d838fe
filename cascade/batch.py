"""A batch in hand: what both clients know about it, and the statements that move it."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, LiteralString, TypeVar, overload

from cascade.errors import ConflictError
from cascade.event import COLUMNS, Event
from cascade.names import BatchId, QueueName, TickId

T = TypeVar("T")

NEXT_BATCH: LiteralString = (
    "select batch_id, from_tick, to_tick, events from cascade.next_batch(%(queue)s, %(consumer)s,"
    " max_ticks => %(max_ticks)s, max_events => %(max_events)s, worker => %(worker)s,"
    " lease => %(lease)s, exclusive => %(exclusive)s, after => %(after)s, finish => %(finish)s)"
)
EVENTS: LiteralString = f"select {COLUMNS} from cascade.batch_events(%s)"
FINISH: LiteralString = "select cascade.finish_batch(%s, %s)"
RELEASE: LiteralString = "select cascade.release_batch(%s)"
RENEW: LiteralString = "select cascade.renew_batch(%s, %s)"
RETRY: LiteralString = "select cascade.retry_event(%s, %s, %s)"
CHANNEL: LiteralString = "select cascade.tick_channel(%s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a consumer reads: how much at a time, under which name, for how long."""

    consumer: str
    max_ticks: int = 100
    max_events: int | None = 5000
    worker: str | None = None
    lease: timedelta | None = None
    exclusive: bool = False

    def arguments(
        self, queue: QueueName, *, after: BatchId | None = None, finish: BatchId | None = None
    ) -> dict[str, object]:
        """Return what NEXT_BATCH wants: the batch after one at hand, and the one that is done."""
        return {
            "queue": queue,
            "consumer": self.consumer,
            "max_ticks": self.max_ticks,
            "max_events": self.max_events,
            "worker": self.worker,
            "lease": self.lease,
            "exclusive": self.exclusive,
            "after": after,
            "finish": finish,
        }


class Held(Sequence[Event[T]], Generic[T]):
    """The events between two ticks, handed to one consumer."""

    def __init__(self, batch_id: BatchId, from_tick: TickId, to_tick: TickId, events: list[Event[T]]) -> None:
        self.id, self.from_tick, self.to_tick = batch_id, from_tick, to_tick
        self.events = events
        self.is_open = True
        self.is_released = False

    @overload
    def __getitem__(self, index: int) -> Event[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event[T]]: ...
    def __getitem__(self, index: int | slice) -> Event[T] | Sequence[Event[T]]:
        return self.events[index]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event[T]]:
        return iter(self.events)

    def __repr__(self) -> str:
        return f"<Batch {self.id} ticks {self.from_tick}..{self.to_tick}, {len(self)} events>"

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Note that the batch is no longer ours, once it is finished or turns out to be lost."""
        try:
            yield
        except ConflictError:
            self.is_open = False
            raise
        self.is_open = False


def worker_name() -> str:
    """Return a name that no other process has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
