"""Heir: takes the reign that the old root offers in its closing tick, and reports what was set aside here.

    copying ── the closing tick names us ──> asking the old root ── taken ──> promoted
                                                     └── withdrawn ──> copying

The old root's row decides, so it does not matter who else is asking, or whether a reply was lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect
from cascade.node.comeback import mark_duplicates
from cascade.node.home import Home
from cascade.node.signals import Wakeups

log = logging.getLogger("cascade.node.heir")

DUTY: LiteralString = "select cascade.heir_duty(%s)"
TAKE: LiteralString = "select cascade.take_handover(%s, %s, %s, %s, %s)"
PROMOTE: LiteralString = "select cascade.promote(%s, %s, %s, 'switchover', %s, %s, %s)"
WITHDRAWN: LiteralString = "select cascade.note_withdrawn(%s, %s)"
REPORT: LiteralString = "select cascade.certificate_report(%s, %s)"
AMEND: LiteralString = "select cascade.amend_certificate(%s, %s, %s)"


#: What is held of a combined set is looked up so often: the parts bring most of it again.
LOOK_UP_S = 10.0


class Heir:
    """Of any node: what it owes the set besides copying."""

    def __init__(self, home: Home, *, interval_s: float = 5.0) -> None:
        self.name = f"{home.set}/heir"
        self.home, self._interval_s = home, interval_s
        self.wakeups = Wakeups()
        self.turned_at: float | None = None
        self.note: str | None = None
        self._looks_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set."""
        self.turned_at = None
        local = await self.home.connect("heir")
        try:
            while not stop.is_set():
                await self.turn(local)
                self.turned_at = time.monotonic()
                await self.wakeups.wait(self._interval_s)
        finally:
            local.pgconn.finish()

    async def turn(self, local: AsyncConnection) -> None:
        """Take what is offered, and report what is asked for."""
        duty = await self.home.call(local, DUTY, self.home.set)
        if duty["handover"] is not None:
            await self._take(local, duty["node"], duty["handover"])
        for uid in duty["reports"]:
            await self._report(local, duty["root"], uid)
        if duty["is_to_look_up"] and time.monotonic() > self._looks_at:
            self._looks_at = time.monotonic() + LOOK_UP_S
            await self._look_up(local, duty["root"])

    async def _take(self, local: AsyncConnection, node: str, offer: dict[str, Any]) -> None:
        """Swap offered for taken at the old root, then reign."""
        chain = bytes.fromhex(offer["chain"].removeprefix("\\x"))
        old = await connect(await self.home.address(local, offer["from_node"]), service=f"{node}/heir")
        try:
            found = await self.home.call(old, TAKE, self.home.set, offer["uid"], node, offer["tick_id"], chain)
        finally:
            old.pgconn.finish()
        if found["state"] == "withdrawn":
            log.info("set %s: the reign was offered to %s and withdrawn", self.home.set, node)
            await self.home.call(local, WITHDRAWN, self.home.set, offer["uid"])
            return
        facts = Jsonb({"op_id": offer["op_id"], "reason": f"handed over by {offer['from_node']}"})
        arguments = (offer["uid"], offer["number"], offer["tick_id"], chain, facts)
        await self.home.call(local, PROMOTE, self.home.set, *arguments)
        log.warning("set %s: node %s is the root now, term %d", self.home.set, node, offer["number"])

    async def _look_up(self, local: AsyncConnection, root: str) -> None:
        """Note what the new combined-root has merged again."""
        conn = await connect(await self.home.address(local, root), service=f"{self.home.set}/heir")
        try:
            await mark_duplicates(self.home.set, partial(self.home.call, local), partial(self.home.call, conn))
        finally:
            conn.pgconn.finish()

    async def _report(self, local: AsyncConnection, root: str, uid: str) -> None:
        """Tell the root what this node had beyond a fork, if anything."""
        conn = await connect(await self.home.address(local, root), service=f"{self.home.set}/heir")
        try:
            await mark_duplicates(self.home.set, partial(self.home.call, local), partial(self.home.call, conn))
            report = await self.home.call(local, REPORT, self.home.set, uid)
            await self.home.call(conn, AMEND, self.home.set, uid, Jsonb(report))
        finally:
            conn.pgconn.finish()
