"""Publish rows: every one of a job once, or none, however often its tasks are run.

    driver      begin_staging at the root
    tasks       stage their rows; the rows of an attempt that failed, or came late, count for nothing
    driver      publish_staging with the attempts that Spark took: one transaction
                or drop_staging, when the job failed

The whole job becomes visible at once, in one tick.  Whoever is killed in between leaves rows that nobody
sees, and that go after a week, or when a job of the same name is run again (docs/adr/0032).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType, VariantType

from cascade.db import Connection, translated
from cascade.errors import ConfigError, TransientError
from cascade.spark.ranges import connected
from cascade.spark.source import columns
from cascade.spark.source.options import Options

T = TypeVar("T")

#: What a producer says of an event; the rest of a frame that was read from a queue is the queue's own to say.
WRITTEN = ("type", "key", "payload", "headers")
VERBATIM = ("time", "origin", "origin_id")
#: Rows of one statement: few where they are large.
ROWS_MOST, BYTES_MOST = 5_000, 8 * 1024 * 1024
#: How often a call is repeated whose reply was lost; all of them may be.
TRIES = 3

STAGE = (
    "select cascade.stage(%s, %s, %s, %s, %s::text[], %s::text[], %s::text[]::json[], %s::text[]::json[],"
    " %s::timestamptz[], %s::text[], %s::bigint[])"
)


@dataclass
class Staged(WriterCommitMessage):
    """What a task has handed over."""

    task: int
    attempt: int
    rows: int


class StagingWriter(DataSourceArrowWriter):
    """Hands rows over in parts and publishes them as a whole."""

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("events are never overwritten", hint='Write with .mode("append").')
        _check(schema)
        self._options = options
        # None: a job of this name has published already, so there is nothing to do.
        self._staging: UUID | None = self._at_root(
            lambda conn: _one(
                conn, "select cascade.begin_staging(%s, %s, %s)", options.queue, options.job, options.verbatim
            )
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Hand over the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        staged = Staged(context.partitionId(), context.taskAttemptId(), 0)
        if self._staging is None:
            return staged
        with connected(self._options.dsn, "write") as conn:
            for batch in iterator:
                for part in _slices(batch):
                    self._stage(conn, staged, part)
                    staged.rows += part.num_rows
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks that count have handed over."""
        if self._staging is None:
            return
        found = [message for message in messages if isinstance(message, Staged)]
        arguments = (
            self._staging,
            [message.task for message in found],
            [message.attempt for message in found],
            [message.rows for message in found],
        )
        self._at_root(lambda conn: _one(conn, "select cascade.publish_staging(%s, %s, %s::bigint[], %s)", *arguments))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was handed over."""
        if self._staging is not None:
            self._at_root(lambda conn: _one(conn, "select cascade.drop_staging(%s)", self._staging))

    def _at_root(self, call: Callable[[Connection], T]) -> T:
        """Make a call that may be repeated, again when its outcome is unknown."""
        for left in reversed(range(TRIES)):
            try:
                with connected(self._options.dsn, "write") as conn, translated():
                    return call(conn)
            except TransientError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _stage(self, conn: Connection, staged: Staged, part: pa.RecordBatch) -> None:
        names = (*WRITTEN, *VERBATIM) if self._options.verbatim else WRITTEN
        found = {name: part.column(name).to_pylist() for name in names if name in part.schema.names}
        absent: list[None] = [None] * part.num_rows
        texts = [found.get(name, absent) for name in WRITTEN]
        others = [found.get(name) for name in VERBATIM]
        with translated():
            conn.execute(STAGE.encode(), (self._staging, staged.task, staged.attempt, staged.rows, *texts, *others))


def _check(schema: StructType) -> None:
    """Refuse a frame that is no events."""
    for field in schema:
        if field.name not in columns.NAMES:
            hint = f"Events have {', '.join(WRITTEN)}; put the rest into payload with to_json(struct(...))."
            raise ConfigError(f"an event has no column {field.name}", hint=hint)
        if isinstance(field.dataType, StructType | VariantType) and field.name in ("payload", "headers"):
            raise ConfigError(f"column {field.name} is no text", hint=f"Write JSON: to_json({field.name}).")
        if field.dataType != columns.EVENT[field.name].dataType:
            wrong, right = field.dataType.simpleString(), columns.EVENT[field.name].dataType.simpleString()
            raise ConfigError(f"column {field.name} is {wrong}", hint=f"Cast it to {right}.")
    if "payload" not in schema.fieldNames():
        raise ConfigError(
            "there is no column payload", hint="An event says something: to_json(struct(...)) as payload."
        )


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts that one statement takes."""
    if batch.num_rows > 1 and (batch.num_rows > ROWS_MOST or batch.nbytes > BYTES_MOST):
        half = batch.num_rows // 2
        yield from _slices(batch.slice(0, half))
        yield from _slices(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _one(conn: Connection, statement: str, *arguments: Any) -> Any:
    row = conn.execute(statement.encode(), arguments).fetchone()
    assert row is not None
    return row[0]
