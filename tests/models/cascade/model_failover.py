"""M8: a lost root, its successors, and what becomes of the events that only it had.

A is the first root, B and C are carriers, L is a leaf.  Nobody ever dies in this model: a root that is
dead to an operator is one that he cannot reach, and it goes on accepting events until it hears of its
end.  Operators, each with the carriers that he can reach, look, open ballots one by one, promote; all
others are left out by name.  Whoever stands beyond a fork is fenced, sets its tail aside row by row, and
deletes it; the certificate is amended, rows are published again and marked, each a step that may come
late, twice or never.  What must hold in every state:

- accounted: every acknowledged event is in the log of a term that is not over, in quarantine, or in the set
  of an open certificate (rows of the ended term outside the fork's snapshot);
- once: no log holds an event twice;
- equal: a branch holds exactly the rows that its last tick sees, so no stray rows either;
- best: the fork of a promotion was the best position that its operator could reach;
- one line: operators who reach the same carriers leave one root; a term forks from the path of the one it ends,
  and nobody opens a term beside one that he knows;
- recorded: a leaf saw exactly its path, but for what was recorded when it was set back;
- exact: the number in a closed certificate is the number of rows that its term lost.

An event's row has a term and a number in it, and the transaction id runs with the number; a database
that was rewound issues both again.  A tick holds the rows it sees and the rows of transactions
that were open.  Certificates and resolved conflicts are rows of the set as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from tests.models.cascade.explore import Result, explore
from tests.models.cascade.failover import (
    NAMES,
    Certificate,
    Held,
    Key,
    Leaf,
    Node,
    Plan,
    Role,
    Row,
    State,
    Term,
    Tick,
    find_node,
    find_term,
    goes_past,
    insert,
    is_ended,
    is_over,
    is_rival,
    last_common,
    newest_of,
    next_number,
    note_plan,
    put,
    short,
    unrecorded,
)


class Rule(StrEnum):
    """The rules that can be taken away, one at a time."""

    BEST = "the most advanced carrier in reach is promoted"
    FORK = "ballots and promotion compare the positions with the plan"
    FREEZE = "an open ballot stops copying"
    BALLOT_ALL = "ballots are opened on every carrier in reach"
    BALLOT_TERM = "a ballot names the term that it ends, and who knows a newer one refuses it"
    NEWEST = "a promotion ends the newest term that the candidate knows"
    BALLOT_OPEN = "a promotion needs its own ballot, which a higher one replaces"
    CERTIFICATE_ALL = "a certificate waits for the old root and for all who were left out"
    CERTIFICATE_BESIDE = "a certificate waits for those in reach who stand beside the fork"
    CERTIFICATE_EACH = "a promotion writes a certificate for every term that it cuts"
    CERTIFICATE_TOLD = "who is read for a certificate knows that the term is over"
    CERTIFICATE_FIRST = "a certificate is not closed by the first carrier that was read"
    CERTIFICATE_FORK = "rows in quarantine that the fork sees are not counted"
    CERTIFICATE_UNION = "a row that two carriers had is counted once"
    RESOLVED = "the term that loses a conflict gets a certificate"
    DIRTY = "a node with loose rows may not join"
    TAIL_OPEN = "the tail holds the rows of transactions that were open at the fork"
    TAIL_COMMON = "the tail begins at the last common tick, not at the fork's transaction ids"
    ENDED = "rows are set aside only below a term that ended the own"
    ON_PATH = "who stands beyond the end of a term, and knows it, is not promoted"
    COUNTS = "the tail is deleted only when all of it is in quarantine"
    QUARANTINE_KEY = "a row is set aside once, by its key"
    REPUBLISH_KEY = "the new root knows by key what was published again"
    REPUBLISH_COPIED = "these keys are copied with the log"
    REPUBLISH_ORIGIN = "a row that was published again keeps its first key"
    REPUBLISH_LOG = "what is in the log under its first key is not published again"
    REPUBLISH_DIGEST = "the key tells apart two events of one number"
    PHANTOMS = "a leaf that is set back records what it had seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How much may happen, and which rule is missing."""

    name: str
    inserts: int = 1
    operators: tuple[str, ...] = ("BC",)
    """Whom each operator reaches."""
    writers: str = "ABC"
    """Who is sent events, when it is root."""
    has_open_transaction: bool = False
    has_leaf: bool = False
    rewinds: int = 0
    republications: int = 0
    is_partitioned: bool = False
    """Whether operators may come into conflict."""
    without: Rule | None = None


