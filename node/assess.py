"""Assessment: what to make of what the databases of a topology say of their nodes; and how bad it is.

A node whose database does not answer is shown as the others last heard of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cascade.node.home import SQLSTATES
from cascade.node.observe import Answer
from cascade.node.outlook import TERM_SPAN, lag, reigning, root_of
from cascade.node.parts import merging_state
from cascade.topology import Node, Role, Topology

#: A node so far behind, in seconds, is worth a warning.
LAG_WARNING_S = 10.0
#: Daemons give a sign of life every ten seconds, which each hop passes on as late; this long without one, and
#: a root that is so late with its idle tick, mean that there is no daemon.
SILENT_S = 60.0
#: Who holds retention is named once it holds something back, or for so long.
HELD_NOTE_S = 60.0
LEVELS = ("healthy", "warning", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node, as known now: fields are None when nobody knows; `state` of a merge-leaf is what it does.

    Of a node whose database does not answer, `tick_id` is what was last heard of it, `lag_ticks` how far that is
    behind the root, and `lag_seconds` the age of that; neither is ever zero.
    """

    set: str
    node: str
    database: str
    wanted_role: str
    wanted_provider: str | None
    role: str | None = None
    provider: str | None = None
    state: str = "unknown"
    tick_id: int | None = None
    lag_ticks: int | None = None
    lag_seconds: float | None = None
    lag_events: int | None = None
    hop_ticks: int | None = None
    hop_seconds: float | None = None
    events_per_second: float | None = None
    bytes: int | None = None
    watermark: int | None = None
    heard_at: datetime | None = None
    level: int = 0
    notes: tuple[str, ...] = ()


def assess(topology: Topology, answers: dict[str, Answer], now: datetime | None = None) -> list[NodeStatus]:
    """Return every node of the topology, in the order of the file, with what is known of it."""
    moment = now or datetime.now(UTC)
    return [
        _assess_node(topology, node, answers, moment)
        for found in topology.sets.values()
        for node in found.nodes.values()
    ]


def _assess_node(topology: Topology, node: Node, answers: dict[str, Answer], now: datetime) -> NodeStatus:
    answer = answers[node.database]
    own = answer.nodes.get(node.set)
    base: dict[str, Any] = {
        "set": node.set,
        "node": node.name,
        "database": node.database,
        "wanted_role": str(node.role),
        "wanted_provider": node.provider,
    }
    if own is None:
        return _assess_silent(topology, node, answer, answers, base, now)
    root = reigning(topology.sets[node.set], answers) or _row_of(topology, node.set, own["root"], answers)
    provider = _row_of(topology, node.set, own["provider"], answers)
    notes, level = _notes(node, own, answer)
    for note, how_bad in _aftermath(node, own, answer, root):
        notes.append(note)
        level = max(level, how_bad)
    is_cut_off = own["provider"] is not None and _is_silent(topology, node.set, own["provider"], answers)
    for note, how_bad in _merging(own, answer, is_cut_off):
        notes.append(note)
        level = max(level, how_bad)
    behind = lag(root, own)
    hop = lag(provider, own)
    if behind["seconds"] is not None and behind["seconds"] > LAG_WARNING_S:
        level = max(level, 1)
        notes.append("far behind")
    if (silent_s := _silent_s(own, answer, root, topology, answers)) is not None:
        level = max(level, 2 if Role(own["role"]).is_root else 1)
        notes.append(f"no sign of its daemon for {silent_s:.0f} s")
    if not Role(own["role"]).is_root and root is None:
        notes.append("the root does not answer: its lag is not known")
    return NodeStatus(
        **base,
        role=own["role"],
        provider=own["provider"],
        state=_state(own, answer, is_cut_off),
        tick_id=own["tick_id"],
        lag_ticks=behind["ticks"],
        lag_seconds=behind["seconds"],
        lag_events=behind["events"],
        hop_ticks=hop["ticks"],
        hop_seconds=hop["seconds"],
        events_per_second=float(own["events_per_second"]),
        bytes=int(own["bytes"]),
        watermark=own["watermark"],
        heard_at=own["asked_at"],
        level=level,
        notes=tuple(notes),
    )


