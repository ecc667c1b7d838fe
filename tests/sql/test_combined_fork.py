"""A part goes on from a fork below what was merged: what it has lost stays, is named, and does not come twice."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import fail_over, resurrect, stand_down
from tests.fixtures.merging import Event, Leaf, Merging, complete, held, is_prefix, marks, merged, numbers
from tests.fixtures.nodes import Node

WAYS = pytest.mark.parametrize("small_bytes", [0, 128 * 1024], ids=["by copy", "inline"])


def picture(merging: Merging, *parts: str, carriers: int = 2) -> tuple[Node, Node, Leaf]:
    """Build the picture with a second carrier of a, which copies from a1: a1, a2, and the merge-leaf at s1."""
    merging.build(*(parts or ("a",)), carriers=carriers)
    a1 = merging.root("a")
    a2 = merging.add("a2", a1)
    a1.insert("first")
    merging.flow()
    for leaf in merging.leaves():
        if leaf.set == "a":
            leaf.catch_up() if leaf.into()["copies"] else leaf.ask()
    return a1, a2, merging.tracker("a", "s1")


def ahead(a1: Node, leaf: Leaf, *payloads: Any) -> None:
    """Insert into a part and merge it before anybody else has it."""
    for payload in payloads:
        a1.insert(payload)
    a1.tick()
    leaf.merge()


def turn_to(leaf: Leaf, root: Node) -> dict[str, Any] | None:
    """Have a merge-leaf follow another root, and go back if it must; returns what that said."""
    leaf.switch(root)
    done = leaf.go_back() if leaf.join()["answer"] == "diverged" else None
    leaf.merge()
    return done


def quarantined(node: Node) -> list[dict[str, Any]]:
    """Return what is held in quarantine at a node, whole."""
    query = "select to_jsonb(x) from cascade.read_quarantine(%s, null, 'held') as x order by x.id"
    return [row[0] for row in node.rows(query, node.set)]


def republish(node: Node, root: Node) -> list[int]:
    """Put what is held at a node back into the log, at the root."""
    call = "select cascade.republish(%s, %s, %s, %s)"
    found = quarantined(node)
    return [int(root.value(call, node.set, each["term_uid"], each["id"], Jsonb(each))) for each in found]


def phantoms(carrier: Node, part: str = "a") -> list[tuple[str, int]]:
    """Return what a carrier knows to be merged although its part has lost it."""
    query = (
        "select origin, i from cascade_internal.merged_already, generate_series(first_id, last_id) as i"
        " where queue_id = %s and part = %s order by 1, 2"
    )
    return list(dict.fromkeys(carrier.rows(query, carrier.queue_id, part)))


def ids(events: list[Event]) -> list[tuple[str, int]]:
    return [(event[0], event[1]) for event in events]


def once(carrier: Node) -> None:
    """See that no event is there twice."""
    found = ids(held(carrier))
    assert len(found) == len(set(found)), sorted(each for each in found if found.count(each) > 1)


@WAYS
def test_a_part_that_forks_below_what_is_merged(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    a1, a2, leaf = picture(merging)
    s1, s2 = merging["s1"], merging["s2"]
    fork = a2.position()
    ahead(a1, leaf, "lost 1", "lost 2")
    lost = [each for each in held(a1) if each not in held(a2)]
    fail_over(a2)
    before = leaf.describe()["tick"]
    done = turn_to(leaf, a2)
    assert done is not None and (done["changed"], done["events"], done["into"]) == (True, 2, "s")
    (mark,) = marks(s1, "a", "fork")
    assert mark["tick"]["tick_id"] == fork and mark["prev"]["tick_id"] == before["tick_id"]
    assert mark["merged"] == [["a", lost[0][1], lost[1][1]]] and mark["events"] == 2 and mark["is_whole"] is True
    a2.insert("after")
    merging.merge("a")
    merging.copy()
    for carrier in (s1, s2):
        assert numbers(carrier) == ["first", "lost 1", "lost 2", "after"]
        assert phantoms(carrier) == ids(lost)
        assert [each for each in merged(carrier, "a") if each not in lost] == held(a2)
    assert merging.tracker("a").position() == a2.position()


@WAYS
@pytest.mark.parametrize("max_ticks", [1, 1000], ids=["tick by tick", "at once"])
def test_a_republished_event_is_not_merged_again(merging: Merging, small_bytes: int, max_ticks: int) -> None:
    """It has its first id as origin, and that is known; what follows it comes all the same."""
    merging.small_bytes = small_bytes
    a1, a2, leaf = picture(merging)
    ahead(a1, leaf, "lost 1", "lost 2")
    a1.insert("never merged")
    a1.tick()
    fail_over(a2)
    turn_to(leaf, a2)
    stand_down(a1, a2)
    resurrect(a1, a2)
    a2.insert("between")
    new = republish(a1, a2)
    assert len(new) == 3 and republish(a1, a2) == new
    a2.insert("after")
    a2.tick()
    leaf.merge(max_ticks=max_ticks)
    merging["s1"].tick()
    merging["s2"].catch_up()
    for carrier in (merging["s1"], merging["s2"]):
        assert numbers(carrier) == ["first", "lost 1", "lost 2", "between", "never merged", "after"]
        once(carrier)
    assert sorted(held(a2)) == sorted(merged(merging["s1"], "a")), "the part has them all again"
    skipped = [mark.get("skipped", []) for mark in marks(merging["s1"], "a")]
    assert skipped[-1] == [2, 3], "which rows of the range were left out"
    assert leaf.position() == a2.position()


def test_a_fork_in_the_middle_of_a_range_keeps_what_came_before(merging: Merging) -> None:
    """One transaction of s holds ticks from both sides of the fork, and transactions that lie across it."""
    a1, a2, leaf = picture(merging)
    early, late = (a1.connect(autocommit=False) for _ in range(2))
    a1.insert("lost, with a low id", conn=early)
    a1.insert("kept 1")
    a1.insert("kept 2", conn=late)
    late.commit()
    a1.tick()
    a2.catch_up()
    a1.insert("lost")
    early.commit()
    a1.tick()
    leaf.merge()
    assert numbers(merging["s1"]) == ["first", "kept 1", "kept 2", "lost, with a low id", "lost"]
    fail_over(a2)
    done = turn_to(leaf, a2)
    assert done is not None and done["events"] == 2
    lost = [each for each in held(a1) if each not in held(a2)]
    assert len(lost) == 2 and phantoms(merging["s1"]) == sorted(ids(lost))
    stand_down(a1, a2)
    resurrect(a1, a2)
    republish(a1, a2)
    a2.insert("after")
    merging.flow()
    assert sorted(map(str, numbers(merging["s2"]))) == sorted(map(str, numbers(a2)))
    once(merging["s2"])


def test_a_large_loss_is_kept_as_ranges(merging: Merging) -> None:
    """Every later merge of the part looks at all of them: they must not be a row for each event."""
    a1, a2, leaf = picture(merging)
    a1.main.execute("insert into queue.a (payload) select to_json(i) from generate_series(1, 3000) as i")
    a1.tick()
    leaf.merge()
    fail_over(a2)
    turn_to(leaf, a2)
    merging.copy()
    for carrier in (merging["s1"], merging["s2"]):
        assert carrier.value("select count(*) from cascade_internal.merged_already") == 1
        assert carrier.value("select merged_already from cascade.parts where part = 'a'") == 3000
        assert len(phantoms(carrier)) == 3000


def test_a_fork_beyond_which_nothing_was_merged_is_no_fork_of_s(merging: Merging) -> None:
    _a1, a2, leaf = picture(merging)
    before = leaf.position()
    fail_over(a2)
    leaf.switch(a2)
    assert leaf.join()["answer"] == "on path" and leaf.go_back() is None
    a2.insert("after")
    merging.merge("a")
    merging.copy()
    assert marks(merging["s1"], "a", "fork") == [] and marks(merging["s1"], "a")[-1]["prev"]["tick_id"] == before
    assert complete(merging["s2"], a2) == 2
    assert numbers(merging["s1"]) == ["first", "after"] and phantoms(merging["s1"]) == []


def test_a_fork_below_empty_ranges_takes_the_position_back(merging: Merging) -> None:
    a1, _a2, leaf = picture(merging)
    a2 = merging["a2"]
    a1.tick()
    leaf.merge()
    fail_over(a2)
    done = turn_to(leaf, a2)
    assert done is not None and done["events"] == 0
    assert marks(merging["s1"], "a", "fork")[0]["merged"] == []
    a2.insert("after")
    merging.merge("a")
    merging.copy()
    assert complete(merging["s2"], a2) == 2
    is_prefix(merging["s2"], a2)


def test_a_part_that_forks_twice(merging: Merging) -> None:
    """The second fork lies in the reign that began with the first; both lists count."""
    a1, a2, leaf = picture(merging)
    a3 = merging.add("a3", a2)
    ahead(a1, leaf, "lost 1")
    fail_over(a2)
    turn_to(leaf, a2)
    a2.insert("kept")
    a2.tick()
    a3.join()
    a3.catch_up()
    ahead(a2, leaf, "lost 2")
    fail_over(a3)
    leaf.ask()
    turn_to(leaf, a3)
    for old in (a1, a2):
        stand_down(old, a3)
        resurrect(old, a3)
        republish(old, a3)
    a3.insert("after")
    a3.tick()
    leaf.merge()
    merging.copy("s")
    for carrier in (merging["s1"], merging["s2"]):
        assert numbers(carrier) == ["first", "lost 1", "kept", "lost 2", "after"]
        assert len(phantoms(carrier)) == 2
    assert sorted(held(a3)) == sorted(merged(merging["s1"], "a"))


def test_a_fork_in_a_range_of_which_something_was_left_out(merging: Merging) -> None:
    """What was skipped is no row of s: whoever counts it takes what was lost for kept."""
    a1, a2, leaf = picture(merging)
    a3 = merging.add("a3", a2)
    ahead(a1, leaf, "lost 1")
    fail_over(a2)
    turn_to(leaf, a2)
    stand_down(a1, a2)
    resurrect(a1, a2)
    republish(a1, a2)
    a2.insert("kept")
    a2.tick()
    a3.join()
    a3.catch_up()
    ahead(a2, leaf, "lost 2")
    assert marks(merging["s1"], "a")[-1]["skipped"] == [1]
    fail_over(a3)
    leaf.ask()
    done = turn_to(leaf, a3)
    assert done is not None and done["events"] == 1
    stand_down(a2, a3)
    resurrect(a2, a3)
    republish(a2, a3)
    a3.insert("after")
    a3.tick()
    leaf.merge()
    merging["s1"].tick()
    assert numbers(merging["s1"]) == ["first", "lost 1", "kept", "lost 2", "after"]
    once(merging["s1"])


def test_a_fork_that_is_lost_with_the_combined_root_is_forgotten_there(merging: Merging) -> None:
    """What its tail had of the part is gone from s as well: put back into the part, it must be merged."""
    a1, a2, leaf = picture(merging)
    s1, s2 = merging["s1"], merging["s2"]
    ahead(a1, leaf, "lost")
    fail_over(a2)
    turn_to(leaf, a2)
    s1.tick()
    assert len(phantoms(s1)) == 1
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    assert phantoms(s1) == [] == phantoms(s2)
    s1.join()
    s1.catch_up()
    fail_over(s1)
    stand_down(a1, a2)
    resurrect(a1, a2)
    republish(a1, a2)
    merging.merge("a")
    s1.tick()
    assert numbers(s1) == ["first", "lost"]
    assert sorted(held(a2)) == sorted(merged(s1, "a"))


@WAYS
def test_what_was_fetched_beyond_a_fork_does_not_land_after_it(merging: Merging, small_bytes: int) -> None:
    """Provider and position are what they were; a second daemon still has in hand what the part lost."""
    merging.small_bytes = small_bytes
    a1, _a2, leaf = picture(merging)
    fork = leaf.describe()["tick"]
    a1.insert("lost")
    a1.tick()
    fetched = leaf.fetch()
    assert fetched is not None
    leaf.catch_up()
    assert leaf.value("select cascade.reset_leaf('a', %s)", Jsonb(fork))["events"] == 1
    assert leaf.position() == fetched.after[0]
    with refused("QC209", "has moved on"):
        leaf.store(fetched, check=False)
    assert numbers(merging["s1"]) == ["first", "lost"]


def test_a_second_fork_below_the_first(merging: Merging) -> None:
    """a3, behind a2, is promoted after it: all that a2 did is gone, and some of what a1 had before as well."""
    a1, a2, leaf = picture(merging)
    a3 = merging.add("a3", a2)
    a3.catch_up()
    leaf.ask()
    a1.insert("lost by a3")
    a1.tick()
    a2.catch_up()
    ahead(a1, leaf, "lost by a2")
    fail_over(a2)
    turn_to(leaf, a2)
    ahead(a2, leaf, "of a2")
    assert a3.join()["answer"] == "on path"
    fail_over(a3)
    leaf.ask()
    done = turn_to(leaf, a3)
    assert done is not None and done["from_tick"] == a3.describe()["terms"][-1]["fork"]["tick_id"]
    a3.insert("after")
    a3.tick()
    leaf.merge()
    merging["s1"].tick()
    assert numbers(merging["s1"]) == ["first", "lost by a3", "lost by a2", "of a2", "after"]
    assert len(phantoms(merging["s1"])) == 3
    for old in (a1, a2):
        stand_down(old, a3)
        resurrect(old, a3)
        republish(old, a3)
    a3.tick()
    leaf.merge()
    merging["s1"].tick()
    once(merging["s1"])
    assert sorted(held(a3)) == sorted(merged(merging["s1"], "a"))


def test_a_merge_leaf_that_slept_through_a_reign_goes_back_to_where_the_present_one_began(merging: Merging) -> None:
    """It never had a tick of a2's reign, whose fork lies above that of a3's."""
    a1, a2, leaf = picture(merging)
    a3 = merging.add("a3", a2)
    a3.catch_up()
    leaf.ask()
    a1.insert("lost by a3")
    a1.tick()
    a2.catch_up()
    ahead(a1, leaf, "lost by a2")
    fail_over(a2)
    a3.value("select cascade.exchange_terms('a', %s, %s)", Jsonb(a2.describe()["terms"]), a2.describe()["set_uid"])
    fail_over(a3)
    turn_to(leaf, a3)
    a3.insert("after")
    a3.tick()
    assert leaf.merge() == 1
    merging["s1"].tick()
    assert numbers(merging["s1"]) == ["first", "lost by a3", "lost by a2", "after"]
    assert len(phantoms(merging["s1"])) == 2