PLAIN = World(name="one failover", inserts=2, has_open_transaction=True, has_leaf=True)
OPERATORS = World(name="two operators", operators=("BC", "BC"))
LEFT_OUT = World(name="a carrier is left out", inserts=2, operators=("B",))
PARTITION = World(name="two operators apart", operators=("B", "C"), is_partitioned=True)
APART = replace(PARTITION, name="two operators apart, publishing again", writers="A", republications=1)
REWIND = World(name="the root's database is rewound", inserts=2, rewinds=1)
REWIND_OUT = World(
    name="rewound, and a carrier left out", inserts=2, operators=("B",), writers="A", rewinds=1, republications=1
)
AGAIN = World(name="two failovers", operators=("BC", "AC"), writers="A", is_partitioned=True, republications=3)
WORLDS = (PLAIN, OPERATORS, LEFT_OUT, PARTITION, REWIND, REWIND_OUT, AGAIN)
DEEPER = (
    APART,
    World(name="left out, with a leaf", inserts=2, operators=("B",), has_leaf=True, republications=1),
    World(name="two operators apart, 2 events", inserts=2, operators=("B", "C"), is_partitioned=True),
    World(name="two failovers, the second alone", operators=("BC", "C"), is_partitioned=True, republications=3),
    World(name="rewound, and published again", inserts=2, rewinds=1, republications=2),
)

CAUGHT_IN = dict.fromkeys(Rule, PLAIN) | {
    Rule.BALLOT_ALL: OPERATORS,
    Rule.BALLOT_TERM: OPERATORS,
    Rule.BALLOT_OPEN: OPERATORS,
    Rule.NEWEST: AGAIN,
    Rule.CERTIFICATE_ALL: REWIND_OUT,
    Rule.CERTIFICATE_BESIDE: REWIND,
    Rule.CERTIFICATE_EACH: PARTITION,
    Rule.CERTIFICATE_TOLD: REWIND_OUT,
    Rule.CERTIFICATE_FIRST: LEFT_OUT,
    Rule.CERTIFICATE_FORK: PARTITION,
    Rule.CERTIFICATE_UNION: LEFT_OUT,
    Rule.RESOLVED: PARTITION,
    Rule.ENDED: REWIND,
    Rule.ON_PATH: PARTITION,
    Rule.TAIL_COMMON: REWIND,
    Rule.REPUBLISH_KEY: AGAIN,
    Rule.REPUBLISH_COPIED: AGAIN,
    Rule.REPUBLISH_ORIGIN: AGAIN,
    Rule.REPUBLISH_LOG: APART,
    Rule.REPUBLISH_DIGEST: REWIND_OUT,
}
"""The world in which the absence of each rule shows."""


def check(world: World, *, limit: int = 400_000) -> Result:
    """Explore one world."""
    return explore(start(world), partial(steps, world), partial(violated, world), limit)


def check_without(rule: Rule) -> Result:
    """Explore the world that needs a rule, without it."""
    return check(replace(CAUGHT_IN[rule], without=rule))


def start(world: World) -> State:
    """Everyone has the first tick."""
    path = (Tick("u0", 1),)
    nodes = tuple(Node(name, Role.ROOT if name == "A" else Role.BRANCH, "u0", path) for name in NAMES)
    return State(nodes, (Term("u0", 0, "A", path),), (None,) * len(world.operators), Leaf(path))


