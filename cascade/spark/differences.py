"""What carriers of one log can differ in, found from their digests; values and pure functions.

Which carrier is right is decided tick by tick: first by what the log itself says (the next tick names the one
before it, and a tick counts its events), then by how many agree, then by who is nearest to the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

#: Digests are sums of 64 bits.
SPAN = 2**64
COLUMNS = ("id", "time", "txid", "type", "key", "payload", "headers", "origin", "origin_id")
TICK_COLUMNS = ("prev_tick", "time", "low", "high", "open", "event_seq", "total", "term_uid", "chain")


class Kind(StrEnum):
    """How one carrier differs from what the others have."""

    MISSING = "missing"
    EXTRA = "extra"
    CHANGED = "changed"
    MOVED = "in another tick"
    TICK_MISSING = "tick missing"
    TICK_EXTRA = "tick extra"
    TICK_CHANGED = "tick changed"

    @property
    def is_tick(self) -> bool:
        """Whether it is about a tick, not an event."""
        return self in (Kind.TICK_MISSING, Kind.TICK_EXTRA, Kind.TICK_CHANGED)


@dataclass(frozen=True, slots=True)
class TickDigest:
    """A tick as one carrier has it; `next_prev` is what the tick after it names as the one before."""

    events: int
    is_whole: bool
    digest: int
    tick_digest: int
    time: datetime | None = None
    next_prev: int | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Return what equal ticks have in common."""
        return self.events, self.digest, self.tick_digest


