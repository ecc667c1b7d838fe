"""What a service is, and how one waits.

A service takes turns until it is asked to stop.  It holds no retry loop: the daemon waits and
starts it again after a TransientError, and lets anything else end the process.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol


class Service(Protocol):
    """One task of a node."""

    name: str
    #: When the last turn succeeded, by the monotonic clock; None before the first one of a run.
    turned_at: float | None

    async def run(self, stop: asyncio.Event) -> None:
        """Take turns until `stop` is set."""


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not longer than until `stop` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
