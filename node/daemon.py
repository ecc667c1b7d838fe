"""The daemon: serves one database, and decides what an error means.

It starts the services in one TaskGroup.  A service that loses its database is started again
after a growing wait, for ever.  An error that would come again ends the process, unless it is one
set's alone: then that set waits and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from cascade.db import connect_sync
from cascade.errors import CascadeError, ConfigError, SchemaError, TopologyError, TransientError
from cascade.node import systemd
from cascade.node.enroll import dsn_of
from cascade.node.file import TopologyFile
from cascade.node.health import Health, Report
from cascade.node.home import Home
from cascade.node.member import MemberRunner
from cascade.node.roles import services_of_database
from cascade.node.service import pause
from cascade.node.supervise import supervise
from cascade.retry import Backoff
from cascade.sql import migrate
from cascade.topology import Node

log = logging.getLogger("cascade.node")

#: Services have so long to finish their turn; half as long again, and the process leaves without them.
STOP_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What the daemon is told: a database by its DSN, or by its name in a topology file."""

    dsn: str | None = None
    topology: Path | None = None
    database: str | None = None
    health: tuple[str, int] | None = None
    install: bool = True
    rotate_every_s: float = field(default_factory=lambda: _seconds("CASCADE_ROTATE_EVERY_S", 5.0))
    stop_within_s: float = field(default_factory=lambda: _seconds("CASCADE_STOP_WITHIN_S", STOP_WITHIN_S))
    link_timeout_s: float = field(default_factory=lambda: _seconds("CASCADE_LINK_TIMEOUT_S", 15.0))


def _seconds(name: str, otherwise: float) -> float:
    """Return a number of seconds from the environment."""
    try:
        found = float(os.environ.get(name, otherwise))
    except ValueError:
        found = 0.0
    if not 0 < found < 86400:
        raise ConfigError(f"{name} is {os.environ[name]!r}", hint="Give a number of seconds.")
    return found


async def run(settings: DaemonSettings, stop: asyncio.Event | None = None) -> int:
    """Serve the database until SIGTERM or SIGINT, and return the exit code."""
    return await Daemon(settings, stop or asyncio.Event()).run()


class Daemon:
    """One process, one database, every set it has a node in."""

    def __init__(self, settings: DaemonSettings, stop: asyncio.Event) -> None:
        self.settings, self.stop = settings, stop
        self.report = Report()
        self.file: TopologyFile | None = None
        if settings.topology is not None:
            assert settings.database is not None, "the command line asks for both"
            self.file = TopologyFile(settings.topology)
            self.file.topology.nodes_at(settings.database)
            self.dsn = dsn_of(self.file.topology, settings.database)
        else:
            assert settings.dsn is not None, "the command line asks for one of them"
            self.dsn = settings.dsn
        self._members: dict[str, tuple[MemberRunner, asyncio.Event]] = {}

    async def run(self) -> int:
        """Serve until told to stop, and return the exit code."""
        self._take_signals()
        failed = False
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group)
        except* CascadeError as errors:
            failed = True
            for error in errors.exceptions:
                log.error("%s", error)
        log.info("stopped")
        return int(failed)

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = {signal.SIGTERM: self._stop_in_time, signal.SIGINT: self._stop_in_time}
        if self.file is not None:
            wanted[signal.SIGHUP] = self.file.reload
        for number, act in wanted.items():
            try:
                loop.add_signal_handler(number, act)
            except (NotImplementedError, RuntimeError, ValueError):
                break  # Not the main thread: whoever runs us there sets `stop`.

    def _stop_in_time(self) -> None:
        """Stop, and leave without goodbye when a thread does not let go: what is open is rolled back."""
        self.stop.set()
        timer = threading.Timer(self.settings.stop_within_s * 1.5, _leave)
        timer.daemon = True
        timer.start()

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        link_s = self.settings.link_timeout_s
        services = services_of_database(self.dsn, link_s=link_s, rotate_every_s=self.settings.rotate_every_s)
        states = [self.report.add(service) for service in services]
        if self.settings.health is not None:
            group.create_task(Health(self.settings.health, self.report).run(self.stop), name="health")
        group.create_task(systemd.keep_alive(self.stop), name="watchdog")
        if self.settings.install and not await self._install():
            return
        tasks = [
            group.create_task(supervise(service, state, self.stop), name=service.name)
            for service, state in zip(services, states, strict=True)
        ]
        if self.file is not None:
            tasks.append(group.create_task(self._follow_file(self.file, group, tasks), name="file"))
        log.info("serving %s", self.settings.database or "a database")
        systemd.notify("READY=1")
        await self.stop.wait()
        systemd.notify("STOPPING=1")
        await _end(tasks, self.settings.stop_within_s)

    async def _follow_file(self, file: TopologyFile, group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        """Serve the nodes that the file gives this database, as it is now and as it changes."""
        while not self.stop.is_set():
            wanted = {node.set: node for node in self._nodes_of(file)}
            for name, (runner, ended) in list(self._members.items()):
                if name not in wanted:
                    log.warning("set %s is no longer in the file: its node here is not served", name)
                    ended.set()
                    self.report.services.pop(runner.name, None)
                    del self._members[name]
            for name, node in wanted.items():
                if name in self._members:
                    self._members[name][0].change(node)
                    continue
                home = Home(set=name, dsn=self.dsn, topology=file.get, link_timeout_s=self.settings.link_timeout_s)
                runner = MemberRunner(home, node, self.report)
                ended = asyncio.Event()
                self._members[name] = (runner, ended)
                work = supervise(runner, self.report.add(runner), ended, is_lenient=True)
                tasks.append(group.create_task(work, name=runner.name))
            while not self.stop.is_set() and not await file.changed():
                self._note_problem(file)
            self._note_problem(file)
        for _, ended in self._members.values():
            ended.set()

    def _nodes_of(self, file: TopologyFile) -> tuple[Node, ...]:
        """Return the nodes of this database; a file that no longer has it changes nothing."""
        assert self.settings.database is not None
        try:
            return file.topology.nodes_at(self.settings.database)
        except TopologyError as error:
            file.problem = str(error)
            log.error("%s", error)
            self._note_problem(file)
            return tuple(runner.node for runner, _ in self._members.values())

    def _note_problem(self, file: TopologyFile) -> None:
        self.report.problems.pop("topology", None)
        if file.problem is not None:
            self.report.problems["topology"] = file.problem

    async def _install(self) -> bool:
        """Install or upgrade the schema, waiting for the database if need be; False when stopped."""
        delays = Backoff().delays()
        while not self.stop.is_set():
            try:
                await asyncio.to_thread(_install_now, self.dsn)
                return True
            except TransientError as error:
                delay = next(delays)
                log.warning("database: %s; again in %.1f s", error, delay)
                for state in self.report.services.values():
                    state.error = str(error)
                await pause(self.stop, delay)
        return False


def _leave() -> None:
    log.error("something did not end in time; leaving")
    os._exit(1)


async def _end(tasks: list[asyncio.Task[None]], within_s: float) -> None:
    """Let every service finish its turn; past the deadline, cancel it."""
    _, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        log.warning("service %s did not stop in %.0f s", task.get_name(), within_s)
        task.cancel()


def _install_now(dsn: str) -> None:
    with connect_sync(dsn, service="install") as conn:
        found = migrate.status(conn)
        if found.state == "current":
            return
        if found.state == "newer":
            raise SchemaError(
                f"the installed schema has version {found.installed}, this daemon knows {found.wanted}",
                hint="Upgrade the cascade-queue package on this machine.",
            )
        log.info("installing schema version %d", found.wanted)
        migrate.install(conn)
