"""What status makes of what databases say: fences, certificates, another root, and what its death would cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cascade.cli.status import as_row, draw, foresee
from cascade.node.assess import NodeStatus, assess
from cascade.node.observe import Answer
from cascade.node.outlook import Outlook, outlook
from cascade.topology import Topology, parse

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
FILE = """
version: 1
databases: {a: {dsn: "host=a"}, b: {dsn: "host=b"}, c: {dsn: "host=c"}, d: {dsn: "host=d"}}
sets:
  orders:
    nodes:
      s1: {database: a, role: root}
      s2: {database: b, role: branch, provider: s1}
      s3: {database: c, role: branch, provider: s1}
      s4: {database: d, role: leaf, provider: s3}
"""
SECOND_TERM = 102 * 10**12


def row(node: str, role: str, provider: str | None, tick: int, **others: Any) -> dict[str, Any]:
    """Return what a database says of its node; ten events a tick, a tick a second."""
    term = tick // 10**12
    return {
        "set": "orders",
        "node": node,
        "role": role,
        "provider": provider,
        "root": "s1" if term == 0 else "s2",
        "state": "running",
        "answer": None if role == "root" else "on path",
        "answer_detail": None,
        "error": None,
        "term": term,
        "term_uid": f"term {term}",
        "tick_id": tick,
        "tick_at": NOW - timedelta(seconds=100 - tick % 10**12),
        "tick_age_seconds": 1,
        "events": 10 * (tick % 10**12),
        "events_per_second": 10,
        "bytes": 8192,
        "watermark": 1,
        "held_by": None,
        "held_since": None,
        "held_bytes": 0,
        "asked_at": NOW,
        "fence": None,
        **others,
    }


def said(found: dict[str, Any], **others: Any) -> Answer:
    """Return the answer of a database with that node."""
    ticked = {"queue": "orders", "events_ticked": found["events"], "ids_after_tick": 0, "tick_idle_s": 60.0}
    members = [
        {"set": "orders", "node": name, "state": "live", "generation": 1, "tick_id": 90, "heard_at": NOW}
        for name in ("s1", "s2", "s3", "s4")
    ]
    return Answer(nodes={"orders": found}, members=members, queues={"orders": ticked}, **others)


def before() -> dict[str, Answer]:
    """Everybody has what s1 has."""
    return {
        "a": said(row("s1", "root", None, 100)),
        "b": said(row("s2", "branch", "s1", 100)),
        "c": said(row("s3", "branch", "s1", 100)),
        "d": said(row("s4", "leaf", "s3", 100)),
    }


def after(old: Answer | None = None, **at_root: Any) -> dict[str, Answer]:
    """s1 is lost, and s2 reigns; the file does not know."""
    return {
        "a": old or Answer(error="connection refused"),
        "b": said(row("s2", "root", None, SECOND_TERM + 9), **at_root),
        "c": said(row("s3", "branch", "s2", SECOND_TERM + 9)),
        "d": said(row("s4", "leaf", "s3", SECOND_TERM + 9)),
    }


def found_in(answers: dict[str, Answer]) -> tuple[Topology, dict[str, NodeStatus], Outlook]:
    topology = parse(FILE)
    [ahead] = outlook(topology, answers)
    return topology, {node.node: node for node in assess(topology, answers, NOW)}, ahead


def test_a_death_costs_nothing_while_a_branch_has_everything() -> None:
    _, nodes, ahead = found_in(before())
    assert [node.level for node in nodes.values()] == [0, 0, 0, 0]
    assert (ahead.root, ahead.heir, ahead.events, ahead.seconds) == ("s1", "s2", 0, 0.0)
    assert foresee(ahead) == "if the root died now: nothing would be lost, s2 has everything"


def test_a_death_costs_what_the_best_branch_lacks_and_what_has_no_tick_yet() -> None:
    answers = before()
    answers["b"] = said(row("s2", "branch", "s1", 93))
    answers["c"] = said(row("s3", "branch", "s1", 95))
    answers["a"].queues["orders"]["ids_after_tick"] = 7
    _, _, ahead = found_in(answers)
    assert (ahead.heir, ahead.heir_tick, ahead.events, ahead.seconds) == ("s3", 95, 57, 5.0)
    assert foresee(ahead) == "if the root died now: at most 57 events, 5.0 s; s3 has the rest"


def test_a_branch_on_another_path_could_not_follow() -> None:
    answers = before()
    answers["b"] = said(row("s2", "branch", "s1", 100, answer="diverged", state="diverged"))
    answers["c"] = said(row("s3", "branch", "s1", 100, term_uid="another"))
    _, _, ahead = found_in(answers)
    assert ahead.heir is None and ahead.events is None
    assert "no branch that answers could follow" in foresee(ahead)


def test_a_lost_root_is_critical_and_the_best_branch_and_the_command_are_named() -> None:
    answers = before() | {"a": Answer(error="connection refused")}
    _, nodes, ahead = found_in(answers)
    assert nodes["s1"].level == 2 and nodes["s1"].state == "silent"
    assert ahead.is_lost and ahead.heir_tick == 100
    assert foresee(ahead).endswith("cascade failover orders --dead s1 --dry-run")


def test_a_fenced_root_is_critical_with_its_reason_and_remedy() -> None:
    for fence, remedy in (
        ("over: term x of node s2 ended this one at tick 95", "cascade resurrect orders s1"),
        ("conflict: term x stands beside y", "cascade resolve orders --keep UID"),
        ("rewound: another timeline", "cascade failover orders --dead s1 --dry-run"),
        ("operation: switchover to s2 is under way", "cascade plan"),
    ):
        old = said(row("s1", "root", None, 100, state="fenced", fence=fence, tick_age_seconds=9999))
        _, nodes, _ = found_in(before() | {"a": old})
        assert nodes["s1"].level == 2
        [note] = nodes["s1"].notes
        assert fence.partition(": ")[2] in note and remedy in note


def test_a_rewound_root_that_has_a_successor_is_resurrected() -> None:
    old = said(row("s1", "root", None, 90, state="fenced", fence="rewound: tick 95 is not here"))
    _, nodes, _ = found_in(after(old))
    assert any("cascade resurrect orders s1" in note for note in nodes["s1"].notes)


def test_a_silent_node_is_never_without_lag() -> None:
    """It is shown as it was last heard of, with the age of that, whichever tick that was."""
    for heard, age_s, lag, text in (
        (100, 0, None, "lag unknown"),
        (100, 30, None, "lag unknown"),
        (90, 30, 10, "10 ticks behind when last heard"),
    ):
        answers = before() | {"d": Answer(error="connection refused")}
        root = answers["a"]
        told = {"tick_id": heard, "heard_at": NOW - timedelta(seconds=age_s)}
        members = [member | told if member["node"] == "s4" else member for member in root.members]
        answers = {name: replace(answer, members=[]) for name, answer in answers.items()}
        answers["a"] = replace(root, members=members)
        topology, nodes, _ = found_in(answers)
        found = nodes["s4"]
        assert (found.state, found.tick_id, found.lag_ticks) == ("silent", heard, lag)
        assert found.lag_seconds == (age_s or None), "the age of what is known"
        assert f"last heard {age_s} s ago" in found.notes
        [line] = [line for line in draw(topology.sets["orders"], list(nodes.values())).splitlines() if "s4" in line]
        assert "no lag" not in line
        assert all(each in line for each in (f"tick {heard}", text, f"last heard {age_s} s ago"))
        shown = as_row(found)
        assert shown["lag_ticks"] == lag and shown["lag_seconds"] != 0


def test_the_tree_is_drawn_under_the_root_that_reigns() -> None:
    topology, nodes, ahead = found_in(after())
    assert ahead.root == "s2" and not ahead.is_lost
    assert nodes["s1"].level == 1, "s2 reigns: nothing is lost that is not known"
    assert nodes["s1"].lag_ticks is None, "ticks of two terms are no distance"
    assert any("TOPOLOGY_DRIFT: s2 is the root" in note for note in nodes["s1"].notes)
    assert any("TOPOLOGY_DRIFT: it is root s2" in note for note in nodes["s2"].notes)
    lines = [line.split()[:3] for line in draw(topology.sets["orders"], list(nodes.values())).splitlines()[1:]]
    assert lines == [
        ["s2", "root", "b"],
        ["├─>", "s1", "branch"],
        ["└─>", "s3", "branch"],
        ["└─>", "s4", "leaf"],
    ]


def test_an_old_root_that_does_not_know_yet_is_critical() -> None:
    topology, nodes, ahead = found_in(after(said(row("s1", "root", None, 100))))
    assert ahead.root == "s2" and nodes["s1"].level == 2
    assert any("takes inserts until its daemon hears" in note for note in nodes["s1"].notes)
    assert draw(topology.sets["orders"], list(nodes.values())).splitlines()[1].startswith("  s2 root")


def test_an_old_root_that_is_fenced_stands_beside_the_tree() -> None:
    old = said(row("s1", "root", None, 100, state="fenced", fence="over: ended at tick 95"))
    topology, nodes, ahead = found_in(after(old))
    assert ahead.root == "s2"
    lines = draw(topology.sets["orders"], list(nodes.values())).splitlines()
    assert lines[1].startswith("  s2 root") and lines[-1].startswith("  s1 root") and "fenced" in lines[-1]


def test_an_open_certificate_and_quarantined_events_are_warnings() -> None:
    certificate = {"set": "orders", "number": 1, "pending": ["s1"]}
    _, nodes, _ = found_in(after(certificates=[certificate]))
    assert nodes["s2"].level == 1
    assert "certificate 1 waits for s1: cascade certificate list" in nodes["s2"].notes
    back = said(row("s1", "branch", "s2", SECOND_TERM + 9), quarantine={"orders": 12}, certificates=[certificate])
    _, nodes, _ = found_in(after(back))
    assert nodes["s1"].level == 1
    assert "12 events in quarantine: cascade quarantine list orders" in nodes["s1"].notes
    assert not any("certificate" in note for note in nodes["s1"].notes), "the root tells of it"
