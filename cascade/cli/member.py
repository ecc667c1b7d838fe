"""cascade node pause, resume, switch, add, drop, mark-dead: what an operator does to one node of a set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.status import FILE_OPTION
from cascade.topology import Node, Topology, load

F = TypeVar("F", bound=Callable[..., Any])


def about_a_node(command: F) -> F:
    """Give a command SET, NODE, the file and --json."""
    command = click.argument("node_name", metavar="NODE")(command)
    return click.argument("set_name", metavar="SET")(FILE_OPTION(JSON_OPTION(command)))


def find(path: Path, set_name: str, node_name: str) -> tuple[Topology, Node]:
    """Read the file and find the node in it."""
    topology = load(path)
    return topology, topology.find(set_name, node_name)


def call(topology: Topology, database: str, query: LiteralString, *arguments: object) -> object:
    """Run one statement in a database of the file."""
    from cascade.node.enroll import dsn_of
    from cascade.sync import connect

    with connect(dsn_of(topology, database)) as client:
        return client.call(query, *arguments)


def done(node: Node, action: str, message: str, *, as_json: bool, **more: object) -> None:
    """Say what was done to a node."""
    out.echo_done({"set": node.set, "node": node.name, "action": action, **more}, message, as_json=as_json)


@click.command()
@about_a_node
def pause(set_name: str, node_name: str, path: Path, as_json: bool) -> None:
    """Have a branch or leaf copy nothing until it is resumed.

    The others keep what it will need.

    \b
    cascade node pause orders s4 -f orders.yaml
    """
    topology, node = find(path, set_name, node_name)
    generation = call(topology, node.database, "select cascade.pause_node(%s)", set_name)
    done(node, "paused", f"node {node_name} is paused", as_json=as_json, generation=generation)


@click.command()
@about_a_node
def resume(set_name: str, node_name: str, path: Path, as_json: bool) -> None:
    """Have a paused node copy again; one that its provider refused asks anew.

    \b
    cascade node resume orders s4 -f orders.yaml
    """
    topology, node = find(path, set_name, node_name)
    generation = call(topology, node.database, "select cascade.resume_node(%s)", set_name)
    done(node, "resumed", f"node {node_name} goes on", as_json=as_json, generation=generation)


@click.command()
@about_a_node
@click.option("--provider", required=True, metavar="OTHER", help="The node to copy from.")
def switch(set_name: str, node_name: str, provider: str, path: Path, as_json: bool) -> None:
    """Have a node copy from another provider, without restart, loss or repetition.

    The new provider is asked first: nothing changes unless it would serve the node.

    \b
    cascade node switch orders s4 --provider s2 -f orders.yaml
    """
    from cascade.node.enroll import dsn_of
    from cascade.node.enroll import switch as switch_provider
    from cascade.node.home import Home

    topology, node = find(path, set_name, node_name)
    topology.find(set_name, provider)
    home = Home(set=set_name, dsn=dsn_of(topology, node.database), topology=lambda: topology)
    generation = asyncio.run(switch_provider(home, provider))
    done(node, "switched", f"node {node_name} copies from {provider} now", as_json=as_json, generation=generation)
    if node.provider != provider and not as_json:
        click.echo(
            f"note: {path} still says provider: {node.provider}; change it, or it is reported as drift", err=True
        )


@click.command()
@about_a_node
def add(set_name: str, node_name: str, path: Path, as_json: bool) -> None:
    """Add a node that the file describes, or take back one that was dropped or marked dead.

    A daemon does this by itself for a node that was never there; one that was dropped comes back
    only by this command.  It may run while events flow.

    \b
    cascade node add orders s5 -f orders.yaml
    """
    from cascade.cli.set import install_if_needed
    from cascade.node.enroll import dsn_of, enroll
    from cascade.node.home import Home
    from cascade.sync import connect

    topology, node = find(path, set_name, node_name)
    if node.role.is_root:
        raise click.UsageError(f"{node_name} is the root; cascade set create makes it")
    dsn = dsn_of(topology, node.database)
    with connect(dsn) as client:
        install_if_needed(client)
    asyncio.run(enroll(Home(set=set_name, dsn=dsn, topology=lambda: topology), topology, node, again=True))
    done(node, "added", f"node {node_name} is a member; its daemon copies from {node.provider}", as_json=as_json)


@click.command()
@about_a_node
def drop(set_name: str, node_name: str, path: Path, as_json: bool) -> None:
    """Take a node out of its set for good: it holds nobody's disk any more.

    What its database holds stays there.  It comes back by `cascade node add`.

    \b
    cascade node drop orders s4 -f orders.yaml
    """
    end(set_name, node_name, path, "select cascade.drop_member(%s, %s)", "dropped", as_json=as_json)


@click.command("mark-dead")
@about_a_node
def mark_dead(set_name: str, node_name: str, path: Path, as_json: bool) -> None:
    """Stop waiting for a node that is down: the others free what only it still needed.

    When the root has no other live carrier, only that is freed which the node had told it has: it may
    be the only other copy of the rest, which is kept until it comes back or is dropped.
    It comes back by `cascade node add`, if what it needs is still held.

    \b
    cascade node mark-dead orders s4 -f orders.yaml
    """
    end(set_name, node_name, path, "select cascade.mark_dead(%s, %s)", "dead", as_json=as_json)


def end(set_name: str, node_name: str, path: Path, query: LiteralString, state: str, *, as_json: bool) -> None:
    """Take a member out of account, at the root."""
    topology = load(path)
    root = topology.find(set_name, topology.sets[set_name].root.name if set_name in topology.sets else "")
    is_new = call(topology, root.database, query, set_name, node_name)
    message = f"node {node_name} is {state}" if is_new else f"node {node_name} was {state} already"
    out.echo_done({"set": set_name, "node": node_name, "action": state, "changed": is_new}, message, as_json=as_json)


COMMANDS = (pause, resume, switch, add, drop, mark_dead)
