"""Compare the carriers of a set: digests in the databases, joined in Spark; only what differs is read row by row.

    1  a digest per stretch of ticks    every carrier, all of its log, a few kilobytes
    2  a digest per tick                only stretches that differ
    3  a digest per event               only ticks that differ
    4  whole events                     only events that differ

What a carrier has rotated away or has not copied yet cannot be compared, and is never called missing; what lies
beyond a fork is another history, and `cascade resurrect` deals with it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cascade.errors import ArgumentError, TransientError
from cascade.spark import digests
from cascade.spark.carriers import EARLIEST, LATEST, Carrier, Carriers, find_place, look
from cascade.spark.differences import (
    COLUMNS,
    Difference,
    Row,
    Stretch,
    Tick,
    TickDigest,
    compare_rows,
    compare_ticks,
    differs,
    stretches,
)
from cascade.spark.report import NodeReport, Report, Skipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cascade.topology import Topology

#: Told how far it is: done, of how many, doing what.
Progress = Callable[[int, int | None, str], None]
#: So much is told one by one; a copy that is quite another log is better made anew.
MOST_TICKS, MOST_EVENTS = 10_000, 20_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A database is asked so much at once, however many executors there are.
MOST_TASKS = 8
STEPS = ("comparing stretches", "comparing ticks", "comparing events", "reading what differs")


def reconcile(
    spark: SparkSession,
    topology: Topology,
    set_name: str,
    *,
    nodes: Sequence[str] | None = None,
    from_: str | int | datetime = EARLIEST,
    to: str | int | datetime = LATEST,
    timeout_s: float = 10.0,
    progress: Progress | None = None,
) -> Report:
    """Compare what the carriers of a set have after one place of the log, up to another.

    Nothing is changed anywhere, and nobody waits.  Daemons may go on working.
    """
    began = time.monotonic()
    carriers = look(topology, set_name, nodes, timeout_s=timeout_s)
    if len(carriers.found) < 2:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in carriers.silent.items())
        raise TransientError(
            f"set {set_name}: there are no two carriers to compare. {reasons}".strip(),
            hint="A leaf keeps no events; cascade status shows who answers.",
        )
    every = list(carriers.found.values())
    low, high = find_place(every, set_name, from_), find_place(every, set_name, to)
    work = Work(
        spark=spark, set=set_name, carriers=carriers, low=low, high=high, progress=progress or (lambda *_: None)
    )
    found = work.compare()
    return replace(found, topology=topology, seconds=time.monotonic() - began)


@dataclass(kw_only=True)
class Work:
    """One comparison, step by step."""

    spark: SparkSession
    set: str
    carriers: Carriers
    low: int | None
    high: int | None
    progress: Progress
    #: Carriers that went away meanwhile, and why.
    lost: dict[str, str] = field(default_factory=dict)
    #: Ranges that were emptied while they were compared.
    emptied: list[Skipped] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def alive(self) -> dict[str, Carrier]:
        """Return the carriers that can still be asked."""
        return {name: carrier for name, carrier in self.carriers.found.items() if name not in self.lost}

    def compare(self) -> Report:
        """Take all steps, and say what was found."""
        every = self.carriers.found.values()
        low = max(self.low if self.low is not None else 0, min(carrier.first_tick for carrier in every))
        high = min(self.high if self.high is not None else 10**18, max(carrier.end for carrier in every))
        if high < low:
            raise ArgumentError(
                f"set {self.set}: the range ends at tick {high}, before it begins at tick {low}",
                hint="Give the earlier place as from; the log is held from there.",
            )
        spans = self.cut(low, high)
        different, events, ticks = self.compare_spans(spans)
        bad = self.compare_ticks(different)
        is_truncated = len(bad.ticks) > MOST_TICKS
        found = list(stretches(dict(sorted(bad.ticks.items())[:MOST_TICKS]), bad.follows))
        differences = self.compare_events(found, bad)
        is_truncated |= len(differences) > MOST_EVENTS
        return Report(
            set=self.set,
            made_at=datetime.now(UTC),
            from_tick=low,
            to_tick=high,
            ticks=ticks,
            events=events,
            nodes=tuple(self.describe(carrier, low, high) for carrier in every),
            silent={**self.carriers.silent, **self.lost},
            differences=tuple(differences[:MOST_EVENTS]),
            stretches=tuple(found),
            digests={tick_id: dict(tick) for tick_id, tick in bad.ticks.items()},
            is_truncated=is_truncated,
            bytes_read=self.bytes_read,
        )

    # Step 1

    def cut(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return stretches of the log, each of which a carrier has whole or not at all."""
        every = self.carriers.found.values()
        longest = max(every, key=lambda carrier: len(carrier.bounds))
        bounds = {*longest.bounds, *(carrier.first_tick for carrier in every), *(carrier.end for carrier in every)}
        return list(pairwise(sorted({low, high, *(tick for tick in bounds if low < tick < high)})))

    def compare_spans(self, spans: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int, int]], int, int]:
        """Return the stretches that differ, with how many carriers have each, and how much was compared."""
        from pyspark.sql import functions as F

        tasks = []
        parts = min(2 * self.cores(), MOST_TASKS)
        is_quick = len({carrier.sample for carrier in self.alive.values()}) == 1
        for carrier in self.alive.values():
            own = [(n, a, b) for n, (a, b) in enumerate(spans) if carrier.first_tick <= a and b <= carrier.end]
            tasks += [
                replace(self.task(carrier, part), is_quick=is_quick) for part in _parts(own, -(-len(own) // parts))
            ]
        # So that the tasks of one moment ask different databases.
        tasks.sort(key=lambda task: task.stretches[0][0])
        frame = self.run(digests.spans, tasks, digests.SPANS, STEPS[0])
        rows = (
            frame.groupBy("from_tick", "to_tick")
            .agg(
                F.count_distinct("ticks", "events", "digest").alias("kinds"),
                F.count("digest").alias("carriers"),
                F.max("events").alias("events"),
                F.max("ticks").alias("ticks"),
                F.sum("bytes").alias("bytes"),
                _failures(F),
            )
            .collect()
        )
        self.note(rows, dict(enumerate(spans)))
        compared = [row for row in rows if row.from_tick is not None and row.carriers > 1]
        different = [(row.from_tick, row.to_tick, row.carriers) for row in compared if row.kinds > 1]
        return sorted(different), sum(row.events for row in compared), sum(row.ticks for row in compared)

    # Step 2

    def compare_ticks(self, different: Sequence[tuple[int, int, int]]) -> Bad:
        """Return the ticks that differ."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if not different:
            return Bad()
        numbered = {n: (a, b) for n, (a, b, _) in enumerate(different)}
        holders = {
            n: [name for name, carrier in self.alive.items() if carrier.first_tick <= a and b <= carrier.end]
            for n, (a, b) in numbered.items()
        }
        tasks = [
            self.task(carrier, part)
            for name, carrier in self.alive.items()
            for part in _parts([(n, *numbered[n]) for n in numbered if name in holders[n]], 16)
        ]
        frame = self.run(digests.ticks, tasks, digests.TICKS, STEPS[1])
        window = Window.partitionBy("node", "stretch").orderBy("tick_id")
        sizes = self.spark.createDataFrame(
            [(n, len(names)) for n, names in holders.items()], "stretch bigint, holders int"
        )
        columns = ("node", "events", "is_whole", "digest", "tick_digest", "time", "next_prev", "follower")
        rows = (
            frame.withColumn("next_prev", F.lead("prev_tick").over(window))
            .withColumn("follower", F.lead("tick_id").over(window))
            .groupBy("stretch", "tick_id")
            .agg(
                F.count_distinct("events", "digest", "tick_digest").alias("kinds"),
                F.count("tick_id").alias("carriers"),
                F.collect_list(F.struct(*columns)).alias("found"),
                F.sum("bytes").alias("bytes"),
                _failures(F),
            )
            .join(F.broadcast(sizes), "stretch")
            .where("kinds > 1 or carriers < holders or tick_id is null")
            .orderBy("tick_id")
            .limit(MOST_TICKS + 1 + len(tasks))
            .collect()
        )
        self.note(rows, numbered)
        gone = {(failure.node, failure.stretch) for row in rows for failure in row.failures}
        made = Bad()
        for row in rows:
            if row.tick_id is None:
                continue
            by_node = {each.node: each for each in row.found}
            names = [name for name in holders[row.stretch] if name not in self.lost and (name, row.stretch) not in gone]
            tick: Tick = {name: _digest(by_node[name]) if name in by_node else None for name in names}
            if len(tick) > 1 and differs(tick):
                made.ticks[row.tick_id] = tick
                made.follows[row.tick_id] = max((each.follower or 0 for each in row.found), default=0)
                made.times[row.tick_id] = next((_time(each.time) for each in row.found), None)
        return made

    # Step 3

    def compare_events(self, found: Sequence[Stretch], bad: Bad) -> list[Difference]:
        """Return the events and ticks that differ."""
        from pyspark.sql import functions as F

        if not found:
            return []
        numbered = {n: (stretch.from_tick, stretch.to_tick) for n, stretch in enumerate(found)}
        frame = self.run(digests.events, self.tasks_of(found, 64), digests.EVENTS, STEPS[2])
        sides = self.spark.createDataFrame(_sides(found), "bad string, stretch bigint, node string, side int")
        on_side = {side: F.when(F.col("side") == side, F.col("tick_id")) for side in (WANTED, FOUND)}
        rows = (
            frame.join(F.broadcast(sides), ["stretch", "node"])
            .groupBy("bad", "id", "digest")
            .agg(
                F.sum("side").alias("balance"),
                F.max(on_side[WANTED]).alias("wanted_tick"),
                F.max(on_side[FOUND]).alias("found_tick"),
                (F.sum(on_side[WANTED]) != F.sum(on_side[FOUND])).alias("is_elsewhere"),
                F.min("stretch").alias("first"),
                F.max("stretch").alias("last"),
                F.sum("bytes").alias("bytes"),
                _failures(F),
            )
            # What both have as often and in the same tick cancels out.
            .where("balance <> 0 or is_elsewhere or id is null")
            .withColumn("one", F.when(F.col("balance") != 0, F.struct("id", "digest", "balance")))
            .groupBy("bad", "one", "wanted_tick", "found_tick")
            .agg(
                F.count("*").alias("events"),
                F.min("first").alias("first"),
                F.max("last").alias("last"),
                F.sum("bytes").alias("bytes"),
                F.flatten(F.collect_list("failures")).alias("failures"),
            )
            .orderBy("bad", "one.id")
            .limit(MOST_EVENTS + 1)
            .collect()
        )
        self.note(rows, numbered)
        gone = {(failure.node, failure.stretch) for row in rows for failure in row.failures}
        kept = [row for row in rows if not self.is_gone(row, found, gone)]
        return self.read(found, bad, kept)

    def is_gone(self, row: Any, found: Sequence[Stretch], gone: Container[tuple[str, int]]) -> bool:
        """Whether a row is about a carrier or a stretch that could not be read."""
        if row.first is None or row.bad in self.lost or (row.one is None and row.wanted_tick is None):
            return True
        return any((node, n) in gone for n in (row.first, row.last) for node in (row.bad, found[n].reference))

    # Step 4

    def read(self, found: Sequence[Stretch], bad: Bad, rows: Sequence[Any]) -> list[Difference]:
        """Read what differs, and say in what."""
        about: dict[tuple[str, int], list[Any]] = defaultdict(list)
        elsewhere: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for row in rows:
            if row.one is not None:
                about[row.bad, row.one.id].append(row)
            else:
                elsewhere[row.bad][row.wanted_tick] = (row.found_tick, row.events)
        for moves in elsewhere.values():
            for wanted_tick, (found_tick, events) in [*moves.items()]:
                moves.setdefault(found_tick, (wanted_tick, events))
        ids = sorted({id for _, id in about})
        tasks = self.tasks_of(found, 64, ids)
        details = self.run(digests.details, tasks, digests.DETAILS, STEPS[3]).collect()
        self.note([row for row in details if row.error is not None], {})
        self.bytes_read += sum(row.bytes for row in details)
        images: dict[tuple[str, int, int], Row] = {}
        ticks: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
        for row in details:
            if row.row is None:
                continue
            if row.id is None:
                ticks[row.node][row.tick_id] = json.loads(row.row)
            else:
                images[row.node, row.id, row.digest] = Row(row.tick_id, row.digest, json.loads(row.row))
        made: list[Difference] = []
        for stretch in found:
            for node in stretch.bad:
                wanted, own = (
                    {tick: ticks[name][tick] for tick in stretch.ticks if tick in ticks[name]}
                    for name in (stretch.reference, node)
                )
                if node not in self.lost and stretch.reference not in self.lost:
                    made += compare_ticks(node, stretch.reference, wanted, own, bad.times, elsewhere[node])
        for (node, id), versions in about.items():
            reference = found[versions[0].first].reference
            sides: dict[int, list[Row]] = {WANTED: [], FOUND: []}
            for row in versions:
                side = WANTED if row.one.balance < 0 else FOUND
                names = [node] if side == FOUND else [reference, *(s.reference for s in found)]
                image = next((images[key] for name in names if (key := (name, id, row.one.digest)) in images), None)
                tick_id = row.wanted_tick if side == WANTED else row.found_tick
                sides[side] += [image or Row(tick_id, row.one.digest, _unread(id))] * abs(row.one.balance)
            made += compare_rows(node, reference, id, sides[WANTED], sides[FOUND], bad.times)
        return sorted(made, key=lambda one: (one.node, one.tick_id, not one.kind.is_tick, one.id or 0))

    # What all steps share

    def task(self, carrier: Carrier, part: Sequence[tuple[int, int, int]], ids: Sequence[int] = ()) -> digests.Task:
        """Return what one task asks of a carrier."""
        return digests.Task(node=carrier.node, dsn=carrier.dsn, queue=self.set, stretches=tuple(part), ids=tuple(ids))

    def tasks_of(self, found: Sequence[Stretch], size: int, ids: Sequence[int] = ()) -> list[digests.Task]:
        """Return tasks that read stretches at the carriers that differ and at those they differ from."""
        asked: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for n, stretch in enumerate(found):
            for name in (stretch.reference, *stretch.bad):
                if name in self.alive:
                    asked[name].append((n, stretch.from_tick, stretch.to_tick))
        return [self.task(self.alive[name], part, ids) for name in asked for part in _parts(asked[name], size)]

    def run(self, work: Any, tasks: Sequence[digests.Task], columns: Sequence[str], title: str) -> DataFrame:
        """Have Spark do a step."""
        self.progress(STEPS.index(title), len(STEPS), title)
        return digests.run(self.spark, work, tasks, columns)

    def note(self, rows: Sequence[Any], numbered: Mapping[int, tuple[int, int]]) -> None:
        """Take down what went wrong in a step, and what it moved."""
        for row in rows:
            failures = row.failures if "failures" in row else [row]
            self.bytes_read += row.bytes if "failures" in row else 0
            for failure in failures:
                if not failure.is_expired:
                    self.lost.setdefault(failure.node, failure.error)
                elif failure.stretch in numbered:
                    a, b = numbered[failure.stretch]
                    self.emptied.append(Skipped(node=failure.node, from_tick=a, to_tick=b, reason=ROTATED))

    def cores(self) -> int:
        """Return how many tasks run at once; a Connect server does not say."""
        context = getattr(self.spark, "_sc", None)
        return int(context.defaultParallelism) if context is not None else 4

    def describe(self, carrier: Carrier, low: int, high: int) -> NodeReport:
        """Say what of a carrier was compared, and why the rest was not."""
        skipped = [one for one in self.emptied if one.node == carrier.node]
        if carrier.first_tick > low:
            skipped.append(
                Skipped(node=carrier.node, from_tick=low, to_tick=min(carrier.first_tick, high), reason=ROTATED)
            )
        if carrier.fork_tick is not None and carrier.last_tick > carrier.fork_tick:
            skipped.append(
                Skipped(node=carrier.node, from_tick=carrier.fork_tick, to_tick=carrier.last_tick, reason=FORKED)
            )
        elif carrier.end < high:
            skipped.append(Skipped(node=carrier.node, from_tick=max(carrier.end, low), to_tick=high, reason=BEHIND))
        return NodeReport(
            node=carrier.node,
            role=str(carrier.role),
            provider=carrier.provider,
            first_tick=carrier.first_tick,
            last_tick=carrier.last_tick,
            first_time=carrier.first_time,
            last_time=carrier.last_time,
            is_dirty=carrier.is_dirty,
            skipped=tuple(skipped),
        )


@dataclass(kw_only=True)
class Bad:
    """Ticks that differ; for each the tick after it, and when it was made."""

    ticks: dict[int, Tick] = field(default_factory=dict)
    follows: dict[int, int] = field(default_factory=dict)
    times: dict[int, datetime | None] = field(default_factory=dict)


WANTED, FOUND = -1, 1
ROTATED, BEHIND, FORKED = "rotated away", "not copied yet", "beyond the fork"


def _parts(found: Sequence[tuple[int, int, int]], size: int) -> list[Sequence[tuple[int, int, int]]]:
    return [found[n : n + size] for n in range(0, len(found), max(size, 1))]


def _sides(found: Sequence[Stretch]) -> list[tuple[str, int, str, int]]:
    """Return for each carrier that differs whose events count against it, and whose for it."""
    pairs = [(n, stretch, node) for n, stretch in enumerate(found) for node in stretch.bad]
    return [
        (node, n, name, side)
        for n, stretch, node in pairs
        for name, side in ((stretch.reference, WANTED), (node, FOUND))
    ]


def _failures(functions: Any) -> Any:
    failure = functions.struct("node", "stretch", "error", "is_expired")
    return functions.collect_list(functions.when(functions.col("error").isNotNull(), failure)).alias("failures")


def _digest(row: Any) -> TickDigest:
    return TickDigest(
        events=row.events,
        is_whole=row.is_whole,
        digest=row.digest,
        tick_digest=row.tick_digest,
        time=_time(row.time),
        next_prev=row.next_prev,
    )


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def _unread(id: int) -> dict[str, tuple[str, str] | None]:
    """Return an event of which no more is known: it was changed while it was compared."""
    return {name: ("", str(id)) if name == "id" else None for name in COLUMNS}
