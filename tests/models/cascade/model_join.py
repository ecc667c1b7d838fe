"""M1: three nodes that insert, tick, copy, fail over and come back, in every order.

A is the first root; B and C begin as branches.  Any node may join any other at any time, as if an
operator, an old file or a late message had sent it there.  A join is one step: exchange the terms,
hear the answer, act on it.  Rows are numbered; a tick's chain spells out every row below it, as an
ideal hash would.  What must hold in every state:

- log matching: two nodes that share a chain share all ticks and rows below it;
- no contamination: a batch holds on every node the rows that its root put there;
- no id stands for ticks of two terms;
- nobody copies past the end of a term that he or his provider knows;
- no false alarm: an answer that stops a node is true of what really happened.

Bounds: the worlds below say how many inserts, promotions, rewinds (a root's database loses its last
tick), truncated ticks and drops may happen.  Ticks close one row each, besides the opening ticks.
WORLDS takes seconds; DEEPER takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from typing import NamedTuple

from tests.models.cascade.explore import Result, explore
from tests.models.cascade.join import (
    Answer,
    Role,
    Standing,
    Term,
    Tick,
    answer,
    exchange,
    is_over,
    is_past,
    last_common,
    rivals,
)

SPAN = 10**12
"""How many ids a term has."""
NAMES = "ABC"


class Rule(StrEnum):
    """The rules that can be taken away, one at a time."""

    OPENING_TICK = "a promotion writes an opening tick"
    DIRTY_CHECK = "a node with loose rows may not join"
    LEARNING = "terms are exchanged and stored at every join"
    UNIQUE_NUMBERS = "term numbers are unique like ballots"
    CHAIN = "ticks are compared by chain, not by id"
    BEHIND = "only a root can be rewound, others are behind"
    FENCE_BY_PATH = "a root is fenced only by a term that ends its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How much may happen, and which rule is missing."""

    name: str
    inserts: int
    promotions: int
    rewinds: int = 0
    truncations: int = 0
    drops: int = 0
    has_stray_record: bool = False
    without: Rule | None = None


class Batch(NamedTuple):
    """A tick with the rows that one node has between it and the tick before."""

    tick: Tick
    rows: tuple[int, ...]


class Node(NamedTuple):
    """One database.  `path` reaches back to the beginning; what is before `first` was truncated."""

    name: str
    role: Role
    term: str
    path: tuple[Batch, ...]
    terms: frozenset[Term]
    loose: tuple[int, ...] = ()
    first: int = 0
    is_member: bool = True
    was_rewound: bool = False


class State(NamedTuple):
    """The three nodes, what was used up of the bounds, and the first alarm that was false."""

    nodes: tuple[Node, ...]
    inserts: int = 0
    promotions: int = 0
    rewinds: int = 0
    truncations: int = 0
    drops: int = 0
    followed: frozenset[tuple[str, str]] = frozenset()
    """Pairs of terms: the opener of the first knew the second and had all its ticks."""
    alarm: str | None = None


class Meeting(NamedTuple):
    """How a join may end: its name, both nodes afterwards, and what was wrong with it."""

    name: str
    subscriber: Node
    provider: Node
    alarm: str | None = None


FAILOVERS = World(name="failovers", inserts=2, promotions=2)
REWIND = World(name="rewind", inserts=3, promotions=1, rewinds=1)
RETENTION = World(name="retention", inserts=2, promotions=1, truncations=2, drops=1)
STRAY = World(name="stray record", inserts=1, promotions=1, has_stray_record=True)
WORLDS = (FAILOVERS, REWIND, RETENTION, STRAY)
DEEPER = (
    World(name="three failovers", inserts=2, promotions=3),
    World(name="rewind and two failovers", inserts=2, promotions=2, rewinds=1),
    World(name="retention and two failovers", inserts=2, promotions=2, truncations=1, drops=1),
)

CAUGHT_IN = {
    Rule.OPENING_TICK: FAILOVERS,
    Rule.DIRTY_CHECK: FAILOVERS,
    Rule.LEARNING: FAILOVERS,
    Rule.UNIQUE_NUMBERS: FAILOVERS,
    Rule.CHAIN: REWIND,
    Rule.BEHIND: FAILOVERS,
    Rule.FENCE_BY_PATH: STRAY,
}
"""The world in which the absence of each rule shows."""


def check(world: World, *, limit: int = 400_000) -> Result:
    """Explore one world."""
    return explore(start(world), partial(steps, world), violated, limit)


