"""Planning: the wanted set and what the databases say -> ordered steps, or why not.

Nothing is asked and nothing is done here: ids and the time are given.  First it is decided who is to be root
(succession.py), then who must come back from beyond a fork, then who copies from whom, in an order in which
the nodes form a tree after every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cascade.topology.conditions import Condition
from cascade.topology.decision import Plan, Request
from cascade.topology.model import Node, Role, Set, did_you_mean
from cascade.topology.observe import Observed, View
from cascade.topology.render import walk
from cascade.topology.sketch import Sketch, document_of
from cascade.topology.steps import AddNode, Demote, DropNode, ResetLeaf, Resurrect, StoreDocument, SwitchProvider
from cascade.topology.succession import succeed

#: Answers after which a carrier has something of its own to set aside.
ASTRAY = ("diverged", "dirty")


def make_plan(wanted: Set, observed: Observed, request: Request) -> Plan:
    """Return what leads from what is to what is wanted; what stands against it is in its refusals."""
    sketch = Sketch(wanted=wanted, observed=observed, request=request)
    for fact, remedy in hindrances(wanted, observed, request):
        sketch.refuse(fact, remedy)
    if not sketch.refusals and succeed(sketch):
        bring_back(sketch)
        move(sketch)
        add_and_drop(sketch)
        store(sketch)
    return sketch.finish()


def hindrances(wanted: Set, observed: Observed, request: Request) -> Iterator[tuple[str, str]]:
    """Yield what makes planning pointless, each with a remedy."""
    if not observed.views:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in observed.silent.items())
        if observed.silent:
            yield f"none of its databases answers: {reasons}", "there is nobody to do anything at"
        else:
            yield "no database knows it", f"cascade set create {wanted.name} makes it"
        return
    for name, view in observed.views.items():
        if view.node != name:
            yield f"the database of {name} is node {view.node}", "mend the file, or the DSN"
    if len({view.set_uid for view in observed.views.values()}) > 1:
        yield "its databases belong to different sets of one name", "mend the DSNs in the file"
    known = {*wanted.nodes, *observed.members, *observed.views}
    for name in sorted((request.dead | request.without) - known):
        yield f"it has no node {name!r}", did_you_mean(name, known, f"known are {', '.join(sorted(known))}")
    in_conflict = [name for name, view in observed.views.items() if view.is_in_conflict]
    if len(observed.tips) != 1:
        terms = ", ".join(f"{term.uid} of {term.node}" for term in observed.tips)
        yield f"it is split between the terms {terms}", f"cascade resolve {wanted.name} --keep UID ends one of them"
    elif in_conflict:
        fact = f"{', '.join(in_conflict)} stopped in a conflict and has not heard that {observed.tip.uid} was kept"
        yield fact, f"cascade resolve {wanted.name} --keep {observed.tip.uid} goes on with that"
    yield from old_file(wanted, observed)
    if observed.is_combined != wanted.is_combined and any(view.is_carrier for view in observed.views.values()):
        kinds = ("a combined set", "a plain one")
        here, there = kinds if wanted.is_combined else reversed(kinds)
        yield f"it is {here} in the file, and {there} in the databases", "give the one in the file another name"
        return
    for name, view in observed.views.items():
        node = wanted.nodes.get(name)
        if node is not None and kind_of(node.role) != kind_of(view.role):
            yield f"{name} is a {view.role} and cannot become a {node.role}", "add it anew under another name"


def kind_of(role: Role) -> Role:
    """Return a role as far as it never changes: any carrier can become the root."""
    return Role.BRANCH if role.is_carrier else role


def old_file(wanted: Set, observed: Observed) -> Iterator[tuple[str, str]]:
    """Yield that the file is based on an older revision than the databases have, with the difference."""
    if (wanted.revision or 0) >= observed.revision or observed.document == document_of(wanted):
        return
    base = "no revision" if wanted.revision is None else f"revision {wanted.revision}"
    told = "; ".join(differences(document_of(wanted), observed.document or {})) or "nothing that matters here"
    yield (
        f"the file is based on {base}, the databases have revision {observed.revision}: {told}",
        f"cascade topology export {wanted.name} writes what the databases have; change that",
    )


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a stored document says otherwise than the file."""
    if mine.get("combines") != theirs.get("combines"):
        lists = [", ".join(one.get("combines") or ()) or "nothing" for one in (theirs, mine)]
        yield f"it combines {lists[0]}, in the file {lists[1]}"
    here, there = mine.get("nodes") or {}, theirs.get("nodes") or {}
    for name in dict.fromkeys([*here, *there]):
        if name not in there or name not in here:
            yield f"{name} is only in the {'file' if name in here else 'databases'}"
            continue
        for key in ("database", "role", "provider"):
            if here[name].get(key) != there[name].get(key):
                yield f"{name} has {key} {there[name].get(key) or 'none'}, in the file {here[name].get(key) or 'none'}"


