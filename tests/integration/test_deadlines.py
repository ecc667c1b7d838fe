"""A database that accepts connections and then says nothing is given up in time, whatever it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from cascade.db import AsyncConnection
from cascade.errors import TransientError
from cascade.node.enroll import own_node
from cascade.node.home import Home
from cascade.node.pipe import set_up_reader
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy

LINK_TIMEOUT_S = 0.5

ASKED: dict[str, Callable[[Home, AsyncConnection], Awaitable[object]]] = {
    "which node it is": own_node,
    "to prepare for reading": lambda home, conn: set_up_reader(conn, within_s=home.link_timeout_s),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_a_database_that_falls_silent_is_given_up(
    db: Database, ask: Callable[[Home, AsyncConnection], Awaitable[object]]
) -> None:
    with FaultProxy.before(db.dsn) as proxy:
        home = Home(set="orders", dsn=proxy.dsn(db.dsn), link_timeout_s=LINK_TIMEOUT_S)
        conn = await home.connect("node")
        proxy.stall()
        try:
            # Cancelling would not end it: the driver would wait for a word from the server.
            asked = asyncio.ensure_future(ask(home, conn))
            done, _ = await asyncio.wait((asked,), timeout=20)
            assert done, "it waits for ever"
            with pytest.raises((TransientError, psycopg.OperationalError)):
                await asked
        finally:
            proxy.cut()
            await conn.close()
