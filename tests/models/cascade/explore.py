"""A breadth-first search over every interleaving of a small model.

A model is an initial state, a function that lists the steps possible in a state, and a function that
says what is wrong with a state.  States are hashable values.  The search is deterministic as long as
the steps of a state are listed in the same order each time, and breadth-first, so the first
counter-example it meets is a shortest one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a search saw; `trace` is the way to the first wrong state, or None."""

    states: int
    is_exhausted: bool
    names: frozenset[str]
    violation: str | None = None
    trace: list[str] | None = None

    def __str__(self) -> str:
        """Tell the counter-example as a numbered story."""
        if self.trace is None:
            return f"{self.states} states, {'all there are' if self.is_exhausted else 'stopped at the limit'}"
        told = [f"{n}. {name}" for n, name in enumerate(self.trace, start=1)]
        return "\n".join([*told, f"=> {self.violation}"])


def unchanged(state: S) -> S:
    """The canonical form for models that need none."""
    return state


def explore(
    initial: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    violated: Callable[[S], str | None],
    limit: int,
    canonical: Callable[[S], S] = unchanged,
) -> Result:
    """Visit every state that can be reached, nearest first, until one is wrong.

    Gives up once `limit` states are known and says so by `is_exhausted`.  `canonical` maps
    states that behave alike to one of them; `names` holds every step seen on the way.
    """
    start = canonical(initial)
    came_from: dict[S, tuple[S, str] | None] = {start: None}
    names: set[str] = set()
    level = [start]
    while level:
        following: list[S] = []
        for state in level:
            wrong = violated(state)
            if wrong is not None:
                return _stopped(came_from, names, state, wrong)
            for name, reached in steps(state):
                names.add(name)
                successor = canonical(reached)
                if successor not in came_from:
                    came_from[successor] = (state, name)
                    following.append(successor)
            if len(came_from) > limit:
                return Result(states=len(came_from), is_exhausted=False, names=frozenset(names))
        level = following
    return Result(states=len(came_from), is_exhausted=True, names=frozenset(names))


def _stopped(came_from: dict[S, tuple[S, str] | None], names: set[str], state: S, wrong: str) -> Result:
    return Result(
        states=len(came_from),
        is_exhausted=False,
        names=frozenset(names),
        violation=wrong,
        trace=_way_to(came_from, state),
    )


def _way_to(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (link := came_from[state]) is not None:
        state, name = link
        way.append(name)
    return way[::-1]