def bring_back(sketch: Sketch) -> None:
    """Plan for nodes beyond a fork: former roots become branches, tails are set aside, leaves go back.

    A merge-leaf goes back by itself: at the combined-root its daemon says in that log what the part has lost, and
    elsewhere it follows that log.
    """
    root = sketch.wanted.root.name
    for name in sketch.wanted.nodes:
        view = sketch.observed.views.get(name)
        if view is None or name == root or any(isinstance(s, Demote) and s.node == name for s in sketch.steps):
            continue
        before = (Condition.of(view, "role", "term_uid", "at_least"),)
        fork = sketch.fork_of(view)
        if view.is_carrier and (fork or view.is_dirty or view.answer in ASTRAY or view.is_rewound):
            sketch.steps.append(Resurrect(node=name, provider=root, before=before))
        elif view.role.is_root:
            sketch.steps.append(Demote(node=name, provider=root, before=before))
        elif fork and view.role is Role.LEAF:
            sketch.steps.append(ResetLeaf(node=name, fork=fork.row, before=before))
            continue
        else:
            continue
        sketch.providers[name] = root
        if not sketch.root_answers:
            sketch.warn(f"{name} can join {root} only when that answers")


def move(sketch: Sketch) -> None:
    """Plan the switches, each to a provider that leads to the root by then: so none of them makes a circle.

    Providers come before their subscribers; who had to wait for somebody further down gets another turn.
    """
    waiting = [place.node for place in walk(sketch.wanted) if place.node.provider is not None]
    has_moved = True
    while has_moved:
        turn, waiting, has_moved = waiting, [], False
        for node in turn:
            view, provider = sketch.observed.views.get(node.name), str(node.provider)
            if view is not None and provider != sketch.providers[node.name]:
                if sketch.cannot_provide(provider, node.name):
                    waiting.append(node)
                    continue
                sketch.steps.append(switch(view, provider, sketch))
                sketch.providers[node.name] = provider
                has_moved = True
    for node in sketch.wanted.nodes.values():
        explain(sketch, node, is_waiting=node in waiting)


def explain(sketch: Sketch, node: Node, *, is_waiting: bool) -> None:
    """Say why a node does not copy from whom it should."""
    provider = node.provider
    if provider is None:
        return
    if node.name in sketch.observed.silent:
        sketch.warn(f"{node.name} does not answer and stays as it is: {sketch.reason(node.name)}")
    elif is_waiting:
        why = sketch.cannot_provide(provider, node.name)
        sketch.warn(f"{node.name} cannot copy from {provider} yet: {why}; apply the file again later")
    elif node.name in sketch.observed.views and provider not in sketch.observed.views:
        sketch.warn(f"{node.name} waits for {provider}, which does not answer: {sketch.reason(provider)}")


def switch(view: View, provider: str, sketch: Sketch) -> SwitchProvider:
    """Return the step that has a node copy from another one."""
    provided = sketch.providers[view.node]
    before = Condition(node=view.node, role=str(kind_of(view.role)), provider=provided)
    return SwitchProvider(node=view.node, provider=provider, generation=view.generation, before=(before,))


def add_and_drop(sketch: Sketch) -> None:
    """Plan for nodes that only the file has, and for members that it no longer has."""
    wanted, observed = sketch.wanted, sketch.observed
    for node in wanted.nodes.values():
        if how := how_to_add(node, sketch):
            sketch.steps.append(AddNode(node=node.name, how=how))
    for name, member in sorted(observed.members.items()):
        if name in wanted.nodes or member.state == "dropped":
            continue
        if not sketch.root_answers:
            sketch.warn(f"{name} is not in the file, and can be dropped only when {wanted.root.name} answers")
            continue
        left = [node for node, provider in sketch.providers.items() if provider == name and node in wanted.nodes]
        if left:
            sketch.warn(f"{name} is dropped although {', '.join(left)} may still copy from it")
        view = observed.views.get(name)
        if view is not None and view.is_carrier and (view.role.is_root or sketch.fork_of(view) or view.is_dirty):
            sketch.warn(f"{name} may have events that nobody else has; they stay in its database")
        sketch.steps.append(DropNode(node=name))


def how_to_add(node: Node, sketch: Sketch) -> str | None:
    """Return who makes a node that the set has not; None for one that it has."""
    member = sketch.observed.members.get(node.name)
    if member is not None and member.state != "live":
        return f"it is {member.state}; cascade node add {node.set} {node.name} takes it back"
    if node.name in sketch.observed.missing:
        why = f", as {node.into} combines this set" if node.is_derived else ""
        return f"its daemon makes it{why}: cascade node run"
    return None


def store(sketch: Sketch) -> None:
    """Plan to store what is wanted, unless the databases have it."""
    observed, document, root = sketch.observed, document_of(sketch.wanted), sketch.wanted.root.name
    changes = any(not step.is_note for step in sketch.steps)
    if observed.document == document or (observed.document is None and not changes):
        return
    if not sketch.root_answers:
        sketch.warn(f"{root} does not answer, so that no document can be stored; apply the file again when it does")
        return
    revision = max(observed.revision, sketch.wanted.revision or 0) + 1
    sketch.steps.append(StoreDocument(node=root, revision=revision, document=document))
