"""Sentinel: a root's doubt.  It asks every other member whether its term is over, and fences itself if it is.

    reigning ── a term ended ours, or stands beside it; the tail is lost ──> standing down ── trigger up ──> fenced
        ^                                                                                                     │
        └── an operation's fence expired                    branch of the new root <── nothing beyond the fork ┘

It asks at the start, after each reconnect and every few seconds.  Whatever the root accepts before it hears is
its tail: a fenced root with a tail waits for `cascade resurrect`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import CascadeError, ForeignSetError
from cascade.node.home import Home, check_set
from cascade.node.pipe import deadline
from cascade.node.signals import Wakeups
from cascade.node.survey import EXCHANGE

log = logging.getLogger("cascade.node.sentinel")

DUTY: LiteralString = "select cascade.root_duty(%s)"
STAND_DOWN: LiteralString = "select cascade.stand_down(%s, %s, %s)"
COMPLETE: LiteralString = "select cascade.complete_fence(%s)"
WRITERS: LiteralString = "select cascade.name_writers(%s)"
RENEW: LiteralString = "select cascade.renew_term(%s)"
DEMOTE: LiteralString = "select cascade.demote(%s, %s, %s)"
#: Whoever a fence waits for is looked up so often.
NAME_EVERY_S = 1.0
OTHERS: LiteralString = (
    "select coalesce(array_agg(m.node order by m.node_no), '{}') from cascade.members as m"
    " where m.set = %s and not m.is_here and m.state <> 'dropped'"
)


class Sentinel:
    """Of a root: asks the others whether it still reigns."""

    def __init__(self, home: Home, *, interval_s: float = 3.0, ask_timeout_s: float = 3.0) -> None:
        self.name = f"{home.set}/sentinel"
        self.home, self._interval_s, self._ask_timeout_s = home, interval_s, ask_timeout_s
        self.wakeups = Wakeups()
        self.turned_at: float | None = None
        self.note: str | None = None
        self._links: dict[str, AsyncConnection] = {}
        #: Members at whose address another set of this name is.
        self._strangers: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop` is set."""
        self.turned_at = None
        local = await self.home.connect("sentinel")
        try:
            while not stop.is_set():
                await self.turn(local)
                self.turned_at = time.monotonic()
                await self.wakeups.wait(self._interval_s)
        finally:
            local.pgconn.finish()
            for other in list(self._links):
                self._hang_up(other)

    async def turn(self, local: AsyncConnection) -> None:
        """Ask everybody once, and do what follows from their answers."""
        duty = await self.home.call(local, DUTY, self.home.set)
        if duty["role"] != "root":
            return
        duty = await self._ask_others(local, duty)
        fence = duty["fence"]
        notes = [] if fence is None else [f"fenced: {fence['detail'] or fence['cause']}"]
        self.note = "; ".join([*notes, *self._strangers.values()]) or None
        if duty["is_range_ending"]:
            await self.home.call(local, RENEW, self.home.set)
        if fence is None or fence["cause"] == "operation":
            return
        if not fence["is_up"]:
            log.warning("set %s: node %s stands down: %s", self.home.set, duty["node"], fence["detail"])
            await self._complete(local, self.note or "")
            duty = await self.home.call(local, DUTY, self.home.set)
        if duty["is_clean"]:
            await self._follow(local, duty)

    async def _ask_others(self, local: AsyncConnection, duty: dict[str, Any]) -> dict[str, Any]:
        """Exchange terms with every member that answers, and compare them with ours; return the duty then."""
        others = await self.home.call(local, OTHERS, self.home.set)
        answers = await asyncio.gather(*(self._ask(local, other, duty) for other in others))
        self._strangers = {other: told for other, told in self._strangers.items() if other in others}
        is_over = duty["fence"] is not None and duty["fence"]["cause"] == "over"
        for answer in answers:
            # The new root also says where it is, for those who are refused here.
            if answer is not None and (answer["terms"] != duty["terms"] or (is_over and answer["role"] == "root")):
                arguments = (self.home.set, Jsonb(answer["terms"]), Jsonb(answer["members"]))
                await self.home.call(local, STAND_DOWN, *arguments)
        return dict(await self.home.call(local, DUTY, self.home.set))

    async def _ask(self, local: AsyncConnection, other: str, duty: dict[str, Any]) -> dict[str, Any] | None:
        """Exchange terms with one member, over a link that is kept; None when it does not answer, or is none."""
        try:
            async with asyncio.timeout(self._ask_timeout_s):
                if other not in self._links:
                    address = await self.home.address(local, other)
                    self._links[other] = await connect(address, service=f"{self.home.set}/sentinel")
                conn = self._links[other]
                arguments = (self.home.set, Jsonb(duty["terms"]), duty["set_uid"])
                with translated(), deadline(self._ask_timeout_s, conn):
                    row: Any = await (await conn.execute(EXCHANGE, arguments)).fetchone()
                found = check_set(dict(row[0]), self.home.set, duty["set_uid"])
        except ForeignSetError as error:
            if other not in self._strangers:
                log.warning("set %s: the address of %s is wrong: %s", self.home.set, other, error)
            self._strangers[other] = f"the address of {other} leads to another set of this name"
            self._hang_up(other)
            return None
        except (CascadeError, psycopg.Error, OSError, TimeoutError) as error:
            log.debug("set %s: %s was not asked whether we reign: %s", self.home.set, other, error)
            self._hang_up(other)
            return None
        self._strangers.pop(other, None)
        return found

    def _hang_up(self, other: str) -> None:
        if (conn := self._links.pop(other, None)) is not None:
            conn.pgconn.finish()

    async def _complete(self, local: AsyncConnection, note: str) -> None:
        """Raise the trigger.  It waits for open writers, however long: waiting, it holds back new ones.

        They are named meanwhile, in the note and the log: one that idles, or is prepared, somebody has to end.
        """
        failure: psycopg.Error | None = None
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._name_writers(note), name=f"{self.name}/writers")
            try:
                await local.execute(COMPLETE, (self.home.set,))
            except psycopg.Error as error:
                failure = error  # as it is, not in the group's wrapping
            finally:
                watch.cancel()
        if failure is not None:
            raise failure
        self.note = note or None

    async def _name_writers(self, note: str) -> None:
        """Say again and again whom the fence waits for, over a link of its own; that this fails stops nothing."""
        conn: AsyncConnection | None = None
        logged = False
        try:
            while True:
                await asyncio.sleep(NAME_EVERY_S)
                try:
                    if conn is None or conn.closed:
                        conn = await self.home.connect("sentinel-writers")
                    found = await self.home.call(conn, WRITERS, self.home.set)
                except (CascadeError, psycopg.Error, OSError, TimeoutError) as error:
                    log.debug("set %s: it is not known whom the fence waits for: %s", self.home.set, error)
                    continue
                self.note = f"{note}; the fence waits for {found}" if found else note
                if found and not logged:
                    log.warning("set %s: the fence waits for %s", self.home.set, found)
                    logged = True
        finally:
            if conn is not None:
                conn.pgconn.finish()

    async def _follow(self, local: AsyncConnection, duty: dict[str, Any]) -> None:
        """Become a branch of the new root; nothing lies beyond the fork."""
        answer = await self._ask(local, duty["heir"], duty)
        if answer is not None and answer["role"] == "root":
            await self.home.call(local, DEMOTE, self.home.set, duty["heir"], Jsonb(answer["members"]))
            log.warning("set %s: node %s is a branch of %s now", self.home.set, duty["node"], duty["heir"])
