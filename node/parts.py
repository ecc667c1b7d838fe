"""Parts: how far a combined set has come with each of its parts, on every carrier, and who could be its next root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cascade.node.observe import Answer
from cascade.node.outlook import lacking, lag, reigning, rows_of
from cascade.topology import Role, Set, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """How far one carrier of a combined set has one part; the lag is that behind the part's root, None when unknown.

    `state` is copying, tracking or none, as the carrier's database has it, or waiting while its combined set is fenced.
    """

    set: str
    part: str
    node: str
    state: str
    tick_id: int | None
    lag_ticks: int | None
    lag_events: int | None
    lag_seconds: float | None
    #: Events that the part has lost and the combined set has: they are skipped if they come again.
    merged_already: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A branch of a combined set, and why it cannot be promoted; None when it can."""

    set: str
    node: str
    obstacle: str | None


def merging_state(part: dict[str, Any], answer: Answer) -> str:
    """Return what a database does about a part: what it would do is not done while its combined queue is fenced."""
    combined = answer.nodes.get(part["set"])
    is_fenced = combined is not None and combined["fence"] is not None
    return "waiting" if is_fenced and part["state"] == "copying" else str(part["state"])


def parts_of(topology: Topology, found: Set, answers: dict[str, Answer]) -> list[PartStatus]:
    """Return every part at every carrier that answers, in the order of the file."""
    return [
        _part(topology, found.name, node.name, row, answers[node.database], answers)
        for part in found.combines
        for node in found.nodes.values()
        for row in answers[node.database].parts
        if node.role.is_carrier and (row["set"], row["part"]) == (found.name, part)
    ]


def _part(
    topology: Topology, set_name: str, node: str, row: dict[str, Any], answer: Answer, answers: dict[str, Answer]
) -> PartStatus:
    root = reigning(topology.sets[row["part"]], answers)
    behind = lag(root, row)
    return PartStatus(
        set=set_name,
        part=row["part"],
        node=node,
        state=merging_state(row, answer),
        tick_id=row["tick_id"],
        lag_ticks=behind["ticks"],
        lag_events=behind["events"],
        lag_seconds=behind["seconds"],
        merged_already=row["merged_already"],
    )


def successors(found: Set, answers: dict[str, Answer]) -> list[Successor]:
    """Return every branch of a combined set, those first that can be promoted."""
    root = reigning(found, answers)
    name = None if root is None else root["node"]
    rows = {row["node"]: row for row in rows_of(found, answers)}
    branches = [
        Successor(
            set=found.name, node=node.name, obstacle=_obstacle(found, rows.get(node.name), answers[node.database])
        )
        for node in found.nodes.values()
        if node.name != name and (node.role is Role.BRANCH or node.name in rows) and node.role.is_carrier
    ]
    return sorted(branches, key=lambda branch: branch.obstacle is not None)


def _obstacle(found: Set, row: dict[str, Any] | None, answer: Answer) -> str | None:
    if row is None:
        return "does not answer" if answer.error else "does not exist yet"
    if Role(row["role"]).is_root:
        return "is a former root"
    if lacks := lacking(found, answer):
        return f"has no merge-leaf of {', '.join(lacks)}"
    return None if row["answer"] in (None, "on path", "behind") else f"is {row['answer']}"
