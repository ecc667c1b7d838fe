"""Copier: copies ticks and their events from the provider, each transaction whole or not at all.

    standing by ── lock got ──> joining ── on path, behind ──> copying ──┐
        ^                        ^   └── another answer ──> stopped      │ switched, paused, dropped:
        └── connection lost ─────┴───────────────────────────────────────┘ the generation moved

On the subscriber one durable transaction holds the events, the ticks and the control events' effects.  It
lands only if provider, generation and position are what they were when the batch was fetched, and
the provider is asked once more, after the last event was read, whether everything is still held.

A small range, which is what there is while a node keeps up, takes two calls: one of the provider, which
reads the events and then looks once more, and one of the own database, a transaction by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, LiteralString

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import BallotError, JoinError, MovedOnError, RejoinError
from cascade.node.home import HURRY, Home, Standing
from cascade.node.pipe import Raw, carry_arrays, deadline, pipe, set_up_reader
from cascade.node.signals import Wakeups, listening

log = logging.getLogger("cascade.node.copier")

LOCK: LiteralString = "select pg_try_advisory_lock(1127303507, 1000000 + %s)"
FETCH: LiteralString = (
    "select to_tick, to_chain, events, ticks::text, query, version, last_tick,"
    " ids, times, txids, types, keys, payloads, headers, origins, origin_ids"
    " from cascade.fetch_copy(%s, %s, %s, %s, %s, %s, %s, %s)"
)
CHECK: LiteralString = "select cascade.check_copy(%s, %s, %s, %s, %s, %s)"
BEGIN: LiteralString = "select cascade.begin_copy(%s, %s, %s, %s, %s)"
FINISH: LiteralString = "select cascade.finish_copy(%s, %s::jsonb)"
STORE: LiteralString = "select cascade.store_copy(%s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s, %s, %s, %s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is copied at once, and how often the copier looks without being woken."""

    poll_s: float = 1.0
    standby_s: float = 2.0
    stopped_s: float = 5.0
    #: A provider whose trouble is its own is asked again after so long.
    asked_again_s: float = 1.0
    max_ticks: int = 1000
    max_events: int = 50_000
    #: A transaction is kept below about so many bytes, for standbys and logical decoding.
    max_bytes: int = 32 * 1024 * 1024
    #: A range of at most so many stored bytes, and an event per KiB of them, is fetched by one call, stored by another.
    small_bytes: int = 128 * 1024


@dataclass(frozen=True, slots=True)
class Range:
    """What the provider offers next: ticks as JSON text, the query for their events, and a few events themselves."""

    to_tick: int
    to_chain: bytes
    events: int
    ticks: str
    query: str
    version: int
    last_tick: int
    #: The events column by column, where the range is small; checked already.
    columns: tuple[Any, ...] | None


