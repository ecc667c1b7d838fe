"""The data source `cascade`: a queue as a table of events, read in a range or followed, and written to.

    read        a range of ticks, in partitions that are ranges themselves        read.py
    readStream  an offset is a tick id; a trigger takes some ticks                stream.py
    write       rows are staged by the tasks, published by one transaction        write.py

Everything is decided by tick ids, which are the same on every node and at every time: a task that
is run again reads the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cascade.spark.source import columns
from cascade.spark.source.options import parse

if TYPE_CHECKING:
    from cascade.spark.source.read import RangeReader
    from cascade.spark.source.stream import TickReader
    from cascade.spark.source.write import StagingWriter


class CascadeSource(DataSource):
    """A queue, for Spark."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in format(...)."""
        return "cascade"

    def schema(self) -> StructType | str:
        """Return the columns of an event."""
        return columns.schema(parse(self.options).payload)

    def reader(self, schema: StructType) -> RangeReader:
        """Read a range of ticks."""
        from cascade.spark.source.read import PushingReader, RangeReader

        options = parse(self.options)
        return (PushingReader if options.pushdown else RangeReader)(options, schema)

    def streamReader(self, schema: StructType) -> TickReader:
        """Follow a queue, some ticks at a time."""
        from cascade.spark.source.stream import TickReader

        return TickReader(parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        """Publish rows, all of them once or none."""
        from cascade.spark.source.write import StagingWriter

        return StagingWriter(parse(self.options), schema, overwrite=overwrite)
