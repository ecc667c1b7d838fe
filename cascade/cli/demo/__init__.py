"""cascade demo: a cascade of four databases at work, a root that is lost, and a proof that every node holds the same.

    s1 root ──> s2 branch
      └───────> s3 branch ──> s4 leaf

Producers at the root write an order and its event in one transaction, and some roll back.  On every node somebody
handles the events: consumers on s1, s2 and s3, a handler on the leaf s4.  Each writes what it handled in the
transaction that moves its position.  So at the end the logs must be equal, digest by digest, and
every node must have handled what producers were told to be safe, whatever was switched, killed and replaced meanwhile.

places.py has the servers and the file, shop.py producers and consumers, stage.py what is seen, acts.py what
happens, proof.py what is compared at the end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION, until
from cascade.cli import output as out

if TYPE_CHECKING:
    from cascade.cli.demo.places import Places
    from cascade.cli.demo.proof import Proof
    from cascade.cli.demo.shop import Shop
    from cascade.cli.demo.stage import Stage


@click.command()
@click.option("--act", type=click.IntRange(1, 2), help="Only this act: 1 copying, 2 failover.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=20.0,
    show_default=True,
    help="How long act 1 takes; Ctrl-C ends it sooner.",
)
@click.option("--rate", type=click.IntRange(1, 20000), default=200, show_default=True, help="Orders per second.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Keep the servers here.")
@JSON_OPTION
def demo(act: int | None, seconds: float, rate: int, directory: Path | None, as_json: bool) -> int:
    """Watch four databases carry one queue, lose its root, and see that nothing is lost or doubled.

    Starts four PostgreSQL servers and a daemon for each.  Act 1 publishes orders at the root, handles them on
    every node, has the leaf switch providers and a daemon killed while events flow.  Act 2 kills the root's
    server, makes a branch the root, has the old root come back with orders that nobody else has, and closes the
    books.  After each act the logs of all nodes are compared, what each has handled, and what producers were told
    to be safe.  Exits 1 if they differ.  Ctrl-C ends it sooner; in act 1, without act 2.  Everything is
    removed afterwards, unless --dir says where to keep it, for `cascade dev up --dir DIR` to start again.

    \b
    cascade demo
    cascade demo --act 2
    cascade demo --seconds 60 --rate 1000
    """
    from cascade.cli.demo.places import places
    from cascade.cli.node import loop_factory

    click.echo("starting four PostgreSQL servers ...", err=True)
    with places(directory) as where, asyncio.Runner(loop_factory=loop_factory()) as runner:
        proofs = runner.run(play(where, (act,) if act else (1, 2), seconds, rate, to_stderr=as_json))
    is_proven = all(proof.is_proven for proof in proofs)
    if as_json:
        acts = [as_plain(proof) for proof in proofs]
        out.echo_json({"proven": is_proven, "nodes": acts[-1]["nodes"], "acts": acts})
    else:
        click.echo("\nEvery node has the same." if is_proven else "\nTHE NODES DIFFER.")
    return 0 if is_proven else 1


async def play(where: Places, acts: tuple[int, ...], seconds: float, rate: int, *, to_stderr: bool) -> list[Proof]:
    """Play the acts, and return a proof of each."""
    from cascade.cli.demo.shop import Shop
    from cascade.cli.demo.stage import Stage

    # Streams log that they lost a server; here that is told otherwise.
    logging.getLogger("cascade").addHandler(logging.NullHandler())
    shop = Shop(where, rate)
    stage = Stage(where, shop.headline, to_stderr=to_stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stage.hurry)
    with stage.lit():
        try:
            async with asyncio.TaskGroup() as group:
                return await perform(stage, shop, group, acts, seconds)
        finally:
            stage.children.kill()


async def perform(
    stage: Stage, shop: Shop, group: asyncio.TaskGroup, acts: tuple[int, ...], seconds: float
) -> list[Proof]:
    """Start everybody, play, and stop everybody."""
    from cascade.cli.demo.acts import first_act, second_act
    from cascade.cli.demo.places import NODES

    proofs: list[Proof] = []
    stage.start(group, *NODES)
    watching = group.create_task(stage.watch(), name="watch")
    if not await until(lambda: sum(node.role is not None for node in stage.statuses) == len(NODES), timeout_s=60):
        raise TimeoutError("the nodes did not come up within a minute")
    carriers = [name for name in NODES if name != "s4"]
    consumers = [group.create_task(shop.consume(name), name=f"consumer {name}") for name in carriers]
    for act in acts:
        if act == 1:
            proof = await first_act(stage, shop, group, seconds)
        elif proofs and stage.is_hurried.is_set():
            break
        else:
            proof = await second_act(stage, shop, group)
        proofs.append(proof)
        show(stage, proof)
    shop.end()
    await asyncio.wait(consumers)
    watching.cancel()
    stage.children.end(within_s=10)
    return proofs


def show(stage: Stage, proof: Proof) -> None:
    """Show what was proven after an act."""
    from cascade.cli.demo.proof import sentences, table

    stage.show(table(proof))
    stage.show(f"\n{sentences(proof.books)}\n")


def as_plain(proof: Proof) -> dict[str, Any]:
    """Return a proof as the contract of --json has it."""
    nodes = [out.plain(row) for row in proof.nodes]
    books = asdict(proof.books)
    certificate = books.pop("certificate")
    return {
        "act": proof.act,
        "proven": proof.is_proven,
        "nodes": nodes,
        "books": books,
        "certificate": certificate and out.plain(certificate),
    }
