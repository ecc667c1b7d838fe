"""Sketch: a plan in the making, and the tree as it will be after the steps so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade.topology.conditions import Condition
from cascade.topology.decision import Loss, Plan, Refusal, Request
from cascade.topology.model import Role, Set
from cascade.topology.observe import Observed, View
from cascade.topology.steps import Step
from cascade.topology.terms import Term, Tick, left_at


@dataclass(kw_only=True)
class Sketch:
    """Collects steps, warnings and refusals; `providers` is who copies from whom after the steps so far."""

    wanted: Set
    observed: Observed
    request: Request
    kind: str = "change"
    uid: str = ""
    op_id: str = ""
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    providers: dict[str, str | None] = field(default_factory=dict)
    pause_s: float | None = 0.0
    loss: Loss | None = None
    #: The fork of the promotion that is planned.
    fork: Tick | None = None
    #: Silent carriers, the lost root aside, that are given up as dead: they may be further on all the same.
    given_up: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.uid, self.op_id = self.request.uid, self.request.op_id
        names = {*self.wanted.nodes, *self.observed.views}
        self.providers = {name: self.observed.provider_of(name) for name in sorted(names)}

    def refuse(self, fact: str, remedy: str) -> None:
        """Note a reason why the plan must not be carried out."""
        self.refusals.append(Refusal(fact=fact, remedy=remedy))

    def warn(self, text: str) -> None:
        """Note what the operator should know."""
        self.warnings.append(text)

    @property
    def root_answers(self) -> bool:
        """Whether the root that the file asks for can be told anything."""
        return self.wanted.root.name in self.observed.views

    def reason(self, node: str) -> str:
        """Return why a node cannot be asked."""
        return self.observed.silent.get(node) or "its database has no node of the set"

    def fork_of(self, view: View) -> Tick | None:
        """Return the fork that a node stands beyond, once the plan is carried out; None while it is on the path."""
        terms, tip = self.observed.terms, self.observed.tip
        if self.fork is not None:
            made = Term(uid=self.uid, number=0, node=self.wanted.root.name, parent_uid=tip.uid, fork=self.fork)
            terms, tip = {**terms, made.uid: made}, made
        return left_at(view.tick, terms, tip)

    def cannot_provide(self, provider: str, node: str) -> str | None:
        """Return why a node should not copy from another one now; None when it can.

        Whom a silent node copies from is not known for certain: it may be the very node that is to move.
        """
        at: str | None = provider
        for _ in range(len(self.providers) + 1):
            if at == self.wanted.root.name and at in self.observed.views:
                return None
            if at is None or at == node:
                break
            if at not in self.observed.views:
                return f"{at} does not answer" if at == provider else f"{at}, above {provider}, does not answer"
            at = self.providers.get(at)
        return f"{provider} copies from it, directly or not" if at == node else f"{provider} is not below the root"

    def finish(self) -> Plan:
        """Return the plan."""
        views = self.observed.views
        evidence = {name: self._evidence(views[name]) if name in views else None for name in self.providers}
        tips = self.observed.tips
        return Plan(
            set=self.wanted.name,
            kind=self.kind if self.steps else "none",
            op_id=self.op_id,
            uid=self.uid,
            steps=tuple(self.steps),
            pause_s=self.pause_s,
            loss=self.loss,
            warnings=tuple(self.warnings),
            refusals=tuple(self.refusals),
            tip_uid=tips[0].uid if len(tips) == 1 else None,
            base_revision=self.observed.revision,
            evidence=evidence,
            facts=self._facts(evidence),
            document=document_of(self.wanted),
        )

    def _evidence(self, view: View) -> Condition:
        """Return what must still be so of a node; a merge-leaf is moved by what happens to its combined set."""
        if view.role is Role.MERGE_LEAF:
            return Condition.of(view, "role", "provider")
        how = "tick_id" if self.kind == "failover" else "at_least"
        return Condition.of(view, "role", "provider", "term_uid", "generation", how)

    def _facts(self, evidence: Mapping[str, Condition | None]) -> dict[str, Any]:
        request = self.request
        return {
            "reason": request.reason,
            "op_id": self.op_id,
            "fenced_by": request.fenced_by,
            "without": sorted(request.without | self.given_up),
            "evidence": {name: found.as_json() if found else self.reason(name) for name, found in evidence.items()},
        }


def document_of(wanted: Set) -> dict[str, Any]:
    """Return what the databases are told of a set: what it combines, its nodes, where they are, whom they copy from.

    Whether a merge-leaf is written out in the file or not makes no difference.
    """
    nodes = wanted.nodes.values()
    found = {n.name: {"database": n.database, "role": str(n.role), "provider": n.provider} for n in nodes}
    return {"nodes": found} | ({"combines": list(wanted.combines)} if wanted.is_combined else {})
