"""The rule of the nine answers: may this subscriber copy from this provider?

`answer` is the table "Joining a provider" of the design as one pure function on plain values.  The
models call it, and so may a test that compares it with the functions in the database: a `Standing`
holds only what a node can read about itself in its own tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple


class Answer(StrEnum):
    """What a subscriber is told, in the order in which the reasons are looked for."""

    DROPPED = "dropped"
    DIRTY = "dirty"
    CONFLICT = "conflict"
    STALE = "stale"
    REWOUND = "rewound"
    DIVERGED = "diverged"
    EXPIRED = "expired"
    BEHIND = "behind"
    ON_PATH = "on path"


class Role(StrEnum):
    """What a node is in its set; a root that was fenced is a branch."""

    ROOT = "root"
    BRANCH = "branch"
    LEAF = "leaf"


class Tick(NamedTuple):
    """One tick of a path.  A tuple, because the models hash it by the million."""

    tick_id: int
    """Its id, `number of the term * 10^12 + n`; ids are compared only inside one term."""
    term: str
    """The uid of the term in which it was made."""
    prev: int | None
    """The id of the tick before it on the path; None for the first tick of a set."""
    chain: str
    """The hash over everything below; equal chains prove equal paths."""


class Term(NamedTuple):
    """The record of one reign, kept for ever."""

    uid: str
    """Random, so never issued twice."""
    number: int
    """Its number, made unique like a ballot."""
    parent: str | None
    """The uid of the term that it ended; None for the first term of a set."""
    fork: int | None
    """The id of the last tick of the parent that counts."""
    fork_chain: str | None
    """The chain of that tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one node knows of itself, after both have exchanged their terms."""

    node: str
    """Its name, as the table of members spells it."""
    role: Role
    """Root only while it accepts events: a fenced root stands as a branch."""
    term: str
    """The uid of a root's own term; of anyone else, the term of its last tick."""
    path: tuple[Tick, ...] = ()
    """The ticks it still has, oldest first; a leaf has one, its position; a new node none."""
    first_retained: int | None = None
    """The id of the first tick after which it still holds every event; None: all of `path`."""
    terms: frozenset[Term] = frozenset()
    """Every term record it has stored, those of its own path and those it was told."""
    is_dirty: bool = False
    """Whether it has rows outside the snapshot of its last tick.  Read of the subscriber only."""
    members: frozenset[str] = field(default_factory=frozenset)
    """The members that are not dropped, as far as it knows.  Read of the provider only."""


def exchange(one: Standing, other: Standing) -> tuple[Standing, Standing]:
    """Give each the terms that it did not know; this comes before the answer."""
    known = one.terms | other.terms
    return replace(one, terms=known), replace(other, terms=known)


def answer(subscriber: Standing, provider: Standing) -> Answer:
    """Say how the subscriber stands to the provider: the first reason that applies.

    Only "behind" and "on path" let the subscriber keep its place; every other answer stops it.
    """
    if subscriber.node not in provider.members:
        return Answer.DROPPED
    if subscriber.is_dirty:
        return Answer.DIRTY
    if any(rivals(subscriber.terms | provider.terms)):
        return Answer.CONFLICT
    if is_over(provider, subscriber.terms):
        return Answer.STALE
    if not subscriber.path:
        return Answer.ON_PATH
    if not provider.path:
        return Answer.BEHIND
    return _compare(subscriber, provider)


def _compare(subscriber: Standing, provider: Standing) -> Answer:
    last, reached = subscriber.path[-1], provider.path[-1]
    has_last = last.chain in _chains(provider)
    is_older = lies_below(last, provider)
    is_behind = reached.chain in _chains(subscriber) or lies_below(reached, subscriber)
    if provider.role is Role.ROOT and provider.term == last.term and not (has_last or is_older):
        return Answer.REWOUND
    if not (has_last or is_older or is_behind):
        return Answer.DIVERGED
    if is_older or (has_last and not _is_retained(last, provider)):
        return Answer.EXPIRED
    return Answer.ON_PATH if has_last else Answer.BEHIND


def rivals(terms: Iterable[Term]) -> Iterator[tuple[Term, Term]]:
    """List the pairs with one number or one parent, of which neither ended the other."""
    known = {term.uid: term for term in terms}
    ordered = sorted(known.values(), key=lambda term: term.uid)
    for one, other in combinations(ordered, 2):
        if one.number != other.number and one.parent != other.parent:
            continue
        if one.uid not in _ancestors(other, known) and other.uid not in _ancestors(one, known):
            yield one, other


def is_over(standing: Standing, terms: Iterable[Term]) -> bool:
    """Whether these terms ended the reign of a root, or the path before its last tick."""
    return any(
        (standing.role is Role.ROOT and term.parent == standing.term)
        or (standing.path and is_past(standing.path[-1], term))
        for term in terms
    )


def is_past(tick: Tick, successor: Term) -> bool:
    """Whether a tick lies beyond, or beside, the fork at which its term was ended."""
    if successor.parent != tick.term or successor.fork is None:
        return False
    if tick.tick_id == successor.fork:
        return tick.chain != successor.fork_chain
    return tick.tick_id > successor.fork


def lies_below(tick: Tick, standing: Standing) -> bool:
    """Whether a tick is older than all that a node still has, as its terms tell.

    Ticks leave with their events, so a chain may have nothing to be compared with.
    """
    first = standing.path[0]
    if first.prev is None or tick.term == first.term:
        return first.prev is not None and tick.tick_id < first.tick_id
    known = {term.uid: term for term in standing.terms}
    term = known.get(first.term)
    while term is not None and term.parent != tick.term:
        term = known.get(term.parent or "")
    return term is not None and not is_past(tick, term)


def last_common(subscriber: Standing, provider: Standing) -> Tick | None:
    """Return the f of "diverged at f", or None if the two have no tick in common."""
    shared = _chains(provider)
    return next((tick for tick in reversed(subscriber.path) if tick.chain in shared), None)


def _is_retained(tick: Tick, provider: Standing) -> bool:
    ids = [held.tick_id for held in provider.path]
    if provider.first_retained not in ids:
        return True
    return ids.index(tick.tick_id) >= ids.index(provider.first_retained)


def _chains(standing: Standing) -> frozenset[str]:
    return frozenset(tick.chain for tick in standing.path)


def _ancestors(term: Term, known: dict[str, Term]) -> set[str]:
    found: set[str] = set()
    parent = term.parent
    while parent is not None and parent not in found:
        found.add(parent)
        parent = known[parent].parent if parent in known else None
    return found