def _state(own: dict[str, Any], answer: Answer, is_cut_off: bool) -> str:
    """Return the state of a node; of a merge-leaf that runs, what it does."""
    part = _part_of(own, answer)
    if part is None or own["state"] != "running":
        return str(own["state"])
    state = merging_state(part, answer)
    return "waiting" if state == "copying" and is_cut_off else state


def _part_of(own: dict[str, Any], answer: Answer) -> dict[str, Any] | None:
    """Return what the database of a merge-leaf says of the part that it merges."""
    if own["role"] != Role.MERGE_LEAF:
        return None
    return next((row for row in answer.parts if (row["part"], row["node"]) == (own["set"], own["node"])), None)


def _merging(own: dict[str, Any], answer: Answer, is_cut_off: bool) -> Iterator[tuple[str, int]]:
    """Yield what keeps a merge-leaf from merging, each with how bad it is."""
    part = _part_of(own, answer)
    if part is None and own["role"] == Role.MERGE_LEAF:
        yield "its database does not have the combined set that it feeds", 2
    if part is not None and merging_state(part, answer) == "waiting":
        cause, _, detail = answer.nodes[part["set"]]["fence"].partition(": ")
        yield f"it waits: set {part['set']} takes no events here: {detail or cause}", 1
    elif part is not None and part["state"] == "copying" and is_cut_off:
        yield f"it waits: {own['provider']} does not answer", 1


def _silent_s(
    own: dict[str, Any], answer: Answer, root: dict[str, Any] | None, topology: Topology, answers: dict[str, Answer]
) -> float | None:
    """Return how long nothing was seen of a node's daemon, if that is too long; the database alone says little."""
    if own["state"] == "fenced":
        return None
    if Role(own["role"]).is_root:
        age = float(own["tick_age_seconds"]) - answer.queues[own["set"]]["tick_idle_s"]
        return age if age > SILENT_S else None
    if root is None or own["state"] != "running":
        return None
    database = topology.sets[own["set"]].nodes[root["node"]].database
    for row in answers[database].members:
        if (row["set"], row["node"]) == (own["set"], own["node"]) and row["heard_at"] is not None:
            age = float((root["asked_at"] - row["heard_at"]).total_seconds())
            return age if age > SILENT_S else None
    return None


def _row_of(topology: Topology, set_name: str, node: str | None, answers: dict[str, Answer]) -> dict[str, Any] | None:
    """Return what another node says of itself, if it answers."""
    if node is None or node not in topology.sets[set_name].nodes:
        return None
    return answers[topology.sets[set_name].nodes[node].database].nodes.get(set_name)


def _is_silent(topology: Topology, set_name: str, node: str, answers: dict[str, Answer]) -> bool:
    """Whether the database of another node does not answer."""
    found = topology.sets[set_name].nodes.get(node)
    return found is not None and answers[found.database].error is not None


def _notes(node: Node, own: dict[str, Any], answer: Answer) -> tuple[list[str], int]:
    """Return what people should know of a node that answered, and how bad it is."""
    notes, level = [], 0
    if own["role"] != node.role or own["node"] != node.name:
        notes.append(f"TOPOLOGY_DRIFT: it is {own['role']} {own['node']}, the file says {node.role} {node.name}")
        level = 1
    elif own["provider"] != node.provider:
        notes.append(f"TOPOLOGY_DRIFT: it copies from {own['provider']}, the file says {node.provider}")
        level = 1
    if own["answer"] in SQLSTATES:
        notes.append(f"{own['answer']}: {own['answer_detail']}")
        level = 2
    elif own["state"] == "paused":
        notes.append("paused")
        level = max(level, 1)
    if own["error"]:
        notes.append(own["error"])
        level = max(level, 1)
    rotation = answer.rotation.get(node.set)
    held_s = (own["asked_at"] - own["held_since"]).total_seconds() if own["held_since"] else 0.0
    if own["held_by"] not in (None, own["node"]) and (
        held_s > HELD_NOTE_S or (rotation or {})["blocked_by"] == "watermark"
    ):
        notes.append(f"{own['held_by']} holds {own['held_bytes'] / 2**20:.1f} MB for {held_s:.0f} s")
    elif rotation and rotation["blocked_by"] not in (None, "tick", "step"):
        notes.append(f"rotation waits: {rotation['detail']}")
    return notes, level


