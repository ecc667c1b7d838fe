"""cascade node: the daemon in the foreground, how it logs, and how a parent keeps it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from cascade.cli.member import COMMANDS
from cascade.cli.status import FILE_HELP, find_file
from cascade.errors import ConfigError, ServerError

#: What every record has; whatever else one carries was passed as `extra`.
USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@click.group()
def node() -> None:
    """The daemon, and what an operator does to one node of a set.

    \b
    cascade node run --topology orders.yaml --database ams1
    cascade node switch orders s4 --provider s2 -f orders.yaml
    cascade node pause orders s4 -f orders.yaml
    """


for _command in COMMANDS:
    node.add_command(_command)


class Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, [HOST]:PORT for IPv6, or PORT alone, which means this machine only."""

    name = "HOST:PORT"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Return the host and the port."""
        host, _, port = value.rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in host and host[0] != "["):
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


@node.command()
@click.option(
    "--dsn",
    metavar="DSN",
    envvar="CASCADE_DSN",
    show_envvar=True,
    help="A database that stands alone: its queues are ticked and rotated.",
)
@click.option(
    "--topology",
    "-f",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="CASCADE_TOPOLOGY",
    show_envvar=True,
    help=FILE_HELP,
)
@click.option("--database", "-d", metavar="NAME", help="Which database of the file to serve.")
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
@click.option("--health", type=Address(), help="Answer /health there.")
@click.option("--install/--no-install", default=True, show_default=True, help="Install or upgrade the schema first.")
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends, as when a parent has died.")
def run(
    dsn: str | None,
    topology: Path | None,
    database: str | None,
    log_format: str,
    log_level: str,
    health: tuple[str, int] | None,
    install: bool,
    until_eof: bool,
) -> int:
    """Serve one database until SIGTERM or Ctrl-C.

    With a topology file: every set that gives this database a node.  Branches and leaves are made when
    they do not exist yet, their queues copied, watermarks sent; a root is made by `cascade set create`.
    The file is read again when it changes, or on SIGHUP.  With --dsn alone: ticks and rotation.

    Several may run for one database; they do no harm to one another.

    \b
    cascade node run --topology orders.yaml --database ams1 --health 8080
    cascade node run --dsn service=shop --log-format json
    """
    from cascade.node.daemon import DaemonSettings
    from cascade.node.daemon import run as serve

    set_up_logging(log_format, log_level)
    if until_eof:
        stop_at_eof()
    if database is not None and dsn is None:
        topology = find_file(topology)
    if topology is None and dsn is None:
        raise ConfigError(
            "no database was named",
            hint="Pass --topology FILE and --database NAME, or --dsn; CASCADE_DSN serves for the latter.",
        )
    if database is None and dsn is not None:
        topology = None  # The environment names a file, the command line a database that stands alone.
    if (topology is None) != (database is None):
        raise ConfigError(
            "--topology and --database go together",
            hint="The file says which databases there are, the name which of them is served.",
        )
    settings = DaemonSettings(
        dsn=dsn if topology is None else None, topology=topology, database=database, health=health, install=install
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(settings))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed, else None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def set_up_logging(log_format: str, level: str) -> None:
    """Send what Cascade logs to stderr, a line each, for people or for programs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else HumanLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def stop_at_eof() -> None:
    """Send this process SIGTERM when its stdin ends: whoever started it is gone."""

    def wait() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock a thread must not hold at exit
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="cascade-eof", daemon=True).start()


class Children:
    """Modules run as processes that call stop_at_eof: they end when this one does, even if it is killed.

    What they print, an object of JSON per line, is passed to `hear` with the child's name.
    """

    def __init__(self, hear: Callable[[str, dict[str, Any]], None]) -> None:
        self._hear = hear
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ended: list[asyncio.subprocess.Process] = []

    @property
    def names(self) -> list[str]:
        """Return those that run, the oldest first."""
        return list(self._processes)

    async def run(self, name: str, module: str, *arguments: str) -> None:
        """Start a child and hear it until its end, which is an error unless it was sent a signal to end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 24,
            start_new_session=True,
        )
        assert process.stdout is not None
        self._processes[name], line = process, b""
        async for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                said = {"level": "error", "message": line.decode(errors="replace").rstrip()}
            self._hear(name, said)
        code = await process.wait()
        if self._processes.get(name) is process:
            raise ServerError(f"{name} ended with exit code {code}: {line.decode(errors='replace').strip()}")

    def signal(self, name: str, number: int) -> None:
        """Send a child a signal; one that is to end is no longer among those that run."""
        with suppress(ProcessLookupError):
            self._processes[name].send_signal(number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            self._ended.append(self._processes.pop(name))

    def end(self, *, within_s: float) -> None:
        """Ask every child to end, and kill those that have not after a while."""
        for name in self.names:
            self.signal(name, signal.SIGTERM)
        asyncio.get_running_loop().call_later(within_s, self.kill)

    def kill(self) -> None:
        """Kill every child that has not ended yet."""
        for process in [*self._processes.values(), *self._ended]:
            with suppress(ProcessLookupError):
                process.kill()


class HumanLines(logging.Formatter):
    """2030-01-31 12:00:00.123 INFO    cascade.node: serving 2 services"""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


class JsonLines(logging.Formatter):
    """{"time", "level", "logger", "message"}, "error" with a traceback, and whatever was passed as extra."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        found |= {key: value for key, value in vars(record).items() if key not in USUAL}
        return json.dumps(found, ensure_ascii=False, default=str)
