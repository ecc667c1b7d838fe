"""Moves events from one database to another as they are: COPY to COPY, in binary, nothing parsed.

The driver hands out one chunk per row; here whatever has arrived is joined into blocks, which
is what makes a copy cheap.  The server that is read and the server that is written work at the
same time: writing has a queue of its own.

A few events travel as arrays instead, one per column, in binary and unparsed as well: `Raw`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.copy import AsyncQueuedLibpqWriter

from cascade.db import AsyncConnection, Connection

BLOCK_BYTES = 256 * 1024
#: Binary, too, is converted between encodings: both sides must name the same one, whatever their databases prefer.
FORMAT = "format binary, encoding 'UTF8'"
COLUMNS = "id, time, txid, type, key, payload, headers, origin, origin_id"
#: The end of a binary COPY, alone, and after the header of an empty one.
_TRAILER_BYTES, _EMPTY_BYTES = 2, 21


class Timer(Protocol):
    """What is to happen later."""

    def cancel(self) -> None:
        """Have it not happen."""


class Deadline:
    """Severs connections that make no progress: their next read fails as if the other side had gone.

    Cancelling would not do: the driver then waits for the server to confirm, which over a link
    that is half open never happens.
    """

    def __init__(
        self,
        seconds: float,
        *connections: AsyncConnection | Connection,
        later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._seconds, self._connections, self._later = seconds, connections, later
        self._timer: Timer | None = None
        self.extend()

    def extend(self) -> None:
        """Note progress: the time begins anew."""
        self.end()
        self._timer = self._later(self._seconds, self._sever)

    def end(self) -> None:
        """Let the connections live."""
        if self._timer is not None:
            self._timer.cancel()

    def _sever(self) -> None:
        for conn in self._connections:
            if conn.closed:
                continue
            with suppress(OSError, psycopg.Error):  # It may be gone already.
                with socket.socket(fileno=os.dup(conn.pgconn.socket)) as link:
                    link.shutdown(socket.SHUT_RDWR)


@contextmanager
def deadline(seconds: float, *connections: AsyncConnection) -> Iterator[Deadline]:
    """Sever the connections unless the block ends, or notes progress, in time."""
    timer = Deadline(seconds, *connections, later=asyncio.get_running_loop().call_later)
    try:
        yield timer
    finally:
        timer.end()


@contextmanager
def deadline_sync(seconds: float, *connections: Connection) -> Iterator[Deadline]:
    """Sever the connections unless the block ends in time; for a thread, which has no loop to wait in."""
    timer = Deadline(seconds, *connections, later=_in_a_thread)
    try:
        yield timer
    finally:
        timer.end()


def _in_a_thread(seconds: float, act: Callable[[], None]) -> Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


async def read_blocks(source: AsyncConnection, query: str) -> AsyncIterator[bytes]:
    """Yield the rows of a query as binary COPY, in large blocks."""
    async with source.cursor() as cur, cur.copy(f"copy ({query}) to stdout ({FORMAT})".encode()) as copy:
        take = source.pgconn.get_copy_data
        while chunk := await copy.read():
            parts, size = [chunk], len(chunk)
            last = size
            while size < BLOCK_BYTES and last not in (_TRAILER_BYTES, _EMPTY_BYTES):
                last, more = take(1)
                if last <= 0:
                    break
                parts.append(more)
                size += last
            yield b"".join(parts)


async def pipe(
    source: AsyncConnection,
    query: str,
    target: AsyncConnection,
    table: str,
    timer: Deadline,
    *,
    columns: str = COLUMNS,
) -> int:
    """Copy the rows of a query into a table inside the target's transaction, and return how many bytes."""
    size = 0
    async with target.cursor() as cur:
        statement = f"copy {table} ({columns}) from stdin ({FORMAT})".encode()
        async with cur.copy(statement, writer=AsyncQueuedLibpqWriter(cur)) as into:
            async for block in read_blocks(source, query):
                await into.write(block)
                timer.extend()
                size += len(block)
    return size


class Raw:
    """A value as one server sent it, in binary, for another server to read."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _RawLoader(Loader):
    format = pq.Format.BINARY

    def load(self, data: Buffer) -> Raw:
        return Raw(bytes(data))


class _RawDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: Raw) -> Buffer:
        return obj.data


def carry_arrays(context: AdaptContext) -> None:
    """Have arrays that arrive in binary stay as they are, and be sent on so."""
    for name in ("int8", "timestamptz", "text", "json"):
        context.adapters.register_loader(context.adapters.types[name].array_oid, _RawLoader)
    context.adapters.register_dumper(Raw, _RawDumper)


async def set_up_reader(conn: AsyncConnection, *, within_s: float) -> None:
    """Prepare a connection for reading events: partitions have no statistics, so plans are told what to do.

    A merge sorts what it reads, and needs room for the largest range.
    """
    with deadline(within_s, conn):
        await conn.execute(
            "set enable_seqscan = off; set jit = off; set max_parallel_workers_per_gather = 0; set work_mem = '64MB'"
        )
