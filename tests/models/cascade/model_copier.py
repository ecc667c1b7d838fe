"""M7: a copier with a batch in hand while the world changes around it.

N copies from A, or from B.  Two daemons, D1 and D2, serve N at once and may die at any moment.  A turn
of a copier is five steps, and anything may happen between them:

    read own row, list ticks -> read rows -> look at the provider again -> commit -> (reply lost: again)

Meanwhile N is paused, resumed, switched, dropped, added again, learns a term, copies with the other
daemon; A truncates, is resurrected, opens a term; or a whole site, A and N, is restored from a backup.
What must hold of the log of N in every state:

- every tick links to the one before by its chain, so nothing is skipped, doubled or mixed;
- every batch is whole;
- nothing lands while N is paused or dropped, after it was switched, or past a known end of a term;
- no batch lands that was looked at for the last time after the provider had dropped N.

Bounds: at most four different ticks on two providers, batches of one tick, and per world how often each
thing may happen.  WORLDS takes a second or two; DEEPER takes half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from tests.models.cascade.explore import Result, explore
from tests.models.cascade.join import Tick

FORK = 1
"""The tick after which B is promoted."""
OPENING = 101
"""The id of the opening tick of the next term."""


class Rule(StrEnum):
    """The rules that can be taken away, one at a time."""

    SWAP_POSITION = "the commit compares the position"
    SWAP_TERM = "the commit compares the term"
    SWAP_PROVIDER = "the commit compares the provider"
    SWAP_GENERATION = "the commit compares the generation"
    LINK = "the first tick links to the own position"
    LINK_BY_TERM = "the link compares term and id, not the id alone"
    LOOK_RETAINED = "the first retained tick is read again"
    LOOK_PATH = "the provider's path is read again"
    LOOK_MEMBER = "the membership is read again"
    LOOK_LAST = "the second look comes after the last row"
    SAME_CONNECTION = "the second look uses the connection that read the rows"
    FORGET = "a batch does not outlive the connection to the own database"
    ONE_TRANSACTION = "rows and position are one transaction"


class Phase(StrEnum):
    """How far a daemon is with its turn."""

    IDLE = "idle"
    LISTED = "listed"
    READ = "read"
    READY = "ready"
    STORED = "stored"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How much may happen, and which rule is missing."""

    name: str
    promotions: int = 0
    switches: int = 0
    pauses: int = 0
    resurrections: int = 0
    drops: int = 0
    additions: int = 0
    opened_terms: int = 0
    site_restores: int = 0
    is_stubborn: bool = False
    """Whether daemons keep a batch when their own database is restored; the swap must hold even so."""
    without: Rule | None = None


class Provider(NamedTuple):
    """A carrier: its path, and the tick up to which its events are gone."""

    path: tuple[Tick, ...]
    truncated: int = 0
    has_member: bool = True


class Own(NamedTuple):
    """The row of N in its own database, and its log: ticks with whether all rows came."""

    position: int
    term: str
    provider: str
    generation: int
    log: tuple[tuple[Tick, bool], ...]
    is_paused: bool = False
    is_dropped: bool = False
    knows_end: bool = False


class Swap(NamedTuple):
    """What a daemon read of the own row, to be compared by the commit."""

    position: int
    term: str
    provider: str
    generation: int


class Daemon(NamedTuple):
    """What one process has in its memory."""

    phase: Phase = Phase.IDLE
    swap: Swap | None = None
    tick: Tick | None = None
    is_whole: bool = True
    was_member: bool = True


class State(NamedTuple):
    """The databases, the daemons, and what was used up of the bounds."""

    own: Own
    a: Provider
    b: Provider
    daemons: tuple[Daemon, ...] = (Daemon(), Daemon())
    promotions: int = 0
    switches: int = 0
    pauses: int = 0
    resurrections: int = 0
    drops: int = 0
    additions: int = 0
    opened_terms: int = 0
    site_restores: int = 0
    wrong: str | None = None


SWITCH = World(name="switch", promotions=1, switches=2, pauses=1, resurrections=1)
RETENTION = World(name="retention", drops=1, additions=1, pauses=1)
SITE = World(name="restored site", promotions=1, switches=1, resurrections=1, site_restores=1, is_stubborn=True)
PAUSED_SITE = replace(SITE, name="restored and paused site", pauses=1, is_stubborn=False)
TERMS = World(name="restored root", opened_terms=2, site_restores=1, is_stubborn=True)
WORLDS = (SWITCH, RETENTION, SITE, PAUSED_SITE, TERMS)
DEEPER = (
    replace(SWITCH, name="switch and retention", drops=1, additions=1),
    replace(PAUSED_SITE, name="restored site and retention", drops=1, additions=1),
    replace(TERMS, name="root restored twice", site_restores=2),
)

