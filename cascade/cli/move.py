"""cascade consumer move: a consumer goes to another node of the set and goes on at the same tick.

The three steps, each of which may be repeated; running the command again finds where it was left:

    stop it at the old node ──> make it at the new one ──> let go of it at the old one
             └── the new node cannot take it ──> refuse it there for good ──> go on at the old one
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.status import FILE_OPTION
from cascade.errors import (
    BehindError,
    CascadeError,
    ConsumerBusyError,
    ConsumerExistsError,
    DivergedError,
    ExpiredError,
    MovedOnError,
    TickNotFoundError,
    TransientError,
)
from cascade.topology import load

if TYPE_CHECKING:
    from cascade.sync import Client

T = TypeVar("T")

STOP: LiteralString = "select cascade.move_consumer(%s, %s, %s, %s)"
ACCEPT: LiteralString = "select cascade.accept_consumer(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
LET_GO: LiteralString = "select cascade.finish_move(%s, %s, %s)"
REFUSE: LiteralString = "select cascade.refuse_consumer(%s, %s, %s, %s)"
TAKE_BACK: LiteralString = "select cascade.cancel_move(%s, %s, %s)"

LOOK_S = 0.1
#: What the new node says when it can never take the consumer; MovedOnError: it has said so before.
HOPELESS = (ConsumerExistsError, DivergedError, ExpiredError, MovedOnError, TickNotFoundError)


@click.command()
@click.argument("queue")
@click.argument("consumer")
@click.option("--from", "from_node", metavar="NODE", required=True, help="The node where it is.")
@click.option("--to", "to_node", metavar="NODE", required=True, help="The node where it is to go on.")
@FILE_OPTION
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for its readers to finish, and for the new node to come to its tick.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@JSON_OPTION
def move(
    queue: str, consumer: str, from_node: str, to_node: str, path: Path, wait_s: float, dry_run: bool, as_json: bool
) -> None:
    """Move a consumer to another node, where it goes on at the same tick, exactly once.

    Stop its readers first, or have them finish what they hold within --wait.  Events it put back go along, and so
    do the rights of the roles that read as it, where the new node's server has these roles.  A command that
    was interrupted is run again.

    \b
    cascade consumer move orders billing --from s1 --to s2 -f orders.yaml
    cascade consumer move orders billing --from s1 --to s2 -f orders.yaml --dry-run
    """
    from cascade.node.enroll import dsn_of
    from cascade.sync import connect

    topology = load(path)
    old, new = topology.find(queue, from_node), topology.find(queue, to_node)
    deadline = time.monotonic() + wait_s
    with connect(dsn_of(topology, old.database)) as source, connect(dsn_of(topology, new.database)) as target:
        plan = until(deadline, lambda: stop(source, queue, consumer, to_node, dry_run=True))
        done: dict[str, Any] = {"granted": [], "missing": []}
        if plan["state"] == "at home" or (dry_run and plan["state"] == "moving"):
            # Whatever the new node would refuse shows before anything is done.
            done = until(deadline, lambda: accept(target, plan, dry_run=True))
        if not as_json:
            for step in steps(plan, done["granted"]):
                click.echo(step)
        if not dry_run and plan["state"] != "moved":
            plan = until(deadline, lambda: stop(source, queue, consumer, to_node, dry_run=False))
            done = carry_over(source, target, plan, deadline)
    report(plan, done, dry_run=dry_run, as_json=as_json)


def stop(source: Client, queue: str, consumer: str, to_node: str, *, dry_run: bool) -> dict[str, Any]:
    """Stop the consumer at the old node, or see that it can be; one that is stopped stays so."""
    found: Any = source.call(STOP, queue, consumer, to_node, dry_run)
    return dict(found)


def accept(target: Client, plan: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    """Make the consumer at the new node, or see that it can be; one that has arrived stays as it is."""
    from psycopg.types.json import Jsonb

    found: Any = target.call(
        ACCEPT,
        *(plan["queue"], plan["consumer"], plan["tick_id"], plan["from"], plan["move"], Jsonb(plan["retries"])),
        *(plan["roles"], plan["chain"], dry_run),
    )
    return dict(found)


def carry_over(source: Client, target: Client, plan: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Take the second and the third step, or go back when the new node can never take the consumer."""
    try:
        done = until(deadline, lambda: accept(target, plan, dry_run=False))
    except HOPELESS as error:
        if target.call(REFUSE, plan["queue"], plan["consumer"], plan["from"], plan["move"]):
            source.call(TAKE_BACK, plan["queue"], plan["consumer"], plan["move"])
            raise CascadeError(
                f"{error.args[0]}; consumer {plan['consumer']} goes on at node {plan['from']}", hint=error.hint
            ) from error
        raise
    except (BehindError, TransientError) as error:
        where = f"node {plan['from']}, at tick {plan['tick_id']}"
        raise CascadeError(
            f"{error.args[0]}; consumer {plan['consumer']} is stopped at {where}",
            hint="Run the same command again, with a longer --wait: it goes on from here.",
        ) from error
    source.call(LET_GO, plan["queue"], plan["consumer"], plan["move"])
    return done


def until(deadline: float, call: Callable[[], T]) -> T:
    """Call until the consumer's readers have finished and the new node has caught up, or time is over."""
    while True:
        try:
            return call()
        except (ConsumerBusyError, BehindError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_S)


def steps(plan: dict[str, Any], granted: list[str]) -> list[str]:
    """Return what is left to do, a line each."""
    name, tick, old, new = plan["consumer"], plan["tick_id"], plan["from"], plan["to"]
    if plan["state"] == "moved":
        return [f"nothing: consumer {name} has left node {old}"]
    found = []
    if plan["state"] == "at home":
        found.append(f"stop consumer {name} at node {old}, at tick {tick}, with {put_back(plan)} events put back")
    found.append(f"make it at node {new}, at tick {tick}")
    found += [f"let role {role} read as it there" for role in granted]
    return [*found, f"let go of it at node {old}"]


def put_back(plan: dict[str, Any]) -> int:
    """Return how many events it takes along; in work mode they are its messages and its dead ones."""
    retries = plan["retries"]
    return len(retries["messages"]) + len(retries["dead"]) if isinstance(retries, dict) else len(retries)


def report(plan: dict[str, Any], done: dict[str, Any], *, dry_run: bool, as_json: bool) -> None:
    """Say where the consumer is now, and which roles could not be let in."""
    result = {name: plan[name] for name in ("queue", "consumer", "from", "to", "move", "tick_id")}
    result |= {
        "state": plan["state"] if dry_run else "moved",
        "retries": put_back(plan),
        "granted": done["granted"],
        "missing_roles": done["missing"],
        "dry_run": dry_run,
    }
    verb, where = "would go on" if dry_run else "goes on", f"node {plan['to']}, tick {plan['tick_id']}"
    message = f"consumer {plan['consumer']} of queue {plan['queue']} {verb} at {where}"
    out.echo_done(result, message, as_json=as_json)
    for role in done["missing"] if not as_json else ():
        click.echo(
            f"note: node {plan['to']} has no role {role}; once it has, cascade.grant_consumer() lets it read", err=True
        )
