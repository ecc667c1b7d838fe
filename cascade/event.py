"""Events as they are read and messages as they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
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


@dataclass(frozen=True, slots=True)
class Message(Generic[T]):
    """One event to publish."""

    payload: T
    type: str | None = None
    key: str | None = None
    headers: Mapping[str, Any] | None = None
