"""M3: a planned hand-over, with tools that stall or die and databases that crash.

A is the root; operation 1 would hand over to B, operation 2 to C.  Every command of an operator is a step
of its own that anybody may give at any time, again and late: that is what a tool that stalls, dies, or is
helped by a second tool looks like to the databases.  The order a tool would keep to:

    begin -> fence -> offer (closing tick and row) | abort | withdraw (in a new term)

The rest happens by itself: clocks, copying, the target's take and promotion, the root's daemon.  The
databases of A and B may crash and come back between any two steps, which also loses the answer to a
take; an operator may then fail over.  What must hold in every state:

- without a failover one root at most accepts events; after one, of two roots one ended the other;
- a hand-over loses nothing: what its old term accepted is below its fork;
- a withdrawn hand-over is never taken, a taken one never withdrawn;
- what a certificate says of an ended term is true;
- while all databases are up, daemons and clocks alone bring back a root that accepts events.

A failover that leaves out the target of a hand-over is a decision of the operator: afterwards two roots
may be in conflict, which the join model shows to be noticed.  Ballots are written in one step here;
`model_failover.py` takes them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import combinations
from typing import NamedTuple

from tests.models.cascade.explore import Result, explore

TARGETS = {1: "B", 2: "C"}
"""To whom each operation would hand over."""


class Rule(StrEnum):
    """The rules that can be taken away, one at a time."""

    ROW = "the target promotes itself by the hand-over row, no tool orders it to"
    TAKE = "the target takes the hand-over at the old root before it promotes itself"
    TAKE_BY_UID = "a take names the uid that it was offered"
    TAKE_AGAIN = "who took a hand-over may take it again"
    TAKE_CURRENT = "nobody takes once the old root has gone past the closing tick"
    CLOSING_TICK = "only who has the closing tick may take"
    WITHDRAW_OFFERED = "only what is still offered can be withdrawn"
    WITHDRAW_TERM = "a withdrawal opens a new term"
    ABORT = "an abort drops the fence only before the offer"
    EXPIRY = "an expired fence is dropped only before the offer"
    EXPIRES = "the root's daemon drops an expired fence"
    ONE_OPERATION = "a set has one open operation"
    FENCED_OFFER = "an offer needs the fence of its own operation"
    FENCE_WAITS = "the fence waits for open writers"
    BALLOT = "a hand-over gives way to an open ballot"
    BALLOT_HOLDS = "an old root with an open ballot lets nobody take"
    BALLOT_STAYS = "a ballot ends with its own term, not with any newer one"
    CONTINUATION = "a failover also ends the terms that the old root opened by itself"
    OPEN_CERTIFICATE = "a certificate stays open though the fork is a closing tick"


class Cause(StrEnum):
    """Why a term was opened."""

    FIRST = "first"
    HANDOVER = "hand-over"
    WITHDRAWAL = "withdrawal"
    FAILOVER = "failover"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How much may happen, and which rule is missing."""

    name: str
    operations: int = 1
    inserts: int = 1
    root_crashes: int = 0
    target_crashes: int = 0
    failovers: int = 0
    without: Rule | None = None


class Tick(NamedTuple):
    """One tick with its rows; a closing tick names the hand-over."""

    term: str
    number: int
    rows: tuple[int, ...] = ()
    closes_for: str | None = None


class Term(NamedTuple):
    """The record of one reign."""

    uid: str
    node: str
    cause: Cause
    parent: str | None = None
    below: frozenset[int] = frozenset()
    """The rows below its fork."""
    is_after_closing: bool = False
    """Whether the fork is a closing tick: the certificate says that its parent lost nothing."""
    is_certificate_closed: bool = False
    """Whether the certificate says that nothing at all was lost."""


class Node(NamedTuple):
    """One database, and what its daemon has in memory: the uid it took."""

    name: str
    term: str
    path: tuple[Tick, ...]
    terms: frozenset[Term]
    is_root: bool = False
    is_up: bool = True
    ballot: str | None = None
    taken: str | None = None


class Offer(NamedTuple):
    """A row of the hand-over table at A."""

    uid: str
    operation: int
    state: str = "offered"


