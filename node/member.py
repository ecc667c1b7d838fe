"""MemberRunner: serves one set's node on one database, from the file's wish to running services.

    not there ── root ──> waits for `cascade set create`
        └── branch, leaf ──> enrolled ──> its role's services run
                                             │ handler or role changed: started anew
                                             └ provider changed in the file: switched, or drift

The database holds the truth.  The file says addresses, handlers, and what a new node is to be; for a
node that exists its role is never taken from the file, and a provider only when the file began to ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from cascade.errors import CascadeError, ConfigError, JoinError, TransientError
from cascade.node.enroll import enroll, own_node, switch
from cascade.node.handler import load_handler
from cascade.node.health import Report
from cascade.node.home import Home
from cascade.node.roles import SERVICES, services_of
from cascade.node.service import pause
from cascade.node.supervise import PASSING, supervise
from cascade.topology import Node, Role

log = logging.getLogger("cascade.node")


class MemberRunner:
    """One node of the file."""

    def __init__(self, home: Home, node: Node, report: Report) -> None:
        self.name = f"{node.set}/node"
        self.home, self.node, self.report = home, node, report
        self.turned_at: float | None = None
        self.note: str | None = None
        self._changed = asyncio.Event()

    def change(self, node: Node) -> None:
        """Take note of what the file says now."""
        if node != self.node:
            self.node = node
            self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Become the node, then serve it until `stop` is set or the file changes it."""
        self.turned_at = None
        own = await self._enroll(stop)
        while own is not None and not stop.is_set():
            self._changed.clear()
            await self._compare(own)
            await self._serve(Role(own["role"]), stop)
            own = await self._own()

    async def _own(self) -> dict[str, Any] | None:
        conn = await self.home.connect("node")
        try:
            return await own_node(conn, self.node.set)
        finally:
            await conn.close()

    async def _enroll(self, stop: asyncio.Event) -> dict[str, Any] | None:
        """Return the node's row once there is one; a root is waited for, others are made."""
        topology = self.home.topology()
        assert topology is not None, "members come from a file"
        if self.node.role not in SERVICES:
            raise ConfigError(f"set {self.node.set}: this release does not serve a {self.node.role}")
        own = await self._own()
        while own is None and not stop.is_set():
            if self.node.role.is_root:
                self.note = f"waiting for: cascade set create {self.node.set}"
                await pause(stop, 1.0)
            else:
                try:
                    await enroll(self.home, topology, self.node)
                except JoinError as error:
                    # The provider has not heard of us yet, or an operator dropped us.
                    raise TransientError(f"set {self.node.set}: {error.args[0]}", hint=error.hint) from error
            own = await self._own()
        self.note = None
        return own

    async def _compare(self, own: dict[str, Any]) -> None:
        """Obey a new provider in the file, and report every other difference."""
        wanted, drift = self.node, []
        if own["node"] != wanted.name:
            drift.append(f"the database is node {own['node']}, the file says {wanted.name}")
        if own["role"] != wanted.role:
            drift.append(f"its role is {own['role']}, the file says {wanted.role}")
        if wanted.provider is not None and own["provider"] is not None and wanted.provider != own["provider"]:
            if wanted.provider == own["file_provider"]:
                drift.append(f"it copies from {own['provider']}, the file still says {wanted.provider}")
            else:
                try:
                    await switch(self.home, wanted.provider, from_file=True)
                except PASSING:
                    raise
                except CascadeError as error:
                    drift.append(f"it copies from {own['provider']}; {wanted.provider} was refused: {error.args[0]}")
        self.report.drift.pop(self.node.set, None)
        if drift:
            self.report.drift[self.node.set] = "; ".join(drift)
            log.warning("set %s: TOPOLOGY_DRIFT: %s", self.node.set, "; ".join(drift))

    async def _serve(self, role: Role, stop: asyncio.Event) -> None:
        """Run the role's services until the file changes the node, or the end."""
        handler = load_handler(self.node.handler) if self.node.handler is not None else None
        if role is Role.BRANCH and handler is None:
            await self._forget_handler()
        ended = asyncio.Event()
        services = services_of(role, self.home, handler)
        self.turned_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for service in services:
                    work = supervise(service, self.report.add(service), ended, is_lenient=True)
                    group.create_task(work, name=service.name)
                waiting = [asyncio.create_task(event.wait()) for event in (stop, self._changed)]
                try:
                    while not any(task.done() for task in waiting):
                        await asyncio.wait(waiting, timeout=10.0, return_when=asyncio.FIRST_COMPLETED)
                        self.turned_at = time.monotonic()
                finally:
                    for task in waiting:
                        task.cancel()
                    ended.set()
                    for service in services:
                        if (wakeups := getattr(service, "wakeups", None)) is not None:
                            wakeups.wake()
        finally:
            for service in services:
                self.report.services.pop(service.name, None)

    async def _forget_handler(self) -> None:
        """A branch without a handler must not keep events for one."""
        conn = await self.home.connect("node")
        try:
            await self.home.call(conn, "select cascade.set_processing(%s, false)", self.node.set)
        finally:
            await conn.close()
