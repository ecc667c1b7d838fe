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
from cascade.cli.spark_audit import remarks, verdict
from cascade.spark.audit import audit, ranges_of
from cascade.spark.audited import FAULTS, AuditReport, PartAudit
from tests.fixtures.backend import OWNER, Backend
from tests.fixtures.database import eventually
from tests.fixtures.failover import fail_over, resurrect, stand_down
from tests.fixtures.merging import Merging, merged, numbers
from tests.fixtures.nodes import Node
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


def faults(part: dict[str, Any]) -> dict[str, int]:
    """Return what is wrong with a part."""
    return {name: part[name] for name in FAULTS if part[name]}


def plant(node: Node, query: str, *arguments: Any) -> None:
    """Put rows into a combined queue, past the trigger that keeps producers out."""
    newest = "select slot from queue.s where origin = 'a' order by id desc limit 1"
    partition = f"cascade_internal.event_{node.queue_id}_{node.value(newest)}"
    columns = '"time", txid, type, key, payload, headers, origin, origin_id'
    node.main.execute(f"insert into {partition} ({columns}) {query}".encode(), arguments or None)


def swap(node: Node, one: int, other: int) -> None:
    """Have two events of a combined queue change places."""
    query = (
        "update queue.s set origin_id = case origin_id when %(a)s then %(b)s else %(a)s end,"
        " (time, payload) = (select x.time, x.payload from queue.s as x where x.origin = 'a'"
        " and x.origin_id = case s.origin_id when %(a)s then %(b)s else %(a)s end)"
        " where origin = 'a' and origin_id in (%(a)s, %(b)s)"
    )
    node.main.execute(query.encode(), {"a": one, "b": other})


def rotate_away(merging: Merging, node: Node) -> None:
    """Rotate a queue until what it held is gone."""
    last = node.position()

    def is_gone() -> bool:
        merging.flow()
        node.advance()
        node.rotate(node.set)
        return bool(node.value("select cascade.find_tick(%s, 'earliest') >= %s", node.set, last))

    eventually(is_gone)


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
    merging.build("a", "b", carriers=1)
    a1, b1, s1 = (merging[name] for name in ("a1", "b1", "s1"))
    put(a1, "rotated away in s")
    put(b1, "rotated away in s")
    merging.flow()
    rotate_away(merging, s1)
    straddle(a1)
    put(b1, "ü€😀\\ \t\n\"'", None, {"n": 1}, type="", key="", headers={"h": [1]})
    # What was republished has an origin already, and keeps it.
    b1.main.execute("insert into queue.b (payload, origin, origin_id) values ('8', 'old', 17)")
    merging.flow()
    straddle(a1)
    merging.flow()
    put(a1, "not merged yet")
    a1.tick()
    report = look(spark, s1, a1, b1)
    assert report.is_clean, report
    assert [(part.part, part.compared, part.not_compared) for part in report.parts] == [("a", 12, 0), ("b", 4, 0)]
    assert verdict("s", ["a", "b"], is_clean=True) == "every event of a, b that can be compared is in s once, in order"
    # Damage of every kind, and a part that has let go what s still has.
    ids = [row[1] for row in merged(s1, "a")][-12:]
    at = "origin = 'a' and origin_id = %s"
    same = "select time, txid, type, key, payload, headers"
    s1.main.execute(f"delete from queue.s where {at}".encode(), (ids[0],))
    s1.main.execute(f"delete from queue.s where {at}".encode(), (ids[1],))
    plant(s1, f"{same}, origin, origin_id from queue.s where {at}", ids[2])
    plant(s1, f"{same}, 'a', 999 from queue.s where {at}", ids[3])
    s1.main.execute(f"update queue.s set payload = '0' where {at}".encode(), (ids[3],))
    swap(s1, ids[4], ids[9])
    swap(s1, ids[10], ids[11])
    plant(s1, "select now(), txid_current(), null, null, '1'::json, null::json, 'stranger', 1")
    put(b1, "the last")
    merging.flow()
    rotate_away(merging, b1)
    path = file(tmp_path / "shops.yaml", a1=a1, b1=b1, s1=s1)
    done = CliRunner().invoke(main, ["spark", "audit", "s", "-f", str(path), "--json"], env={"CASCADE_DEBUG": None})
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    a, b = found["parts"]
    assert faults(a) == {"missing": 2, "doubled": 1, "extra": 1, "changed": 1, "out_of_order": 3}
    assert sorted(each[1] for each in a["examples"]["missing"]) == sorted(ids[:2])
    assert a["examples"]["doubled"] == [["a", ids[2]]] and a["examples"]["extra"] == [["a", 999]]
    assert a["examples"]["changed"] == [["a", ids[3]]]
    wrong = {each[1] for each in a["examples"]["out_of_order"]}
    assert {ids[4], ids[9]} < wrong and wrong & {ids[10], ids[11]}, "between two merges, and within one"
    assert faults(b) == {} and (b["compared"] <= 1) and b["compared"] + b["not_compared"] == 5
    assert (found["untraced"], found["clean"], a["clean"], b["clean"]) == (1, False, False, True)