def steps(world: World, state: State) -> Iterator[tuple[str, State]]:
    """List everything that can happen next."""
    for node in state.nodes:
        if node.role is Role.ROOT:
            yield from _reign(world, state, node)
        for other in state.nodes:
            if other != node:
                yield from _meet(world, state, node, other)
        yield from _set_aside(world, state, node)
    for at in range(len(world.operators)):
        yield from _fail_over(world, state, at)
    yield from _settle(world, state)
    if world.has_leaf:
        yield from _read(world, state)


# A root


def _reign(world: World, state: State, node: Node) -> Iterator[tuple[str, State]]:
    if state.inserts < world.inserts and node.name in world.writers:
        row = Row(state.inserts + 1, node.term, next_number(node))
        begun = state._replace(inserts=state.inserts + 1)
        yield f"{node.name} accepts {row.event}", insert(begun, node, row)
        if world.has_open_transaction and not node.running:
            running = node._replace(running=frozenset({row}))
            yield f"a transaction at {node.name} inserts {row.event}", put(begun, running)
    for row in node.running:
        yield f"the transaction of {row.event} commits", insert(state, node._replace(running=frozenset()), row)
    last = node.path[-1]
    if node.rows > last.sees:
        tick = Tick(node.term, len(node.path) + 1, node.rows, node.running)
        yield f"{node.name} ticks {short(tick)}", put(state, node._replace(path=(*node.path, tick)))
    is_held = any(last in other.path for other in state.nodes if other != node)
    is_idle = node.rows == last.sees and not node.running
    if state.rewinds < world.rewinds and is_held and is_idle and last.number > 1 and last.term == node.path[-2].term:
        back = node._replace(path=node.path[:-1], rows=node.path[-2].sees)
        yield f"{node.name}'s database loses {short(last)}", put(state, back)._replace(rewinds=state.rewinds + 1)


# Two nodes


def _meet(world: World, state: State, node: Node, other: Node) -> Iterator[tuple[str, State]]:
    """A root asks another node for news; anyone else hears, joins it, or is taken back below it."""
    size = min(len(node.path), len(other.path))
    if node.role is Role.ROOT:
        fenced = node._replace(role=Role.FENCED)
        if node.running:
            return
        if is_over(state, node.term, other.known):
            told = f"{node.name} hears of {other.known} from {other.name}, fenced"
            yield told, put(state, fenced._replace(known=other.known))
        elif is_rival(state, node.term, other.known):
            stopped = other._replace(role=Role.FENCED) if other.role is Role.ROOT else other
            yield f"{node.name} meets {other.name}: conflict, fenced", put(put(state, fenced), stopped)
        elif other.term == node.term and (node.path[:size] != other.path[:size] or len(other.path) > len(node.path)):
            yield f"{node.name} is rewound, says {other.name}: fenced", put(state, fenced)
        return
    if is_over(state, node.known, other.known):
        yield f"{node.name} hears of {other.known} from {other.name}", put(state, node._replace(known=other.known))
    if is_rival(state, node.term, other.term) and node.role is other.role is Role.FENCED and not state.lost:
        yield _resolved(world, state, other, node)
    is_stale = other.role is Role.ROOT and is_over(state, other.term, node.known)
    is_conflict = is_rival(state, node.known, other.known)
    if other.role is Role.FENCED or is_stale or is_conflict:
        return
    is_clean = node.rows == node.path[-1].sees or world.without is Rule.DIRTY
    is_below = other.path[: len(node.path)] == node.path and len(other.path) > len(node.path)
    if is_below and is_clean and (node.role is Role.BRANCH or other.term != node.term):
        yield from _copy(world, state, node, other)
    elif not (is_below and is_clean):
        yield from _resurrect(world, state, node, other)


