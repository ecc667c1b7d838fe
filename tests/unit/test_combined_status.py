"""What status makes of a combined set: one picture with its parts, the lag of each, and who could take over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cascade.cli.status import Found, make_of, set_row, show_family, show_status
from cascade.node.observe import Answer
from cascade.topology import parse
from tests.unit.test_status import row as plain_row

NOW = datetime.now(UTC)
DATABASES = ", ".join(f"{name}: {{dsn: service={name}}}" for name in ("a1", "b1", "s1", "s2", "s3"))
TOPOLOGY = parse(
    f"version: 1\ndatabases: {{{DATABASES}}}"
    + """
sets:
  a: {nodes: {a1: {database: a1, role: root}}}
  b: {nodes: {b1: {database: b1, role: root}}}
  s:
    combines: [a, b]
    nodes:
      s1: {database: s1, role: combined-root}
      s2: {database: s2, role: branch, provider: s1}
      s3: {database: s3, role: branch, provider: s1}
"""
)
ROOTS = {"a": "a1", "b": "b1", "s": "s1"}


def row(set_name: str, node: str, role: str, provider: str | None, tick: int, **others: Any) -> dict[str, Any]:
    """Return what a database says of one node: ten events a tick, a tick a second."""
    answer = None if role in ("root", "combined-root") else "on path"
    made = plain_row(node, role, provider, tick, **others)
    at = NOW - timedelta(seconds=100 - tick % 10**12)
    more = {"set": set_name, "root": ROOTS[set_name], "answer": answer, "asked_at": NOW, "tick_at": at}
    return {**made, **more, **others}


def part(name: str, node: str | None, state: str, tick: int) -> dict[str, Any]:
    """Return what a database says of one part of s."""
    found = row(name, node or "", "merge-leaf", None, tick)
    return {
        "set": "s",
        "part": name,
        "node": node,
        "state": state,
        "merged_already": 0,
        **{key: found[key] for key in ("tick_id", "tick_at", "events")},
    }


def answer(*rows: dict[str, Any], parts: tuple[dict[str, Any], ...] = ()) -> Answer:
    """Return what one database says."""
    queues = {
        found["set"]: {
            "queue": found["set"],
            "events_ticked": found["events"],
            "ids_after_tick": 0,
            "tick_idle_s": 60.0,
        }
        for found in rows
    }
    return Answer(nodes={found["set"]: found for found in rows}, queues=queues, parts=list(parts))


def carrier(name: str, tick: int, *, merged: dict[str, int], **others: Any) -> Answer:
    """Return what a database says that merges, or follows, these parts up to these ticks."""
    is_root = name == "s1"
    state = "copying" if is_root else "tracking"
    mine = row("s", name, "combined-root" if is_root else "branch", None if is_root else "s1", tick, **others)
    leaves = [row(one, name, "merge-leaf", ROOTS[one], at) for one, at in merged.items()]
    return answer(mine, *leaves, parts=tuple(part(one, name, state, at) for one, at in merged.items()))


def healthy() -> dict[str, Answer]:
    """s is two ticks behind a, and has all of b."""
    return {
        "a1": answer(row("a", "a1", "root", None, 100)),
        "b1": answer(row("b", "b1", "root", None, 60)),
        "s1": carrier("s1", 500, merged={"a": 98, "b": 60}),
        "s2": carrier("s2", 499, merged={"a": 95, "b": 60}),
        "s3": answer(
            row("s", "s3", "branch", "s1", 500), parts=(part("a", None, "none", 98), part("b", None, "none", 60))
        ),
    }


def shown(answers: dict[str, Answer]) -> list[str]:
    """Return the picture of s."""
    return show_family(make_of(TOPOLOGY, answers), "s").splitlines()


def status_of(found: Found, set_name: str, node: str) -> Any:
    [status] = [status for status in found.nodes if (status.set, status.node) == (set_name, node)]
    return status


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "200")
    yield


def test_parts_and_their_sum_are_one_picture_with_the_lag_of_each_part() -> None:
    assert shown(healthy()) == [
        "s = a + b",
        "  a1 root                   a1  ✓ running   tick 100                                    10/s  8.0 kB",
        "  ├─> s1 merge-leaf ──┐     s1  ✓ copying   tick 98   2.0 s behind  2 ticks  20 events",
        "  └─> s2 merge-leaf   │     s2  ✓ tracking  tick 95   5.0 s behind  5 ticks  50 events",
        "  b1 root             │     b1  ✓ running   tick 60                                     10/s  8.0 kB",
        "  ├─> s1 merge-leaf ──┤     s1  ✓ copying   tick 60   no lag",
        "  └─> s2 merge-leaf   │     s2  ✓ tracking  tick 60   no lag",
        "  s1 combined-root <──┘     s1  ✓ running   tick 500                                    10/s  8.0 kB",
        "  ├─> s2 combined-failover  s2  ✓ running   tick 499  1.0 s behind   1 tick  10 events  10/s  8.0 kB",
        "  └─> s3 branch             s3  ✓ running   tick 500  no lag                            10/s  8.0 kB",
        "",
        "if a1 or b1 died now: no branch that answers could follow it",
        "set s: s2 can be promoted, it follows every part",
        "if s1 died now: s2 would merge at most 10 events again from the parts",
    ]


def test_a_narrow_terminal_gives_up_what_can_be_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shown(healthy())
    for columns in (100, 90, 80, 70):
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = shown(healthy())
        assert len(narrow) == len(whole)
        for line in narrow[:10]:
            assert len(line) <= columns and line
        assert "2.0 s behind" in narrow[2]
        if columns >= 80:
            assert "20 events" in narrow[2]


def test_json_has_the_parts_at_every_carrier_and_who_can_be_promoted() -> None:
    found = make_of(TOPOLOGY, healthy())
    sets = {ahead.set: json.loads(json.dumps(set_row(found, ahead))) for ahead in found.outlooks}
    assert "parts" not in sets["a"] and sets["s"]["combines"] == ["a", "b"]
    of_a = {one["node"]: one for one in sets["s"]["parts"] if one["part"] == "a"}
    assert of_a["s1"] == {
        "part": "a",
        "node": "s1",
        "state": "copying",
        "tick_id": "98",
        "lag_ticks": 2,
        "lag_events": 20,
        "lag_seconds": 2.0,
        "merged_already": 0,
    }
    assert (of_a["s2"]["state"], of_a["s2"]["lag_ticks"]) == ("tracking", 5)
    assert (of_a["s3"]["state"], of_a["s3"]["lag_events"]) == ("none", 20)
    assert sets["s"]["successors"] == [
        {"node": "s2", "can_be_promoted": True, "obstacle": None},
        {"node": "s3", "can_be_promoted": False, "obstacle": "has no merge-leaf of a, b"},
    ]
    assert sets["s"]["if_the_root_died"]["heir"] == "s2"
    assert [node["node"] for node in sets["a"]["nodes"]] == ["a1", "s1", "s2"]


def test_a_branch_that_follows_only_some_parts_cannot_be_promoted() -> None:
    answers = healthy()
    answers["s2"] = replace(answers["s2"], parts=[part("a", "s2", "tracking", 95), part("b", None, "none", 60)])
    drawn = shown(answers)
    assert "set s: no branch can be promoted: s2 has no merge-leaf of b; s3 has no merge-leaf of a, b" in drawn
    assert any(line.startswith("  ├─> s2 branch ") for line in drawn)
    assert "if a1, b1 or s1 died now: no branch that answers could follow it" in drawn


def test_a_set_without_a_branch_says_so() -> None:
    from cascade.cli.combined import promise

    assert promise("s", []) == "set s: no branch can be promoted: there is none"


def test_a_part_that_does_not_answer_is_shown_so_and_what_waits_for_it() -> None:
    answers = healthy() | {"a1": Answer(error="connection refused")}
    found = make_of(TOPOLOGY, answers)
    assert status_of(found, "a", "a1").state == "silent" and status_of(found, "a", "a1").level == 2
    leaf = status_of(found, "a", "s1")
    assert (leaf.state, leaf.level, leaf.lag_ticks) == ("waiting", 1, None)
    assert status_of(found, "a", "s2").state == "tracking"
    drawn = shown(answers)
    assert "✗ silent" in drawn[1]
    assert "╌╌┐" in drawn[2] and "! waiting" in drawn[2] and "lag unknown" in drawn[2] and "no lag" not in drawn[2]
    assert "──┤" in drawn[5], "the other part is merged"
    assert "  ✗ a/a1: connection refused" in drawn
    assert "  ! a/s1: it waits: a1 does not answer" in drawn
    assert "  ! a/s1, a/s2: the root does not answer: its lag is not known" in drawn


def test_a_combined_root_that_does_not_answer_is_said_once_of_all_its_nodes() -> None:
    answers = healthy() | {"s1": Answer(error="connection refused")}
    drawn = shown(answers)
    assert sum("connection refused" in line for line in drawn) == 1
    assert "  ✗ a/s1, b/s1, s/s1: connection refused" in drawn
    assert any(line.startswith("the root s1 is lost: s2 can follow it") for line in drawn)
    assert "╌╌┐" in drawn[2] and "! silent" in drawn[2] and "✗ silent" in drawn[7]
    assert "  · s/s2, s/s3: the root does not answer: its lag is not known" in drawn


def test_a_merge_leaf_that_stopped_says_why() -> None:
    answers = healthy()
    nodes = dict(answers["s1"].nodes)
    nodes["a"] |= {"state": "diverged", "answer": "diverged", "answer_detail": "no common tick after 90"}
    answers["s1"] = replace(answers["s1"], nodes=nodes)
    drawn = shown(answers)
    assert "✗ diverged" in drawn[2] and "╌╌┐" in drawn[2]
    assert "  ✗ a/s1: diverged: no common tick after 90" in drawn


def test_merge_leaves_wait_while_the_combined_set_is_fenced_and_say_for_what() -> None:
    fence = "operation: switchover to s2"
    answers = healthy() | {"s1": carrier("s1", 500, merged={"a": 98, "b": 60}, state="fenced", fence=fence)}
    drawn = shown(answers)
    assert "! waiting" in drawn[2] and "╌╌┐" in drawn[2]
    assert "  ! a/s1, b/s1: it waits: set s takes no events here: switchover to s2" in drawn
    found = make_of(TOPOLOGY, answers)
    assert {one.state for one in found.parts if one.node == "s1"} == {"waiting"}


def test_a_former_combined_root_is_no_successor_until_it_has_come_back() -> None:
    later = 102 * 10**12 + 5
    answers = healthy()
    answers["s1"] = carrier("s1", 500, merged={"a": 98, "b": 60}, state="fenced", fence="over: ended at tick 499")
    promoted = row("s", "s2", "combined-root", None, later, root="s2")
    answers["s2"] = replace(
        answers["s2"],
        nodes={**answers["s2"].nodes, "s": promoted},
        parts=[part("a", "s2", "copying", 100), part("b", "s2", "copying", 60)],
    )
    answers["s3"] = replace(answers["s3"], nodes={"s": row("s", "s3", "branch", "s2", later, root="s2")})
    drawn = shown(answers)
    assert any(line.startswith("  s2 combined-root <──") for line in drawn)
    assert "set s: no branch can be promoted: s1 is a former root; s3 has no merge-leaf of a, b" in drawn


def test_a_set_whose_root_nobody_knows_is_drawn_without_one() -> None:
    later = 102 * 10**12 + 5
    answers = healthy() | {"s2": Answer(error="connection refused")}
    answers["s1"] = replace(
        answers["s1"], nodes={**answers["s1"].nodes, "s": row("s", "s1", "branch", "s2", later, root="s2")}
    )
    answers["s3"] = replace(answers["s3"], nodes={"s": row("s", "s3", "branch", "s2", later, root="s2")})
    drawn = shown(answers)
    assert not any("┐" in line for line in drawn)
    assert any(line.startswith("the root s2 is lost: s1 can follow it") for line in drawn)


def test_a_part_in_a_later_term_has_a_lag_that_nobody_knows() -> None:
    answers = healthy()
    answers["a1"] = answer(row("a", "a1", "root", None, 102 * 10**12 + 7))
    found = make_of(TOPOLOGY, answers)
    assert {one.lag_ticks for one in found.parts if one.part == "a"} == {None}
    assert "lag unknown" in shown(answers)[2]


def test_the_worst_node_makes_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_status(make_of(TOPOLOGY, healthy()), as_json=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "healthy"
    answers = healthy() | {"b1": Answer(error="connection refused")}
    assert show_status(make_of(TOPOLOGY, answers), as_json=True) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["level"] == "critical" and [one["set"] for one in said["sets"]] == ["a", "b", "s"]
