"""A queue that ticks by itself: the real ticker runs beside the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cascade.node.ticker import Ticker
from tests.fixtures.database import Database


@pytest.fixture
async def ticking(db: Database) -> AsyncIterator[Database]:
    """The database, with queue `q` and a ticker at work."""
    db.queue()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(Ticker(db.dsn).run(stop), name="ticker")
        yield db
        stop.set()