def check_without(rule: Rule) -> Result:
    """Explore the world that needs a rule, without it."""
    return check(replace(CAUGHT_IN[rule], without=rule))


def start(world: World) -> State:
    """Everyone has the first tick.  A stray record comes from a set that is no more."""
    first = Term("u0", 0, None, None, None)
    stray = Term("w1", 900, "w0", 7, "w0/7")
    path = (Batch(Tick(1, "u0", None, "u0/1[]"), ()),)
    nodes = [Node(name, Role.ROOT if name == "A" else Role.BRANCH, "u0", path, frozenset({first})) for name in NAMES]
    if world.has_stray_record:
        nodes[2] = nodes[2]._replace(terms=frozenset({first, stray}))
    return State(tuple(nodes))


# Steps of one node


def steps(world: World, state: State) -> Iterator[tuple[str, State]]:
    """List everything that can happen next."""
    for at, node in enumerate(state.nodes):
        if node.role is Role.ROOT:
            yield from _reign(world, state, at)
        else:
            yield from _promote(world, state, at)
        yield from _shrink(world, state, at)
    for at, node in enumerate(state.nodes):
        for to in range(len(state.nodes)):
            if to != at:
                yield from _meet(world, state, at, to, may_ask=node.role is Role.ROOT)


def _reign(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[at]
    if node.loose:
        batch = _next_batch(node, node.term, node.loose)
        ticked = node._replace(path=(*node.path, batch), loose=())
        yield f"{node.name} ticks {_short(batch.tick)}", _with(state, at, ticked)
    elif state.inserts < world.inserts:
        filled = node._replace(loose=(state.inserts + 1,))
        yield f"{node.name} accepts an insert", _with(state, at, filled)._replace(inserts=state.inserts + 1)
    last = node.path[-1].tick
    if state.rewinds < world.rewinds and last.term == node.term and last.tick_id % SPAN > 1:
        lost = node._replace(path=node.path[:-1], loose=(), was_rewound=True, first=min(node.first, len(node.path) - 2))
        yield f"{node.name}'s database loses {_short(last)}", _with(state, at, lost)._replace(rewinds=state.rewinds + 1)


def _promote(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    node = state.nodes[at]
    is_fit = node.is_member and not node.loose and not any(rivals(node.terms)) and not is_over(_plain(node), node.terms)
    if state.promotions >= world.promotions or not is_fit:
        return
    uid, last = f"u{state.promotions + 1}", node.path[-1].tick
    term = Term(uid, _number(world, node), last.term, last.tick_id, last.chain)
    root = node._replace(role=Role.ROOT, term=uid, terms=node.terms | {term}, was_rewound=False)
    if world.without is not Rule.OPENING_TICK:
        root = root._replace(path=(*root.path, _next_batch(root, uid, ())))
    followed = state.followed | {(uid, other.term) for other in state.nodes if _has_followed(node, other)}
    promoted = _with(state, at, root)._replace(promotions=state.promotions + 1, followed=followed)
    yield f"{node.name} is promoted after {_short(last)}: term {uid}, number {term.number}", promoted


def _number(world: World, node: Node) -> int:
    highest = max(term.number for term in node.terms)
    if world.without is Rule.UNIQUE_NUMBERS:
        return highest + 1
    return (highest // 100 + 1) * 100 + 1 + NAMES.index(node.name)


def _has_followed(node: Node, other: Node) -> bool:
    knows = other.term in {term.uid for term in node.terms}
    return other.role is Role.ROOT and knows and node.path[: len(other.path)] == other.path


def _next_batch(node: Node, uid: str, rows: tuple[int, ...]) -> Batch:
    last = node.path[-1].tick
    number = next(term.number for term in node.terms if term.uid == uid)
    tick_id = last.tick_id + 1 if last.term == uid else number * SPAN + 1
    spelled = ",".join(map(str, rows))
    return Batch(Tick(tick_id, uid, last.tick_id, f"{last.chain} {uid}/{tick_id % SPAN}[{spelled}]"), rows)


def _shrink(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    """Truncation here obeys no watermark, as if the operator had marked everyone dead."""
    node = state.nodes[at]
    if state.truncations < world.truncations and node.first < len(node.path) - 1:
        cut = node._replace(first=node.first + 1)
        gone = _short(node.path[cut.first].tick)
        yield f"{node.name} truncates {gone}", _with(state, at, cut)._replace(truncations=state.truncations + 1)
    if state.drops < world.drops and node.is_member and node.role is not Role.ROOT:
        gone_node = node._replace(is_member=False)
        yield f"{node.name} is dropped", _with(state, at, gone_node)._replace(drops=state.drops + 1)


# Steps of two nodes


def _meet(world: World, state: State, at: int, to: int, *, may_ask: bool) -> Iterator[tuple[str, State]]:
    """A root asks, anyone else joins."""
    one, other = state.nodes[at], state.nodes[to]
    meetings = _ask(one, other, world.without) if may_ask else _join(one, other, state.followed, world.without)
    for name, subscriber, provider, alarm in meetings:
        yield name, _with(_with(state, at, subscriber), to, provider)._replace(alarm=alarm)


@cache
def _ask(root: Node, other: Node, without: Rule | None) -> list[Meeting]:
    """The root's daemon asks another node for news of its own end."""
    told = _settled(root._replace(terms=root.terms | other.terms), without)
    if told.role is Role.ROOT:
        return [Meeting(f"{root.name} asks {other.name}", told, other)] if told != root else []
    is_just = is_over(_plain(root), told.terms) or any(rivals(told.terms))
    alarm = None if is_just else f"{root.name} stands down, but no term ended {root.term}"
    return [Meeting(f"{root.name} asks {other.name} and fences itself", told, other, alarm)]


def _settled(node: Node, without: Rule | None) -> Node:
    """Fence a root that knows that its term is over, or that it has a rival."""
    if node.role is not Role.ROOT:
        return node
    is_fenced = is_over(_plain(node), node.terms) or any(node.term in {a.uid, b.uid} for a, b in rivals(node.terms))
    if without is Rule.FENCE_BY_PATH:
        own = next(term.number for term in node.terms if term.uid == node.term)
        is_fenced = any(term.number > own for term in node.terms)
    return _fenced(node) if is_fenced else node


def _fenced(node: Node) -> Node:
    return node._replace(role=Role.BRANCH, term=node.path[-1].tick.term)


@cache
def _join(one: Node, other: Node, followed: frozenset[tuple[str, str]], without: Rule | None) -> list[Meeting]:
    """Exchange terms, hear the answer, act on it; a resurrection may follow or wait."""
    members = frozenset(node.name for node in (one, other) if node.is_member)
    subscriber = _seen(one, without)
    provider = replace(_seen(other, without, is_provider=True), members=members)
    if without is not Rule.LEARNING:
        subscriber, provider = exchange(subscriber, provider)
    said = answer(subscriber, provider)
    alarm = f"false alarm: {one.name} is told {said}" if _is_false(said, one, other, followed) else None
    if without is not Rule.LEARNING:
        known = one.terms | other.terms
        one, other = one._replace(terms=known), _settled(other._replace(terms=known), without)
    return list(_acts(said, one, other, without, alarm))


def _acts(said: Answer, one: Node, other: Node, without: Rule | None, alarm: str | None) -> Iterator[Meeting]:
    name = f"{one.name} joins {other.name}: {said}"
    match said:
        case Answer.ON_PATH if len(one.path) < len(other.path):
            yield _copied(one, other)
        case Answer.STALE | Answer.REWOUND:
            yield Meeting(name, one, _fenced(other) if other.role is Role.ROOT else other, alarm)
        case Answer.DIRTY | Answer.DIVERGED:
            yield Meeting(name, one, other, alarm)
            yield Meeting(f"{name}, and is resurrected", _resurrected(said, one, other, without), other, alarm)
        case Answer.EXPIRED:
            yield Meeting(name, one, other, alarm)
            yield Meeting(f"{name}, and is seeded anew", _seeded(one, other), other, alarm)
        case _:
            yield Meeting(name, one, other, alarm)


def _copied(one: Node, other: Node) -> Meeting:
    """Copy one tick.  Loose rows have a higher clock, so they fall into the batch as well."""
    last = one.path[-1].tick.tick_id
    batch = next((found for found in other.path if found.tick.prev == last), other.path[len(one.path)])
    known = one.terms | other.terms
    opened = frozenset(term for term in other.terms if term.uid == batch.tick.term)
    copy = Batch(batch.tick, tuple(sorted({*batch.rows, *one.loose})))
    held = one._replace(path=(*one.path, copy), loose=(), term=batch.tick.term, terms=one.terms | opened)
    name = f"{one.name} copies {_short(batch.tick)} from {other.name}"
    is_beyond = any(is_past(batch.tick, term) for term in known)
    return Meeting(name, held, other, f"{_short(batch.tick)} is past the known end of its term" if is_beyond else None)


def _resurrected(said: Answer, one: Node, other: Node, without: Rule | None) -> Node:
    """Take out the loose rows, or everything after the last common tick."""
    if said is Answer.DIRTY:
        return one._replace(loose=())
    common = last_common(_seen(one, without), _seen(other, without))
    if common is None:
        return _seeded(one, other)
    kept = 1 + [batch.tick.tick_id for batch in one.path].index(common.tick_id)
    return one._replace(path=one.path[:kept], first=min(one.first, kept - 1), term=common.term, loose=())


def _seeded(one: Node, other: Node) -> Node:
    return one._replace(path=other.path, first=other.first, term=other.path[-1].tick.term, loose=())


# What the nodes see of one another, and what is true


def _plain(node: Node) -> Standing:
    ticks = tuple(batch.tick for batch in node.path[node.first :])
    return Standing(
        node=node.name,
        role=node.role,
        term=node.term,
        path=ticks,
        first_retained=ticks[0].tick_id,
        terms=node.terms,
        is_dirty=bool(node.loose),
    )


def _seen(node: Node, without: Rule | None, *, is_provider: bool = False) -> Standing:
    """Show a node as it looks when one rule is not applied."""
    standing = _plain(node)
    if without is Rule.DIRTY_CHECK:
        standing = replace(standing, is_dirty=False)
    if without is Rule.CHAIN:
        by_id = tuple(tick._replace(chain=str(tick.tick_id)) for tick in standing.path)
        forks = frozenset(term._replace(fork_chain=str(term.fork)) for term in node.terms)
        standing = replace(standing, path=by_id, terms=forks)
    if without is Rule.BEHIND and is_provider:
        standing = replace(standing, role=Role.ROOT)
    return standing


def _is_false(said: Answer, one: Node, other: Node, followed: frozenset[tuple[str, str]]) -> bool:
    """Whether an answer that stops a node is not true of what really happened."""
    match said:
        case Answer.DROPPED:
            return one.is_member
        case Answer.DIRTY:
            return not one.loose
        case Answer.CONFLICT:
            return all({(a.uid, b.uid), (b.uid, a.uid)} & followed for a, b in rivals(one.terms | other.terms))
        case Answer.STALE:
            return not is_over(_plain(other), one.terms | other.terms)
        case Answer.REWOUND:
            return not (other.was_rewound and other.role is Role.ROOT)
        case Answer.DIVERGED:
            return _is_prefix(one, other) or _is_prefix(other, one)
        case Answer.EXPIRED:
            return _is_prefix(one, other) and len(one.path) > other.first
        case _:
            return False


def _is_prefix(one: Node, other: Node) -> bool:
    return one.path == other.path[: len(one.path)]


def violated(state: State) -> str | None:
    """Say what is wrong with a state."""
    if state.alarm:
        return state.alarm
    for node in state.nodes:
        if wrong := _contaminated(node.path):
            return f"{node.name} holds {wrong}"
    a, b, c = state.nodes
    for one, other in ((a, b), (a, c), (b, c)):
        if wrong := _unlike(one.path, other.path):
            return f"{one.name} and {other.name} {wrong}"
    return None


@cache
def _contaminated(path: tuple[Batch, ...]) -> str | None:
    for tick, rows in path:
        if not tick.chain.endswith(f"[{','.join(map(str, rows))}]"):
            return f"rows {list(rows)} in {_short(tick)}, which its root made otherwise"
    return None


@cache
def _unlike(one: tuple[Batch, ...], other: tuple[Batch, ...]) -> str | None:
    places = {batch.tick.chain: at for at, batch in enumerate(other)}
    terms = {batch.tick.tick_id: batch.tick.term for batch in other}
    for at, (tick, _) in enumerate(one):
        place = places.get(tick.chain)
        if place is not None and one[: at + 1] != other[: place + 1]:
            return f"share {_short(tick)} but not all that is below it"
        if terms.get(tick.tick_id, tick.term) != tick.term:
            return f"have tick id {tick.tick_id} in two terms"
    return None


def _with(state: State, at: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))


def _short(tick: Tick) -> str:
    return f"{tick.term}/{tick.tick_id % SPAN}"
