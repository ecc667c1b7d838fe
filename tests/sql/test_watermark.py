"""Watermarks: what members told, what the root makes of it, and what may go on every node."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from tests.fixtures.database import eventually
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes, same


def row(node: Node, tick_id: int, **fields: Any) -> dict[str, Any]:
    """What a node tells of itself, as if it stood on this tick."""
    return node.report()[0] | {"tick_id": tick_id} | fields


def told(node: Node, of: str) -> tuple[Any, ...] | None:
    """What was stored of a member: generation and tick."""
    return node.row("select generation, tick_id from cascade_internal.told where node = %s", of)


def later(row: dict[str, Any], seconds: float) -> str:
    """The time of a tell, moved."""
    return (datetime.fromisoformat(row["at"]) + timedelta(seconds=seconds)).isoformat()


def events_held(node: Node) -> int:
    """How many ordinary events a node holds."""
    return int(node.value("select count(*) from queue.q where origin is null"))


def is_freed(nodes: Nodes) -> bool:
    """Whether every carrier has let go of all ordinary events, after one more step of everything."""
    nodes.tidy()
    return all(events_held(node) == 0 for node in nodes.made.values())


def switch_all(nodes: Nodes) -> None:
    """Have every node begin a new generation: what it held so far can go once nobody needs it."""
    for node in nodes.made.values():
        node.rotate("q")
        node.rotate("q")


# Tells


def test_the_greatest_tick_that_was_told_counts(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    ticks = [s1.tick() for _ in range(5)]
    s2.catch_up()
    for tick, expected in ((ticks[1], ticks[1]), (ticks[3], ticks[3]), (ticks[0], ticks[3]), (ticks[3], ticks[3])):
        s2.tell(rows=[row(s2, tick)])
        assert told(s1, "s2") == (1, expected)


def test_late_and_repeated_tells_change_nothing(nodes: Nodes) -> None:
    """They may come in any order: each was true when it was said."""
    s1, s2 = nodes.line()
    ticks = [s1.tick() for _ in range(4)]
    s2.catch_up()
    tells = [row(s2, tick) for tick in ticks]
    s2.tell(rows=[tells[2]])
    before = s1.rows("select * from cascade_internal.told")
    for late in (tells[0], tells[1], tells[2], tells[0]):
        assert s2.tell(rows=[late]) == 0
    assert s1.rows("select * from cascade_internal.told") == before
    assert s2.tell(rows=[tells[3]]) == 1
    s2.tell(rows=[tells[0] | {"at": later(tells[3], 5)}])
    assert told(s1, "s2") == (1, ticks[3]), "a sign of life does not set it back"


def test_a_tell_that_was_said_before_another_and_says_more_is_heard(nodes: Nodes) -> None:
    """Two daemons' clocks need not agree, nor a member's clock with its provider's."""
    s1, s2 = nodes.line()
    ticks = [s1.tick() for _ in range(3)]
    s2.catch_up()
    s2.tell(rows=[row(s2, ticks[0])])
    ahead = row(s2, ticks[2])
    s2.tell(rows=[ahead | {"at": later(ahead, -3600)}])
    assert told(s1, "s2") == (1, ticks[2])


