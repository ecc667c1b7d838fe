"""Events from PostgreSQL as Arrow record batches, as Spark wants them.

ADBC reads the binary COPY protocol straight into Arrow.  What is missing then is the tick of each event, which is not
stored: it follows from the event's transaction and the ticks' snapshots, as batches do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc
import numpy
import pyarrow as pa
from psycopg import sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cascade.db import Connection, complete
from cascade.errors import ForbiddenError, TransientError
from cascade.spark import ranges
from cascade.spark.ranges import Range, Tick
from cascade.spark.source.payload import convert

#: How much is converted and handed on at once.
BATCH_BYTES = 4 * 1024 * 1024
#: Partitions have no statistics, and a plan for few rows is a good one here for many: they lie in the index's order.
SETTINGS = ("enable_seqscan = off", "jit = off", "max_parallel_workers_per_gather = 0")


def read(
    dsn: str, queue: str, found: Range, schema: StructType, where: sql.Composable | None
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a range that a condition admits.

    After the last row it is proved that no row was removed meanwhile, else ExpiredError is raised: a task that
    ends well has read them all.
    """
    with ranges.connected(dsn) as conn:
        query = ranges.query(conn, queue, found)
        names = [name for name in schema.fieldNames() if name != "tick"]
        finder = (
            TickFinder(ranges.ticks(conn, queue, found.from_tick, found.to_tick)) if "tick" in schema.names else None
        )
        columns = [*names, *(["txid"] if finder is not None and "txid" not in names else [])] or ["id"]
        text = select(conn, query, columns, where)
        wanted = to_arrow_schema(schema, timezone="UTC")
        for batch in _fetch(dsn, text):
            arrays = {name: _plain(array) for name, array in zip(columns, batch.columns, strict=True)}
            if finder is not None:
                arrays["tick"] = finder.find(arrays["txid"])
            yield pa.RecordBatch.from_arrays(
                [convert(arrays[field.name], wanted.field(field.name).type, field.dataType) for field in schema],
                schema=wanted,
            )
        # TRUNCATE obeys no snapshot: only this look, newer than the reading, proves it.
        ranges.query(conn, queue, found)


def select(conn: Connection, query: str, columns: Sequence[str], where: sql.Composable | None) -> str:
    """Return the query for some columns, and some rows, of a range."""
    names = sql.SQL(", ").join(sql.Identifier("e", name) for name in columns)
    text = sql.SQL("select {} from ({}) as e").format(names, sql.SQL(query))
    if where is not None:
        text = sql.SQL("{} where {}").format(text, where)
    return text.as_string(conn)


class TickFinder:
    """Tells which tick of a range an event belongs to: the first whose snapshot sees its transaction."""

    def __init__(self, ticks: Sequence[Tick]) -> None:
        self._ids = numpy.array([tick.tick_id for tick in ticks], dtype=numpy.int64)
        self._highs = numpy.array([tick.high for tick in ticks], dtype=numpy.int64)
        # Transactions that were open at some tick: few, so each is looked up beforehand.
        opens = [frozenset(tick.open) for tick in ticks]
        late = sorted({txid for found in opens for txid in found})
        self._late = numpy.array(late, dtype=numpy.int64)
        self._late_at = numpy.array([self._last_open(txid, opens) for txid in late], dtype=numpy.int64)

    def find(self, txids: pa.Array) -> pa.Array:
        """Return the tick of each transaction."""
        found = txids.to_numpy(zero_copy_only=False)
        at = self._usual(found)
        if len(self._late):
            nearest = numpy.searchsorted(self._late, found).clip(max=len(self._late) - 1)
            at = numpy.where(self._late[nearest] == found, self._late_at[nearest], at)
        return pa.array(self._ids[at])

    def _usual(self, txids: numpy.ndarray) -> numpy.ndarray:
        # The events of the first tick are before the range.
        return numpy.searchsorted(self._highs, txids, side="right").clip(1, len(self._ids) - 1)

    def _last_open(self, txid: int, opens: Sequence[frozenset[int]]) -> int:
        at = int(self._usual(numpy.array([txid]))[0])
        while at < len(opens) - 1 and txid in opens[at]:
            at += 1
        return at


def _fetch(dsn: str, query: str) -> Iterator[pa.RecordBatch]:
    with (
        _translated(),
        closing(adbc.connect(complete(dsn, f"{ranges.SERVICE}/read"))) as conn,
        closing(conn.cursor()) as cur,
    ):
        for setting in SETTINGS:
            cur.execute(f"set {setting}")
        cur.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
        cur.execute(query)
        yield from cur.fetch_record_batch()


def _plain(array: pa.Array) -> pa.Array:
    """Return JSON as the text it is."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


@contextmanager
def _translated() -> Iterator[None]:
    """Raise Cascade's errors in place of the driver's."""
    try:
        yield
    except adbc_driver_manager.Error as error:
        message = str(error).strip().splitlines()[0]
        if error.sqlstate == "42501":
            hint = "Reading ranges is for operators: the owner of the schema, members of cascade_node or cascade_admin."
            raise ForbiddenError(message, hint=hint) from error
        raise TransientError(message) from error
    except (OSError, pa.ArrowException) as error:  # What happens between two batches comes from Arrow.
        raise TransientError(str(error).strip().splitlines()[0]) from error
