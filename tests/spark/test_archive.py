"""Archive: every event once, whatever breaks; compaction, retention, streams, failovers, two at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cascade.cli.main import main
from cascade.errors import ArgumentError, CorruptionError, DivergedError, ExpiredError
from cascade.spark.archive import SCHEMA, Archive, archive, find_mark, follow, read_archive, settings
from cascade.spark.files import Files
from cascade.spark.manifest import WHOLE_EVERY, DataFile, Manifest, Mark, State
from cascade.spark.ranges import find_tick
from tests.fixtures.database import Database, eventually
from tests.spark.conftest import fill, rotate_past

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id, time, txid, type, key, payload::text, headers::text, origin, origin_id"

WITH_TICK = "id, time, txid, %s::bigint, type, key, payload::text, headers::text, origin, origin_id"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the archive goes; what means something in an address means nothing in a path."""
    return str(tmp_path / "all events #1 %41")


def held(db: Database, after: int = 0) -> list[tuple[Any, ...]]:
    """Return what a queue holds, whole."""
    return db.rows(f"select {COLUMNS} from queue.orders where id > %s order by id", after)


def fill_day(db: Database, day: int, count: int) -> int:
    """Insert as many events of a day, one an hour; returns the tick."""
    db.main.execute(
        b"insert into queue.orders (payload, time) select to_json(n), make_timestamptz(2026, 3, %s, n, 0, 0, 'UTC')"
        b" from generate_series(0, %s) as n",
        (day, count - 1),
    )
    return db.tick("orders")