class Desk(NamedTuple):
    """What else A's database holds: operations, fence, hand-overs, a writer, rows after the last tick."""

    begun: frozenset[int] = frozenset()
    open: frozenset[int] = frozenset()
    expired: frozenset[int] = frozenset()
    fence: int | None = None
    offers: tuple[Offer, ...] = ()
    has_writer: bool = False
    loose: tuple[int, ...] = ()


class State(NamedTuple):
    """The databases, all terms, what was accepted in which, and what was used up of the bounds."""

    nodes: tuple[Node, Node, Node]
    terms: frozenset[Term]
    desk: Desk = Desk()
    accepted: tuple[str, ...] = ()
    """The term of each accepted row; row n is the n-th."""
    root_crashes: int = 0
    target_crashes: int = 0
    candidate: tuple[str, int] | None = None
    """Who shall be promoted by a failover, and the length of its path when it was chosen."""
    failovers: int = 0
    is_forced: bool = False
    """Whether a failover left out B, the target of a hand-over, and perhaps A too."""
    saw_branch: bool = False
    """Without the row: whether a second tool saw that the target is still a branch."""


TOOLS = World(name="two tools", operations=2, inserts=2)
TARGET = World(name="the target crashes", operations=2, target_crashes=1)
FAILOVER = World(name="the old root crashes", root_crashes=1, failovers=1)
BOTH = World(name="two operations, the old root crashes", operations=2, inserts=0, root_crashes=1, failovers=1)
LOST = World(name="everything crashes", root_crashes=1, target_crashes=1, failovers=1)
WORLDS = (TOOLS, TARGET, FAILOVER, BOTH, LOST)
DEEPER = (
    World(name="two operations, everything crashes", operations=2, root_crashes=1, target_crashes=1, failovers=1),
    World(name="two operations, the old root crashes twice", operations=2, inserts=1, root_crashes=2, failovers=1),
)

