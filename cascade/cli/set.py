"""cascade set: make a set and its root."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.status import FILE_OPTION
from cascade.errors import NodeExistsError
from cascade.topology import Topology, load

if TYPE_CHECKING:
    from cascade.sync import Client


@click.group("set")
def set() -> None:
    """Queues that several databases carry.

    \b
    cascade set create orders -f orders.yaml
    """


@set.command()
@click.argument("name", metavar="SET")
@FILE_OPTION
@JSON_OPTION
def create(name: str, path: Path, as_json: bool) -> int:
    """Make a set: its root, in the database that the file gives it.

    The schema is installed there if need be.  A queue of that name that stands alone becomes the set's,
    with its events.  Every other database of the set is asked first, and it is refused when one of
    them knows the set already under another root.  A second call changes nothing.

    \b
    cascade set create orders -f orders.yaml
    """
    from psycopg.types.json import Jsonb

    from cascade.node.enroll import dsn_of, location_of
    from cascade.sync import connect

    topology = load(path)
    root = topology.find(name, topology.sets[name].root.name) if name in topology.sets else topology.find(name, "")
    silent = check_nobody_reigns(topology, name)
    with connect(dsn_of(topology, root.database)) as client:
        install_if_needed(client)
        uid = client.call(
            "select cascade.create_set(%s, %s, %s, %s, %s)",
            name,
            root.name,
            location_of(topology, root),
            Jsonb(dict(topology.sets[name].options)),
            topology.sets[name].is_combined,
        )
    if silent and not as_json:
        click.echo(f"note: {', '.join(silent)} did not answer and could not be asked", err=True)
    out.echo_done(
        {"set": name, "uid": str(uid), "root": root.name, "silent": silent},
        f"set {name}: root {root.name} in database {root.database}",
        as_json=as_json,
    )
    return 0


def install_if_needed(client: Client) -> None:
    """Install the schema where it is not; whoever only uses it need not be its owner."""
    from cascade.sql import migrate

    if migrate.status(client.connection()).state != "current":
        migrate.install(client.connection())


def check_nobody_reigns(topology: Topology, name: str) -> list[str]:
    """Refuse a second root; return the databases that did not answer."""
    from cascade.node.observe import observe

    root = topology.sets[name].root
    answers = asyncio.run(observe(topology))
    for node in topology.sets[name].nodes.values():
        found = answers[node.database].nodes.get(name)
        if found is not None and found["root"] != root.name:
            raise NodeExistsError(
                f"set {name} exists: its root is {found['root']}, says database {node.database}",
                hint="The file is older than the set, or its name is taken.",
            )
    return [
        node.database
        for node in topology.sets[name].nodes.values()
        if (error := answers[node.database].error) is not None and "not installed" not in error
    ]
