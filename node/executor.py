"""Executor: carries out the steps of a plan, one after the other, in the databases they change.

Before each step the nodes it touches are asked again: what is done already is passed over, and what is no longer
as the plan assumed ends the run.  So a run can be broken off anywhere; planning again goes on from there.  Each
step writes the journal of the database it changes, in its own transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.errors import MovedOnError, UnsafeError
from cascade.node import comeback, reign
from cascade.node.enroll import switch
from cascade.node.survey import Links
from cascade.topology import Topology
from cascade.topology import steps as s
from cascade.topology.decision import Plan
from cascade.topology.observe import Observed

log = logging.getLogger("cascade.node.executor")

DROP_MEMBER: LiteralString = "select cascade.drop_member(%s, %s)"
STORE: LiteralString = "select cascade.store_document(%s, %s, %s)"

#: Between these writers wait, so that nothing else is asked.
HASTY = (s.Offer, s.AwaitPromotion)


@dataclass(kw_only=True)
class Outcome:
    """What a run has done: how long writers waited, the revision that is stored, and what steps had to say."""

    steps: list[str] = field(default_factory=list)
    pause_s: float | None = None
    revision: int | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)


class Executor:
    """Carries out one plan; `tell` hears of every step before it is taken."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        observed: Observed,
        *,
        wait_s: float = 10.0,
        timeout_s: float = 15.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan, self.observed, self.wait_s = plan, observed, wait_s
        self.links = Links(topology, observed, timeout_s=timeout_s)
        self.outcome = Outcome(revision=observed.revision or None)
        self._tell = tell
        self._fenced_at: float | None = None
        #: The newest term that the plan is based on.
        terms = [term for term in observed.terms.values() if term.voided_by is None]
        self._known = max(terms, key=lambda term: term.number).uid if terms else None

    async def run(self) -> Outcome:
        """Take all steps; raise at the first that cannot be taken, those before it are done."""
        self.plan.check()
        self.plan.check_fresh(self.observed)
        async with self.links:
            await self.links.warm_up(sorted({step.node for step in self.plan.steps} & set(self.observed.views)))
            for step in self.plan.steps:
                await self._step(step)
            if not self.plan.is_empty and self.plan.root in self.observed.views:
                self.outcome.revision = (await self.links.view(self.plan.root)).revision or None
        return self.outcome

    async def _step(self, step: s.Step) -> None:
        if step.is_note:
            return
        if not isinstance(step, HASTY):
            await self._look(step)
            if step.is_done(self.observed):
                return
            moved = [text for condition in step.before for text in condition.objections(self.observed)]
            if moved:
                raise UnsafeError(
                    f"set {self.plan.set}: {'; '.join(moved)}",
                    hint="Somebody changed it meanwhile; what was done so far is sound.  Plan again.",
                )
        self._tell(step.text)
        await self._take(step)
        self.outcome.steps.append(step.text)
        log.info("set %s: %s", self.plan.set, step.text)

    async def _look(self, step: s.Step) -> None:
        """Ask the nodes that a step is about how they are now."""
        nodes = {step.node, getattr(step, "provider", None), *getattr(step, "nodes", ()), self.plan.root}
        views = dict(self.observed.views)
        for node in sorted(node for node in nodes if node in views):
            views[node] = await self.links.view(node)
        self.observed = replace(self.observed, views=views)

    async def _take(self, step: s.Step) -> None:
        """Carry out one step."""
        links, plan = self.links, self.plan
        match step:
            case s.Fence():
                self._fenced_at = await reign.raise_fence(links, step, self.wait_s)
            case s.Offer():
                await reign.offer(links, step)
            case s.AwaitPromotion():
                await reign.await_promotion(links, step, self.wait_s)
                if self._fenced_at is not None:
                    self.outcome.pause_s = round(time.monotonic() - self._fenced_at, 3)
            case s.Abort():
                await reign.end_operation(links, step)
            case s.CatchUp():
                await reign.catch_up(links, step)
            case s.OpenBallots():
                await reign.open_ballots(links, step, self._known)
            case s.CloseBallots():
                await reign.close_ballots(links, step)
            case s.Promote():
                facts = {**plan.facts, "document": plan.document}
                await reign.promote(links, step, facts, self.observed.views.values())
            case s.ResetLeaf():
                self.outcome.reports.append(await comeback.reset_leaf(links, step, plan.root))
            case s.SwitchProvider():
                old = self.observed.views[step.node].provider
                await switch(links.home(step.node), step.provider, tells_old=old in self.observed.views)
            case s.Demote():
                await comeback.demote(links, step, self.wait_s)
            case s.Resurrect():
                self.outcome.reports.append(await comeback.resurrect(links, step, self.wait_s, self._tell))
            case s.DropNode():
                await links.call(plan.root, DROP_MEMBER, plan.set, step.node)
            case s.StoreDocument():
                await self._store(step)
            case _:
                raise AssertionError(f"nobody knows how to take {step}")

    async def _store(self, step: s.StoreDocument) -> None:
        """Store the document, unless somebody stored another one meanwhile; a promotion may have stored it already."""
        root = await self.links.view(step.node)
        if root.document == step.document:
            return
        if root.revision > self.plan.base_revision:
            raise MovedOnError(
                f"set {self.plan.set}: revision {root.revision} was stored meanwhile",
                hint="Everything else was done.  Plan again, from what the databases have: cascade topology export.",
            )
        await self.links.call(step.node, STORE, self.plan.set, root.revision, Jsonb(dict(step.document)))
