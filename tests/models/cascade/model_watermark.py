"""M2 and M2b: who may truncate what, while nodes move, come, go and are restored.

R is the root and has every tick from the start; A and B are branches below it.  The third member is N,
which moves between A and B, or X, which is added later.  A tell is remembered for ever once it was sent:
the root may hear it late, out of order, again, or never; a daemon that should be dead speaks this way
too, and a restart between commit and tell is a tell that never came.  Providers pass tells on
unchanged, so the way they take plays no part.  What must hold in every state:

- no carrier has truncated a tick that a live member still needs;
- the row of no live member is below the published watermark, so nobody is blamed for what is gone;
- a dropped member holds nothing back.

Bounds: 2 ticks, 4 nodes; per world the number of moves, restores, drops and additions; DEEPER has 3
ticks and takes half a minute.  A restored node counts as live again once the root has taken it back;
until then it may be told "expired".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from tests.models.cascade.explore import Result, explore

ROOT, A, B, THIRD = 0, 1, 2, 3
CARRIERS = (ROOT, A, B)


class Rule(StrEnum):
    """The rules that can be taken away, one at a time."""

    FLAT = "every member is told of by itself, not by its subtree"
    MAXIMUM = "the root keeps the maximum it was told"
    GENERATION = "tells carry the generation of the join"
    GENERATION_FROM_ROOT = "the root issues the generation of a join"
    MEMBER_FIRST = "a member is inserted before its snapshot is taken"
    DROPPED_REFUSED = "tells of a dropped member are refused"
    DROPPED_IGNORED = "a dropped member is not counted"
    NEVER_BACK = "the watermark never goes back"
    TOLD_AFTER_COMMIT = "a position is told after it was committed"


class Life(StrEnum):
    """Where the third member stands."""

    ABSENT = "absent"
    AWAITED = "awaited"
    """Either the root has a row for it, or it has its snapshot, but not both."""
    IN = "in"
    RESTORED = "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How much may happen, and which rule is missing."""

    name: str
    ticks: int = 2
    moves: int = 0
    restores: int = 0
    drops: int = 0
    third: str = "N"
    without: Rule | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes, in order."""
        return ("R", "A", "B", self.third)


class Row(NamedTuple):
    """A member as the root's table has it."""

    generation: int
    position: int
    is_dropped: bool = False


class Tell(NamedTuple):
    """What a node says of a member: it has applied everything up to here."""

    member: int
    generation: int
    position: int


class State(NamedTuple):
    """Positions and truncated ticks by node; rows by member, None where there is none."""

    positions: tuple[int, ...]
    truncated: tuple[int, ...]
    rows: tuple[Row | None, ...]
    life: Life
    provider: int = A
    generation: int = 0
    watermark: int = 0
    published: int = 0
    """The highest watermark any carrier may still find in its log."""
    tells: frozenset[Tell] = frozenset()
    registered: tuple[int | None, ...] = (None, 0, None)
    """Only without flat members: what each carrier believes of the third node."""
    moves: int = 0
    restores: int = 0
    drops: int = 0
    wrong: str | None = None


MOVE = World(name="move", moves=2, drops=1)
RESTORE = World(name="restore", restores=2)
MIXED = World(name="mixed", moves=1, restores=2, drops=1)
ADD = World(name="add", drops=1, third="X")
WORLDS = (MOVE, RESTORE, MIXED, ADD)
DEEPER = tuple(replace(world, name=f"{world.name}, 3 ticks", ticks=3) for world in (MOVE, RESTORE, ADD))

CAUGHT_IN = {
    Rule.FLAT: MOVE,
    Rule.MAXIMUM: MOVE,
    Rule.GENERATION: replace(RESTORE, ticks=1),
    Rule.GENERATION_FROM_ROOT: replace(RESTORE, ticks=1),
    Rule.MEMBER_FIRST: ADD,
    Rule.DROPPED_REFUSED: MOVE,
    Rule.DROPPED_IGNORED: MOVE,
    Rule.NEVER_BACK: replace(RESTORE, ticks=1),
    Rule.TOLD_AFTER_COMMIT: MOVE,
}
"""The world in which the absence of each rule shows."""


def check(world: World, *, limit: int = 400_000) -> Result:
    """Explore one world; with all rules, tells that can change nothing any more are forgotten."""
    canonical = _forget_idle_tells if world.without is None else _as_it_is
    return explore(start(world), partial(steps, world), partial(violated, world), limit, canonical)


def check_without(rule: Rule) -> Result:
    """Explore the world that needs a rule, without it."""
    return check(replace(CAUGHT_IN[rule], without=rule))


def start(world: World) -> State:
    """Nobody has copied anything; N is a member from the start, X is not."""
    is_here = world.third == "N"
    here = Row(0, 0)
    counts_third = is_here and world.without is not Rule.FLAT
    return State(
        positions=(world.ticks, 0, 0, 0),
        truncated=(0, 0, 0),
        rows=(None, here, here, here if counts_third else None),
        life=Life.IN if is_here else Life.ABSENT,
    )


