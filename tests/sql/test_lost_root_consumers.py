"""The consumers of a lost root are made anew from what it published: at least once."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, fail_over, resurrect, stand_down
from tests.fixtures.nodes import Node, Nodes


def stands(node: Node, consumer: str = "c") -> int | None:
    """Return the tick of a consumer; None when it is not there."""
    found: int | None = node.value("select tick_id from cascade.consumers where consumer = %s", consumer)
    return found


def recreate(node: Node, of: str, cause: str = "failover") -> dict[str, dict[str, Any]]:
    """Have a node make the consumers of a lost root anew; its fence is down, as a promotion has it."""
    node.main.execute("drop trigger if exists cascade_fence on queue.q")
    found = node.value(
        "select cascade_internal.recreate_consumers(q, %s, %s) from cascade_internal.queue as q", of, cause
    )
    assert (found["node"], found["cause"], found["guarantee"]) == (of, cause, "at least once")
    return {consumer["consumer"]: consumer for consumer in found["consumers"]}


def published(node: Node, of: str = "s1") -> dict[str, int]:
    return dict(node.rows("select consumer, tick_id from cascade_internal.root_consumer where node = %s", of))


def test_a_root_publishes_where_its_consumers_stand(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.tidy()
    assert published(s2) == {}
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.rows("select cascade.subscribe('q', 'b')")
    s1.rows("select cascade.subscribe('q', 'local')")
    s1.main.execute("update cascade_internal.subscription set is_movable = false where consumer = 'local'")
    s1.insert(1)
    nodes.tidy()
    nodes.tidy()
    assert published(s2) == published(s1) == {"a": stands(s1, "a"), "b": stands(s1, "b")}
    s1.drain("a")
    nodes.tidy()
    nodes.tidy()
    assert published(s2)["a"] > published(s2)["b"]
    s1.rows("select cascade.unsubscribe('q', 'b')")
    nodes.tidy()
    nodes.tidy()
    assert set(published(s2)) == {"a"}


def test_an_idle_set_publishes_no_positions(nodes: Nodes) -> None:
    """Ticks without events move consumers, and a control event makes a tick: it must not go round for ever."""
    s1, _ = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a')")
    s1.insert(1)
    for _ in range(3):
        nodes.tidy()
        s1.drain("a")
    before = s1.controls("consumers")
    assert before > 0
    for _ in range(5):
        s1.tick()
        s1.drain("a")
        nodes.tidy()
    assert s1.controls("consumers") == before
    s1.insert(2)
    nodes.tidy()
    s1.drain("a")
    nodes.tidy()
    assert s1.controls("consumers") > before


def test_a_new_term_publishes_anew(nodes: Nodes) -> None:
    """What an older root of this name said may have been lost with its tail."""
    s1, _ = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a')")
    nodes.tidy()
    before = s1.controls("consumers")
    nodes.tidy()
    assert s1.controls("consumers") == before
    s1.main.execute("update cascade_internal.queue set term_uid = gen_random_uuid()")
    s1.advance()
    assert s1.controls("consumers") == before + 1


def test_consumers_of_a_lost_root_are_made_anew_and_miss_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert("seen, and known to be")
    nodes.tidy()
    s1.drain("a")
    nodes.tidy()
    nodes.settle()
    s1.insert("seen, and not known to be")
    s1.insert("not seen")
    nodes.settle()
    s1.drain("a")
    found = recreate(s2, "s1")
    assert found["a"]["state"] == "re-created" and found["a"]["tick_id"] == found["a"]["published_tick"]
    assert s2.drain("a") == ["seen, and not known to be", "not seen"]
    assert recreate(s2, "s1")["a"]["state"] == "left alone", "a promotion may be repeated"


def test_consumers_outlive_a_second_root_that_is_lost_at_once(nodes: Nodes) -> None:
    """All that s3 gets of the second reign is its opening tick."""
    s1, s2, s3 = nodes.line(3)
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert("not seen")
    nodes.tidy()
    nodes.tidy()
    fail_over(s2, s3)
    s3.join()
    assert (s3.catch_up(), s3.position()) == (1, s2.position())
    assert published(s3, "s2") == {"a": stands(s2, "a")}
    fail_over(s3)
    assert s3.drain("a") == ["not seen"]


def test_consumers_that_a_new_root_had_as_a_branch_outlive_it(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s2.rows("select cascade.subscribe('q', 'b', 'earliest')")
    s1.insert("not seen")
    nodes.tidy()
    Switchover(s1, s2).run()
    s3.join()
    s3.catch_up()
    fail_over(s3)
    assert s3.drain("b") == ["not seen"]


def test_what_is_there_is_left_alone(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert(1)
    nodes.tidy()
    nodes.settle()
    s2.rows("select cascade.subscribe('q', 'a')")
    at = stands(s2, "a")
    assert recreate(s2, "s1")["a"]["tick_id"] == at
    assert stands(s2, "a") == at


def test_after_a_switchover_nothing_is_made_anew(nodes: Nodes) -> None:
    """The old root is a branch now and goes on serving its consumers."""
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    nodes.tidy()
    nodes.settle()
    assert published(s2) and recreate(s2, "s1", "switchover") == {}
    assert stands(s2, "a") is None


def test_a_position_that_is_not_held_becomes_the_first_that_is(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    nodes.tidy()
    nodes.settle()
    s2.main.execute("update cascade_internal.root_consumer set tick_id = 0")
    first = s2.value("select min(tick_id) from cascade.ticks")
    found = recreate(s2, "s1")["a"]
    assert (found["state"], found["tick_id"], found["published_tick"]) == ("first held tick", first, 0)


def test_what_was_put_back_is_said_to_be_lost(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert("put back")
    s1.tick()
    while batch := s1.next("a"):
        for (event_id,) in s1.rows("select id from cascade.batch_events(%s)", batch[0]):
            s1.rows("select cascade.retry_event(%s, %s, '1 hour')", batch[0], event_id)
        s1.finish(batch[0])
    nodes.tidy()
    nodes.settle()
    assert recreate(s2, "s1")["a"]["retries_lost"] == 1


def test_an_old_root_that_returns_sends_its_readers_on(nodes: Nodes) -> None:
    """It reads in the log that its consumers are elsewhere, whatever else has to happen before it joins."""
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.rows("select cascade.subscribe('q', 'mine')")
    s1.main.execute("update cascade_internal.subscription set is_movable = false where consumer = 'mine'")
    nodes.tidy()
    nodes.settle()
    recreate(s2, "s1")
    (payload,) = s2.rows("select payload from queue.q where type = 'cascade.recreated'")[0]
    s1.rows(
        "select cascade_internal.apply_control(q, 'cascade.recreated', %s) from cascade_internal.queue as q",
        Jsonb(payload),
    )
    with refused("QC213", 'has moved to node "s2"'):
        s1.next("a")
    assert stands(s1, "mine") is not None
    s2.rows(
        "select cascade_internal.apply_control(q, 'cascade.recreated', %s) from cascade_internal.queue as q",
        Jsonb(payload),
    )
    assert stands(s2, "a") is not None, "it is about s1's only"


def test_a_failover_takes_the_consumers_along(nodes: Nodes) -> None:
    """And the old root, when it returns, keeps none of them: its readers are sent to the new one."""
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert("before")
    nodes.tidy()
    nodes.settle()
    s1.insert("lost with the tail")
    s1.tick()
    assert "before" in s1.drain("a")
    made = fail_over(s2)
    assert [(found["consumer"], found["state"]) for found in made["consumers"]] == [("a", "re-created")]
    s2.insert("after")
    s2.tick()
    assert s2.drain("a") == ["before", "after"]
    stand_down(s1, s2)
    resurrect(s1, s2)
    s1.catch_up()
    with refused("QC213", 'has moved to node "s2"'):
        s1.next("a")
    with refused("QC213", 'has moved to node "s2"'):
        s1.rows("select cascade.subscribe('q', 'a')")


def test_a_consumer_on_its_way_does_not_keep_a_node_from_being_resurrected(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.rows("select cascade.subscribe('q', 'a')")
    s1.insert("lost with the tail")
    s1.tick()
    s1.drain("a")
    document = s1.value("select cascade.move_consumer('q', 'a', 's2')")
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    s1.catch_up()
    with refused("QC103"):
        s2.rows(
            "select cascade.accept_consumer('q', 'a', %s, 's1', %s, chain => %s)",
            *(document["tick_id"], document["move"], document["chain"]),
        )
    assert s2.value("select cascade.refuse_consumer('q', 'a', 's1', %s)", document["move"]) is True
    assert s1.value("select cascade.cancel_move('q', 'a', %s)", document["move"]) is True
    s2.insert("after")
    s2.tick()
    s1.catch_up()
    assert s1.drain("a") == ["after"]


def test_a_switchover_leaves_the_consumers_where_they_are(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert("before")
    nodes.tidy()
    nodes.settle()
    assert Switchover(s1, s2).run()["consumers"] == []
    s2.insert("after")
    s2.tick()
    s1.catch_up()
    assert s1.drain("a") == ["before", "after"]
    assert stands(s2, "a") is None


def test_a_fenced_root_publishes_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.tidy()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    change = Switchover(s1, s2)
    change.begin()
    change.fence()
    s1.advance()
    assert s1.controls("consumers") == 0
    s1.value("select cascade.drop_fence('q', %s)", change.op_id)
    s1.advance()
    assert s1.controls("consumers") == 1


def test_a_new_member_is_told_what_was_published_before(nodes: Nodes) -> None:
    """It may begin to copy after that, and be the one that is promoted."""
    s1 = nodes.root()
    s1.rows("select cascade.subscribe('q', 'a', 'earliest')")
    s1.insert(1)
    s1.tick()
    s1.advance()
    s2 = nodes.add("s2", at=str(s1.tick()))
    assert s2.controls("consumers") == 0
    assert published(s2) == published(s1) != {}
