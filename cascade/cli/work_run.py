"""cascade work run: one worker in this process, or several processes that are kept running."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import click

from cascade.cli.node import loop_factory, set_up_logging, stop_at_eof
from cascade.errors import ConfigError

if TYPE_CHECKING:
    from cascade.worker import Worker

log = logging.getLogger("cascade.work")

#: A process that ends by itself is started again after so long.
AGAIN_S = 1.0


@click.command()
@click.argument("spec", metavar="MODULE:WORKER")
@click.option(
    "--dsn",
    metavar="DSN",
    envvar="CASCADE_DSN",
    show_envvar=True,
    help="The database, unless the worker names one itself.",
)
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="How many processes work.")
@click.option(
    "--concurrency", type=click.IntRange(1), help="Messages at a time in each process, instead of what the worker says."
)
@click.option("--batch", type=click.IntRange(1), help="Messages claimed at a time, at most.")
@click.option("--drain", is_flag=True, help="Stop when nothing is ready any more; delayed messages are not waited for.")
@click.option(
    "--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True, help="Lines on stderr."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least that is logged.",
)
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends, as when a parent has died.")
def run(
    spec: str,
    dsn: str | None,
    processes: int,
    concurrency: int | None,
    batch: int | None,
    drain: bool,
    log_format: str,
    log_level: str,
    until_eof: bool,
) -> None:
    """Work until SIGTERM or Ctrl-C; then nothing new is begun, and what has begun is finished.

    MODULE is imported from the working directory or from what is installed; WORKER is a cascade.Worker in it.
    Messages that are waiting here when it stops are given back at once.

    \b
    cascade work run shop.tasks:worker
    cascade work run shop.tasks:worker --processes 4 --concurrency 20 --log-format json
    cascade work run shop.tasks:worker --drain
    """
    set_up_logging(log_format, log_level)
    if dsn is not None:
        os.environ["CASCADE_DSN"] = dsn
    worker = load_worker(spec)
    worker.dsn = worker.dsn or dsn
    worker.concurrency = concurrency or worker.concurrency
    worker.batch = batch or worker.batch
    if processes > 1:
        given = [f"--{name}={value}" for name, value in (("concurrency", concurrency), ("batch", batch)) if value]
        given += [f"--log-format={log_format}", f"--log-level={log_level}", *(["--drain"] if drain else [])]
        asyncio.run(_keep(processes, [spec, *given], drain=drain))
        return
    if until_eof:
        stop_at_eof()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(worker, drain=drain))
    if worker.is_held_up:
        log.error("a handler did not end in time; leaving without it, its message comes again")
        os._exit(1)


def load_worker(spec: str) -> Worker:
    """Import 'package.module:worker', or say what is wrong with it."""
    from cascade.worker import Worker

    module_name, _, name = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # Whatever a module does while it is imported.
        raise ConfigError(
            f"worker {spec!r} cannot be loaded: {type(error).__name__}: {error}",
            hint="Write 'package.module:worker', and run where the package can be imported.",
        ) from error
    if not isinstance(found, Worker):
        raise ConfigError(
            f"{spec!r} is a {type(found).__name__}, no cascade.Worker",
            hint="Write worker = cascade.Worker('orders', 'billing') at the top of the module.",
        )
    return found


async def _work(worker: Worker, *, drain: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    if drain:
        await worker.drain()
    else:
        await worker.run()


async def _keep(count: int, arguments: list[str], *, drain: bool) -> None:
    """Run so many processes until told to stop; one that ends by itself is started again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with asyncio.TaskGroup() as group:
        for number in range(1, count + 1):
            group.create_task(_keep_one(number, arguments, stop, drain=drain), name=f"process-{number}")


async def _keep_one(number: int, arguments: list[str], stop: asyncio.Event, *, drain: bool) -> None:
    command = [sys.executable, "-m", "cascade.cli.main", "work", "run", *arguments, "--until-eof"]
    while not stop.is_set():
        # In a session of its own, so that Ctrl-C reaches it once, through us; if we are killed, its stdin ends.
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, start_new_session=True)
        ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            with suppress(ProcessLookupError):
                process.terminate()
        stopping.cancel()
        code = await ended
        if stop.is_set() or (drain and code == 0):
            return
        log.warning("worker process %s ended with exit code %s; again in %g s", number, code, AGAIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await stop.wait()