def _aftermath(
    node: Node, own: dict[str, Any], answer: Answer, root: dict[str, Any] | None
) -> Iterator[tuple[str, int]]:
    """Yield what a failover left to do at a node, each with how bad it is."""
    is_combined = own["role"] == Role.COMBINED_ROOT
    if own["fence"] is not None:
        cause, _, detail = own["fence"].partition(": ")
        what = "nothing is merged" if is_combined else "inserts are refused"
        yield f"{what}: {detail or cause}; {_remedy(node, cause, own, root)}", 2
    elif Role(own["role"]).is_root and root is not None and root["node"] != own["node"]:
        what = "merges" if is_combined else "takes inserts"
        yield f"{root['node']} reigns, and this one {what} until its daemon hears of it", 2
    if events := answer.quarantine.get(node.set, 0):
        yield f"{events} events in quarantine: cascade quarantine list {node.set}", 1
    if root is not None and root["node"] == node.name:
        for row in answer.certificates:
            if row["set"] == node.set:
                waits = f"waits for {', '.join(row['pending'])}" if row["pending"] else "open"
                yield f"certificate {row['number']} {waits}: cascade certificate list", 1


def _remedy(node: Node, cause: str, own: dict[str, Any], root: dict[str, Any] | None) -> str:
    """Return what ends a fence."""
    if cause == "operation":
        return "it ends by itself, or: cascade plan"
    if cause == "conflict":
        return f"cascade history {node.set}, then cascade resolve {node.set} --keep UID"
    if cause == "rewound" and (root is None or root["node"] == own["node"]):
        return f"cascade failover {node.set} --dead {node.name} --dry-run"
    return f"cascade resurrect {node.set} {node.name}"


def _assess_silent(
    topology: Topology, node: Node, answer: Answer, answers: dict[str, Answer], base: dict[str, Any], now: datetime
) -> NodeStatus:
    """Return a node whose database does not answer, or has no such node: what the others last heard of it."""
    heard = [
        row
        for other in answers.values()
        for row in other.members
        if row["set"] == node.set and row["node"] == node.name and row["heard_at"] is not None
    ]
    last = max(heard, key=lambda row: (row["generation"], row["tick_id"]), default=None)
    reason = answer.error or "its database has no such node yet"
    notes = [reason]
    tick = lag = seconds = heard_at = None
    root = reigning(topology.sets[node.set], answers)
    if last is not None:
        tick, heard_at = last["tick_id"], last["heard_at"]
        notes.append(f"last heard {max(0.0, (now - heard_at).total_seconds()):.0f} s ago")
        if root is not None:
            # Ticks of different terms are no distance.  And one that had everything when it was last heard of is
            # not without lag: nobody knows whether it still has it, nor since when it has not moved.
            is_behind = tick // TERM_SPAN == root["tick_id"] // TERM_SPAN and tick < root["tick_id"]
            lag = root["tick_id"] - tick if is_behind else None
            # By another clock it may have been heard in the future.
            seconds = max(0.0, (now - heard_at).total_seconds()) or None
    is_member = next(
        (
            row
            for other in answers.values()
            for row in other.members
            if (row["set"], row["node"]) == (node.set, node.name)
        ),
        None,
    )
    state = "silent" if answer.error else "missing"
    level = 2 if root is None and root_of(topology.sets[node.set], answers) == node.name else 1
    if root is not None and node.role.is_root:
        notes.append(f"TOPOLOGY_DRIFT: {root['node']} is the root, the file says {node.name}")
    if is_member is not None and is_member["state"] != "live":
        state = is_member["state"]
        notes.append(f"the root has it as {state}")
    return NodeStatus(
        **base,
        state=state,
        tick_id=tick,
        lag_ticks=lag,
        lag_seconds=seconds,
        heard_at=heard_at,
        level=level,
        notes=tuple(notes),
    )
