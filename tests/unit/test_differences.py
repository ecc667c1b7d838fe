"""Which carrier is right, which ticks belong together, and what two versions of an event differ in."""

from __future__ import annotations

import pytest

from cascade.spark.differences import (
    COLUMNS,
    Kind,
    Row,
    Tick,
    TickDigest,
    compare_rows,
    differs,
    reference_of,
    stretches,
    sum_of,
)


def tick(events: int = 1, *, digest: int = 7, is_whole: bool = True, next_prev: int | None = None) -> TickDigest:
    return TickDigest(events=events, is_whole=is_whole, digest=digest, tick_digest=9, next_prev=next_prev)


GOOD, BAD = tick(), tick(digest=8)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ({"s1": GOOD, "s2": BAD, "s3": BAD}, "s2"),  # the many
        ({"s1": GOOD, "s2": BAD}, "s1"),  # the one nearest to the root
        ({"s1": tick(0, is_whole=False), "s2": GOOD}, "s2"),  # the one whose sums are right
        ({"s1": tick(0, is_whole=False), "s2": tick(0, is_whole=False), "s3": GOOD}, "s3"),
        ({"s1": tick(next_prev=5), "s2": None, "s3": None}, "s1"),  # the next tick says that there was one
        ({"s1": tick(next_prev=4), "s2": None}, "s2"),  # and that there was none
        ({"s1": GOOD, "s2": None}, "s1"),
        ({"s1": None, "s2": GOOD}, "s1"),
    ],
)
def test_the_right_one_is_found(found: Tick, right: str) -> None:
    assert reference_of(5, found) == right
    assert differs(found) and not differs({"s1": GOOD, "s2": GOOD})


def test_ticks_that_follow_one_another_and_differ_alike_are_one_stretch() -> None:
    alike: Tick = {"s1": GOOD, "s2": GOOD, "s3": BAD}
    ticks = {
        4: alike,
        5: alike,
        7: alike,
        8: {"s1": GOOD, "s2": BAD, "s3": GOOD},
        9: {"s1": GOOD, "s2": None, "s3": None},
    }
    found = [
        (one.from_tick, one.to_tick, one.ticks, one.reference, one.bad) for one in stretches(ticks, {4: 5, 7: 8, 8: 9})
    ]
    assert found == [
        (3, 5, (4, 5), "s1", ("s3",)),
        (6, 7, (7,), "s1", ("s3",)),
        (7, 8, (8,), "s1", ("s2",)),
        (8, 9, (9,), "s2", ("s1",)),
    ]
    assert list(stretches({}, {})) == []


def test_digests_are_added_as_the_database_does() -> None:
    assert sum_of([None]) == 0
    assert sum_of([tick(digest=2**63 - 10)]) == 2**63 - 1
    assert sum_of([tick(digest=2**63 - 9)]) == -(2**63)


def row(digest: int = 1, tick_id: int = 5, **values: str | None) -> Row:
    found = {name: (value, value) for name, value in {"id": "3", "txid": "8", **values}.items() if value is not None}
    return Row(tick_id, digest, {name: found.get(name) for name in COLUMNS})


def test_versions_of_an_event_are_paired_and_the_rest_is_missing_or_extra() -> None:
    wanted = [row(payload="1"), row(payload="2", txid="8"), row(key="k")]
    found = [row(payload="x"), row(payload="2", txid="9", tick_id=6)]
    first, second, third = compare_rows("s2", "s1", 3, wanted, found, {})
    assert (first.kind, first.columns, first.wanted, first.found) == (
        Kind.CHANGED, ("payload",), {"payload": "1"}, {"payload": "x"},
    )  # fmt: skip
    assert (second.kind, second.columns, second.tick_id, second.found_tick) == (Kind.MOVED, ("txid",), 5, 6)
    assert (third.kind, third.wanted, third.found) == (Kind.MISSING, {"id": "3", "txid": "8", "key": "k"}, {})
    [extra] = compare_rows("s2", "s1", 3, [], [row(type="t")], {})
    assert (extra.kind, extra.wanted, extra.found["type"]) == (Kind.EXTRA, {}, "t")
