"""What Spark's tasks ask of the databases: digests of stretches, of ticks and of events, and events themselves.

A database that cannot be asked, or that has removed the events meanwhile, is an answer and fails no task: the other
carriers are compared all the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from cascade.errors import CascadeError
from cascade.spark.carriers import fetch
from cascade.spark.differences import COLUMNS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
Row = dict[str, Any]

#: A database that is silent for so long while it computes is given up.
SILENT_S = 1800.0
#: What the wire protocol adds to a row, and to each of its columns.
ROW_BYTES, COLUMN_BYTES = 7, 4
EVENT_BYTES = ROW_BYTES + 3 * (COLUMN_BYTES + 8)
SHOWN = 200
ATTEMPTS = 3

SPANS = ("from_tick", "to_tick", "ticks", "events", "digest")
TICKS = ("tick_id", "prev_tick", "time", "events", "is_whole", "digest", "tick_digest")
EVENTS = ("tick_id", "id", "digest", "bad", "side")
DETAILS = ("tick_id", "id", "digest", "row")
TYPES = {"is_whole": "boolean", "row": "string", "bad": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one of Spark's tasks asks of one carrier: something about each of some stretches, by their numbers."""

    node: str
    dsn: str = field(repr=False)
    queue: str
    stretches: tuple[tuple[int, int, int], ...]
    ids: tuple[int, ...] = ()
    is_quick: bool = False
    #: By stretch: which carriers these events are compared with, and on which side they are.
    sides: Mapping[int, Sequence[tuple[str, int]]] = field(default_factory=dict)


def spans(task: Task) -> Iterator[Row]:
    """Yield a digest per stretch; stretches follow one another.  What is rotated away meanwhile is left out."""
    left = list(task.stretches)
    query = "select * from cascade.digest_spans(%s, %s, %s)"
    for _ in range(ATTEMPTS):
        bounds = [left[0][1], *(to_tick for _, _, to_tick in left)]
        rows = list(_ask(task, SPANS, [(left[0][0], query, (task.queue, bounds, task.is_quick))]))
        if not rows[0].get("is_expired"):
            for (number, _, _), row in zip(left, rows, strict=False):
                yield row | {"stretch": number}
            return
        expired = rows[0]
        measured = list(_ask(task, ("first",), [(0, "select first_tick from cascade.measure_log(%s)", (task.queue,))]))
        first = measured[0].get("first")
        gone = left if first is None else [stretch for stretch in left if stretch[1] < first]
        yield from ({**expired, "stretch": number} for number, _, _ in gone)
        left = [stretch for stretch in left if stretch not in gone]
        if not left:
            return
    yield from ({**expired, "stretch": number} for number, _, _ in left)


def ticks(task: Task) -> Iterator[Row]:
    """Yield a digest per tick; its time in microseconds, which no time zone can change."""
    query = "select * from cascade.digest_ticks(%s, %s, %s)"
    for row in _ask(task, TICKS, [(n, query, (task.queue, a, b)) for n, a, b in task.stretches]):
        if row.get("time") is not None:
            row["time"] = round(row["time"].timestamp() * 1_000_000)
        yield row


def events(task: Task) -> Iterator[Row]:
    """Yield a digest per event, once for each carrier that it is compared with or for."""
    query = "select * from cascade.digest_events(%s, %s, %s)"
    for row in _ask(task, EVENTS[:3], [(n, query, (task.queue, a, b)) for n, a, b in task.stretches]):
        if "error" in row:
            yield row
            continue
        for bad, side in task.sides[row["stretch"]]:
            yield row | {"bad": bad, "side": side}


def details(task: Task) -> Iterator[Row]:
    """Yield ticks, and the events with some ids: a hash of every value, and its beginning."""
    query = (
        "select (t->>'tick_id')::bigint, null, null, t::text"
        " from jsonb_array_elements(cascade.read_ticks(%s, %s, %s)) as t"
    )
    yield from _ask(task, DETAILS, [(n, query, (task.queue, a, b)) for n, a, b in task.stretches])
    query = (
        "select e.tick_id, e.id, e.digest, json_build_array(e.id, e.time at time zone 'UTC', e.txid, e.type, e.key,"
        " e.payload, e.headers, e.origin, e.origin_id)::text from cascade.read_log(%s, %s, %s, %s) as e"
    )
    asked = [(n, query, (task.queue, a, b, list(task.ids))) for n, a, b in task.stretches] if task.ids else []
    for row in _ask(task, DETAILS, asked):
        if row.get("row") is not None:
            row["row"] = json.dumps(dict(zip(COLUMNS, map(_shorten, json.loads(row["row"])), strict=True)))
        yield row


def _shorten(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    return hashlib.sha256(text.encode()).hexdigest()[:16], text[:SHOWN]


def _ask(task: Task, columns: Sequence[str], asked: Sequence[tuple[int, str, tuple[Any, ...]]]) -> Iterator[Row]:
    for number, query, arguments in asked:
        about = {"node": task.node, "stretch": number}
        try:
            found = asyncio.run(fetch(task.dsn, query, arguments, timeout_s=SILENT_S))
        except (CascadeError, psycopg.Error, OSError) as error:
            text = (str(error.args[0] if error.args else error).strip().splitlines() or [type(error).__name__])[0]
            yield about | {"error": text, "is_expired": getattr(error, "sqlstate", None) == "QC402", "bytes": 0}
            continue
        for row in found:
            yield about | dict(zip(columns, row, strict=True)) | {"bytes": _size(row)}


def _size(row: Iterable[Any]) -> int:
    """Return what a row took on the wire."""
    return ROW_BYTES + sum(COLUMN_BYTES + _value_size(value) for value in row)


def _value_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return 0 if value is None else 8


def run(
    spark: SparkSession, work: Callable[[Task], Iterator[Row]], tasks: Sequence[Task], columns: Sequence[str]
) -> DataFrame:
    """Do work on Spark's executors, a task each, and return its rows: node, stretch, columns, and what went wrong."""
    fields = {"node": "string", "stretch": "bigint", **{name: TYPES.get(name, "bigint") for name in columns}}
    fields |= {"error": "string", "is_expired": "boolean", "bytes": "bigint"}

    def answer(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        types = {"string": pa.string(), "boolean": pa.bool_()}
        schema = pa.schema([(name, types.get(kind, pa.int64())) for name, kind in fields.items()])
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for rows in _pages(work(tasks[index])):
                    yield pa.RecordBatch.from_pylist(rows, schema=schema)

    ddl = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    return spark.range(0, len(tasks), 1, numPartitions=max(len(tasks), 1)).mapInArrow(answer, ddl)


def _pages(rows: Iterable[Row], size: int = 10_000) -> Iterator[list[Row]]:
    page: list[Row] = []
    for row in rows:
        page.append(row)
        if len(page) >= size:
            yield page
            page = []
    if page:
        yield page
