"""A combined root is lost or hands over: the next one merges on where its log ends, and the old one comes back."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, demote, fail_over, mark_duplicates, report, resurrect, stand_down
from tests.fixtures.merging import Merging, complete, is_prefix, marks, marks_at, numbers
from tests.fixtures.nodes import Node, same


def tail(merging: Merging, *parts: str) -> tuple[Node, Node, Node]:
    """Build the picture; s1 alone has merged what was inserted last, `tail` of each part, ticked and told."""
    merging.build(*parts)
    for part in parts:
        merging.root(part).insert("first")
    merging.flow()
    for part in parts:
        merging.root(part).insert("tail")
        merging.merge(part)
        merging["s1"].tick()
        merging.tracker(part, "s1").tell()
    return merging["s1"], merging["s2"], merging["s3"]


def follow(node: Node, provider: Node) -> None:
    """Have a branch copy from another carrier."""
    node.switch(provider)
    assert node.join()["answer"] == "on path"
    node.catch_up()


def come_back(merging: Merging, old: Node, new: Node) -> None:
    """Have a lost combined-root hear of the new one, set its tail aside, and copy from it."""
    assert stand_down(old, new)["cause"] == "over"
    resurrect(old, new)
    assert old.join()["answer"] == "on path"
    old.catch_up()
    for leaf in merging.leaves(old):
        leaf.ask()


def aside(node: Node) -> list[tuple[Any, str]]:
    """What was set aside of a combined set at a node, control events left out."""
    query = "select payload, state from cascade.read_quarantine('s') where state <> 'control' order by id"
    return [(payload, state) for payload, state in node.rows(query.replace("payload,", "payload::json,"))]


def standing(node: Node, *parts: str) -> dict[str, int]:
    """Where the parts stand by the merge-leaves beside a carrier."""
    return {part: node.value("select tick_id from cascade.nodes where set = %s", part) for part in parts}


# Promotion


def test_a_promoted_tracker_merges_on_where_its_log_ends(merging: Merging) -> None:
    s1, s2, s3 = tail(merging, "a", "b")
    a1, b1 = merging.root("a"), merging.root("b")
    where = marks_at(s2)
    assert standing(s2, "a", "b") == where != standing(s1, "a", "b")
    fail_over(s2, s3)
    assert standing(s2, "a", "b") == where == marks_at(s2)
    for part in ("a", "b"):
        opening = marks(s2, part)[-1]
        assert opening["tick"] == opening["prev"] and opening["tick"]["tick_id"] == where[part]
        assert merging.tracker(part).into()["fork"] == opening["tick"]
    assert numbers(s2) == ["first", "first"]
    merging.merge("b")
    merging.tracker("b").merge()
    merging.merge("a", "s2")
    s2.tick()
    follow(s3, s2)
    for carrier in (s2, s3):
        assert complete(carrier, a1, b1) == 4
        is_prefix(carrier, a1, b1)
    assert same(s2, s3)


def test_the_opening_tick_says_where_the_parts_stand(merging: Merging) -> None:
    """A new root that is lost at once: whoever has its opening tick knows."""
    _s1, s2, s3 = tail(merging, "a")
    opening = fail_over(s2, s3)["tick_id"]
    follow(s3, s2)
    assert s3.position() == opening
    assert [mark["tick"]["tick_id"] for mark in marks(s3, "a")][-1] == marks_at(s3)["a"] == marks_at(s2)["a"]


def test_a_range_fetched_before_a_change_of_the_root_does_not_land(merging: Merging) -> None:
    """There and back again: part and position are the same, the term is another."""
    merging.build("a", carriers=2)
    s1, s2, leaf = merging["s1"], merging["s2"], merging.tracker("a", "s1")
    merging.root("a").insert(1)
    merging.root("a").tick()
    fetched = leaf.fetch()
    assert fetched is not None
    for old, new in ((s1, s2), (s2, s1)):
        Switchover(old, new).run()
        old.catch_up()
    assert (leaf.position(), leaf.into()["copies"]) == (fetched.after[0], True)
    with refused("QC209", "has moved on"):
        leaf.store(fetched)
    leaf.merge()
    s1.tick()
    assert complete(s1, merging.root("a")) == 1


def test_a_promotion_forgets_what_the_part_answered_a_tracker(merging: Merging) -> None:
    """Both roots are lost, and nobody wrote of the part's fork: the merge-leaf must look, and not rest as diverged."""
    merging.build("a", carriers=2)
    a1, s1, s2 = merging.root("a"), merging["s1"], merging["s2"]
    a2, tracker = merging.add("a2", a1), merging.tracker("a")
    tracker.ask()
    a1.insert("lost")
    a1.tick()
    merging.tracker("a", "s1").merge()
    s1.tick()
    s2.catch_up()
    fail_over(a2)
    tracker.switch(a2)
    assert tracker.ask() == "diverged", "it waits for what the log of s says"
    assert tracker.ask() == "diverged" == tracker.state("answer")
    fail_over(s2)
    assert tracker.state("answer") is None
    assert tracker.join()["answer"] == "diverged"
    assert tracker.go_back() is not None
    a2.insert("after")
    merging.merge("a", "s2")
    assert numbers(s2) == ["lost", "after"]


