"""The nodes of a failover as plain values, and how their terms stand to one another.

`model_failover.py` moves them.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple

NAMES = "ABC"
Key = tuple[str, int]


class Role(StrEnum):
    """What a node is; a fenced root accepts nothing."""

    ROOT = "root"
    FENCED = "fenced"
    BRANCH = "branch"


class Row(NamedTuple):
    """A row of the log: the event, its term and number, and its first key if it was published again."""

    event: int
    term: str
    number: int
    origin: Key | None = None


class Tick(NamedTuple):
    """A tick: all rows that it sees, and those of transactions that were open."""

    term: str
    number: int
    sees: frozenset[Row] = frozenset()
    open: frozenset[Row] = frozenset()


class Held(NamedTuple):
    """A row in quarantine."""

    row: Row
    copies: int = 1
    is_settled: bool = False


class Node(NamedTuple):
    """One database."""

    name: str
    role: Role
    term: str
    path: tuple[Tick, ...]
    rows: frozenset[Row] = frozenset()
    running: frozenset[Row] = frozenset()
    quarantine: frozenset[Held] = frozenset()
    ballot: tuple[int, str] | None = None
    known: str = "u0"
    """The newest term that it has heard of; its own ticks may not reach so far."""
    keys: frozenset[object] = frozenset()
    """Only without copied keys: what this node has published again."""


class Term(NamedTuple):
    """The record of one reign."""

    uid: str
    number: int
    node: str
    path: tuple[Tick, ...]
    """All ticks up to its opening tick."""
    parent: str | None = None


class Certificate(NamedTuple):
    """What is known about the rows that a term lost: who has still to be read, and the number so far."""

    term: str
    fork: frozenset[Row]
    waits: frozenset[str]
    by: str
    counted: frozenset[Row] = frozenset()
    number: int = 0
    is_closed: bool = False


class Plan(NamedTuple):
    """What one operator's tool has in mind."""

    candidate: str
    number: int
    fork: Tick
    known: str
    asked: frozenset[str] = frozenset()


class Leaf(NamedTuple):
    """A leaf's position, what it has processed, and what was recorded when it was set back."""

    path: tuple[Tick, ...]
    seen: frozenset[Row] = frozenset()
    phantoms: frozenset[Row] = frozenset()


class State(NamedTuple):
    """The databases, the operators' tools, and what was used up of the bounds."""

    nodes: tuple[Node, ...]
    terms: tuple[Term, ...]
    plans: tuple[Plan | None, ...]
    leaf: Leaf
    certificates: tuple[Certificate, ...] = ()
    committed: frozenset[Row] = frozenset()
    lost: frozenset[str] = frozenset()
    """The terms that lost a conflict."""
    inserts: int = 0
    rewinds: int = 0
    republications: int = 0
    alarm: str | None = None


def insert(state: State, node: Node, row: Row) -> State:
    return put(state._replace(committed=state.committed | {row}), node._replace(rows=node.rows | {row}))


def next_number(node: Node) -> int:
    return 1 + max((row.number for row in node.rows | node.running if row.term == node.term), default=0)


def newest_of(state: State, node: Node, other: Node) -> str:
    return other.known if is_over(state, node.known, other.known) else node.known


def last_common(node: Node, other: Node) -> Tick:
    return next(tick for tick in reversed(node.path) if tick in other.path)


def goes_past(node: Node, fork: Tick) -> bool:
    """Whether a node has a tick of the fork's term after the fork."""
    return fork in node.path and any(tick.term == fork.term for tick in node.path[node.path.index(fork) + 1 :])


def unrecorded(leaf: Leaf) -> str | None:
    beside = leaf.seen - leaf.path[-1].sees - leaf.phantoms
    if beside:
        return f"L has seen {min(beside).event}, which is not on its path, and no record says so"
    skipped = leaf.path[-1].sees - leaf.seen
    return f"L has skipped {min(skipped).event}" if skipped else None


def is_ended(state: State, uid: str) -> bool:
    return uid in state.lost or any(term.parent == uid for term in state.terms)


def is_over(state: State, uid: str, by: str) -> bool:
    """Whether a term was ended by one that another node knows."""
    return by in successors(state.terms, uid) or (uid in state.lost and uid != by and by not in state.lost)


def is_rival(state: State, uid: str, other: str) -> bool:
    is_ordered = other in successors(state.terms, uid) or uid in successors(state.terms, other)
    return uid != other and not is_ordered and not {uid, other} & state.lost


@cache
def successors(terms: tuple[Term, ...], uid: str) -> frozenset[str]:
    """List the terms whose path goes through the end of this one."""
    found = {uid}
    for term in terms:
        if term.parent in found:
            found.add(term.uid)
    return frozenset(found - {uid})


def find_term(state: State, uid: str) -> Term:
    return next(term for term in state.terms if term.uid == uid)


def note_plan(state: State, at: int, plan: Plan) -> State:
    return state._replace(plans=(*state.plans[:at], plan, *state.plans[at + 1 :]))


def find_node(state: State, name: str) -> Node:
    return state.nodes[NAMES.index(name)]


def put(state: State, node: Node) -> State:
    return state._replace(nodes=tuple(node if node.name == other.name else other for other in state.nodes))


def short(tick: Tick) -> str:
    return f"{tick.term}/{tick.number}"