def test_what_a_failover_lost_is_no_fault_and_what_came_back_is_there_once(
    spark: SparkSession, merging: Merging
) -> None:
    a1, a2, leaf = picture(merging)
    s1, s2 = merging["s1"], merging["s2"]
    ahead(a1, leaf, "lost 1", "lost 2", "lost 3")
    a1.insert("never merged")
    a1.tick()
    fail_over(a2)
    # Not heard of in s yet: its log has what no mark calls lost.
    a2.insert("after")
    a2.tick()
    s1.tick()
    [part] = look(spark, s1, a2).parts
    assert part.is_clean and (part.compared, part.lost) == (1, 3)
    turn_to(leaf, a2)
    stand_down(a1, a2)
    resurrect(a1, a2)
    a2.insert("between")
    assert len(republish(a1, a2)) == 4
    a2.tick()
    leaf.merge()
    merging.copy()
    assert numbers(s2) == ["first", "lost 1", "lost 2", "lost 3", "after", "between", "never merged"]
    # Of what came back: one is gone in the part, and so lost again; one was skipped, and is gone in s.
    assert a2.main.execute("delete from queue.a where payload::text = '\"lost 1\"'").rowcount == 1
    assert s2.main.execute("delete from queue.s where payload::text = '\"lost 2\"'").rowcount == 1
    [part] = look(spark, s2, a2).parts
    assert part.is_clean, part
    assert (part.compared, part.lost, part.skipped) == (5, 1, 1)


def test_faults_are_told_by_kind_with_some_events_of_each() -> None:
    part = PartAudit(
        part="a",
        from_tick=1,
        to_tick=9,
        missing=3,
        out_of_order=30,
        broken_marks=1,
        gaps=ranges_of([("a", 4), ("a", 5), ("b", 7)]),
        examples={"missing": [("a", 4), ("a", 5), ("b", 7)], "out_of_order": [("a", 9)]},
    )
    assert not part.is_clean
    assert remarks(part) == [
        "a: 1 marks do not follow one another",
        "a: missing: a/4, a/5, b/7",
        "a: out of order: a/9 and 29 more",
        "a: gap of a from 4 to 5",
    ]
    assert remarks(PartAudit(part="b", from_tick=None, to_tick=None)) == [
        "b: nothing of it was merged in what is still held"
    ]


def test_a_set_that_combines_nothing_is_refused_before_spark_starts(merging: Merging, tmp_path: Path) -> None:
    merging.build("a", carriers=1)
    path = file(tmp_path / "shops.yaml", a1=merging["a1"], s1=merging["s1"])
    for arguments, said in (
        (["a"], "set a combines nothing"),
        (["nothing"], "nothing"),
        (["s", "--part-node", "b=b1"], "the parts are a"),
        (["s", "--node", "s9"], "s9"),
    ):
        result = CliRunner().invoke(main, ["spark", "audit", *arguments, "-f", str(path)])
        assert result.exit_code == 2 and said in result.stderr and result.stderr.count("error: ") == 1


def test_missing_ids_are_named_as_ranges() -> None:
    ids = [("a", 1), ("a", 2), ("a", 4), ("b", 5), ("b", 6)]
    assert ranges_of(ids) == (("a", 1, 2), ("a", 4, 4), ("b", 5, 6))
    assert ranges_of([]) == ()
