"""Archive: a queue as Parquet, tick by tick, every event once.

    <url>/queue=orders/_manifest/00000001.json                       what the archive holds
    <url>/queue=orders/run=20261119T224000-1f0c/day=2026-11-19/...    the events of one run, by their day

Data files are written first.  The version of the manifest that lists them also says which ticks they cover, and making
it is the commit: a run that dies before leaves files that no version lists, which nobody reads and `sweep` removes.
The next run begins at the tick that the manifest names.  Two runs at once are safe: only one makes the next version.

`archive()` takes over what a queue has, `follow()` goes on as it grows, `read_archive()` reads.  `compact()` makes few
files of many, `expire()` lets whole days go, `sweep()` removes what nothing lists any more.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from cascade.db import Connection, translated
from cascade.errors import ArgumentError, ConflictError, CorruptionError, DivergedError, ExpiredError, TickNotFoundError
from cascade.names import TickId, queue_name
from cascade.spark.files import Entry, Files
from cascade.spark.manifest import DataFile, Manifest, Mark, State
from cascade.spark.ranges import connected, find_tick, held, seek, subscribe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("cascade.spark.archive")

#: The columns of an event, as the data source has them.
SCHEMA = (
    "id long, time timestamp, txid long, tick long, type string, key string, payload string, headers string,"
    " origin string, origin_id long"
)
#: One commit has about so many events: what a run that dies has to do again, at most.
EVENTS_PER_COMMIT = 5_000_000
#: What compaction aims at, and what it leaves alone.
FILE_BYTES = 128 * 1024 * 1024
#: How long a file that nothing lists any more is kept for those who are reading it.
GRACE = timedelta(days=1)
#: How often two archivers may get in each other's way.
ATTEMPTS = 20

#: Called with how many events are done, and of how many.
Report = Callable[[int, int | None], None]
Place = str | int | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a run has added, and what the archive holds now."""

    queue: str
    url: str
    from_tick: int | None
    to_tick: int | None
    events: int = 0
    commits: int = 0
    held_events: int = 0
    held_bytes: int = 0
    held_files: int = 0


