"""The two acts of four queues: they are merged while a daemon is killed; who merges them is lost, replaced and back."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import LiteralString

from cascade.cli import fetch, until
from cascade.cli.demo.acts import show_change
from cascade.cli.demo.combined.places import CARRIERS, PARTS, ROOTS, SET, places
from cascade.cli.demo.combined.proof import Proof, prove
from cascade.cli.demo.combined.shops import CONSUMER, FAR_END, Shops
from cascade.cli.demo.places import Places
from cascade.cli.demo.play import Play
from cascade.client import Client, connect
from cascade.errors import CascadeError
from cascade.topology.edit import read_file

MERGED_UP_TO: LiteralString = "select tick_id from cascade.parts where set = %s and part = %s"
CAUGHT_UP: LiteralString = """
    select n.tick_id >= %s and exists (select from cascade.consumers as c
                                        where c.queue = n.set and c.consumer = %s and c.tick_id >= %s) as is_past
      from cascade.nodes as n where n.set = %s
"""


class ManyQueues(Play):
    """Four plain sets, and a combined one with a combined-root, a combined-failover and a branch."""

    servers = "four PostgreSQL servers, one of them with the databases of four shops"
    proven = f"Every event of every part is in {SET} once, on every node, in the order of its part."
    disproven = f"{SET.upper()} IS NOT THE SUM OF ITS PARTS."
    daemons, consumers = (*ROOTS, *CARRIERS), CARRIERS

    def __init__(self, where: Places, shops: Shops, *, to_stderr: bool) -> None:
        super().__init__(where, shops, to_stderr=to_stderr)
        self.shops = shops

    @classmethod
    def places(cls, directory: Path | None) -> AbstractContextManager[Places]:
        """Return what runs the servers during a block."""
        return places(directory)

    @classmethod
    def open(cls, where: Places, rate: int, *, to_stderr: bool) -> ManyQueues:
        """Return a play that has not begun."""
        return cls(where, Shops(where, rate), to_stderr=to_stderr)

    async def act(self, number: int, group: asyncio.TaskGroup, seconds: float) -> Proof:
        """Play one act, and prove what must hold after it."""
        producers = self.shops.open(group)
        if number == 1:
            await self._merge(group, seconds)
        else:
            await self._lose_the_root(group)
        self.stage.note(f"the end of act {number}: the shops close, every node catches up")
        self.shops.is_closed.set()
        await asyncio.wait(producers)
        await self._catch_up()
        return await prove(number, self.shops, CARRIERS)

    async def _merge(self, group: asyncio.TaskGroup, seconds: float) -> None:
        """Have the daemon killed that merges, for as long as one can see every part run ahead."""
        began_at, root = time.monotonic(), self.where.root
        if await self.stage.pause(seconds * 0.4):
            return
        self.stage.signal(signal.SIGKILL, root)
        self.stage.note(f"the daemon of {root} was killed (kill -9): nobody merges, the shops go on")
        await self.stage.pause(min(5.0, seconds * 0.2))
        self.stage.start(group, root)
        self.stage.note(f"the daemon of {root} was started again: it goes on where the log of {SET} says")
        await self.stage.pause(began_at + seconds - time.monotonic())

    async def _lose_the_root(self, group: asyncio.TaskGroup) -> None:
        """Lose the combined-root with events that nobody else has in the combined set, replace it, and have it back."""
        await self.stage.pause(2.0)
        old = self.where.root
        await self._kill(old)
        await self._fail_over(old)
        await self.stage.pause(2.0)
        await self.stage.command("status")
        await self._come_back(group, old)
        await self.stage.pause(2.0)
        await self.stage.command("status")

    async def _kill(self, old: str) -> None:
        """Kill the server of the combined-root while it has merged more than the branches have."""
        stage = self.stage
        others = [name for name in CARRIERS if name != old]
        stage.signal(signal.SIGSTOP, *others)
        stage.note(
            f"the daemons of {' and '.join(others)} hang (kill -STOP): only {old} has what is merged from now on"
        )
        await until(lambda: False, timeout_s=1.5)
        await stage.command("status")
        stage.signal(signal.SIGKILL, old)
        await asyncio.to_thread(self.where.cluster[old].kill)
        stage.signal(signal.SIGCONT, *others)
        stage.note(f"{old} is gone: its server and its daemon were killed (kill -9); the shops go on")

    async def _fail_over(self, old: str) -> None:
        """Do what an operator does: look what would be done, and have it done."""
        stage, before, began_at = self.stage, read_file(self.where.file), time.monotonic()
        dry_run = await stage.command("failover", SET, "--dead", old, "--dry-run")
        words = ["--fenced-by", "kill -9"]
        if fork := re.search(r"--allow-loss (\d+)", dry_run):
            words += ["--allow-loss", fork[1]]
        before, began_at = read_file(self.where.file), time.monotonic()
        handled = self.shops.handled[FAR_END].total()
        await stage.command("failover", SET, "--dead", old, *words)
        if self.where.root == old:
            raise CascadeError(f"{old} is still the root")
        show_change(stage, before)
        if await until(lambda: self.shops.handled[FAR_END].total() > handled, timeout_s=30):
            seconds = time.monotonic() - began_at
            stage.note(
                f"{self.where.root} merges: {FAR_END} has new events, {seconds:.1f} s after the command was given"
            )

    async def _come_back(self, group: asyncio.TaskGroup, old: str) -> None:
        """Start the old combined-root, which is fenced, and bring it back as a branch that could take over."""
        stage = self.stage
        await asyncio.to_thread(self.where.cluster[old].start)
        stage.start(group, old)
        stage.note(f"the server of {old} is back, and its daemon")
        await stage.wait_for(old, "fenced", "combined-root")
        await stage.command("resurrect", SET, old)
        await stage.wait_for(old, "running", "branch")
        await stage.command("certificate", "list")

    async def _catch_up(self) -> None:
        """Wait until every carrier has every part's last tick, and every consumer has handled it."""
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(connect(self.where.dsn(name))) for name in (*ROOTS, *CARRIERS)
            }
            async with asyncio.timeout(60):
                for part, root in zip(PARTS, ROOTS, strict=True):
                    tick = await clients[root].queue(part).tick()
                    for name in CARRIERS:
                        while not await has_merged(clients[name], part, tick):  # noqa: ASYNC110 - nobody announces it
                            await asyncio.sleep(0.1)
                tick = await clients[self.where.root].queue(SET).tick()
                for name in CARRIERS:
                    while not await is_past(clients[name], tick):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
        self.stage.note(f"every node of {SET} has tick {tick}, and with it all of {', '.join(PARTS)}")


async def has_merged(client: Client, part: str, tick: int) -> bool:
    """Whether a carrier has a part up to a tick."""
    rows = await fetch(client, MERGED_UP_TO, SET, part)
    return bool(rows) and rows[0]["tick_id"] >= tick


async def is_past(client: Client, tick: int) -> bool:
    """Whether a carrier has come to a tick, and its consumer too."""
    [row] = await fetch(client, CAUGHT_UP, tick, CONSUMER, tick, SET)
    return bool(row["is_past"])
