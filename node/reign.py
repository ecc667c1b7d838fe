"""Reign: how the tool hands the reign over, or gives it to a successor; what daemons do by themselves is only watched.

    fence ── raised ──> offer ──> the target copies, takes, promotes ──> it reigns
      └── not in time ──> given up            └── not in time ──> withdrawn: the old root goes on in a new term

Every call is a compare-and-swap in one database and may be repeated.  Where no daemon serves the target, the tool
does what it would do.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.db import connect
from cascade.errors import BallotError, CascadeError, TransientError
from cascade.node.copier import LOCK, Copier
from cascade.node.enroll import switch
from cascade.node.heir import Heir
from cascade.node.home import GENERATION
from cascade.node.pipe import carry_arrays, set_up_reader
from cascade.node.survey import DESCRIBE_SET, EXCHANGE, Links
from cascade.topology import steps as s
from cascade.topology.observe import View

log = logging.getLogger("cascade.node.reign")

BEGIN: LiteralString = "select cascade.begin_operation(%s, %s, 'switchover', %s, make_interval(secs => %s))"
RAISE: LiteralString = "select cascade.raise_fence(%s, %s, make_interval(secs => %s))"
DROP: LiteralString = "select cascade.drop_fence(%s, %s)"
OFFER: LiteralString = "select cascade.offer(%s, %s, %s, %s)"
WITHDRAW: LiteralString = "select cascade.withdraw_handover(%s, %s)"
OPEN_BALLOT: LiteralString = "select cascade.open_ballot(%s, %s, %s, %s, %s, %s, %s)"
CLOSE_BALLOT: LiteralString = "select cascade.close_ballot(%s, %s, %s)"
PROMOTE: LiteralString = "select cascade.promote(%s, %s, %s, %s, %s, %s, %s)"
COMPLETE: LiteralString = "select cascade.complete_fence(%s)"

#: One try to raise the fence keeps writers waiting no longer than this.
FENCE_WAIT_S = 0.3
#: So often a database is asked whether something has come about.
LOOK_S = 0.02
#: A daemon that is alive has done something by then.
GRACE_S = 1.0
#: Who has taken the reign has opened its term by then, or is in trouble.
TAKEN_S = 10.0
#: Nothing was copied for so long: it will not get better.
STUCK_S = 30.0


async def raise_fence(links: Links, step: s.Fence, wait_s: float) -> float:
    """Fence the root, trying again while somebody writes; return when the pause began, by this machine's clock.

    Given up after `wait_s`, with the names of those that write: the operation has then ended, and inserts are taken.
    """
    ends_at, delay_s = time.monotonic() + wait_s, 0.05
    await come_near(links, step.target, step.node, ends_at)
    await links.call(step.node, BEGIN, links.set, step.op_id, step.target, wait_s + 30.0)
    while True:
        began_at = time.monotonic()
        try:
            await links.call(step.node, RAISE, links.set, step.op_id, FENCE_WAIT_S)
            return began_at
        except TransientError as error:
            if time.monotonic() + delay_s > ends_at:
                with suppress(CascadeError):
                    await links.call(step.node, DROP, links.set, step.op_id)
                raise TransientError(
                    f"{step.node} could not be fenced within {wait_s:g} s, and takes inserts again: {error.args[0]}",
                    hint="End the transaction that is named, or wait longer: --wait.",
                ) from error
            log.info("set %s: %s", links.set, error.args[0])
        await asyncio.sleep(delay_s * random.uniform(0.8, 1.2))
        delay_s = min(2 * delay_s, 1.0)


async def come_near(links: Links, target: str, root: str, ends_at: float) -> None:
    """Wait until the target has what the root has now, so that writers need not wait for that."""
    aim, helped_at = (await links.view(root)).tick.tick_id, time.monotonic()
    while (tick := (await links.view(target)).tick.tick_id) < aim:
        if time.monotonic() > ends_at:
            raise TransientError(
                f"{target} stands at tick {tick}, {root} at {aim} already: writers would have to wait",
                hint="Wait until it has caught up, or longer: --wait.",
            )
        if time.monotonic() - helped_at > GRACE_S:
            await help_heir(links, target)
            helped_at = time.monotonic()
        await asyncio.sleep(LOOK_S)


async def offer(links: Links, step: s.Offer) -> None:
    """Close the term and offer the reign; from here on it only goes forward, or is withdrawn."""
    await links.call(step.node, OFFER, links.set, step.op_id, step.to, step.uid)


async def await_promotion(links: Links, step: s.AwaitPromotion, wait_s: float) -> None:
    """Wait until the target reigns; after `wait_s` the offer is withdrawn, if it was not taken.

    One that took it and does not reign yet is waited for as long again, and for TAKEN_S at least: it may be on its way.
    """
    began_at = helped_at = time.monotonic()
    generation: int | None = None
    while True:
        try:
            # A promotion raises the generation; copying does not, and asking for it costs next to nothing.
            if (now := await links.call(step.node, GENERATION, links.set)) != generation:
                generation = now
                if _reigns(await links.view(step.node), step.uid):
                    return
            if time.monotonic() - helped_at > GRACE_S:
                await help_heir(links, step.node)
                helped_at = time.monotonic()
        except TransientError as error:
            log.info("set %s: %s: %s", links.set, step.node, error.args[0])
        if time.monotonic() - began_at > wait_s and await withdraw(links, step):
            raise TransientError(
                f"{step.node} did not take the reign within {wait_s:g} s; {step.old} goes on in a new term",
                hint=f"See why {step.node} does not copy: cascade status.",
            )
        if time.monotonic() - began_at > wait_s + max(wait_s, TAKEN_S):
            raise TransientError(
                f"{step.node} has taken the reign from {step.old}, and does not reign; nobody can write meanwhile",
                hint=f"Have it answer, and run this again.  If it is lost: "
                f"cascade failover {links.set} --dead {step.node} --dry-run shows what that would mean.",
            )
        await asyncio.sleep(LOOK_S)


def _reigns(view: View, uid: str) -> bool:
    return view.role.is_root and any(term.uid == uid for term in view.terms)


async def withdraw(links: Links, step: s.AwaitPromotion) -> bool:
    """Take the offer back; False when the target has taken it."""
    old = await links.view(step.old)
    if old.offer is None or old.offer.state != "offered":
        return False
    await links.call(step.old, WITHDRAW, links.set, old.offer.op_id)
    return True


async def end_operation(links: Links, step: s.Abort) -> None:
    """End what was left open at a root: withdraw what it offered, or drop its fence."""
    view = await links.view(step.node)
    if view.offer is not None and view.offer.state == "offered":
        await links.call(step.node, WITHDRAW, links.set, view.offer.op_id)
    else:
        await links.call(step.node, DROP, links.set, step.op_id)


async def help_heir(links: Links, node: str) -> None:
    """Copy and take the reign for a node whose daemon does not; errors are its own, and it may do better later."""
    home = links.home(node)
    try:
        await copy_some(links, node)
        await Heir(home).turn(await links.connection(node))
    except CascadeError as error:
        log.info("set %s: %s does not get on: %s", links.set, node, error.args[0])


async def copy_some(links: Links, node: str) -> bool:
    """Copy for a node what its provider has, unless its daemon does; True when anything was copied."""
    home, copier = links.home(node), Copier(links.home(node))
    local = await home.connect("operator")
    try:
        carry_arrays(local)
        me = await home.describe(local)
        if me.provider is None or not await home.call(local, LOCK, me.queue_id):
            return False
        provider = await connect(links.address(me.provider), service=f"{node}/operator")
        try:
            await set_up_reader(provider, within_s=home.link_timeout_s)
            copier.adapt(provider)
            me, _ = await home.join(local, provider, me)
            position, copied = (me.tick_id, me.chain), False
            while (found := await copier.turn(local, provider, me, *position)) is not None:
                position, copied = (found.to_tick, found.to_chain), True
            return copied
        finally:
            provider.pgconn.finish()
    finally:
        local.pgconn.finish()


async def catch_up(links: Links, step: s.CatchUp) -> None:
    """Have the chosen successor copy from the most advanced carrier, and wait for it as long as it gets on."""
    view = await links.view(step.node)
    if view.provider != step.provider:
        # Whom it copied from is most likely the root that is lost.
        await switch(links.home(step.node), step.provider, tells_old=False)
    tick, moved_at = view.tick.tick_id, time.monotonic()
    while tick < step.tick_id:
        if time.monotonic() - moved_at > GRACE_S:
            await copy_some(links, step.node)
        now = (await links.view(step.node)).tick.tick_id
        if now > tick:
            tick, moved_at = now, time.monotonic()
        elif time.monotonic() - moved_at > STUCK_S:
            raise TransientError(f"{step.node} does not get on at tick {tick}, copying from {step.provider}")
        else:
            await asyncio.sleep(LOOK_S)


async def open_ballots(links: Links, step: s.OpenBallots, known: str | None) -> None:
    """Announce a promotion everywhere, at the candidate first; none of them copies from then on.

    Whoever knows of another one, or of a newer term than `known`, or stands beyond the fork by now, refuses it.
    """
    about = (step.number, step.uid, step.node, *place(step.fork))
    for node in step.nodes:
        await links.call(node, OPEN_BALLOT, links.set, *about, known)


def place(tick: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return id and chain of a tick."""
    return int(tick["tick_id"]), bytes.fromhex(str(tick["chain"]).removeprefix("\\x"))


