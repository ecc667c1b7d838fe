"""What a cascade should look like, as frozen values: databases, sets, and the nodes of each set."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from cascade.errors import TopologyError
from cascade.topology.combine import merge_leaves
from cascade.topology.dsn import redact

T = TypeVar("T")


class Role(StrEnum):
    """What a node does in its set."""

    ROOT = "root"
    BRANCH = "branch"
    LEAF = "leaf"
    MERGE_LEAF = "merge-leaf"
    COMBINED_ROOT = "combined-root"

    @property
    def is_root(self) -> bool:
        """Whether the set begins here, so that there is no provider."""
        return self in (Role.ROOT, Role.COMBINED_ROOT)

    @property
    def is_carrier(self) -> bool:
        """Whether it keeps a copy of the queue, and so can provide."""
        return self.is_root or self is Role.BRANCH

    @property
    def is_processor(self) -> bool:
        """Whether it can run a handler."""
        return self in (Role.BRANCH, Role.LEAF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One database's part in one set; only the root has no provider.

    `start` is where a leaf begins: now, earliest, or the id of a tick.  `into` is the combined set
    that a merge-leaf feeds; `is_derived` says that it is not written and follows from what that set combines.
    """

    name: str
    set: str
    database: str
    role: Role
    provider: str | None = None
    handler: str | None = None
    start: str | None = None
    into: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    is_derived: bool = False

    def __post_init__(self) -> None:
        if self.role.is_root != (self.provider is None):
            raise TopologyError(f"set {self.set}, node {self.name}: only the root goes without a provider")
        _freeze(self, "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """The nodes that carry one queue; `combines` names the parts of a combined set."""

    name: str
    nodes: Mapping[str, Node] = field(hash=False)
    combines: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    revision: int | None = None

    def __post_init__(self) -> None:
        _freeze(self, "nodes")
        _freeze(self, "options")

    @property
    def is_combined(self) -> bool:
        """Whether its events come from other sets."""
        return bool(self.combines)

    @property
    def root(self) -> Node:
        """Return the node where events enter; a set that was checked has one."""
        for node in self.nodes.values():
            if node.role.is_root:
                return node
        raise TopologyError(f"set {self.name} has no root")

    def node(self, name: str) -> Node:
        """Return a node by name, or raise with the name that was probably meant."""
        return _find(name, self.nodes, f"set {self.name} has no node")

    def subscribers(self, name: str) -> tuple[Node, ...]:
        """Return the nodes that copy from this one, in the order of the file."""
        self.node(name)
        return tuple(node for node in self.nodes.values() if node.provider == name)

    def path(self, name: str) -> tuple[Node, ...]:
        """Return the way of an event from the root to this node, both included."""
        found = [self.node(name)]
        while (provider := found[-1].provider) is not None:
            if len(found) > len(self.nodes):
                raise TopologyError(f"set {self.name}, node {name}: its providers form a circle")
            found.append(self.node(provider))
        return tuple(reversed(found))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Database:
    """A database and how to reach it; `dsn` is as written, its variables not replaced."""

    name: str
    dsn: str

    def __repr__(self) -> str:
        return f"Database(name={self.name!r}, dsn={redact(self.dsn)!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All that a file says, and the merge-leaves that follow from that; where it came from is no part of it."""

    databases: Mapping[str, Database] = field(hash=False)
    sets: Mapping[str, Set] = field(hash=False)
    signals: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int = 1
    source: str = field(default="<topology>", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", _with_merge_leaves(self.sets))
        for name in ("databases", "sets", "signals"):
            _freeze(self, name)

    def nodes_at(self, database: str) -> tuple[Node, ...]:
        """Return the nodes that a database has, at most one per set; raise for a database not defined."""
        _find(database, self.databases, "there is no database")
        return tuple(node for found in self.sets.values() for node in found.nodes.values() if node.database == database)

    @property
    def parts_first(self) -> tuple[str, ...]:
        """Return the names of the sets in the order of the file, but each part before the sets that combine it."""
        found: dict[str, None] = {}

        def add(name: str, above: tuple[str, ...]) -> None:
            for part in self.sets[name].combines:
                if part in self.sets and part not in above:
                    add(part, (*above, part))
            found.setdefault(name)

        for name in self.sets:
            add(name, (name,))
        return tuple(found)

    def find(self, set: str, node: str) -> Node:
        """Return a node by its set and name, or raise with the name that was probably meant."""
        return _find(set, self.sets, "there is no set").node(node)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Say which known name was probably meant, or something else that helps."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def _find(name: str, known: Mapping[str, T], missing: str) -> T:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known, f"known are {', '.join(known) or 'none'}.")
    raise TopologyError(f"{missing} {name!r}", hint=hint[0].upper() + hint[1:])


def _with_merge_leaves(sets: Mapping[str, Set]) -> dict[str, Set]:
    """Return sets with the merge-leaves that follow from what they say now, instead of those that did before."""
    written = {
        name: replace(found, nodes={node.name: node for node in found.nodes.values() if not node.is_derived})
        for name, found in sets.items()
    }
    nodes = {name: dict(found.nodes) for name, found in written.items()}
    for leaf in merge_leaves(written):
        if leaf.obstacle is None:
            nodes[leaf.part][leaf.name] = Node(
                name=leaf.name,
                set=leaf.part,
                database=leaf.database,
                role=Role.MERGE_LEAF,
                provider=leaf.provider,
                into=leaf.into,
                is_derived=True,
            )
    return {name: replace(found, nodes=nodes[name]) for name, found in written.items()}


def _freeze(value: Any, name: str) -> None:
    object.__setattr__(value, name, MappingProxyType(dict(getattr(value, name))))
