"""Outlook: who reigns in a set, how far others are behind, and what would be lost if that root died now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cascade.node.home import SERVED
from cascade.node.observe import Answer
from cascade.topology import Role, Set, Topology

#: Ticks and events of one term are numbered within so many.
TERM_SPAN = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """One set: its root, the carrier that has come furthest and could follow it, and what only the root has.

    `events` is at most how many; both are None when nobody can tell.  The heir of a combined set merges them again
    from the parts.
    """

    set: str
    is_combined: bool = False
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
    what: dict[str, Any] = {"set": found.name, "is_combined": found.is_combined, "root": name}
    if best is None:
        return Outlook(**what, is_lost=root is None)
    what |= {"heir": best["node"], "heir_tick": best["tick_id"]}
    if root is None:
        return Outlook(**what, is_lost=True)
    queue = answers[found.nodes[name].database].queues[found.name]
    # Ticks and ids were read in one statement; a carrier that was asked later may have more by now.
    events = max(0, queue["events_ticked"] + queue["ids_after_tick"] - best["events"])
    seconds = (root["asked_at"] - best["tick_at"]).total_seconds() if events else 0.0
    return Outlook(**what, events=events, seconds=max(0.0, seconds))


def lag(ahead: dict[str, Any] | None, own: dict[str, Any]) -> dict[str, Any]:
    """Return how far a node, or a part as a carrier has it, is behind a node that answered."""
    if ahead is None:
        return {"ticks": None, "seconds": None, "events": None}
    if ahead["tick_id"] <= own["tick_id"]:
        return {"ticks": 0, "seconds": 0.0, "events": 0}
    is_one_term = ahead["tick_id"] // TERM_SPAN == own["tick_id"] // TERM_SPAN
    if not is_one_term or own.get("term_uid", ahead["term_uid"]) != ahead["term_uid"]:
        return lag(None, own)
    seconds = (ahead["tick_at"] - own["tick_at"]).total_seconds()
    return {
        "ticks": ahead["tick_id"] - own["tick_id"],
        "seconds": max(0.0, seconds),
        "events": ahead["events"] - own["events"],
    }


def reigning(found: Set, answers: dict[str, Answer]) -> dict[str, Any] | None:
    """Return what the root says that takes inserts, or would but for an operation; None when none answers."""
    roots = [row for row in rows_of(found, answers) if Role(row["role"]).is_root]
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
    """Return the branch that has come furthest on the root's path, so that it could follow it.

    That of a combined set must be able to go on merging every part.
    """
    branches = [
        row
        for row in rows_of(found, answers)
        if row["role"] == "branch"
        and (row["answer"] is None or row["answer"] in SERVED)
        and (root is None or row["term_uid"] == root["term_uid"])
        and not lacking(found, answers[found.nodes[row["node"]].database])
    ]
    return max(branches, key=lambda row: int(row["tick_id"]), default=None)


def lacking(found: Set, answer: Answer) -> list[str]:
    """Return the parts of a set that have no merge-leaf in a database that answered; none, if it combines none."""
    rows = [row for row in answer.parts if row["set"] == found.name]
    merged = {row["part"] for row in rows if row["state"] != "none"}
    known = dict.fromkeys([*found.combines, *(row["part"] for row in rows)]) if found.is_combined else {}
    return [part for part in known if part not in merged]
