"""Copying: verbatim, whole or not at all, and never past a change; and the control events on the way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.nodes import Fetched, Node, Nodes, same
from tests.fixtures.roles import add_to, role_on

#: Accepted by json and to be carried as they are; jsonb would change or refuse most of them.
ODD = [
    '{"a": 1, "a": 2}',
    r'"\u0000"',
    r'"\ud800"',
    r'{"\ud800": "\udc00"}',
    "1e400000",
    "-0",
    "0.10000000000000000000000000000000000001",
    ' \n\t{ "b" :[ ] , "a":   null } ',
    '"é𝄞 \\/ \u2028"',
    "null",
    '""',
    "[" * 500 + "]" * 500,
    '"' + "x" * 100_000 + '"',
    '"' + "".join(chr(33 + n * 7919 % 90) for n in range(30_000)).replace("\\", "/").replace('"', "'") + '"',
]


@pytest.fixture(params=[0, 128 * 1024], ids=["by copy", "inline"])
def nodes(nodes: Nodes, request: pytest.FixtureRequest) -> Nodes:
    """Everything is tried both ways: events piped from COPY to COPY, and events that come with their ticks."""
    nodes.small_bytes = request.param
    return nodes


def fetched_by(node: Node, **limits: int) -> Fetched:
    found = node.fetch(**limits)
    assert found is not None
    return found


def texts(node: Node) -> list[tuple[Any, ...]]:
    """All events as they are stored, the partition aside."""
    return node.rows(
        "select id, time, txid, type, key, payload::text, headers::text, origin, origin_id from queue.q order by id"
    )


# What arrives


def test_a_copy_is_verbatim(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    put = "insert into queue.q (type, key, payload, headers) values (%s, %s, %s::json, %s::json)"
    for number, odd in enumerate(ODD):
        headers = None if number % 3 == 0 else ODD[(number * 5) % len(ODD)]
        s1.main.execute(put, ([None, "", "t", "é"][number % 4], [None, "k", ""][number % 3], odd, headers))
    nodes.settle()
    stored = [row[5] for row in texts(s2) if row[7] is None]
    assert stored == ODD
    assert texts(s1) == texts(s2)
    assert same(s1, s2) == len(texts(s1))


def test_a_copy_of_a_copy_is_verbatim(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(*range(20))
    nodes.settle()
    assert texts(s1) == texts(s2) == texts(s3)
    assert same(s1, s3) == same(s2, s3) == len(texts(s1))


def test_many_ticks_are_copied_in_one_step(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for number in range(30):
        s1.insert(number, number)
        s1.tick()
    fetched = fetched_by(s2)
    assert (len(fetched.ticks), fetched.events) == (31, 60)
    s2.store(fetched)
    assert s2.fetch() is None
    assert s2.position() == s1.position()
    assert same(s1, s2) == 61


def test_the_limits_of_a_step_are_kept_and_one_tick_always_fits(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.catch_up()
    for size in (1, 2, 3, 50, 1):
        s1.insert(*range(size))
        s1.tick()
    taken = []
    while fetched := s2.copy(max_ticks=2, max_events=4):
        taken.append((len(fetched.ticks), fetched.events))
    assert taken == [(2, 3), (1, 3), (1, 50), (1, 1)]
    assert same(s1, s2) == 58


def test_a_range_of_large_events_ends_before_it_is_too_large(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.catch_up()
    # What does not shrink when it is compressed is as large in the partition as on the wire.
    put = (
        "insert into queue.q (payload) select to_json(t.text) from generate_series(1, %s),"
        " (select string_agg(md5(n::text), '') as text from generate_series(1, 65536) as n) as t"
    )
    for count in (1, 1, 20, 1, 2, 2, 2, 2, 2, 2, 2, 2):
        s1.main.execute(put, (count,))
        s1.tick()
    taken = []
    while fetched := s2.copy():
        taken.append((len(fetched.ticks), fetched.events))
    # 2 MiB each: at most 16 of them, unless they are in one tick.
    assert sum(events for _, events in taken) == 39
    assert (1, 20) in taken
    assert all(events <= 16 or ticks == 1 for ticks, events in taken)
    assert len(taken) <= 6
    assert same(s1, s2) == 40


def test_empty_ticks_are_copied_too(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    ticks = [s1.tick() for _ in range(3)]
    s2.catch_up()
    assert [tick[0] for tick in s2.log().ticks][-3:] == ticks
    assert same(s1, s2) == 1


def test_nothing_in_flight_at_the_root_is_missed_or_doubled(nodes: Nodes) -> None:
    """Long transactions, savepoints, prepared ones: each event is in the batch it is in at the root."""
    s1, s2 = nodes.line()
    s1.backend.need_prepared()
    s1.rows("select cascade.subscribe('q', 'c')")
    s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
    long, prepared, lost = (s1.connect(autocommit=False) for _ in range(3))
    s1.insert("long 1", conn=long)
    s1.insert("lost", conn=lost)
    prepared.autocommit = True
    prepared.execute("begin")
    s1.insert("prepared", conn=prepared)
    prepared.execute(f"prepare transaction 'later {s1.name}'".encode())
    nodes.settle()
    s1.insert("plain 1")
    long.execute("savepoint a")
    s1.insert("never", conn=long)
    long.execute("rollback to a")
    long.execute("savepoint b")
    s1.insert("long 2", conn=long)
    nodes.settle()
    lost.rollback()
    s1.insert("plain 2")
    s1.tick()
    long.commit()
    s1.tick()
    prepared.execute(f"commit prepared 'later {s1.name}'".encode())
    nodes.settle()
    expected = ["plain 1", "plain 2", "long 1", "long 2", "prepared"]
    assert s1.drain(max_ticks=1) == s2.drain(max_ticks=1) == expected
    assert same(s1, s2) == 6


def test_consumers_on_root_and_copy_are_given_the_same_batches(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for node in (s1, s2):
        node.rows("select cascade.subscribe('q', 'c', 'earliest')")
    for number in range(6):
        s1.insert(*range(number))
        s1.tick()
    s2.catch_up(max_ticks=4)

    def batches(node: Node) -> list[tuple[Any, ...]]:
        found = []
        while batch := node.next(max_ticks=2):
            rows = node.rows("select id, time, txid, type, payload::text from cascade.batch_events(%s)", batch[0])
            found.append((*batch[1:], rows))
            node.finish(batch[0])
        return found

    theirs = batches(s1)
    assert batches(s2) == theirs
    assert sum(batch[2] for batch in theirs) == 15


def test_a_batch_that_lies_in_several_generations_of_the_provider_is_copied_whole(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    early = s1.connect(autocommit=False)
    s1.insert("generation 0", conn=early)
    for _ in range(2):
        s1.rotate("q")
    s1.insert("generation 1", conn=early)
    s1.insert("plain")
    early.commit()
    assert len(s1.rows("select distinct slot from queue.q where origin is null")) == 2
    s1.tick()
    s2.catch_up()
    assert same(s1, s2) == 4
    assert len(s2.rows("select distinct slot from queue.q")) == 1


def test_a_copy_rotates_by_itself_and_between_any_two_steps(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
    for number in range(4):
        s1.insert(number)
        s1.tick()
        fetched = fetched_by(s2)
        s2.rotate("q")
        s2.store(fetched)
    assert len(s2.rows("select distinct slot from queue.q")) > 1
    assert s2.drain() == [0, 1, 2, 3]
    assert same(s1, s2) == 5


def test_a_rotation_waits_for_a_copy_under_way(nodes: Nodes) -> None:
    """Were the partition switched under it, its ticks would claim a generation that the events are not in."""
    s1, s2 = nodes.line()
    s1.tick()
    fetched = fetched_by(s2)
    copying = s2.connect(autocommit=False)
    copying.execute("select cascade.begin_copy('q', 's1', %s, %s, %s)", (fetched.generation, *fetched.after))
    s2.main.execute("set lock_timeout = '1min'")
    assert s2.rotate("q") == [("waiting", 0)]
    assert s2.value("show lock_timeout") == "1min"
    copying.rollback()
    assert s2.rotate("q") == [("switched", 1)]


def test_a_rotation_waits_for_a_slow_copy_but_a_moment_and_for_nothing_else_meanwhile(nodes: Nodes) -> None:
    """A leaf's handler may keep its queue for hours; other queues of the database are none of its business."""
    s1 = nodes.root(rotation_period="0")
    s2 = nodes.database("s2")
    s2.queue("own", rotation_period="0")
    nodes.add("s2", role="leaf")
    s1.tick()
    fetched = fetched_by(s2)
    copying = s2.connect(autocommit=False)
    copying.execute("select cascade.begin_copy('q', 's1', %s, %s, %s)", (fetched.generation, *fetched.after))
    s2.main.execute("set statement_timeout = '20s'")
    # The queue that takes inserts comes last: nothing of it is locked while the copy is waited for.
    assert s2.rows("select queue_name, action, generation, detail from cascade.rotate()") == [
        ("q", "waiting", 0, "a copy or its handler"),
        ("own", "switched", 1, None),
    ]
    copying.rollback()
    assert ("switched", 1) in s2.rotate()


