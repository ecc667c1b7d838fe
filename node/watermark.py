"""WatermarkKeeper: tells the provider how far this node and those below it have come; at the root, publishes.

Positions travel upwards unchanged, member by member, so it does not matter who provides whom.  A tell
is about the past and may be late or repeated: per member and generation the greatest counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect, translated
from cascade.node.home import Home
from cascade.node.pipe import deadline
from cascade.node.service import pause

log = logging.getLogger("cascade.node.watermark")

REPORT: LiteralString = "select cascade.report(%s)"
TELL: LiteralString = "select cascade.tell(%s, %s, %s)"
ADVANCE: LiteralString = "select tick_id, is_published, held_by from cascade.advance_watermark(%s)"

#: What has not changed is told again so often, as a sign of life.
ALIVE_S = 10.0


class WatermarkTeller:
    """Of a branch or leaf: reports upwards."""

    def __init__(self, home: Home, *, interval_s: float = 1.0) -> None:
        self.name = f"{home.set}/watermark"
        self.home, self._interval_s = home, interval_s
        self.turned_at: float | None = None
        self.note: str | None = None
        self._told: dict[str, Any] = {}
        self._told_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until `stop` is set."""
        self.turned_at = None
        self._told = {}
        local = await self.home.connect("watermark")
        provider: AsyncConnection | None = None
        provider_name = None
        try:
            while not stop.is_set():
                report = await self.home.call(local, REPORT, self.home.set)
                if report["provider"] is None:
                    # It was promoted; the runner ends this service in a moment.
                    await pause(stop, self._interval_s)
                    continue
                if provider is None or report["provider"] != provider_name:
                    if provider is not None:
                        provider.pgconn.finish()
                    provider_name, self._told = report["provider"], {}
                    address = await self.home.address(local, provider_name)
                    provider = await connect(address, service=f"{report['node']}/watermark")
                await self.tell(provider, report)
                self.turned_at = time.monotonic()
                await pause(stop, self._interval_s)
        finally:
            local.pgconn.finish()
            if provider is not None:
                provider.pgconn.finish()

    async def tell(self, provider: AsyncConnection, report: dict[str, Any]) -> None:
        """Tell what is new; all of it when it is time for a sign of life."""
        positions = {row["node"]: (row["generation"], row["tick_id"], row["is_waiting"]) for row in report["rows"]}
        is_time = time.monotonic() - self._told_at > ALIVE_S
        rows = [row for row in report["rows"] if is_time or self._told.get(row["node"]) != positions[row["node"]]]
        if rows:
            await self.home.call(provider, TELL, self.home.set, report["node"], Jsonb(rows))
            self._told = positions
            self._told_at = time.monotonic() if is_time else self._told_at


class WatermarkPublisher:
    """Of a root: computes the global watermark and publishes it when that helps somebody."""

    def __init__(self, home: Home, *, interval_s: float = 1.0) -> None:
        self.name = f"{home.set}/watermark"
        self.home, self._interval_s = home, interval_s
        self.turned_at: float | None = None
        self.note: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set."""
        self.turned_at = None
        local = await self.home.connect("watermark")
        try:
            while not stop.is_set():
                with translated(), deadline(self.home.link_timeout_s, local):
                    row: Any = await (await local.execute(ADVANCE, (self.home.set,))).fetchone()
                if row[1]:
                    log.debug("set %s: global watermark %d, held by %s", self.home.set, row[0], row[2])
                self.turned_at = time.monotonic()
                await pause(stop, self._interval_s)
        finally:
            local.pgconn.finish()