@pytest.mark.parametrize("kind", ["switchover", "failover"])
def test_every_event_is_there_once_through_many_changes(merging: Merging, kind: str) -> None:
    merging.build("a", "b", carriers=2)
    s1, s2 = merging["s1"], merging["s2"]
    for number, (old, new) in enumerate([(s1, s2), (s2, s1), (s1, s2)]):
        for part in ("a", "b"):
            merging.root(part).insert(f"{part}{number}")
        merging.merge("a", old.node)
        merging.copy()
        merging.merge("b", old.node)
        old.tick()
        if kind == "switchover":
            Switchover(old, new).run()
        else:
            fail_over(new)
            come_back(merging, old, new)
        merging.merge("a", new.node)
    merging.flow()
    for carrier in (s1, s2):
        assert complete(carrier, merging.root("a"), merging.root("b")) == 6
        is_prefix(carrier, merging.root("a"), merging.root("b"))
    assert same(s1, s2)


# What is told to the parts


def test_other_merge_leaves_are_set_back_before_the_new_root_tells(merging: Merging) -> None:
    """s1 has told of what is lost with it, and s4, which tracks too, of more than s2 has."""
    s1, s2, _s3 = tail(merging, "a")
    a1, tracker = merging.root("a"), merging.tracker("a")
    s4 = merging.add("s4", s1)
    s4.catch_up()
    merging.leaf("a", s4)
    merging.tracker("a", "s4").tell()
    fork = tracker.position()
    assert a1.member("s1") > fork and a1.member("s4") > fork
    fail_over(s2)
    rows = tracker.report()
    merging.merge("a")
    assert tracker.tell(rows=rows) > 0, "what it says by the way"
    assert [a1.member(name) for name in ("s1", "s2", "s4")] == [fork, fork, fork]
    merging.merge("a", "s2")
    tracker.tell()
    assert a1.member("s2") > fork
    assert a1.advance().tick_id <= fork and a1.advance().held_by in ("s1", "s4")
    reigns = "select reign from cascade_internal.member where node = %s"
    assert a1.value(reigns, "s2") == tracker.into()["reign"] > 0
    assert a1.value(reigns, "s1") is None


def test_what_a_former_root_tells_is_not_heard(merging: Merging) -> None:
    s1, s2, _s3 = tail(merging, "a")
    a1, old, new = merging.root("a"), merging.tracker("a", "s1"), merging.tracker("a")
    fail_over(s2)
    new.tell()
    before = a1.member("s1")
    assert old.into()["reign"] == 0, "it has not heard yet"
    with refused("QC209", 'combined set "s" has a later term: s2 copies set "a" in term'):
        old.tell()
    assert a1.value("select cascade.tell('a', 's1', %s)", Jsonb(old.report())) == 0
    assert old.join()["answer"] == "on path"
    assert a1.member("s1") == before, "its place among those that copy counts no more than what it tells"
    stand_down(s1, s2)
    assert old.tell() == 0, "fenced, it has nothing to say"


