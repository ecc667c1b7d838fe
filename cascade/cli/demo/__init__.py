"""cascade demo: a cascade at work, a root that is lost, and a proof that nothing else is.

    s1 root ──> s2 branch
      └───────> s3 branch ──> s4 leaf

Producers at the root write an order and its event in one transaction, and some roll back.  On every node somebody
handles the events: consumers on s1, s2 and s3, a handler on the leaf s4.  Each writes what it handled in the
transaction that moves its position.  So at the end the logs must be equal, digest by digest, and
every node must have handled what producers were told to be safe, whatever was switched, killed and replaced meanwhile.

places.py has the servers and the file, shop.py producers and consumers, stage.py what is seen, acts.py what
happens, proof.py what is compared at the end, play.py how all this is started and stopped.  In combined/ are
those of another play, about a combined set.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out

if TYPE_CHECKING:
    from cascade.cli.demo.play import Play


@click.command()
@click.option("--combined", "is_combined", is_flag=True, help="Four queues that are merged into one.")
@click.option("--act", type=click.IntRange(1, 2), help="Only this act: 1 copying or merging, 2 failover.")
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
def demo(is_combined: bool, act: int | None, seconds: float, rate: int, directory: Path | None, as_json: bool) -> int:
    """Watch four databases carry one queue, lose its root, and see that nothing is lost or doubled.

    Starts four PostgreSQL servers and a daemon for each.  Act 1 publishes orders at the root, handles them on
    every node, has the leaf switch providers and a daemon killed while events flow.  Act 2 kills the root's
    server, makes a branch the root, has the old root come back with orders that nobody else has, and closes the
    books.  After each act the logs of all nodes are compared, what each has handled, and what producers were told
    to be safe.

    With --combined four shops insert into queues of their own, a, b, c and d, which are merged into the queue s at
    s1; s2 follows it and could take over, s3 is a branch.  Act 1 merges, and kills the daemon that does it.  Act 2
    kills the server of s1 while the shops go on, promotes s2, and has s1 come back.  After each act every event of
    every shop must be in s once, on every node, in the order of its shop.

    Exits 1 if it is not so.  Ctrl-C ends it sooner; in act 1, without act 2.  Everything is
    removed afterwards, unless --dir says where to keep it, for `cascade dev up --dir DIR` to start again.

    \b
    cascade demo
    cascade demo --act 2
    cascade demo --seconds 60 --rate 1000
    cascade demo --combined
    """
    from cascade.cli.node import loop_factory

    play = choose(is_combined)
    click.echo(f"starting {play.servers} ...", err=True)
    with play.places(directory) as where, asyncio.Runner(loop_factory=loop_factory()) as runner:
        played = play.open(where, rate, to_stderr=as_json)
        proofs = runner.run(played.perform((act,) if act else (1, 2), seconds))
    is_proven = all(proof.is_proven for proof in proofs)
    if as_json:
        acts = [proof.as_plain() for proof in proofs]
        out.echo_json({"proven": is_proven, "nodes": acts[-1]["nodes"], "acts": acts})
    else:
        click.echo(f"\n{play.proven if is_proven else play.disproven}")
    return 0 if is_proven else 1


def choose(is_combined: bool) -> type[Play]:
    """Return what is to be played."""
    if is_combined:
        from cascade.cli.demo.combined.acts import ManyQueues

        return ManyQueues
    from cascade.cli.demo.acts import OneQueue

    return OneQueue
