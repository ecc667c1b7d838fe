"""A play: who takes part in it, what happens in its acts, and what must hold after each."""

from __future__ import annotations

import asyncio
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rich.console import RenderableType

from cascade.cli import until
from cascade.cli.demo.places import Places
from cascade.cli.demo.stage import Stage


class Proof(Protocol):
    """What was found after one act."""

    @property
    def is_proven(self) -> bool:
        """Whether everything is as it must be."""

    def show(self) -> list[RenderableType]:
        """Return it for people."""

    def as_plain(self) -> dict[str, Any]:
        """Return it as the contract of --json has it."""


class Trade(Protocol):
    """Producers and consumers."""

    def headline(self) -> str:
        """Return what they did so far."""

    def consume(self, name: str) -> Coroutine[Any, Any, None]:
        """Handle every event at one node until the end."""

    def end(self) -> None:
        """Have the consumers end."""


class Play(ABC):
    """One play, while it is performed."""

    #: What is started, and what is said in the end.
    servers: ClassVar[str]
    proven: ClassVar[str]
    disproven: ClassVar[str]
    #: The databases with a daemon, and those where events are handled by a consumer.
    daemons: ClassVar[tuple[str, ...]]
    consumers: ClassVar[tuple[str, ...]]

    def __init__(self, where: Places, trade: Trade, *, to_stderr: bool) -> None:
        self.where, self.trade = where, trade
        self.stage = Stage(where, trade.headline, to_stderr=to_stderr)

    @classmethod
    @abstractmethod
    def places(cls, directory: Path | None) -> AbstractContextManager[Places]:
        """Return what runs the servers during a block."""

    @classmethod
    @abstractmethod
    def open(cls, where: Places, rate: int, *, to_stderr: bool) -> Play:
        """Return a play that has not begun."""

    @abstractmethod
    async def act(self, number: int, group: asyncio.TaskGroup, seconds: float) -> Proof:
        """Play one act, and prove what must hold after it."""

    async def perform(self, acts: tuple[int, ...], seconds: float) -> list[Proof]:
        """Play the acts, and return a proof of each."""
        # Streams log that they lost a server; here that is told otherwise.
        logging.getLogger("cascade").addHandler(logging.NullHandler())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stage.hurry)
        with self.stage.lit():
            try:
                async with asyncio.TaskGroup() as group:
                    return await self._run(group, acts, seconds)
            finally:
                self.stage.children.kill()

    async def _run(self, group: asyncio.TaskGroup, acts: tuple[int, ...], seconds: float) -> list[Proof]:
        """Start everybody, play, and stop everybody."""
        proofs: list[Proof] = []
        self.stage.start(group, *self.daemons)
        watching = group.create_task(self.stage.watch(), name="watch")
        if not await until(self._is_up, timeout_s=60):
            raise TimeoutError("the nodes did not come up within a minute")
        consumers = [group.create_task(self.trade.consume(name), name=f"consumer {name}") for name in self.consumers]
        for number in acts:
            if proofs and self.stage.is_hurried.is_set():
                break
            proof = await self.act(number, group, seconds)
            proofs.append(proof)
            for part in proof.show():
                self.stage.show(part)
        self.trade.end()
        await asyncio.wait(consumers)
        watching.cancel()
        self.stage.children.end(within_s=10)
        return proofs

    def _is_up(self) -> bool:
        found = self.stage.statuses
        return bool(found) and all(node.role is not None for node in found)
