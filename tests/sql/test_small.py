"""Small ranges: the events come with their ticks, exactly as they are, and whole or with a named error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.fixtures.database import eventually
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Fetched, Node, Nodes, same
from tests.sql.test_copy import ODD, a_term, held, texts

SMALL = 128 * 1024


@pytest.fixture
def nodes(nodes: Nodes) -> Nodes:
    """Nodes that fetch small ranges by one call."""
    nodes.small_bytes = SMALL
    return nodes


def small(node: Node) -> Fetched:
    fetched = node.fetch()
    assert fetched is not None
    assert fetched.columns is not None, "the range is not small"
    return fetched


def put(node: Node, **columns: Any) -> None:
    """Insert an event with columns that producers cannot set."""
    names = ", ".join(columns)
    node.rows(
        f"insert into queue.q ({names}) values ({', '.join(['%s'] * len(columns))}) returning 1", *columns.values()
    )


# What arrives


PREFERENCES = [
    "set datestyle = 'SQL, DMY'",
    "set timezone = 'Asia/Kathmandu'",
    "set bytea_output = 'escape'",
    "set intervalstyle = 'iso_8601'",
    "set extra_float_digits = -15",
    "set standard_conforming_strings = off",
    "set array_nulls = off",
    "set synchronous_commit = off",
]


def test_events_are_the_same_whatever_either_session_prefers(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    moments = [
        "infinity", "-infinity", "0044-03-15 12:00:00.000001+00 BC", "294276-12-31 23:59:59.999999+00",
        "2024-02-29 23:59:59.5+05:45", "1883-11-18 12:03:57.999999-04:56:02",
    ]  # fmt: skip
    for moment in moments:
        put(s1, payload="1", time=moment)
    for text in ("", "NULL", "{}", '{"a,b"}', "\\", '"', "a\tb\nc\r", "\x01\x7f", "é𝄞\u2028\ufeff", "(,)", " "):
        put(s1, type=text, key=None, payload="null", headers=None)
        put(s1, type=None, key=text, payload=psycopg.types.json.Json(text), headers="null")
    put(s1, payload="2", origin="elsewhere", origin_id=-(2**63))
    put(s1, payload="3", origin="", origin_id=2**63 - 1)
    for odd in ODD[:-2]:
        put(s1, payload=odd, headers=odd)
    s1.tick()
    for number, (node, preferences) in enumerate([(s1, PREFERENCES), (s2, PREFERENCES[:2])]):
        for preference in preferences:
            node.main.execute(preference.replace("Kathmandu", ["Kathmandu", "Tokyo"][number]).encode())
    s2.store(small(s2))
    rows = (
        "select e::text from (select id, time, txid, type, key, payload, headers, origin, origin_id from queue.q) as e"
    )
    stored = []
    for node in (s1, s2):
        node.main.close()
        stored.append(node.rows(rows + " order by id"))
    assert stored[0] == stored[1]
    assert len(stored[0]) > 40


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1252", "EUC_JP", "SQL_ASCII"])
def test_a_database_that_prefers_another_encoding_gets_the_same_text(nodes: Nodes, encoding: str) -> None:
    """Binary, too, is converted: daemons say UTF8, whatever a database's default is."""
    s1, s2 = nodes.line()
    put(s1, type="é", key="ß", payload='{"n": "ü𝄞"}')
    s1.tick()
    for node in (s1, s2):
        node.main.execute(f"alter database {node.name} set client_encoding = '{encoding}'".encode())
        node.disconnect()
        node._main = node.connect(client_encoding="UTF8")
    s2.store(small(s2))
    assert texts(s2) == texts(s1)


