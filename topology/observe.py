"""Observed: what the databases of one set last reported, as data.

Whoever can reach the databases asks each for describe_set() and builds this; planning needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeAlias

from cascade.topology.model import Role
from cascade.topology.terms import Term, Tick, tips

#: What asking one database gave: its description, None when it has no node of the set, or why it did not answer.
Answer: TypeAlias = Mapping[str, Any] | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Why a queue takes no inserts: operation, over, conflict or rewound."""

    cause: str
    detail: str = ""
    op_id: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that is open on a set, in its root's database."""

    op_id: str
    kind: str
    target: str | None = None
    started_at: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """An offer of the reign: offered, taken or withdrawn at the old root; heard, later done, elsewhere."""

    uid: str
    target: str
    state: str
    term_uid: str | None = None
    closing_tick: int | None = None
    op_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ballot:
    """A promotion that was announced and is not over."""

    number: int
    uid: str
    candidate: str
    #: The tick after which the term is to begin.
    fork_tick: int = 0
    fork_chain: str = ""
    #: Whether a promotion may still come of it; carriers were not asked at one moment, so they need not agree.
    is_fresh: bool = field(default=True, compare=False)

    def is_about(self, fork: Tick) -> bool:
        """Whether it announces a promotion after this tick."""
        return (self.fork_tick, self.fork_chain) == (fork.tick_id, fork.chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a database knows of a member of the set."""

    node: str
    node_no: int
    role: str
    state: str = "live"
    tick_id: int | None = None
    heard_at: str | None = None
    location: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_carrier(self) -> bool:
        """Whether it keeps a copy of the queue."""
        return Role(self.role).is_carrier


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """A part of a combined set as a carrier knows it; `node` is its merge-leaf there, if it has one."""

    part: str
    node: str | None = None
    tick_id: int | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One node, as its own database describes it."""

    node: str
    node_no: int
    set_uid: str
    role: Role
    provider: str | None
    generation: int
    tick: Tick
    term_uid: str
    state: str = "running"
    fence: Fence | None = None
    answer: str | None = None
    answer_detail: str | None = None
    first_tick: int = 0
    is_dirty: bool = False
    next_number: int = 0
    highest_told: int | None = None
    terms: tuple[Term, ...] = ()
    members: tuple[Member, ...] = ()
    operation: Operation | None = None
    handover: Handover | None = None
    ballots: tuple[Ballot, ...] = ()
    revision: int = 0
    document: Mapping[str, Any] | None = field(default=None, hash=False)
    writers: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    certificates: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    #: Of a carrier of a combined set.
    parts: tuple[PartView, ...] = ()

    @property
    def is_carrier(self) -> bool:
        """Whether it keeps a copy of the queue."""
        return self.role.is_carrier

    @property
    def is_writable(self) -> bool:
        """Whether its queue takes inserts."""
        return self.role.is_root and self.fence is None

    @property
    def is_rewound(self) -> bool:
        """Whether it is a root whose database lost its tail, or may have."""
        return self.role.is_root and self.fence is not None and self.fence.cause == "rewound"

    @property
    def is_in_conflict(self) -> bool:
        """Whether it is a root that stopped because of a term beside its own, which nobody has decided, or told it."""
        return self.role.is_root and self.fence is not None and self.fence.cause == "conflict"

    @property
    def offer(self) -> Handover | None:
        """Return the offer by which its own term ended, unless that was withdrawn."""
        found = self.handover
        is_open = found is not None and found.state in ("offered", "taken") and found.term_uid == self.term_uid
        return found if is_open else None

    @property
    def has_given_away(self) -> bool:
        """Whether it is a root whose heir took the reign; of the heir's own term nothing has come here."""
        return self.role.is_root and self.offer is not None and self.offer.state == "taken"

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Read what cascade.describe_set() returned."""
        return cls(
            node=found["node"],
            node_no=int(found["node_no"]),
            set_uid=str(found["set_uid"]),
            role=Role(found["role"]),
            provider=found["provider"],
            generation=int(found["generation"]),
            state=found["state"],
            tick=Tick.parse(found["tick"]),
            term_uid=str(found["term_uid"]),
            fence=_part(Fence, found.get("fence")),
            answer=found.get("answer"),
            answer_detail=found.get("answer_detail"),
            first_tick=int(found.get("first_tick") or 0),
            is_dirty=bool(found.get("is_dirty")),
            next_number=int(found.get("next_number") or 0),
            highest_told=found.get("highest_told"),
            terms=tuple(map(Term.parse, found.get("terms") or ())),
            members=tuple(_part(Member, row) for row in found.get("members") or ()),
            operation=_part(Operation, found.get("operation")),
            handover=_part(Handover, found.get("handover")),
            ballots=tuple(_part(Ballot, row) for row in found.get("ballots") or ()),
            revision=int(found.get("revision") or 0),
            document=found.get("document"),
            writers=tuple(_writer(row) for row in found.get("writers") or ()),
            prepared=tuple(_prepared(row) for row in found.get("prepared") or ()),
            certificates=tuple(found.get("certificates") or ()),
            parts=tuple(_part(PartView, row) for row in found.get("parts") or ()),
        )


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One set: the nodes that answered, why others did not, and databases that have no node of it yet."""

    set: str
    views: Mapping[str, View] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    @classmethod
    def build(cls, set_name: str, answers: Mapping[str, Answer]) -> Self:
        """Read the answers, by the names that the nodes have in the file, or told the others."""
        views = {node: View.parse(found) for node, found in answers.items() if isinstance(found, Mapping)}
        silent = {node: found for node, found in answers.items() if isinstance(found, str)}
        missing = frozenset(node for node, found in answers.items() if found is None)
        return cls(set=set_name, views=views, silent=silent, missing=missing)

    @cached_property
    def terms(self) -> Mapping[str, Term]:
        """All terms that anybody knows, by uid; one that anybody knows to be void is."""
        known = [term for view in self.views.values() for term in view.terms]
        return {term.uid: term for term in sorted(known, key=lambda term: term.voided_by is not None)}

    @cached_property
    def next_hundred(self) -> int:
        """The hundreds of the next term's number: above those of all terms and ballots that anybody knows."""
        terms = max((term.number for term in self.terms.values()), default=0) // 100 + 1
        return max([terms, *(view.next_number // 100 for view in self.views.values())])

    @cached_property
    def tips(self) -> list[Term]:
        """The terms that nothing has ended: one, or the set is split."""
        return tips(self.terms)

    @cached_property
    def tip(self) -> Term:
        """The term that reigns; asked only of a set that is not split."""
        [found] = self.tips
        return found

    @property
    def root(self) -> View | None:
        """Return the node that reigns, if it answers."""
        return self.views.get(self.tip.node)

    @cached_property
    def is_combined(self) -> bool:
        """Whether the databases have it as a combined set; a merge-leaf of it knows nothing of that."""
        roles = [*(view.role for view in self.views.values()), *(member.role for member in self.members.values())]
        return Role.COMBINED_ROOT in roles or any(view.parts for view in self.views.values())

    def unmerged(self, view: View) -> list[str]:
        """Return the parts, as far as anybody knows them, that have no merge-leaf where this carrier is."""
        known = {part.part for other in self.views.values() for part in other.parts}
        return sorted(known - {part.part for part in view.parts if part.node is not None})

    @cached_property
    def members(self) -> Mapping[str, Member]:
        """The members, each as whoever stands furthest on knows it, with the highest position anybody heard of."""
        found: dict[str, Member] = {}
        for view in sorted(self.views.values(), key=lambda view: (view.role.is_root, view.tick.tick_id)):
            found |= {member.node: member for member in view.members}
        return found

    @cached_property
    def revision(self) -> int:
        """The revision of the set's document, as far as anybody knows."""
        return max((view.revision for view in self.views.values()), default=0)

    @cached_property
    def document(self) -> Mapping[str, Any] | None:
        """The newest document that anybody has."""
        view = max(self.views.values(), key=lambda view: view.revision, default=None)
        return view.document if view else None

    def heard_of(self, node: str) -> int | None:
        """Return the highest tick that a node is known to have reached."""
        own = self.views.get(node)
        told = [m.tick_id for v in self.views.values() for m in v.members if m.node == node and m.tick_id is not None]
        return max([*told, *([own.tick.tick_id] if own else [])], default=None)

    def role_of(self, node: str) -> str | None:
        """Return the role of a node, asked or as the others know it; the reigning one is the root."""
        if node in self.views:
            return str(self.views[node].role)
        if self.tips and node == self.tips[-1].node:
            return str(Role.COMBINED_ROOT if self.is_combined else Role.ROOT)
        return self.members[node].role if node in self.members else None

    def provider_of(self, node: str) -> str | None:
        """Return whom a node copies from, asked or as the document had it."""
        if node in self.views:
            return self.views[node].provider
        nodes = (self.document or {}).get("nodes") or {}
        return (nodes.get(node) or {}).get("provider")


def _part(cls: Any, row: Mapping[str, Any] | None) -> Any:
    """Return a small value from the keys that it knows; keys may be added to a description."""
    if row is None:
        return None
    known = cls.__dataclass_fields__
    return cls(**{key: value for key, value in row.items() if key in known and value is not None})


def _writer(row: Mapping[str, Any]) -> str:
    return f"process {row.get('pid')}, open for {float(row.get('age_s') or 0):.1f} s: {str(row.get('query'))[:80]}"


def _prepared(row: Mapping[str, Any]) -> str:
    return f"prepared transaction {row.get('gid')!r}, {float(row.get('age_s') or 0):.0f} s old"