async def close_ballots(links: Links, step: s.CloseBallots) -> None:
    """End an announcement, at the candidate first."""
    for node in step.nodes:
        await links.call(node, CLOSE_BALLOT, links.set, step.number, step.uid)


async def promote(links: Links, step: s.Promote, facts: Mapping[str, Any], surveyed: Iterable[View]) -> None:
    """Make a carrier the root, unless another promotion was announced to it, or this one taken back, meanwhile.

    It is told where the others stand, now that those who were asked copy nothing: some may be beside the fork.  And it
    must know the terms that it ends, or its own would stand beside them: whoever knows one teaches it.
    """
    views = {view.node: view for view in surveyed}
    for node in step.nodes:
        views[node] = await links.view(node)
    if unbound := [node for node in step.nodes if all(ballot.uid != step.uid for ballot in views[node].ballots)]:
        raise BallotError(
            f"set {links.set}: {', '.join(unbound)} no longer waits for the promotion of {step.node}",
            hint="Somebody else fails over at the same time: plan again.",
        )
    view = views.pop(step.node)
    other = next((b for b in view.ballots if b.uid != step.uid and b.number >= step.number), None)
    if other is not None:
        raise BallotError(
            f"set {links.set}: {other.candidate} is about to be promoted, too, under number {other.number}",
            hint="Somebody else fails over at the same time: plan again.",
        )
    teachers = {term.uid: other.node for other in views.values() for term in other.terms}
    for teacher in sorted({teachers[uid] for uid in teachers.keys() - {term.uid for term in view.terms}}):
        known = await links.call(teacher, DESCRIBE_SET, links.set)
        await links.call(step.node, EXCHANGE, links.set, Jsonb(known["terms"]), view.set_uid)
    if view.role.is_root:
        await links.call(step.node, COMPLETE, links.set)
    positions = {name: [other.tick.tick_id, other.tick.chain] for name, other in views.items() if other.is_carrier}
    told = Jsonb({**facts, "positions": positions})
    arguments = (step.uid, step.number, step.cause, *place(step.fork), told)
    await links.call(step.node, PROMOTE, links.set, *arguments)
