"""A topology as a tree of text and as Mermaid; svg.py draws it, and show_plan.py shows plans.

What is known about a node besides, such as its lag, is passed as notes: name -> texts, in columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from cascade.topology.model import Node, Role, Set, Topology

#: Texts about the nodes of a set, by the node's name.
Notes: TypeAlias = Mapping[str, Sequence[str]]

COLOURS = {
    Role.ROOT: ("#fde68a", "#b45309"),
    Role.COMBINED_ROOT: ("#fed7aa", "#c2410c"),
    Role.BRANCH: ("#bfdbfe", "#1d4ed8"),
    Role.LEAF: ("#bbf7d0", "#15803d"),
    Role.MERGE_LEAF: ("#e9d5ff", "#7e22ce"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's place in the tree: how deep, and for itself and each one above whether it is the last of its kind."""

    node: Node
    depth: int
    lasts: tuple[bool, ...]


def text(topology: Topology, notes: Mapping[str, Notes] | None = None) -> str:
    """Return all sets as trees; `notes` are by set and node."""
    return "\n\n".join(tree(found, (notes or {}).get(found.name)) for found in topology.sets.values())


def tree(found: Set, notes: Notes | None = None) -> str:
    """Return one set as a tree, a line per node, what belongs together in columns:

    orders
      s1 root           ams1
      ├─> s2 branch     ams2
      └─> s3 branch     ams3
          └─> s4 leaf   bi    shop.handlers:apply
    """
    rows = []
    for place in walk(found):
        label = f"{guide(place.lasts)}{place.node.name} {place.node.role}"
        rows.append([label, place.node.database, *details(place.node), *(notes or {}).get(place.node.name, ())])
    widths = [
        max(len(row[column]) for row in rows if len(row) > column) for column in range(max(map(len, rows), default=0))
    ]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]
    return "\n".join([heading(found), *(f"  {line}".rstrip() for line in lines)])


def heading(found: Set) -> str:
    """Return the name of a set, and what it combines."""
    return f"{found.name} = {' + '.join(found.combines)}" if found.combines else found.name


def details(node: Node) -> list[str]:
    """Return what a node says about itself besides its role and database."""
    start = f"from {node.start}" if node.start not in (None, "earliest") else ""
    into = f"into {node.into}{' (derived)' if node.is_derived else ''}" if node.into else ""
    return [part for part in (node.handler, start, into) if part]


def guide(lasts: Sequence[bool]) -> str:
    """Return the lines that lead to a node from those above it."""
    if not lasts:
        return ""
    above = "".join("    " if last else "│   " for last in lasts[:-1])
    return above + ("└─> " if lasts[-1] else "├─> ")


def walk(found: Set) -> Iterator[Place]:
    """Yield every node once, each provider before its subscribers, in the order of the file.

    A set that was not checked is walked too: a node whose provider is missing stands at the top.
    """
    below: dict[str | None, list[Node]] = {}
    for node in found.nodes.values():
        below.setdefault(node.provider if node.provider in found.nodes else None, []).append(node)
    seen: set[str] = set()
    for top in [*below.get(None, ()), *found.nodes.values()]:
        waiting = [Place(node=top, depth=0, lasts=())] if top.name not in seen else []
        while waiting:
            place = waiting.pop()
            seen.add(place.node.name)
            yield place
            nodes = [node for node in below.get(place.node.name, ()) if node.name not in seen]
            places = [
                Place(node=node, depth=place.depth + 1, lasts=(*place.lasts, node is nodes[-1])) for node in nodes
            ]
            waiting += reversed(places)


def mermaid(topology: Topology, notes: Mapping[str, Notes] | None = None) -> str:
    """Return a Mermaid graph: a box per set, an arrow the way events go."""
    ids = {(node.set, node.name): f"n{index}" for index, node in enumerate(all_nodes(topology))}
    lines = ["graph LR"]
    for index, found in enumerate(topology.sets.values()):
        lines.append(f'  subgraph g{index}["{plain(heading(found))}"]')
        for node in found.nodes.values():
            label = "<br/>".join(plain(line) for line in box_lines(node, (notes or {}).get(found.name)))
            lines.append(f'    {ids[found.name, node.name]}["{label}"]:::{class_of(node.role)}')
        for node in found.nodes.values():
            if node.provider in found.nodes:
                lines.append(f"    {ids[found.name, str(node.provider)]} --> {ids[found.name, node.name]}")
        lines.append("  end")
    lines += [f"  {ids[a.set, a.name]} -.-> {ids[b.set, b.name]}" for a, b in merges(topology)]
    for role in dict.fromkeys(node.role for node in all_nodes(topology)):
        fill, stroke = COLOURS[role]
        lines.append(f"  classDef {class_of(role)} fill:{fill},stroke:{stroke},color:#111827")
    return "\n".join(lines)


def all_nodes(topology: Topology) -> list[Node]:
    """Return the nodes of all sets."""
    return [node for found in topology.sets.values() for node in found.nodes.values()]


def merges(topology: Topology) -> list[tuple[Node, Node]]:
    """Return each merge-leaf with the node of the combined set that it feeds, which is in the same database."""
    return [
        (leaf, node)
        for leaf in all_nodes(topology)
        if leaf.into in topology.sets
        for node in topology.sets[str(leaf.into)].nodes.values()
        if node.database == leaf.database
    ]


def box_lines(node: Node, notes: Notes | None) -> list[str]:
    """Return what stands in the box of a node, the name first."""
    return [node.name, f"{node.role} · {node.database}", *details(node), *(notes or {}).get(node.name, ())]


def class_of(role: Role) -> str:
    """Return a role as a class name in Mermaid and CSS."""
    return role.replace("-", "_")


def plain(line: str) -> str:
    """Return a line that neither Mermaid nor XML takes for markup."""
    return escape("".join(char if char.isprintable() else " " for char in line), quote=True).replace("&#x27;", "&#39;")
