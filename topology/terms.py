"""Ticks and terms as the databases report them, and which ticks lie on the path of which term.

A term begins at a fork: the last tick of its parent that counts.  Following the parents from a term
gives its path; a tick of a term on the path is on it too, unless it lies beyond the fork where the path
left that term.  A chain proves everything below it, so two ticks of one id with different chains differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

#: Ids of ticks and events hold the number of their term above this.
TERM_SPAN = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A tick; `row` is all of it, as the database writes it."""

    tick_id: int
    term_uid: str
    chain: str
    event_seq: int
    row: Mapping[str, Any] = field(hash=False, compare=False, repr=False)

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Read a tick as describe_set() has it."""
        return cls(
            tick_id=int(row["tick_id"]),
            term_uid=str(row["term_uid"]),
            chain=str(row["chain"]),
            event_seq=int(row["event_seq"]),
            row=dict(row),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The reign of one root; the first has neither parent nor fork."""

    uid: str
    number: int
    node: str
    parent_uid: str | None = None
    fork: Tick | None = None
    cause: str = "created"
    reason: str | None = None
    at: str | None = None
    #: The term that an operator kept instead, where two excluded one another.
    voided_by: str | None = None

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Read a term as describe_set() has it."""
        return cls(
            uid=str(row["uid"]),
            number=int(row["number"]),
            node=str(row["node"]),
            parent_uid=row.get("parent_uid"),
            fork=Tick.parse(row["fork"]) if row.get("fork") else None,
            cause=str(row.get("cause") or "created"),
            reason=row.get("reason"),
            at=row.get("at"),
            voided_by=row.get("voided_by"),
        )


def tips(terms: Mapping[str, Term]) -> list[Term]:
    """Return the terms that no other has ended: one, or the set is split."""
    valid = [term for term in terms.values() if term.voided_by is None]
    ended = {term.parent_uid for term in valid}
    return sorted((term for term in valid if term.uid not in ended), key=lambda term: term.uid)


def path(terms: Mapping[str, Term], uid: str | None) -> list[Term]:
    """Return a term and all that led to it, the newest first, as far as they are known."""
    found: list[Term] = []
    while uid is not None and uid in terms and len(found) <= len(terms):
        found.append(terms[uid])
        uid = found[-1].parent_uid
    return found


def is_past(tick: Tick, fork: Tick) -> bool:
    """Whether a tick of the fork's own term lies beyond the fork, or beside it."""
    return fork.tick_id < tick.tick_id or (fork.tick_id == tick.tick_id and fork.chain != tick.chain)


def left_at(tick: Tick, terms: Mapping[str, Term], tip: Term) -> Tick | None:
    """Return the fork at which the path to `tip` left the way to this tick; None while the tick is on the path."""
    way = path(terms, tip.uid)
    on_way = {term.uid for term in way}
    at, uid = tick, tick.term_uid
    while uid not in on_way:
        term = terms.get(uid)
        if term is None or term.fork is None or term.parent_uid is None:
            return way[-1].fork or at
        at, uid = term.fork, term.parent_uid
    index = next(number for number, term in enumerate(way) if term.uid == uid)
    older = {term.uid for term in way[index + 1 :]}
    # A term may begin in an older one than its parent, of which nobody had a tick: then it cuts off all of its parent.
    forks = [term.fork for term in way[:index] if term.fork is not None]
    cuts = [f for f in forks if f.term_uid in older or (f.term_uid == uid and is_past(at, f))]
    return min(cuts, key=lambda fork: fork.tick_id, default=None if at is tick else at)
