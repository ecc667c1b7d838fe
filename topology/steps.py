"""Steps: what a plan does, one after the other, each with what must hold before it and what holds after it.

A step is a value: it can be shown, saved and read again.  Carrying it out (node/executor.py) is a
compare-and-swap on what `before` says, and a step that `is_done` is passed over, so that a plan may stop
after any step, and whoever plans again goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from cascade.errors import ConfigError
from cascade.topology.conditions import Condition
from cascade.topology.observe import Observed
from cascade.topology.terms import left_at

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do in one database, `node`'s."""

    node: str
    before: tuple[Condition, ...] = ()
    #: What it does, on one line, in terms of its fields.
    line: ClassVar[str]
    #: Whether it changes nothing by itself.
    is_note: ClassVar[bool] = False

    @property
    def text(self) -> str:
        """Return what it does, on one line."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        if "fork" in values:
            values["fork"] = values["fork"]["tick_id"]
        return self.line.format(**values | {"nodes": ", ".join(values.get("nodes", ()))})

    def is_done(self, observed: Observed) -> bool:
        """Whether what it brings about is so already."""
        raise NotImplementedError

    def as_json(self) -> Json:
        """Return it as plain values."""
        found: Json = {"step": type(self).__name__, "text": self.text}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "before":
                value = [condition.as_json() for condition in value]
            found[one.name] = list(value) if isinstance(value, tuple) else value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Step):
    """The root refuses inserts; an operation is open from here on."""

    line: ClassVar[str] = "fence {node}: inserts are refused from here until the new root takes them"
    op_id: str
    target: str

    def is_done(self, observed: Observed) -> bool:
        """Whether it is fenced by this operation, or the reign has moved on."""
        view = observed.views.get(self.node)
        return view is not None and view.fence is not None and view.fence.op_id == self.op_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Step):
    """The old root makes its closing tick and offers the reign: the point of no return."""

    line: ClassVar[str] = "close the term at {node} and offer the reign to {to}"
    to: str
    uid: str
    op_id: str

    def is_done(self, observed: Observed) -> bool:
        """Whether the offer stands, or was taken."""
        view = observed.views.get(self.node)
        return self.uid in observed.terms or bool(view and view.offer and view.offer.uid == self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitPromotion(Step):
    """The target copies the closing tick, takes the reign and opens its term."""

    line: ClassVar[str] = "{node} copies the closing tick, takes the reign from {old} and opens its term"
    uid: str
    old: str

    def is_done(self, observed: Observed) -> bool:
        """Whether the term is open."""
        return _reigns(observed, self.node, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Step):
    """An operation that was left behind is ended: the fence is dropped, or the offer withdrawn."""

    line: ClassVar[str] = "end the operation that was left open at {node}, so that it takes inserts again"
    op_id: str

    def is_done(self, observed: Observed) -> bool:
        """Whether that operation is over."""
        view = observed.views.get(self.node)
        return view is not None and view.operation is None and (view.fence is None or view.fence.op_id != self.op_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp(Step):
    """The chosen carrier copies what the most advanced one has, before it is promoted."""

    line: ClassVar[str] = "{node} copies from {provider} up to tick {tick_id}"
    provider: str
    tick_id: int

    def is_done(self, observed: Observed) -> bool:
        """Whether it has come so far."""
        view = observed.views.get(self.node)
        return view is not None and view.tick.tick_id >= self.tick_id


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBallots(Step):
    """Every carrier that answers is told of the promotion first; it refuses a second one, and copies nothing more.

    The candidate is the first of `nodes`: its announcement expires before any other.
    """

    line: ClassVar[str] = "announce the promotion of {node} (term {number}) to {nodes}"
    nodes: tuple[str, ...]
    number: int
    uid: str
    fork: Mapping[str, Any] = field(hash=False)

    def is_done(self, observed: Observed) -> bool:
        """Whether all of them know, or it is over."""
        views = [observed.views.get(node) for node in self.nodes]
        known = all(view and any(b.uid == self.uid for b in view.ballots) for view in views)
        return self.uid in observed.terms or known


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseBallots(Step):
    """The carriers are told that a promotion is over, or given up."""

    line: ClassVar[str] = "end the announcement of term {number} at {nodes}"
    nodes: tuple[str, ...]
    number: int
    uid: str

    def is_done(self, observed: Observed) -> bool:
        """Whether none of those that answer holds it."""
        views = [observed.views[node] for node in self.nodes if node in observed.views]
        return not any(ballot.uid == self.uid for view in views for ballot in view.ballots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Step):
    """A branch becomes the root: a new term begins at the fork.  `nodes` are those who were told of it."""

    line: ClassVar[str] = "promote {node}: term {number} begins after tick {fork}"
    nodes: tuple[str, ...]
    uid: str
    number: int
    cause: str
    fork: Mapping[str, Any] = field(hash=False)

    def is_done(self, observed: Observed) -> bool:
        """Whether the term is open."""
        return _reigns(observed, self.node, self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLeaf(Step):
    """A leaf that had come further than the fork goes back to it; what it had seen is listed."""

    line: ClassVar[str] = "set {node} back to tick {fork}; what it saw beyond is listed as phantoms"
    fork: Mapping[str, Any] = field(hash=False)

    def is_done(self, observed: Observed) -> bool:
        """Whether it stands at the fork or below, or has gone on from there."""
        view = observed.views.get(self.node)
        if view is None:
            return False
        # Another term alone says little: it may be one that an operator gave up.
        has_gone_on = view.tick.term_uid != self.fork["term_uid"] and not left_at(
            view.tick, observed.terms, observed.tip
        )
        return view.tick.tick_id <= int(self.fork["tick_id"]) or has_gone_on


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchProvider(Step):
    """A node copies from another one."""

    line: ClassVar[str] = "{node} copies from {provider}"
    provider: str
    generation: int

    def is_done(self, observed: Observed) -> bool:
        """Whether it does so already."""
        view = observed.views.get(self.node)
        return view is not None and view.provider == self.provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(Step):
    """A former root that has nothing of its own becomes a branch."""

    line: ClassVar[str] = "{node}, no longer the root, becomes a branch of {provider}"
    provider: str

    def is_done(self, observed: Observed) -> bool:
        """Whether it is a branch."""
        view = observed.views.get(self.node)
        return view is not None and not view.role.is_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Resurrect(Step):
    """A carrier beyond a fork sets its tail aside and becomes a branch again."""

    line: ClassVar[str] = "resurrect {node}: its tail goes to quarantine, and it becomes a branch of {provider}"
    provider: str

    def is_done(self, observed: Observed) -> bool:
        """Whether it is a branch, on the path, and nobody's answer stops it."""
        view = observed.views.get(self.node)
        if view is None or view.role.is_root or view.is_dirty or view.answer in ("diverged", "dirty"):
            return False
        return left_at(view.tick, observed.terms, observed.tip) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNode(Step):
    """A node that the file has and the set has not; its daemon makes it, so that this is only told."""

    line: ClassVar[str] = "{node} is new: {how}"
    how: str
    is_note: ClassVar[bool] = True

    def is_done(self, observed: Observed) -> bool:
        """Whether it is there."""
        return self.node in observed.views


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNode(Step):
    """A node that the file no longer has stops being a member; `node` is the one, the root decides it."""

    line: ClassVar[str] = "drop {node}: it is no longer a member, and holds nobody's disk; its database stays as it is"

    def is_done(self, observed: Observed) -> bool:
        """Whether it is no member."""
        member = observed.members.get(self.node)
        return member is None or member.state == "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDocument(Step):
    """The databases learn what the set is to look like; the file is given the new revision."""

    line: ClassVar[str] = "store the topology at {node} as revision {revision}"
    revision: int
    document: Mapping[str, Any] = field(hash=False)

    def is_done(self, observed: Observed) -> bool:
        """Whether the document is this one."""
        return observed.revision >= self.revision and observed.document == self.document


STEPS: dict[str, type[Step]] = {
    cls.__name__: cls
    for cls in (
        Abort,
        AddNode,
        AwaitPromotion,
        CatchUp,
        CloseBallots,
        Demote,
        DropNode,
        Fence,
        Offer,
        OpenBallots,
        Promote,
        ResetLeaf,
        Resurrect,
        StoreDocument,
        SwitchProvider,
    )
}


def read_step(row: Mapping[str, Any]) -> Step:
    """Return a step that was saved."""
    cls = STEPS.get(str(row.get("step")))
    if cls is None:
        raise ConfigError(f"the plan has a step {row.get('step')!r:.40}, which this release does not know")
    values = {one.name: row[one.name] for one in fields(cls) if one.name in row}
    values["before"] = tuple(Condition.parse(condition) for condition in row.get("before") or ())
    if "nodes" in values:
        values["nodes"] = tuple(values["nodes"])
    return cls(**values)


def _reigns(observed: Observed, node: str, uid: str) -> bool:
    view = observed.views.get(node)
    return view is not None and view.role.is_root and uid in {term.uid for term in view.terms}