CAUGHT_IN = {
    Rule.SWAP_POSITION: SWITCH,
    Rule.SWAP_TERM: TERMS,
    Rule.SWAP_PROVIDER: SITE,
    Rule.SWAP_GENERATION: SWITCH,
    Rule.LINK: SWITCH,
    Rule.LINK_BY_TERM: TERMS,
    Rule.LOOK_RETAINED: RETENTION,
    Rule.LOOK_PATH: SWITCH,
    Rule.LOOK_MEMBER: RETENTION,
    Rule.LOOK_LAST: RETENTION,
    Rule.SAME_CONNECTION: SITE,
    Rule.FORGET: PAUSED_SITE,
    Rule.ONE_TRANSACTION: SWITCH,
}
"""The world in which the absence of each rule shows."""


def check(world: World, *, limit: int = 400_000) -> Result:
    """Explore one world."""
    return explore(start(world), partial(steps, world), violated, limit)


def check_without(rule: Rule) -> Result:
    """Explore the world that needs a rule, without it."""
    return check(replace(CAUGHT_IN[rule], without=rule))


def start(world: World) -> State:
    """A is one tick ahead of N and of B, unless its next tick is to open a term."""
    first = Tick(1, "u0", None, "u0/1")
    second = _after(first, "u0", 2)
    path = (first, second) if not world.opened_terms else (first,)
    own = Own(position=1, term="u0", provider="A", generation=0, log=((first, True),))
    return State(own, a=Provider(path), b=Provider((first,)))


def _after(tick: Tick, term: str, tick_id: int) -> Tick:
    return Tick(tick_id, term, tick.tick_id, f"{tick.chain} > {term}/{tick_id % 100}")


# A daemon's turn


def steps(world: World, state: State) -> Iterator[tuple[str, State]]:
    """List everything that can happen next."""
    for at, daemon in enumerate(state.daemons):
        yield from _turn(world, state, at)
        if daemon.phase is not Phase.IDLE:
            yield f"{_name(at)} dies and starts again", _with(state, at, Daemon())
    yield from _govern(world, state)
    yield from _disturb(world, state)


