"""cascade dev: real PostgreSQL servers on this machine, to try things on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from cascade.dev import Cluster, Server, ServerState, find_binaries
from cascade.dev.settings import check_settings
from cascade.errors import ServerError

DIR_OPTION = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cascade"),
    show_default=True,
    help="Where the nodes live.",
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
STATE_STYLES = {
    ServerState.RUNNING: "green",
    ServerState.STOPPED: "yellow",
    ServerState.CRASHED: "red",
    ServerState.MISSING: "red",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dev() -> None:
    """PostgreSQL servers on this machine, for development and for the demo.

    They listen on 127.0.0.1 only and keep running until they are taken down.

    \b
    cascade dev up --nodes 2
    cascade dev psql n1
    cascade dev down
    """


@dev.command()
@click.option("--nodes", type=click.IntRange(1, 64), default=4, show_default=True, help="How many, at least.")
@DIR_OPTION
@click.option("--pg", type=click.Choice(["system", "wheel"]), help="Which PostgreSQL, if not the first found.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting of PostgreSQL; repeatable.")
@JSON_OPTION
def up(
    nodes: int, directory: Path, pg: Literal["system", "wheel"] | None, pairs: tuple[str, ...], as_json: bool
) -> None:
    """Make and start the nodes n1, n2 and so on.

    May be repeated: what runs is left alone, what is stopped is started, what is missing is made.
    A setting that needs a restart is taken by running nodes after a `down`.

    \b
    cascade dev up
    cascade dev up --nodes 2 --pg wheel --set shared_buffers=1GB --set wal_level=logical
    """
    binaries = find_binaries(pg) if pg else None
    cluster = Cluster(directory, nodes=nodes, binaries=binaries, settings=parse_settings(pairs))
    cluster.up()
    show(cluster, as_json=as_json)


@dev.command()
@DIR_OPTION
@click.option("--remove", is_flag=True, help="Delete the nodes and everything in them.")
@JSON_OPTION
def down(directory: Path, remove: bool, as_json: bool) -> None:
    """Stop the nodes; their data stays unless --remove is given.

    \b
    cascade dev down
    cascade dev down --remove
    """
    cluster = Cluster.open(directory)
    if not remove:
        cluster.down()
        show(cluster, as_json=as_json)
        return
    names = list(cluster.nodes)
    cluster.remove()
    if as_json:
        click.echo(json.dumps({"dir": str(cluster.dir), "removed": names}))
    else:
        click.echo(f"removed {', '.join(names)} from {directory}")


@dev.command()
@DIR_OPTION
@JSON_OPTION
def status(directory: Path, as_json: bool) -> None:
    """Show the nodes: running, stopped, crashed (killed, and not started since) or missing.

    \b
    cascade dev status
    cascade dev status --json
    """
    show(Cluster.open(directory), as_json=as_json)


@dev.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@DIR_OPTION
@click.argument("node")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(directory: Path, node: str, arguments: tuple[str, ...]) -> None:
    """Open psql on a node; whatever follows the name of the node is for psql.

    \b
    cascade dev psql n1
    cascade dev psql n1 -c 'select version()'
    """
    server = Cluster.open(directory)[node]
    if server.psql is None:
        raise ServerError(
            f"there is no psql in {server.binaries.bin_dir} nor on PATH",
            hint="install a PostgreSQL client, or use any other with the DSN of `cascade dev status`",
        )
    require_running(server)
    os.execv(server.psql, [str(server.psql), "-d", server.dsn(), *arguments])


@dev.command()
@DIR_OPTION
@click.argument("node", required=False)
@click.option("-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="How many lines.")
@click.option("--follow", is_flag=True, help="Wait for more, until interrupted.")
def logs(directory: Path, node: str | None, lines: int, follow: bool) -> None:
    """Show the last lines that one server, or each, has logged.

    \b
    cascade dev logs
    cascade dev logs n1 -n 200 --follow
    """
    cluster = Cluster.open(directory)
    servers = [cluster[node]] if node else list(cluster.nodes.values())
    positions: dict[str, int] = {}
    for server in servers:
        text = server.log.read_bytes() if server.log.exists() else b""
        positions[server.name] = text.rfind(b"\n") + 1
        said = text[: positions[server.name]].splitlines()
        echo_lines(server, said[len(said) - min(lines, len(said)) :], with_name=not node)
    while follow:
        for server in servers:
            echo_lines(server, new_lines(server.log, server.name, positions), with_name=not node)
        time.sleep(0.2)


def new_lines(log: Path, name: str, positions: dict[str, int]) -> Iterator[bytes]:
    """The whole lines written since the last look; `positions` moves past them."""
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(positions[name])
        for line in file:
            if not line.endswith(b"\n"):
                break
            positions[name] += len(line)
            yield line.rstrip(b"\n")


def echo_lines(server: Server, lines: Iterator[bytes] | list[bytes], *, with_name: bool) -> None:
    """Print lines of a log, with the node's name before each if there are several."""
    for line in lines:
        text = line.decode(errors="replace")
        click.echo(f"{server.name} | {text}" if with_name else text)


def parse_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE pairs as a mapping; a pair without a name is bad usage."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
        settings[name.strip()] = value.strip()
    check_settings(settings)
    return settings


def require_running(server: Server) -> None:
    """Refuse a server that is not up, with what to do about it."""
    if not server.is_running:
        raise ServerError(f"node {server.name} is {server.state}", hint="`cascade dev up` starts it")


def show(cluster: Cluster, *, as_json: bool) -> None:
    """Print the nodes of a cluster: a table, or {"dir": ..., "nodes": [{"node", "port", ...}]}."""
    rows = [
        {
            "node": server.name,
            "port": server.port,
            "version": server.binaries.version_text,
            "state": server.state.value,
            "dsn": server.dsn(),
        }
        for server in cluster.nodes.values()
    ]
    if as_json:
        click.echo(json.dumps({"dir": str(cluster.dir), "nodes": rows}))
        return
    table = Table("node", "port", "version", "state", "dsn", box=None, pad_edge=False)
    for row in rows:
        style = STATE_STYLES[ServerState(str(row["state"]))]
        table.add_row(*(f"[{style}]{v}[/]" if k == "state" else str(v) for k, v in row.items()))
    # Wider than any row: a DSN that a terminal wraps can be copied, one that a table wraps cannot.
    Console(width=1000).print(table)


if __name__ == "__main__":
    dev()
