"""Events as they are read and messages as they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeAlias, TypeVar

from cascade.names import EventId

T = TypeVar("T")

#: The columns of cascade.batch_events(), in the order in which Event looks at them.
COLUMNS = "id, time, txid, type, key, payload, headers, origin, origin_id, attempt"

#: What the database says in those columns; json as text.
Row: TypeAlias = tuple[EventId, datetime, int, str | None, str | None, str, str | None, str | None, EventId | None, int]


class Event(Generic[T]):
    """One event of a batch.  The payload is decoded each time it is asked for."""

    __slots__ = ("_decode", "_row")

    def __init__(self, row: Row, decode: Callable[[str], T]) -> None:
        self._row = row
        self._decode = decode

    @property
    def id(self) -> EventId:
        """Identifies the event on every node, for ever."""
        return self._row[0]

    @property
    def time(self) -> datetime:
        """When its transaction began."""
        return self._row[1]

    @property
    def txid(self) -> int:
        """Its transaction, on the queue's clock."""
        return self._row[2]

    @property
    def type(self) -> str | None:
        """What happened."""
        return self._row[3]

    @property
    def key(self) -> str | None:
        """Whom it concerns."""
        return self._row[4]

    @property
    def payload(self) -> T:
        """The payload, decoded."""
        return self._decode(self._row[5])

    @property
    def payload_text(self) -> str:
        """The payload as it was inserted, byte for byte."""
        return self._row[5]

    @property
    def headers(self) -> Any:
        """The headers, decoded; None when there are none."""
        return None if self._row[6] is None else json.loads(self._row[6])

    @property
    def origin(self) -> str | None:
        """The set it came from, in a combined queue."""
        return self._row[7]

    @property
    def origin_id(self) -> EventId | None:
        """Its id there."""
        return self._row[8]

    @property
    def attempt(self) -> int:
        """How often this consumer was given the event, this time included."""
        return self._row[9]

    def __repr__(self) -> str:
        return f"<Event {self.id} type={self.type!r} key={self.key!r} attempt={self.attempt}>"


#: The part of the headers that holds the options of a message.
OPTIONS = "cascade.options"
PRIORITIES = {"urgent": 1, "high": 2, "normal": 3, "low": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What consumers in work mode are to do with a message; streams deliver it like any other.

    `after` is ids of this queue, or ids by queue: not delivered before all of those were consumed.
    """

    delay: timedelta | None = None
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int | str | None = None
    after: Sequence[EventId] | Mapping[str, Sequence[EventId]] | None = None
    dedupe_key: str | None = None
    dedupe_for: timedelta | None = None

    def arguments(self) -> dict[str, object]:
        """Return the options that were given, as cascade.post() calls them."""
        after = self.after
        by_queue = {queue: list(ids) for queue, ids in after.items()} if isinstance(after, Mapping) else None
        priority = PRIORITIES.get(self.priority, self.priority) if isinstance(self.priority, str) else self.priority
        found: dict[str, object] = {
            "delay": self.delay,
            "deliver_at": self.deliver_at,
            "expires_at": self.expires_at,
            "priority": priority,
            "after": None if after is None or isinstance(after, Mapping) else list(after),
            "after_in": None if by_queue is None else json.dumps(by_queue),
            "dedupe_key": self.dedupe_key,
            "dedupe_for": self.dedupe_for,
        }
        return {name: value for name, value in found.items() if value is not None}

    def header(self) -> dict[str, object]:
        """Return the options as they stand in the headers of an event, for INSERT and COPY."""
        found = self.arguments()
        if "after_in" in found:
            found["after_in"] = json.loads(str(found["after_in"]))
        for name, value in found.items():
            if isinstance(value, datetime):
                found[name] = value.isoformat()
            elif isinstance(value, timedelta):
                found[name] = f"{value.total_seconds()} seconds"
        return found


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One event to publish."""

    payload: T
    type: str | None = None
    key: str | None = None
    headers: Mapping[str, Any] | None = None
    options: Options | None = None