#: A tick as all carriers have it that should: None where it is not there.
Tick = Mapping[str, TickDigest | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One event or tick in which a carrier differs.

    `wanted` and `found` are the beginnings of the columns that differ; of a missing or extra event, of all that
    are not null.
    """

    node: str
    kind: Kind
    tick_id: int
    #: The carrier it was compared with.
    reference: str
    id: int | None = None
    time: datetime | None = None
    columns: tuple[str, ...] = ()
    wanted: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    found: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    #: The tick in which the event is here.
    found_tick: int | None = None
    #: How many times an extra event is here that is right once, or how many events of a tick are in another one.
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive ticks in which the same carriers differ from the same one."""

    from_tick: int
    to_tick: int
    reference: str
    bad: tuple[str, ...]
    ticks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """An event as one carrier has it: per column a hash of the whole value, and its beginning."""

    tick_id: int
    digest: int
    values: Mapping[str, tuple[str, str] | None]

    def shown(self, columns: Iterable[str]) -> dict[str, str | None]:
        """Return the beginnings of some columns."""
        return {name: value[1] if (value := self.values[name]) is not None else None for name in columns}


def reference_of(tick_id: int, tick: Tick) -> str:
    """Return the carrier whose tick is the right one; `tick` has those nearest to the root first."""
    groups: dict[tuple[int, int, int] | None, list[str]] = {}
    for node, found in tick.items():
        groups.setdefault(found.key if found else None, []).append(node)
    # Whether the ticks after it know of it, at any carrier that has both.
    named = {found.next_prev == tick_id for found in tick.values() if found and found.next_prev is not None}
    order = list(tick)

    def rank(key: tuple[int, int, int] | None) -> tuple[int, bool, int, int]:
        nodes = groups[key]
        present = [found for node in nodes if (found := tick[node]) is not None]
        known = 0 if key is None or not named else (1 if True in named else -1)
        return known, all(found.is_whole for found in present), len(nodes), -order.index(nodes[0])

    return groups[max(groups, key=rank)][0]


def differs(tick: Tick) -> bool:
    """Whether the carriers have a tick in more than one way."""
    return len({found.key if found else None for found in tick.values()}) > 1


def stretches(ticks: Mapping[int, Tick], follows: Mapping[int, int]) -> Iterator[Stretch]:
    """Put ticks that differ together, as far as one follows the other and the same carriers differ.

    `follows` says for a tick which one comes after it, where that differs too.
    """
    run: list[int] = []
    key: tuple[str, tuple[str, ...]] | None = None
    for tick_id in sorted(ticks):
        reference = reference_of(tick_id, ticks[tick_id])
        right = ticks[tick_id][reference]
        bad = tuple(
            node
            for node, found in ticks[tick_id].items()
            if (found.key if found else None) != (right.key if right else None)
        )
        if run and (key != (reference, bad) or follows.get(run[-1]) != tick_id):
            assert key is not None
            yield _stretch(run, *key)
            run = []
        run.append(tick_id)
        key = reference, bad
    if run:
        assert key is not None
        yield _stretch(run, *key)


def _stretch(run: Sequence[int], reference: str, bad: tuple[str, ...]) -> Stretch:
    return Stretch(from_tick=run[0] - 1, to_tick=run[-1], reference=reference, bad=bad, ticks=tuple(run))


def sum_of(ticks: Iterable[TickDigest | None]) -> int:
    """Return the digest of a stretch, as cascade.digest_spans() has it."""
    total = sum(found.digest + found.tick_digest for found in ticks if found is not None)
    return (total + SPAN // 2) % SPAN - SPAN // 2


def compare_ticks(
    node: str,
    reference: str,
    wanted: Mapping[int, Mapping[str, Any]],
    found: Mapping[int, Mapping[str, Any]],
    times: Mapping[int, datetime | None],
    elsewhere: Mapping[int, tuple[int, int]],
) -> Iterator[Difference]:
    """Compare the ticks of a stretch; `elsewhere`: in which other tick the events of one are here, and how many."""
    for tick_id in sorted(wanted.keys() | found.keys()):
        mine, theirs = found.get(tick_id), wanted.get(tick_id)
        where, count = elsewhere.get(tick_id, (None, 0))
        about: dict[str, Any] = {"node": node, "reference": reference, "tick_id": tick_id, "time": times.get(tick_id)}
        if mine is None:
            yield Difference(**about, kind=Kind.TICK_MISSING, found_tick=where, count=count)
        elif theirs is None:
            yield Difference(**about, kind=Kind.TICK_EXTRA, found_tick=where, count=count)
        elif columns := tuple(name for name in TICK_COLUMNS if mine[name] != theirs[name]):
            yield Difference(
                **about,
                kind=Kind.TICK_CHANGED,
                columns=columns,
                wanted={name: str(theirs[name]) for name in columns},
                found={name: str(mine[name]) for name in columns},
                found_tick=where,
                count=count,
            )


def compare_rows(
    node: str,
    reference: str,
    id: int,
    wanted: Sequence[Row],
    found: Sequence[Row],
    times: Mapping[int, datetime | None],
) -> Iterator[Difference]:
    """Compare the events of one id that only the reference has, or only the node, each as often as it has it."""
    about: dict[str, Any] = {"node": node, "reference": reference, "id": id}
    pairs = list(zip(wanted, found, strict=False))
    for theirs, mine in pairs:
        columns = tuple(name for name in COLUMNS if mine.values[name] != theirs.values[name])
        is_moved = "txid" in columns and mine.tick_id != theirs.tick_id
        yield Difference(
            **about,
            kind=Kind.MOVED if is_moved else Kind.CHANGED,
            tick_id=theirs.tick_id,
            time=times.get(theirs.tick_id),
            columns=columns,
            wanted=theirs.shown(columns),
            found=mine.shown(columns),
            found_tick=mine.tick_id if is_moved else None,
        )
    for kind, rows in ((Kind.MISSING, wanted[len(pairs) :]), (Kind.EXTRA, found[len(pairs) :])):
        for row in rows:
            shown = row.shown(name for name in COLUMNS if row.values[name] is not None)
            sides: dict[str, Any] = {"wanted" if kind is Kind.MISSING else "found": shown}
            yield Difference(**about, **sides, kind=kind, tick_id=row.tick_id, time=times.get(row.tick_id))
