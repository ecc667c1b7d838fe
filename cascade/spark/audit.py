"""Audit: whether every event of the parts is in the combined queue once, in the part's order, and nothing else is.

Each merge transaction left a mark in the combined log: the part's ticks (prev, tick] that it took over.  So each event
there belongs to a range of its part's ticks, by its transaction, and what is to be compared is known to the tick:

    not compared   rotated away in the part, or in the combined queue; not merged yet
    missing        in the part, merged by the marks, and not in the combined queue
    doubled        there more than once
    extra          there, and the part never had it
    lost           there, and the part has lost it with a root: so its marks say, or the part's path (no fault)
    skipped        came again in the part after that, and was rightly not merged again (no fault)
    changed        there with another time, type, key, payload or headers
    out of order   there, but not among the events of its ticks, or in another order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from cascade.db import Connection, translated
from cascade.names import TickId
from cascade.spark.archive import Report, events_of
from cascade.spark.audited import FAULTS, AuditReport, PartAudit
from cascade.spark.backfill import floor
from cascade.spark.ranges import connected, held, hold

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: How many events of each kind of fault are named.
EXAMPLES = 20
#: How many missing events are looked at to name the gaps.
GAPS = 10_000
#: By what an event is known, and where it is in its part.
KEY = ("part", "origin", "origin_id")
PLACE = "struct<tick: bigint, id: bigint>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What one transaction merged: the part's ticks after `prev`, up to `tick`."""

    part: str
    txid: int
    prev: int | None
    tick: int
    chain: str
    is_fork: bool = False
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What of a part can be compared: its ticks after `low`, up to `high`."""

    part: str
    dsn: str
    low: int
    high: int
    #: Ticks of the part's node between which its events are read.
    read_from: int
    read_to: int
    segments: Sequence[Segment]
    #: Transactions whose ticks the part has lost.
    off_path: frozenset[int]
    broken: int


def audit(
    spark: SparkSession, name: str, *, dsn: str, parts: Mapping[str, str], report: Report | None = None
) -> AuditReport:
    """Compare a combined queue with its parts; `parts` says in which database each of them is read.

    While it runs, none of the databases lets go of what is compared.
    """
    from pyspark.sql import functions as F

    with ExitStack() as stack:
        conn = stack.enter_context(connected(dsn, "audit"))
        first, newest = held(conn, name)
        stack.enter_context(hold(conn, name, first))
        marks = read_marks(conn, name, first, newest)
        segments, lost = segments_of(marks), lost_ranges(marks)
        spans: dict[str, Span] = {}
        for part, part_dsn in parts.items():
            there = stack.enter_context(connected(part_dsn, "audit"))
            own = [each for each in segments if each.part == part]
            if (span := find_span(there, part, part_dsn, own)) is not None:
                stack.enter_context(hold(there, part, TickId(span.read_from)))
                spans[part] = span
        if report is not None:
            report(0, len(parts))
        combined = combined_events(spark, name, dsn, first, newest, segments, lost)
        judged = judge(spark, compare(spark, spans, combined, lost), spans).cache()
        try:
            found = summed(judged, parts, spans)
            untraced = judged.where(F.col("part").isNull()).count()
        finally:
            judged.unpersist()
    return AuditReport(set=name, from_tick=first, to_tick=newest, parts=found, untraced=untraced)


def read_marks(conn: Connection, name: str, first: int, newest: int) -> list[tuple[int, str, dict[str, Any]]]:
    """Return the marks of a combined log: (txid, type, mark), oldest first."""
    with translated():
        rows = conn.execute(
            "select m.txid, m.type, m.mark from cascade.merge_marks(%s, %s, %s) as m", (name, first, newest)
        )
        return [(int(row[0]), str(row[1]), dict(row[2])) for row in rows]  # type: ignore[call-overload]


def segments_of(marks: Sequence[tuple[int, str, dict[str, Any]]]) -> list[Segment]:
    """Return what the marks say was merged in which transaction."""
    return [
        Segment(
            part=mark["part"],
            txid=txid,
            prev=None if mark.get("prev") is None else mark["prev"]["tick_id"],
            tick=mark["tick"]["tick_id"],
            chain=mark["tick"]["chain"],
            is_fork=kind == "cascade.fork",
            skipped=tuple(mark.get("skipped", ())),
        )
        for txid, kind, mark in marks
        if kind in ("cascade.tick", "cascade.fork")
    ]


def lost_ranges(marks: Sequence[tuple[int, str, dict[str, Any]]]) -> list[tuple[str, str, int, int]]:
    """Return what the marks say that parts have lost and the combined queue has: (part, origin, first, last)."""
    return [(mark["part"], *each) for _, kind, mark in marks if kind != "cascade.tick" for each in mark["merged"]]


def find_span(conn: Connection, part: str, dsn: str, segments: Sequence[Segment]) -> Span | None:
    """Return what of a part can be compared, or None when the combined log has no mark of it."""
    if not segments:
        return None
    first, newest = held(conn, part)
    ticks = chains(conn, part, [segment.tick for segment in segments])
    beginning = segments[0].tick if segments[0].prev is None else segments[0].prev
    low, high = max(first, beginning), min(newest, max(segment.tick for segment in segments))
    off_path = frozenset(
        segment.txid
        for segment in segments
        if first < segment.tick <= newest
        and not segment.is_fork
        and not is_same(ticks.get(segment.tick), segment.chain)
    )
    return Span(
        part=part,
        dsn=dsn,
        low=low,
        high=max(low, high),
        read_from=floor(conn, part, low),
        read_to=floor(conn, part, max(low, high)),
        segments=segments,
        off_path=off_path,
        broken=sum(after.prev not in (before.tick, None) for before, after in pairwise(segments)),
    )


def chains(conn: Connection, queue: str, ticks: Sequence[int]) -> dict[int, str]:
    """Return the chains of those of some ticks that a queue holds."""
    with translated():
        rows = conn.execute(
            "select t.tick_id, t.chain from cascade.ticks as t where t.queue = %s and t.tick_id = any (%s)",
            (queue, list(ticks)),
        )
        return {int(row[0]): str(row[1]) for row in rows}  # type: ignore[call-overload]


def is_same(held_chain: str | None, chain: str) -> bool:
    """Whether a tick that is held is the one of a mark, where the chain is written as bytea."""
    return held_chain is not None and held_chain == chain.removeprefix("\\x")


def combined_events(
    spark: SparkSession,
    name: str,
    dsn: str,
    first: int,
    newest: int,
    segments: Sequence[Segment],
    lost: Sequence[tuple[str, str, int, int]],
) -> DataFrame:
    """Return the events of a combined queue, each with what its transaction merged.

    Orphans were put back without a range of ticks: theirs is the part that the mark of their loss names.
    """
    from pyspark.sql import functions as F

    by_txid: dict[int, Segment] = {}
    for segment in segments:
        if not segment.is_fork:
            by_txid.setdefault(segment.txid, segment)
    rows = [(each.txid, each.part, each.prev or 0, each.tick) for each in by_txid.values()]
    marks = spark.createDataFrame(rows, "txid long, marked string, prev long, upto long")
    known = {segment.part: segment.part for segment in segments} | {each[1]: each[0] for each in lost}
    orphans = spark.createDataFrame(list(known.items()), "origin string, named string")
    events = events_of(spark, dsn, name, first, newest)
    return (
        events.join(F.broadcast(marks), "txid", "left")
        .join(F.broadcast(orphans), "origin", "left")
        .select(
            F.coalesce("marked", "named").alias("part"),
            *("origin", "origin_id", "prev", "upto", "txid"),
            F.col("id").alias("at"),
            content().alias("heard"),
        )
    )


def content() -> Column:
    """Return a number for what an event says; which of its columns are null counts too."""
    from pyspark.sql import functions as F

    columns = [F.col(name) for name in ("time", "type", "key", "payload", "headers")]
    return F.xxhash64(*columns, *(column.isNull() for column in columns))


def compare(
    spark: SparkSession, spans: Mapping[str, Span], combined: DataFrame, lost: Sequence[tuple[str, str, int, int]]
) -> DataFrame:
    """Put what the parts have beside what the combined queue has of them: a row for each event."""
    from pyspark.sql import functions as F

    both = combined.withColumn("in_sum", F.lit(1))
    for span in spans.values():
        theirs = events_of(spark, span.dsn, span.part, span.read_from, span.read_to)
        if span.read_from < span.low:
            theirs = theirs.where(F.col("tick") > span.low)
        both = both.unionByName(
            theirs.select(
                F.lit(span.part).alias("part"),
                F.coalesce("origin", F.lit(span.part)).alias("origin"),
                F.coalesce("origin_id", "id").alias("origin_id"),
                F.struct("tick", "id").alias("place"),
                content().alias("said"),
                F.lit(1).alias("in_part"),
            ),
            allowMissingColumns=True,
        )
    if not spans:
        both = both.withColumns(
            {"place": F.lit(None).cast(PLACE), "said": F.lit(None).cast("long"), "in_part": F.lit(0)}
        )
    pairs = both.groupBy("part", "origin", "origin_id").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("in_part", "in_sum")),
        *(F.max(name).alias(name) for name in ("place", "said", "heard")),
        *(F.min(name).alias(name) for name in ("prev", "upto", "txid", "at")),
    )
    ranges = spark.createDataFrame(lost, "of string, name string, low_id long, high_id long")
    declared = pairs.join(
        F.broadcast(ranges),
        (F.col("part") == F.col("of"))
        & (F.col("origin") == F.col("name"))
        & F.col("origin_id").between(F.col("low_id"), F.col("high_id")),
        "left_semi",
    )
    if not lost:
        return pairs.withColumn("declared", F.lit(None).cast("boolean"))
    return pairs.join(declared.select(*KEY, F.lit(True).alias("declared")), [*KEY], "left")


def judge(spark: SparkSession, pairs: DataFrame, spans: Mapping[str, Span]) -> DataFrame:
    """Say of each event what became of it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    off = [(txid, True) for span in spans.values() for txid in span.off_path]
    bounds = [(span.part, span.low, span.high) for span in spans.values()]
    known = pairs.join(F.broadcast(spark.createDataFrame(off, "txid long, off boolean")), "txid", "left").join(
        F.broadcast(spark.createDataFrame(bounds, "part string, low long, high long")), "part", "left"
    )
    known = left_out(known, spans)
    # Within one transaction the order of ids is that of the part's ticks and ids; what was put back is elsewhere.
    is_pair = (F.col("in_part") > 0) & (F.col("in_sum") > 0) & F.col("declared").isNull()
    is_inside = (F.col("place.tick") > F.col("prev")) & (F.col("place.tick") <= F.col("upto"))
    place = F.when(is_pair & is_inside, F.col("place"))
    before = F.max(place).over(
        Window.partitionBy("part", "txid").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    )
    known = known.withColumn("turned", before > place)
    is_marked = F.col("upto").isNotNull()
    verdict = (
        F.when(F.col("in_sum") == 0, F.when(F.col("skip"), "skipped").otherwise("missing"))
        .when(F.col("in_sum") > 1, "doubled")
        .when(
            F.col("in_part") == 0,
            F.when(F.col("declared") | F.col("off"), "lost")
            .when(is_marked & ((F.col("prev") < F.col("low")) | (F.col("upto") > F.col("high"))), "not_compared")
            .otherwise("extra"),
        )
        .when(F.col("said") != F.col("heard"), "changed")
        .when(F.col("declared"), "compared")
        .when(F.col("turned") | is_marked & ~is_inside, "out_of_order")
        .otherwise("compared")
    )
    return known.select(*KEY, verdict.alias("verdict"))


