"""Outlook: who reigns in a set, and what would be lost if that root died now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cascade.node.home import SERVED
from cascade.node.observe import Answer
from cascade.topology import Set, Topology

#: Ticks and events of one term are numbered within so many.
TERM_SPAN = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One set: its root, the carrier that has come furthest, and what only the root has.

    `events` is at most how many; both are None when nobody can tell.
    """

    set: str
    root: str | None = None
    is_lost: bool = False
    heir: str | None = None
    heir_tick: int | None = None
    events: int | None = None
    seconds: float | None = None


def outlook(topology: Topology, answers: dict[str, Answer]) -> list[Outlook]:
    """Return every set of the topology, with what its root's death would cost now."""
    return [_look_ahead(found, answers) for found in topology.sets.values()]


def _look_ahead(found: Set, answers: dict[str, Answer]) -> Outlook:
    root = reigning(found, answers)
    name = root_of(found, answers)
    best = _furthest(found, answers, root)
    if best is None:
        return Outlook(set=found.name, root=name, is_lost=root is None)
    heir = {"heir": best["node"], "heir_tick": best["tick_id"]}
    if root is None:
        return Outlook(set=found.name, root=name, is_lost=True, **heir)
    queue = answers[found.nodes[name].database].queues[found.name]
    # Ticks and ids were read in one statement; a carrier that was asked later may have more by now.
    events = max(0, queue["events_ticked"] + queue["ids_after_tick"] - best["events"])
    seconds = (root["asked_at"] - best["tick_at"]).total_seconds() if events else 0.0
    return Outlook(set=found.name, root=name, events=events, seconds=max(0.0, seconds), **heir)


def reigning(found: Set, answers: dict[str, Answer]) -> dict[str, Any] | None:
    """Return what the root says that takes inserts, or would but for an operation; None when none answers."""
    roots = [row for row in rows_of(found, answers) if row["role"] == "root"]
    taking = [row for row in roots if row["fence"] is None or row["fence"].startswith("operation")]
    return max(taking, key=lambda row: int(row["term"]), default=None)


def root_of(found: Set, answers: dict[str, Answer]) -> str:
    """Return who is root, by what the databases say; what the file says counts only when none of them answers."""
    root = reigning(found, answers)
    if root is not None:
        return str(root["node"])
    newest = max(rows_of(found, answers), key=lambda row: int(row["tick_id"]), default=None)
    return str(newest["root"]) if newest is not None and newest["root"] is not None else found.root.name


def rows_of(found: Set, answers: dict[str, Answer]) -> list[dict[str, Any]]:
    """Return what each node of a set says of itself, of those that answer and are who the file says they are."""
    rows = ((node.name, answers[node.database].nodes.get(found.name)) for node in found.nodes.values())
    return [row for name, row in rows if row is not None and row["node"] == name]


def _furthest(found: Set, answers: dict[str, Answer], root: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the branch that has come furthest on the root's path, so that it could follow it."""
    branches = [
        row
        for row in rows_of(found, answers)
        if row["role"] == "branch"
        and (row["answer"] is None or row["answer"] in SERVED)
        and (root is None or row["term_uid"] == root["term_uid"])
    ]
    return max(branches, key=lambda row: int(row["tick_id"]), default=None)
