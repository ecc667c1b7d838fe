"""Digests of a log: the same for the same events, whatever the server and the session; another one for any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes

Rows = list[tuple[Any, ...]]

#: What a row must tell apart: nothing, something empty, and where one column ends and the next begins.
ROWS: Rows = [
    (None, None, "1", None),
    ("", None, "1", None),
    (None, "", "1", None),
    ("a", "bc", "1", None),
    ("ab", "c", "1", None),
    ("a,b", '"', "1", None),
    ("t", "k", "1", "{}"),
    ("t", "k", "1", "null"),
    ("é𝄞", "日本", '{"a": 1, "a": 2}', '{"h": "\\u0000"}'),
    ("t", "k", '{"a":1, "a": 2}', None),
    ("t", "k", '"' + "x" * 100_000 + '"', None),
]
PUT = "insert into queue.q (type, key, payload, headers) values (%s, %s, %s::json, %s::json)"


def ticks(db: Database, from_tick: int = 1, to_tick: int = 10**6) -> dict[int, tuple[Any, ...]]:
    """Return (events, is_whole, digest, tick_digest) by tick."""
    query = "select tick_id, events, is_whole, digest, tick_digest from cascade.digest_ticks('q', %s, %s)"
    return {row[0]: row[1:] for row in db.rows(query, from_tick, to_tick)}


def spans(db: Database, *bounds: int, is_quick: bool = False) -> Rows:
    """Return (from_tick, to_tick, ticks, events, digest)."""
    return db.rows("select * from cascade.digest_spans('q', %s, %s)", [*bounds], is_quick)


def fill(db: Database) -> None:
    """Put odd rows into several ticks, with transactions that stay open over some of them."""
    late = db.connect(autocommit=False)
    for number, row in enumerate(ROWS):
        db.main.execute(PUT, row)
        if number in (2, 5):
            late.execute(PUT, row)
        if number == 7:
            late.commit()
        db.tick()
    late.rollback()


def partition(db: Database) -> str:
    """Return the partition that holds the queue's events."""
    return f"cascade_internal.event_{db.value('select queue_id from cascade_internal.queue')}_0"


@pytest.fixture
def pair(nodes: Nodes) -> tuple[Node, Node]:
    """A root with odd events, and its copy."""
    s1, s2 = nodes.line()
    fill(s1)
    nodes.settle()
    return s1, s2