def test_a_range_without_events_is_small(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    ticks = [s1.tick() for _ in range(3)]
    fetched = small(s2)
    assert (fetched.events, fetched.rows) == (0, b"")
    assert s2.store(fetched) == ticks[-1]
    assert same(s1, s2) == 1


@pytest.mark.parametrize(
    ("count", "length", "is_small"),
    [
        (1, 100_000, True),
        (1, 140_000, False),
        (100, 1_200, True),
        (100, 1_400, False),
        (128, 10, True),
        (129, 10, False),
    ],
)
def test_the_limit_is_of_bytes_and_of_events(nodes: Nodes, count: int, length: int, is_small: bool) -> None:
    """One side of it comes with the ticks, the other by the query; both are stored alike."""
    s1, s2 = nodes.line()
    nodes.settle()
    s1.main.execute("alter table queue.q alter column payload set storage external")
    for slot in range(3):
        partition = f"cascade_internal.event_{s1.queue_id}_{slot}"
        s1.main.execute(f"alter table {partition} alter column payload set storage external".encode())
    s1.main.execute(
        "insert into queue.q (payload) select to_json(repeat('x', %s)) from generate_series(1, %s)", (length, count)
    )
    s1.tick()
    fetched = s2.fetch()
    assert fetched is not None
    assert (fetched.columns is not None) == is_small
    s2.store(fetched)
    assert texts(s2) == texts(s1)


def test_values_are_measured_as_they_are_stored(nodes: Nodes) -> None:
    """What is large only when it is unpacked is no reason to use COPY."""
    s1, s2 = nodes.line()
    s1.main.execute("insert into queue.q (payload) values (to_json(repeat('x', 2000000)))")
    s1.tick()
    s2.store(small(s2))
    assert texts(s2) == texts(s1)


def test_more_ticks_than_asked_for_are_announced_and_not_sent(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    for number in range(4):
        s1.insert(number)
        s1.tick()
    last = "select to_tick, last_tick from cascade.fetch_copy('q', 's2', %s, %s, %s, %s, 100, 0)"
    me = s2.describe()
    chain = bytes.fromhex(me["tick"]["chain"].removeprefix("\\x"))
    for max_ticks in range(1, 6):
        row = s1.row(last, me["generation"], me["tick"]["tick_id"], chain, max_ticks)
        assert row is not None
        assert row[0] == me["tick"]["tick_id"] + min(max_ticks, 4)
        assert (row[0] == row[1]) == (max_ticks >= 4), max_ticks


# What must not land


def truncated(s1: Node) -> list[str]:
    """As rotation does it: the register moves before the rows go."""
    return [
        f"select setval('cascade_internal.first_{s1.queue_id}', 1)",
        f"truncate cascade_internal.event_{s1.queue_id}_0",
    ]


def dropped(_: Node) -> list[str]:
    return ["select cascade.drop_member('q', 's2')"]


def provider_learned(s1: Node) -> list[str]:
    learn = "select cascade_internal.learn_terms(queue_id, {}) from cascade_internal.queue"
    return [learn.format(sql.Literal(Jsonb([a_term(s1)])).as_string(s1.main))]


def provider_dropped(_: Node) -> list[str]:
    return ["update cascade_internal.node set answer = 'dropped'"]


@pytest.mark.parametrize(
    ("change", "sqlstate"),
    [(truncated, "QC709"), (dropped, "QC701"), (provider_learned, "QC709"), (provider_dropped, "QC709")],
)
def test_what_happens_at_the_provider_while_it_reads_is_noticed(
    nodes: Nodes, change: Callable[[Node], list[str]], sqlstate: str
) -> None:
    """The reader has found its tick and waits for the partition; when it gets it, things have changed."""
    s1, s2 = nodes.line()
    nodes.settle()
    s1.insert("precious")
    s1.tick()
    before, statements = held(s2), change(s1)
    gate = s1.connect(autocommit=False)
    gate.execute(f"lock table cascade_internal.event_{s1.queue_id}_0 in access exclusive mode".encode())
    caught: list[Any] = []

    def read() -> None:
        try:
            caught.append(s2.fetch())
        except psycopg.Error as error:
            caught.append(error)

    s1.main.execute("set lock_timeout = '20 s'")
    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(
            lambda: (
                gate.execute("select count(*) from pg_locks where not granted and locktype = 'relation'").fetchone()
                == (1,)
            )
        )
        for statement in statements:
            gate.execute(statement.encode())
    finally:
        gate.commit()
        reader.join()
    assert isinstance(caught[0], psycopg.Error), caught
    assert caught[0].sqlstate == sqlstate, caught
    assert caught[0].diag.message_hint
    assert held(s2) == before


def test_a_snapshot_older_than_the_call_is_refused(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.tick()
    s1.main.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refused("QC501", "needs READ COMMITTED"), s1.main.transaction():
        s2.fetch()


def test_a_tick_that_is_not_known_is_refused(nodes: Nodes) -> None:
    s1, _ = nodes.line()
    s1.tick()
    for tick_id, chain in ((1, None), (1, b"x"), (999, None), (999, b"x"), (None, None)):
        with refused("QC709", "which is not here"):
            s1.rows("select * from cascade.fetch_copy('q', 's2', 1, %s, %s, 10, 100, 1000)", tick_id, chain)
    with refused("QC701"):
        s1.rows("select * from cascade.fetch_copy('q', 'nobody', 1, 1, null, 10, 100, 1000)")


def test_no_events_is_not_the_same_as_none_given(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert("precious")
    s1.tick()
    fetched = small(s2)
    begun = (fetched.generation, *fetched.after, Jsonb(fetched.ticks))
    nulls = ", ".join(["null"] * 9)
    with refused("QC003", "cannot store"):
        s2.rows(f"select cascade.store_copy('q', 's1', %s, %s, %s, %s, {nulls})", *begun)
    assert s2.store(fetched) == fetched.to_tick


def test_a_leaf_stores_no_events(nodes: Nodes) -> None:
    s1 = nodes.root()
    leaf = nodes.add("s2", role="leaf")
    s1.insert(1)
    s1.tick()
    with refused("QC003", "cannot store"):
        leaf.store(small(leaf))


def test_columns_of_unequal_length_do_not_land(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1, 2)
    s1.tick()
    fetched = small(s2)
    before = held(s2)
    begun = (fetched.generation, *fetched.after, Jsonb(fetched.ticks))
    with refused("23502", hint=False):
        columns = "'{1,2}', '{now,now}', '{1,1}', '{}', '{}', '{1}', '{}', '{}', '{}'"
        s2.rows(f"select cascade.store_copy('q', 's1', %s, %s, %s, %s, {columns})", *begun)
    assert held(s2) == before


def test_control_events_among_them_are_applied(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert("event")
    s1.rows("select cascade.add_member('q', 's4', 'leaf')")
    s1.tick()
    s2.store(small(s2))
    assert s2.member("s4", "state") == "live"
    s1.rows("select cascade.drop_member('q', 's4')")
    s1.tick()
    s2.store(small(s2))
    assert s2.member("s4", "state") == "dropped"
    nodes.settle()
    s1.advance()
    s1.tick()
    s2.store(small(s2))
    assert s2.watermark() == s1.watermark()
