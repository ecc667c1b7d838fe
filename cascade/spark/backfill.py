"""Backfill: events of long ago, from an archive and the live queue together, without gap or overlap at the seam.

    archive   (from ................. seam]
    queue                            (seam ............. to]

The seam is the tick at which the archive ends; the queue must hold it, on the same path, or nothing is read.
`backfill()` returns the events as a DataFrame.  `fill()` publishes them into another queue, in jobs that each publish
a range of ticks in one transaction, under a name that says which: what was published before is known from these
names, and left out.  So it may be broken off and run again, also to publish what has come since (docs/adr/0036).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cascade.db import Connection, translated
from cascade.errors import ArgumentError, ConflictError, ExpiredError
from cascade.names import TickId, queue_name
from cascade.spark.archive import Archive, Place, Report, events_of, find_mark, names, next_mark, tick_of, time_of
from cascade.spark.manifest import State
from cascade.spark.ranges import connected, held, hold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: One job publishes about so many events in a transaction of the target.
EVENTS_PER_JOB = 1_000_000
#: What a job is called: which queue's events, after which tick, up to which.
JOB = re.compile(r"backfill (\S+) (\d+) (\d+)")
#: How well the ticks of an archive are divided among jobs; whatever the ticks, each event is in one job.
ACCURACY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which ticks come from the archive, (from_tick, seam], and which from the queue, (seam, to_tick]."""

    from_tick: int
    seam: int
    to_tick: int
    #: Ranges of ticks whose events neither has any more.
    gaps: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What was published, and what had been before."""

    queue: str
    into: str
    from_tick: int
    to_tick: int
    seam: int
    events: int
    jobs: int
    jobs_before: int


class Past:
    """All that is known of a queue: its archive, if there is one, and what the queue holds."""

    def __init__(self, spark: SparkSession, queue: str, *, url: str | None, dsn: str) -> None:
        self._spark, self.queue, self.dsn = spark, queue_name(queue), dsn
        self.archive = None if url is None else Archive(spark, url, queue)
        self.state = State() if self.archive is None else self.archive.manifest.load()
        if url is not None and self.state.last is None:
            raise ArgumentError(f"{url} holds no archive of {queue}", hint="cascade spark archive makes one.")

    def plan(self, conn: Connection, start: Place, end: Place, *, allow_gap: bool = False) -> Plan:
        """Return which ticks are read where; ExpiredError when a part is nowhere any more."""
        first, newest = held(conn, self.queue)
        begins, seam = int(first), int(first)
        if self.archive is not None and self.state.last is not None:
            self.archive.check(conn, self.state.last)
            seam = self.state.last.tick_id
            begins = max((self.state.first or self.state.last).tick_id, self.state.expired_to or 0)
        whole = Plan(from_tick=begins, seam=seam, to_tick=max(seam, newest))
        from_tick = whole.from_tick if (at := self.find(conn, whole, start)) is None else at
        to_tick = whole.to_tick if (at := self.find(conn, whole, end)) is None else at
        if to_tick < from_tick:
            raise ArgumentError(
                f"{self.queue}: the range ends before it begins: tick {from_tick} to tick {to_tick}",
                hint="Give the earlier place as from.",
            )
        gaps = [gap for gap in self.gaps(begins) if gap[0] < to_tick and gap[1] > from_tick]
        if gaps and not allow_gap:
            after, upto = gaps[0]
            raise ExpiredError(
                f"{self.queue}: neither archive nor queue has the events after tick {after} up to tick {upto}",
                hint="Begin later, or accept it with --allow-gap.",
            )
        return Plan(from_tick=from_tick, seam=min(max(seam, from_tick), to_tick), to_tick=to_tick, gaps=gaps)

    def gaps(self, begins: int) -> list[tuple[int, int]]:
        """Return the ranges of ticks of which nobody has all events."""
        return [(0, begins), *self.state.gaps]

    def find(self, conn: Connection, whole: Plan, place: Place) -> int | None:
        """Return a place as the tick before which it is; None for the ends.

        A time is before the first tick that has an event from then on: neighbouring ranges have a tick in common.
        """
        from pyspark.sql import functions as F

        if (tick := tick_of(place)) is not None:
            return tick if tick <= whole.seam else floor(conn, self.queue, tick)
        if (moment := time_of(place)) is None:
            return None
        later = self.frame(whole).where(F.col("time") >= F.lit(moment))
        first = later.agg(F.min("tick").alias("tick")).collect()[0].tick
        if first is None:
            return whole.to_tick
        return first - 1 if first <= whole.seam else max(whole.seam, floor(conn, self.queue, first - 1))

    def frame(self, plan: Plan) -> DataFrame:
        """Return the events of a range."""
        live = None
        if plan.to_tick > plan.seam:
            live = events_of(self._spark, self.dsn, self.queue, plan.seam, plan.to_tick)
        if self.archive is None or plan.from_tick >= plan.seam:
            return live if live is not None else Archive.frame_of(self._spark)
        old = self.archive.read(plan.from_tick, plan.seam, state=self.state)
        return old if live is None else old.unionByName(live)

    def slices(self, conn: Connection, plan: Plan, events: int) -> Iterator[Plan]:
        """Cut a range into ranges of about so many events; none of them lies on both sides of the seam."""
        yield from self.archived_slices(plan, events)
        if plan.to_tick <= plan.seam:
            return
        last = find_mark(conn, self.queue, plan.seam)
        if last is None:
            raise ExpiredError(
                f'queue "{self.queue}" no longer holds tick {plan.seam}, and no archive does',
                hint="Begin later, with --from, and accept the gap with --allow-gap.",
            )
        while last.tick_id < plan.to_tick:
            to = next_mark(conn, self.queue, last, TickId(plan.to_tick), events)
            if to is None:
                return
            yield Plan(from_tick=last.tick_id, seam=last.tick_id, to_tick=to.tick_id)
            last = to

    def archived_slices(self, plan: Plan, events: int) -> Iterator[Plan]:
        """Cut what comes from the archive."""
        from pyspark.sql import functions as F

        if plan.from_tick >= plan.seam or self.archive is None:
            return
        inside = [
            file.events
            for file in self.state.files.values()
            if file.last_tick > plan.from_tick and file.first_tick <= plan.seam
        ]
        parts, cuts = -(-sum(inside) // events), list[int]()
        if parts > 1:
            frame = self.archive.read(plan.from_tick, plan.seam, state=self.state)
            shares = [part / parts for part in range(1, parts)]
            cuts = frame.agg(F.percentile_approx("tick", shares, ACCURACY).alias("cuts")).collect()[0].cuts
        begin = plan.from_tick
        for cut in sorted({cut for cut in cuts if plan.from_tick < cut < plan.seam} | {plan.seam}):
            yield Plan(from_tick=begin, seam=cut, to_tick=cut)
            begin = cut


def backfill(
    spark: SparkSession,
    queue: str,
    *,
    url: str | None = None,
    dsn: str,
    start: Place = "earliest",
    end: Place = "latest",
    allow_gap: bool = False,
) -> DataFrame:
    """Return the events of a queue from its archive and from itself, each once, with the columns of the data source.

    Read it before the queue lets go of what it is to give, or with an archive that is held.
    """
    past = Past(spark, queue, url=url, dsn=dsn)
    with connected(dsn, "backfill") as conn:
        return past.frame(past.plan(conn, start, end, allow_gap=allow_gap))


def fill(
    spark: SparkSession,
    queue: str,
    *,
    url: str | None = None,
    dsn: str,
    into: str,
    into_dsn: str,
    start: Place = "earliest",
    end: Place = "latest",
    events_per_job: int = EVENTS_PER_JOB,
    allow_gap: bool = False,
    report: Report | None = None,
) -> Backfilled:
    """Publish the events of a queue into another one, each once, in the order of ticks and ids.

    They get new ids there, keep their time, and have `origin` and `origin_id` like those of a combined queue.  What
    earlier calls have published is left out; a call that fails is made again.
    """
    if (into, into_dsn) == (queue, dsn):
        raise ArgumentError(
            f"queue {queue} would be filled with its own events", hint="Name another queue with --into."
        )
    past = Past(spark, queue, url=url, dsn=dsn)
    with connected(dsn, "backfill") as conn, connected(into_dsn, "backfill") as target:
        plan = past.plan(conn, start, end, allow_gap=allow_gap)
        with hold(conn, queue, TickId(floor(conn, queue, max(plan.seam, held(conn, queue)[0])))):
            alone(target, into, queue)
            before = published(target, into, queue)
            if start == "earliest" and before and before[-1][1] < plan.from_tick and not allow_gap:
                raise ExpiredError(
                    f"{queue}: tick {before[-1][1]} was published last, and what is left begins at {plan.from_tick}",
                    hint="What lies between is gone: accept it with --allow-gap.",
                )
            events = jobs = 0
            for left in remaining(plan, before):
                for piece in past.slices(conn, left, events_per_job):
                    publish(past.frame(piece), piece, queue, into, into_dsn)
                    events, jobs = events + job_events(target, into, job_name(queue, piece)), jobs + 1
                    if report is not None:
                        report(events, None)
    return Backfilled(
        queue=queue,
        into=into,
        from_tick=plan.from_tick,
        to_tick=plan.to_tick,
        seam=plan.seam,
        events=events,
        jobs=jobs,
        jobs_before=len(before),
    )


def publish(frame: DataFrame, piece: Plan, queue: str, into: str, dsn: str) -> None:
    """Publish the events of a range as one job, in the order of ticks and ids."""
    from pyspark.sql import functions as F

    columns = [name for name in names() if name not in ("id", "txid", "tick", "origin", "origin_id")]
    origin = F.coalesce("origin", F.lit(queue)).alias("origin")
    ordered = frame.orderBy("tick", "id").select(*columns, origin, F.coalesce("origin_id", "id").alias("origin_id"))
    options = {"dsn": dsn, "queue": into, "verbatim": "true", "job": job_name(queue, piece)}
    ordered.write.format("cascade").options(**options).mode("append").save()


def job_name(queue: str, piece: Plan) -> str:
    """Return what the job is called that publishes a range."""
    return f"backfill {queue} {piece.from_tick} {piece.to_tick}"


def published(conn: Connection, into: str, queue: str) -> list[tuple[int, int]]:
    """Return the ranges of ticks of a queue that were published into another one before."""
    with translated():
        rows = conn.execute(
            "select j.job from cascade.staged_jobs as j where j.queue = %s and j.published_at is not null", (into,)
        ).fetchall()
    found = [match for row in rows if (match := JOB.fullmatch(str(row[0]))) and match[1] == queue]
    return sorted((int(match[2]), int(match[3])) for match in found)


def job_events(conn: Connection, into: str, job: str) -> int:
    """Return how many events a job has published; asked by the session that holds the lock, so it is still held."""
    with translated():
        row = conn.execute(
            "select j.events from cascade.staged_jobs as j where j.queue = %s and j.job = %s", (into, job)
        ).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])  # type: ignore[call-overload]


def alone(conn: Connection, into: str, queue: str) -> None:
    """See that nobody else fills a queue from the same one: two would cut the ticks at different places."""
    with translated():
        row = conn.execute(
            "select pg_try_advisory_lock(hashtextextended(%s, 0))", (f"cascade backfill {queue} into {into}",)
        ).fetchone()
    if row != (True,):
        raise ConflictError(
            f"queue {into} is being filled from {queue} by somebody else",
            hint="Wait until that backfill has ended; what it has published is left out then.",
        )


def remaining(plan: Plan, done: Sequence[tuple[int, int]]) -> list[Plan]:
    """Return what is left of a range when some ranges are done; `done` is sorted."""
    found, at = [], plan.from_tick
    for after, upto in [*done, (plan.to_tick, plan.to_tick)]:
        end = min(after, plan.to_tick)
        if end > at:
            found.append(Plan(from_tick=at, seam=min(max(plan.seam, at), end), to_tick=end))
        at = max(at, upto)
    return found


def floor(conn: Connection, queue: str, tick_id: int) -> int:
    """Return the last tick a queue holds that is not beyond a number."""
    with translated():
        row = conn.execute(
            "select max(t.tick_id) from cascade.ticks as t where t.queue = %s and t.tick_id <= %s", (queue, tick_id)
        ).fetchone()
    if row is None or not isinstance(row[0], int):
        raise ExpiredError(
            f'queue "{queue}" holds no tick up to {tick_id}', hint="cascade queue show lists what is held."
        )
    return row[0]
