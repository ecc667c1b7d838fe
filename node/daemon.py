"""The daemon: serves one database, and decides what an error means.

It starts the services in one TaskGroup.  A service that loses its database is started again
after a growing wait, for ever; any other error ends the process, since it would come again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass

import psycopg

from cascade.db import connect_sync
from cascade.errors import CascadeError, SchemaError, TransientError
from cascade.node.health import Health, ServiceHealth
from cascade.node.rotator import Rotator
from cascade.node.service import Service, pause
from cascade.node.ticker import Ticker
from cascade.retry import Backoff
from cascade.sql import migrate

log = logging.getLogger("cascade.node")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What the daemon is told."""

    dsn: str
    health: tuple[str, int] | None = None
    install: bool = True
    rotate_every_s: float = 5.0
    stop_within_s: float = 10.0


async def run(settings: DaemonSettings, stop: asyncio.Event | None = None) -> int:
    """Serve the database until SIGTERM or SIGINT, and return the exit code."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except (NotImplementedError, RuntimeError, ValueError):
            break  # Not the main thread: whoever runs us there sets `stop`.
    services: list[Service] = [Ticker(settings.dsn), Rotator(settings.dsn, interval_s=settings.rotate_every_s)]
    states = {service.name: ServiceHealth(service) for service in services}
    failed = False
    try:
        async with asyncio.TaskGroup() as group:
            if settings.health is not None:
                group.create_task(Health(settings.health, states).run(stop), name="health")
            if settings.install and not await _install(settings.dsn, states, stop):
                return 0
            log.info("serving %d services", len(services))
            tasks = [
                group.create_task(_supervise(service, states[service.name], stop), name=service.name)
                for service in services
            ]
            await stop.wait()
            await _end(tasks, settings.stop_within_s)
    except* CascadeError as errors:
        failed = True
        for error in errors.exceptions:
            log.error("%s", error)
    log.info("stopped")
    return int(failed)


async def _end(tasks: list[asyncio.Task[None]], within_s: float) -> None:
    """Let every service finish its turn; past the deadline, cancel it."""
    _, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        log.warning("service %s did not stop in %.0f s", task.get_name(), within_s)
        task.cancel()


async def _install(dsn: str, states: dict[str, ServiceHealth], stop: asyncio.Event) -> bool:
    """Install or upgrade the schema, waiting for the database if need be; False when stopped."""
    delays = Backoff().delays()
    while not stop.is_set():
        try:
            await asyncio.to_thread(_install_now, dsn)
            return True
        except TransientError as error:
            delay = next(delays)
            log.warning("database: %s; again in %.1f s", error, delay)
            for state in states.values():
                state.error = str(error)
            await pause(stop, delay)
    return False


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


async def _supervise(service: Service, state: ServiceHealth, stop: asyncio.Event) -> None:
    """Run a service, again and again while its database comes and goes."""
    delays = Backoff().delays()
    while not stop.is_set():
        started = asyncio.get_running_loop().time()
        try:
            await service.run(stop)
        except (TransientError, psycopg.OperationalError, TimeoutError, OSError) as error:
            if asyncio.get_running_loop().time() - started > 30:
                delays = Backoff().delays()
            delay = next(delays)
            service.turned_at, state.error = None, str(error)
            state.restarts += 1
            log.warning("service %s: %s; again in %.1f s", service.name, error, delay)
            await pause(stop, delay)