def test_a_daemon_needs_no_more_than_the_role_cascade_node(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    with role_on(s1, s2) as daemon:
        add_to(s1, daemon, "cascade_node")
        mine = {node: (node.main, node.connect(user=daemon)) for node in (s1, s2)}
        for node, (_, conn) in mine.items():
            node._main = conn
        assert s2.join()["answer"] == "on path"
        assert s2.catch_up() == 1
        assert s2.tell() == 1
        assert s1.advance().is_published
        with refused("42501", hint=False):
            s2.rows("select cascade.drop_member('q', 's2')")
        for node, (owner, conn) in mine.items():
            conn.close()
            node._main = owner
    assert same(s1, s2) == 2


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_writing_ticking_rotating_and_copying_gives_equal_nodes(nodes: Nodes, seed: int) -> None:
    """Every consumer on every node is given each committed event once, whatever the steps and their limits."""
    chance = random.Random(seed)
    s1, s2, s3 = nodes.line(3)
    carriers = (s1, s2, s3)
    for node in carriers:
        node.rows("select cascade.subscribe('q', 'c', 'earliest')")
    writers = [s1.connect(autocommit=False) for _ in range(3)]
    pending: list[list[str]] = [[] for _ in writers]
    committed: list[str] = []
    read: dict[str, list[str]] = {node.node: [] for node in carriers}
    names = (f"e{number}" for number in itertools.count())

    def write() -> None:
        at = chance.randrange(len(writers))
        match chance.choice(["insert", "insert", "savepoint", "commit", "rollback"]):
            case "insert":
                pending[at].append(next(names))
                s1.insert(pending[at][-1], conn=writers[at])
            case "savepoint":
                writers[at].execute("savepoint s")
                s1.insert("undone", conn=writers[at])
                writers[at].execute(chance.choice([b"rollback to s", b"rollback to s; release s"]))
            case "commit":
                writers[at].commit()
                committed.extend(pending[at])
                pending[at] = []
            case "rollback":
                writers[at].rollback()
                pending[at] = []

    def read_some() -> None:
        node = chance.choice(carriers)
        read[node.node] += node.drain(max_ticks=chance.randint(1, 5))

    steps: list[Callable[[], object]] = [
        *[write] * 6,
        *[s1.tick] * 2,
        *[lambda: chance.choice((s2, s3)).copy(max_ticks=chance.randint(1, 4), max_events=chance.randint(1, 9))] * 4,
        lambda: chance.choice((s2, s3)).tell(),
        s1.advance,
        lambda: chance.choice(carriers).rotate(chance.choice(["q", None])),
        lambda: chance.choice(carriers).rotate(),
        read_some,
    ]
    for _ in range(250):
        chance.choice(steps)()
    for at, writer in enumerate(writers):
        writer.commit()
        committed += pending[at]
    nodes.settle()
    for node in carriers:
        read[node.node] += node.drain(max_ticks=100)
        assert sorted(read[node.node]) == sorted(committed), f"what the consumer on {node.node} was given"
    assert same(s1, s2) > 0
    assert same(s2, s3) > 0


# What must not land


def held(node: Node) -> tuple[Any, ...]:
    """Everything a copy might have changed."""
    return (node.log(), texts(node), node.rows("select node, state, version from cascade_internal.member"))


def switched(nodes: Nodes) -> None:
    nodes.made["s2"].rows("select cascade.set_provider('q', 's3')")


def switched_back(nodes: Nodes) -> None:
    switched(nodes)
    nodes.made["s2"].rows("select cascade.set_provider('q', 's1')")


def paused(nodes: Nodes) -> None:
    nodes.made["s2"].rows("select cascade.pause_node('q')")


def resumed(nodes: Nodes) -> None:
    paused(nodes)
    nodes.made["s2"].rows("select cascade.resume_node('q')")


def generation_raised(nodes: Nodes) -> None:
    nodes.made["s2"].rows("select cascade.raise_generation('q', 1)")


def term_learned(nodes: Nodes) -> None:
    terms = Jsonb([a_term(nodes.made["s1"])])
    nodes.made["s2"].rows("select cascade.note_answer('q', 1, 'on path', null, %s)", terms)


def readmitted(nodes: Nodes) -> None:
    s1, s2 = nodes.made["s1"], nodes.made["s2"]
    s1.rows("select cascade.drop_member('q', 's2')")
    again = s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")
    s2.rows("select cascade.readmit_node('q', %s, 1)", Jsonb(again))


def provider_alone(nodes: Nodes) -> None:
    nodes.made["s2"].main.execute("update cascade_internal.node set provider = 's3'")


def state_alone(nodes: Nodes) -> None:
    nodes.made["s2"].main.execute("update cascade_internal.node set state = 'paused'")


def role_alone(nodes: Nodes) -> None:
    nodes.made["s2"].main.execute("update cascade_internal.node set role = 'root', provider = null")


def copied_already(nodes: Nodes) -> None:
    nodes.made["s2"].copy(max_ticks=1)


def dropped(nodes: Nodes) -> None:
    nodes.made["s1"].rows("select cascade.drop_member('q', 's2')")


def marked_dead(nodes: Nodes) -> None:
    nodes.made["s1"].rows("select cascade.mark_dead('q', 's2')")


def provider_learned(nodes: Nodes) -> None:
    s1 = nodes.made["s1"]
    s1.rows("select cascade_internal.learn_terms(queue_id, %s) from cascade_internal.queue", Jsonb([a_term(s1)]))


def provider_set_back(nodes: Nodes) -> None:
    """Its database was restored: the tick the subscriber stands on is another one there."""
    s1 = nodes.made["s1"]
    s1.main.execute(f"update cascade_internal.tick_{s1.queue_id}_0 set chain = sha256(chain)".encode())


def a_term(root: Node) -> dict[str, Any]:
    """A term that nobody has heard of, on some other path."""
    uid = "00000000-0000-0000-0000-0000000000ff"
    at = root.value("select clock_timestamp()::text")
    fork = {"tick_id": 1}
    return {"uid": uid, "number": 9902, "node": "s9", "parent_uid": uid, "fork": fork, "cause": "failover", "at": at}


CHANGES: list[tuple[Callable[[Nodes], None], str]] = [
    (switched, "QC209"),
    (switched_back, "QC209"),
    (paused, "QC209"),
    (resumed, "QC209"),
    (generation_raised, "QC209"),
    (term_learned, "QC209"),
    (readmitted, "QC209"),
    (provider_alone, "QC209"),
    (state_alone, "QC209"),
    (role_alone, "QC209"),
    (copied_already, "QC209"),
]
#: These are noticed by the last look at the provider, which a small range has behind it.
CHANGES_THERE: list[tuple[Callable[[Nodes], None], str]] = [
    (dropped, "QC701"),
    (marked_dead, "QC701"),
    (provider_learned, "QC709"),
    (provider_set_back, "QC709"),
]


def test_what_was_fetched_before_a_change_does_not_land_after_it(nodes: Nodes) -> None:
    """Each change is tried by itself, and undone."""
    s1, s2 = nodes.line()
    s1.rows("select cascade.add_member('q', 's3', 'branch')")
    s1.insert(1)
    nodes.settle()
    s1.insert(2)
    s1.tick()
    s1.insert(3)
    s1.tick()
    outcomes = {}
    changes = CHANGES + (CHANGES_THERE if not nodes.small_bytes else [])
    for change, _ in changes:
        with s1.main.transaction(force_rollback=True), s2.main.transaction(force_rollback=True):
            fetched = fetched_by(s2)
            change(nodes)
            before = held(s2)
            try:
                s2.store(fetched)
                outcomes[change.__name__] = "landed"
            except psycopg.Error as error:
                assert error.diag.message_hint
                outcomes[change.__name__] = str(error.sqlstate)
                assert held(s2) == before, change.__name__
    assert outcomes == {change.__name__: sqlstate for change, sqlstate in changes}
    s2.catch_up()
    assert same(s1, s2) == 5


def test_what_was_fetched_lands_if_nothing_has_changed(nodes: Nodes) -> None:
    """The other side of the test above: ticks, tells, rotations and other members' changes do not stop a copy."""
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    fetched = fetched_by(s2)
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    s1.rows("select cascade.drop_member('q', 's4')")
    s1.tick()
    s2.tell()
    s1.advance()
    for node in (s1, s2):
        node.rotate("q")
        node.rotate("q")
    assert s2.store(fetched) == fetched.to_tick
    s2.catch_up()
    assert same(s1, s2) == 4


def test_a_change_waits_for_the_copy_it_comes_after(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.tick()
    fetched = fetched_by(s2)
    copying = s2.connect(autocommit=False)
    copying.execute("select cascade.begin_copy('q', 's1', %s, %s, %s)", (fetched.generation, *fetched.after))
    s2.main.execute("set lock_timeout = '50ms'")
    for call in ("pause_node('q')", "set_provider('q', 's1')", "raise_generation('q', 5)"):
        with refused("55P03", hint=False):
            s2.rows(f"select cascade.{call}")
    with refused("55P03", hint=False):
        s2.store(fetched)
    copying.rollback()
    s2.store(fetched)


def test_of_two_copiers_one_lands(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    first, second = fetched_by(s2), fetched_by(s2)
    s2.store(first)
    with refused("QC209", "has moved on"):
        s2.store(second)
    assert same(s1, s2) == 2


def test_a_copy_whose_reply_was_lost_is_found_done(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    fetched = fetched_by(s2)
    s2.store(fetched)
    s2.main.close()
    assert s2.position() == fetched.to_tick
    assert s2.fetch() is None


def test_a_copy_needs_read_committed(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.tick()
    fetched = fetched_by(s2)
    old = s2.connect(isolation_level=None)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refused("QC501", "needs READ COMMITTED"):
        s2.store(fetched, conn=old)
    reader = s1.connect()
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refused("QC501", "needs READ COMMITTED"), reader.transaction():
        reader.execute(
            "select cascade.check_copy('q', 's2', %s, %s, %s, %s)",
            (fetched.generation, *fetched.after, fetched.version),
        )


def test_a_root_copies_from_nobody(nodes: Nodes) -> None:
    s1 = nodes.root()
    with refused("QC209"):
        chain = s1.describe()["tick"]["chain"]
        s1.rows("select cascade.begin_copy('q', null, 1, %s, %s)", s1.position(), chain)


def test_what_was_fetched_after_another_tick_of_the_same_number_does_not_land(nodes: Nodes) -> None:
    """A site that was restored may stand on the same id again, on another path."""
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    fetched = fetched_by(s2)
    with refused("QC209"):
        s2.store(replace(fetched, after=(fetched.after[0], b"another chain")), check=False)
    assert s2.store(fetched) == fetched.to_tick


def test_ticks_that_do_not_link_are_refused(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for number in range(4):
        s1.insert(number)
        s1.tick()
    fetched = fetched_by(s2)
    before = held(s2)
    first, second, *rest = fetched.ticks
    for ticks in (
        [second, *rest],
        [first, *rest],
        [second, first, *rest],
        [first, first, second, *rest],
        [{**first, "prev_tick": 777}, second, *rest],
        [{**first, "prev_tick": None}, second, *rest],
        [first, {**second, "prev_tick": 777}, *rest],
        [first, second, *rest[:-1], {**rest[-1], "prev_tick": None}],
    ):
        with refused("QC901", "does not follow"):
            s2.store(replace(fetched, ticks=ticks))
        assert held(s2) == before
    s2.store(fetched)
    assert same(s1, s2) == 5


# TRUNCATE obeys no snapshot


def take_back(nodes: Nodes) -> None:
    """The root drops s2, frees what only s2 had held, and adds it again."""
    s1 = nodes.made["s1"]
    s1.rows("select cascade.drop_member('q', 's2')")
    for _ in range(8):
        s1.tick()
        s1.advance()
        s1.rotate()
    s1.rows("select cascade.add_member('q', 's2', 'branch', again => true)")


def test_events_that_were_truncated_while_they_were_read_are_noticed(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert("precious")
    s1.tick()
    fetched = s2.fetch(read=False)
    assert fetched is not None
    assert fetched.events == 1
    s1.rotate("q")
    take_back(nodes)
    assert s1.value("select count(*) from queue.q where origin is null") == 0
    empty = replace(fetched, rows=s1.read_rows(fetched.query))
    with refused("QC709", "which is not here"):
        s2.check(empty)
    before = held(s2)
    with refused("QC709"):
        s2.store(empty)
    assert held(s2) == before
    with refused("QC709"):
        s2.fetch()


def test_events_of_an_older_generation_than_their_tick_are_missed_too(nodes: Nodes) -> None:
    """The tick the subscriber stands on is still held, but the next batch reached into what is gone."""
    s1, s2 = nodes.line()
    writer = s1.connect(autocommit=False)
    s1.insert("precious", conn=writer)
    s1.rotate("q")
    s1.rotate("q")
    nodes.settle()
    writer.commit()
    s1.tick()
    fetched = s2.fetch(read=False)
    assert fetched is not None
    assert fetched.events == 1
    take_back(nodes)
    assert s1.value("select oldest_generation from cascade.rotation") == 1
    find = "select (cascade_internal.find_tick(queue_id, slots, %s)).chain from cascade_internal.queue"
    assert s1.value(find, fetched.after[0]) == fetched.after[1]
    with refused("QC709", "which is not here"):
        s2.store(replace(fetched, rows=s1.read_rows(fetched.query)))
    with refused("QC709"):
        s2.fetch()


def test_a_provider_keeps_what_a_subscriber_needs_however_long_it_reads(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.insert("precious")
    s1.tick()
    fetched = s2.fetch(read=False)
    assert fetched is not None
    s1.rotate("q")
    for _ in range(8):
        s1.tick()
        s1.advance()
        s1.rotate()
    s2.store(replace(fetched, rows=s1.read_rows(fetched.query)))
    s2.catch_up()
    assert same(s1, s2) == 3


# Control events


def test_control_events_are_applied_and_shown_to_nobody(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for node in (s1, s2):
        node.rows("select cascade.subscribe('q', 'c', 'earliest')")
    s1.insert("event")
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    nodes.settle()
    for node in (s1, s2):
        assert node.controls("member") == 2
        assert node.member("s4", "state") == "live"
        assert node.value("select events_ticked from cascade.queues") == 1
        assert node.value("select lag_events from cascade.consumers where consumer = 'c'") == 1
        assert node.value("select sum(events) from cascade.ticks") == 1
        batch = node.next(max_ticks=10)
        assert batch is not None
        assert batch[3] == 1
        assert node.events(batch[0]) == ["event"]
    s1.rows("select cascade.drop_member('q', 's4')")
    nodes.settle()
    assert s2.member("s4", "state") == "dropped"


def test_a_batch_of_control_events_alone_is_an_empty_one(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    here = nodes.settle()
    s2.rows("select cascade.subscribe('q', 'c', 'now')")
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    nodes.settle()
    batch = s2.next()
    assert batch is not None
    assert batch[1:] == (here, here + 1, 0)
    assert s2.events(batch[0]) == []


def test_control_events_are_applied_in_the_order_in_which_they_were_made(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for number in range(5):
        location = Jsonb({"dsn": f"service=d{number}"})
        s1.rows("select cascade.add_member('q', 's4', 'leaf', %s)", location)
        if number % 2:
            s1.tick()
    nodes.settle()
    assert s2.member("s4", "location") == {"dsn": "service=d4"}


def test_a_leaf_is_handed_the_control_events_and_keeps_no_events(nodes: Nodes) -> None:
    """It has no watermark to obey: it carries nothing."""
    s1 = nodes.root()
    leaf = nodes.add("s2", role="leaf")
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    s1.insert(1)
    s1.tick()
    fetched = fetched_by(leaf)
    query = "select jsonb_agg(jsonb_build_object('type', type, 'payload', payload) order by id) from ({}) as e where {}"
    controls = s1.value(query.format(fetched.query, "origin = '.cascade'"))
    controls.append({"type": "cascade.global-watermark", "payload": {"tick_id": fetched.to_tick}})
    begin = "select cascade.begin_copy('q', 's1', %s, %s, %s)"
    finish = "select cascade.finish_leaf_copy('q', %s, %s)"
    with leaf.main.transaction():
        assert leaf.value(begin, fetched.generation, *fetched.after) is None
        assert leaf.value(finish, Jsonb(fetched.ticks), Jsonb(controls)) == fetched.to_tick
    assert leaf.position() == fetched.to_tick
    assert leaf.member("s4", "state") == "live"
    assert leaf.watermark() is None
    assert texts(leaf) == []
    assert [tick[:5] for tick in leaf.log().ticks] == [tick[:5] for tick in s1.log().ticks]


def test_a_control_event_of_an_unknown_kind_is_kept_and_harms_nobody(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade_internal.post_control(q, 'cascade.future', '{\"x\": 1}') from cascade_internal.queue as q")
    nodes.settle()
    assert s2.controls("future") == 1
    assert same(s1, s2) == 2


def test_what_a_rolled_back_copy_had_applied_is_undone(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    s1.tick()
    fetched = fetched_by(s2)
    with pytest.raises(RuntimeError), s2.main.transaction():
        s2.store(fetched)
        assert s2.member("s4", "state") == "live"
        raise RuntimeError
    assert s2.member("s4", "state") is None
    s2.store(fetched)
    assert s2.member("s4", "state") == "live"


def test_a_producer_cannot_forge_a_control_event(nodes: Nodes) -> None:
    """Only the origin marks one, and producers are not granted that column; a type is just a type."""
    s1, s2, s3 = nodes.line(3)
    for node in (s1, s2, s3):
        node.rows("select cascade.subscribe('q', 'c', 'earliest')")
    known = "select node, role, state, version, location from cascade_internal.member order by node"
    nodes.settle()
    before = [(node.watermark(), node.rows(known), node.rows("select * from cascade.terms")) for node in (s1, s2, s3)]
    last = s1.position()
    member = s1.value("select to_jsonb(m) - 'queue_id' from cascade_internal.member as m where m.node = 's2'")
    forged: list[tuple[str, Any]] = [
        ("cascade.global-watermark", {"tick_id": last, "held_by": None}),
        ("cascade.member", member | {"state": "dropped", "version": 999}),
        ("cascade.term", a_term(s1)),
        ("cascade.global-watermark", "no object at all"),
    ]
    with role_on(s1) as producer:
        s1.rows("select cascade.grant_producer('q', %s)", producer)
        conn = s1.connect(user=producer)
        put = sql.SQL("insert into queue.q (type, payload) values (%s, %s)")
        for kind, payload in forged:
            conn.execute(put, (kind, Jsonb(payload)))
        conn.execute(put, ("cascade.global-watermark", psycopg.types.json.Json("\0")))
        with conn.cursor().copy("copy queue.q (type, payload) from stdin") as copy:
            copy.write_row(("cascade.global-watermark", '{"tick_id": 1, "tick_id": 2}'))
        for column in ("origin", "origin_id", "txid", "slot"):
            with refused("42501", hint=False):
                conn.execute(f"insert into queue.q (payload, {column}) values ('1', '1')".encode())
        with refused("QC003", "is reserved"):
            conn.execute("select cascade.post('q', '1', 'cascade.global-watermark')")
        conn.close()
    nodes.settle()
    after = [(node.watermark(), node.rows(known), node.rows("select * from cascade.terms")) for node in (s1, s2, s3)]
    assert after == before
    assert [node.state("answer") for node in (s2, s3)] == [None, None]
    payloads = [*[payload for _, payload in forged], "\0", {"tick_id": 2}]
    assert s1.drain() == s2.drain() == s3.drain() == payloads
    assert s1.value("select events_ticked from cascade.queues") == len(payloads)


def test_control_events_on_a_copy_are_found_by_their_index(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.main.execute("insert into queue.q (payload) select '1' from generate_series(1, 2000)")
    nodes.settle()
    plan = s2.rows(
        f"explain select 1 from cascade_internal.event_{s2.queue_id}_0 as e where e.origin = '.cascade' and e.txid >= 1"
    )
    assert any(f"event_{s2.queue_id}_0_control_idx" in line for (line,) in plan)
