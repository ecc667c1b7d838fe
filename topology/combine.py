"""Merge-leaves that follow from `combines`, so that nobody has to write them out.

A combined set has a merge-leaf of every part where its combined-root is, which copies, and at another carrier, the
combined-failover, which only follows and can be promoted:

    combines: [a, b]     nodes: c1 combined-root, c2 branch, c3 branch
      ──> in sets a and b: merge-leaves c1 and c2, in the databases of c1 and c2, which copy from the roots of a and b

The combined-failover is the first branch of the file; where merge-leaves are written out at branches, those are it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cascade.topology.model import Role


class Placed(Protocol):
    """A node, checked or as it was written."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role | None: ...
    @property
    def database(self) -> str | None: ...
    @property
    def into(self) -> str | None: ...


class Combining(Protocol):
    """A set, checked or as it was written."""

    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> Mapping[str, Placed]: ...
    @property
    def combines(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A merge-leaf that follows from `combines`; it is called like the carrier in whose database it is."""

    part: str
    into: str
    name: str
    database: str
    provider: str
    role: Role | None = None
    #: Whether the carrier is the combined-root.
    is_at_root: bool
    #: What the part has there already, or calls so: then this one cannot be.
    obstacle: Placed | None


def merge_leaves(sets: Mapping[str, Combining]) -> Iterator[Derived]:
    """Yield the merge-leaves that are wanted and not written out; what cannot be read is passed over."""
    taken: dict[str, list[Placed]] = {name: list(found.nodes.values()) for name, found in sets.items()}
    for combined in sets.values():
        for part in dict.fromkeys(combined.combines):
            root = root_of(sets[part]) if part in sets and part != combined.name else None
            for site in failovers(combined, sets):
                here = [node for node in taken.get(part, ()) if node.database == site.database]
                if root is None or site.database is None or any(node.into == combined.name for node in here):
                    continue
                same_name = [node for node in taken[part] if node.name == site.name]
                made = Derived(
                    part=part,
                    into=combined.name,
                    name=site.name,
                    database=site.database,
                    provider=root.name,
                    is_at_root=site.role is not None and site.role.is_root,
                    obstacle=next(iter([*here, *same_name]), None),
                )
                yield made
                if made.obstacle is None:
                    taken[part].append(made)


def failovers(combined: Combining, sets: Mapping[str, Combining]) -> list[Placed]:
    """Return the carriers that have, or shall have, a merge-leaf of every part: the combined-root is the first."""
    if not combined.combines:
        return []
    root = root_of(combined)
    others = [node for node in combined.nodes.values() if node.role and node.role.is_carrier and not node.role.is_root]
    parts = [sets[part] for part in combined.combines if part in sets]
    written = {node.database for part in parts for node in part.nodes.values() if node.into == combined.name}
    chosen = [node for node in others if node.database in written] or others[:1]
    return [root, *chosen] if root is not None else chosen


def root_of(found: Combining) -> Placed | None:
    """Return the root of a set; None where it has none that can be read."""
    return next((node for node in found.nodes.values() if node.role and node.role.is_root), None)
