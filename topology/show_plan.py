"""A plan for people: the tree as it is and as it will be, the steps with what they need, and what it may cost."""

from __future__ import annotations

from collections.abc import Iterator

from cascade.topology.decision import Loss, Plan
from cascade.topology.model import Node, Role, Set
from cascade.topology.observe import Observed
from cascade.topology.render import tree


def plan_text(plan: Plan, wanted: Set, observed: Observed) -> str:
    """Return all that an operator should read before a plan is carried out."""
    return "\n".join(plan_lines(plan, wanted, observed))


def plan_lines(plan: Plan, wanted: Set, observed: Observed) -> Iterator[str]:
    """Yield the lines of a plan."""
    changes = any(not step.is_note for step in plan.steps)
    if observed.views and len(observed.tips) == 1:
        yield "now:" if changes else ""
        yield tree_now(wanted, observed)
    if changes:
        yield "\nafter:"
        yield tree(wanted)
    if plan.steps:
        yield f"\n{plan.kind}:"
        for number, step in enumerate((step for step in plan.steps if not step.is_note), 1):
            yield f"  {number:2}. {step.text}"
            if step.before:
                yield f"        if {'; '.join(condition.text for condition in step.before)}"
        yield from (f"   -  {step.text}" for step in plan.steps if step.is_note)
    elif not plan.refusals:
        yield "\nnothing to do"
    yield from (f"\n{line}" for line in cost_lines(plan))
    yield from (f"warning: {warning}" for warning in plan.warnings)
    if plan.refusals:
        yield "\nrefused:"
        yield from (f"  {refusal.fact}\n      {refusal.remedy}" for refusal in plan.refusals)


def cost_lines(plan: Plan) -> Iterator[str]:
    """Yield what a plan costs: how long nobody can write, and what may be lost."""
    if plan.kind == "switchover":
        yield f"writers wait: about {plan.pause_s:g} s, and for what is open now; nothing is lost"
    if plan.kind == "failover":
        yield f"writers wait: since the root was lost, until {plan.root} is promoted"
    if plan.loss is not None:
        yield from loss_lines(plan.loss)
        if plan.document.get("combines") and not plan.loss.is_closed:
            yield "  its events are those of its parts, which keep them: they are merged again, under other ids"


def loss_lines(loss: Loss) -> Iterator[str]:
    """Yield what a failover may lose, as far as anybody can say."""
    if loss.is_closed:
        yield f"loss: none; the old root had closed its term at tick {loss.fork}"
        return
    yield f"loss: what the old root took after tick {loss.fork}"
    if loss.counted_to > loss.fork:
        yield f"  at most {loss.at_most} events up to tick {loss.counted_to}, which {', '.join(loss.known_by)} had"
    if loss.highest_known > loss.counted_to:
        yield f"  tick {loss.highest_known} was heard of too; how many events came before it is not known"
    yield "  what came after that is unknown"


def tree_now(wanted: Set, observed: Observed) -> str:
    """Return a set as it is, as far as it answers; of a node that does not, as it was last known."""
    nodes, notes = {}, {}
    for name in dict.fromkeys([*wanted.nodes, *observed.views]):
        role, provider = observed.role_of(name), observed.provider_of(name)
        if role is None:
            continue
        database = wanted.nodes[name].database if name in wanted.nodes else "-"
        kind = Role(role)
        if kind.is_root:
            provider = None
        elif provider is None:
            provider = (wanted.nodes[name].provider if name in wanted.nodes else None) or observed.tip.node
        nodes[name] = Node(name=name, set=wanted.name, database=database, role=kind, provider=provider)
        notes[name] = list(note(name, observed))
    return tree(Set(name=wanted.name, nodes=nodes), notes)


def note(name: str, observed: Observed) -> Iterator[str]:
    """Yield what is known of where a node stands."""
    view = observed.views.get(name)
    if view is None:
        told = observed.heard_of(name)
        yield "tick ?" if told is None else f"tick {told} told"
        yield f"does not answer: {observed.silent.get(name, 'it has no node of the set')}"
        return
    yield f"tick {view.tick.tick_id}"
    if view.fence is not None:
        yield f"fenced ({view.fence.cause})"
    if view.role.is_root and view.node != observed.tip.node:
        yield "its term is over"
    if view.state == "paused":
        yield "paused"
