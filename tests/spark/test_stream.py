"""Following a queue with Structured Streaming."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.database import Database, eventually
from tests.spark.conftest import fill, rotate_past

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


class Sink:
    """Where a query's batches go; a batch that comes again replaces itself, as an exact sink does."""

    def __init__(self, spark: SparkSession, db: Database, folder: Path) -> None:
        self.spark, self.db, self.folder = spark, db, folder
        self.batches: dict[int, list[int]] = {}
        self.dies_at: int | None = None

    def start(self, *, once: bool = True, **options: Any) -> StreamingQuery:
        reader = self.spark.readStream.format("cascade").option("dsn", self.db.dsn).option("queue", "orders")
        for name, value in options.items():
            reader = reader.option({"start": "from"}.get(name, name), str(value))
        writer = reader.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.folder))
        return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()

    def run(self, **options: Any) -> None:
        query = self.start(**options)
        query.awaitTermination(60)
        assert not query.isActive

    @property
    def ids(self) -> list[int]:
        return [event for _, found in sorted(self.batches.items()) for event in found]

    def _take(self, frame: DataFrame, batch: int) -> None:
        found = sorted(row.id for row in frame.select("id").collect())
        if batch == self.dies_at:
            raise RuntimeError("the job dies here")
        self.batches[batch] = found


@pytest.fixture
def sink(spark: SparkSession, db: Database, tmp_path: Path, queue: str) -> Sink:
    return Sink(spark, db, tmp_path / "checkpoint")


def position(db: Database, consumer: str) -> int | None:
    return db.value("select tick_id from cascade.consumers where consumer = %s", consumer)


def test_available_now_runs_to_the_end_and_goes_on_there(sink: Sink, db: Database) -> None:
    sink.run()
    assert sink.ids == []
    made = fill(db, 50, ticks=5)
    sink.run(maxTicksPerTrigger=2, partitions=2)
    assert [len(found) for _, found in sorted(sink.batches.items()) if found] == [20, 20, 10]
    fill(db, 7)
    assert made[-1] < fill(db, 3)[0]
    sink.run()
    assert sink.ids == list(range(1, 61))
    # Another query begins where it is told to.
    later = Sink(sink.spark, db, sink.folder.with_name("later"))
    later.run(start=made[3])
    assert later.ids == list(range(41, 61))


def test_a_query_that_died_reads_its_batch_again_from_what_was_kept(sink: Sink, db: Database) -> None:
    made = fill(db, 60, ticks=6)
    sink.dies_at = 3
    with pytest.raises(Exception, match="the job dies here"):
        sink.run(maxTicksPerTrigger=1, consumer="lake")
    # Batch 3 is the fourth; the commit of batch 2 came when it was planned, and of batch 3 there is none.
    assert sink.ids == list(range(1, 31))
    assert position(db, "lake") == made[2]
    for _ in range(5):
        db.rotate("orders")
        db.tick("orders")
    sink.dies_at = None
    sink.run(maxTicksPerTrigger=1, consumer="lake")
    assert sink.ids == list(range(1, 61))
    stood = position(db, "lake")
    assert stood is not None and stood >= made[4]
    # Without its checkpoint it begins anew where it is told, and its consumer with it.
    anew = Sink(sink.spark, db, sink.folder.with_name("anew"))
    anew.run(start=made[4], consumer="lake")
    assert anew.ids == list(range(51, 61))
    assert position(db, "lake") == made[4]


def test_a_query_whose_events_are_gone_says_so(sink: Sink, db: Database) -> None:
    made = fill(db, 20, ticks=2)
    sink.run()
    fill(db, 10)
    rotate_past(db, made[-1])
    with pytest.raises(Exception, match=r"ExpiredError(.|\n)*no longer holds all events after tick"):
        sink.run()


def test_a_running_query_gets_what_comes(sink: Sink, db: Database) -> None:
    query = sink.start(once=False, consumer="lake")
    try:
        for n in range(1, 4):
            made = fill(db, 10)[0]
            eventually(lambda n=n: len(sink.ids) == 10 * n or query.exception())
        assert len(set(sink.ids)) == 30
        assert position(db, "lake") < made
        # An idle queue is ticked too, and the next batch, empty as it is, commits the one before.
        db.tick("orders")
        eventually(lambda: (position(db, "lake") or 0) >= made or query.exception())
        assert query.exception() is None
        # A database that goes away for a moment ends the query; started again it goes on.
        db.admin().execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    finally:
        query.stop()
    db.disconnect()
    fill(db, 5)
    sink.run(consumer="lake")
    assert len(sink.ids) == len(set(sink.ids)) == 35
