"""cascade schema: Cascade's tables and functions in a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION, connected, database_options
from cascade.cli.output import echo_done, echo_error, echo_json, facts, show
from cascade.errors import SchemaError

if TYPE_CHECKING:
    import psycopg

    from cascade.sql.migrate import SchemaStatus

SENTENCES = {
    "missing": "Cascade is not installed in this database",
    "current": "the schema is current",
    "older": "the schema is older than this code",
    "newer": "the schema is newer than this code",
}


@click.group()
def schema() -> None:
    """Install Cascade in a database, upgrade it, remove it.

    \b
    cascade schema install --dsn service=shop
    cascade schema status
    cascade schema sql | psql service=shop
    """


@schema.command()
@database_options
def install(dsn: str, as_json: bool) -> None:
    """Install the schema; where there is one, bring it up to this version.

    All or nothing, and may be repeated: functions and grants are then made again.

    \b
    cascade schema install --dsn 'host=db1 dbname=shop'
    """
    from cascade.sql import migrate

    with opened(dsn) as conn:
        before, after = migrate.status(conn), migrate.install(conn)
    if before.state == "missing":
        message = f"installed schema version {after.installed}"
    elif before.state == "current":
        message = f"already current: schema version {after.installed}"
    else:
        message = f"upgraded the schema from version {before.installed} to {after.installed}"
    echo_done({**as_row(after), "before": before.installed}, message, as_json=as_json)


@schema.command()
@database_options
def upgrade(dsn: str, as_json: bool) -> None:
    """Bring an installed schema up to this version.

    \b
    cascade schema upgrade --dsn service=shop
    """
    from cascade.sql import migrate

    with opened(dsn) as conn:
        before = migrate.status(conn)
        if before.state == "missing":
            raise SchemaError(SENTENCES["missing"], hint="cascade schema install puts it there.")
        after = migrate.install(conn)
    if before.state == "current":
        message = f"already current: schema version {after.installed}"
    else:
        message = f"upgraded the schema from version {before.installed} to {after.installed}"
    echo_done({**as_row(after), "before": before.installed}, message, as_json=as_json)


@schema.command()
@database_options
def status(dsn: str, as_json: bool) -> int:
    """Show which version is installed; exits 0 if it is the one this code wants, else 1.

    \b
    cascade schema status --dsn service=shop || cascade schema install --dsn service=shop
    """
    from cascade.sql import migrate

    with opened(dsn) as conn:
        found = migrate.status(conn)
    if as_json:
        echo_json(as_row(found))
    else:
        installed = "none" if found.installed is None else str(found.installed)
        pairs = [("state", found.state), ("installed", installed), ("wanted", str(found.wanted))]
        show(facts([*pairs, ("queues", str(found.queues))]))
        if found.state in ("missing", "older"):
            verb = "install" if found.state == "missing" else "upgrade"
            click.echo(f"{SENTENCES[found.state]}: cascade schema {verb}", err=True)
        elif found.state == "newer":
            click.echo(f"{SENTENCES['newer']}: upgrade the cascade-queue package on this machine", err=True)
    return 0 if found.state == "current" else 1


@schema.command()
@click.option("--force", is_flag=True, help="Also when there are queues; their events are gone then.")
@database_options
def uninstall(force: bool, dsn: str, as_json: bool) -> int:
    """Remove Cascade from a database; refused (exit 3) while there are queues, unless forced.

    \b
    cascade schema uninstall --dsn service=shop
    cascade schema uninstall --dsn service=shop --force
    """
    from cascade.sql import migrate

    with opened(dsn) as conn:
        found = migrate.status(conn)
        if found.queues and not force:
            things = "1 queue with its" if found.queues == 1 else f"{found.queues} queues with their"
            hint = "cascade schema uninstall --force removes them too; cascade queue list shows them."
            echo_error(f"this database holds {things} events", hint, None, as_json=as_json)
            return 3
        removed = migrate.uninstall(conn, force=force)
    message = "removed Cascade from this database" if removed else f"nothing to do: {SENTENCES['missing']}"
    echo_done({"removed": removed, "queues": found.queues}, message, as_json=as_json)
    return 0


@schema.command()
@JSON_OPTION
def sql(as_json: bool) -> None:
    """Print the whole installation for psql, for those who may run nothing else.

    \b
    cascade schema sql > cascade.sql
    psql service=shop -f cascade.sql
    """
    from cascade.sql import VERSION, migrate

    text = migrate.psql_script()
    if as_json:
        echo_json({"version": VERSION, "sql": text})
    else:
        click.echo(text, nl=False)


@contextmanager
def opened(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Return a connection for the installer."""
    with connected(dsn) as client:
        yield client.connection()


def as_row(found: SchemaStatus) -> dict[str, Any]:
    """Return a status as --json shows it."""
    return {"state": found.state, "installed": found.installed, "wanted": found.wanted, "queues": found.queues}
