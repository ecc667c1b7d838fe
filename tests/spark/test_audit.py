"""Audit: a combined queue beside its parts, whole, damaged, rotated, and after failovers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cascade.cli.main import main
from cascade.spark.audit import audit, ranges_of
from cascade.spark.audited import FAULTS, AuditReport, PartAudit
from tests.fixtures.backend import OWNER, Backend
from tests.fixtures.failover import fail_over, resurrect, stand_down
from tests.fixtures.merging import Merging, merged, numbers
from tests.fixtures.nodes import Node
from tests.spark.conftest import rotate_past
from tests.sql.test_combined_fork import ahead, picture, republish, turn_to
from tests.sql.test_combined_merge import put, straddle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def merging(backend: Backend) -> Iterator[Merging]:
    """Databases that a test makes the nodes of parts and of what they are merged into."""
    with Merging.fresh(backend) as made:
        yield made


def look(spark: SparkSession, carrier: Node, *roots: Node) -> AuditReport:
    """Audit a combined set at one of its carriers."""
    return audit(spark, carrier.set, dsn=carrier.dsn, parts={root.set: root.dsn for root in roots})


def faults(part: PartAudit) -> dict[str, int]:
    """Return what is wrong with a part."""
    return {name: getattr(part, name) for name in FAULTS if getattr(part, name)}


def plant(node: Node, query: str, *arguments: Any) -> None:
    """Put rows into a combined queue, past the trigger that keeps producers out."""
    partition = f"cascade_internal.event_{node.queue_id}_0"
    columns = '"time", txid, type, key, payload, headers, origin, origin_id'
    node.main.execute(f"insert into {partition} ({columns}) {query}".encode(), arguments or None)


def file(path: Path, **nodes: Node) -> Path:
    """Write a topology file of the nodes of s and its parts."""
    sets: dict[str, Any] = {}
    databases = {}
    for name, node in nodes.items():
        given = conninfo_to_dict(node.dsn)
        databases[name] = {
            "dsn": make_conninfo(host=given["host"], port=given["port"], dbname=given["dbname"], user=OWNER)
        }
        role = "combined-root" if node.set == "s" else "root"
        sets[node.set] = {"nodes": {name: {"database": name, "role": role}}}
    sets["s"]["combines"] = sorted(name for name in sets if name != "s")
    path.write_text(yaml.safe_dump({"version": 1, "databases": databases, "sets": sets}, sort_keys=False))
    return path


def test_a_combined_queue_that_is_whole_and_one_that_is_not(
    spark: SparkSession, merging: Merging, tmp_path: Path
) -> None:
    merging.build("a", "b", "c", carriers=2)
    a1, b1, c1, s1, s2 = (merging[name] for name in ("a1", "b1", "c1", "s1", "s2"))
    straddle(a1)
    put(b1, "ü€😀\\ \t\n\"'", None, {"n": 1}, type="", key="", headers={"h": [1]})
    # What was republished has an origin already, and keeps it.
    b1.main.execute("insert into queue.b (payload, origin, origin_id) values ('8', 'old', 17)")
    merging.flow()
    straddle(a1)
    merging.flow()
    put(a1, "not merged yet")
    a1.tick()
    report = look(spark, s2, a1, b1, c1)
    assert report.is_clean, report
    found = [(part.part, part.compared, part.not_compared) for part in report.parts]
    assert found == [("a", 12, 0), ("b", 4, 0), ("c", 0, 0)]
    # Damage of every kind, at the root of s.
    rows = merged(s1, "a")
    ids = [row[1] for row in rows]
    at = "origin = 'a' and origin_id = %s"
    s1.main.execute(f"delete from queue.s where {at}".encode(), (ids[0],))
    s1.main.execute(f"delete from queue.s where {at}".encode(), (ids[1],))
    plant(s1, f"select time, txid, type, key, payload, headers, origin, origin_id from queue.s where {at}", ids[2])
    plant(s1, f"select time, txid, type, key, payload, headers, 'a', 999 from queue.s where {at}", ids[3])
    s1.main.execute(f"update queue.s set payload = '0' where {at}".encode(), (ids[4],))
    s1.main.execute(
        b"update queue.s set headers = null where origin = 'b' and headers is not null and payload::text = 'null'"
    )
    plant(s1, "select now(), txid_current(), null, null, '1'::json, null::json, 'stranger', 1")
    s1.tick()
    report = look(spark, s1, a1, b1, c1)
    a, b, c = report.parts
    assert faults(a) == {"missing": 2, "doubled": 1, "extra": 1, "changed": 1}
    assert a.examples["missing"] == [("a", number) for number in sorted(ids[:2])]
    assert a.examples["doubled"] == [("a", ids[2])] and a.examples["extra"] == [("a", 999)]
    assert a.examples["changed"] == [("a", ids[4])]
    assert faults(b) == {"changed": 1} and faults(c) == {}
    assert report.untraced == 1 and not report.is_clean
    # The command says the same.
    path = file(tmp_path / "shops.yaml", a1=a1, b1=b1, c1=c1, s1=s1)
    run = CliRunner().invoke(main, ["spark", "audit", "s", "-f", str(path)], env={"CASCADE_DEBUG": None})
    assert run.exit_code == 1, run.output
    assert "a: doubled: a/" in run.stdout and "1 events of s belong to no part" in run.stdout
    plain = json.loads(json.dumps(report.as_plain()))
    assert plain["clean"] is False and plain["parts"][2]["clean"] is True
    bad = CliRunner().invoke(main, ["spark", "audit", "a", "-f", str(path)])
    assert bad.exit_code == 2 and "set a combines nothing" in bad.stderr


def test_events_in_another_order_are_found(spark: SparkSession, merging: Merging) -> None:
    root = merging.build("a", carriers=1).root("a")
    s1 = merging["s1"]
    for number in range(6):
        put(root, 7)
        if number % 2:
            merging.flow()
    ids = [row[1] for row in merged(s1, "a")]
    assert look(spark, s1, root).is_clean
    # Alike but for their ids and times: within one merge, and between two.
    s1.main.execute(b"update queue.s set time = '2026-01-01' where origin = 'a'")
    root.main.execute(b"update queue.a set time = '2026-01-01' where origin is null")
    for one, other in ((ids[0], ids[1]), (ids[2], ids[5])):
        s1.main.execute(
            b"update queue.s set origin_id = case origin_id when %(a)s then %(b)s else %(a)s end"
            b" where origin = 'a' and origin_id in (%(a)s, %(b)s)",
            {"a": one, "b": other},
        )
    [part] = look(spark, s1, root).parts
    assert set(faults(part)) == {"out_of_order"}
    assert {("a", ids[2]), ("a", ids[5])} < set(part.examples["out_of_order"])
    assert {("a", ids[0]), ("a", ids[1])} & set(part.examples["out_of_order"])


def test_what_was_rotated_away_on_either_side_is_not_compared(spark: SparkSession, merging: Merging) -> None:
    root = merging.build("a", carriers=1).root("a")
    s1 = merging["s1"]
    put(root, *range(5))
    merging.flow()
    put(root, *range(5, 8))
    merging.flow()
    gone = root.position()
    put(root, 8, 9)
    merging.flow()
    merging.tell()
    assert [part.compared for part in look(spark, s1, root).parts] == [10]
    root.advance()
    rotate_past(root, gone - 1, "a")
    merging.flow()
    report = look(spark, s1, root)
    [part] = report.parts
    assert report.is_clean and part.compared <= 2 and part.compared + part.not_compared == 10
    put(root, 10)
    merging.flow()
    rotate_past(s1, s1.position(), "s")
    report = look(spark, s1, root)
    assert report.is_clean and report.parts[0].compared == 0
    put(root, 11)
    merging.flow()
    assert [part.compared for part in look(spark, s1, root).parts] == [1]


def test_what_a_failover_lost_is_no_fault_and_what_came_back_is_there_once(
    spark: SparkSession, merging: Merging
) -> None:
    a1, a2, leaf = picture(merging)
    s1, s2 = merging["s1"], merging["s2"]
    ahead(a1, leaf, "lost 1", "lost 2")
    a1.insert("never merged")
    a1.tick()
    fail_over(a2)
    # Not heard of in s yet: its log has what no mark calls lost.
    a2.insert("after")
    a2.tick()
    s1.tick()
    [part] = look(spark, s1, a2).parts
    assert part.is_clean and (part.compared, part.lost) == (1, 2)
    turn_to(leaf, a2)
    merging.copy()
    for carrier in (s1, s2):
        [part] = look(spark, carrier, a2).parts
        assert part.is_clean and (part.compared, part.lost) == (2, 2)
    stand_down(a1, a2)
    resurrect(a1, a2)
    a2.insert("between")
    assert len(republish(a1, a2)) == 3
    a2.tick()
    leaf.merge()
    merging.copy()
    assert numbers(s1) == ["first", "lost 1", "lost 2", "after", "between", "never merged"]
    for carrier in (s1, s2):
        [part] = look(spark, carrier, a2).parts
        assert part.is_clean and (part.compared, part.lost) == (6, 0)
    # Skipped, and gone from s: nobody can have expected it there a second time.
    lost = s1.rows("select origin_id from queue.s where origin = 'a' and payload::text = '\"lost 1\"'")[0][0]
    s1.main.execute(b"delete from queue.s where origin = 'a' and origin_id = %s", (lost,))
    [part] = look(spark, s1, a2).parts
    assert part.skipped == 1 and part.is_clean


def test_missing_ids_are_named_as_ranges() -> None:
    ids = [("a", 1), ("a", 2), ("a", 4), ("b", 5), ("b", 6)]
    assert ranges_of(ids) == (("a", 1, 2), ("a", 4, 4), ("b", 5, 6))
    assert ranges_of([]) == ()
