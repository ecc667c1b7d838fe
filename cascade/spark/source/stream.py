"""Follow a queue with Structured Streaming: an offset is a tick id, a batch the events between two ticks.

    initialOffset      the place `from`; a named consumer is put there
    latestOffset       at most maxTicksPerTrigger ticks further
    partitions, read   as any range of ticks: whoever reads it again has the same rows
    commit             the consumer moves up to the end of a batch, so that retention may

Spark writes offsets to its checkpoint before it reads, and asks for commit when it plans the batch after: the
consumer stands at least one batch behind, and what a restarted query reads again is still there.
The checkpoint is the truth; the consumer only holds retention (docs/adr/0031).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cascade.db import Connection
from cascade.names import TickId
from cascade.spark import ranges
from cascade.spark.ranges import connected
from cascade.spark.source import columns, rows
from cascade.spark.source.options import Options
from cascade.spark.source.read import parts

#: What an offset is, in Spark's checkpoint.
TICK = "tick"


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Hands out ranges of ticks, one after the other."""

    def __init__(self, options: Options, schema: StructType) -> None:
        columns.check(schema)
        self._options, self._schema = options, schema
        self._target: TickId | None = None
        self._is_placed = options.consumer is None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins; its consumer is put there, wherever it stood."""
        options = self._options
        with connected(options.dsn) as conn:
            tick = ranges.find_tick(conn, options.queue, options.start)
            if options.consumer is not None and self._place(conn, tick) != tick:
                ranges.seek(conn, options.queue, options.consumer, tick)
        return {TICK: tick}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how far a trigger goes; what Spark calls rows are ticks here."""
        return ReadMaxRows(self._options.max_ticks) if self._options.max_ticks else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the newest tick there is now as the end."""
        with connected(self._options.dsn) as conn:
            self._target = ranges.find_tick(conn, self._options.queue, "latest")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes; the start, when there is nothing."""
        begun = TickId(start[TICK])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with connected(self._options.dsn) as conn:
            self._place(conn, begun)
            found = ranges.ticks(conn, self._options.queue, begun, self._target, most)
        return {TICK: found[-1].tick_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return parts of a batch with about as many events each."""
        begun, ended = TickId(start[TICK]), TickId(end[TICK])
        if begun == ended:
            return []
        with connected(self._options.dsn) as conn:
            self._place(conn, begun)
            return parts([ranges.ticks(conn, self._options.queue, begun, ended)], self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one part; a part that is read again has the same ones."""
        if partition.value is None:
            return iter(())
        return rows.read(self._options.dsn, self._options.queue, partition.value, self._schema, None)

    def commit(self, end: dict[str, Any]) -> None:
        """Let go of what was processed: Spark will not ask for it again."""
        if self._options.consumer is not None:
            with connected(self._options.dsn) as conn:
                ranges.seek(conn, self._options.queue, self._options.consumer, TickId(end[TICK]))

    def stop(self) -> None:
        """Leave the consumer where it is: the query may be started again."""

    def _place(self, conn: Connection, tick: TickId) -> TickId:
        """Register the consumer if it is not, so that retention waits from here on; return where it stands."""
        if self._is_placed or self._options.consumer is None:
            return tick
        self._is_placed = True
        return ranges.subscribe(conn, self._options.queue, self._options.consumer, str(tick))