def _copy(world: World, state: State, node: Node, other: Node) -> Iterator[tuple[str, State]]:
    """Copy one tick; the first one makes a former root a branch.  A new term closes its own ballot."""
    tick, last = other.path[len(node.path)], node.path[-1]
    uids = {found.term for found in other.path}
    is_frozen = node.ballot is not None and node.ballot[1] not in uids and world.without is not Rule.FREEZE
    if is_frozen or (is_over(state, tick.term, node.known) and tick not in find_term(state, node.known).path):
        return
    ballot = None if node.ballot is not None and node.ballot[1] == tick.term else node.ballot
    rows = node.rows | (tick.sees - last.sees)
    known = tick.term if is_over(state, node.known, tick.term) else node.known
    copied = node._replace(role=Role.BRANCH, term=tick.term, path=(*node.path, tick), rows=rows, ballot=ballot)
    copied = copied._replace(known=known)
    yield f"{node.name} copies {short(tick)} from {other.name}", put(state, copied)


def _resolved(world: World, state: State, kept: Node, loser: Node) -> tuple[str, State]:
    """An operator keeps one of two rivals; the other's term is over, and what it had is a tail."""
    common = last_common(loser, kept)
    kept_only = tuple(found for found in state.certificates if found.by != loser.term)
    written = Certificate(loser.term, common.sees, frozenset({loser.name}), kept.term)
    certificates = kept_only if world.without is Rule.RESOLVED else (*kept_only, written)
    settled = state._replace(lost=frozenset({loser.term}), certificates=certificates)
    settled = put(settled, loser._replace(known=kept.term))
    return f"an operator keeps {kept.term}", put(settled, kept._replace(role=Role.ROOT))


# Resurrection


def _set_aside(world: World, state: State, node: Node) -> Iterator[tuple[str, State]]:
    """Copy one row of the tail to quarantine.  A repeat finds the key."""
    for kept in (other for other in state.nodes if other != node and _must_yield(world, state, node, other)):
        held = {found.row: found for found in node.quarantine}
        for row in sorted(_tail(world, node, kept)):
            if row not in held:
                more = node._replace(role=Role.FENCED, quarantine=node.quarantine | {Held(row)})
                more = more._replace(known=newest_of(state, node, kept))
                yield f"{node.name} sets {row.event} aside", put(state, more)
            elif world.without is Rule.QUARANTINE_KEY and held[row].copies == 1:
                twice = held[row]._replace(copies=2)
                again = node._replace(quarantine=node.quarantine - {held[row]} | {twice})
                yield f"{node.name} sets {row.event} aside again", put(state, again)
        return


def _must_yield(world: World, state: State, node: Node, other: Node) -> bool:
    """Whether a node stands beyond a fork and may be taken back below another."""
    if node.role is Role.ROOT or other.role is Role.FENCED:
        return False
    if is_rival(state, node.known, other.known):
        return False
    if other.path[: len(node.path)] == node.path and node.rows == node.path[-1].sees:
        return False
    is_beside = other.term == node.term and other.role is Role.ROOT and len(other.path) >= len(node.path)
    return is_over(state, node.term, other.term) or (is_beside and world.without is Rule.ENDED)


def _tail(world: World, node: Node, kept: Node) -> frozenset[Row]:
    common = last_common(node, kept)
    if world.without is Rule.TAIL_COMMON:
        fork = next(tick for tick in reversed(kept.path) if tick.term == common.term)
        seen = {(row.term, row.number) for row in fork.sees}
        return frozenset(row for row in node.rows if (row.term, row.number) not in seen)
    tail = node.rows - common.sees
    return tail - common.open if world.without is Rule.TAIL_OPEN else tail


