"""The stage: daemons, the tree that is watched, what is told, and commands run as an operator would."""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from cascade.cli import output as out
from cascade.cli import until
from cascade.cli.demo.places import Places
from cascade.cli.node import Children
from cascade.cli.status import Found, draw_family, make_of
from cascade.node.assess import NodeStatus
from cascade.node.observe import observe


class Stage:
    """What an audience sees, on a terminal as a picture that moves, else line by line."""

    def __init__(self, where: Places, headline: Callable[[], str], *, to_stderr: bool) -> None:
        self.where, self.headline, self.to_stderr = where, headline, to_stderr
        self.children = Children(self.hear)
        self.found: Found | None = None
        self.notes: deque[str] = deque(maxlen=12)
        self.began_at = time.monotonic()
        self.console = out.console(err=to_stderr)
        self.live: Live | None = None
        #: Somebody has seen enough.
        self.is_hurried = asyncio.Event()

    def lit(self) -> AbstractContextManager[Live | None]:
        """Return what draws the picture for the length of a block; nothing does where there is no terminal."""
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        return self.live or nullcontext()

    def hurry(self) -> None:
        """Go on to the end; asked a second time, stop where we are."""
        if self.is_hurried.is_set():
            raise KeyboardInterrupt
        self.is_hurried.set()

    async def pause(self, seconds: float) -> bool:
        """Give people time to look; True when they want none."""
        return await until(self.is_hurried.is_set, timeout_s=seconds)

    # Daemons

    def start(self, group: asyncio.TaskGroup, *names: str) -> None:
        """Run daemons."""
        for name in names:
            group.create_task(self._run(name), name=f"daemon {name}")

    async def _run(self, name: str) -> None:
        arguments = ("node", "run", "--topology", str(self.where.file), "--database", name)
        await self.children.run(f"daemon {name}", "cascade.cli.main", *arguments, "--log-format", "json", "--until-eof")

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send daemons a signal."""
        for name in names:
            self.children.signal(f"daemon {name}", number)

    def hear(self, name: str, said: dict[str, Any]) -> None:
        """Listen to a daemon; that it tries again and again to reach a server which is down needs no telling."""
        text = str(said.get("message"))
        is_worth_it = said.get("level", "info") not in ("info", "debug") or "copies from" in text
        if is_worth_it and not text.startswith("service "):
            self.note(f"{name}: {text.splitlines()[0]}")

    def status(self, name: str) -> NodeStatus | None:
        """Return what was last seen of a node of the set that this is about."""
        return next((node for node in self.statuses if (node.set, node.node) == (self.where.set, name)), None)

    @property
    def statuses(self) -> Sequence[NodeStatus]:
        """Return what was last seen of every node."""
        return self.found.nodes if self.found else ()

    async def wait_for(self, name: str, state: str, role: str) -> None:
        """Wait until a node is seen to be something."""

        def holds() -> bool:
            found = self.status(name)
            return found is not None and (found.state, found.role) == (state, role)

        if not await until(holds, timeout_s=60):
            raise TimeoutError(f"{name} was not seen as {role}, {state}, within a minute")

    # What is told

    def note(self, text: str) -> None:
        """Tell what happened."""
        self.notes.append(f"{time.monotonic() - self.began_at:6.1f} s  {text}")
        if self.live is None:
            click.echo(self.notes[-1], err=self.to_stderr)

    def show(self, what: RenderableType) -> None:
        """Print something that stays, above the picture."""
        (self.live.console if self.live is not None else self.console).print(what, soft_wrap=True)

    async def command(self, *arguments: str) -> str:
        """Run a command as an operator would, show what it prints, and return that."""
        self.show(Text(f"\n$ cascade {shlex.join(arguments)}", style="bold"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cascade.cli.main", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "CASCADE_TOPOLOGY": str(self.where.file), "COLUMNS": "150"},
        )
        said = (await process.communicate())[0].decode(errors="replace").strip("\n")
        self.show(Text("\n".join(f"  {out.printable(line)}".rstrip() for line in said.split("\n"))))
        return said

    async def watch(self) -> None:
        """Look at every node once a second, and show the tree."""
        for turn in itertools.count():
            topology = self.where.topology
            self.found = make_of(topology, await observe(topology, timeout_s=2.0))
            if self.live is not None:
                self.live.update(self.picture(), refresh=True)
            elif turn % 5 == 4:
                click.echo(f"\n{self.headline()}\n{self.tree()}\n", err=self.to_stderr)
            await asyncio.sleep(1.0)

    def tree(self) -> str:
        """Return the set as it was last seen."""
        return draw_family(self.found, self.where.set) if self.found else ""

    def picture(self) -> Group:
        """Return what is shown on a terminal, with as many notes as there is room for."""
        tree = self.tree()
        room = max(3, self.console.height - tree.count("\n") - 8)
        return Group(
            Text(f"\n{self.headline()}\n", style="bold"),
            Text(tree, no_wrap=True),
            Text(),
            *(Text(out.printable(note)) for note in list(self.notes)[-room:]),
            Text("\nCtrl-C ends it, with a proof", style="dim"),
        )
