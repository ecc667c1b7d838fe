"""Succession: who is to be root.  A switchover loses nothing; a failover (lost_root.py) says first what it may lose.

the file's root is the root        ──> nothing, or an operation left behind is ended
it is another, the root answers    ──> switchover: fence, offer, the target takes the reign
it is another, the root is lost    ──> failover: catch up, ballots, promote at the best tick
the heir took the reign and is lost ─> failover: the old root, or a carrier, goes on at the closing tick
"""

from __future__ import annotations

from datetime import datetime

from cascade.topology.conditions import Condition
from cascade.topology.lost_root import (
    close_old_ballots,
    fail_over,
    is_hindered_by_a_ballot,
    lost_heir,
    unfit,
    warn_of_merge_leaves,
)
from cascade.topology.observe import Handover, Observed, View
from cascade.topology.sketch import Sketch
from cascade.topology.steps import Abort, AwaitPromotion, Demote, Fence, Offer, SwitchProvider

#: How long one try to raise the fence may keep writers waiting; raise_fence() has the same.
FENCE_WAIT_S = 0.3


def succeed(sketch: Sketch) -> bool:
    """Plan who is root; False when that is refused so that there is no point in going on."""
    root = sketch.observed.root
    close_old_ballots(sketch)
    if lost_heir(sketch):
        return fail_over(sketch)
    if sketch.observed.tip.node == sketch.wanted.root.name:
        return keep(sketch, root)
    if root is not None and reigns(root, sketch.observed):
        return switch_over(sketch, root)
    return fail_over(sketch)


def reigns(root: View, observed: Observed) -> bool:
    """Whether the root of the open term answers as such; an operation may have fenced it."""
    knows = observed.tip.uid in {term.uid for term in root.terms}
    return root.role.is_root and knows and (root.fence is None or root.fence.cause == "operation")


def keep(sketch: Sketch, root: View | None) -> bool:
    """Plan for a root that stays."""
    name, set_name = sketch.wanted.root.name, sketch.wanted.name
    if root is None:
        sketch.warn(f"the root {name} does not answer: {sketch.reason(name)}")
        sketch.warn(f"if it is lost: cascade failover {set_name} --dead {name} --dry-run shows what that would mean")
        return True
    if root.is_rewound:
        return fail_over(sketch)
    if not reigns(root, sketch.observed):
        why = root.fence.detail if root.fence else "its database no longer knows its own term"
        sketch.refuse(f"the root {name} cannot go on: {why}", f"cascade failover {set_name} --dead {name}")
        return False
    if root.operation is None and root.fence is None:
        return True
    return end_operation(sketch, root)


def end_operation(sketch: Sketch, root: View) -> bool:
    """Plan to end what was left open at a root, if it was: somebody may be at it just now."""
    handover, target = root.offer, root.operation.target if root.operation else None
    if handover is not None and handover.state == "taken":
        fact = f"{handover.target} has taken the reign from {root.node}: this only goes forward"
        sketch.refuse(fact, f"let the file say that {handover.target} is the root{if_lost(sketch, handover)}")
        return False
    if not is_expired(sketch, root):
        until = root.operation.expires_at if root.operation else None
        fact = f"an operation to make {target or 'another node'} the root is under way at {root.node}"
        sketch.refuse(fact, f"wait for it; it can be ended after {until}" if until else "wait for it")
        return False
    op_id = root.operation.op_id if root.operation else (root.fence.op_id if root.fence else None)
    before = (Condition.of(root, "role", "term_uid"),)
    sketch.steps.append(Abort(node=root.node, op_id=op_id or sketch.op_id, before=before))
    return True


def if_lost(sketch: Sketch, handover: Handover | None) -> str:
    """Return what to do about an heir that took the reign and does not answer, as the end of a remedy."""
    if handover is None or handover.state != "taken" or handover.target not in sketch.observed.silent:
        return ""
    return f"; if it is lost: cascade failover {sketch.wanted.name} --dead {handover.target} --dry-run"


def is_expired(sketch: Sketch, root: View) -> bool:
    """Whether whoever opened an operation has had the time asked for; an operation without an end has it."""
    ends_at = root.operation.expires_at if root.operation else (root.fence.expires_at if root.fence else None)
    return ends_at is None or datetime.fromisoformat(ends_at) <= sketch.request.now


def switch_over(sketch: Sketch, root: View) -> bool:
    """Plan a switchover; what another one has begun in the same direction is gone on with."""
    target = sketch.wanted.root.name
    sketch.kind, sketch.pause_s = "switchover", FENCE_WAIT_S
    if why := unfit(sketch, target):
        took = root.offer if root.offer and root.offer.target == target else None
        sketch.refuse(f"{target} cannot become the root: {why[0]}", why[1] + if_lost(sketch, took))
        return False
    if root.node in sketch.request.dead:
        sketch.refuse(f"{root.node} answers, and its term is open", f"cascade switchover loses nothing: --to {target}")
    if is_hindered_by_a_ballot(sketch, target):
        return False
    handover = root.offer
    if handover is None and not clear_the_way(sketch, root, target):
        return False
    if handover is not None and handover.target != target:
        fact = f"{root.node} has offered the reign to {handover.target}"
        if handover.state == "taken":
            fact = f"{handover.target} has taken the reign from {root.node}"
        back = "" if handover.state == "taken" else f", or {root.node} to withdraw the offer"
        remedy = f"let the file say that {handover.target} is the root{back}{if_lost(sketch, handover)}"
        sketch.refuse(fact, remedy)
        return False
    view = sketch.observed.views[target]
    if handover is None:
        offer(sketch, root, view)
    else:
        sketch.uid, sketch.op_id = handover.uid, handover.op_id or sketch.op_id
    warn_of_merge_leaves(sketch, target)
    sketch.steps.append(AwaitPromotion(node=target, uid=sketch.uid, old=root.node))
    sketch.providers |= {target: None, root.node: target}
    sketch.steps.append(Demote(node=root.node, provider=target, before=(Condition.of(root, "term_uid"),)))
    return True


def clear_the_way(sketch: Sketch, root: View, target: str) -> bool:
    """Take up an operation with the same aim, plan to end one that was left behind; False for any other."""
    if root.operation is None:
        return True
    if root.operation.kind == "switchover" and root.operation.target == target:
        sketch.op_id = root.operation.op_id
        return True
    return end_operation(sketch, root)


def offer(sketch: Sketch, root: View, target: View) -> None:
    """Plan the hand-over up to the offer; the target copies from the root itself, so that nobody delays it."""
    if target.provider != root.node:
        before = Condition.of(target, "role", "provider")
        step = SwitchProvider(node=target.node, provider=root.node, generation=target.generation, before=(before,))
        sketch.steps.append(step)
    before = Condition.of(root, "role", "term_uid")
    sketch.steps.append(Fence(node=root.node, op_id=sketch.op_id, target=target.node, before=(before,)))
    sketch.steps.append(
        Offer(node=root.node, to=target.node, uid=sketch.uid, op_id=sketch.op_id, before=(before,)),
    )
    behind = root.tick.tick_id - target.tick.tick_id
    if behind > 0 and root.tick.term_uid == target.tick.term_uid:
        sketch.warn(f"{target.node} is {behind} ticks behind; writers wait until it has copied them")
    for writer in root.writers:
        sketch.warn(f"a writer holds the fence up: {writer}")
    for prepared in root.prepared:
        sketch.warn(f"it holds the fence up until somebody ends it: {prepared}")
