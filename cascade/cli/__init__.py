"""cascade.cli: the command line; here is what its commands share: which database, and how to reach it.

Nothing here imports the driver until a command connects, so that `--help` is quick.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

import click

from cascade.errors import ConfigError

if TYPE_CHECKING:
    from cascade.client import Client as AsyncClient
    from cascade.sync import Client

F = TypeVar("F", bound=Callable[..., Any])


def require_dsn(context: click.Context, _: click.Parameter, value: str | None) -> str:
    """Refuse a command that was not told which database it is about."""
    if value is None and not context.resilient_parsing:
        raise ConfigError(
            "no database was named",
            hint="Pass --dsn or set CASCADE_DSN; `cascade dev up` starts a server here and shows its DSN.",
        )
    return value or ""


DSN_OPTION = click.option(
    "--dsn",
    metavar="DSN",
    envvar="CASCADE_DSN",
    show_envvar=True,
    callback=require_dsn,
    help="The database: 'host=... dbname=...', service=NAME or postgresql://...",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def database_options(command: F) -> F:
    """Give a command --dsn and --json."""
    return DSN_OPTION(JSON_OPTION(command))


@contextmanager
def connected(dsn: str) -> Iterator[Client]:
    """Connect for the length of a block."""
    from cascade.sync import connect

    with connect(dsn) as client:
        yield client


def rows(client: Client, query: LiteralString, *arguments: object) -> list[dict[str, Any]]:
    """Run a query and return its rows by column name."""
    from psycopg.rows import dict_row

    from cascade.db import translated

    with translated(), client.connection().cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, arguments).fetchall()


async def fetch(client: AsyncClient, query: LiteralString, *arguments: object) -> list[dict[str, Any]]:
    """Do the same with the asynchronous client."""
    from psycopg.rows import dict_row

    async with (await client.connection()).cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(query, arguments)).fetchall()


def suggestion(name: str, known: Iterable[str], otherwise: str) -> str:
    """Say which known name was probably meant, or something else that helps."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else otherwise


async def until(holds: Callable[[], bool], *, timeout_s: float) -> bool:
    """Wait until something holds that nobody announces; False when it does not in time."""
    import asyncio

    ends_at = time.monotonic() + timeout_s
    while not holds():
        if (left := ends_at - time.monotonic()) <= 0:
            return False
        await asyncio.sleep(min(0.05, left))
    return True