def _resurrect(world: World, state: State, node: Node, kept: Node) -> Iterator[tuple[str, State]]:
    """Delete the tail, when all of it is in quarantine, and go back to the last common tick."""
    if not _must_yield(world, state, node, kept):
        return
    tail = _tail(world, node, kept)
    if tail <= {held.row for held in node.quarantine} or world.without is Rule.COUNTS:
        common = last_common(node, kept)
        path = node.path[: node.path.index(common) + 1]
        back = node._replace(role=Role.BRANCH, term=common.term, path=path, rows=node.rows - tail)
        back = back._replace(known=newest_of(state, node, kept))
        yield f"{node.name} is resurrected at {short(common)} below {kept.name}", put(state, back)


# Certificates, and publishing again


def _settle(world: World, state: State) -> Iterator[tuple[str, State]]:
    for at, certificate in enumerate(state.certificates):
        for node in state.nodes:
            if (
                not certificate.is_closed
                and node.name in certificate.waits
                and _is_back(world, state, node, certificate)
            ):
                yield _amended(world, state, at, node)
    for root in state.nodes:
        for node in state.nodes:
            if root.role is Role.ROOT and not is_ended(state, root.term):
                for held in sorted(node.quarantine):
                    if not held.is_settled:
                        yield from _republish(world, state, root, node, held)


def _is_back(world: World, state: State, node: Node, certificate: Certificate) -> bool:
    """Whether a node has no tail, and knows the end of the term so that it cannot get one any more."""
    tips = [other for other in state.nodes if not is_ended(state, other.term)]
    is_on = any(other.path[: len(node.path)] == node.path for other in tips)
    is_told = is_over(state, certificate.term, node.known) or world.without is Rule.CERTIFICATE_TOLD
    return node.role is Role.BRANCH and is_on and is_told


def _amended(world: World, state: State, at: int, node: Node) -> tuple[str, State]:
    """Count what a node had set aside; close when everyone was read."""
    certificate = state.certificates[at]
    lost = [held for held in node.quarantine if held.row.term == certificate.term]
    if world.without is not Rule.CERTIFICATE_FORK:
        lost = [held for held in lost if held.row not in certificate.fork]
    counted = certificate.counted | {held.row for held in lost}
    number = len(counted) if world.without is not Rule.CERTIFICATE_UNION else certificate.number + len(lost)
    number += sum(held.copies - 1 for held in lost)
    waits = certificate.waits - {node.name}
    is_closed = not waits or world.without is Rule.CERTIFICATE_FIRST
    amended = certificate._replace(waits=waits, counted=counted, number=number, is_closed=is_closed)
    certificates = (*state.certificates[:at], amended, *state.certificates[at + 1 :])
    told = f"the certificate of {certificate.term} is amended by {node.name}{', closed' if is_closed else ''}"
    return told, state._replace(certificates=certificates)


def _republish(world: World, state: State, root: Node, node: Node, held: Held) -> Iterator[tuple[str, State]]:
    """Insert at the root, once by key; then mark the row where it lies."""
    row = held.row
    first = (row.term, row.number) if row.origin is None else row.origin
    copy = Row(row.event, root.term, next_number(root), first)
    key = _key(world, row, first)
    keys = root.keys if world.without is Rule.REPUBLISH_COPIED else _keys(world, root)
    is_known = key in keys or (Row(row.event, *first) in root.rows and world.without is not Rule.REPUBLISH_LOG)
    if state.republications < world.republications and (not is_known or world.without is Rule.REPUBLISH_KEY):
        again = state._replace(republications=state.republications + 1)
        own = root._replace(keys=root.keys | {key} if world.without is Rule.REPUBLISH_COPIED else root.keys)
        yield f"{root.name} publishes {row.event} of {node.name} again", insert(again, own, copy)
    if is_known:
        marked = node.quarantine - {held} | {held._replace(is_settled=True)}
        yield f"{node.name} marks {row.event}", put(state, node._replace(quarantine=marked))


def _key(world: World, row: Row, first: Key) -> object:
    if world.without is Rule.REPUBLISH_DIGEST:
        return first
    return (row.term, row.number, row.event) if world.without is Rule.REPUBLISH_ORIGIN else (*first, row.event)


