"""A topology as it was written, right or wrong: what could be read of it, and the line of everything.

A value that was written but could not be read is None.  Rules that find None say nothing about it, so
that one mistake is reported once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from cascade.errors import Problem
from cascade.topology.model import Role

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class NodeDraft:
    """A node as written."""

    set: str
    name: str
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Return where it stands in the file."""
        return ("sets", self.set, "nodes", self.name)

    @property
    def role(self) -> Role | None:
        """Return its role, or None where it could not be read."""
        found = self.values.get("role")
        return None if found is None else Role(found)

    @property
    def database(self) -> str | None:
        """Return the name of its database, or None where it could not be read."""
        return self.values.get("database")

    @property
    def provider(self) -> str | None:
        """Return the name of its provider, or None where there is none to be read."""
        return self.values.get("provider")

    @property
    def into(self) -> str | None:
        """Return the combined set that it feeds, or None where there is none to be read."""
        return self.values.get("into")


@dataclass(frozen=True, kw_only=True)
class SetDraft:
    """A set as written."""

    name: str
    values: Mapping[str, Any]
    nodes: Mapping[str, NodeDraft]

    @property
    def path(self) -> Path:
        """Return where it stands in the file."""
        return ("sets", self.name)

    @property
    def is_combined(self) -> bool:
        """Whether it says what it combines."""
        return "combines" in self.values

    @property
    def combines(self) -> list[str]:
        """Return its parts, those left out that could not be read."""
        return [part for part in self.values.get("combines") or [] if part is not None]

    @property
    def is_whole(self) -> bool:
        """Whether the role of every node could be read."""
        return self.values.get("nodes") is not None and all(node.role for node in self.nodes.values())


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A whole topology as written."""

    source: str
    values: Mapping[str, Any]
    lines: Mapping[Path, int] = field(default_factory=dict)

    @cached_property
    def databases(self) -> dict[str, str | None]:
        """Return the DSNs by name of the database."""
        found = self.values.get("databases") or {}
        return {name: (values or {}).get("dsn") for name, values in found.items()}

    @cached_property
    def sets(self) -> dict[str, SetDraft]:
        """Return the sets by name."""
        found = {}
        for name, written in (self.values.get("sets") or {}).items():
            values = written or {}
            nodes = {
                node: NodeDraft(set=name, name=node, values=parts or {})
                for node, parts in (values.get("nodes") or {}).items()
            }
            found[name] = SetDraft(name=name, values=values, nodes=nodes)
        return found

    @property
    def nodes(self) -> Iterator[NodeDraft]:
        """Return the nodes of all sets."""
        return (node for found in self.sets.values() for node in found.nodes.values())

    def problem(self, path: Path, fact: str, remedy: str) -> Problem:
        """Return a problem with what stands at a path: '<place>: <fact>; <remedy>'."""
        return Problem(source=self.source, line=line_of(self.lines, path), fact=f"{place(path)}: {fact}", remedy=remedy)


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """Return the line of a path, or of the nearest thing around it that has one; else 0."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


def place(path: Path) -> str:
    """Return the object that a path leads to or into, as people call it: 'set orders, node s1'."""
    match path:
        case ("databases", name, *_):
            return f"database {bare(name)}"
        case ("sets", name, "nodes", node, *_):
            return f"set {bare(name)}, node {bare(node)}"
        case ("sets", name, *_):
            return f"set {bare(name)}"
        case (name, *_):
            return str(name)
        case _:
            return "the file"


def bare(name: str | int) -> str:
    """Return a name as it is, and in quotes what could not be one."""
    return str(name) if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", str(name)) else quoted(str(name))


def quoted(text: str) -> str:
    """Return text in quotes, cut short; hidden where it could be a DSN, which may hold a secret."""
    return "(not shown)" if re.search("[=@]", text) else repr(text if len(text) <= 60 else f"{text[:57]}...")
