"""A combined set and its parts as one picture: what cascade status shows of them, and says of them in --json."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cascade.cli import output as out
from cascade.topology import Node, Role, Set
from cascade.topology.picture import draw, family, title

if TYPE_CHECKING:
    from cascade.node.assess import NodeStatus
    from cascade.node.parts import PartStatus, Successor

MARKS = ("✓", "!", "✗")
#: What each column holds, and how soon it is given up where there is no room: never, or the higher the sooner.
COLUMNS = {
    "drawing": 0,
    "database": 0,
    "state": 0,
    "tick": 0,
    "behind": 0,
    "ticks": 2,
    "events": 1,
    "rate": 3,
    "size": 4,
}
AT_THE_RIGHT = ("ticks", "events", "rate", "size")


def picture(
    sets: Mapping[str, Set], name: str, found: Mapping[tuple[str, str], NodeStatus], branches: Sequence[Successor]
) -> str:
    """Return a combined set with all its parts: the nodes, and below them what is to be said of some."""
    able = {(branch.set, branch.node) for branch in branches if branch.obstacle is None}

    def called(node: Node) -> str:
        is_able = (node.set, node.name) in able and node.role is Role.BRANCH
        return "combined-failover" if is_able else str(node.role)

    def flows(node: Node) -> bool:
        return found[node.set, node.name].state == "copying"

    rows = [
        {"drawing": line.drawing, **cells(found[line.node.set, line.node.name])}
        for line in draw(sets, name, called=called, flows=flows)
    ]
    of_these = [node for key, node in found.items() if key[0] in family(sets, name)]
    return "\n".join([title(sets, name), *table(rows), *remarks(of_these)])


def cells(node: NodeStatus) -> dict[str, str]:
    """Return the columns of one node."""
    made = {"database": node.database, "state": f"{MARKS[node.level]} {node.state}"}
    if node.tick_id is None:
        return made
    made["tick"] = f"tick {node.tick_id}"
    if node.role is None or not Role(node.role).is_root:
        made |= lag_cells(node)
    if node.events_per_second is not None and node.role != Role.MERGE_LEAF:
        made["rate"] = f"{node.events_per_second:g}/s"
    if node.bytes is not None and node.role != Role.MERGE_LEAF:
        made["size"] = out.human_bytes(node.bytes)
    return made


def lag_cells(node: NodeStatus) -> dict[str, str]:
    """Return how far a node is behind the root of its set: in time, ticks and events."""
    if node.lag_ticks is None:
        return {"behind": "lag unknown"}
    if node.lag_ticks == 0:
        return {"behind": "no lag"}
    made = {"behind": f"{out.human_seconds(node.lag_seconds or 0)} behind", "ticks": count(node.lag_ticks, "tick")}
    if node.role is None:
        made["behind"] = "behind when last heard"
    if node.lag_events is not None:
        made["events"] = count(node.lag_events, "event")
    return made


def count(number: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Lay rows out in columns; where the terminal is narrow, without those that can be spared."""
    most = shutil.get_terminal_size((10_000, 24)).columns
    columns = [column for column in COLUMNS if any(row.get(column) for row in rows)]
    widths = {column: max(len(row.get(column, "")) for row in rows) for column in columns}
    for column in sorted(columns, key=lambda column: -COLUMNS[column]):
        if 2 + sum(widths[column] + 2 for column in columns) - 2 <= most or not COLUMNS[column]:
            break
        columns.remove(column)
    return ["  " + "  ".join(_cell(row, column, widths) for column in columns).rstrip() for row in rows]


def _cell(row: Mapping[str, str], column: str, widths: Mapping[str, int]) -> str:
    text = row.get(column, "")
    return text.rjust(widths[column]) if column in AT_THE_RIGHT else text.ljust(widths[column])


def remarks(found: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield what is to be said of nodes, each thing once: one database that is down takes many nodes along."""
    said: dict[str, list[NodeStatus]] = {}
    for node in found:
        for note in node.notes:
            said.setdefault(out.printable(note), []).append(node)
    most = shutil.get_terminal_size((10_000, 24)).columns
    for number, (note, nodes) in enumerate(said.items()):
        if number == 0:
            yield ""
        who = ", ".join(f"{node.set}/{node.node}" for node in nodes)
        worst = max(node.level for node in nodes)
        text = f"{MARKS[worst] if worst else '·'} {who}: {note}"
        yield from textwrap.wrap(
            text, most, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )


def promise(name: str, branches: Sequence[Successor]) -> str:
    """Say which branch of a combined set can be promoted, or why none can."""
    able = [branch.node for branch in branches if branch.obstacle is None]
    if able:
        how = "it follows" if len(able) == 1 else "they follow"
        return f"set {name}: {in_words(able)} can be promoted, {how} every part"
    reasons = "; ".join(f"{branch.node} {branch.obstacle}" for branch in branches)
    return f"set {name}: no branch can be promoted: {reasons or 'there is none'}"


def in_words(names: Sequence[str], last: str = "and") -> str:
    """Return names as a sentence has them: a, b and c."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else names[0]


def part_row(part: PartStatus) -> dict[str, Any]:
    """Return a part at one carrier as the contract of --json has it."""
    row = out.plain(asdict(part))
    row.pop("set")
    return row


def successor_row(branch: Successor) -> dict[str, Any]:
    """Return a branch as the contract of --json has it."""
    return {"node": branch.node, "can_be_promoted": branch.obstacle is None, "obstacle": branch.obstacle}
