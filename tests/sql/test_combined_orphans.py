"""A part and the combined set lose the same events: what only the former combined-root has is an orphan."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import fail_over, mark_duplicates, report, resurrect, stand_down
from tests.fixtures.merging import Merging, held, marks, merged, numbers
from tests.fixtures.nodes import Node
from tests.sql.test_combined_failover import aside, come_back
from tests.sql.test_combined_fork import once, phantoms, quarantined, republish, turn_to


def both_lost(merging: Merging) -> tuple[Node, Node, Node, Node, str]:
    """Lose a1 and s1, which alone have `tail`; returns a1, a2, s1, s2 and the uid of the new term of s."""
    merging.build("a", carriers=3)
    a1, s1, s2, s3 = merging.root("a"), merging["s1"], merging["s2"], merging["s3"]
    a2 = merging.add("a2", a1)
    a1.insert("first")
    merging.flow()
    merging.tracker("a").ask()
    a1.insert("tail")
    a1.tick()
    merging.tracker("a", "s1").merge()
    s1.tick()
    fail_over(a2)
    made = fail_over(s2, s3)
    s3.switch(s2)
    s3.join()
    come_back(merging, s1, s2)
    return a1, a2, s1, s2, made["uid"]


def go_on(merging: Merging, root: Node) -> None:
    """Have the new combined-root merge on from the part's new root."""
    assert turn_to(merging.tracker("a"), root) is None, "it had nothing of what was lost"


def test_an_event_that_only_the_former_root_has_is_held_and_put_back_once(merging: Merging) -> None:
    a1, a2, s1, s2, uid = both_lost(merging)
    go_on(merging, a2)
    a2.insert("after")
    merging.merge("a", "s2")
    assert mark_duplicates(s1, s2) == 0 and aside(s1) == [("tail", "held")]
    assert report(s1, s2, uid)["held"] == 1, "accounted for, and not given up: it may be the only copy"
    (orphan,) = quarantined(s1)
    (new,) = republish(s1, s2)
    assert republish(s1, s2) == [new]
    merging.copy()
    assert new == s2.value("select id from queue.s where payload::text = '\"tail\"'")
    assert merged(s2, "a")[-1] == held(a1)[-1]
    for carrier in (s1, s2, merging["s3"]):
        assert numbers(carrier) == ["first", "after", "tail"]
        assert phantoms(carrier) == [("a", orphan["origin_id"])], "every carrier knows, for it may be the next root"
    assert marks(s2, "a", "merged")[0]["merged"] == [["a", orphan["origin_id"], orphan["origin_id"]]]
    assert mark_duplicates(s1, s2) == 1 and aside(s1) == [("tail", "duplicate")]
    done = report(s1, s2, uid)
    assert (done["state"], done["duplicates"], done["held"]) == ("closed", 1, 0)


@pytest.mark.parametrize("heir", ["s2", "s1"])
def test_an_orphan_that_the_part_puts_back_as_well_does_not_come_twice(merging: Merging, heir: str) -> None:
    a1, a2, s1, s2, _ = both_lost(merging)
    go_on(merging, a2)
    a2.insert("after")
    merging.merge("a", "s2")
    republish(s1, s2)
    merging.copy()
    if heir == "s1":
        fail_over(s1)
        turn_to(merging.tracker("a", "s1"), a2)
    stand_down(a1, a2)
    resurrect(a1, a2)
    assert len(republish(a1, a2)) == 1
    a2.insert("last")
    merging.merge("a", heir)
    merging[heir].tick()
    assert numbers(merging[heir]) == ["first", "after", "tail", "last"]
    once(merging[heir])


def test_what_the_part_puts_back_first_is_a_duplicate(merging: Merging) -> None:
    a1, a2, s1, s2, uid = both_lost(merging)
    go_on(merging, a2)
    a2.insert("after")
    merging.merge("a", "s2")
    stand_down(a1, a2)
    resurrect(a1, a2)
    (again,) = republish(a1, a2)
    merging.merge("a", "s2")
    merging.copy()
    there = s2.value("select id from queue.s where payload::text = '\"tail\"'")
    (orphan,) = quarantined(s1)
    found = s2.value("select cascade.republish('s', %s, %s, %s)", orphan["term_uid"], orphan["id"], Jsonb(orphan))
    assert found == there and again != there
    assert mark_duplicates(s1, s2) == 1
    assert report(s1, s2, uid)["state"] == "closed"
    once(s2)


def test_what_the_part_may_still_bring_is_not_put_back(merging: Merging) -> None:
    """The merge-leaf of the new root stands before the event: the part may have it, for all that is known."""
    _a1, a2, s1, s2, _ = both_lost(merging)
    (orphan,) = quarantined(s1)
    with refused("QC209", f'event {orphan["origin_id"]} of set "a" may still come with part "a"'):
        republish(s1, s2)
    assert numbers(s2) == ["first"] and phantoms(s2) == []
    go_on(merging, a2)
    assert len(republish(s1, s2)) == 1


def test_an_open_transaction_of_the_part_may_still_bring_it(merging: Merging) -> None:
    """Its id is below what was merged, and its transaction was open at that tick: it comes with a later one."""
    merging.build("a", carriers=2)
    a1, s1, s2 = merging.root("a"), merging["s1"], merging["s2"]
    late = a1.connect(autocommit=False)
    a1.insert("late", conn=late)
    a1.insert("first")
    merging.merge("a")
    merging.copy()
    late.commit()
    merging.merge("a")
    s1.tick()
    fail_over(s2)
    come_back(merging, s1, s2)
    with refused("QC209", "may still come"):
        republish(s1, s2)
    merging.merge("a", "s2")
    assert mark_duplicates(s1, s2) == 1
    assert numbers(s2) == ["first", "late"]


def test_another_event_of_the_same_origin_is_no_duplicate(merging: Merging) -> None:
    """Looked up by content as well: what somebody else wrote under that origin proves nothing."""
    _a1, a2, s1, s2, _ = both_lost(merging)
    go_on(merging, a2)
    (orphan,) = quarantined(s1)
    a2.main.execute(
        "insert into queue.a (payload, origin, origin_id) values ('\"other\"', 'a', %s)", (orphan["origin_id"],)
    )
    merging.merge("a", "s2")
    assert mark_duplicates(s1, s2) == 0 and aside(s1) == [("tail", "held")]
