"""Places in a queue, and ranges between them: what every job of this package reads by.

A range of ticks (from, to] is the events after one tick up to another.  It is the same on every node that
carries both, whenever it is read, so it can be read in parts, by many, and again.
"""

from __future__ import annotations

import bisect
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from cascade.db import Connection, connect_sync, translated
from cascade.errors import ArgumentError
from cascade.names import TickId

#: What a job's connections are called in pg_stat_activity: cascade/spark/...
SERVICE = "spark"


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick, with what tells the events before it from those after it."""

    tick_id: TickId
    prev_tick: TickId | None
    time: datetime
    high: int
    open: list[int]
    total: int


@dataclass(frozen=True, slots=True)
class Range:
    """The events after one tick, up to another."""

    from_tick: TickId
    to_tick: TickId
    events: int


@contextmanager
def connected(dsn: str, service: str = "read") -> Iterator[Connection]:
    """Yield a connection of a job."""
    conn = connect_sync(dsn, service=f"{SERVICE}/{service}")
    try:
        yield conn
    finally:
        conn.close()


def find_tick(conn: Connection, queue: str, at: str | int | datetime) -> TickId:
    """Return a place (`earliest`, `latest`, a tick id, a time) as a tick id.

    A time means the last tick up to then.  What follows an earlier place may be rotated away: ExpiredError.
    """
    return TickId(_value(conn, "select cascade.find_tick(%s, %s)", queue, place(at)))


def place(at: str | int | datetime) -> str:
    """Return a place as a database takes it; a time without a zone is UTC, whatever zone the database is in."""
    text = str(at)
    if isinstance(at, int) or text.isdecimal():
        return text
    try:
        time = at if isinstance(at, datetime) else datetime.fromisoformat(text)
    except ValueError:
        return text  # A word, or nothing that is known.
    return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).isoformat()


def held(conn: Connection, queue: str) -> tuple[TickId, TickId]:
    """Return the first and the last tick between which this database holds all events."""
    return find_tick(conn, queue, "earliest"), find_tick(conn, queue, "latest")


def find_range(
    conn: Connection, queue: str, start: str | int | datetime = "earliest", end: str | int | datetime = "latest"
) -> tuple[TickId, TickId]:
    """Return the two ticks of a range, as people write it.

    The same times give the same ticks on every node, and neighbouring ranges have one tick in common, so
    that they neither overlap nor leave anything out.
    """
    from_tick, to_tick = find_tick(conn, queue, start), find_tick(conn, queue, end)
    if to_tick < from_tick:
        raise ArgumentError(
            f'the range of queue "{queue}" ends before it begins: tick {from_tick} to tick {to_tick}',
            hint="Give the earlier place as from.",
        )
    return from_tick, to_tick


def ticks(
    conn: Connection, queue: str, from_tick: TickId, to_tick: TickId | None = None, most: int | None = None
) -> list[Tick]:
    """Return `from_tick` and the ticks that follow, up to `to_tick`, at most so many.

    ExpiredError says that not all of their events are held.
    """
    with translated():
        rows = conn.execute(
            'select t.tick_id, t.prev_tick, t."time", t.high, t."open", t.total'
            " from cascade.range_ticks(%s, %s, %s, %s) as t order by t.tick_id",
            (queue, from_tick, to_tick, most),
        ).fetchall()
    return [Tick(*row) for row in rows]  # type: ignore[arg-type]


def query(conn: Connection, queue: str, found: Range) -> str:
    """Return the query for the events of a range; ExpiredError when they are no longer held whole.

    Asked again after the rows were read, it proves that all of them were there.
    """
    with translated():
        row = conn.execute("select cascade.range_query(%s, %s, %s)", (queue, found.from_tick, found.to_tick)).fetchone()
    assert row is not None
    return str(row[0])


def split(found: Sequence[Tick], parts: int) -> list[Range]:
    """Cut consecutive ticks into at most so many ranges with about as many events each.

    Nothing is lost between them: each begins at the tick with which the one before it ends.  A tick is never cut.
    Ranges without events are left out.
    """
    if len(found) < 2:
        return []
    totals = [tick.total for tick in found]
    first, events = totals[0], totals[-1] - totals[0]
    cuts = {0, len(found) - 1}
    for part in range(1, parts):
        # The tick with which this part comes nearest to its share.
        at = bisect.bisect_left(totals, first + events * part / parts)
        if at > 0 and totals[at] - (first + events * part / parts) > (first + events * part / parts) - totals[at - 1]:
            at -= 1
        cuts.add(at)
    return [
        Range(found[a].tick_id, found[b].tick_id, totals[b] - totals[a])
        for a, b in pairwise(sorted(cuts))
        if totals[b] > totals[a]
    ]


@contextmanager
def hold(conn: Connection, queue: str, at: TickId) -> Iterator[str]:
    """Have retention wait at a tick while the block runs; yields the name of the consumer that stands there.

    A program that is killed leaves the consumer behind, as `spark-hold-...`: `cascade consumer drop` removes it.
    """
    name = f"spark-hold-{uuid.uuid4().hex[:12]}"
    subscribe(conn, queue, name, str(at))
    try:
        yield name
    finally:
        with translated():
            conn.execute("select cascade.unsubscribe(%s, %s)", (queue, name))


def subscribe(conn: Connection, queue: str, consumer: str, at: str) -> TickId:
    """Register a consumer, or find it registered, and return where it stands."""
    return TickId(_value(conn, "select cascade.subscribe(%s, %s, %s)", queue, consumer, at))


def seek(conn: Connection, queue: str, consumer: str, at: TickId) -> None:
    """Put a consumer on a tick."""
    _value(conn, "select cascade.seek(%s, %s, %s)", queue, consumer, str(at))


def _value(conn: Connection, statement: str, *arguments: str) -> int:
    with translated():
        row = conn.execute(statement.encode(), arguments).fetchone()
    assert row is not None and isinstance(row[0], int)
    return row[0]