def archived(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return what an archive holds, whole, without its ticks."""
    rows = sorted(frame.collect(), key=lambda row: row.id)
    return [
        (
            *(row.id, row.time.astimezone(UTC), row.txid, row.type, row.key, row.payload, row.headers),
            *(row.origin, row.origin_id),
        )
        for row in rows
    ]


def take_over(spark: SparkSession, db: Database, url: str) -> None:
    """Archive the one tick that is new, without a data source: Spark starts a Python for each reading of one."""
    home = Archive(spark, url, "orders")
    state, last = home.begin(db.main, "earliest"), db.value("select max(id) from queue.orders") or 0
    to = find_mark(db.main, "orders", find_tick(db.main, "orders", "latest"))
    assert state.last is not None and to is not None
    first = last - (to.total - state.last.total)
    rows = db.rows(f"select {WITH_TICK} from queue.orders where id > %s order by id", to.tick_id, first)
    assert home.append(state, spark.createDataFrame(rows, SCHEMA).coalesce(1), to) is not None


def same(spark: SparkSession, db: Database, url: str) -> int:
    """See that the archive holds what the queue does, byte by byte; returns how many events."""
    wanted = held(db)
    assert archived(read_archive(spark, url, "orders")) == wanted
    return len(wanted)


def unlisted(url: str, spark: SparkSession) -> set[str]:
    """Return the data files that are there and that no manifest lists."""
    folder = Path(url, "queue=orders")
    there = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_temporary" not in path.parts}
    return there - Archive(spark, url, "orders").manifest.load().files.keys()


# What is archived


def test_every_event_is_archived_once_run_after_run(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    nothing = archive(spark, url, queue, dsn=db.dsn)
    assert (nothing.events, nothing.commits, nothing.held_files) == (0, 0, 0)
    assert read_archive(spark, url, queue).count() == 0
    db.insert({"ä": "€😀\\n"}, None, "x" * 300_000, queue="orders")
    db.main.execute("insert into queue.orders (payload, time) values ('1', '2026-02-28 23:59:59.999999+00')")
    db.main.execute(
        "insert into queue.orders (payload, time, headers) values ('{\"a\" :  1}', '2026-03-01 00:00+00', '[]')"
    )
    ticks = [db.tick("orders"), *fill(db, 60, ticks=6)]
    with settings(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}):
        first = archive(spark, url, queue, dsn=db.dsn, end=ticks[2])
    assert (first.events, first.commits, first.to_tick) == (25, 1, ticks[2])
    second = archive(spark, url, queue, dsn=db.dsn, events_per_commit=25)
    assert (second.events, second.commits, second.from_tick) == (40, 2, ticks[2]), "a commit ends with a tick"
    assert archive(spark, url, queue, dsn=db.dsn).commits == 0
    assert same(spark, db, url) == 65
    # By queue and by day, in UTC whatever zone the session is in.
    days = {path.parent.name for path in Path(url, "queue=orders").rglob("*.parquet")}
    assert {"day=2026-02-28", "day=2026-03-01"} <= days


def test_a_part_is_read_by_ticks_or_by_times(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    take_over(spark, db, url)
    for day in range(1, 5):
        fill_day(db, day, 24)
        take_over(spark, db, url)
    ticks = [row[0] for row in db.rows("select tick_id from cascade.ticks where queue = 'orders' order by 1")]

    def read(start: Any, end: Any) -> list[int]:
        return sorted(row.id for row in read_archive(spark, url, queue, start, end).collect())

    ids = [row[0] for row in held(db)]
    assert read("earliest", "latest") == ids
    assert read(ticks[1], str(ticks[2])) == ids[24:48], "after one tick, up to the other"
    assert read("2026-03-02T12:00:00+00:00", datetime(2026, 3, 3, 1)) == ids[36:49], "from, until before"
    assert read("2026-03-04", "latest") == ids[72:]
    assert read(ticks[-1], "latest") == read("2027-01-01", "latest") == []
    with pytest.raises(ArgumentError, match="'soon' is no place in an archive"):
        read("soon", "latest")
    with pytest.raises(ArgumentError, match="is no archive"):
        read_archive(spark, url, "other")


def test_the_queue_keeps_what_is_not_archived_yet(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    fill(db, 10)
    done = archive(spark, url, queue, dsn=db.dsn)
    home = Archive(spark, url, queue)
    stands = "select tick_id from cascade.consumers where consumer = %s"
    assert db.value(stands, home.consumer) == done.to_tick
    fill(db, 10)
    for _ in range(6):
        db.rotate("orders")
        db.tick("orders")
    assert find_tick(db.main, "orders", "earliest") <= done.to_tick
    rotated = archive(spark, url, queue, dsn=db.dsn)
    assert rotated.events == 10 and home.manifest.load().gaps == ()


def test_a_gap_is_refused_and_written_down_when_it_is_accepted(
    spark: SparkSession, db: Database, queue: str, url: str
) -> None:
    fill(db, 5)
    done = archive(spark, url, queue, dsn=db.dsn, hold=False)
    [lost] = fill(db, 5)
    rotate_past(db, lost)
    fill(db, 5)
    with pytest.raises(ExpiredError, match=f"the archive ends at tick {done.to_tick}"):
        archive(spark, url, queue, dsn=db.dsn, hold=False)
    assert archive(spark, url, queue, dsn=db.dsn, hold=False, allow_gap=True).events == 5
    state = Archive(spark, url, queue).manifest.load()
    assert state.gaps == ((done.to_tick, state.complete_after),) and state.events == 10


# What breaks


def test_a_crash_between_files_and_commit_leaves_no_duplicates(
    spark: SparkSession, db: Database, queue: str, url: str
) -> None:
    fill(db, 30, ticks=3)
    home = Archive(spark, url, queue)
    state = home.begin(db.main, "earliest")
    assert state.last is not None
    # All that a run does but for the commit.
    home.write(spark.read.format("cascade").options(dsn=db.dsn, queue=queue).load())
    assert len(unlisted(url, spark)) > 0 and read_archive(spark, url, queue).count() == 0
    archive(spark, url, queue, dsn=db.dsn)
    assert same(spark, db, url) == 30
    assert home.sweep() == 0, "it may belong to a run that is at work"
    assert home.sweep(timedelta(0)) == 1 and unlisted(url, spark) == set()
    assert same(spark, db, url) == 30


KILLED = """
import sys, threading
from cascade.spark import session
from cascade.spark.archive import archive
spark = session(master="local[1]", conf={"spark.sql.shuffle.partitions": "1"})
print("ready", flush=True)
archive(
    spark, sys.argv[2], "orders", dsn=sys.argv[1], events_per_commit=40, report=lambda done, of: print(done, flush=True)
)
"""


def test_a_commit_whose_reply_was_lost_is_not_made_again(
    spark: SparkSession, db: Database, queue: str, url: str
) -> None:
    fill(db, 3)
    home = Archive(spark, url, queue)
    state, to = home.begin(db.main, "earliest"), find_mark(db.main, queue, find_tick(db.main, queue, "latest"))
    assert to is not None
    added = home.write(spark.createDataFrame(db.rows(f"select {WITH_TICK} from queue.orders", to.tick_id), SCHEMA))
    made = home.commit(state, "archive", add=added, to=to)
    assert made is not None and home.commit(state, "archive", add=added, to=to) == made
    assert same(spark, db, url) == 3


def test_a_node_that_is_behind_the_archive_has_nothing_for_it(
    spark: SparkSession, db: Database, queue: str, url: str
) -> None:
    home = Archive(spark, url, queue)
    state = home.begin(db.main, "earliest")
    assert state.last is not None
    ahead = Mark(tick_id=state.last.tick_id + 5, chain="00", total=7)
    assert home.manifest.store(state, state.changed(to=ahead), "archive")
    done = archive(spark, url, queue, dsn=db.dsn)
    assert (done.events, done.to_tick) == (0, ahead.tick_id)


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_is_gone_on_with(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    """SIGKILL takes Python and Java, in the middle of a run that has made some commits."""
    fill(db, 2000, ticks=100)
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, db.dsn, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert run.stdout is not None
        for line in run.stdout:
            if line.strip() == "80":
                break
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(timeout=20)
        if run.stdout is not None:
            run.stdout.close()
    before = Archive(spark, url, queue).manifest.load()
    assert before.events == read_archive(spark, url, queue).count() and 80 <= before.events < 2000
    done = archive(spark, url, queue, dsn=db.dsn)
    assert done.events == 2000 - before.events
    assert same(spark, db, url) == 2000


def test_two_runs_at_once_archive_everything_once(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    fill(db, 200, ticks=20)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            archive(spark, url, queue, dsn=db.dsn, events_per_commit=100)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert failed == []
    assert same(spark, db, url) == 200
    assert unlisted(url, spark) == set(), "who came second has removed its files"


def test_what_was_read_must_be_what_the_ticks_count(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    fill(db, 10)
    home = Archive(spark, url, queue)
    state = home.begin(db.main, "earliest")
    db.main.execute("delete from queue.orders where id = 5")
    with pytest.raises(CorruptionError, match=r"9 events were read .* and the ticks count 10"):
        archive(spark, url, queue, dsn=db.dsn)
    assert home.manifest.load() == state


def test_an_archive_that_went_further_than_the_queue_is_taken_back(
    spark: SparkSession, db: Database, queue: str, url: str
) -> None:
    """A failover loses ticks that were archived: the root's last ticks are gone, and others have come."""
    kept = fill(db, 20, ticks=2)
    archive(spark, url, queue, dsn=db.dsn)
    beyond = fill(db, 20, ticks=2)
    archive(spark, url, queue, dsn=db.dsn)
    Archive(spark, url, queue).compact()
    # What resurrection does to a tail: rows and ticks go; then the log goes on otherwise.
    (queue_id, slot) = db.rows("select queue_id, 0 from cascade_internal.queue")[0]
    db.main.execute(f"delete from cascade_internal.tick_{queue_id}_{slot} where tick_id > %s".encode(), (kept[-1],))
    db.main.execute("delete from queue.orders where id > 20")
    db.main.execute("select cascade.unsubscribe('orders', %s)", (Archive(spark, url, queue).consumer,))
    fill(db, 30, ticks=3)
    assert find_tick(db.main, queue, "latest") > beyond[-1]
    with pytest.raises(DivergedError, match=r"which queue .orders. has lost"):
        archive(spark, url, queue, dsn=db.dsn)
    done = archive(spark, url, queue, dsn=db.dsn, rewind=True)
    assert (done.from_tick, done.events) == (kept[-1], 30)
    assert same(spark, db, url) == 50


# Upkeep


def test_compaction_changes_the_files_and_nothing_else(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    for day in (1, 2):
        for _ in range(3):
            fill_day(db, day, 10)
            take_over(spark, db, url)
    home = Archive(spark, url, queue)
    before, old = archived(home.read()), home.manifest.load()
    reading = home.read(state=old)
    assert home.compact() == 4 and home.compact() == 0
    state = home.manifest.load()
    assert sorted(file.day for file in state.files.values()) == ["2026-03-01", "2026-03-02"]
    assert (state.events, state.first, state.last) == (old.events, old.first, old.last)
    assert archived(home.read()) == before == held(db)
    assert archived(reading) == before, "who was reading goes on"
    assert home.sweep() == 0 and home.sweep(timedelta(0)) == 6
    assert unlisted(url, spark) == set() and archived(home.read()) == before
    db.insert(1, queue="orders")
    db.tick("orders")
    take_over(spark, db, url)
    assert same(spark, db, url) == 61


def test_retention_lets_whole_days_go(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    take_over(spark, db, url)
    ticks = []
    for day in (1, 2, 3):
        ticks.append(fill_day(db, day, 4))
        take_over(spark, db, url)
    home = Archive(spark, url, queue)
    assert home.expire(date(2026, 3, 1)) == 0
    assert home.expire(date(2026, 3, 3)) == 8 and home.expire(date(2026, 3, 3)) == 0
    assert archived(home.read()) == held(db)[8:]
    state = home.manifest.load()
    assert (state.complete_after, state.last and state.last.tick_id) == (ticks[1], ticks[2])
    assert archive(spark, url, queue, dsn=db.dsn).events == 0, "what was let go does not come again"


# Streams


@pytest.fixture
def following(spark: SparkSession, db: Database, queue: str, url: str) -> Iterator[Callable[[], Callable[[], Any]]]:
    """Start following in a thread; returns what stops it and returns its result."""
    stops: list[Callable[[], Any]] = []

    def start() -> Callable[[], Any]:
        stop, found = threading.Event(), []
        thread = threading.Thread(
            target=lambda: found.append(
                follow(spark, url, queue, dsn=db.dsn, every="100 milliseconds", stop=stop.is_set)
            )
        )
        thread.start()

        def end() -> Any:
            stop.set()
            thread.join(timeout=60)
            assert not thread.is_alive()
            return found[0] if found else None

        stops.append(end)
        return end

    yield start
    for end in stops:
        end()


def test_a_stream_goes_on_where_the_archive_ends(
    spark: SparkSession, db: Database, queue: str, url: str, following: Callable[[], Callable[[], Any]]
) -> None:
    fill(db, 10)
    with pytest.raises(ArgumentError, match="is no archive yet"):
        follow(spark, url, queue, dsn=db.dsn)
    archive(spark, url, queue, dsn=db.dsn)
    home = Archive(spark, url, queue)
    end = following()
    for number in range(2):
        fill(db, 20, ticks=2)
        eventually(lambda number=number: home.manifest.load().events == 30 + 20 * number)
    done = end()
    assert done.events == 40
    fill(db, 5)
    assert archive(spark, url, queue, dsn=db.dsn).events == 5
    # Another stream, with another run beside it, and compaction.
    end = following()
    fill(db, 30, ticks=3)
    archive(spark, url, queue, dsn=db.dsn)
    home.compact()
    fill(db, 30, ticks=3)
    eventually(lambda: home.manifest.load().events == 115)
    end()
    assert same(spark, db, url) == 115


def test_a_batch_that_comes_again_is_archived_once(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    """Spark gives a batch again when it died before it noted its end."""
    from cascade.spark.archive import Followed

    archive(spark, url, queue, dsn=db.dsn)
    fill(db, 20, ticks=2)
    batch = spark.read.format("cascade").options(dsn=db.dsn, queue=queue).load()
    followed = Followed(Archive(spark, url, queue), db.dsn, hold=True)
    followed.take(batch, 0)
    followed.take(batch, 0)
    assert (followed.events, followed.commits) == (20, 1)
    assert same(spark, db, url) == 20 and unlisted(url, spark) == set()


# The manifest


def data_file(number: int) -> DataFile:
    return DataFile(path=f"run={number}/day=1/x.parquet", day="1", events=1, bytes=1, first_tick=1, last_tick=number)


def test_a_version_is_made_by_one_of_many(spark: SparkSession, tmp_path: Path) -> None:
    files = [Files(spark, str(tmp_path)) for _ in range(4)]
    made: list[int] = []

    def contend(number: int) -> None:
        for version in range(20):
            if files[number].create(f"_manifest/{version}.json", str(number)):
                made.append(version)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(made) == list(range(20))
    # What file systems other than a disk are asked: rename, unless the name is taken.
    for text in ("one", "two"):
        (tmp_path / "new").write_text(text)
        assert files[0]._rename("new", "taken") == (text == "one")
    assert files[0].read("taken") == "one" and not (tmp_path / "new").exists()


def test_the_manifest_is_whole_from_time_to_time_and_forgets_what_is_older(spark: SparkSession, tmp_path: Path) -> None:
    manifest, state = Manifest(Files(spark, str(tmp_path))), State()
    assert manifest.load() == state
    for number in range(1, WHOLE_EVERY + 4):
        at = Mark(tick_id=number, chain=f"c{number}", total=number)
        gone = [data_file(number - 1).path] if number % 3 == 0 else []
        new = state.changed(add=[data_file(number)], remove=gone, to=at)
        assert manifest.store(state, new, "test")
        assert not manifest.store(state, new, "test"), "the version is taken"
        state = new
    assert manifest.load() == state
    assert manifest.forget(time.time() - 3600) == 0
    assert manifest.forget(time.time() + 3600) == WHOLE_EVERY
    assert manifest.load() == state
    with pytest.raises(CorruptionError):
        state.changed(remove=["run=0/day=1/x.parquet"])


# The command


def cascade(*arguments: str) -> Any:
    """Run a command in this process, with its session."""
    return CliRunner().invoke(main, arguments, env={"CASCADE_DSN": None, "CASCADE_DEBUG": None})


def test_the_command_archives_compacts_and_lets_go(spark: SparkSession, db: Database, queue: str, url: str) -> None:
    fill(db, 10)
    result = cascade("spark", "archive", queue, url, "--dsn", db.dsn)
    assert result.exit_code == 0, result.output
    assert (
        f"archived 10 events of orders up to tick {db.value('select max(tick_id) from cascade.ticks')}" in result.stdout
    )
    assert "holds 10 events in 1 files" in result.stdout
    fill(db, 10)
    done = cascade("spark", "archive", queue, url, "--dsn", db.dsn, "--compact", "--keep", "30d", "--json")
    row = json.loads(done.stdout)
    assert (row["events"], row["held_events"], row["held_files"], row["files_compacted"]) == (10, 20, 1, 1)
    assert row["to_tick"] == str(Archive(spark, url, queue).manifest.load().last.tick_id)  # type: ignore[union-attr]
    assert same(spark, db, url) == 20


def test_what_spark_cannot_do_is_one_line_with_its_log(
    spark: SparkSession, db: Database, queue: str, url: str, tmp_path: Path
) -> None:
    for _ in range(3):
        fill(db, 1)
        take_over(spark, db, url)
    lost = next(Path(url, "queue=orders").rglob("*.parquet"))
    lost.unlink()
    log = tmp_path / "spark.log"
    result = cascade("spark", "archive", queue, url, "--dsn", db.dsn, "--compact", "--log-file", str(log))
    assert result.exit_code == 1
    assert result.stderr.count("error: ") == 1 and "Traceback" not in result.stderr and "at org." not in result.stderr
    assert f"The trace is in {log}" in result.stderr and lost.name in result.stderr
    assert "Traceback" in log.read_text()
    bad = cascade("spark", "archive", queue, "nowhere://x/y", "--dsn", db.dsn)
    assert bad.exit_code == 2 and "nowhere://x/y" in bad.stderr and "hdfs://" in bad.stderr
