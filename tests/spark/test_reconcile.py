"""Reconcile finds exactly what was damaged, on real servers of every version found, and says what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from cascade.spark.differences import Difference
from cascade.spark.reconcile import reconcile
from cascade.spark.report import Report
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
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