def test_a_member_whose_clock_is_behind_its_providers_is_heard_after_joining(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    s2.catch_up()
    s2.join()
    s1.insert(2)
    s1.tick()
    s2.catch_up()
    behind = [tell | {"at": later(tell, -60)} for tell in s2.report()]
    s2.tell(rows=behind)
    assert told(s1, "s2") == (1, s2.position())


def test_a_sign_of_life_is_noted_at_most_once_a_second(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.catch_up()
    s2.tell()
    said = s2.report()[0]
    assert s2.tell(rows=[said | {"at": later(said, 0.5)}]) == 0
    assert s2.tell(rows=[said | {"at": later(said, 2)}]) == 1
    assert s1.member("s2", "told_at") == datetime.fromisoformat(later(said, 2))


def test_a_tell_of_a_lower_generation_is_ignored_and_of_a_higher_one_replaces(nodes: Nodes) -> None:
    """A node restored from a backup stands lower, and says so in a new generation."""
    s1, s2 = nodes.line()
    ticks = [s1.tick() for _ in range(4)]
    s2.catch_up()
    s2.tell(rows=[row(s2, ticks[3])])
    s2.tell(rows=[row(s2, ticks[1], generation=5)])
    assert told(s1, "s2") == (5, ticks[1])
    assert s2.tell(rows=[row(s2, ticks[3], generation=4)]) == 0
    assert told(s1, "s2") == (5, ticks[1])


def test_a_tell_from_before_a_member_was_taken_back_is_ignored(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    old = s2.report()
    s1.rows("select cascade.mark_dead('q', 's2')")
    again = s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")
    assert s2.tell(rows=[old[0] | {"tick_id": s1.tick()}]) == 0
    assert s1.member("s2") == again["since_tick"]
    assert s2.tell(rows=[old[0] | {"generation": again["generation"]}]) == 1
    assert s1.member("s2") == old[0]["tick_id"]


def test_unknown_members_are_not_heard_and_ended_ones_are_refused(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.catch_up()
    stranger = s2.report()[0] | {"node": "s9"}
    assert s2.tell(rows=[stranger]) == 0
    assert told(s1, "s9") is None
    for end in ("mark_dead", "drop_member"):
        s1.rows(f"select cascade.{end}('q', 's2')")
        with refused("QC701", "s2 is no live member"):
            s2.tell()


def test_what_is_passed_on_of_an_ended_member_is_not_heard(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    heard = told(s1, "s3")
    s1.rows("select cascade.mark_dead('q', 's3')")
    s2.tell(rows=[*s2.report(), row(s3, s1.tick(), generation=9)])
    assert told(s1, "s3") == heard
    s1.rows("select cascade.drop_member('q', 's3')")
    assert told(s1, "s3") is None
    s2.tell(rows=[row(s3, s1.position(), generation=9)])
    assert told(s1, "s3") is None


def test_nobody_is_ahead_of_the_root(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.catch_up()
    s2.tell()
    assert s2.tell(rows=[row(s2, s1.position() + 1, generation=2)]) == 0
    assert told(s1, "s2") == (1, s1.position())


def test_tells_are_passed_on_unchanged(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(1)
    s1.tick()
    s2.catch_up()
    s3.catch_up()
    said = s3.report()[0]
    s3.tell(rows=[said])
    passed = next(row for row in s2.report() if row["node"] == "s3")
    compared = ("generation", "tick_id", "term_uid", "is_waiting")
    assert {name: passed[name] for name in compared} == {name: said[name] for name in compared}
    assert datetime.fromisoformat(passed["at"]) == datetime.fromisoformat(said["at"])
    s2.tell()
    assert told(s1, "s3") == told(s2, "s3") == (1, said["tick_id"])
    assert s1.rows("select node, is_direct from cascade_internal.told order by 1") == [("s2", True), ("s3", False)]


def test_who_joins_tells_no_more_than_its_consumers_have_finished(nodes: Nodes) -> None:
    """A former root is a branch of a new one, which has heard nothing of it yet, and has a slow consumer."""
    s1, s2 = nodes.line()
    start = s1.tick()
    s2.catch_up()
    s2.rows("select cascade.subscribe('q', 'slow')")
    s1.insert(1)
    end = s1.tick()
    s2.catch_up()
    s1.main.execute("delete from cascade_internal.told")
    s2.join()
    assert told(s1, "s2") == (1, start)
    assert s2.drain("slow") != []
    s2.join()
    assert told(s1, "s2") == (1, end)


def test_a_position_counts_the_movable_consumers(nodes: Nodes) -> None:
    """So that a consumer finds its place on whatever node it is moved to."""
    s1, s2 = nodes.line()
    here = nodes.settle()
    s2.rows("select cascade.subscribe('q', 'slow', 'now')")
    s1.rows("select cascade.subscribe('q', 'slower', 'now')")
    s1.insert(1)
    last = nodes.settle()
    assert s2.report()[0]["tick_id"] == s1.member("s1") == here
    s2.main.execute("update cascade_internal.subscription set is_movable = false where consumer = 'slow'")
    assert s2.report()[0]["tick_id"] == last
    s2.main.execute("update cascade_internal.subscription set is_movable = true where consumer = 'slow'")
    s2.drain("slow")
    assert s2.report()[0]["tick_id"] == last
    s1.drain("slower")
    assert s1.member("s1") == last


# The watermark


def test_the_watermark_is_the_least_position_of_the_live_members(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    s1.insert(1)
    first = s1.tick()
    s2.catch_up()
    s3.catch_up()
    s1.insert(2)
    s1.tick()
    s2.catch_up()
    s3.tell()
    s2.tell()
    assert s1.advance() == (first, True, "s3")
    assert s1.watermark() == first
    s3.catch_up()
    s3.tell()
    s2.tell()
    assert s1.advance().tick_id == s2.position() > first


def test_the_watermark_reaches_every_carrier_through_the_log(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(1)
    tick = nodes.settle()
    assert s1.advance() == (tick, True, "s1")
    assert [node.watermark() for node in (s1, s2, s3)] == [tick, 1, 1]
    nodes.settle()
    assert [node.watermark() for node in (s1, s2, s3)] == [tick, tick, tick]


def test_the_watermark_never_goes_back(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    tick = nodes.settle()
    s1.advance()
    nodes.settle()
    published = s1.controls()
    s2.tell(rows=[row(s2, 1, generation=7)])
    assert s1.member("s2") == 1
    s1.insert(2)
    switch_all(nodes)
    s1.tick()
    assert s1.value("select cascade_internal.waits_for_watermark(q) from cascade_internal.queue as q") is True
    assert s1.advance() == (tick, False, "s2")
    for node in (s1, s2):
        node.rows("select cascade_internal.move_watermark(q, 1) from cascade_internal.queue as q")
        assert node.watermark() == tick
    assert s1.controls() == published


def test_a_member_that_has_never_told_holds_the_watermark(nodes: Nodes) -> None:
    s1, _ = nodes.line()
    s1.insert(1)
    first = nodes.settle()
    s1.advance()
    s1.rows("select cascade.add_member('q', 's3', 'leaf')")
    assert s1.member("s3") == first
    s1.insert(2)
    nodes.settle()
    for _ in range(3):
        assert s1.advance() == (first, False, "s3")
    assert s1.row("select held_by, held_since is not null from cascade.nodes") == ("s3", True)


def test_an_ended_member_no_longer_holds_the_watermark(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    first = nodes.settle()
    s1.rows("select cascade.add_member('q', 's3', 'branch')")
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    s1.insert(1)
    nodes.settle()
    assert s1.advance().held_by == "s3"
    s1.rows("select cascade.mark_dead('q', 's3')")
    assert s1.advance().held_by == "s4"
    s1.rows("select cascade.drop_member('q', 's4')")
    found = s1.advance()
    assert found.is_published
    assert found.tick_id == s2.position() > first


def test_what_no_other_carrier_has_stays_at_a_root_whose_carriers_are_dead(nodes: Nodes) -> None:
    """The dead one may come back to life, or this root may be the one that was cut off."""
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", role="leaf")
    s1.insert("both have it")
    s1.tick()
    s2.catch_up()
    s2.tell()
    last = s2.position()
    s1.insert("only the root has it")
    s1.tick()
    leaf.catch_up()
    leaf.tell()
    s1.rows("select cascade.mark_dead('q', 's2')")
    assert s1.advance().tick_id == last
    for _ in range(3):
        s1.tick()
        assert s1.advance().tick_id == last
    s1.rows("select cascade.drop_member('q', 's2')")
    s1.tick()
    leaf.catch_up()
    leaf.tell()
    assert s1.advance().tick_id == leaf.position()


def test_a_dead_carrier_that_never_told_keeps_everything_at_the_root(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.add_member('q', 's2', 'branch')")
    s1.rows("select cascade.mark_dead('q', 's2')")
    s1.insert(1)
    s1.tick()
    assert s1.advance() == (1, False, "s1")


def test_a_root_alone_frees_what_its_consumers_have_read(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.subscribe('q', 'c')")
    s1.insert(1)
    tick = s1.tick()
    assert s1.advance() == (1, False, "s1")
    s1.drain()
    assert s1.advance() == (tick, True, "s1")


def test_a_watermark_that_is_published_twice_or_late_is_harmless(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    tick = nodes.settle()
    post = "select cascade_internal.post_control(q, 'cascade.global-watermark', %s) from cascade_internal.queue as q"
    for value in (tick, tick, 1, tick - 1):
        s1.rows(post, Jsonb({"tick_id": value}))
        nodes.settle()
    assert s2.watermark() == tick


def test_a_watermark_that_the_node_has_no_tick_for_is_ignored(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    post = "select cascade_internal.post_control(q, 'cascade.global-watermark', %s) from cascade_internal.queue as q"
    for value in (s1.position() + 1000, 0, None):
        s1.rows(post, Jsonb({"tick_id": value}))
        nodes.settle()
        assert s2.watermark() == 1
    assert same(s1, s2) == 5


def test_the_watermark_needs_read_committed(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.main.execute("begin isolation level repeatable read")
    with refused("QC501", "needs READ COMMITTED"):
        s1.advance()


# Idle sets


def test_an_idle_set_publishes_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for _ in range(5):
        nodes.tidy()
    quiet = (s1.controls(), s1.value("select count(*) from queue.q"))
    for _ in range(5):
        nodes.tidy()
    assert (s1.controls(), s1.value("select count(*) from queue.q")) == quiet
    assert s2.value("select count(*) from queue.q") == quiet[1]


def test_a_set_that_went_idle_publishes_its_last_watermark_and_no_more(nodes: Nodes) -> None:
    """A watermark is itself an event; were each answered by the next, no set would ever be quiet."""
    s1, s2 = nodes.line()
    s1.insert(*range(10))
    published = []
    for _ in range(10):
        nodes.settle()
        published.append(s1.advance().is_published)
    assert published == [True] + [False] * 9
    assert s2.watermark() == s1.watermark()


def test_a_set_that_went_idle_frees_its_old_events_everywhere(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(*range(10))
    nodes.settle()
    switch_all(nodes)
    eventually(lambda: is_freed(nodes), within_s=20)
    quiet = s1.controls()
    for _ in range(5):
        nodes.tidy()
    assert s1.controls() == quiet
    assert all(node.value("select blocked_by from cascade.rotation") is None for node in (s1, s2, s3))


def test_a_branch_whose_rotation_waits_is_served_though_the_root_does_not_wait(nodes: Nodes) -> None:
    """The last watermark stands on a tick that a branch holds in its old generation: it asks for one more."""
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    s1.advance()
    nodes.settle()
    s2.rotate("q")
    s2.rotate("q")
    assert s2.report()[0]["is_waiting"] is True
    assert s1.value("select cascade_internal.waits_for_watermark(q) from cascade_internal.queue as q") is False
    eventually(lambda: nodes.tidy() or events_held(s2) == 0, within_s=20)
    assert s2.report()[0]["is_waiting"] is False
    assert events_held(s1) == 1


# What a carrier keeps


def test_what_lies_above_the_watermark_is_kept_by_every_carrier(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    s1.insert(*range(5))
    s1.tick()
    s2.catch_up()
    s2.tell()
    switch_all(nodes)
    for _ in range(5):
        s1.tick()
        s2.catch_up()
        s2.tell()
        s1.advance()
        for node in (s1, s2):
            node.rotate()
    assert events_held(s1) == events_held(s2) == 5
    assert s2.value("select blocked_by from cascade.rotation") == "watermark"
    s3.catch_up()
    assert same(s1, s3) > 0
    switch_all(nodes)
    eventually(lambda: is_freed(nodes), within_s=20)


def test_a_new_branch_below_the_watermark_is_held_by_its_provider(nodes: Nodes) -> None:
    """It begins with the oldest tick its provider has; the others have let it go already, or may."""
    s1, s2 = nodes.line()
    s1.insert(*range(5))
    nodes.settle()
    switch_all(nodes)
    s1.insert("after the switch")
    nodes.settle()
    s1.advance()
    nodes.settle()
    s3 = nodes.add("s3", s2)
    assert s3.position() == 1 < s2.watermark()
    assert s1.member("s3") == s1.watermark()
    assert [s1.rotate(), s1.rotate()] == [[("released", 0)], [("truncated", 0)]]
    for _ in range(6):
        s1.tick()
        s2.catch_up()
        s2.tell()
        s1.advance()
        s2.rotate()
    assert (events_held(s1), events_held(s2)) == (1, 6)
    assert s2.row("select blocked_by, blocker from cascade.rotation") == ("subscriber", "s3")
    while s3.copy(max_ticks=1):
        pass
    assert same(s2, s3) > 5
    eventually(lambda: nodes.tidy() or events_held(s2) == 1, within_s=20)


def test_a_subscriber_that_copies_elsewhere_now_is_forgotten(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    assert s1.value("select cascade.forget_subscriber('q', 's2')") is True
    assert s1.value("select cascade.forget_subscriber('q', 's2')") is False
    assert told(s1, "s2") == (1, s2.position()), "its position still counts for the watermark"
    s1.insert(2)
    s1.tick()
    s2.catch_up()
    s2.tell()
    assert s1.value("select is_direct from cascade_internal.told") is True


def test_a_subscriber_that_was_silent_for_an_hour_holds_nothing_below_the_watermark(nodes: Nodes) -> None:
    s1, _ = nodes.line()
    hold = "select count(*) from cascade_internal.queue as q, cascade_internal.direct_subscribers(q)"
    assert s1.value(hold) == 1
    s1.main.execute("update cascade_internal.told set heard_at = heard_at - interval '61 min'")
    assert s1.value(hold) == 0


def test_switching_providers_loses_nothing_and_holds_nothing_up(nodes: Nodes) -> None:
    """Back and forth under load: who provides whom plays no part in what is kept."""
    s1, s2, s3 = nodes.line(3)
    s3.rows("select cascade.subscribe('q', 'c', 'earliest')")
    for number in range(12):
        s1.insert(number)
        if number % 3 == 0:
            s3.switch(s1 if s3.provider is s2 else s2)
            assert s3.join()["answer"] in ("on path", "behind")
        if number % 4 == 0:
            for node in (s1, s2, s3):
                node.rotate("q")
        if number % 2:
            s2.copy(max_ticks=2)
            s3.copy(max_ticks=2)
            s3.tell()
            s2.tell()
        s1.tick()
        s1.advance()
        for node in (s1, s2, s3):
            node.rotate()
    nodes.settle()
    assert s3.drain(max_ticks=100) == list(range(12))
    assert same(s1, s3) > 0


def test_a_stopped_node_keeps_its_events_on_all_carriers_and_marking_it_dead_frees_them(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    del nodes.made["s3"]
    s1.insert(*range(5))
    nodes.settle()
    switch_all(nodes)
    for _ in range(8):
        nodes.tidy()
    assert events_held(s1) == events_held(s2) == 5
    assert s1.row("select held_by from cascade.nodes") == ("s3",)
    s1.rows("select cascade.mark_dead('q', 's3')")
    eventually(lambda: is_freed(nodes), within_s=20)
    with refused("QC701", "s3 is no live member"):
        s3.fetch()