class Copier:
    """Copies a set's queue to a branch.  Two at once are harmless: one stands by, and the database decides."""

    def __init__(self, home: Home, *, pace: Pace | None = None) -> None:
        self.name = f"{home.set}/copier"
        self.home, self.pace = home, pace or Pace()
        self.wakeups = Wakeups()
        self.turned_at: float | None = None
        #: What keeps it from copying, for people; None while it copies.
        self.note: str | None = None
        self.events, self.bytes = 0, 0
        self._event_bytes = 400.0

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the provider until `stop` is set."""
        self.turned_at = None
        async with AsyncExitStack() as stack:
            local = await self.home.connect("copier")
            stack.push_async_callback(local.close)
            carry_arrays(local)
            await self.home.call(local, HURRY, self.home.lock_timeout)
            await stack.enter_async_context(
                listening(self.home.dsn, "cascade_node", self.wakeups, service=f"{self.home.set}/node")
            )
            await self._stand_by(local, stop)
            while not stop.is_set():
                me = await self.home.describe(local)
                try:
                    if me.is_stopped:
                        await self._rest(me)
                    if not me.is_stopped or me.is_kept_waiting:
                        await self._follow(local, me, stop)
                except (MovedOnError, RejoinError) as error:
                    log.info("set %s: %s", self.home.set, error.args[0])
                except BallotError as error:
                    await self._wait_for_term(str(error.args[0]))
                except JoinError as error:
                    # One that is kept waiting asks again and again, and is told the same.
                    level = logging.DEBUG if me.is_kept_waiting else logging.ERROR
                    log.log(level, "set %s: node %s stops: %s", self.home.set, me.node, error)

    async def _stand_by(self, local: AsyncConnection, stop: asyncio.Event) -> None:
        """Wait while another daemon serves this node; the lock ends with its session."""
        me = await self.home.describe(local)
        while not stop.is_set() and not await self.home.call(local, LOCK, me.queue_id):
            self.note = "another daemon serves this node"
            self.turned_at = time.monotonic()
            await self.wakeups.wait(self.pace.standby_s)
        self.note = None

    async def _rest(self, me: Standing) -> None:
        """Wait for somebody to resume, switch or add the node again."""
        self.note = "paused" if me.state == "paused" else f"stopped: {me.answer or 'it is the root'}"
        self.turned_at = time.monotonic()
        await self.wakeups.wait(self.pace.asked_again_s if me.is_kept_waiting else self.pace.stopped_s)

    async def _wait_for_term(self, why: str) -> None:
        """Copy nothing while somebody is being promoted; joining again tells of the new term."""
        log.info("set %s: %s", self.home.set, why)
        self.note, self.turned_at = why, time.monotonic()
        await self.wakeups.wait(self.pace.asked_again_s)

    async def _follow(self, local: AsyncConnection, me: Standing, stop: asyncio.Event) -> None:
        """Join the provider and copy from it until something changes."""
        assert me.provider is not None, "only a root has no provider, and rests"
        address = await self.home.address(local, me.provider)
        async with AsyncExitStack() as stack:
            provider = await connect(address, service=f"{me.node}/copier")
            stack.callback(provider.pgconn.finish)
            await set_up_reader(provider, within_s=self.home.link_timeout_s)
            self.adapt(provider)
            me, channel = await self.home.join(local, provider, me)
            await stack.enter_async_context(listening(address, channel, self.wakeups, service=f"{me.node}/listen"))
            self.note = None
            log.info("set %s: node %s copies from %s after tick %d", self.home.set, me.node, me.provider, me.tick_id)
            position = (me.tick_id, me.chain)
            while not stop.is_set():
                found = await self.turn(local, provider, me, *position)
                if found is not None:
                    position = (found.to_tick, found.to_chain)
                elif await self.home.generation(local) != me.generation:
                    return
                # A tick made since then announces itself, so there is no need to ask whether there is more.
                if found is None or found.to_tick == found.last_tick:
                    await self.wakeups.wait(self.pace.poll_s)

    async def turn(
        self, local: AsyncConnection, provider: AsyncConnection, me: Standing, tick_id: int, chain: bytes
    ) -> Range | None:
        """Copy what follows a tick, up to the limits; None when there is nothing."""
        found = await self.next_range(provider, me, tick_id, chain)
        if found is not None:
            await self.copy(local, provider, me, (tick_id, chain), found)
        self.turned_at = time.monotonic()
        return found

    def adapt(self, provider: AsyncConnection) -> None:
        """Say in which form events are wanted from the provider."""
        carry_arrays(provider)

    async def next_range(self, provider: AsyncConnection, me: Standing, tick_id: int, chain: bytes) -> Range | None:
        """Ask the provider what follows."""
        most = max(100, min(self.pace.max_events, int(self.pace.max_bytes / self._event_bytes)))
        limits = (self.pace.max_ticks, most, self.pace.small_bytes)
        arguments = (self.home.set, me.node, me.generation, tick_id, chain, *limits)
        with translated(), deadline(self.home.link_timeout_s, provider):
            row: Any = await (await provider.execute(FETCH, arguments, binary=True)).fetchone()
        return None if row is None else Range(*(*row[:7], None if row[7] is None else row[7:]))

    async def check(self, provider: AsyncConnection, me: Standing, after: tuple[int, bytes], found: Range) -> None:
        """Ask the provider, after the last event was read, whether they were all there."""
        await self.home.call(provider, CHECK, self.home.set, me.node, me.generation, *after, found.version)

    async def copy(
        self, local: AsyncConnection, provider: AsyncConnection, me: Standing, after: tuple[int, bytes], found: Range
    ) -> None:
        """Write one range in one transaction; after any error nothing of it is there, or all."""
        if found.columns is not None:
            begin = (self.home.set, me.provider, me.generation, *after)
            await self.home.call(local, STORE, *begin, found.ticks, *found.columns)
            self.events += found.events
            self.bytes += sum(len(column.data) for column in found.columns if isinstance(column, Raw))
            return
        self.doubt()
        with translated(), deadline(self.home.link_timeout_s, local, provider) as timer:
            async with local.transaction():
                cur = await local.execute(BEGIN, (self.home.set, me.provider, me.generation, *after))
                partition: Any = await cur.fetchone()
                size = await pipe(provider, found.query, local, partition[0], timer)
                # The look at the provider must come before the commit, not before the ticks.
                await asyncio.gather(
                    self.check(provider, me, after, found), local.execute(FINISH, (self.home.set, found.ticks))
                )
                timer.extend()
        self.events += found.events
        self.bytes += size
        self.learn(found.events, size)

    def doubt(self) -> None:
        """Ask for half as much next time, should this range not arrive: it may be more than the link can bear."""
        self._event_bytes *= 2

    def learn(self, events: int, size: int) -> None:
        """Note how large events are, when some have arrived."""
        self._event_bytes = max(50.0, size / events) if events else self._event_bytes / 2
