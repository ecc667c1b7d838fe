"""Keeps services running: waits and starts one again after an error, and says so in its health."""

from __future__ import annotations

import asyncio
import logging

import psycopg

from cascade.errors import CascadeError, TransientError
from cascade.node.health import ServiceHealth
from cascade.node.service import Service, pause
from cascade.retry import Backoff

log = logging.getLogger("cascade.node")

#: What a database that comes and goes may raise.
PASSING = (TransientError, psycopg.OperationalError, TimeoutError, OSError)
#: A run of so many seconds was a success: the next wait is short again.
SETTLED_S = 30.0


async def supervise(service: Service, state: ServiceHealth, stop: asyncio.Event, *, is_lenient: bool = False) -> None:
    """Run a service, again and again while its database comes and goes.

    A lenient one outlives other errors of Cascade and of the database too: one set's trouble, or a
    handler's, must not end the others.
    """
    passing: tuple[type[Exception], ...] = (*PASSING, CascadeError, psycopg.Error) if is_lenient else PASSING
    backoff = Backoff(most_s=3.0)
    delays = backoff.delays()
    while not stop.is_set():
        started = asyncio.get_running_loop().time()
        try:
            await service.run(stop)
        except passing as error:
            if asyncio.get_running_loop().time() - started > SETTLED_S:
                delays = backoff.delays()
            delay = next(delays)
            service.turned_at, state.error = None, str(error)
            state.restarts += 1
            state.tell(service.name, error, delay)
            await pause(stop, delay)