def _keys(world: World, root: Node) -> set[object]:
    return {_key(world, Row(row.event, *row.origin), row.origin) for row in root.rows if row.origin is not None}


# Operators


def _fail_over(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    """Look at everyone in reach, open the ballots, promote."""
    uid, plan = f"u{at + 1}", state.plans[at]
    reach = [node for node in state.nodes if node.name in world.operators[at]]
    if plan is None:
        if all(node.role is Role.BRANCH for node in reach):
            furthest = max(len(node.path) for node in reach)
            highest = max(_known_number(state, node) for node in reach)
            for node in reach:
                if len(node.path) == furthest or world.without is Rule.BEST:
                    number = (highest // 100 + 1) * 100 + NAMES.index(node.name) + 1
                    chosen = Plan(node.name, number, node.path[-1], node.known)
                    yield f"operator {at + 1} chooses {node.name} for {uid}", note_plan(state, at, chosen)
        return
    if not any(term.uid == uid for term in state.terms):
        yield from _vote(world, state, at, plan, reach)
        yield from _promote(world, state, at, plan, reach)


def _known_number(state: State, node: Node) -> int:
    return max(find_term(state, node.known).number, node.ballot[0] if node.ballot else 0)


def _vote(world: World, state: State, at: int, plan: Plan, reach: list[Node]) -> Iterator[tuple[str, State]]:
    for node in reach:
        is_fit = not goes_past(node, plan.fork) or world.without in (Rule.FORK, Rule.BEST)
        is_free = node.ballot is None or node.ballot[0] < plan.number
        is_news = node.known != plan.known and not is_over(state, node.known, plan.known)
        if world.without is Rule.BALLOT_TERM:
            is_news = find_term(state, node.known).number // 100 >= plan.number // 100
        if node.name not in plan.asked and is_fit and is_free and not is_news:
            asked = note_plan(state, at, plan._replace(asked=plan.asked | {node.name}))
            voted = node._replace(ballot=(plan.number, f"u{at + 1}"))
            yield f"operator {at + 1} opens ballot {plan.number} at {node.name}", put(asked, voted)


def _promote(world: World, state: State, at: int, plan: Plan, reach: list[Node]) -> Iterator[tuple[str, State]]:
    node, uid = find_node(state, plan.candidate), f"u{at + 1}"
    needed = {plan.candidate} if world.without is Rule.BALLOT_ALL else {other.name for other in reach}
    has_ballot = node.ballot == (plan.number, uid) or world.without is Rule.BALLOT_OPEN
    is_there = node.path[-1] == plan.fork or world.without is Rule.FORK
    if not (needed <= plan.asked and has_ballot and is_there and node.role is Role.BRANCH):
        return
    if node.rows != node.path[-1].sees and world.without is not Rule.DIRTY:
        return
    fork, parent = node.path[-1], find_term(state, node.term if world.without is Rule.NEWEST else node.known)
    is_beside = node.term != parent.uid and fork not in parent.path
    if is_beside and world.without is not Rule.ON_PATH:
        return
    path = (*node.path, Tick(uid, len(node.path) + 1, fork.sees))
    root = node._replace(role=Role.ROOT, term=uid, known=uid, ballot=None, path=path)
    better = [other.name for other in reach if goes_past(other, fork)]
    alarm = f"{better[0]} was in reach and further than {short(fork)}" if better else None
    if node.known != parent.uid:
        alarm = f"{node.name} knows of {node.known}, and opens {uid} beside it"
    if is_beside:
        alarm = f"{uid} forks at {short(fork)}, which is not on the path of {parent.uid}"
    opened = state._replace(
        terms=(*state.terms, Term(uid, plan.number, node.name, path, parent.uid)),
        certificates=tuple(_certify(world, state, at, node, parent)),
        alarm=alarm,
    )
    yield f"{node.name} is promoted after {short(fork)}: term {uid}", put(opened, root)


def _certify(world: World, state: State, at: int, node: Node, parent: Term) -> Iterator[Certificate]:
    """Write what may be lost of each term that ends here, in place of what those terms had written."""
    fork, cut = node.path[-1].sees, [parent.uid]
    while cut[-1] != node.term and world.without is not Rule.CERTIFICATE_EACH:
        cut.append(find_term(state, cut[-1]).parent or node.term)
    yield from (found for found in state.certificates if found.term not in cut or found.by not in cut)
    beside = {other.name for other in state.nodes if other.path[-1] not in node.path}
    left_out = set(NAMES) - set(world.operators[at])
    waits = {find_term(state, uid).node for uid in cut}
    waits |= left_out if world.without is not Rule.CERTIFICATE_ALL else set()
    waits |= beside - left_out if world.without is not Rule.CERTIFICATE_BESIDE else set()
    for uid in cut:
        counted = frozenset(held.row for held in node.quarantine if held.row.term == uid and held.row not in fork)
        yield Certificate(uid, fork, frozenset(waits - {node.name}), f"u{at + 1}", counted, len(counted))


# The leaf


def _read(world: World, state: State) -> Iterator[tuple[str, State]]:
    """The leaf reads from anyone; on another path it is set back to the last common tick."""
    leaf = state.leaf
    for node in state.nodes:
        size = len(leaf.path)
        if node.path[:size] == leaf.path and len(node.path) > size:
            tick = node.path[size]
            seen = leaf.seen | (tick.sees - leaf.path[-1].sees)
            read = leaf._replace(path=(*leaf.path, tick), seen=seen)
            yield f"L reads {short(tick)} from {node.name}", state._replace(leaf=read)
        elif leaf.path[: len(node.path)] != node.path and is_over(state, leaf.path[-1].term, node.term):
            common = next(tick for tick in reversed(leaf.path) if tick in node.path)
            beyond = leaf.path[-1].sees - common.sees
            phantoms = leaf.phantoms if world.without is Rule.PHANTOMS else leaf.phantoms | beyond
            back = leaf._replace(path=leaf.path[: leaf.path.index(common) + 1], phantoms=phantoms)
            yield f"L is set back to {short(common)} by {node.name}", state._replace(leaf=back)


# What must hold


def violated(world: World, state: State) -> str | None:
    """Say what is wrong with a state."""
    if state.alarm:
        return state.alarm
    for node in state.nodes:
        if len({row.event for row in node.rows}) < len(node.rows):
            return f"{node.name} holds an event twice"
        if node.role is Role.BRANCH and node.rows != node.path[-1].sees:
            return f"{node.name} does not hold what {short(node.path[-1])} sees"
    tips = [term for term in state.terms if not is_ended(state, term.uid)]
    if len(tips) > 1 and not world.is_partitioned:
        return f"{tips[0].uid} and {tips[1].uid} are in conflict"
    for row in state.committed:
        if row.origin is None and not any(_is_safe(state, copy) for copy in state.committed if copy.event == row.event):
            return f"{row.event} of {row.term} is nowhere, and no open certificate says so"
    for certificate in state.certificates:
        lost = [row for row in state.committed if row.term == certificate.term and row not in certificate.fork]
        if certificate.is_closed and certificate.number != len(lost):
            return f"the certificate of {certificate.term} says {certificate.number}, the truth is {len(lost)}"
    return unrecorded(state.leaf)


def _is_safe(state: State, row: Row) -> bool:
    """Whether a row is in a log that goes on, in quarantine, or in the set of an open certificate."""
    return (
        any(row in node.rows and not is_ended(state, node.term) for node in state.nodes)
        or any(held.row == row and not held.is_settled for node in state.nodes for held in node.quarantine)
        or any(
            not certificate.is_closed and certificate.term == row.term and row not in certificate.fork
            for certificate in state.certificates
        )
    )
