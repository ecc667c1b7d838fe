"""A merge-leaf that only tracks: it moves by the log of the combined set, and holds for it what the part has."""

from __future__ import annotations

import pytest

from tests.fixtures.expect import refused
from tests.fixtures.failover import fail_over
from tests.fixtures.merging import Leaf, Merging, complete, is_prefix, marks, marks_at, numbers
from tests.fixtures.nodes import Node, same


def moved(merging: Merging, turns: int = 3) -> tuple[Node, Leaf]:
    """Merge some ranges at s1, a tick of s after each, none of them copied; returns s2 and its tracker."""
    merging.build("a", carriers=2)
    for number in range(turns):
        merging.root("a").insert(number)
        merging.merge("a")
        merging["s1"].tick()
    return merging["s2"], merging.tracker("a")


def away(root: Node, *leaves: Leaf) -> None:
    """Let a part rotate as far as its members allow, these telling that they have everything."""
    for _ in range(8):
        root.tick()
        for leaf in leaves:
            leaf.merge()
            leaf.tell()
        root.advance()
        root.rotate(root.set)


def test_a_tracker_moves_by_the_marks_that_its_copy_has(merging: Merging) -> None:
    s2, tracker = moved(merging)
    stood = [tracker.position()]
    while s2.copy(max_ticks=1):
        assert marks_at(s2) == {"a": tracker.position()}
        stood.append(tracker.position())
    assert len(set(stood)) == 4, "from mark to mark, with each tick of s"
    assert tracker.position() == merging.tracker("a", "s1").position()
    is_prefix(s2, merging.root("a"))


def test_a_tracker_copies_nothing_and_does_not_run_ahead(merging: Merging) -> None:
    s2, tracker = moved(merging)
    before = tracker.position()
    assert tracker.ask() == "on path"
    with refused("QC401"):
        tracker.catch_up()
    assert tracker.position() == before < merging.root("a").position()
    s2.catch_up()
    query = f"select count(*) from cascade_internal.event_{tracker.queue_id}_0"
    assert tracker.value(query) == 0 and numbers(tracker) == []
    merging.root("a").insert(9)
    merging.merge("a")
    assert tracker.position() < merging.tracker("a", "s1").position(), "no tick of s has it yet"


def test_a_tracker_learns_what_its_provider_says(merging: Merging) -> None:
    """No log of the part reaches it: members and terms come with the answer."""
    merging.build("a", carriers=2)
    a1, tracker = merging.root("a"), merging.tracker("a")
    a1.value("select cascade.add_member('a', 'a2', 'branch')")
    assert tracker.ask() == "on path"
    assert tracker.member("a2", "state") == "live"
    assert (tracker.state("answer"), tracker.describe()["state"]) == ("on path", "running")
    before = tracker.state("generation")
    fail_over(merging.add("a2", a1))
    tracker.switch(merging["a2"])
    tracker.ask()
    assert len(tracker.describe()["terms"]) == 2
    assert tracker.state("generation") > before
    assert tracker.into()["root"] == "a2", "to whom it tells"
    a1.value("select cascade.drop_member('a', 's2')")
    tracker.switch(a1)
    assert tracker.ask() == "dropped"


def test_the_part_keeps_what_a_promoted_tracker_would_need(merging: Merging) -> None:
    merging.build("a", carriers=2)
    a1, s2, tracker = merging.root("a"), merging["s2"], merging.tracker("a")
    for number in range(3):
        a1.insert(number)
        merging.merge("a")
    merging.tell()
    away(a1, merging.tracker("a", "s1"))
    assert a1.advance().held_by == "s2"
    assert a1.member("s2") == tracker.position() < a1.watermark() + 1
    assert numbers(a1) == [0, 1, 2]
    fail_over(s2)
    tracker.merge()
    s2.tick()
    assert complete(s2, a1) == 3


def test_without_the_tracker_the_part_would_let_it_go(merging: Merging) -> None:
    """The other side: a member that is marked dead holds nothing."""
    merging.build("a", carriers=2)
    a1, s2, tracker = merging.root("a"), merging["s2"], merging.tracker("a")
    for number in range(3):
        a1.insert(number)
        merging.merge("a")
    a1.value("select cascade.mark_dead('a', 's2')")
    away(a1, merging.tracker("a", "s1"))
    assert numbers(a1) == []
    a1.value("select cascade.add_member('a', 's2', 'merge-leaf', '{}', true, 's')")
    fail_over(s2)
    assert tracker.join()["answer"] == "expired"


def test_a_tracker_that_was_expired_goes_on_once_the_log_has_moved_it(merging: Merging) -> None:
    """The answer was about where it stood; what the part has let go is in s by now, and needed no more."""
    merging.build("a", carriers=2)
    a1, s2, tracker = merging.root("a"), merging["s2"], merging.tracker("a")
    for number in range(3):
        a1.insert(number)
        merging.merge("a")
    a1.value("select cascade.mark_dead('a', 's2')")
    away(a1, merging.tracker("a", "s1"))
    a1.value("select cascade.add_member('a', 's2', 'merge-leaf', '{}', true, 's')")
    assert tracker.ask() == "expired" == tracker.state("answer")
    merging.copy()
    assert tracker.state("answer") is None
    assert tracker.ask() == "on path"
    fail_over(s2)
    a1.insert(3)
    merging.merge("a", "s2")
    assert numbers(s2) == [0, 1, 2, 3]