def _turn(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    is_look_last = world.without is not Rule.LOOK_LAST
    match state.daemons[at].phase:
        case Phase.IDLE:
            yield from _list(world, state, at)
        case Phase.LISTED:
            yield _read(state, at, Phase.READ) if is_look_last else _look(world, state, at, Phase.READ)
        case Phase.READ:
            yield _look(world, state, at, Phase.READY) if is_look_last else _read(state, at, Phase.READY)
        case Phase.READY | Phase.UNSURE:
            yield from _commit(world, state, at)
        case Phase.STORED:
            yield from _move_position(world, state, at)


def _list(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    """Read the own row, then the next tick at the provider, as far as the join allows."""
    own, provider = state.own, _provider(state, state.own.provider)
    tick = next((tick for tick in provider.path if tick.tick_id > own.position), None)
    is_joined = provider.has_member and provider.truncated <= own.position
    if tick is None or own.is_paused or own.is_dropped or not is_joined or (own.knows_end and _is_past_end(tick)):
        return
    if not _is_linked(world, own, provider, tick):
        yield f"{_name(at)} finds no link at {own.provider}", state
        return
    swap = Swap(own.position, own.term, own.provider, own.generation)
    listed = Daemon(Phase.LISTED, swap, tick)
    yield f"{_name(at)} lists {_short(tick)} at {own.provider}", _with(state, at, listed)


def _is_linked(world: World, own: Own, provider: Provider, tick: Tick) -> bool:
    """Whether the tick before is the own position; a position is a term and an id."""
    before = next(before for before in provider.path if before.tick_id == tick.prev)
    is_own_term = before.term == own.term or world.without is Rule.LINK_BY_TERM
    return (tick.prev == own.position and is_own_term) or world.without is Rule.LINK


def _read(state: State, at: int, phase: Phase) -> tuple[str, State]:
    """Read the rows: what was truncated or taken out meanwhile is missing without an error."""
    daemon = state.daemons[at]
    assert daemon.swap is not None and daemon.tick is not None
    provider = _provider(state, daemon.swap.provider)
    is_whole = daemon.tick in provider.path and provider.truncated < daemon.tick.tick_id
    read = daemon._replace(phase=phase, is_whole=is_whole)
    return f"{_name(at)} reads {'the rows' if is_whole else 'no rows'} of {_short(daemon.tick)}", _with(state, at, read)


def _look(world: World, state: State, at: int, phase: Phase) -> tuple[str, State]:
    """Look at the provider again: is the range still there, on its path, and N a member?"""
    daemon = state.daemons[at]
    assert daemon.swap is not None and daemon.tick is not None
    provider = _provider(state, daemon.swap.provider)
    is_good = (
        (provider.truncated <= daemon.swap.position or world.without is Rule.LOOK_RETAINED)
        and (daemon.tick in provider.path or world.without is Rule.LOOK_PATH)
        and (provider.has_member or world.without is Rule.LOOK_MEMBER)
    )
    if is_good:
        looked = daemon._replace(phase=phase, was_member=provider.has_member)
        return f"{_name(at)} looks again: good", _with(state, at, looked)
    return f"{_name(at)} looks again and throws the batch away", _with(state, at, Daemon())


def _commit(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    """Commit, with or without a reply.  A daemon that got none may send the batch again."""
    daemon = state.daemons[at]
    assert daemon.swap is not None and daemon.tick is not None
    again = " again" if daemon.phase is Phase.UNSURE else ""
    if not _may_swap(world, state.own, daemon.swap):
        yield f"{_name(at)} is refused {_short(daemon.tick)}{again}", _with(state, at, Daemon())
    elif world.without is Rule.ONE_TRANSACTION:
        stored = state._replace(own=_store(state.own, daemon))
        yield f"{_name(at)} commits the rows of {_short(daemon.tick)}", _with(stored, at, _at(daemon, Phase.STORED))
    else:
        done = state._replace(own=_move(_store(state.own, daemon), daemon.tick), wrong=_wrong(state.own, daemon))
        yield f"{_name(at)} commits {_short(daemon.tick)}{again}", _with(done, at, Daemon())
        lost = _with(done, at, _at(daemon, Phase.UNSURE))
        yield f"{_name(at)} commits {_short(daemon.tick)}{again}, the reply is lost", lost


def _move_position(world: World, state: State, at: int) -> Iterator[tuple[str, State]]:
    """Only without one transaction: the position follows the rows."""
    daemon = state.daemons[at]
    assert daemon.swap is not None and daemon.tick is not None
    if _may_swap(world, state.own, daemon.swap):
        moved = state._replace(own=_move(state.own, daemon.tick))
        yield f"{_name(at)} commits the position {_short(daemon.tick)}", _with(moved, at, Daemon())


def _may_swap(world: World, own: Own, swap: Swap) -> bool:
    return (
        (own.position == swap.position or world.without is Rule.SWAP_POSITION)
        and (own.term == swap.term or world.without is Rule.SWAP_TERM)
        and (own.provider == swap.provider or world.without is Rule.SWAP_PROVIDER)
        and (own.generation == swap.generation or world.without is Rule.SWAP_GENERATION)
    )


def _store(own: Own, daemon: Daemon) -> Own:
    assert daemon.tick is not None
    return own._replace(log=(*own.log, (daemon.tick, daemon.is_whole)))


def _move(own: Own, tick: Tick) -> Own:
    """Move the position; a tick of a new term brings the record of the term with it."""
    is_new = tick.term != own.term
    generation = own.generation + (1 if is_new else 0)
    knows_end = own.knows_end or is_new
    return own._replace(position=tick.tick_id, term=tick.term, generation=generation, knows_end=knows_end)


def _wrong(own: Own, daemon: Daemon) -> str | None:
    """What must not be true of a node at the moment a batch lands."""
    assert daemon.swap is not None and daemon.tick is not None
    landed = f"{_short(daemon.tick)} from {daemon.swap.provider} lands"
    if own.is_paused:
        return f"{landed} while N is paused"
    if own.is_dropped:
        return f"{landed} though N knows that it is dropped"
    if daemon.swap.provider != own.provider:
        return f"{landed} after the switch to {own.provider}"
    if own.knows_end and _is_past_end(daemon.tick):
        return f"{landed} though N knows that u0 ended before it"
    return None if daemon.was_member else f"{landed} though N was dropped there before the last look"


# What happens meanwhile


def _govern(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Whatever changes the row of N raises its generation."""
    own = state.own
    raised = own._replace(generation=own.generation + 1)
    if not own.knows_end and state.promotions:
        yield "N learns that u0 ended at u0/1", state._replace(own=raised._replace(knows_end=True))
    if own.is_paused:
        yield "N is resumed", state._replace(own=raised._replace(is_paused=False))
    elif state.pauses < world.pauses:
        yield "N is paused", state._replace(own=raised._replace(is_paused=True), pauses=state.pauses + 1)
    other = "B" if own.provider == "A" else "A"
    if state.switches < world.switches and _may_switch(own, _provider(state, other)):
        switched = raised._replace(provider=other)
        yield f"N is switched to {other}", state._replace(own=switched, switches=state.switches + 1)
    if not state.a.has_member and not own.is_dropped:
        yield "N is told that it is dropped", state._replace(own=raised._replace(is_dropped=True))


def _may_switch(own: Own, to: Provider) -> bool:
    """The join of the new provider: on path or behind, and its terms are known."""
    is_on_path = own.log[-1][0] in to.path or to.path[-1] in [tick for tick, _ in own.log]
    is_news = to.path[-1].term != "u0" and not own.knows_end
    return is_on_path and not is_news and not (own.knows_end and _is_past_end(to.path[-1]))


def _disturb(world: World, state: State) -> Iterator[tuple[str, State]]:
    """Whatever happens at the providers leaves N's own row as it is."""
    a, b = state.a, state.b
    first = b.path[0]
    if state.promotions < world.promotions:
        opened = Provider((first, _after(first, "u1", OPENING)))
        yield "B is promoted after u0/1", state._replace(b=opened, promotions=state.promotions + 1)
    elif state.resurrections < world.resurrections:
        yield "A is resurrected below B", state._replace(a=b, resurrections=state.resurrections + 1)
    if a.has_member and state.drops < world.drops:
        yield "the root drops N", state._replace(a=a._replace(has_member=False), drops=state.drops + 1)
    elif not a.has_member:
        yield from _without_member(world, state)
    if state.opened_terms < world.opened_terms and len(a.path) == 1:
        uid = ("u1", "v1")[state.opened_terms]
        opening = _after(first, uid, OPENING)
        path = (first, opening, _after(opening, uid, OPENING + 1))
        yield f"A opens term {uid}", state._replace(a=Provider(path), opened_terms=state.opened_terms + 1)
    if state.site_restores < world.site_restores:
        yield "A and N are restored from a backup", _restored(world, state)


def _restored(world: World, state: State) -> State:
    """Put A and N back.  The daemons live on, but their connections do not."""
    before = start(world)
    daemons = tuple(Daemon() if _forgets(world, daemon) else daemon for daemon in state.daemons)
    return state._replace(own=before.own, a=before.a, daemons=daemons, site_restores=state.site_restores + 1)


def _forgets(world: World, daemon: Daemon) -> bool:
    is_reading = daemon.phase in (Phase.LISTED, Phase.READ)
    is_cut = is_reading and daemon.swap is not None and daemon.swap.provider == "A"
    if is_cut and world.without is not Rule.SAME_CONNECTION:
        return True
    return not world.is_stubborn and world.without is not Rule.FORGET


def _without_member(world: World, state: State) -> Iterator[tuple[str, State]]:
    a, own = state.a, state.own
    if a.truncated < a.path[-1].tick_id:
        yield "A truncates everything", state._replace(a=a._replace(truncated=a.path[-1].tick_id))
    if state.additions < world.additions:
        added = own._replace(generation=own.generation + 1, is_dropped=False) if own.is_dropped else own
        back = state._replace(a=a._replace(has_member=True), own=added, additions=state.additions + 1)
        yield "the root adds N again", back


def violated(state: State) -> str | None:
    """Say what is wrong with a state."""
    log = state.own.log
    for (before, _), (tick, _) in pairwise(log):
        if tick.chain != f"{before.chain} > {_short(tick)}":
            return f"N has {_short(tick)} right after {_short(before)}"
    holes = [_short(tick) for tick, is_whole in log if not is_whole]
    return f"N has {holes[0]} without its rows" if holes else state.wrong


def _is_past_end(tick: Tick) -> bool:
    return tick.term == "u0" and tick.tick_id > FORK


def _provider(state: State, name: str) -> Provider:
    return state.a if name == "A" else state.b


def _at(daemon: Daemon, phase: Phase) -> Daemon:
    return daemon._replace(phase=phase)


def _with(state: State, at: int, daemon: Daemon) -> State:
    return state._replace(daemons=(*state.daemons[:at], daemon, *state.daemons[at + 1 :]))


def _name(at: int) -> str:
    return f"D{at + 1}"


def _short(tick: Tick) -> str:
    return f"{tick.term}/{tick.tick_id % 100}"