def test_every_event_is_in_the_digest_of_its_batch(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c', 'earliest')")
    fill(db)
    found = ticks(db)
    read = db.rows("select tick_id, id, payload from cascade.read_log('q', 1, 1000000) order by tick_id, id")
    for tick_id, (events, is_whole, *_) in found.items():
        batch = db.next(max_ticks=1)
        assert batch is not None and batch[2] == tick_id
        mine = db.rows("select id, payload::text from cascade.batch_events(%s) order by id", batch[0])
        assert mine == [row[1:] for row in read if row[0] == tick_id]
        assert (events, is_whole) == (len(mine), True)
        db.finish(batch[0])
    assert sum(events for events, *_ in found.values()) == len(ROWS) + 2 == len(read)


def test_a_copy_has_the_digests_of_its_root(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    assert ticks(s1) == ticks(s2) and len(ticks(s1)) > len(ROWS)
    bounds = s1.value("select bounds from cascade.measure_log('q', 4)")
    assert len(bounds) >= 4
    assert spans(s1, *bounds) == spans(s2, *bounds)
    assert spans(s1, *bounds, is_quick=True) == spans(s2, *bounds, is_quick=True)
    assert [row[:4] for row in spans(s1, *bounds, is_quick=True)] == [row[:4] for row in spans(s1, *bounds)]
    assert sum(row[3] for row in spans(s1, *bounds)) == sum(row[0] for row in ticks(s1).values())
    query = "select * from cascade.digest_events('q', 1, 1000000) order by id"
    assert s1.rows(query) == s2.rows(query)
    query = "select cascade.read_ticks('q', 1, 1000000)"
    assert s1.value(query) == s2.value(query) and len(s1.value(query)) == len(ticks(s1))


@pytest.fixture
def servers(backends: Callable[..., Backend]) -> Iterator[list[Database]]:
    """A database on every version found."""
    with ExitStack() as stack:
        yield [stack.enter_context(Database.fresh(backends(label, max_prepared_transactions="20"))) for label in LABELS]


def test_no_version_and_no_setting_changes_a_digest(servers: list[Database]) -> None:
    """Rows and ticks are made equal by hand, in every database; whoever asks gets the same numbers."""
    found, quicks = set(), set()
    for db in servers:
        db.queue()
        for row in ROWS:
            db.main.execute(PUT, row)
        db.tick()
        table = partition(db)
        db.rows(
            f"update {table} set id = x.n, txid = 5000 + x.n, time = '2026-01-01 00:00:00.123456+00'"
            f" from (select id as i, row_number() over (order by id) as n from {table}) as x where x.i = id returning 1"
        )
        columns = "time = '2026-01-01+00', low = 5000, high = %s, open = %s, event_seq = 99, prev_tick = %s,"
        columns += " term_uid = '00000000-0000-0000-0000-000000000001', chain = '\\x0102'"
        for tick_id, high, open_txids in ((1, 5000, []), (2, 9000, [5003])):
            db.rows(f"update {table.replace('event', 'tick')} set {columns} where tick_id = %s returning 1",
                    high, open_txids, tick_id - 1 or None, tick_id)  # fmt: skip
        for setting in (
            "DateStyle = 'German, DMY'", "TimeZone = 'Asia/Kathmandu'", "client_encoding = 'LATIN1'",
            "extra_float_digits = -15", "bytea_output = 'escape'", "IntervalStyle = 'iso_8601'",
        ):  # fmt: skip
            conn = db.connect()
            conn.execute(f"set {setting}".encode())
            digests = conn.execute("select tick_id, events, digest, tick_digest from cascade.digest_ticks('q', 1, 2)")
            whole = conn.execute("select digest from cascade.digest_spans('q', '{1,2}')")
            quick = conn.execute("select digest from cascade.digest_spans('q', '{1,2}', true)").fetchall()
            probe = conn.execute("select hashing from cascade.measure_log('q')").fetchall()
            found.add((*digests.fetchall(), *whole.fetchall()))
            quicks.add((*probe, *quick))
            assert conn.execute("show client_encoding").fetchone() == (
                ("LATIN1",) if "LATIN1" in setting else ("UTF8",)
            )
    # Quick ones may differ between machines; then their probes do.
    assert len(quicks) == len({probe for probe, _ in quicks})
    # The numbers themselves: they are compared between releases as well as between servers.
    assert found == {((2, 10, 4601403834212860407, 7645415309859965907), (-6199924929636725302,))}


READERS = ("digest_ticks", "digest_events", "read_log", "read_ticks")
DAMAGE = {
    "id": "id = id + 1000",
    "time": "time = time + interval '1 us'",
    "txid": "txid = txid + 1",
    "type": "type = ''",
    "key": "key = 'K'",
    "payload": "payload = (payload::text || ' ')::json",
    "headers": "headers = '{}'",
    "origin": "origin = 'x'",
    "origin_id": "origin_id = 1",
}


@pytest.mark.parametrize("column", DAMAGE)
def test_every_column_counts(pair: tuple[Node, Node], column: str) -> None:
    s1, s2 = pair
    [(tick_id, id)] = s2.rows("select tick_id, id from cascade.read_log('q', 1, 1000000) where type = 'ab'")
    s2.rows(f"update {partition(s2)} set {DAMAGE[column]} where id = %s returning 1", id)
    mine, theirs = ticks(s1), ticks(s2)
    assert {tick for tick in mine if mine[tick] != theirs[tick]} >= {tick_id}
    assert len([tick for tick in mine if mine[tick][3] != theirs[tick][3]]) == 0
    bounds = (1, tick_id - 1, max(mine))
    for is_quick in (False, True):
        both = zip(spans(s1, *bounds, is_quick=is_quick), spans(s2, *bounds, is_quick=is_quick), strict=True)
        assert [one == other for one, other in both] == [True, False]
    changed = set(s1.rows("select * from cascade.digest_events('q', 1, 1000000)"))
    changed ^= set(s2.rows("select * from cascade.digest_events('q', 1, 1000000)"))
    assert {row[1] for row in changed} == ({id, id + 1000} if column == "id" else {id})
    assert ticks(s2)[tick_id][1] is (column != "txid")


@pytest.mark.parametrize(
    "column", ["prev_tick", "time", "low", "high", "open", "event_seq", "total", "term_uid", "chain"]
)
def test_every_column_of_a_tick_counts(pair: tuple[Node, Node], column: str) -> None:
    s1, s2 = pair
    tick_id = sorted(ticks(s1))[4]
    values = {
        "time": "time + interval '1 us'", "open": "open || 1::bigint", "term_uid": "gen_random_uuid()",
        "chain": "chain || '\\x00'",
    }  # fmt: skip
    table = partition(s2).replace("event", "tick")
    s2.rows(
        f"update {table} set {column} = {values.get(column, f'{column} + 1')} where tick_id = %s returning 1", tick_id
    )
    mine, theirs = ticks(s1), ticks(s2)
    assert [tick for tick in mine if mine[tick][3] != theirs[tick][3]] == [tick_id]
    assert spans(s1, 1, max(mine)) != spans(s2, 1, max(mine))


def test_a_row_lost_or_doubled_or_a_tick_lost_shows(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    good = ticks(s1)
    shown = "select tick_id from cascade.read_log('q', 1, 1000000) where origin is null group by 1 having count(*) = 1"
    first, second, third = sorted(tick for (tick,) in s1.rows(shown))[:3]
    table = partition(s2)
    query = "select id from cascade.read_log('q', 1, 1000000) where tick_id = %s"
    s2.rows(f"delete from {table} where id = %s returning 1", s2.value(query, first))
    s2.rows(f"insert into {table} select * from {table} where id = %s returning 1", s2.value(query, second))
    s2.rows(f"delete from {table.replace('event', 'tick')} where tick_id = %s returning 1", third)
    bad = ticks(s2)
    assert good.keys() - bad.keys() == {third}
    # The events of a tick that is gone are in the next one; it was lost whole, so that one still adds up.
    after = min(tick for tick in bad if tick > third)
    assert {tick for tick in bad if bad[tick] != good[tick]} == {first, second, after}
    assert [bad[tick][:2] for tick in (first, second)] == [(0, False), (2, False)]


def test_values_that_change_places_show_in_quick_digests_too(pair: tuple[Node, Node]) -> None:
    """Sums of hashes that were sums themselves would not see it."""
    s1, s2 = pair
    query = "select id from cascade.read_log('q', 1, 1000000) where type in ('é𝄞', 'ab')"
    one, other = [row[0] for row in s2.rows(query)][:2]
    for column in ("payload", "key", "time", "txid"):
        s2.rows(f"update {partition(s2)} as e set {column} = x.{column} from (select * from {partition(s2)}) as x"
                " where (e.id, x.id) in ((%s, %s), (%s, %s)) returning 1", one, other, other, one)  # fmt: skip
        for is_quick in (False, True):
            assert spans(s1, 1, max(ticks(s1)), is_quick=is_quick) != spans(s2, 1, max(ticks(s1)), is_quick=is_quick)


def test_what_rotation_has_removed_is_not_measured_and_not_read(db: Database) -> None:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c', 'earliest')")
    db.insert(1, 2, 3)
    gone = db.tick()
    db.rotate_away()
    db.insert(4)
    last = db.tick()
    first, newest, count, events = db.rows("select first_tick, last_tick, ticks, events from cascade.measure_log('q')")[
        0
    ]
    assert first > gone and newest == last
    for call in ("digest_spans('q', '{1,99}')", *(f"{name}('q', 1, 99)" for name in READERS)):
        with refused("QC402", "no longer holds all events after tick 1"):
            db.rows(f"select * from cascade.{call}")
    found = ticks(db, first)
    assert (min(found) > first, len(found), sum(row[0] for row in found.values())) == (True, count, events)


def test_an_empty_queue_has_one_tick_and_nothing_to_compare(db: Database) -> None:
    db.queue()
    assert db.rows(
        "select first_tick, last_tick, ticks, events, is_dirty, bounds from cascade.measure_log('q', 5)"
    ) == [(1, 1, 0, 0, False, [1])]
    assert ticks(db) == {} and db.rows("select * from cascade.digest_events('q', 0, 9)") == []
    assert db.rows("select * from cascade.read_log('q', 0, 9)") == []
    assert spans(db, 0, 5, 9) == [(0, 5, 0, 0, 0), (5, 9, 0, 0, 0)]
    db.tick()
    assert ticks(db)[2][:3] == (0, True, 0)


def test_events_outside_the_last_tick_of_a_copy_are_told(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    query = "select is_dirty from cascade.measure_log('q')"
    s1.insert(1)
    assert (s1.value(query), s2.value(query)) == (False, False)
    s2.rows(f"insert into {partition(s2)} (id, txid, payload) values (999, 1000000000, '1') returning 1")
    assert s2.value(query) is True


def test_bad_arguments_are_refused(db: Database) -> None:
    db.queue()
    with refused("QC101"):
        db.rows("select * from cascade.measure_log('nobody')")
    with refused("QC003", "cannot be cut into 0 parts"):
        db.rows("select * from cascade.measure_log('q', 0)")
    for bounds in ("{}", "{1}", "{2,1}", "{1,1}", "{1,null}"):
        with refused("QC003", "do not rise"):
            db.rows("select * from cascade.digest_spans('q', %s)", bounds)
    with refused("QC003", "has no end"):
        db.rows("select * from cascade.digest_ticks('q', 1, null)")
    db.rows(f"delete from {partition(db).replace('event', 'tick')} returning 1")
    with refused("QC901", "lost its ticks"):
        db.rows("select * from cascade.digest_ticks('q', 1, 2)")


def test_a_leaf_has_nothing_to_compare(nodes: Nodes) -> None:
    s1 = nodes.root()
    leaf = nodes.add("s2", s1, role="leaf")
    for call in ("measure_log('q')", "digest_spans('q', '{1,2}')", "digest_ticks('q', 1, 2)", "read_log('q', 1, 2)"):
        with refused("QC208", "is a leaf"):
            leaf.rows(f"select * from cascade.{call}")


def test_a_range_emptied_meanwhile_is_refused(db: Database) -> None:
    """TRUNCATE obeys no snapshot: the register, which moves before the rows go, is looked at after reading."""
    db.queue()
    db.insert(1)
    db.tick()
    db.admin().execute("select setval('cascade_internal.first_1', 1)")
    for call in (
        "digest_spans('q', '{1,2}')",
        "digest_ticks('q', 1, 2)",
        "digest_events('q', 1, 2)",
        "read_log('q', 1, 2)",
    ):
        with refused("QC402", "removed by rotation"):
            db.rows(f"select * from cascade.{call}")


@pytest.mark.parametrize(
    ("total", "folded"),
    [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (-(2**63) - 1, 2**63 - 1), (2**64, 0), (-(2**64) * 7 - 3, -3)],
)
def test_sums_are_cut_as_machines_do(db: Database, total: int, folded: int) -> None:
    assert db.value("select cascade_internal.fold(%s::numeric)", str(total)) == folded
