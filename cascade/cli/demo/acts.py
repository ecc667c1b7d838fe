"""The two acts: a cascade at work while nodes are switched and killed; a root that is lost, replaced and back."""

from __future__ import annotations

import asyncio
import difflib
import re
import signal
import time
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import LiteralString

from rich.text import Text

from cascade.cli import fetch, until
from cascade.cli.demo.places import NODES, SET, Places, places
from cascade.cli.demo.play import Play
from cascade.cli.demo.proof import Proof, prove
from cascade.cli.demo.shop import CONSUMER, Shop
from cascade.cli.demo.stage import Stage
from cascade.client import Client, connect
from cascade.errors import CascadeError
from cascade.topology.edit import read_file

CAUGHT_UP: LiteralString = """
    select n.tick_id >= %s and not exists (select from cascade.consumers as c
                                            where c.queue = n.set and c.consumer = %s and c.tick_id < %s) as is_past
      from cascade.nodes as n where n.set = %s
"""


class OneQueue(Play):
    """A set of four nodes, one of them a leaf."""

    servers = "four PostgreSQL servers"
    proven, disproven = "Every node has the same.", "THE NODES DIFFER."
    daemons, consumers = NODES, ("s1", "s2", "s3")

    def __init__(self, where: Places, shop: Shop, *, to_stderr: bool) -> None:
        super().__init__(where, shop, to_stderr=to_stderr)
        self.shop = shop

    @classmethod
    def places(cls, directory: Path | None) -> AbstractContextManager[Places]:
        """Return what runs the servers during a block."""
        return places(directory)

    @classmethod
    def open(cls, where: Places, rate: int, *, to_stderr: bool) -> OneQueue:
        """Return a play that has not begun."""
        return cls(where, Shop(where, rate), to_stderr=to_stderr)

    async def act(self, number: int, group: asyncio.TaskGroup, seconds: float) -> Proof:
        """Play one act, and prove what must hold after it."""
        if number == 1:
            return await first_act(self.stage, self.shop, group, seconds)
        return await second_act(self.stage, self.shop, group)


async def first_act(stage: Stage, shop: Shop, group: asyncio.TaskGroup, seconds: float) -> Proof:
    """Publish, have the leaf switch providers and a daemon killed meanwhile, and compare all nodes at the end."""
    producers = shop.open(group)
    began_at = time.monotonic()
    await _trouble(stage, group, seconds)
    await stage.pause(began_at + seconds - time.monotonic())
    return await _close(stage, shop, producers, 1)


async def _trouble(stage: Stage, group: asyncio.TaskGroup, seconds: float) -> None:
    """Have the leaf switch providers, and kill a daemon; whoever is in a hurry is spared that."""
    if await stage.pause(seconds * 0.3):
        return
    stage.where.change("s4", provider="s2")
    stage.note("the topology file says now that s4 copies from s2, not from s3; nobody is stopped")
    if await stage.pause(seconds * 0.3):
        return
    stage.signal(signal.SIGKILL, "s2")
    stage.note("the daemon of s2 was killed (kill -9)")
    await stage.pause(min(3.0, seconds * 0.1))
    stage.start(group, "s2")
    stage.note("the daemon of s2 was started again")


async def _close(stage: Stage, shop: Shop, producers: list[asyncio.Task[None]], act: int) -> Proof:
    """Stop the producers, let every node catch up, and prove."""
    stage.note(f"the end of act {act}: producers stop, every node catches up")
    shop.is_closed.set()
    await asyncio.wait(producers)
    await catch_up(stage)
    return await prove(act, shop)


async def catch_up(stage: Stage) -> None:
    """Wait until every node has the root's last tick, and every consumer is past it."""
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(connect(stage.where.dsn(name))) for name in NODES}
        tick = await clients[stage.where.root].queue(SET).tick()
        async with asyncio.timeout(60):
            for client in clients.values():
                while not await is_past(client, SET, tick):  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.1)
    stage.note(f"every node has tick {tick}")


