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

from cascade.errors import ArgumentError
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
MOST_TICKS_READ = 100_000
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
        is_truncated = bad.is_partial or len(bad.ticks) > MOST_TICKS
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
        parts = min(self.cores(), MOST_TASKS)
        is_quick = len({carrier.hashing for carrier in self.alive.values()}) == 1
        for carrier in self.alive.values():
            own = [(n, a, b) for n, (a, b) in enumerate(spans) if carrier.first_tick <= a and b <= carrier.end]
            tasks += [
                replace(self.task(carrier, part), is_quick=is_quick) for part in _parts(own, -(-len(own) // parts))
            ]
        # So that the tasks of one moment ask different databases.
        tasks.sort(key=lambda task: task.stretches[0][0])
        frame = self.run(digests.spans, tasks, digests.SPANS, STEPS[0])
        is_equal = [F.min(name) == F.max(name) for name in ("ticks", "events", "digest")]
        rows = (
            frame.groupBy("stretch")
            .agg(
                (is_equal[0] & is_equal[1] & is_equal[2]).alias("is_equal"),
                F.count("digest").alias("carriers"),
                F.max("events").alias("events"),
                F.max("ticks").alias("ticks"),
                F.sum("bytes").alias("bytes"),
                _failures(F),
            )
            .collect()
        )
        self.bytes_read += sum(row.bytes for row in rows)
        self.note([failure for row in rows for failure in row.failures], dict(enumerate(spans)))
        compared = [row for row in rows if row.carriers > 1]
        different = sorted((*spans[row.stretch], row.ticks) for row in compared if not row.is_equal)
        return different, sum(row.events for row in compared), sum(row.ticks for row in compared)

    # Step 2

    def compare_ticks(self, different: Sequence[tuple[int, int, int]]) -> Bad:
        """Return the ticks that differ; of very many, the first."""
        made = Bad()
        numbered: dict[int, tuple[int, int]] = {}
        count = 0
        for n, (a, b, ticks) in enumerate(different):
            made.is_partial = count > MOST_TICKS_READ
            if made.is_partial:
                break
            numbered[n] = a, b
            count += ticks
        tasks = [
            self.task(carrier, part)
            for carrier in self.alive.values()
            for part in _parts([(n, *numbered[n]) for n in numbered if self.has(carrier, *numbered[n])], 16)
        ]
        rows = self.run(digests.ticks, tasks, digests.TICKS, STEPS[1]).collect() if tasks else []
        gone = self.note([row for row in rows if row.error is not None], numbered)
        self.bytes_read += sum(row.bytes for row in rows)
        found: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for row in rows:
            if row.error is None:
                found[row.node, row.stretch].append(row)
        for n, span in numbered.items():
            names = [c.node for c in self.alive.values() if self.has(c, *span) and (c.node, n) not in gone]
            made.add({name: sorted(found[name, n], key=lambda row: row.tick_id) for name in names})
        return made

    def has(self, carrier: Carrier, from_tick: int, to_tick: int) -> bool:
        """Whether a carrier has a stretch whole."""
        return carrier.first_tick <= from_tick and to_tick <= carrier.end

    # Step 3

    def compare_events(self, found: Sequence[Stretch], bad: Bad) -> list[Difference]:
        """Return the events and ticks that differ."""
        from pyspark.sql import functions as F

        if not found:
            return []
        numbered = {n: (stretch.from_tick, stretch.to_tick) for n, stretch in enumerate(found)}
        frame = self.run(digests.events, self.tasks_of(found, 64), digests.EVENTS, STEPS[2])
        on_side = {side: F.when(F.col("side") == side, F.col("tick_id")) for side in (WANTED, FOUND)}
        rows = (
            frame.groupBy("bad", "id", "digest")
            .agg(
                F.sum("side").alias("balance"),
                F.max(on_side[WANTED]).alias("wanted_tick"),
                F.max(on_side[FOUND]).alias("found_tick"),
                (F.sum(on_side[WANTED]) != F.sum(on_side[FOUND])).alias("is_elsewhere"),
                F.min("stretch").alias("first"),
                F.max("stretch").alias("last"),
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
                F.flatten(F.collect_list("failures")).alias("failures"),
            )
            .orderBy("bad", "one.id")
            .limit(MOST_EVENTS + 1)
            .collect()
        )
        gone = self.note([failure for row in rows for failure in row.failures], numbered)
        self.bytes_read += sum(
            digests.EVENT_BYTES * tick.events
            for stretch in found
            for tick_id in stretch.ticks
            for name in (stretch.reference, *stretch.bad)
            if (tick := bad.ticks[tick_id].get(name)) is not None
        )
        kept = [row for row in rows if not self.is_gone(row, found, gone)]
        return self.read(found, bad, kept)

    def is_gone(self, row: Any, found: Sequence[Stretch], gone: Container[tuple[str, int]]) -> bool:
        """Whether a row is about a carrier or a stretch that could not be read."""
        if row.bad is None or (row.one is None and row.wanted_tick is None):
            return True
        about = [(name, n) for n in (row.first, row.last) for name in (row.bad, found[n].reference)]
        return any(name in self.lost or (name, n) in gone for name, n in about)

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
        sides: dict[str, dict[int, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for n, stretch in enumerate(found):
            for name in (stretch.reference, *stretch.bad):
                asked[name].append((n, stretch.from_tick, stretch.to_tick))
            for name in stretch.bad:
                sides[name][n].append((name, FOUND))
                sides[stretch.reference][n].append((name, WANTED))
        tasks = [
            self.task(self.alive[name], part, ids)
            for name in asked
            if name in self.alive
            for part in _parts(asked[name], size)
        ]
        return [replace(task, sides={n: tuple(sides[task.node][n]) for n, _, _ in task.stretches}) for task in tasks]

    def run(self, work: Any, tasks: Sequence[digests.Task], columns: Sequence[str], title: str) -> DataFrame:
        """Have Spark do a step."""
        self.progress(STEPS.index(title), len(STEPS), title)
        return digests.run(self.spark, work, tasks, columns)

    def note(self, failures: Sequence[Any], numbered: Mapping[int, tuple[int, int]]) -> Container[tuple[str, int]]:
        """Take down what went wrong in a step; return which carriers could not be read in which stretches."""
        for failure in failures:
            if not failure.is_expired:
                self.lost.setdefault(failure.node, failure.error)
            elif failure.stretch in numbered:
                a, b = numbered[failure.stretch]
                self.emptied.append(Skipped(node=failure.node, from_tick=a, to_tick=b, reason=ROTATED))
        return {(failure.node, failure.stretch) for failure in failures}

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
    #: More differs, and was not looked at.
    is_partial: bool = False

    def add(self, found: Mapping[str, Sequence[Any]]) -> None:
        """Compare the ticks of one stretch, as the carriers that have it answered."""
        own: dict[str, dict[int, TickDigest]] = {
            name: {
                row.tick_id: TickDigest(
                    events=row.events,
                    is_whole=row.is_whole,
                    digest=row.digest,
                    tick_digest=row.tick_digest,
                    time=_time(row.time),
                    next_prev=after.prev_tick if after is not None else None,
                )
                for row, after in zip(rows, [*rows[1:], None], strict=False)
            }
            for name, rows in found.items()
        }
        every = sorted({tick_id for ticks in own.values() for tick_id in ticks})
        for tick_id, follower in zip(every, [*every[1:], 0], strict=False):
            tick: Tick = {name: ticks.get(tick_id) for name, ticks in own.items()}
            if len(tick) > 1 and differs(tick):
                self.ticks[tick_id] = tick
                self.follows[tick_id] = follower
                self.times[tick_id] = next((one.time for one in tick.values() if one is not None), None)


WANTED, FOUND = -1, 1
ROTATED, BEHIND, FORKED = "rotated away", "not copied yet", "beyond the fork"


def _parts(found: Sequence[tuple[int, int, int]], size: int) -> list[Sequence[tuple[int, int, int]]]:
    return [found[n : n + size] for n in range(0, len(found), max(size, 1))]


def _failures(functions: Any) -> Any:
    failure = functions.struct("node", "stretch", "error", "is_expired")
    return functions.collect_list(functions.when(functions.col("error").isNotNull(), failure)).alias("failures")


def _time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def _unread(id: int) -> dict[str, tuple[str, str] | None]:
    """Return an event of which no more is known: it was changed while it was compared."""
    return {name: ("", str(id)) if name == "id" else None for name in COLUMNS}
