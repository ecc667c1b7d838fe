"""MemberRunner: serves one set's node on one database, from the file's wish to running services.

    not there ── root ──> waits for `cascade set create`
        └── branch, leaf ──> enrolled ──> its role's services run
                          │                  │ handler changed: started anew
                          │                  └ provider changed in the file: switched, or drift
                          └ another daemon serves it: stands by

The database holds the truth.  The file says addresses, handlers, and what a new node is to be; for a
node that exists its role is never taken from the file, and a provider only when the file began to ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from cascade.errors import CascadeError, ConfigError, JoinError, NodeNotFoundError, TransientError
from cascade.node.enroll import announce, enroll, own_node, switch
from cascade.node.guard import Guard
from cascade.node.handler import Handler, load_handler
from cascade.node.health import Report
from cascade.node.home import Home
from cascade.node.processor import NOTE_ERROR
from cascade.node.roles import SERVICES, services_of
from cascade.node.service import Service, pause
from cascade.node.signals import Wakeups, listening
from cascade.node.supervise import PASSING, supervise
from cascade.topology import Node, Role

log = logging.getLogger("cascade.node")

#: A daemon that stands by looks so often whether it is needed.
STANDBY_S = 1.0


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
        """Become the node, then serve it until `stop` is set or the file gives it another handler."""
        self.turned_at = None
        own = await self._enroll(stop)
        if own is not None and not self.node.role.is_root:
            await self._announce()
        while own is not None and not stop.is_set():
            guard = await Guard.open(self.home, own["queue_id"])
            try:
                if await self._stand_by(guard, stop):
                    await self._serve(Role(own["role"]), guard, stop)
            finally:
                guard.close()
            # A promotion or a resurrection gave it another role.
            own = await self._own()

    async def _own(self) -> dict[str, Any] | None:
        conn = await self.home.connect("node")
        try:
            return await own_node(self.home, conn)
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

    async def _announce(self) -> None:
        """Tell the others where this node is; who does not hear of it now does so at the next start."""
        topology = self.home.topology()
        assert topology is not None, "members come from a file"
        try:
            await announce(self.home, topology, self.node)
        except (*PASSING, CascadeError) as error:
            log.info("set %s: where node %s is was not announced: %s", self.node.set, self.node.name, error)

    async def _stand_by(self, guard: Guard, stop: asyncio.Event) -> bool:
        """Wait while another daemon serves this node; False when stopped."""
        try:
            while not stop.is_set():
                if await guard.take():
                    return True
                self.note = "another daemon serves this node"
                self.turned_at = time.monotonic()
                await pause(stop, STANDBY_S)
            return False
        finally:
            self.note = None

    async def _serve(self, role: Role, guard: Guard, stop: asyncio.Event) -> None:
        """Run the role's services until the role or the file's handler changes, the guard is lost, or the end."""
        spec = self.node.handler
        services = services_of(role, self.home, await self._load_handler(role, spec, guard))
        ended = asyncio.Event()
        lost: Exception | None = None
        news = _News(self._changed, services)
        try:
            async with (
                listening(self.home.dsn, "cascade_node", news, service=f"{self.home.set}/member"),
                asyncio.TaskGroup() as group,
            ):
                tasks = [
                    group.create_task(
                        supervise(service, self.report.add(service), ended, is_lenient=True), name=service.name
                    )
                    for service in services
                ]
                try:
                    while not stop.is_set() and self.node.handler == spec:
                        self._changed.clear()
                        if await self._compare(guard) is not role:
                            break
                        self.turned_at = time.monotonic()
                        await _either(stop, self._changed, guard.every_s)
                except (*PASSING, CascadeError) as error:
                    lost = error
                ended.set()
                news.wake()
                if lost is not None:
                    # Another daemon may serve the node now, and a service may wait for a database that is silent.
                    await asyncio.wait(tasks, timeout=self.home.link_timeout_s)
                    for task in tasks:
                        task.cancel()
        finally:
            for service in services:
                self.report.services.pop(service.name, None)
        if lost is not None:
            raise lost

    async def _compare(self, guard: Guard) -> Role:
        """Obey a new provider in the file, report every other difference, and return the node's role."""
        wanted, drift = self.node, []
        own = await own_node(self.home, guard.conn)
        if own is None:
            raise NodeNotFoundError(f"set {wanted.set}: the node of this database is gone")
        if own["node"] != wanted.name:
            drift.append(f"the database is node {own['node']}, the file says {wanted.name}")
        if own["role"] != wanted.role:
            drift.append(f"its role is {own['role']}, the file says {wanted.role}")
        if wanted.provider is not None and own["provider"] is not None and not drift:
            drift += await self._obey(own, wanted.provider)
        told, found = self.report.drift.get(wanted.set), "; ".join(drift)
        self.report.drift.pop(wanted.set, None)
        if drift:
            self.report.drift[wanted.set] = found
            if found != told:
                log.warning("set %s: TOPOLOGY_DRIFT: %s", wanted.set, found)
        return Role(own["role"])

    async def _obey(self, own: dict[str, Any], provider: str) -> list[str]:
        """Switch to the provider that the file has begun to ask for; return what stands against it."""
        if provider == own["file_provider"]:
            same = provider == own["provider"]
            return [] if same else [f"it copies from {own['provider']}, the file still says {provider}"]
        try:
            # Also when it copies from there already: what the file says later is new only compared with this.
            await switch(self.home, provider, from_file=True)
        except (*PASSING, CascadeError) as error:
            return [f"it copies from {own['provider']}; {provider}, which the file asks for: {error.args[0]}"]
        return []

    async def _load_handler(self, role: Role, spec: str | None, guard: Guard) -> Handler | None:
        """Return the handler; a branch copies also when it cannot be loaded, a leaf cannot go on without."""
        self.report.problems.pop(self.name, None)
        if spec is None:
            await self.home.call(guard.conn, NOTE_ERROR, self.node.set, None)
            if role is Role.BRANCH:
                # It must not keep events for a handler that it no longer has.
                await self.home.call(guard.conn, "select cascade.set_processing(%s, false)", self.node.set)
            return None
        try:
            return load_handler(spec)
        except ConfigError as error:
            await self.home.call(guard.conn, NOTE_ERROR, self.node.set, str(error))
            self.report.problems[self.name] = str(error)
            if role is not Role.BRANCH:
                raise
            log.error("set %s: %s", self.node.set, error)
            return None


class _News(Wakeups):
    """What the database announces of its nodes: wakes this node's runner and its services."""

    def __init__(self, changed: asyncio.Event, services: list[Service]) -> None:
        super().__init__()
        self._changed, self._services = changed, services

    def wake(self) -> None:
        """Have everybody look."""
        self._changed.set()
        for service in self._services:
            if (wakeups := getattr(service, "wakeups", None)) is not None:
                wakeups.wake()


async def _either(one: asyncio.Event, other: asyncio.Event, seconds: float) -> None:
    """Wait until one of two events is set, but not longer than this."""
    tasks = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