def test_a_part_that_has_let_go_is_merged_from_a_carrier_that_has_not(merging: Merging) -> None:
    """Nobody held the part for s; the merge-leaf stops with a name for it, skips nothing, and goes on elsewhere."""
    merging.build("a", carriers=2)
    a1, leaf = merging.root("a"), merging.tracker("a", "s1")
    a2 = merging.add("a2", a1)
    merging.flow()
    for name in ("s1", "s2"):
        a1.value("select cascade.mark_dead('a', %s)", name)
    for number in range(6):
        a1.insert(number)
        a1.tick()
        a2.catch_up()
        a2.tell()
        a1.advance()
        a1.rotate("a")
    assert 0 not in numbers(a1) and 0 in numbers(a2)
    for name in ("s1", "s2"):
        a1.value("select cascade.add_member('a', %s, 'merge-leaf', '{}', true, 's')", name)
    a1.tick()
    a2.catch_up()
    before = leaf.position()
    assert leaf.join()["answer"] == "expired" == leaf.state("answer")
    with refused("QC709"):
        leaf.catch_up()
    assert leaf.position() == before
    leaf.switch(a2)
    leaf.merge()
    merging["s1"].tick()
    assert numbers(merging["s1"]) == [*range(6)]


def test_the_part_lets_go_once_the_tracker_has_told(merging: Merging) -> None:
    merging.build("a", carriers=2)
    a1 = merging.root("a")
    for number in range(3):
        a1.insert(number)
    merging.flow()
    assert complete(merging["s2"], a1) == 3
    for _ in range(8):
        merging.tidy()
    assert numbers(a1) == []


def test_a_tracker_tells_where_it_stands(merging: Merging) -> None:
    s2, tracker = moved(merging)
    rows = tracker.report()
    assert [(row["node"], row["tick_id"]) for row in rows] == [("s2", tracker.position())]
    merging.tell()
    a1 = merging.root("a")
    assert a1.member("s2") == tracker.position() < a1.member("s1") == merging.tracker("a", "s1").position()
    s2.catch_up()
    tracker.tell()
    assert a1.member("s2") == a1.member("s1")


# Marks that have left the log


def rotated(merging: Merging) -> Node:
    """Merge parts a and b, then only a until the marks of b have left every log; returns the root of b."""
    merging.build("a", "b", carriers=3)
    a1, b1, s1 = merging.root("a"), merging.root("b"), merging["s1"]
    b1.insert("b")
    merging.flow()
    last = marks(s1, "b")[-1]["tick"]["tick_id"]
    for number in range(12):
        a1.insert(number)
        merging.merge("a")
        merging.copy()
        for leaf in merging.leaves():
            leaf.tell()
        for carrier in (merging["s3"], merging["s2"]):
            carrier.tell()
        s1.advance()
        for carrier in (s1, merging["s2"], merging["s3"]):
            carrier.rotate("s")
    assert [marks(carrier, "b") for carrier in (s1, merging["s2"], merging["s3"])] == [[], [], []]
    assert {marks_at(merging[name])["b"] for name in ("s1", "s2", "s3")} == {last}
    return b1


@pytest.mark.parametrize("provider", ["s1", "s2", "s3"])
def test_a_late_joiner_knows_the_positions_although_their_marks_are_gone(merging: Merging, provider: str) -> None:
    """s3 has no merge-leaf: what it knows of b is what it kept when it switched generations."""
    b1 = rotated(merging)
    s4 = merging.add("s4", merging[provider])
    s4.catch_up()
    assert marks_at(s4) == marks_at(merging["s1"])
    merging.merge_at(s4, "a", "b")
    assert merging.tracker("b", "s4").position() == merging.tracker("b", "s1").position()
    b1.insert("later")
    fail_over(s4)
    for part in ("a", "b"):
        merging.root(part).tick()
        merging.tracker(part, "s4").merge()
    s4.tick()
    assert numbers(s4, "b") == ["later"], "the one before is merged, and gone"
    found = numbers(s4, "a")
    assert found and found == list(range(12))[-len(found) :]


def test_marks_at_an_old_tick_are_those_of_that_time(merging: Merging) -> None:
    """A node that is added begins with the first tick held, not with the newest."""
    merging.build("a", carriers=2)
    a1, s1 = merging.root("a"), merging["s1"]
    for number in range(4):
        a1.insert(number)
        merging.merge("a")
        merging.copy()
        if number == 1:
            s1.rotate("s")
            s1.rotate("s")
    s3 = merging.add("s3", merging["s2"])
    first = s3.position()
    assert first < merging["s2"].position()
    assert marks_at(s3) == marks_at(merging["s2"], first) == marks_at(s1, first) != marks_at(s1)
    assert is_prefix(s3, a1) == 1
    s3.catch_up()
    assert is_prefix(s3, a1) > 4 and same(s3, s1)


def test_a_branch_finds_the_newest_marks_without_reading_the_others(merging: Merging) -> None:
    """It has no merge-leaf to ask, and is asked at every switch of generations and by every status."""
    merging.build("a", carriers=3)
    for number in range(40):
        merging.root("a").insert(number)
        merging.merge("a")
    merging.copy()
    s3 = merging["s3"]
    assert len(marks(s3, "a")) > 40
    read = "select sum(idx_tup_fetch) + sum(seq_tup_read) from pg_stat_xact_user_tables where relname like 'event\\_%%'"
    with s3.main.transaction():
        before = s3.value(read)
        assert s3.value("select tick_id from cascade.parts") == merging.root("a").position()
        assert s3.value(read) - before < 10
