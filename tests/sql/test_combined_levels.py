"""A combined set is a part of another: an event keeps its first origin, whatever is lost in between."""

from __future__ import annotations

import pytest

from tests.fixtures.failover import fail_over
from tests.fixtures.merging import Merging, held, marks, merged, numbers
from tests.fixtures.nodes import Node
from tests.sql.test_combined_failover import come_back
from tests.sql.test_combined_fork import ids, once, phantoms, turn_to

WAYS = pytest.mark.parametrize("small_bytes", [0, 128 * 1024], ids=["by copy", "inline"])


def tower(merging: Merging) -> tuple[Node, Node, Node, Node]:
    """Merge a and b into s at s1 (and s2), s and e into t at t1 (and t2); returns a1, s1, s2 and t1."""
    merging.build("a", "b", carriers=2)
    merging.create("e")
    t1 = merging.create("t", combined=True)
    merging.merge_at(t1, "s", "e")
    t2 = merging.add("t2", t1)
    merging.merge_at(t2, "s", "e")
    merging.flow()
    return merging.root("a"), merging["s1"], merging["s2"], t1


@WAYS
def test_the_innermost_origin_is_kept_and_no_mark_of_a_part(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    a1, s1, _s2, t1 = tower(merging)
    a1.insert(1, 2)
    merging.root("b").insert(3)
    merging.root("e").insert(4)
    a1.main.execute("insert into queue.a (payload, origin, origin_id) values ('5', 'elsewhere', 17)")
    merging.flow()
    for origin in ("a", "b", "e"):
        assert merged(t1, origin) == [event for event in held(merging.root(origin)) if event[0] == origin] != []
    assert ids(merged(t1, "elsewhere")) == [("elsewhere", 17)]
    assert merged(t1, "s") == [], "s itself has written nothing"
    order = [event[:2] for event in held(s1)]
    assert [event[:2] for event in held(t1) if event[0] != "e"] == order, "the order of s is kept"
    assert {mark["part"] for mark in marks(t1, "s") + marks(t1, "e")} == {"s", "e"}
    assert marks(t1, "a") == [], "control events of a part are never merged"
    assert merging.tracker("e", "t2").position() == merging.root("e").position()


@WAYS
def test_what_the_middle_set_merges_again_is_not_merged_twice(merging: Merging, small_bytes: int) -> None:
    """t has what only s1 had; s2 takes it from a once more, under other ids of s."""
    merging.small_bytes = small_bytes
    a1, s1, s2, t1 = tower(merging)
    a1.insert("first")
    merging.flow()
    a1.insert("tail")
    merging.merge("a")
    s1.tick()
    leaf = merging.tracker("s", "t1")
    leaf.merge()
    assert numbers(t1) == ["first", "tail"]
    fail_over(s2)
    done = turn_to(leaf, s2)
    assert done is not None and done["events"] == 1
    (fork,) = marks(t1, "s", "fork")
    tail = held(a1)[-1][1]
    assert fork["merged"] == [["a", tail, tail]] and fork["is_whole"]
    a1.insert("after")
    merging.merge("a", "s2")
    s2.tick()
    leaf.merge()
    t1.tick()
    assert numbers(s2) == ["first", "tail", "after"] == numbers(t1)
    assert phantoms(t1, "s") == [("a", tail)]
    come_back(merging, s1, s2)
    merging["t2"].catch_up()
    once(t1)
    assert numbers(merging["t2"]) == numbers(t1)


def test_both_levels_lose_their_roots(merging: Merging) -> None:
    """t2 has less than t1 had, s2 less than s1: each goes on where its own log ends."""
    a1, s1, s2, t1 = tower(merging)
    t2 = merging["t2"]
    a1.insert("first")
    merging.flow()
    a1.insert("tail of s")
    merging.merge("a")
    s1.tick()
    merging.tracker("s", "t1").merge()
    t1.tick()
    fail_over(s2)
    fail_over(t2)
    turn_to(merging.tracker("s", "t2"), s2)
    a1.insert("after")
    merging.merge("a", "s2")
    s2.tick()
    merging.tracker("s", "t2").merge()
    t2.tick()
    assert numbers(t2) == ["first", "tail of s", "after"]
    come_back(merging, t1, t2)
    once(t1)
    assert numbers(t1) == numbers(t2)
