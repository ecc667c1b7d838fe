"""Read a range of ticks: once into a data frame, whichever task reads which part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cascade.spark import ranges
from cascade.spark.ranges import Tick, connected
from cascade.spark.source import columns, rows
from cascade.spark.source.filters import Pushed
from cascade.spark.source.options import Options

#: Without the option `partitions`, one for so many events: a task that takes a second or two is worth starting.
EVENTS_PER_PARTITION = 1_000_000
PARTITIONS_MOST = 200


class RangeReader(DataSourceReader):
    """Reads the events after one tick up to another.

    `earliest`, `latest` and times become tick ids once, when the read is planned.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        columns.check(schema)
        self._options, self._schema, self._pushed = options, schema, Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Return parts of the range with about as many events each."""
        options = self._options
        with connected(options.dsn) as conn:
            found = ranges.find_range(conn, options.queue, options.start, options.end)
            ticks = ranges.ticks(conn, options.queue, *found)
        return parts(self._pushed.runs(ticks), options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one part; a part that is read again has the same ones."""
        if partition.value is None:  # Spark's way to say that there was none.
            return iter(())
        where = self._pushed.where()
        return rows.read(self._options.dsn, self._options.queue, partition.value, self._schema, where)


class PushingReader(RangeReader):
    """Reads only the rows for which the conditions of one query hold.

    Spark keeps what it planned for a data frame: used again, with other conditions, the frame reads the rows
    of the first.  So this is only for who asks for it (docs/adr/0031).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what the database can decide, and give back the rest."""
        return self._pushed.push(filters)


def parts(runs: Sequence[Sequence[Tick]], wanted: int | None) -> list[InputPartition]:
    """Return the parts of some runs of ticks."""
    events = [run[-1].total - run[0].total for run in runs]
    count = wanted or min(PARTITIONS_MOST, round(sum(events) / EVENTS_PER_PARTITION))
    return [
        InputPartition(part)
        for run, share in zip(runs, events, strict=True)
        for part in ranges.split(run, max(1, round(count * share / max(sum(events), 1))))
    ]
