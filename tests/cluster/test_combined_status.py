"""What people see of combined sets on real servers: one picture, the lag of each part, and what makes a part wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.backend import Backend
from tests.fixtures.cascade import eventually
from tests.fixtures.combined import Combined
from tests.fixtures.database import Database
from tests.fixtures.nursery import Nursery


@pytest.fixture
def combined(
    servers: list[Backend], nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Combined]:
    """A combined set that is not defined yet; what is printed is not folded."""
    monkeypatch.setenv("COLUMNS", "200")
    with Combined.fresh(servers, nursery, tmp_path) as made:
        assert isinstance(made, Combined)
        yield made


def sets_of(combined: Combined) -> tuple[int, dict[str, Any]]:
    """Ask for the status, and return the exit code and the sets by name."""
    done = combined.cli("status", "--json", "--timeout", "3", check=False)
    assert done.exit_code in (0, 1, 2), done.stderr
    return done.exit_code, {found["set"]: found for found in json.loads(done.stdout)["sets"]}


def node_of(combined: Combined, set_name: str, node: str) -> dict[str, Any]:
    """Return one node as the status has it."""
    [found] = [row for row in sets_of(combined)[1][set_name]["nodes"] if row["node"] == node]
    return dict(found)


def drawn(combined: Combined) -> list[str]:
    return combined.cli("status", "--timeout", "3", check=False).stdout.splitlines()


def test_the_lag_of_each_part_is_shown_and_what_keeps_it(combined: Combined) -> None:
    combined.build(("a", "b"), written=False).run()
    for part in combined.parts:
        combined.put(part, 50)
    combined.settle_all()
    code, sets = eventually(lambda: found if (found := sets_of(combined))[0] == 0 else None, every_s=0.5)
    assert sets["s"]["combines"] == ["a", "b"] and "parts" not in sets["a"]
    at = {(row["part"], row["node"]): row for row in sets["s"]["parts"]}
    assert {key: row["state"] for key, row in at.items()} == {
        ("a", "s1"): "copying",
        ("a", "s2"): "tracking",
        ("a", "s3"): "none",
        ("b", "s1"): "copying",
        ("b", "s2"): "tracking",
        ("b", "s3"): "none",
    }
    assert {row["lag_events"] for row in at.values()} == {0}
    assert [row["node"] for row in sets["s"]["successors"] if row["can_be_promoted"]] == ["s2"]
    assert drawn(combined)[0] == "s = a + b" and drawn(combined)[2].startswith("  ├─> s1 merge-leaf ──┐ ")
    assert "set s: s2 can be promoted, it follows every part" in drawn(combined)

    # One part is not merged: its lag grows, the other's does not.
    combined.cli("node", "pause", "a", "s1")
    for part in combined.parts:
        combined.put(part, 70)
        eventually(lambda part=part: combined.dbs[f"{part}1"].tick(part))
    eventually(lambda: node_of(combined, "b", "s1")["lag_events"] == 0, every_s=0.5)
    leaf = node_of(combined, "a", "s1")
    assert (
        (leaf["state"], leaf["level"]) == ("paused", "warning") and leaf["lag_events"] >= 70 and leaf["lag_ticks"] > 0
    )
    lines = drawn(combined)
    assert "! paused" in lines[2] and "╌╌┐" in lines[2] and "70 events" in lines[2]
    assert "  ! a/s1: paused" in lines
    combined.cli("node", "resume", "a", "s1")
    combined.settle_all()

    # A part's database is gone: what is known of it, and who waits.
    with combined.down("b1"):
        code, sets = sets_of(combined)
        states = {row["node"]: row["state"] for row in sets["b"]["nodes"]}
        assert code == 2 and states == {"b1": "silent", "s1": "waiting", "s2": "tracking"}
        assert {row["lag_ticks"] for row in sets["s"]["parts"] if row["part"] == "b"} == {None}
        assert "  ! b/s1: it waits: b1 does not answer" in drawn(combined)

    # The combined-root's database is gone: it is named once, and so is who can replace it.
    with combined.down("s1"):
        lines = drawn(combined)
        assert any(line.startswith("  ✗ a/s1, b/s1, s/s1: ") for line in lines)
        assert any(line.startswith("the root s1 is lost: s2 can follow it") for line in lines)
        assert "set s: s2 can be promoted, it follows every part" in lines
    eventually(lambda: sets_of(combined)[0] == 0, every_s=0.5, within_s=60)
    combined.check_merged()


def test_a_combined_set_of_combined_sets_is_one_picture_too(combined: Combined) -> None:
    combined.parts = ("a", "b")
    combined.sets = {
        "a": {"nodes": {"a1": {"role": "root"}}},
        "b": {"nodes": {"b1": {"role": "root"}}},
        "x": {"combines": ["a"], "nodes": {"x1": {"role": "combined-root"}}},
        "s": {"combines": ["x", "b"], "nodes": {"s1": {"role": "combined-root"}}},
    }
    for number, name in enumerate(("a1", "b1", "x1", "s1")):
        combined.dbs[name] = combined._stack.enter_context(Database.fresh(combined._backends[number]))
    combined.write_files()
    for name in combined.sets:
        combined.cli("set", "create", name)
    combined.start()
    combined.put("a", 30)
    eventually(lambda: combined.dbs["a1"].tick("a"))
    of_a = "select count(*) from queue.s where origin = 'a'"
    eventually(lambda: combined.dbs["s1"].value(of_a) == 30, within_s=60)
    eventually(lambda: sets_of(combined)[0] == 0, every_s=0.5)
    lines = drawn(combined)
    assert lines[0] == "s = x + b, x = a"
    assert [line[2:28].split("  ")[0] for line in lines[1:8]] == [
        "a1 root",
        "└─> x1 merge-leaf ──┐",
        "x1 combined-root <──┘",
        "└─> s1 merge-leaf ────┐",
        "b1 root",
        "└─> s1 merge-leaf ────┤",
        "s1 combined-root <────┘",
    ]
    assert "set x: no branch can be promoted: there is none" in lines
    _, sets = sets_of(combined)
    assert [(row["part"], row["node"], row["lag_events"]) for row in sets["s"]["parts"]] == [
        ("x", "s1", 0),
        ("b", "s1", 0),
    ]
