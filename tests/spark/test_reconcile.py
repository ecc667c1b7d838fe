"""Reconcile finds exactly what was damaged, on real servers of every version found, and says what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cascade.errors import ArgumentError, TopologyError, TransientError
from cascade.spark.carriers import find_place, look
from cascade.spark.differences import Difference
from cascade.spark.reconcile import STEPS, reconcile
from cascade.spark.report import Report
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.failover import fail_over
from tests.fixtures.nodes import Node
from tests.fixtures.reconciling import Carriers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def carriers(backends: Callable[..., Backend]) -> Iterator[Carriers]:
    """Three carriers, on servers of different versions where there are some."""
    with Carriers.fresh([backends(label) for label in LABELS]) as made:
        yield made


def told(found: Difference) -> tuple[Any, ...]:
    """Return what identifies a difference."""
    return found.node, str(found.kind), found.tick_id, found.id, found.columns, found.found_tick, found.count


def all_told(report: Report) -> set[tuple[Any, ...]]:
    """Return all differences; none may be told twice."""
    found = [told(one) for one in report.differences]
    assert len(set(found)) == len(found)
    return set(found)


def test_every_kind_of_damage_is_found_and_nothing_else(spark: SparkSession, carriers: Carriers) -> None:
    carriers.fill(ticks=20)
    report = reconcile(spark, carriers.topology(), "q")
    assert (report.is_equal, report.exit_code, report.differences) == (True, 0, ())
    assert report.events >= 80 and report.bytes_read > 0
    events = iter(carriers.events())

    expected: set[tuple[Any, ...]] = set()

    def damage(node: str, statement: str, kind: str, columns: tuple[str, ...] = (), **more: Any) -> None:
        id, tick = next(events)
        next(events)
        carriers.damage(node, statement, id)
        expected.add((node, kind, more.get("tick", tick), more.get("id", id), columns, more.get("found_tick"), 1))

    damage("s2", "delete from EVENTS where id = %s", "missing")
    damage("s2", "insert into EVENTS select * from EVENTS where id = %s", "extra")
    damage(
        "s2", "insert into EVENTS (id, txid, payload) select 777, txid, '1' from EVENTS where id = %s", "extra", id=777
    )
    for column, value in {
        "time": "time + interval '1 us'", "type": "null", "key": "'é' || coalesce(key, '')", "headers": "'[]'",
        "payload": """('"' || repeat('ж', 9000) || '"')::json""", "origin": "'x'", "origin_id": "1",
    }.items():  # fmt: skip
        damage("s3", f"update EVENTS set {column} = {value} where id = %s", "changed", (column,))
    id, tick = next(events)
    *_, (other, other_tick) = carriers.events()
    carriers.damage("s2", "update EVENTS set txid = (select txid from EVENTS where id = %s) where id = %s", other, id)
    expected.add(("s2", "in another tick", tick, id, ("txid",), other_tick, 1))
    id, tick = next(events)
    carriers.damage("s3", "update EVENTS set id = id + 5000 where id = %s", id)
    expected |= {("s3", "missing", tick, id, (), None, 1), ("s3", "extra", tick, id + 5000, (), None, 1)}
    remaining = sorted({tick for _, tick in events} - {tick, other_tick})
    lost, changed = remaining[0], remaining[-1]
    carriers.damage("s3", "delete from TICKS where tick_id = %s", lost)
    expected.add(("s3", "tick missing", lost, None, (), lost + 1, 4))
    carriers.damage(
        "s2", "update TICKS set event_seq = event_seq + 1, time = time - interval '1s' where tick_id = %s", changed
    )
    expected.add(("s2", "tick changed", changed, None, ("time", "event_seq"), None, 0))

    report = reconcile(spark, carriers.topology(), "q")
    assert all_told(report) == expected
    assert (report.is_equal, report.is_complete, report.exit_code) == (False, True, 1)
    [row] = report.dataframe(spark).where("kind = 'in another tick'").collect()
    assert (row.node, row.tick_id, row.found_tick) == ("s2", row.tick_id, other_tick)


def test_ten_damaged_events_in_three_ticks_are_found_beside_nodes_that_cannot_be_compared(
    spark: SparkSession, carriers: Carriers
) -> None:
    """s2 has rotated the beginning away, s3 does not answer, and comes back behind the others."""
    carriers.fill(ticks=6)
    gone = carriers.rotate_away("s2")
    carriers.fill(ticks=8, events=20)
    good = [(id, tick) for id, tick in carriers.events("s2") if tick > gone]
    ticks = sorted({tick for _, tick in good})[1::2][:3]
    damaged = [next(found for found in good if found[1] == tick)[0] + n for tick in ticks for n in range(3)]
    damaged.append(next(id for id, tick in good if tick == ticks[0]) + 7)
    carriers.damage("s2", "update EVENTS set payload = 'null', type = 'x' where id = any(%s)", damaged)
    carriers["s2"].rows("select cascade.subscribe('q', 'c', 'now')")

    report = reconcile(spark, carriers.topology(s3="host=127.0.0.1 port=1 dbname=x"), "q")
    assert sorted((one.node, one.id, one.columns) for one in report.differences) == sorted(
        ("s2", id, ("type", "payload")) for id in damaged
    )
    assert {one.tick_id for one in report.differences} == set(ticks) and len(damaged) == 10
    assert list(report.silent) == ["s3"] and "port 1" in report.silent["s3"] and not report.is_complete
    [skipped] = [one for node in report.nodes for one in node.skipped]
    assert (skipped.node, skipped.reason) == ("s2", "rotated away") and skipped.to_tick > gone

    # A time before all that is held is a place before it, and no way to say "all"; who does not answer says nothing.
    seen = look(carriers.topology(), "q", ["s1", "s2"]).found["s2"]
    assert find_place([seen], "q", "2001-01-01") == 0
    with pytest.raises(TransientError):
        find_place([replace(seen, dsn="host=127.0.0.1 port=1 dbname=x")], "q", "2001-01-01")

    # The root goes on, and nobody copies.
    carriers["s1"].insert(1, 2, 3)
    newest = carriers["s1"].tick()
    start = ticks[-1]
    report = reconcile(spark, carriers.topology(), "q", from_=start, nodes=["s1", "s3"])
    assert (report.is_equal, report.exit_code, report.from_tick) == (True, 0, start)
    [skipped] = [one for node in report.nodes for one in node.skipped]
    assert (skipped.node, skipped.reason, skipped.to_tick) == ("s3", "not copied yet", newest)


def test_what_goes_away_meanwhile_is_not_missing(spark: SparkSession, carriers: Carriers) -> None:
    """Rotation on one carrier between the look and the comparison; a database that refuses between two steps."""
    carriers.fill(ticks=6)
    carriers.damage("s2", "delete from EVENTS where id = %s", carriers.events()[-1][0])
    done: list[str] = []

    def progress(_: int, __: int | None, title: str) -> None:
        if title == STEPS[0] and not done:
            carriers.fill(ticks=2)
            carriers.rotate_away("s3")
        elif title == STEPS[1]:
            refuse(carriers["s1"])
        done.append(title)

    try:
        report = reconcile(spark, carriers.topology(), "q", progress=progress)
    finally:
        refuse(carriers["s1"], allow=True)
    assert done == [*STEPS[:2]] and report.differences == () and list(report.silent) == ["s1"]
    assert report.exit_code == 1
    skipped = [one for node in report.nodes for one in node.skipped if one.node == "s3"]
    assert {one.reason for one in skipped} == {"rotated away"}


def refuse(node: Node, *, allow: bool = False) -> None:
    """Have a database take no connections, or take them again."""
    with psycopg.connect(node.backend.admin_dsn, autocommit=True) as conn:
        conn.execute(f"alter database {node.name} with allow_connections {allow}".encode())


def test_a_tail_beyond_a_fork_is_another_history(spark: SparkSession, carriers: Carriers) -> None:
    """The old root has events that the set lost: they are no difference; what both have is compared."""
    s1, s2, s3 = (carriers[name] for name in ("s1", "s2", "s3"))
    topology = carriers.topology()
    carriers.fill(ticks=4)
    fork = s2.position()
    s1.insert(1, 2, 3)
    tail = s1.tick()
    fail_over(s2, s3)
    s2.insert(4, 5)
    s2.tick()
    s3.join()
    s3.catch_up()
    report = reconcile(spark, topology, "q")
    assert (report.is_equal, report.exit_code) == (True, 0), report.differences
    [skipped] = [one for node in report.nodes for one in node.skipped]
    assert (skipped.node, skipped.reason, skipped.from_tick, skipped.to_tick) == ("s1", "beyond the fork", fork, tail)
    # The one that reigns is believed before one that did.
    carriers.damage("s1", "update EVENTS set payload = '0' where id = %s", carriers.events("s1")[2][0])
    carriers.damage("s3", "update EVENTS set payload = '1' where id = %s", carriers.events("s3")[2][0])
    report = reconcile(spark, topology, "q")
    assert {(one.node, one.reference) for one in report.differences} == {("s1", "s2"), ("s3", "s2")}


def test_an_empty_queue_is_equal_and_bad_questions_are_refused(spark: SparkSession, carriers: Carriers) -> None:
    report = reconcile(spark, carriers.topology(), "q", to=datetime.now(UTC).isoformat())
    assert (report.is_equal, report.exit_code, report.differences) == (True, 0, ())
    with pytest.raises(TopologyError, match="there is no set 'x'"):
        reconcile(spark, carriers.topology(), "x")
    with pytest.raises(TopologyError, match="has no node 's9'"):
        reconcile(spark, carriers.topology(), "q", nodes=["s1", "s9"])
    with pytest.raises(TransientError, match="no two carriers"):
        reconcile(spark, carriers.topology(), "q", nodes=["s1"])
    with pytest.raises(ArgumentError, match="before it begins"):
        reconcile(spark, carriers.topology(), "q", from_=10**15)
    with pytest.raises(ArgumentError, match="is no place"):
        reconcile(spark, carriers.topology(), "q", from_="yesteryear")