def test_a_former_root_is_heard_again_once_it_has_come_back(merging: Merging) -> None:
    s1, s2, _s3 = tail(merging, "a")
    a1, old, new = merging.root("a"), merging.tracker("a", "s1"), merging.tracker("a")
    fail_over(s2)
    new.tell()
    new.merge()
    s2.tick()
    assert a1.member("s1") < new.position()
    come_back(merging, s1, s2)
    assert old.into() | {"fork": None, "root": None} == {
        "into": "s", "node": "s1", "is_root": False, "copies": False, "reign": None, "fork": None, "root": None,
    }  # fmt: skip
    old.tell()
    assert a1.member("s1") == old.position() == new.position()
    new.tell()
    assert a1.advance().tick_id == new.position()


def test_the_watermark_of_a_part_does_not_pass_a_lost_root(merging: Merging) -> None:
    """s1 comes back where the fork was, and may be promoted there: what follows must still be held."""
    s1, s2, _s3 = tail(merging, "a")
    a1, new = merging.root("a"), merging.tracker("a")
    fail_over(s2)
    for number in range(8):
        a1.insert(number)
        merging.merge("a", "s2")
        new.tell()
        a1.advance()
        a1.rotate("a")
    assert "tail" in numbers(a1)
    assert stand_down(s1, s2)["cause"] == "over"
    resurrect(s1, s2)
    s1.join()
    s1.copy(max_ticks=1)
    assert marks_at(s1)["a"] < new.position()
    fail_over(s1)
    merging.merge("a", "s1")
    s1.tick()
    assert complete(s1, a1) == 10


# The old root comes back


def test_an_old_root_without_events_of_its_own_becomes_a_tracker(merging: Merging) -> None:
    """Marks alone are no tail that anybody would miss; its merge-leaf goes back with them."""
    merging.build("a", carriers=2)
    s1, s2, old = merging["s1"], merging["s2"], merging.tracker("a", "s1")
    merging.root("a").tick()
    merging.merge("a")
    s1.tick()
    assert standing(s1, "a") != standing(s2, "a")
    fail_over(s2)
    stand_down(s1, s2)
    demote(s1, s2)
    assert standing(s1, "a") == standing(s2, "a")
    merging.root("a").insert(1)
    merging.merge("a", "s2")
    s2.tick()
    s1.join()
    s1.catch_up()
    assert old.position() == merging.root("a").position()
    assert complete(s1, merging.root("a")) == 1 and same(s1, s2)


def test_the_marks_of_an_old_root_go_back_with_its_log(merging: Merging) -> None:
    s1, s2, _s3 = tail(merging, "a", "b")
    fork = marks_at(s2)
    fetched = None
    merging.root("a").insert("later")
    merging.root("a").tick()
    fetched = merging.tracker("a", "s1").fetch()
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    assert marks_at(s1) == standing(s1, "a", "b") == fork
    assert fetched is not None
    with refused("QC401"):
        merging.tracker("a", "s1").store(fetched)
    s1.join()
    for part in ("a", "b"):
        merging.merge(part, "s2")
    merging.copy()
    assert standing(s1, "a", "b") == standing(s2, "a", "b") == marks_at(s1)
    is_prefix(s1, merging.root("a"), merging.root("b"))


def test_what_the_old_root_had_merged_is_a_duplicate_once_it_is_merged_again(merging: Merging) -> None:
    s1, s2, _s3 = tail(merging, "a")
    made = fail_over(s2)
    come_back(merging, s1, s2)
    assert aside(s1) == [("tail", "held")]
    assert mark_duplicates(s1, s2) == 0, "not known yet"
    assert report(s1, s2, made["uid"])["held"] == 1
    merging.merge("a", "s2")
    assert mark_duplicates(s1, s2) == 1
    assert aside(s1) == [("tail", "duplicate")]
    done = report(s1, s2, made["uid"])
    assert (done["state"], done["tail"], done["duplicates"], done["held"]) == ("closed", 1, 1, 0)
    merging.copy()
    assert complete(s1, merging.root("a")) == 2