def _as_it_is(state: State) -> State:
    return state


def _forget_idle_tells(state: State) -> State:
    """A tell at or below its row, of an older join, or of a dropped member, is refused for ever."""
    return state._replace(tells=frozenset(tell for tell in state.tells if _raises(state.rows[tell.member], tell)))


def _raises(row: Row | None, tell: Tell) -> bool:
    if row is None:
        return True
    return not row.is_dropped and tell.generation == row.generation and tell.position > row.position


def steps(world: World, state: State) -> Iterator[tuple[str, State]]:
    """List everything that can happen next."""
    yield from _copy(world, state)
    yield from _tell(world, state)
    yield from _hear(world, state)
    yield from _publish(world, state)
    yield from _truncate(world, state)
    if world.without is Rule.FLAT:
        yield from _move_by_registering(world, state)
    else:
        yield from _move(world, state)
    yield from _drop(world, state)
    yield from _restore(world, state)
    yield from _add(world, state)


# Copying and telling


def _copy(world: World, state: State) -> Iterator[tuple[str, State]]:
    for node in (A, B, THIRD):
        provider = state.provider if node == THIRD else ROOT
        reached = state.positions[node]
        is_held = state.truncated[provider] <= reached < state.positions[provider]
        if is_held and (node != THIRD or state.life is Life.IN):
            names = world.names()
            name = f"{names[node]} copies {reached + 1} from {names[provider]}"
            yield name, state._replace(positions=_put(state.positions, node, reached + 1))


def _tell(world: World, state: State) -> Iterator[tuple[str, State]]:
    for member in (A, B, THIRD):
        if member == THIRD and state.life is not Life.IN:
            continue
        if member == THIRD and world.without is Rule.FLAT:
            yield from _tell_provider(world, state)
            continue
        tell = Tell(member, state.generation if member == THIRD else 0, _position_to_tell(world, state, member))
        if tell not in state.tells:
            yield f"{world.names()[member]} tells {tell.position}", state._replace(tells=state.tells | {tell})


def _position_to_tell(world: World, state: State, member: int) -> int:
    reached = state.positions[member]
    if world.without is Rule.TOLD_AFTER_COMMIT:
        return min(reached + 1, world.ticks)
    below = state.registered[member] if world.without is Rule.FLAT else None
    return reached if below is None else min(reached, below)


def _tell_provider(world: World, state: State) -> Iterator[tuple[str, State]]:
    reached, to = state.positions[THIRD], state.provider
    if state.registered[to] not in (None, reached):
        told = state._replace(registered=_put(state.registered, to, reached))
        yield f"{world.third} tells {world.names()[to]} {reached}", told


def _hear(world: World, state: State) -> Iterator[tuple[str, State]]:
    for tell in sorted(state.tells):
        row = state.rows[tell.member]
        heard = _merged(world, row, tell) if row is not None else None
        if heard not in (None, row):
            name = f"R hears {world.names()[tell.member]} at {tell.position}, join {tell.generation}"
            yield name, state._replace(rows=_put(state.rows, tell.member, heard))


def _merged(world: World, row: Row, tell: Tell) -> Row:
    """What becomes of a row when a tell is heard."""
    is_refused = row.is_dropped and world.without is not Rule.DROPPED_REFUSED
    if is_refused or (tell.generation != row.generation and world.without is not Rule.GENERATION):
        return row
    if world.without is Rule.MAXIMUM:
        return Row(row.generation, tell.position)
    return Row(row.generation, max(row.position, tell.position))


def _publish(world: World, state: State) -> Iterator[tuple[str, State]]:
    live = min(row.position for row in state.rows if row is not None and not row.is_dropped)
    counted = min(row.position for row in state.rows if row is not None)
    lowest = counted if world.without is Rule.DROPPED_IGNORED else live
    watermark = lowest if world.without is Rule.NEVER_BACK else max(lowest, state.watermark)
    wrong = "a dropped member holds the watermark back" if watermark < live else None
    if watermark != state.watermark or wrong:
        published = max(watermark, state.published)
        yield f"R publishes {watermark}", state._replace(watermark=watermark, published=published, wrong=wrong)


def _truncate(world: World, state: State) -> Iterator[tuple[str, State]]:
    """A carrier obeys the watermark when its own copying reaches it, soon or late."""
    for node in CARRIERS:
        upto = min(state.published, state.positions[node])
        if state.truncated[node] < upto:
            cut = state._replace(truncated=_put(state.truncated, node, upto))
            yield f"{world.names()[node]} truncates {upto}", cut


# What an operator does


def _move(world: World, state: State) -> Iterator[tuple[str, State]]:
    if state.moves < world.moves and state.life is Life.IN:
        to = B if state.provider == A else A
        yield f"{world.third} switches to {world.names()[to]}", state._replace(provider=to, moves=state.moves + 1)


