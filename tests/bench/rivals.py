"""The rivals of work mode, as their own users would run them; each in a database of its own on the same server.

They come from the package index, by the extra `bench`: pgmq's package brings the SQL file that installs it without an
extension, pgqueuer and procrastinate are Python.  One that is not there is not measured.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from importlib import import_module, metadata, resources
from importlib.util import find_spec
from typing import Any

import psycopg

from tests.bench.events import PAYLOAD_TEXT, payload
from tests.bench.servers import Bench

#: Jobs of one call: more would be one statement of many megabytes.
SLICE = 1000


def version(package: str) -> str | None:
    """Return what is installed of a package, or None."""
    return metadata.version(package) if find_spec(package) else None


def why_not(package: str) -> str:
    """Return what the report says of a rival that is not there."""
    return f"not measured ({package} is not installed)"


def run_alone(coroutine: Coroutine[Any, Any, float]) -> float:
    """Run a coroutine on the fastest event loop there is, for every side the same."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if find_spec("uvloop"):
        factory = import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


def loop_name() -> str:
    """Return the event loop that all sides use."""
    return "uvloop" if find_spec("uvloop") else "asyncio"


class Rival:
    """A database for one rival, made when it is first used."""

    package: str

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.dsn = bench.dsn(self.package)
        with bench.admin() as conn:
            conn.execute(f"drop database if exists {self.package}".encode())
            conn.execute(f"create database {self.package} owner cascade".encode())
        bench.facts[self.package] = version(self.package) or "not installed"
        self.install()

    def install(self) -> None:
        """Make its schema."""
        raise NotImplementedError

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection to its database, autocommit."""
        return psycopg.connect(self.dsn, autocommit=True)


class Pgmq(Rival):
    """pgmq, installed by its SQL file: `read` hides messages for a while, `delete` ends them."""

    package = "pgmq"

    def install(self) -> None:
        """Run the SQL file that its Python package brings."""
        text = resources.files("pgmq").joinpath("sql/pgmq.sql").read_text()
        with self.connect() as conn:
            conn.execute(text.encode())

    def fill(self, queue: str, count: int) -> None:
        """Make a queue anew and send messages to it."""
        with self.connect() as conn:
            conn.execute("set synchronous_commit = off")
            conn.execute("select pgmq.drop_queue(%s)", (queue,))
            conn.execute("select pgmq.create(%s)", (queue,))
            for start in range(0, count, SLICE):
                conn.execute(
                    "select count(*) from pgmq.send_batch(%s, array_fill(%s::jsonb, array[%s::int]))",
                    (queue, PAYLOAD_TEXT, min(SLICE, count - start)),
                )


class Pgqueuer(Rival):
    """pgqueuer on psycopg, with a handler that does nothing."""

    package = "pgqueuer"

    def install(self) -> None:
        """Make its schema."""
        run_alone(self._install())

    async def _install(self) -> float:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await import_module("pgqueuer").Queries.from_psycopg_connection(conn).install()
        return 0.0

    def work(self, count: int, batch: int) -> float:
        """Return how many jobs per second go from publishing to completion."""
        return run_alone(self._work(count, batch))

    async def _work(self, count: int, batch: int) -> float:
        pgqueuer, types = import_module("pgqueuer"), import_module("pgqueuer.types")
        body = PAYLOAD_TEXT.encode()
        async with (
            await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as producer,
            await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn,
        ):
            manager = pgqueuer.QueueManager(pgqueuer.Queries.from_psycopg_connection(conn))
            done = 0

            @manager.entrypoint("job")
            async def handle(_: Any) -> None:
                nonlocal done
                done += 1

            queries = pgqueuer.Queries.from_psycopg_connection(producer)
            start = time.perf_counter()
            for first in range(0, count, SLICE):
                some = min(SLICE, count - first)
                await queries.enqueue(["job"] * some, [body] * some, [0] * some)
            await manager.run(batch_size=batch, mode=types.QueueExecutionMode.drain)
            seconds = time.perf_counter() - start
        assert done == count, f"pgqueuer handled {done} of {count}"
        return count / seconds


class Procrastinate(Rival):
    """procrastinate on psycopg, with a task that does nothing."""

    package = "procrastinate"

    def install(self) -> None:
        """Make its schema."""
        app = self._app()
        with app.open():
            app.schema_manager.apply_schema()

    def _app(self) -> Any:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        found = import_module("procrastinate")
        return found.App(connector=found.PsycopgConnector(conninfo=self.dsn))

    def work(self, count: int, concurrency: int) -> float:
        """Return how many jobs per second go from publishing to completion."""
        return run_alone(self._work(count, concurrency))

    async def _work(self, count: int, concurrency: int) -> float:
        app, done = self._app(), 0

        @app.task(name="job")
        async def handle(**_: Any) -> None:
            nonlocal done
            done += 1

        async with app.open_async():
            start = time.perf_counter()
            for first in range(0, count, SLICE):
                await handle.batch_defer_async(*[payload(n) for n in range(first, min(first + SLICE, count))])
            await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
            seconds = time.perf_counter() - start
        assert done == count, f"procrastinate handled {done} of {count}"
        return count / seconds


RIVALS: dict[str, type[Rival]] = {rival.package: rival for rival in (Pgmq, Pgqueuer, Procrastinate)}


def present(bench: Bench) -> dict[str, Rival]:
    """Return the rivals that can be measured here, each in a database of its own."""
    return {name: rival(bench) for name, rival in RIVALS.items() if version(name)}
