"""The pipe: rows leave one server as the driver hands them out, and arrive at the next in large blocks."""

from __future__ import annotations

import pytest

from cascade.db import connect
from cascade.node.pipe import BLOCK_BYTES, COLUMNS, deadline, pipe, read_blocks
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database

ROWS = 20_000
WIDTH = 200


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.main.execute(
        "insert into queue.q (payload) select to_json(n || repeat('x', %s)) from generate_series(1, %s) as n",
        (WIDTH, ROWS),
    )
    return db


QUERY = f"select {COLUMNS} from queue.q order by id"


async def test_rows_are_joined_into_blocks(db: Database) -> None:
    """Not one block per row: a block is what had arrived when it was asked for, up to a limit."""
    conn = await connect(db.dsn, service="test")
    try:
        sizes = [len(block) async for block in read_blocks(conn, QUERY)]
    finally:
        await conn.close()
    assert sum(sizes) > ROWS * WIDTH
    # How much has arrived depends on the machine, but a server sends 8 kB at a time at least, which is thirty rows.
    assert len(sizes) < ROWS / 10
    assert max(sizes) < BLOCK_BYTES + 2 * WIDTH + 1000


async def test_what_was_joined_arrives_row_by_row(db: Database, backend: Backend) -> None:
    with Database.fresh(backend) as other:
        other.queue()
        source, target = await connect(db.dsn, service="source"), await connect(other.dsn, service="target")
        try:
            with deadline(30, source, target) as timer:
                assert await pipe(source, QUERY, target, "queue.q", timer) > ROWS * WIDTH
                assert await pipe(source, f"{QUERY} limit 0", target, "queue.q", timer) > 0
                # The connections are usable after it.
                await source.execute("select 1")
        finally:
            await source.close()
            await target.close()
        same = f"select count(*), md5(string_agg(q::text, ',' order by id)) from (select {COLUMNS} from queue.q) as q"
        assert other.row(same) == db.row(same)
