"""A combined set and its parts as one picture: every node once, and lines along which events flow.

    s = a + b
      a1 root
      ├─> s1 merge-leaf ────────┐
      └─> s2 merge-leaf         │
      b1 root                   │
      ├─> s1 merge-leaf ────────┤
      └─> s2 merge-leaf         │
      s1 combined-root <────────┘
      ├─> s2 combined-failover
      └─> s3 branch

Each part stands above what is made of it.  A part that is itself combined brings its own parts along, and
a line of its own, inside that of the set above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cascade.topology.model import Node, Set
from cascade.topology.render import guide, heading, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A node, and what the picture has of it: its place in a tree, and the lines that pass it."""

    node: Node
    drawing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    node: Node
    label: str
    #: The combined set whose events come from this merge-leaf, and the one that begins at this root.
    feeds: str | None = None
    begins: str | None = None


def tops(sets: Mapping[str, Set]) -> list[str]:
    """Return the sets that are part of no other, in the order of the file: each is a picture of its own."""
    parts = {part for found in sets.values() for part in found.combines}
    return [name for name in sets if name not in parts]


def family(sets: Mapping[str, Set], name: str) -> list[str]:
    """Return a set after all that it combines, directly or not."""
    below = [other for part in sets[name].combines if part in sets for other in family(sets, part)]
    return [*dict.fromkeys(below), name]


def title(sets: Mapping[str, Set], name: str) -> str:
    """Return what a set combines; of parts that are combined themselves, what those are made of."""
    found = sets[name]
    inner = [heading(sets[part]) for part in family(sets, name) if part != name and sets[part].is_combined]
    return ", ".join([heading(found), *reversed(inner)])


def draw(
    sets: Mapping[str, Set],
    name: str,
    *,
    called: Callable[[Node], str] = lambda node: str(node.role),
    flows: Callable[[Node], bool] = lambda _: True,
) -> list[Line]:
    """Return the lines of a picture; parts flow to the first root of a combined set.

    `called` says what the role of a node is called, and `flows` whether events pass a merge-leaf: if not, its line
    is dashed.
    """
    rows = [row for one in family(sets, name) for row in _rows(sets, one, called)]
    levels = {one: _level(sets, one) for one in family(sets, name)}
    # Lines pass what is above the root of the whole.
    end = next((number for number, row in enumerate(rows) if row.begins == name), 0)
    first = max(len(row.label) for row in rows[: end + 1]) + 3
    width = max(first + 2 * levels[name] - 1, *(len(row.label) for row in rows))
    canvas = [list(row.label.ljust(width)) for row in rows]
    for one in family(sets, name):
        _draw_line(rows, canvas, one, first + 2 * (levels[one] - 1), flows)
    return [Line(node=row.node, drawing="".join(cells)) for row, cells in zip(rows, canvas, strict=True)]


def _rows(sets: Mapping[str, Set], name: str, called: Callable[[Node], str]) -> Iterator[_Row]:
    """Yield the nodes of one set, with their places in its tree."""
    found = sets[name]
    root = _root(found)
    for place in walk(found):
        node = place.node
        into = _root(sets[node.into]) if node.into is not None and node.into in sets else None
        yield _Row(
            node=node,
            label=f"{guide(place.lasts)}{node.name} {called(node)}",
            feeds=into.set if into is not None and into.database == node.database else None,
            begins=name if found.is_combined and node == root else None,
        )


def _root(found: Set) -> Node | None:
    """Return the root of a set; as sets really are, none may be known."""
    return next((node for node in found.nodes.values() if node.role.is_root), None)


def _level(sets: Mapping[str, Set], name: str) -> int:
    """Return how many lines are nested at a set: none where nothing is combined."""
    found = sets[name]
    return 1 + max((_level(sets, part) for part in found.combines if part in sets), default=0) if found.combines else 0


def _draw_line(rows: list[_Row], canvas: list[list[str]], name: str, at: int, flows: Callable[[Node], bool]) -> None:
    """Draw the line from the merge-leaves that feed a set down to its root."""
    feeders = [number for number, row in enumerate(rows) if row.feeds == name]
    ends = [number for number, row in enumerate(rows) if row.begins == name]
    if not feeders or not ends or ends[0] < feeders[-1]:
        return
    for number in range(feeders[0], ends[0] + 1):
        row, cells = rows[number], canvas[number]
        if number in feeders:
            dash = "─" if flows(row.node) else "╌"
            cells[len(row.label) + 1 : at] = dash * (at - len(row.label) - 1)
            cells[at] = "┐" if number == feeders[0] else "┤"
        elif number == ends[0]:
            cells[len(row.label) + 1 : at] = "<" + "─" * (at - len(row.label) - 2)
            cells[at] = "┘"
        else:
            cells[at] = "│"
