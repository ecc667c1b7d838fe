"""Merging: what a part's events become in the combined queue, the marks beside them, and what is refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json

from tests.fixtures.database import table
from tests.fixtures.expect import refused
from tests.fixtures.merging import Leaf, Merging, held, is_prefix, marks, marks_at, merged, numbers
from tests.fixtures.nodes import Node, same

SMALL = 128 * 1024
WAYS = pytest.mark.parametrize("small_bytes", [0, SMALL], ids=["by copy", "inline"])

#: An event whole, but for its transaction.
WHOLE = "id, time, type, key, payload::text, headers::text, origin, origin_id"


def put(root: Node, *payloads: Any, conn: psycopg.Connection[Any] | None = None, **columns: Any) -> None:
    """Insert events into a part, with a type, a key and headers if they are given."""
    query = f"insert into {table(root.set)} (type, key, payload, headers) values (%s, %s, %s, %s)"
    for payload in payloads:
        headers = Json(columns["headers"]) if "headers" in columns else None
        (conn or root.main).execute(query.encode(), (columns.get("type"), columns.get("key"), Json(payload), headers))


def straddle(root: Node) -> list[Any]:
    """Insert events in transactions that lie across ticks; returns them in the order of ticks and ids."""
    early, late = (root.connect(autocommit=False) for _ in range(2))
    put(root, 3, conn=late)
    put(root, 2, conn=early)
    put(root, 1)
    root.tick()
    put(root, 4)
    early.commit()
    put(root, 5, conn=late)
    root.tick()
    root.tick()
    late.commit()
    put(root, 6)
    root.tick()
    return [1, 2, 4, 3, 5, 6]


def whole(carrier: Node) -> list[tuple[Any, ...]]:
    """Return what a combined queue holds, marks left out."""
    return carrier.rows(f"select {WHOLE} from {table(carrier.set)} where origin <> '.cascade' order by id")


def standing(leaf: Leaf) -> tuple[Any, ...]:
    """Return all that a merge moves."""
    carrier = leaf.carrier
    return (leaf.position(), whole(carrier), marks(carrier, leaf.set), marks_at(carrier))


# What events become


def test_both_ways_write_the_same_rows(merging: Merging) -> None:
    root = merging.create("a")
    for name in ("s", "u"):
        merging.merge_at(merging.create(name, combined=True), "a")
    order = straddle(root)
    put(root, {"n": 7}, type="order.paid", key="acme", headers={"trace": [1, None]})
    put(root, None, "ü€😀\\ \t\n\"'", type="", key="")
    # What was republished has an origin already, and keeps it.
    root.main.execute("insert into queue.a (payload, origin, origin_id) values ('8', 'old', 17)")
    root.main.execute("""insert into queue.a (payload) values ('{"a" :  1, "a": 2.50}')""")
    root.tick()
    merging.root("u").small_bytes = merging.tracker("a", "u1").small_bytes = SMALL
    for name in ("s1", "u1"):
        found = merging.tracker("a", name)
        fetched = found.fetch()
        assert fetched is not None
        assert (fetched.columns is not None) == (name == "u1")
        found.store(fetched)
    merging.copy("s")
    rows = whole(merging["s1"])
    assert rows == whole(merging["u1"])
    assert [int(row[4]) for row in rows[:6]] == order
    assert rows[-1][4] == '{"a" :  1, "a": 2.50}', "JSON stays as it was written, byte by byte"
    assert rows[-2][6:] == ("old", 17)
    assert merged(merging["s1"], "a", "old") == held(root)
    assert [row[0] for row in rows] == list(range(2, len(rows) + 2)), "ids of the combined set, after that of a mark"


@WAYS
def test_an_event_keeps_all_but_its_id(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    put(root, {"n": 1}, type="t", key="k", headers={"h": 1})
    put(root, 2)
    before = root.rows(
        "select time, type, key, payload::text, headers::text, 'a', id from queue.a where origin is null"
    )
    merging.merge("a")
    assert [row[1:] for row in whole(merging["s1"])] == before


@WAYS
@pytest.mark.parametrize("max_ticks", [1, 1000], ids=["tick by tick", "at once"])
def test_the_order_is_that_of_ticks_and_of_ids_within(merging: Merging, small_bytes: int, max_ticks: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    order = straddle(root)
    assert merging.tracker("a", "s1").merge(max_ticks=max_ticks) == (4 if max_ticks == 1 else 1)
    assert numbers(merging["s1"]) == order
    merging.copy()
    is_prefix(merging["s1"], root)


@WAYS
def test_a_huge_event_is_merged(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    put(root, "x" * 4_000_000, headers={"y": "z" * 1_000_000})
    merging.flow()
    assert merged(merging["s1"], "a") == held(root) != []


@WAYS
def test_names_may_have_hyphens_and_capitals(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.create("Orders-EU", 'the root\'s "first" node')
    carrier = merging.create("ALL-orders", "s 1", combined=True)
    merging.merge_at(carrier, "Orders-EU")
    other = merging.add("s' 2", carrier)
    merging.merge_at(other, "Orders-EU")
    put(root, 1, 2)
    merging.flow()
    assert merged(carrier, "Orders-EU") == held(root) != []
    assert same(carrier, other)
    assert merging.tracker("Orders-EU", "s' 2").position() == merging.tracker("Orders-EU", "s 1").position()
    with refused("QC403", 'queue "ALL-orders" is a combined set'):
        put(carrier, 3)


@WAYS
def test_control_events_of_a_part_are_obeyed_and_not_merged(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    root.value("select cascade.add_member('a', 'a2', 'branch')")
    put(root, 1)
    before = [row[0] for row in merging["s1"].rows("select id from queue.s")]
    assert leaf.member("a2", "state") is None
    merging.merge("a")
    assert root.controls("member") == 3 and leaf.member("a2", "state") == "live"
    found = merging["s1"].rows("select origin, type from queue.s where id <> all (%s) order by id", before)
    assert found == [("a", None), (".cascade", "cascade.tick")]


@WAYS
def test_a_merge_leaf_that_is_dropped_hears_of_it_from_the_part(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    fetched = None
    put(root, 1)
    root.tick()
    fetched = leaf.fetch()
    assert fetched is not None
    root.value("select cascade.drop_member('a', 's1')")
    root.tick()
    with refused("QC701", "s1 is no live member"):
        leaf.check(fetched)
    with refused("QC701"):
        leaf.catch_up()
    assert numbers(merging["s1"]) == []


# The marks


@WAYS
def test_the_mark_and_the_events_are_one_transaction(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    leaf, carrier = merging.tracker("a", "s1"), merging["s1"]
    first = leaf.describe()["tick"]
    put(root, 1, 2)
    merging.merge("a")
    last = root.describe()["tick"]
    mark = marks(carrier, "a")[-1]
    assert (mark["part"], mark["set_uid"]) == ("a", str(root.state("set_uid")))
    for name, tick in (("tick", last), ("prev", first)):
        shared = {key: value for key, value in tick.items() if key not in ("gen", "gen_low")}
        assert mark[name] == shared, "the whole tick, but for what means something in one database only"
    assert "skipped" not in mark
    txids = carrier.rows(
        "select distinct txid from queue.s where origin = 'a' or payload->'tick'->>'tick_id' = %s", str(last["tick_id"])
    )
    assert len(txids) == 1


def test_a_merge_that_breaks_off_leaves_nothing(merging: Merging) -> None:
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    put(root, 1)
    root.tick()
    before, fetched = standing(leaf), leaf.fetch(read=False)
    assert fetched is not None
    with leaf.main.transaction(force_rollback=True):
        skipped = leaf.write(fetched, leaf.begin(fetched, leaf.main), leaf.main)
        leaf.finish(fetched, skipped, leaf.main)
    assert standing(leaf) == before
    leaf.catch_up()
    assert numbers(merging["s1"]) == [1]


def test_a_tick_of_the_combined_set_takes_events_and_mark_together(merging: Merging) -> None:
    root = merging.build("a", carriers=2).root("a")
    leaf, carrier = merging.tracker("a", "s1"), merging["s1"]
    put(root, 1, 2)
    root.tick()
    fetched = leaf.fetch(read=False)
    assert fetched is not None
    before = marks_at(carrier)
    with leaf.main.transaction():
        place = leaf.begin(fetched, leaf.main)
        carrier.tick()
        skipped = leaf.write(fetched, place, leaf.main)
        carrier.tick()
        leaf.finish(fetched, skipped, leaf.main)
        merging.copy()
        assert merging.tracker("a").position() == before["a"]
    assert marks_at(carrier) == before, "where the part stood at the last tick, whatever has committed since"
    assert is_prefix(carrier, root)
    merging.copy()
    assert is_prefix(carrier, root) == is_prefix(merging["s2"], root)
    assert merging.tracker("a").position() == root.position()


def test_rotation_may_switch_between_the_events_and_the_mark(merging: Merging) -> None:
    root = merging.build("a", carriers=2).root("a")
    leaf, carrier = merging.tracker("a", "s1"), merging["s1"]
    put(root, 1, 2)
    root.tick()
    fetched = leaf.fetch(read=False)
    assert fetched is not None
    with leaf.main.transaction():
        skipped = leaf.write(fetched, leaf.begin(fetched, leaf.main), leaf.main)
        assert carrier.rotate("s") == [("switched", 1)]
        leaf.finish(fetched, skipped, leaf.main)
    query = "select slot, count(*) from queue.s where txid = %s group by 1 order by 1"
    slots = carrier.rows(query, carrier.value("select txid from queue.s where origin = 'a' limit 1"))
    assert slots == [("0", 2), ("1", 1)]
    merging.copy()
    is_prefix(carrier, root)
    assert same(carrier, merging["s2"])
    assert merging.tracker("a").position() == root.position()


@WAYS
def test_a_range_without_events_moves_the_mark(merging: Merging, small_bytes: int) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    carrier = merging["s1"]
    before = len(marks(carrier, "a"))
    root.tick()
    root.tick()
    merging.merge("a")
    assert numbers(carrier) == [] and len(marks(carrier, "a")) == before + 1
    carrier.tick()
    assert marks_at(carrier) == {"a": root.position()}
    assert merging.tracker("a", "s1").merge() == 0, "nothing follows, and no mark is written"


def test_every_prefix_of_the_combined_log_says_where_each_part_stands(merging: Merging) -> None:
    merging.build("a", "b", carriers=3)
    a1, b1, s1 = merging.root("a"), merging.root("b"), merging["s1"]
    for number in range(3):
        straddle(a1)
        put(b1, number)
        merging.merge("b", max_ticks=1)
        s1.tick()
        merging.merge("a", max_ticks=number + 1)
    merging.copy()
    for carrier in (s1, merging["s2"], merging["s3"]):
        assert is_prefix(carrier, a1, b1) >= 4
    assert len(merged(s1, "a")) == 18 and len(merged(s1, "b")) == 3
    assert same(s1, merging["s3"])


# Compare and swap


def stale(leaf: Leaf, how: str) -> None:
    """Have something change at a merge-leaf after a range was fetched."""
    if how == "generation":
        leaf.value("select cascade.pause_node(%s)", leaf.set)
        leaf.value("select cascade.resume_node(%s)", leaf.set)
    elif how == "paused":
        leaf.value("select cascade.pause_node(%s)", leaf.set)
    elif how == "provider":
        leaf.value("select cascade.set_provider(%s, 'a2')", leaf.set)
    elif how == "second daemon":
        again = leaf.fetch()
        assert again is not None
        leaf.store(again)


@WAYS
@pytest.mark.parametrize("how", ["generation", "paused", "provider", "second daemon"])
def test_what_was_fetched_before_a_change_does_not_land(merging: Merging, small_bytes: int, how: str) -> None:
    merging.small_bytes = small_bytes
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    merging.add("a2", root)
    merging.flow()
    put(root, 1)
    root.tick()
    fetched = leaf.fetch()
    assert fetched is not None
    stale(leaf, how)
    before = standing(leaf)
    with refused("QC209", "has moved on"):
        leaf.store(fetched)
    assert standing(leaf) == before
    leaf.switch(root)
    leaf.value("select cascade.resume_node('a')")
    leaf.merge()
    assert numbers(merging["s1"]) == [1]


def test_two_daemons_that_merge_at_once_merge_once(merging: Merging) -> None:
    """The second waits for the first, and finds that it has moved."""
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    put(root, 1)
    root.tick()
    fetched = leaf.fetch(read=False)
    assert fetched is not None
    other = leaf.connect()
    other.execute("set lock_timeout = '100ms'")
    with leaf.main.transaction():
        skipped = leaf.write(fetched, leaf.begin(fetched, leaf.main), leaf.main)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            leaf.store(fetched, conn=other)
        leaf.finish(fetched, skipped, leaf.main)
    with refused("QC209"):
        leaf.store(fetched, conn=other)
    assert numbers(merging["s1"]) == [1]


def test_ticks_that_do_not_link_are_refused(merging: Merging) -> None:
    root = merging.build("a", carriers=1).root("a")
    leaf = merging.tracker("a", "s1")
    put(root, 1)
    root.tick()
    root.tick()
    fetched = leaf.fetch()
    assert fetched is not None
    before = standing(leaf)
    del fetched.ticks[0]
    with refused("QC901", "does not follow"):
        leaf.store(fetched)
    assert standing(leaf) == before