def _move_by_registering(world: World, state: State) -> Iterator[tuple[str, State]]:
    """The most careful order there is: register at B, switch, then drop at A."""
    if state.registered[B] is None and state.provider == A:
        reached = state.positions[THIRD]
        yield f"B registers {world.third} at {reached}", state._replace(registered=_put(state.registered, B, reached))
    elif state.provider == A:
        yield f"{world.third} switches to B", state._replace(provider=B)
    elif state.registered[A] is not None:
        yield f"A forgets {world.third}", state._replace(registered=_put(state.registered, A, None))


def _drop(world: World, state: State) -> Iterator[tuple[str, State]]:
    row = state.rows[THIRD]
    if state.drops < world.drops and row is not None and not row.is_dropped:
        dropped = _put(state.rows, THIRD, row._replace(is_dropped=True))
        yield f"R drops {world.third}", state._replace(rows=dropped, drops=state.drops + 1)


def _restore(world: World, state: State) -> Iterator[tuple[str, State]]:
    """A backup is put back; then the root takes the node back in, with a new generation, or not."""
    name, row, reached = world.third, state.rows[THIRD], state.positions[THIRD]
    if state.life is Life.IN and state.restores < world.restores:
        for older in range(reached):
            restored = state._replace(positions=_put(state.positions, THIRD, older), life=Life.RESTORED)
            yield f"{name} is restored from a backup at {older}", restored._replace(restores=state.restores + 1)
    elif state.life is Life.RESTORED and row is not None:
        if row.is_dropped or not _is_still_held(world, state, reached):
            yield f"{name} joins again: {'dropped' if row.is_dropped else 'expired'}", state
            return
        generation = _next_generation(world, row)
        rows = _put(state.rows, THIRD, Row(generation, reached))
        joined = state._replace(rows=rows, life=Life.IN, generation=generation)
        yield f"{name} joins again at {reached}, join {generation}", joined


def _is_still_held(world: World, state: State, position: int) -> bool:
    if world.without is Rule.NEVER_BACK:
        return state.truncated[state.provider] <= position
    return state.watermark <= position


def _next_generation(world: World, row: Row) -> int:
    if world.without is Rule.GENERATION:
        return 0
    # The backup is older than every join, so a node that counts for itself counts the same again.
    return 1 if world.without is Rule.GENERATION_FROM_ROOT else row.generation + 1


def _add(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Add X: its row first, then its snapshot; the other way round without the rule."""
    row = state.rows[THIRD]
    is_snapshot_first = world.without is Rule.MEMBER_FIRST
    if state.life is Life.ABSENT and not is_snapshot_first:
        yield _insert_row(world, state, state.watermark, Life.AWAITED)
    elif state.life is Life.ABSENT:
        yield from _take_snapshot(world, state, 0, Life.AWAITED)
    elif state.life is Life.AWAITED and row is None:
        yield _insert_row(world, state, state.positions[THIRD], Life.IN)
    elif state.life is Life.AWAITED and row is not None and not row.is_dropped:
        yield from _take_snapshot(world, state, row.position, Life.IN)


def _insert_row(world: World, state: State, position: int, life: Life) -> tuple[str, State]:
    rows = _put(state.rows, THIRD, Row(0, position))
    return f"R adds {world.third} at {position}", state._replace(rows=rows, life=life)


def _take_snapshot(world: World, state: State, at_least: int, life: Life) -> Iterator[tuple[str, State]]:
    """Copy what a carrier holds, from its first retained tick that is not below the row."""
    for carrier in CARRIERS:
        first = max(state.truncated[carrier], at_least)
        if first <= state.positions[carrier]:
            # Copying goes on from A or B; after a snapshot of the root, from A.
            provider = A if carrier == ROOT else carrier
            taken = state._replace(positions=_put(state.positions, THIRD, first), life=life, provider=provider)
            yield f"{world.third} takes a snapshot of {world.names()[carrier]} at {first}", taken


# What must hold


def violated(world: World, state: State) -> str | None:
    """Say what is wrong with a state."""
    names = world.names()
    for member in _live(world, state):
        for carrier in CARRIERS:
            if state.truncated[carrier] > state.positions[member]:
                needed = state.positions[member] + 1
                return f"{names[member]} still needs {needed}, which {names[carrier]} has truncated"
        row = state.rows[member]
        if row is not None and row.position < state.watermark and world.without in (None, Rule.MAXIMUM):
            # Without any other rule the search goes on, to show what is truncated in the end.
            return f"{names[member]} is shown at {row.position}, below the watermark {state.watermark}"
    return state.wrong


def _live(world: World, state: State) -> Iterator[int]:
    yield from (A, B)
    row = state.rows[THIRD]
    is_counted = world.without is Rule.FLAT or (row is not None and not row.is_dropped)
    if state.life is Life.IN and is_counted:
        yield THIRD


def _put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
