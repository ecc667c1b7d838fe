"""Work mode on the nodes of a set: a branch, a new root, another node, and a set that lost events."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, fail_over, resurrect, stand_down
from tests.fixtures.nodes import Node, Nodes
from tests.fixtures.work import Work


def ids(work: Work) -> dict[Any, int]:
    """Return the ids of a queue's events by what they say."""
    return dict(work.db.rows("select payload #>> '{}', id from queue.q where origin is null"))


def go(old: Node, new: Node, consumer: str = "w") -> dict[str, Any]:
    """Move a consumer, all three steps."""
    plan = dict(old.value("select cascade.move_consumer('q', %s, %s)", consumer, new.node))
    accept = "select cascade.accept_consumer('q', %s, %s, %s, %s, %s, %s, %s)"
    given = (plan["tick_id"], plan["from"], plan["move"], Jsonb(plan["retries"]), plan["roles"])
    new.value(accept, consumer, *given, bytes.fromhex(plan["chain"].removeprefix("\\x")))
    old.value("select cascade.finish_move('q', %s, %s)", consumer, plan["move"])
    return plan


def test_consumers_of_a_branch_go_on_when_it_becomes_the_root(nodes: Nodes) -> None:
    """So do those of the old root, which is a branch then; neither does what it did before again."""
    s1, s2 = nodes.line()
    old, new = Work(s1), Work(s2)
    s1.insert("a", "b", "c")
    nodes.settle()
    held, mine = new.claim(), old.claim()
    assert (held[0].payload, mine[0].payload) == ("a", "a")
    Switchover(s1, s2).run()
    s2.insert("d")
    s2.tick()
    s1.join()
    s1.catch_up()
    assert new.complete(held[0].claim_id) == old.complete(mine[0].claim_id) == 1
    assert sorted(new.drain()) == sorted(old.drain()) == ["b", "c", "d"]


def test_a_consumer_takes_its_messages_along(nodes: Nodes) -> None:
    """Done ones stay done; the others go on with their attempts, their errors, their time, and their options."""
    s1, s2 = nodes.line()
    work = Work(s1, max_attempts=2, backoff_delay="1 hour", selector='$.payload != "unwanted"')
    s1.insert("done", "unwanted", "failed", "dead", "plain")
    s1.rows("select cascade.post('q', '\"later\"', delay => '1 hour'), cascade.post('q', '\"soon\"', priority => 4)")
    nodes.settle()
    messages = {message.payload: message for message in work.claim(5)}
    work.complete(messages["done"].claim_id, messages["done"].id)
    with refused("QC214", "is busy"):
        s1.value("select cascade.move_consumer('q', 'w', 's2')")
    work.fail(messages["failed"])
    s1.rows("select cascade.bury(%s, %s, 'bad')", messages["dead"].claim_id, messages["dead"].id)
    s1.rows("select cascade.release(%s)", messages["plain"].claim_id)
    before = work.states()
    plan = go(s1, s2)
    assert sorted(message["id"] for message in plan["retries"]["messages"]) == sorted(
        id for id, state in before.items() if state != "dead"
    )
    with refused("QC213", 'has moved to node "s2"'):
        work.claim()
    s1.insert("after", "unwanted")
    nodes.settle()
    work.db = s2
    assert work.states() == before
    assert sorted(work.drain()) == ["after", "plain", "soon"]
    assert {*work.states().values()} == {"delayed", "dead"}
    s2.rows("select cascade.retry_message('q', 'w', %s)", [*work.states()])
    later = {message.payload: message.attempt for message in work.claim(5)}
    assert later == {"failed": 2, "later": 1}
    assert s2.rows("select attempts, error from cascade.dead_messages('q', 'w')") == [(1, "bad")]
    assert s1.rows("select from cascade_internal.work_chunk") == []


def test_a_consumer_with_much_before_it_stays(nodes: Nodes) -> None:
    s1, _ = nodes.line()
    work = Work(s1)
    work.publish_many(10_001)
    s1.rows("select * from cascade.dispatch_work()")
    with refused("QC214", "10001 messages before it"):
        s1.value("select cascade.move_consumer('q', 'w', 's2')")
    assert len(work.claim(1)) == 1


def test_consumers_of_a_lost_root_are_made_anew_in_work_mode(nodes: Nodes) -> None:
    """At least once: a chunk that was not finished comes again; rows were at the root only, and are said to be lost."""
    s1, s2 = nodes.line()
    unfinished, tidy = Work(s1, "unfinished", max_attempts=7, selector="$.payload != 0"), Work(s1, "tidy")
    s1.insert(0, 1, 2)
    nodes.tidy()
    first = unfinished.claim(2)
    unfinished.complete(first[0].claim_id, first[0].id)
    tidy.fail(tidy.claim()[0], retry_in="1 hour")
    tidy.drain()
    tidy.tend()
    for _ in range(2):
        nodes.tidy()
        nodes.settle()
    made = {found["consumer"]: found for found in fail_over(s2)["consumers"]}
    s2.insert(3)
    s2.tick()
    assert {name: (found["state"], found["retries_lost"]) for name, found in made.items()} == {
        "unfinished": ("re-created", 0),
        "tidy": ("re-created", 1),
    }
    unfinished.db = tidy.db = s2
    options = "select options->>'max_attempts' from cascade_internal.work_consumer where selector is not null"
    assert s2.value(options) == "7"
    assert sorted(unfinished.drain()) == [1, 2, 3]
    assert tidy.drain() == [3]


def test_messages_that_a_set_lost_are_forgotten_and_those_begun_with_are_stated(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    work = Work(s1, backoff_delay="1 hour")
    s1.main.execute("update cascade_internal.subscription set is_movable = false where consumer = 'w'")
    s1.insert("kept", "kept too")
    nodes.settle()
    s1.insert("failed", "claimed", "done", "free", "free too")
    s1.rows("select cascade.post('q', '\"later\"', delay => '1 hour')")
    s1.tick()
    number = ids(work)
    messages = {message.payload: message for message in work.claim(5)}
    assert set(messages) == {"kept", "kept too", "failed", "claimed", "done"}
    work.complete(messages["done"].claim_id, messages["done"].id)
    work.fail(messages["failed"])
    made = fail_over(s2)
    s2.insert("new")
    s2.tick()
    stand_down(s1, s2)
    found = resurrect(s1, s2)
    [phantom] = [phantom for phantom in found["phantoms"] if phantom["consumer"] == "w"]
    assert phantom["from_tick"] == made["fork_tick"]
    events = "select events from cascade_internal.phantom where consumer = 'w'"
    assert s1.value(events) == 3, "failed, claimed and done; nobody had begun with the others"
    assert work.states() == {number["kept"]: "active", number["kept too"]: "active"}
    with refused("QC217", f"does not hold message {number['claimed']}"):
        work.complete(messages["claimed"].claim_id, number["claimed"])
    assert work.complete(messages["kept"].claim_id) == 2
    s1.join()
    s1.catch_up()
    assert work.drain() == ["new"]
