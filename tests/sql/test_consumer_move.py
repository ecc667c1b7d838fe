"""A consumer goes from one node to another and goes on at the same tick, exactly once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.database import eventually
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes
from tests.fixtures.roles import role_on

Document = dict[str, Any]


def move(node: Node, to: str, consumer: str = "c", **options: Any) -> Document:
    """Take the first step, at the old node."""
    found: Document = node.value(
        "select cascade.move_consumer('q', %s, %s, %s)", consumer, to, options.get("dry_run", False)
    )
    return found


def accept(node: Node, document: Document, conn: psycopg.Connection[Any] | None = None, **changes: Any) -> Document:
    """Take the second step, at the new node."""
    given = {"dry_run": False} | document | changes
    query = "select cascade.accept_consumer(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    values = (
        *(given["queue"], given["consumer"], given["tick_id"], given["from"], given["move"], Jsonb(given["retries"])),
        *(given["roles"], given["chain"], given["dry_run"]),
    )
    row = (conn or node.main).execute(query.encode(), values).fetchone()
    assert row is not None
    found: Document = row[0]
    return found


def finish(node: Node, document: Document) -> bool:
    """Take the last step, at the old node."""
    return bool(node.value("select cascade.finish_move(%s, %s, %s)", *key(document)))


def cancel(node: Node, document: Document) -> bool:
    return bool(node.value("select cascade.cancel_move(%s, %s, %s)", *key(document)))


def refuse(node: Node, document: Document) -> bool:
    query = "select cascade.refuse_consumer(%s, %s, %s, %s)"
    return bool(node.value(query, document["queue"], document["consumer"], document["from"], document["move"]))


def key(document: Document) -> tuple[str, str, str]:
    return document["queue"], document["consumer"], document["move"]


def stands(node: Node, consumer: str = "c") -> int | None:
    """Return the tick of a consumer; None when it is not there."""
    found: int | None = node.value("select tick_id from cascade.consumers where consumer = %s", consumer)
    return found


@pytest.fixture
def pair(nodes: Nodes) -> tuple[Node, Node]:
    """A root and a branch with three ticks of events, and a consumer at the branch that has read one of them."""
    s1, s2 = nodes.line()
    s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
    for number in range(3):
        s1.insert(f"{number}a", f"{number}b")
        nodes.settle()
    while "0a" not in read(s2):
        pass
    return s1, s2


def read(node: Node, consumer: str = "c") -> list[Any]:
    """Take, read and finish one batch."""
    batch = node.next(consumer)
    assert batch is not None
    found = node.events(batch[0])
    node.finish(batch[0])
    return found


# Moving


@pytest.mark.parametrize("upwards", [True, False], ids=["to the root", "to a branch"])
def test_a_consumer_goes_on_at_the_same_tick(nodes: Nodes, pair: tuple[Node, Node], upwards: bool) -> None:
    s1, old = pair
    new = s1 if upwards else nodes.add("s3", s1)
    new is s1 or new.catch_up()
    nodes.settle()
    at = stands(old)
    document = move(old, new.node)
    assert (document["state"], document["tick_id"], document["from"], document["to"]) == ("moving", at, "s2", new.node)
    assert accept(new, document) == {
        "node": new.node, "consumer": "c", "tick_id": at, "is_new": True, "granted": [], "missing": [],
    }  # fmt: skip
    assert finish(old, document)
    assert stands(old) is None
    assert new.drain() == ["1a", "1b", "2a", "2b"]


def test_every_step_may_be_repeated(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    assert move(s2, "s1") == document, "whoever finds it half done goes on with it"
    first = accept(s1, document)
    assert s1.drain() == ["1a", "1b", "2a", "2b"]
    assert accept(s1, document) == first | {"is_new": False}
    assert s1.drain() == []
    assert finish(s2, document)
    assert not finish(s2, document)
    assert accept(s1, move(s2, "s1")) == first | {"is_new": False}
    assert move(s2, "s1")["state"] == "moved"


def test_a_consumer_that_left_reads_nothing_here_and_names_the_node(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    calls = (
        "cascade.next_batch('q', 'c')",
        "cascade.seek('q', 'c', 'earliest')",
        "cascade.subscribe('q', 'c')",
    )
    document = move(s2, "s1")
    for call in (*calls, "cascade.unsubscribe('q', 'c')"):
        with refused("QC213", 'is on its way to node "s1"'):
            s2.rows(f"select {call}")
    accept(s1, document)
    finish(s2, document)
    for call in calls:
        with pytest.raises(psycopg.Error) as caught:
            s2.rows(f"select {call}")
        assert caught.value.sqlstate == "QC213" and 'has moved to node "s1"' in str(caught.value)
        assert caught.value.diag.message_hint == "Read there, database db-s1; cascade consumer drop forgets it here."
        assert '"dsn": "service=s1"' in (caught.value.diag.message_detail or "")
    assert s2.value("select cascade.unsubscribe('q', 'c')") is True
    assert s2.value("select cascade.unsubscribe('q', 'c')") is False
    s2.rows("select cascade.subscribe('q', 'c')")


def test_a_consumer_comes_back(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    there = move(s2, "s1")
    accept(s1, there)
    finish(s2, there)
    assert read(s1) == ["1a", "1b"]
    back = move(s1, "s2")
    assert back["move"] != there["move"]
    accept(s2, back)
    finish(s1, back)
    assert s2.drain() == ["2a", "2b"]
    assert accept(s1, there)["is_new"] is False, "a late repetition of the first move makes no second one"
    assert stands(s1) is None


def test_between_the_steps_the_place_is_held_in_the_whole_set(nodes: Nodes, pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    for number in range(10):
        s1.insert(number)
        for node in nodes.made.values():
            node.rotate("q")
        nodes.tidy()
    accept(s1, document)
    finish(s2, document)
    nodes.tidy()
    assert s1.drain() == ["1a", "1b", "2a", "2b", *range(10)]


def test_a_place_that_has_been_left_is_held_no_longer(nodes: Nodes, pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    accept(s1, document)
    finish(s2, document)
    s1.drain()
    for node in nodes.made.values():
        node.rotate("q")
        node.rotate("q")

    def is_free() -> bool:
        nodes.tidy()
        s1.drain()
        return all(node.value("select count(*) from queue.q where origin is null") == 0 for node in (s1, s2))

    assert eventually(is_free)


def test_a_consumer_whose_batch_is_held_is_busy(pair: tuple[Node, Node]) -> None:
    _, s2 = pair
    batch = s2.next()
    assert batch is not None
    with refused("QC214", "is busy: batch"):
        move(s2, "s1")
    with refused("QC214", "is busy: batch"):
        move(s2, "s1", dry_run=True)
    s2.rows("select cascade.release_batch(%s)", batch[0])
    batch = s2.next(worker="w", lease="1 minute")
    assert batch is not None
    with refused("QC214", 'by worker "w" until'):
        move(s2, "s1")
    assert s2.next(worker="w") is not None, "it goes on where it is"


@pytest.mark.parametrize("how", ["given back", "lease over"])
def test_what_nobody_holds_is_read_at_the_new_node(pair: tuple[Node, Node], how: str) -> None:
    s1, s2 = pair
    at = stands(s2)
    batch = s2.next(worker="w", lease="1 ms" if how == "lease over" else "1 minute")
    assert batch is not None
    if how == "given back":
        s2.rows("select cascade.release_batch(%s)", batch[0])
    document = eventually(lambda: attempt(lambda: move(s2, "s1")))
    assert document["tick_id"] == at
    with refused("QC203"):
        s2.finish(batch[0])
    accept(s1, document)
    assert s1.drain() == ["1a", "1b", "2a", "2b"]


def attempt(call: Any) -> Any:
    try:
        return call()
    except psycopg.Error as error:
        assert error.sqlstate == "QC214"
        return None


def test_what_was_finished_after_an_unfinished_batch_keeps_it_here(pair: tuple[Node, Node]) -> None:
    """Elsewhere it would come a second time."""
    _, s2 = pair
    first, second = s2.next(worker="a"), s2.next(worker="b")
    assert first is not None and second is not None
    s2.finish(second[0])
    s2.rows("select cascade.release_batch(%s)", first[0])
    with refused("QC214", "has finished batches after one that is not"):
        move(s2, "s1")
    s2.drain()
    assert move(s2, "s1")["state"] == "moving"


def test_events_put_back_travel_along_byte_for_byte(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    s1.main.execute(
        """insert into queue.q (type, key, payload, headers) values ('t', 'k', '{"b" : 1,  "a":"\\u0000"}', '[1 ]')"""
    )
    s1.tick()
    s2.catch_up()
    while True:
        batch = s2.next()
        assert batch is not None
        events = s2.rows("select id, key from cascade.batch_events(%s)", batch[0])
        for event_id, event_key in events:
            if event_key == "k":
                s2.rows("select cascade.retry_event(%s, %s, '0')", batch[0], event_id)
        s2.finish(batch[0])
        if any(event_key == "k" for _, event_key in events):
            break
    # Delivered once more and given back, and asked for again by the batch that was not finished.
    batch = s2.next()
    assert batch is not None
    s2.rows("select cascade.retry_event(%s, %s, '0')", batch[0], events[-1][0])
    s2.rows("select cascade.release_batch(%s)", batch[0])
    document = move(s2, "s1")
    assert [(found["event_id"], found["attempt"]) for found in document["retries"]] == [(events[-1][0], 2)]
    accept(s1, document)
    finish(s2, document)
    batch = s1.next()
    assert batch is not None
    query = "select id, payload::text, headers::text, attempt, type from cascade.batch_events(%s) where key = 'k'"
    assert s1.rows(query, batch[0]) == [(events[-1][0], '{"b" : 1,  "a":"\\u0000"}', "[1 ]", 2, "t")]
    s1.finish(batch[0])
    assert s1.drain() == []


def test_a_tick_that_has_not_arrived_is_waited_for(nodes: Nodes, pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    s3 = nodes.add("s3", s1, at="earliest")
    s2.drain()
    s1.insert("new")
    s1.tick()
    s2.catch_up()
    s2.drain()
    document = move(s2, "s3")
    with refused("QC708", "has not come to tick"):
        accept(s3, document)
    s3.catch_up()
    accept(s3, document)
    assert finish(s2, document)


def test_a_tick_that_is_gone_is_refused_and_the_consumer_taken_back(nodes: Nodes, pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    s3 = nodes.add("s3", s1, at=str(s1.tick()))
    nodes.settle()
    with refused("QC402"):
        accept(s3, move(s2, "s3", dry_run=True), dry_run=True)
    document = move(s2, "s3")
    with refused("QC402"):
        accept(s3, document)
    assert stands(s3) is None
    assert refuse(s3, document) and refuse(s3, document)
    assert cancel(s2, document)
    with refused("QC209", "for good"):
        accept(s3, document)
    with refused("QC209", "not being moved"):
        finish(s2, document)
    with refused("QC209", "not being moved"):
        cancel(s2, document)
    assert s2.drain() == ["1a", "1b", "2a", "2b"]


def test_a_consumer_that_has_arrived_is_not_taken_back(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    accept(s1, document)
    assert refuse(s1, document) is False
    assert stands(s1) == document["tick_id"]
    finish(s2, document)
    assert cancel(s2, document) is False


def test_another_history_is_refused(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    with refused("QC706", "is another one than that of s2"):
        accept(s1, document, chain="\\x00")
    accept(s1, document)


def test_a_name_that_is_taken_is_refused(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    s1.rows("select cascade.subscribe('q', 'c')")
    at = stands(s1)
    with refused("QC215", 'has a consumer "c" of queue "q" already'):
        accept(s1, move(s2, "s1"))
    assert stands(s1) == at


def test_who_cannot_be_moved_and_where_to_is_said(nodes: Nodes, pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    leaf = nodes.add("s9", s1, role="leaf")
    nodes.settle()
    for to, code in (("s2", "QC208"), ("s9", "QC208"), ("nowhere", "QC106")):
        with refused(code):
            move(s2, to)
    nodes.add("s3", s1)
    s1.rows("select cascade.mark_dead('q', 's3')")
    s1.tick()
    s2.catch_up()
    with refused("QC208"):
        move(s2, "s3")
    with refused("QC102"):
        move(s2, "s1", "stranger")
    with refused("QC001"):
        move(s2, "s1", ".handler")
    document = move(s2, "s1", dry_run=True)
    assert (document["state"], document["move"], stands(s2)) == ("at home", None, document["tick_id"])
    assert read(s2) == ["1a", "1b"], "a dry run stops nobody"
    with refused("QC208", "is a leaf"):
        accept(leaf, document | {"move": "00000000-0000-0000-0000-000000000001"})
    s2.main.execute("update cascade_internal.subscription set is_movable = false where consumer = 'c'")
    with refused("QC208", 'is local to node "s2"'):
        move(s2, "s1")
    s2.main.execute("update cascade_internal.subscription set is_movable = true where consumer = 'c'")
    move(s2, "s1")
    with refused("QC213", 'on its way to node "s1"'):
        move(s2, "nowhere")


def test_two_who_accept_at_once_make_one_consumer(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    document = move(s2, "s1")
    first, second = s1.connect(autocommit=False), s1.connect()
    assert accept(s1, document, first)["is_new"]
    found: list[Document] = []
    thread = threading.Thread(target=lambda: found.append(accept(s1, document, second)))
    thread.start()
    eventually(lambda: s1.value("select count(*) from pg_locks where not granted") == 1)
    first.commit()
    thread.join()
    assert [answer["is_new"] for answer in found] == [False]
    assert s1.drain() == ["1a", "1b", "2a", "2b"]


def test_a_batch_is_taken_before_a_move_or_not_at_all(pair: tuple[Node, Node]) -> None:
    _, s2 = pair
    mover, reader = s2.connect(autocommit=False), s2.connect()
    mover.execute("select cascade.move_consumer('q', 'c', 's1')")
    found: list[str | None] = []

    def take() -> None:
        try:
            reader.execute("select cascade.next_batch('q', 'c')")
            found.append("taken")
        except psycopg.Error as error:
            found.append(error.sqlstate)

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: s2.value("select count(*) from pg_locks where not granted") == 1)
    mover.commit()
    thread.join()
    assert found == ["QC213"]


@pytest.fixture
def role(pair: tuple[Node, Node]) -> Iterator[str]:
    """A role of both nodes' server."""
    with role_on(*pair) as made:
        yield made


def test_roles_that_are_there_may_read_there_and_the_others_are_listed(pair: tuple[Node, Node], role: str) -> None:
    s1, s2 = pair
    s2.rows("select cascade.grant_consumer('q', 'c', %s)", role)
    s2.main.execute(
        "insert into cascade_internal.consumer_grant select queue_id, 'c', 'elsewhere' from cascade_internal.queue"
    )
    planned = accept(s1, move(s2, "s1", dry_run=True), dry_run=True)
    document = move(s2, "s1")
    assert sorted(document["roles"]) == sorted(["elsewhere", role])
    answer = accept(s1, document)
    assert (answer["granted"], answer["missing"]) == ([role], ["elsewhere"])
    assert planned == answer
    finish(s2, document)
    assert s1.connect(role).execute("select * from cascade.next_batch('q', 'c')").fetchone() is not None
