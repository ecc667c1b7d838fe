"""What is asked of the planner and what it decides, as values: Request, Plan, Loss, Refusal.

A plan says what it was made from, so that it can be refused once that has changed; it can be saved and read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from cascade.errors import ConfigError, UnsafeError
from cascade.topology.conditions import Condition
from cascade.topology.observe import Observed
from cascade.topology.steps import Step, read_step

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a plan is made with, besides the file: fresh ids, the time, and what the operator accepts.

    `dead` are nodes that are given up, `without` carriers that cannot be asked whether they are further on; the
    certificate waits for both.  `allow_loss` is the fork beyond which everything may be lost, `fenced_by` how an
    old root that cannot be reached is kept from writing, and `over_ballot` another promotion that is given up.
    """

    op_id: str
    uid: str
    now: datetime
    reason: str | None = None
    dead: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    allow_loss: int | None = None
    fenced_by: str | None = None
    over_ballot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a plan must not be carried out, and what would help."""

    fact: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.fact}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a failover may lose: events of the old term that the fork's snapshot does not show.

    `at_most` counts up to the highest tick of which anybody knows how many events came before it, and
    `highest_known` is the highest that anybody heard of at all; what came after is unknown.  `is_closed` means that
    the old root had closed its term at the fork, so that nothing is lost.
    """

    fork: int
    at_most: int
    counted_to: int
    highest_known: int
    known_by: tuple[str, ...] = ()
    is_closed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "fork": str(self.fork),
            "at_most": self.at_most,
            "counted_to": str(self.counted_to),
            "highest_known": str(self.highest_known),
            "known_by": list(self.known_by),
            "is_closed": self.is_closed,
            "unknown_after": not self.is_closed,
        }

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Read what as_json() returned."""
        ids = {key: int(row[key]) for key in ("fork", "counted_to", "highest_known")}
        return cls(**ids, at_most=row["at_most"], known_by=tuple(row["known_by"]), is_closed=row["is_closed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do to one set, in order, and what it was decided upon."""

    set: str
    kind: str
    op_id: str
    uid: str
    steps: tuple[Step, ...] = ()
    pause_s: float | None = None
    loss: Loss | None = None
    warnings: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    tip_uid: str | None = None
    base_revision: int = 0
    #: Each node as it stood, or None where it did not answer.
    evidence: Mapping[str, Condition | None] = field(default_factory=dict, hash=False)
    #: What a promotion writes down: reason, fenced_by, without, evidence.
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return all(step.is_note for step in self.steps)

    @property
    def root(self) -> str:
        """Return the root that the file asks for."""
        return str(next(name for name, node in self.document["nodes"].items() if node["provider"] is None))

    def check(self) -> None:
        """Raise UnsafeError if it was refused."""
        if self.refusals:
            facts = "\n".join(refusal.fact for refusal in self.refusals)
            remedies = dict.fromkeys(refusal.remedy for refusal in self.refusals)
            raise UnsafeError(f"set {self.set}: {facts}", hint="; ".join(remedies))

    def check_fresh(self, observed: Observed) -> None:
        """Raise UnsafeError if terms, positions or anything else it was made from has moved on."""
        if moved := self.moved_on(observed):
            raise UnsafeError(
                f"set {self.set}: the plan is stale:\n" + "\n".join(moved),
                hint="Nothing was done.  Plan again, and look at what has changed.",
            )

    def moved_on(self, observed: Observed) -> list[str]:
        """Return what is no longer as it was when the plan was made."""
        tips = [term.uid for term in observed.tips]
        moved = [] if tips == [self.tip_uid] else [f"the term is {' and '.join(tips) or 'unknown'}, was {self.tip_uid}"]
        if observed.revision != self.base_revision:
            moved.append(f"the revision is {observed.revision}, was {self.base_revision}")
        for node, condition in self.evidence.items():
            if condition is not None:
                moved += condition.objections(observed)
            elif self.kind == "failover" and node in observed.views:
                moved.append(f"{node} answers, and did not")
        return moved

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, from which parse() makes the same plan."""
        return {
            "version": PLAN_VERSION,
            "set": self.set,
            "kind": self.kind,
            "op_id": self.op_id,
            "uid": self.uid,
            "steps": [step.as_json() for step in self.steps],
            "pause_s": self.pause_s,
            "loss": self.loss.as_json() if self.loss else None,
            "warnings": list(self.warnings),
            "refusals": [{"fact": refusal.fact, "remedy": refusal.remedy} for refusal in self.refusals],
            "tip_uid": self.tip_uid,
            "base_revision": self.base_revision,
            "evidence": {node: found.as_json() if found else None for node, found in self.evidence.items()},
            "facts": dict(self.facts),
            "document": dict(self.document),
        }

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Read what as_json() returned; raise ConfigError for anything else."""
        if row.get("version") != PLAN_VERSION:
            raise ConfigError(f"this is no plan of version {PLAN_VERSION}", hint="Plan again with this release.")
        try:
            same = {key: row[key] for key in ("set", "kind", "op_id", "uid", "pause_s", "tip_uid", "base_revision")}
            return cls(
                **same,
                steps=tuple(map(read_step, row["steps"])),
                loss=Loss.parse(row["loss"]) if row["loss"] else None,
                warnings=tuple(row["warnings"]),
                refusals=tuple(Refusal(**refusal) for refusal in row["refusals"]),
                evidence={node: Condition.parse(found) if found else None for node, found in row["evidence"].items()},
                facts=row["facts"],
                document=row["document"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the plan cannot be read: {error!r}", hint="Plan again.") from error