def left_out(pairs: DataFrame, spans: Mapping[str, Span]) -> DataFrame:
    """Mark the events of a part that were not merged, since the combined queue had them already.

    A mark names them by their number among the events of its ticks.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    skip = F.lit(False)
    for span in spans.values():
        for each in span.segments:
            if each.skipped:
                inside = (
                    (F.col("part") == span.part)
                    & (F.col("in_part") > 0)
                    & (F.col("place.tick") > (each.prev or 0))
                    & (F.col("place.tick") <= each.tick)
                )
                number = F.row_number().over(Window.partitionBy("part", inside).orderBy("place"))
                skip = skip | (inside & number.isin(*each.skipped))
    return pairs.withColumn("skip", skip)


def summed(judged: DataFrame, parts: Iterable[str], spans: Mapping[str, Span]) -> list[PartAudit]:
    """Return what was found of each part, counted, with some events of each kind of fault."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    counts: dict[str, dict[str, int]] = {part: {} for part in parts}
    for row in judged.where(F.col("part").isNotNull()).groupBy("part", "verdict").count().collect():
        counts.setdefault(row.part, {})[row.verdict] = row["count"]
    wrong: dict[tuple[str, str], list[tuple[str, int]]] = {}
    if any(found.get(fault) for found in counts.values() for fault in FAULTS):
        number = F.row_number().over(Window.partitionBy("part", "verdict").orderBy("origin", "origin_id"))
        most = F.when(F.col("verdict") == "missing", GAPS).otherwise(EXAMPLES)
        rows = judged.where(F.col("part").isNotNull() & F.col("verdict").isin(*FAULTS)).withColumn("n", number)
        for row in rows.where(F.col("n") <= most).orderBy("origin", "origin_id").collect():
            wrong.setdefault((row.part, row.verdict), []).append((row.origin, row.origin_id))
    found = []
    for part in parts:
        span, numbers = spans.get(part), counts[part]
        numbers["compared"] = sum(
            numbers.get(name, 0) for name in ("compared", "missing", "doubled", "changed", "out_of_order")
        )
        found.append(
            PartAudit(
                part=part,
                from_tick=None if span is None else span.low,
                to_tick=None if span is None else span.high,
                broken_marks=0 if span is None else span.broken,
                gaps=ranges_of(wrong.get((part, "missing"), [])),
                examples={fault: wrong[part, fault][:EXAMPLES] for fault in FAULTS if (part, fault) in wrong},
                **numbers,
            )
        )
    return found


def ranges_of(ids: Sequence[tuple[str, int]]) -> tuple[tuple[str, int, int], ...]:
    """Return ids as ranges: (origin, first, last)."""
    found = []
    for (origin, _), group in groupby(enumerate(ids), key=lambda pair: (pair[1][0], pair[1][1] - pair[0])):
        run = [each[1] for _, each in group]
        found.append((origin, run[0], run[-1]))
    return tuple(found)
