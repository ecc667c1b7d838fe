"""What was rotated away is still compared, and what must hold at any time is noticed when it does not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.fixtures.archive import Archive, Entry, check_identical
from tests.fixtures.cascade import Log
from tests.fixtures.history import History
from tests.fixtures.operator import Operator, Promotion, Terms
from tests.fixtures.watcher import check_retention

Row = tuple[Any, ...]


def event(id: int, text: str = "n") -> Row:
    return (id, 90 + id, "now", text, None, "", None, None, None)


def entry(tick: int, prev: int | None, *events: Row) -> Entry:
    return Entry((tick, prev, "now", 0, 0, [], 0, 0, "t", "chain"), list(events))


def archive(node: str, *entries: Entry, start: int = 1) -> Archive:
    return Archive(node, {found.tick[0]: found for found in entries}, start)


FULL = (entry(2, 1, event(1)), entry(3, 2), entry(4, 3, event(2), event(3)))


def test_archives_that_agree_pass_and_what_one_began_with_later_is_not_missed() -> None:
    assert check_identical([archive("s1", *FULL), archive("s2", *FULL)], 4) == 3
    assert check_identical([archive("s1", *FULL), archive("s2", *FULL[1:], start=2)], 4) == 2


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ((*FULL[:2], entry(4, 3, event(2))), "differ"),
        ((*FULL[:2], entry(4, 3, event(2), event(3, "x"))), "differ"),
        ((FULL[0], FULL[1], FULL[2], entry(9, 4)), None),
        ((entry(2, 1, event(7)), *FULL[1:]), "differ"),
    ],
    ids=["an event less", "another event", "a tick of its own", "a tick that was lost again"],
)
def test_what_two_carriers_had_otherwise_is_noticed(other: tuple[Entry, ...], says: str | None) -> None:
    archives = [archive("s1", *FULL), archive("s2", *other)]
    if says is None:
        assert check_identical(archives, 4) == 3
        return
    with pytest.raises(AssertionError, match=says):
        check_identical(archives, 4)


def test_a_carrier_that_skipped_a_tick_is_noticed() -> None:
    with pytest.raises(AssertionError, match="s2 has not had tick 3"):
        check_identical([archive("s1", *FULL), archive("s2", FULL[0], FULL[2])], 4)


def test_a_tick_that_changes_is_noticed() -> None:
    made = archive("s1", *FULL)
    made.keep(4, FULL[2])
    with pytest.raises(AssertionError, match="tick 4 was"):
        made.keep(4, entry(4, 3))


def test_a_log_that_is_not_what_it_was_is_noticed() -> None:
    made = archive("s1", *FULL)
    ticks = [found.tick for found in FULL]
    made.check_log(Log(ticks, {4: [event(2), event(3)]}, []))
    with pytest.raises(AssertionError, match="not what it was"):
        made.check_log(Log(ticks, {4: [event(2)]}, []))
    with pytest.raises(AssertionError, match="no consumer saw"):
        made.check_log(Log([*ticks, entry(5, 4).tick], {4: [event(2), event(3)]}, []))


TERMS = Terms(
    a={"uid": "a", "number": "0", "node": "s1", "parent_uid": None, "voided_by": None, "fork": None},
    b={
        "uid": "b",
        "number": "102",
        "node": "s2",
        "parent_uid": "a",
        "voided_by": None,
        "fork": {"tick_id": 10, "chain": "x", "term_uid": "a"},
    },
)


def view(tick: int, term: str = "b", **consumers: int) -> dict[str, Any]:
    found = [{"consumer": name, "tick_id": at} for name, at in consumers.items()]
    return {"tick": {"tick_id": tick, "term_uid": term, "chain": "y"}, "consumers": found}


def test_a_carrier_may_remove_what_everybody_is_past_and_nothing_else() -> None:
    check_retention({"s1": 20}, {"s1": view(30), "s4": view(20)}, TERMS)
    for views, who in (
        ({"s1": view(30), "s4": view(19)}, "s4"),
        ({"s2": view(30, audit=19)}, "s2"),
        # Beyond the fork it goes back to, whatever it has come to.
        ({"s3": view(25, "a")}, "s3"),
    ):
        with pytest.raises(AssertionError, match=f"{who} needs"):
            check_retention({"s1": 20}, views, TERMS)


def test_a_fork_below_somebody_who_could_be_reached_is_noticed() -> None:
    operator = Operator(cast(Any, None))
    history = History(cast(Any, None), operator)
    for before, after, is_right in (({"s2": 10, "s3": 9}, {}, True), ({"s2": 11}, {}, False), ({}, {"s3": 11}, False)):
        made = Promotion(uid="b", dead="s1", new="s2", fork=10, without=(), before=before, after=after)
        operator.promotions = [made]
        if is_right:
            history.check_forks()
            continue
        with pytest.raises(AssertionError):
            history.check_forks()