class Archive:
    """The archive of one queue, at a place that Spark can reach."""

    def __init__(self, spark: SparkSession, url: str, queue: str) -> None:
        self._spark, self.queue = spark, queue_name(queue)
        self.files = Files(spark, f"{url.rstrip('/')}/queue={queue}")
        self.manifest = Manifest(self.files)

    @property
    def consumer(self) -> str:
        """The consumer by which the queue keeps what is not archived yet; two archives of a queue have one each."""
        return f"spark-archive-{hashlib.sha256(self.files.url.encode()).hexdigest()[:8]}"

    # Reading

    def read(self, start: Place = "earliest", end: Place = "latest", *, state: State | None = None) -> DataFrame:
        """Return events: after one tick up to another, or from one time until before another."""
        state = self.manifest.load() if state is None else state
        after, upto = tick_of(start), tick_of(end)
        since, until = time_of(start), time_of(end)
        wanted = [
            file.path
            for file in state.files.values()
            if (after is None or file.last_tick > after)
            and (upto is None or file.first_tick <= upto)
            and (since is None or file.day >= since.date().isoformat())
            and (until is None or file.day <= until.date().isoformat())
        ]
        found = self.frame(wanted)
        for condition in (
            None if after is None else found.tick > after,
            None if upto is None else found.tick <= upto,
            None if since is None else found.time >= since,
            None if until is None else found.time < until,
        ):
            found = found if condition is None else found.where(condition)
        return found

    def frame(self, paths: Sequence[str]) -> DataFrame:
        """Return what some data files hold."""
        if not paths:
            return self.frame_of(self._spark)
        reader = self._spark.read.schema(SCHEMA).option("basePath", self.files.url)
        return reader.parquet(*(self.files.at(path) for path in paths)).select(*names())

    @staticmethod
    def frame_of(spark: SparkSession) -> DataFrame:
        """Return no events."""
        return spark.createDataFrame([], SCHEMA)

    # Writing

    def append(self, state: State, events: DataFrame, to: Mark, what: str = "archive") -> State | None:
        """Add the events after the archive's last tick up to another; None when somebody else came first.

        What was written for nothing is removed again.
        """
        assert state.last is not None
        added = self.write(events) if to.total > state.last.total else []
        count = sum(file.events for file in added)
        if count != to.total - state.last.total:
            raise CorruptionError(
                f"queue {self.queue}: {count} events were read between tick {state.last.tick_id} and tick {to.tick_id},"
                f" and the ticks count {to.total - state.last.total}",
                hint="Nothing was committed.  Compare the nodes: cascade spark reconcile.",
            )
        return self.commit(state, what, add=added, to=to)

    def commit(
        self,
        state: State,
        what: str,
        *,
        add: Sequence[DataFile] = (),
        remove: Sequence[str] = (),
        to: Mark | None = None,
        expired_to: int | None = None,
    ) -> State | None:
        """Make the next version of the manifest; None when what it is based upon has changed."""
        self.files.settle(file.path for file in add)
        base = state
        for _ in range(ATTEMPTS):
            new = base.changed(add=add, remove=remove, to=to, expired_to=expired_to)
            if self.manifest.store(base, new, what):
                return new
            # Compaction beside archiving is no conflict, and the other way round.
            base = self.manifest.load()
            if add and all(file.path in base.files for file in add):
                return base  # It was made, though the reply said otherwise.
            if (base.last != state.last and to is not None) or not set(remove) <= base.files.keys():
                break
        self.discard(add)
        return None

    def write(self, events: DataFrame) -> list[DataFile]:
        """Write events as the data files of a run that no version lists yet."""
        from pyspark.sql import functions as F

        run = f"run={datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        with settings(self._spark, {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
            writer = events.select(*names(), day_of(F.col("time")).alias("day")).write.partitionBy("day")
            writer.option("compression", "zstd").parquet(self.files.at(run))
        if not (added := self.look(run)):
            self.files.remove(run)
        return added

    def look(self, run: str) -> list[DataFile]:
        """Return what the data files of a run hold; asks the files, so that what is committed is what is there."""
        from pyspark.sql import functions as F

        sizes = {entry.path: entry.bytes for entry in self.files.list(run, deep=True) if is_data(entry.path)}
        if not sizes:
            return []
        read = self._spark.read.schema(SCHEMA).parquet(*(self.files.at(path) for path in sizes))
        rows = read.groupBy(F.col("_metadata.file_path").alias("path")).agg(
            F.count("*").alias("events"), F.min("tick").alias("first_tick"), F.max("tick").alias("last_tick")
        )
        found = []
        for row in rows.collect():
            path = f"run={row.path.rpartition('/run=')[2]}"
            found.append(
                DataFile(
                    path=path,
                    day=path.split("/day=")[1].split("/")[0],
                    events=row.events,
                    bytes=sizes[path],
                    first_tick=row.first_tick,
                    last_tick=row.last_tick,
                )
            )
        return sorted(found, key=lambda file: (file.first_tick, file.path))

    def discard(self, added: Iterable[DataFile]) -> None:
        """Remove the files of runs that were not committed."""
        for run in {file.path.partition("/")[0] for file in added}:
            self.files.remove(run)

    def begin(self, conn: Connection, start: Place) -> State:
        """Return the state from which this queue is archived on; a new archive begins at a place of the queue.

        Raises DivergedError when the archive has ticks that the queue has lost, and ExpiredError when the queue no
        longer has what the archive needs next.
        """
        state = self.manifest.load()
        while state.last is None:
            at = find_mark(conn, self.queue, find_tick(conn, self.queue, start))
            assert at is not None
            self.manifest.store(state, state.changed(to=at), "begin")
            state = self.manifest.load()
        self.check(conn, state.last)
        return state

    def check(self, conn: Connection, last: Mark) -> None:
        """See that a queue is on the path of the archive, and has what follows."""
        first, newest = held(conn, self.queue)
        found = find_mark(conn, self.queue, last.tick_id)
        if (found is not None and found.chain == last.chain) or (found is None and last.tick_id > newest):
            return
        if found is None and last.tick_id < first:
            raise ExpiredError(
                f'queue "{self.queue}" holds events after tick {first}, and the archive ends at tick {last.tick_id}',
                hint="What lies between is gone here: read a node that has it, or accept the gap with --allow-gap.",
            )
        raise DivergedError(
            f'the archive has tick {last.tick_id}, which queue "{self.queue}" has lost, as after a failover',
            hint="--rewind takes the archive back to the last commit that both have, and goes on from there.",
        )

    def accept_gap(self, conn: Connection) -> State:
        """Go on where the queue begins, and write down what is missing."""
        state = self.manifest.load()
        first = find_mark(conn, self.queue, held(conn, self.queue)[0])
        assert first is not None and state.last is not None
        new = state.changed(to=first, gap=(state.last.tick_id, first.tick_id))
        if not self.manifest.store(state, new, "gap"):
            raise ConflictError(f"the archive of {self.queue} was changed meanwhile", hint="Run the command again.")
        return new

    def rewind(self, conn: Connection) -> State:
        """Take the archive back to the last commit whose tick the queue has: what is beyond it was lost with a root."""
        state = self.manifest.load()
        for mark in self.manifest.marks():
            if find_mark(conn, self.queue, mark.tick_id) == mark:
                break
        else:
            raise DivergedError(
                f'no commit of the archive is left whose tick queue "{self.queue}" has',
                hint="Begin another archive at another URL.",
            )
        beyond = [file for file in state.files.values() if file.last_tick > mark.tick_id]
        split = [file.path for file in beyond if file.first_tick <= mark.tick_id]
        kept = self.frame(split)
        added = self.write(kept.where(kept.tick <= mark.tick_id)) if split else []
        made = self.commit(state, "rewind", add=added, remove=[file.path for file in beyond], to=mark)
        if made is None:
            raise ConflictError(f"the archive of {self.queue} was changed meanwhile", hint="Run the command again.")
        return made

    # Housekeeping

    def compact(self, *, file_bytes: int = FILE_BYTES) -> int:
        """Make few files of each day's many small ones, and return how many files fewer there are."""
        state, fewer = self.manifest.load(), 0
        days: dict[str, list[DataFile]] = {}
        for file in state.files.values():
            if file.bytes < file_bytes // 2:
                days.setdefault(file.day, []).append(file)
        for small in days.values():
            wanted = -(-sum(file.bytes for file in small) // file_bytes)
            if len(small) <= wanted:
                continue
            frame = self.frame([file.path for file in small])
            ordered = frame.coalesce(1) if wanted == 1 else frame.repartitionByRange(wanted, "tick", "id")
            added = self.write(ordered.sortWithinPartitions("tick", "id"))
            if sum(file.events for file in added) != sum(file.events for file in small):
                raise CorruptionError(
                    f"{self.files.url}: compaction of {small[0].day} has read other events than there are"
                )
            made = self.commit(state, "compact", add=added, remove=[file.path for file in small])
            if made is None:
                return fewer  # Somebody else compacts.
            state, fewer = made, fewer + len(small) - len(added)
        return fewer

    def expire(self, before: date) -> int:
        """Let go of the days before a date, and return how many events that were."""
        state = self.manifest.load()
        old = [file for file in state.files.values() if file.day < before.isoformat()]
        if not old:
            return 0
        upto = max(file.last_tick for file in old)
        if self.commit(state, "expire", remove=[file.path for file in old], expired_to=upto) is None:
            return self.expire(before)  # Compacted meanwhile: the days are in other files now.
        return sum(file.events for file in old)

    def sweep(self, grace: timedelta = GRACE) -> int:
        """Remove the files that no version lists, those of runs that died among them; returns how many."""
        moment = time.time() - grace.total_seconds()
        recent = self.manifest.removed_since(moment)
        entries = [entry for entry in self.files.list("", deep=True) if entry.path.startswith("run=")]
        listed = self.manifest.load().files.keys() | recent  # After the listing: what is committed meanwhile is kept.
        runs: dict[str, list[Entry]] = {}
        for entry in entries:
            runs.setdefault(entry.path.partition("/")[0], []).append(entry)
        gone = 0
        for run, found in runs.items():
            if any(entry.written_at >= moment for entry in found):
                continue  # It may be at work.
            unlisted = [entry.path for entry in found if is_data(entry.path) and entry.path not in listed]
            for path in [run] if all(entry.path not in listed for entry in found) else unlisted:
                self.files.remove(path)
            gone += len(unlisted)
        self.manifest.forget(moment)
        return gone


def archive(
    spark: SparkSession,
    url: str,
    queue: str,
    *,
    dsn: str,
    start: Place = "earliest",
    end: Place = "latest",
    events_per_commit: int = EVENTS_PER_COMMIT,
    partitions: int | None = None,
    hold: bool = True,
    allow_gap: bool = False,
    rewind: bool = False,
    report: Report | None = None,
) -> Archived:
    """Take over what a queue has and its archive has not; may be run again at any time, also twice at once.

    A new archive begins at `start`.  Until something is archived the queue keeps it, by a consumer, unless `hold` says
    not to.  What was committed when an error is raised stays; the next run goes on from there.
    """
    home = Archive(spark, url, queue)
    with connected(dsn, "archive") as conn:
        try:
            state = home.begin(conn, start)
        except ExpiredError:
            if not allow_gap:
                raise
            state = home.accept_gap(conn)
        except DivergedError:
            if not rewind:
                raise
            state = home.rewind(conn)
        assert state.last is not None
        first, added, commits = state.last, 0, 0
        if hold:
            hold_at(conn, home, state.last.tick_id)
        upto = find_tick(conn, queue, end)
        target = find_mark(conn, queue, upto)
        to_do = None if target is None else max(0, target.total - first.total)
        while True:
            last = state.last
            assert last is not None
            to = next_mark(conn, queue, last, upto, events_per_commit)
            if to is None:
                break
            if report is not None:
                report(last.total - first.total, to_do)
            made = home.append(state, events_of(spark, dsn, queue, last.tick_id, to.tick_id, partitions), to)
            if made is None:
                state = home.begin(conn, start)
                continue
            added, commits, state = added + to.total - last.total, commits + 1, made
            if hold:
                hold_at(conn, home, to.tick_id)
    if report is not None:
        report(added, added)
    return summary(home, state, first.tick_id, added, commits)


def follow(
    spark: SparkSession,
    url: str,
    queue: str,
    *,
    dsn: str,
    every: str = "10 seconds",
    stop: Callable[[], bool] = lambda: False,
    hold: bool = True,
    on_commit: Callable[[State], None] | None = None,
) -> Archived:
    """Archive as the queue grows, as a stream, until `stop()` says so; `archive()` has been run before.

    The stream's own checkpoint is thrown away: where it begins is what the manifest says, which is the only truth.
    """
    home = Archive(spark, url, queue)
    begun = home.manifest.load()
    if begun.last is None:
        raise ArgumentError(f"{home.files.url} is no archive yet", hint="Run archive() once, then follow.")
    followed = Followed(home, dsn, hold=hold, on_commit=on_commit)
    with tempfile.TemporaryDirectory(prefix="cascade-follow-") as checkpoint:
        stream = (
            spark.readStream.format("cascade")
            .options(dsn=dsn, queue=queue, **{"from": str(begun.last.tick_id)})
            .load()
            .writeStream.foreachBatch(followed.take)
            .option("checkpointLocation", f"file://{checkpoint}")
            .trigger(processingTime=every)
            .start()
        )
        try:
            while not stream.awaitTermination(1):
                if stop():
                    break
        finally:
            stream.stop()
    state = home.manifest.load()
    return summary(home, state, begun.last.tick_id, followed.events, followed.commits)


class Followed:
    """What becomes of the batches of a stream."""

    def __init__(
        self, home: Archive, dsn: str, *, hold: bool, on_commit: Callable[[State], None] | None = None
    ) -> None:
        self._home, self._dsn, self._hold, self._on_commit = home, dsn, hold, on_commit
        self.events = self.commits = 0

    def take(self, frame: DataFrame, _: int) -> None:
        """Add what the archive does not have yet of a batch, which may come again after a crash."""
        for _attempt in range(ATTEMPTS):
            state = self._home.manifest.load()
            assert state.last is not None
            added = self._home.write(frame.where(frame.tick > state.last.tick_id))
            if not added:
                return
            with connected(self._dsn, "archive") as conn:
                to = find_mark(conn, self._home.queue, max(file.last_tick for file in added))
                count = sum(file.events for file in added)
                if to is None or count != to.total - state.last.total:
                    self._home.discard(added)
                    raise CorruptionError(
                        f"queue {self._home.queue}: {count} events do not follow tick {state.last.tick_id}",
                        hint="Nothing was committed; cascade spark archive without --follow says more.",
                    )
                made = self._home.commit(state, "follow", add=added, to=to)
                if made is None:
                    continue
                self.events, self.commits = self.events + count, self.commits + 1
                if self._hold:
                    hold_at(conn, self._home, to.tick_id)
            if self._on_commit is not None:
                self._on_commit(made)
            return
        raise ConflictError(
            f"the archive of {self._home.queue} is changed all the time", hint="One --follow is enough."
        )


def read_archive(
    spark: SparkSession, url: str, queue: str, start: Place = "earliest", end: Place = "latest"
) -> DataFrame:
    """Return the events of an archive, with the columns of the data source.

    Ticks select the events after one up to the other, times those from one until before the other; a time without a
    zone is UTC.
    """
    home = Archive(spark, url, queue)
    state = home.manifest.load()
    if state.version == 0:
        raise ArgumentError(f"{home.files.url} is no archive", hint="cascade spark archive makes one.")
    return home.read(start, end, state=state)


def events_of(
    spark: SparkSession, dsn: str, queue: str, from_tick: int, to_tick: int, partitions: int | None = None
) -> DataFrame:
    """Return the events of a queue after one tick up to another."""
    options = {"dsn": dsn, "queue": queue, "from": str(from_tick), "to": str(to_tick)}
    if partitions is not None:
        options["partitions"] = str(partitions)
    return spark.read.format("cascade").options(**options).load().select(*names())


def find_mark(conn: Connection, queue: str, tick_id: int) -> Mark | None:
    """Return a tick that a queue holds."""
    with translated():
        row = conn.execute(
            "select t.tick_id, t.chain, t.total from cascade.ticks as t where t.queue = %s and t.tick_id = %s",
            (queue, tick_id),
        ).fetchone()
    return None if row is None else Mark(tick_id=int(row[0]), chain=str(row[1]), total=int(row[2]))  # type: ignore[call-overload]


def next_mark(conn: Connection, queue: str, last: Mark, upto: TickId, events: int) -> Mark | None:
    """Return the tick with which the next commit ends: the last at most so many events further, or the next."""
    with translated():
        row = conn.execute(
            "select t.tick_id, t.chain, t.total from cascade.ticks as t"
            " where t.queue = %(queue)s and t.tick_id > %(last)s and t.tick_id <= %(upto)s"
            " order by t.total > %(most)s, case when t.total > %(most)s then t.tick_id else -t.tick_id end limit 1",
            {"queue": queue, "last": last.tick_id, "upto": upto, "most": last.total + events},
        ).fetchone()
    return None if row is None else Mark(tick_id=int(row[0]), chain=str(row[1]), total=int(row[2]))  # type: ignore[call-overload]


def hold_at(conn: Connection, home: Archive, tick_id: int) -> None:
    """Have the queue keep what follows a tick, until it is archived."""
    at = TickId(tick_id)
    # A tick that is gone is held by nobody; whether that matters is found when the events are read.
    # One that is not here yet, on a node that is behind, needs nobody to hold it.
    with suppress(ExpiredError, TickNotFoundError):
        if subscribe(conn, home.queue, home.consumer, str(at)) != at:
            seek(conn, home.queue, home.consumer, at)


def summary(home: Archive, state: State, from_tick: int, events: int, commits: int) -> Archived:
    """Return what was done."""
    return Archived(
        queue=home.queue,
        url=home.files.url,
        from_tick=from_tick,
        to_tick=state.last.tick_id if state.last else None,
        events=events,
        commits=commits,
        held_events=state.events,
        held_bytes=state.bytes,
        held_files=len(state.files),
    )


def names() -> list[str]:
    """Return the columns of an event."""
    return [part.split()[0] for part in SCHEMA.split(",")]


def day_of(column: Column) -> Column:
    """Return the day of a time, in UTC, whatever the session's zone is."""
    from pyspark.sql import functions as F

    return F.date_from_unix_date(F.floor(F.unix_micros(column) / 86_400_000_000).cast("int"))


def tick_of(place: Place) -> int | None:
    """Return the tick that a place names; None for the ends and for times."""
    text = str(place)
    return int(text) if text.isdecimal() else None


def time_of(place: Place) -> datetime | None:
    """Return the time that a place names, in UTC; None for ticks and the ends."""
    if isinstance(place, int) or place in ("earliest", "latest") or tick_of(place) is not None:
        return None
    try:
        found = place if isinstance(place, datetime) else datetime.fromisoformat(str(place))
    except ValueError as error:
        raise ArgumentError(
            f"{place!r} is no place in an archive", hint="Pass earliest, latest, a tick id or a time of ISO 8601."
        ) from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def is_data(path: str) -> bool:
    """Whether a file is one of events, and not Spark's own."""
    return path.endswith(".parquet") and not path.rpartition("/")[2].startswith((".", "_"))


@contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    """Change settings of a session for the length of a block."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
