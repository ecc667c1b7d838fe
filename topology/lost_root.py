"""A lost root: the choice of its successor, what may be lost, and the steps, if the operator's words cover them.

A failover is refused unless what is not known was accepted: the dead root is named, carriers that do not
answer are accepted one by one, the fork is repeated, and an old root out of reach is fenced somehow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cascade.topology.conditions import Condition
from cascade.topology.decision import Loss
from cascade.topology.model import Set
from cascade.topology.observe import Ballot, Observed, View
from cascade.topology.sketch import Sketch
from cascade.topology.steps import CatchUp, CloseBallots, OpenBallots, Promote
from cascade.topology.terms import TERM_SPAN, Tick, left_at, path

#: Answers that keep a node from being promoted: it has something of its own, or is none of the set's.
UNFIT = ("dropped", "dirty", "conflict", "diverged")


def carriers(observed: Observed) -> list[View]:
    """Return the branches that could be promoted, the most advanced first.

    Where the root's database lost its tail, those come first that it refused: they have the tail.  If there is
    none, that root can go on by itself, in a new term.  So can one that gave its reign to a node which is lost.
    """
    found = [view for view in observed.views.values() if view.is_carrier and not view.role.is_root]
    found = [view for view in found if not view.is_dirty and view.answer not in UNFIT]
    found = [view for view in found if left_at(view.tick, observed.terms, observed.tip) is None]
    if observed.root is not None and (observed.root.is_rewound or observed.root.has_given_away):
        found = [observed.root, *found]
    return sorted(found, key=lambda view: _advance(view, observed), reverse=True)


def _advance(view: View, observed: Observed) -> tuple[bool, int]:
    """Return how far a carrier has come, for comparing them."""
    has_tail = observed.root is not None and observed.root.is_rewound and view.answer == "rewound"
    return has_tail, view.tick.tick_id


def choose_successor(wanted: Set, observed: Observed, dead: str) -> str | None:
    """Return who should follow a lost root: the most advanced carrier; a handler, which no root runs, counts against.

    A root that only may have lost its tail follows itself, if nobody has more.  None when there is nobody.
    """
    best = carriers(observed)
    if best and best[0].is_rewound:
        return best[0].node
    found = [view for view in best if view.node not in (dead, observed.tip.node) and view.node in wanted.nodes]
    found = [view for view in found if not observed.unmerged(view)]
    order = list(wanted.nodes)

    def rank(view: View) -> tuple[bool, tuple[bool, int], bool, int]:
        node = wanted.nodes[view.node]
        return node.handler is None, _advance(view, observed), node.provider == dead, -order.index(view.node)

    chosen = max(found, key=rank, default=None)
    return chosen.node if chosen else None


def unfit(sketch: Sketch, target: str) -> tuple[str, str] | None:
    """Return why a node cannot become the root and what would help; None when it can."""
    view, name = sketch.observed.views.get(target), sketch.wanted.name
    if view is None and target in sketch.observed.silent:
        return sketch.reason(target), "name a node that answers"
    if view is None:
        return "it does not exist yet", "make it a branch first, and wait until it has come up"
    if not view.is_carrier:
        return "it is a leaf and keeps no queue", "name a branch"
    if unmerged := sketch.observed.unmerged(view):
        fact = f"no combined-failover, since its database has no merge-leaf of {', '.join(unmerged)}"
        return f"it is {fact}", name_failover(sketch)
    if view.is_rewound and target == sketch.observed.tip.node:
        best = carriers(sketch.observed)[0]
        return None if best is view else (f"{best.node} has what its database lost", f"name {best.node}")
    if view.role.is_root and not (target == sketch.observed.tip.node and lost_heir(sketch)):
        return "it was the root before and is not back yet", f"cascade resurrect {name} {target}"
    member = sketch.observed.members.get(target)
    if member is not None and member.state != "live":
        return f"the set has it as {member.state}", f"cascade node add {name} {target}"
    if view.is_dirty or view.answer in UNFIT or left_at(view.tick, sketch.observed.terms, sketch.observed.tip):
        return f"it has something of its own: {view.answer_detail or view.answer or 'a tail'}", "resurrect it first"
    if view.state == "paused":
        return "it is paused", f"cascade node resume {name} {target}"
    return None


def name_failover(sketch: Sketch) -> str:
    """Return what helps where a carrier of a combined set could not go on merging."""
    fit = [view.node for view in carriers(sketch.observed) if not sketch.observed.unmerged(view)]
    if fit:
        return f"name {' or '.join(fit)}"
    return "write merge-leaves of all parts out for its database, and wait until its daemon has made them"


def warn_of_merge_leaves(sketch: Sketch, target: str) -> None:
    """Say which parts will not be merged at a new combined-root until somebody does something about it."""
    for part in sketch.observed.views[target].parts:
        if part.answer == "dropped":
            sketch.warn(f"{part.part} has dropped {part.node}: cascade node add {part.part} {part.node} takes it back")


def lost_heir(sketch: Sketch) -> str | None:
    """Return who took the reign from the root and is given up without an answer; None when there is nobody like that.

    The heir may have reigned, and taken inserts, of which nobody knows.
    """
    root = sketch.observed.root
    heir = root.offer.target if root is not None and root.offer is not None and root.has_given_away else None
    return heir if heir in sketch.request.dead and heir in sketch.observed.silent else None


def fail_over(sketch: Sketch) -> bool:
    """Plan a failover; the refusals say what has to be accepted."""
    target, tip = sketch.wanted.root.name, sketch.observed.tip
    sketch.kind, sketch.pause_s = "failover", None
    if why := unfit(sketch, target):
        sketch.refuse(f"{target} cannot become the root: {why[0]}", why[1])
        return False
    best = carriers(sketch.observed)[0]
    if best.tick.term_uid != tip.uid:
        sketch.warn(f"nobody who answers has anything of the term {tip.uid} of {tip.node}: bring it back if you can")
    if is_hindered_by_a_ballot(sketch, target):
        return False
    if heir := lost_heir(sketch):
        sketch.warn(f"{heir} took the reign and may have opened its term: if it returns, that would be a conflict")
    sketch.fork = best.tick
    sketch.loss = loss_at(best.tick, sketch.observed)
    for fact, remedy in not_accepted(sketch, best):
        sketch.refuse(fact, remedy)
    sketch.given_up = frozenset(given_up(sketch))
    for name in sorted(sketch.given_up):
        sketch.warn(
            f"{name} is given up and may be further on than tick {best.tick.tick_id}:"
            " the certificate waits until its database was read or declared destroyed"
        )
    warn_of_merge_leaves(sketch, target)
    promotion(sketch, sketch.observed.views[target], best)
    return True


def not_accepted(sketch: Sketch, best: View) -> Iterator[tuple[str, str]]:
    """Yield what the operator has to accept before this failover, and has not."""
    request, observed, root = sketch.request, sketch.observed, lost_heir(sketch) or sketch.observed.tip.node
    if root not in request.dead:
        yield f"the root {root} is lost: {lost_because(sketch)}", f"--dead {root} if so"
    for name in sorted(request.without & set(observed.views)):
        yield f"{name} answers", f"--without {name} is for carriers that do not"
    for name in unreachable(sketch):
        told = observed.heard_of(name)
        where = "nothing is known of it" if told is None else f"it was last heard of at tick {told}"
        yield (
            f"{name} does not answer and may be further on than tick {best.tick.tick_id}: {where}",
            f"--without {name}",
        )
    if root not in observed.views and not (request.fenced_by or "").strip():
        yield f"{root} cannot be reached and may still take inserts", '--fenced-by "how it is kept from that"'
    assert sketch.loss is not None, "a failover states its loss"
    if not sketch.loss.is_closed and request.allow_loss != sketch.loss.fork:
        said = "" if request.allow_loss is None else f", not {request.allow_loss}"
        yield f"what came after tick {sketch.loss.fork}{said} may be lost", f"--allow-loss {sketch.loss.fork}"


def lost_because(sketch: Sketch) -> str:
    """Return why the root is held to be lost."""
    root = sketch.observed.root
    if root is None:
        return sketch.reason(sketch.observed.tip.node)
    return root.fence.detail if root.fence else "its database no longer knows its own term"


def unreachable(sketch: Sketch) -> list[str]:
    """Return the carriers, the dead root aside, that could not be asked and were not accepted as such."""
    observed, accepted = sketch.observed, sketch.request.without | sketch.request.dead | {sketch.observed.tip.node}
    live = [member for member in observed.members.values() if member.state == "live" and member.is_carrier]
    return sorted(member.node for member in live if member.node not in observed.views and member.node not in accepted)


def given_up(sketch: Sketch) -> Iterator[str]:
    """Yield the silent carriers, the lost root aside, that the operator gives up: they are left out like any other."""
    for name in sketch.request.dead - {sketch.observed.tip.node} - set(sketch.observed.views):
        member = sketch.observed.members.get(name)
        if member is not None and member.is_carrier and member.state != "dropped":
            yield name


def promotion(sketch: Sketch, target: View, best: View) -> None:
    """Plan the promotion of a branch at the best tick."""
    fork, kept = best.tick, None
    given_up = sketch.request.over_ballot
    for ballot in (b for b in open_ballots(sketch.observed) if b.candidate == target.node and b.uid != given_up):
        # One that a tool left behind is gone on with, if it says the same; else it keeps its carriers from copying.
        if ballot.is_about(fork) and any(ballot == b and b.is_fresh for b in target.ballots):
            kept = ballot
        else:
            close_ballot(sketch, ballot)
    if target.tick.tick_id < fork.tick_id:
        before = Condition.of(target, "role", "term_uid", "generation")
        step = CatchUp(node=target.node, provider=best.node, tick_id=fork.tick_id, before=(before,))
        sketch.steps.append(step)
        sketch.providers[target.node] = best.node
    number = sketch.observed.next_hundred * 100 + target.node_no
    if kept is not None:
        sketch.uid, number = kept.uid, kept.number
    asked = whom_to_ask(sketch, target, fork)
    sketch.steps.append(OpenBallots(node=target.node, nodes=asked, number=number, uid=sketch.uid, fork=fork.row))
    cause = "rewind" if target.is_rewound else "failover"
    before = Condition(node=target.node, role=str(target.role), term_uid=fork.term_uid, tick_id=fork.tick_id)
    facts: dict[str, Any] = {"nodes": asked, "number": number, "uid": sketch.uid}
    sketch.steps.append(Promote(node=target.node, **facts, cause=cause, fork=fork.row, before=(before,)))
    sketch.steps.append(CloseBallots(node=target.node, **facts))
    sketch.providers |= {target.node: None}


def whom_to_ask(sketch: Sketch, target: View, fork: Tick) -> tuple[str, ...]:
    """Return who is told of a promotion, the candidate first.

    A carrier beyond the fork that could not be promoted would refuse it for ever; the certificate waits for it.
    """
    views = [view for view in sketch.observed.views.values() if view.is_carrier and view.node != target.node]
    fit = {view.node for view in carriers(sketch.observed)}
    return target.node, *sorted(v.node for v in views if v.node in fit or v.tick.tick_id <= fork.tick_id)


def open_ballots(observed: Observed) -> list[Ballot]:
    """Return the promotions that were announced and have not come about."""
    held = {ballot for view in observed.views.values() for ballot in view.ballots}
    return sorted(ballot for ballot in held if ballot.uid not in observed.terms)


def close_old_ballots(sketch: Sketch) -> None:
    """Plan to end announcements of promotions that have come about, and of one that the operator gives up."""
    views = sketch.observed.views.values()
    for ballot in sorted({ballot for view in views for ballot in view.ballots}):
        if ballot.uid in sketch.observed.terms or ballot.uid == sketch.request.over_ballot:
            close_ballot(sketch, ballot)


def close_ballot(sketch: Sketch, ballot: Ballot) -> None:
    """Plan to end an announcement wherever it is held, at the candidate first."""
    views = sketch.observed.views.values()
    nodes = sorted((view.node for view in views if ballot in view.ballots), key=lambda n: n != ballot.candidate)
    step = CloseBallots(node=nodes[0], nodes=tuple(nodes), number=ballot.number, uid=ballot.uid)
    sketch.steps.append(step)


def is_hindered_by_a_ballot(sketch: Sketch, target: str) -> bool:
    """Refuse while another node is being promoted."""
    others = [b for b in open_ballots(sketch.observed) if b.candidate != target and b.uid != sketch.request.over_ballot]
    for ballot in others:
        fact = f"the promotion of {ballot.candidate} to term {ballot.number} was announced and has not come about"
        sketch.refuse(fact, f"finish it with --to {ballot.candidate}, or give it up: --over-ballot {ballot.uid}")
    return bool(others)


def loss_at(fork: Tick, observed: Observed) -> Loss:
    """Return what may be lost if everything after a tick is: counted as far as anybody knows, and no further."""
    # Usually the fork lies in the last term; the later ones are lost from their first tick on.
    way = path(observed.terms, observed.tip.uid)
    later = way[: next((n for n, term in enumerate(way) if term.uid == fork.term_uid), 0)]
    numbers = {fork.tick_id // TERM_SPAN, *(term.number for term in later)}
    rows = [*(view.tick for view in observed.views.values()), *(term.fork for term in later if term.fork)]
    known = [row for row in rows if row.term_uid == fork.term_uid]
    counted = max([fork, *known], key=lambda tick: tick.tick_id)
    heard = {name: observed.heard_of(name) or 0 for name in {*observed.members, *observed.views}}
    told = [view.highest_told or 0 for view in observed.views.values()]
    ids = [tick_id for tick_id in (*heard.values(), *told) if tick_id // TERM_SPAN in numbers]
    # An offer that somebody who does not answer may have taken closes nothing: that one may reign.
    offers = [v.handover for v in observed.views.values() if v.handover and v.handover.closing_tick == fork.tick_id]
    closed = not later and any(offer.target in observed.views for offer in offers)
    return Loss(
        fork=fork.tick_id,
        at_most=max(0, counted.event_seq - fork.event_seq),
        counted_to=counted.tick_id,
        highest_known=max([fork.tick_id, counted.tick_id, *ids]),
        known_by=tuple(sorted(name for name, tick_id in heard.items() if tick_id > fork.tick_id)),
        is_closed=closed,
    )