async def is_past(client: Client, set_name: str, tick: int) -> bool:
    """Whether a node has come to a tick, and its consumer, if it has one, too."""
    [row] = await fetch(client, CAUGHT_UP, tick, CONSUMER, tick, set_name)
    return bool(row["is_past"])


async def second_act(stage: Stage, shop: Shop, group: asyncio.TaskGroup) -> Proof:
    """Lose the root with orders that nobody else has, replace it, bring it back, and close the books."""
    producers = shop.open(group)
    await stage.pause(2.0)
    old = stage.where.root
    await lose_root(stage, shop, old)
    await fail_over(stage, shop, old)
    await stage.pause(2.0)
    await come_back(stage, shop, group, old)
    await settle(stage, old)
    await stage.pause(1.0)
    return await _close(stage, shop, producers, 2)


async def lose_root(stage: Stage, shop: Shop, old: str) -> None:
    """Kill the root's server while the branches are behind, so that there is something to lose."""
    branches = [name for name in ("s1", "s2", "s3") if name != old]
    stage.signal(signal.SIGSTOP, *branches)
    stage.note(f"the daemons of {' and '.join(branches)} hang (kill -STOP): nobody has what {old} takes from now on")
    await until(lambda: False, timeout_s=1.5)
    await stage.command("status")
    stage.signal(signal.SIGKILL, old)
    await asyncio.to_thread(stage.where.cluster[old].kill)
    shop.root = None
    stage.signal(signal.SIGCONT, *branches)
    stage.note(f"{old} is gone: its server and its daemon were killed (kill -9) while producers were writing")
    await stage.command("status")


async def fail_over(stage: Stage, shop: Shop, old: str) -> None:
    """Do what an operator does: look what would be done, accept what may be lost, and have it done."""
    dry_run = await stage.command("failover", SET, "--dead", old, "--dry-run")
    fork = re.search(r"--allow-loss (\d+)", dry_run)
    if fork is None:
        raise CascadeError("the dry run names no tick after which events may be lost")
    before, began_at = read_file(stage.where.file), time.monotonic()
    words = ("--fenced-by", "kill -9", "--allow-loss", fork[1])
    await stage.command("failover", SET, "--dead", old, *words)
    shop.root = stage.where.root
    if shop.root == old:
        raise CascadeError(f"{old} is still the root")
    show_change(stage, before)
    if await until(lambda: shop.last_at > began_at, timeout_s=30):
        stage.note(f"{shop.root} takes orders, {shop.last_at - began_at:.1f} s after the command was given")
    await stage.command("certificate", "list")


def show_change(stage: Stage, before: str) -> None:
    """Show what a command changed in the topology file."""
    after = read_file(stage.where.file)
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[3:]
    stage.show(Text(f"\n{stage.where.file.name}, as the command changed it:", style="bold"))
    stage.show(Text("\n".join(f"  {line}" for line in lines)))


async def come_back(stage: Stage, shop: Shop, group: asyncio.TaskGroup, old: str) -> None:
    """Start the old root's server, which knows of nothing and takes orders, until its daemon hears and fences it."""
    await asyncio.to_thread(stage.where.cluster[old].start)
    stage.note(f"the server of {old} is back; a program that nobody told writes its orders there")
    writing = group.create_task(shop.write_past_the_root(old), name="past the root")
    await until(lambda: False, timeout_s=0.5)
    stage.start(group, old)
    async with asyncio.timeout(60):
        count = await writing
    stage.note(f"{old} took {count} more orders before its daemon heard of the new term and fenced it")
    await stage.wait_for(old, "fenced", "root")
    await stage.command("status")


async def settle(stage: Stage, old: str) -> None:
    """Bring the old root back as a branch, republish what only it had, and see the certificate closed."""
    await stage.command("resurrect", SET, old)
    await stage.wait_for(old, "running", "branch")
    await stage.command("quarantine", "list", SET)
    await stage.command("quarantine", "republish", SET, old)
    await stage.command("certificate", "list")