CAUGHT_IN = dict.fromkeys(Rule, TOOLS) | {
    Rule.TAKE_AGAIN: TARGET,
    Rule.TAKE_CURRENT: LOST,
    Rule.WITHDRAW_TERM: FAILOVER,
    Rule.BALLOT: FAILOVER,
    Rule.BALLOT_HOLDS: LOST,
    Rule.BALLOT_STAYS: BOTH,
    Rule.CONTINUATION: FAILOVER,
    Rule.OPEN_CERTIFICATE: FAILOVER,
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
    terms = frozenset({Term("u0", "A", Cause.FIRST)})
    nodes = [Node(name, "u0", (Tick("u0", 1),), terms, is_root=name == "A") for name in "ABC"]
    return State((nodes[0], nodes[1], nodes[2]), terms)


def steps(world: World, state: State) -> Iterator[tuple[str, State]]:
    """List everything that can happen next."""
    if _is_serving(state):
        yield from _write(world, state)
        for operation in range(1, world.operations + 1):
            yield from _command(world, state, operation)
    yield from _progress(world, state)
    yield from _crash(world, state)
    yield from _fail_over(world, state)


# What people do


def _write(world: World, state: State) -> Iterator[tuple[str, State]]:
    desk = state.desk
    if desk.has_writer:
        row = len(state.accepted) + 1
        done = desk._replace(has_writer=False, loose=(*desk.loose, row))
        yield f"A accepts row {row}", state._replace(desk=done, accepted=(*state.accepted, state.nodes[0].term))
    elif desk.fence is None and len(state.accepted) < world.inserts:
        yield "a writer begins at A", state._replace(desk=desk._replace(has_writer=True))


def _command(world: World, state: State, operation: int) -> Iterator[tuple[str, State]]:
    """Give one command of an operation at A; each is one transaction that compares what it needs."""
    desk, offer = state.desk, _offer_of(state, operation)
    is_single = not desk.open or world.without is Rule.ONE_OPERATION
    if operation not in desk.begun and is_single:
        begun = desk._replace(begun=desk.begun | {operation}, open=desk.open | {operation})
        yield f"operation {operation} begins", state._replace(desk=begun)
    is_free = not desk.has_writer or world.without is Rule.FENCE_WAITS
    if operation in desk.open and desk.fence != operation and not offer and is_free:
        yield f"operation {operation} raises the fence", state._replace(desk=desk._replace(fence=operation))
    is_fenced = desk.fence == operation and operation in desk.open
    if not offer and (is_fenced or (world.without is Rule.FENCED_OFFER and operation in desk.begun)):
        yield _offered(state, operation)
    if operation in desk.open and (not offer or world.without is Rule.ABORT):
        yield f"operation {operation} is aborted", state._replace(desk=_dropped(desk, operation))
    states = ("offered", "taken") if world.without is Rule.WITHDRAW_OFFERED else ("offered",)
    if offer and offer.state in states and world.without is not Rule.ROW:
        yield _withdrawn(world, state, offer)


def _offered(state: State, operation: int) -> tuple[str, State]:
    """Make the closing tick and the row in one transaction."""
    node, desk, uid = state.nodes[0], state.desk, f"u{operation}"
    closing = Tick(node.term, len(node.path) + 1, desk.loose, uid)
    closed = desk._replace(offers=(*desk.offers, Offer(uid, operation)), loose=())
    ticked = _with(state._replace(desk=closed), node._replace(path=(*node.path, closing)))
    return f"A offers {uid} to {TARGETS[operation]} with closing tick {_short(closing)}", ticked


def _withdrawn(world: World, state: State, offer: Offer) -> tuple[str, State]:
    """Swap offered to withdrawn, drop the fence and open a term, in one transaction."""
    desk = _dropped(state.desk, offer.operation)
    offers = tuple(row._replace(state="withdrawn") if row == offer else row for row in desk.offers)
    back = state._replace(desk=desk._replace(offers=offers))
    if world.without is Rule.WITHDRAW_TERM:
        return f"{offer.uid} is withdrawn", back
    term = _successor(back.nodes[0], f"w{offer.operation}", Cause.WITHDRAWAL)
    return f"{offer.uid} is withdrawn, A opens term {term.uid}", _open(back, back.nodes[0], term)


def _dropped(desk: Desk, operation: int) -> Desk:
    fence = None if desk.fence == operation else desk.fence
    return desk._replace(open=desk.open - {operation}, fence=fence)


def _order(state: State) -> Iterator[tuple[str, State]]:
    """Without the row: one tool orders the promotion, another looks at the target and undoes the fence."""
    for offer in state.desk.offers:
        target = _node(state, TARGETS[offer.operation])
        if not target.is_root and _has_closing(target, offer):
            term = _successor(target, offer.uid, Cause.HANDOVER)
            yield f"the order to promote {target.name} arrives: term {term.uid}", _open(state, target, term)
            if not state.saw_branch:
                yield f"a second tool sees that {target.name} is a branch", state._replace(saw_branch=True)
        if state.saw_branch and state.desk.fence:
            yield "the second tool drops the fence", state._replace(desk=_dropped(state.desk, offer.operation))


# What happens by itself


def _progress(world: World, state: State) -> Iterator[tuple[str, State]]:
    desk = state.desk
    for operation in sorted(desk.open):
        may_end = not _offer_of(state, operation) or world.without is Rule.EXPIRY
        if operation not in desk.expired:
            expired = desk._replace(expired=desk.expired | {operation})
            yield f"the time of operation {operation} is up", state._replace(desk=expired)
        elif _is_serving(state) and may_end and world.without is not Rule.EXPIRES:
            yield f"A's daemon ends operation {operation}", state._replace(desk=_dropped(desk, operation))
    if world.without is Rule.ROW:
        yield from _order(state)
    for node in state.nodes:
        if node.is_up:
            yield from _copy(world, state, node)
            yield from _take(world, state, node)
            yield from _hear(world, state, node)


def _copy(world: World, state: State, node: Node) -> Iterator[tuple[str, State]]:
    """Copy a tick from whoever has one more; the opening tick of a term brings its record."""
    found: set[Tick] = set()
    for other in state.nodes:
        size = len(node.path)
        if not other.is_up or node.is_root or len(other.path) <= size or other.path[:size] != node.path:
            continue
        tick = other.path[size]
        if tick in found:
            continue
        found.add(tick)
        terms = node.terms | {term for term in other.terms if term.uid == tick.term}
        copied = node._replace(path=(*node.path, tick), term=tick.term, terms=terms)
        if terms != node.terms:
            is_settled = tick.term == "f1" or world.without is Rule.BALLOT_STAYS
            copied = copied._replace(ballot=None if is_settled else node.ballot, taken=None)
        yield f"{node.name} copies {_short(tick)}", _with(state, copied)


def _take(world: World, state: State, node: Node) -> Iterator[tuple[str, State]]:
    """The target's daemon: take the hand-over at A, then promote the own database."""
    if node.is_root or world.without is Rule.ROW:
        return
    for offer in state.desk.offers:
        is_named = TARGETS[offer.operation] == node.name
        is_fit = _has_closing(node, offer) or (world.without is Rule.CLOSING_TICK and node.term == "u0")
        if is_named and is_fit and node.taken is None and world.without is not Rule.TAKE and _is_serving(state):
            yield from _swap(world, state, node, offer)
        is_clear = node.ballot is None or world.without is Rule.BALLOT
        if is_named and is_fit and is_clear and (node.taken == offer.uid or world.without is Rule.TAKE):
            term = _successor(node, offer.uid, Cause.HANDOVER)
            yield f"{node.name} promotes itself: term {term.uid}", _open(state, node, term)


def _swap(world: World, state: State, node: Node, offer: Offer) -> Iterator[tuple[str, State]]:
    rows = state.desk.offers
    wanted = offer if world.without is not Rule.TAKE_BY_UID else rows[-1]
    states = ("offered",) if world.without is Rule.TAKE_AGAIN else ("offered", "taken")
    a = state.nodes[0]
    is_held = a.ballot is not None and world.without is not Rule.BALLOT_HOLDS
    is_past = not _has_closing(a, wanted) and world.without is not Rule.TAKE_CURRENT
    if wanted.state not in states or is_past or is_held or (node.ballot and world.without is not Rule.BALLOT):
        return
    swapped = tuple(row._replace(state="taken") if row == wanted else row for row in rows)
    asked = state._replace(desk=state.desk._replace(offers=swapped))
    yield f"{node.name} takes {wanted.uid} at A", _with(asked, node._replace(taken=offer.uid))


def _hear(world: World, state: State, node: Node) -> Iterator[tuple[str, State]]:
    """A root's daemon asks the others, and stands down for good when its term was ended."""
    for other in state.nodes:
        enders = [term for term in other.terms - node.terms if _ends(world, term.uid, node.term, state.terms)]
        if node.is_root and other.is_up and enders:
            below = node._replace(is_root=False, ballot=None, terms=node.terms | other.terms)
            closed = state.desk._replace(open=frozenset(), fence=None) if node.name == "A" else state.desk
            yield f"{node.name} hears of {enders[0].uid}", _with(state._replace(desk=closed), below)


# Crashes, and what an operator does about them


def _crash(world: World, state: State) -> Iterator[tuple[str, State]]:
    a, b, _ = state.nodes
    if a.is_up and state.root_crashes < world.root_crashes:
        crashed = state._replace(desk=state.desk._replace(has_writer=False), root_crashes=state.root_crashes + 1)
        yield "A crashes", _with(crashed, a._replace(is_up=False))
    if b.is_up and state.target_crashes < world.target_crashes:
        crashed = state._replace(target_crashes=state.target_crashes + 1)
        yield "B crashes", _with(crashed, b._replace(is_up=False, taken=None))
    for node in (a, b):
        if not node.is_up:
            yield f"{node.name} is back", _with(state, node._replace(is_up=True))


def _fail_over(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Ballots on everyone who answers, then the promotion; the tool may stall between."""
    if state.candidate is not None:
        yield from _promote(world, state, *state.candidate)
        return
    asked = [node for node in state.nodes if node.is_up]
    is_taken = any(offer.state == "taken" for offer in state.desk.offers)
    is_lost = not _is_serving(state) or (is_taken and not state.nodes[1].is_up)
    if not is_lost or any(node.is_root for node in asked if node.name != "A") or state.failovers >= world.failovers:
        return
    furthest = max(len(node.path) for node in asked)
    for chosen in (node for node in asked if len(node.path) == furthest):
        voted = state
        for node in asked:
            voted = _with(voted, node._replace(ballot=f"f1 at {chosen.name}"))
        opened = voted._replace(candidate=(chosen.name, furthest), failovers=1)
        yield f"an operator opens ballots for {chosen.name}", opened


def _promote(world: World, state: State, name: str, length: int) -> Iterator[tuple[str, State]]:
    a, b, _ = state.nodes
    chosen = _node(state, name)
    if chosen.is_up and chosen.ballot == f"f1 at {name}" and len(chosen.path) == length:
        term = _successor(chosen, "f1", Cause.FAILOVER)
        term = term._replace(is_certificate_closed=term.is_after_closing and world.without is Rule.OPEN_CERTIFICATE)
        is_forced = b.ballot is None and (a.ballot is None or b.is_root)
        desk = _dropped(state.desk, state.desk.fence or 0) if name == "A" else state.desk
        forked = state._replace(candidate=None, is_forced=is_forced, desk=desk)
        yield f"{name} is promoted by the operator: term f1", _open(forked, chosen, term)


def _successor(node: Node, uid: str, cause: Cause) -> Term:
    below = frozenset(row for tick in node.path for row in tick.rows)
    is_closing = node.path[-1].closes_for is not None
    return Term(uid, node.name, cause, node.term, below, cause is Cause.FAILOVER and is_closing)


def _open(state: State, node: Node, term: Term) -> State:
    """Promote: term, opening tick and role in one transaction; the own ballot has served."""
    path = (*node.path, Tick(term.uid, len(node.path) + 1))
    root = node._replace(term=term.uid, path=path, terms=node.terms | {term}, is_root=True, ballot=None, taken=None)
    return _with(state._replace(terms=state.terms | {term}), root)


# What must hold


def violated(world: World, state: State) -> str | None:
    """Say what is wrong with a state."""
    for offer in state.desk.offers:
        if offer.state == "withdrawn" and any(term.uid == offer.uid for term in state.terms):
            return f"{offer.uid} was withdrawn, and is a term"
    for term in sorted(state.terms):
        if wrong := _misses(world, state, term):
            return wrong
    writers = [node for node in state.nodes if _accepts(state, node)]
    for one, other in combinations(writers, 2):
        is_ordered = _ends(world, one.term, other.term, state.terms) or _ends(world, other.term, one.term, state.terms)
        if not state.is_forced and not (state.failovers and is_ordered):
            return f"{one.name} and {other.name} both accept events, in {one.term} and {other.term}"
    is_quiet = all(node.is_up and node.ballot is None for node in state.nodes)
    if not writers and is_quiet and not any(_progress(world, state)):
        return "nobody accepts events, and nothing will change that"
    return None


def _misses(world: World, state: State, term: Term) -> str | None:
    """Whether a row is missing below the fork of a term that claims to have it."""
    for row, uid in enumerate(state.accepted, start=1):
        if row in term.below:
            continue
        if term.cause is Cause.HANDOVER and uid == term.parent:
            return f"row {row} of {uid} is lost by the hand-over {term.uid}"
        if term.is_after_closing and uid == term.parent:
            return f"the certificate of {term.uid} says that {uid} lost nothing, but row {row} is missing"
        if term.is_certificate_closed and _ends(world, term.uid, uid, state.terms):
            return f"the certificate of {term.uid} is closed, but row {row} of {uid} is missing"
    return None


def _ends(world: World, ending: str, uid: str, terms: frozenset[Term]) -> bool:
    """Whether a term's path goes through, and so ends, another or the reign that the other continues."""
    known = {term.uid: term for term in terms}
    above, at = set[str](), known[ending].parent
    while at is not None:
        above.add(at)
        at = known[at].parent
    if uid in above or known[ending].node == known[uid].node or world.without is Rule.CONTINUATION:
        return uid in above
    reign = known[uid]
    while reign.cause is Cause.WITHDRAWAL and reign.parent is not None:
        reign = known[reign.parent]
    return reign.uid in above


def _accepts(state: State, node: Node) -> bool:
    return node.is_root and node.is_up and (node.name != "A" or state.desk.fence is None)


def _is_serving(state: State) -> bool:
    return state.nodes[0].is_up and state.nodes[0].is_root


def _has_closing(node: Node, offer: Offer) -> bool:
    return node.path[-1].closes_for == offer.uid


def _offer_of(state: State, operation: int) -> Offer | None:
    return next((offer for offer in state.desk.offers if offer.operation == operation), None)


def _node(state: State, name: str) -> Node:
    return state.nodes["ABC".index(name)]


def _with(state: State, node: Node) -> State:
    nodes = [node if node.name == other.name else other for other in state.nodes]
    return state._replace(nodes=(nodes[0], nodes[1], nodes[2]))


def _short(tick: Tick) -> str:
    return f"{tick.term}/{tick.number}"
