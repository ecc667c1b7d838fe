"""Publishing data frames: every row once, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.database import Database
from tests.spark.conftest import fill
from tests.spark.test_read import ODD, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(frame: DataFrame, db: Database, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("cascade").option("dsn", db.dsn).option("queue", "orders")
    writer.options(**options).mode(mode).save()


def log(db: Database) -> list[tuple[Any, ...]]:
    return db.rows("select type, key, payload #>> '{}', headers::text from queue.orders order by id")


def test_a_frame_becomes_events_in_one_transaction(spark: SparkSession, db: Database, queue: str) -> None:
    rows = [(text, None if n % 2 else text, f'"{n}"', None if n % 3 else "{}") for n, text in enumerate(ODD)]
    rows.append(("huge", None, '"' + "é" * 1_000_000 + '"', None))
    frame = spark.createDataFrame(rows, "type string, key string, payload string, headers string")
    save(frame.repartition(3), db)
    assert sorted(log(db), key=str) == sorted(((t, k, p.strip('"'), h) for t, k, p, h in rows), key=str)
    assert db.value("select count(distinct txid) from queue.orders") == 1
    # Order is kept, and what is not said is null.
    numbers = spark.range(20_000, numPartitions=2).selectExpr("string(id) as payload")
    save(numbers, db)
    assert [int(row[2]) for row in log(db)[len(rows) :]] == list(range(20_000))
    save(numbers.limit(0), db)
    assert len(log(db)) == len(rows) + 20_000
    assert db.value("select count(*) from cascade_internal.staged") == 0


def test_tasks_that_are_run_again_publish_once(spark: SparkSession, db: Database, queue: str, tmp_path: Path) -> None:
    """An attempt of each task dies after it handed over some of its rows."""
    numbers = spark.range(30_000, numPartitions=2).selectExpr("string(id) as payload")
    save(numbers.mapInArrow(dying(tmp_path, hopeless=None), numbers.schema), db)
    assert sorted(path.name for path in tmp_path.glob("died.*")) == ["died.0", "died.1"]
    assert sorted(int(row[2]) for row in log(db)) == list(range(30_000))
    # A job with a task that never gets through publishes nothing, and leaves nothing over.
    with pytest.raises(Exception, match="it never gets through"):
        save(numbers.mapInArrow(dying(tmp_path, hopeless=1), numbers.schema), db)
    assert len(log(db)) == 30_000
    assert db.value("select count(*) from cascade_internal.staged") == 0
    assert db.value("select count(*) from cascade_internal.staging") == 1


def dying(folder: Path, *, hopeless: int | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what a task does: it passes rows on, dies once in the middle, and one never gets to the end."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = folder / f"died.{context.partitionId()}"
        for batch in batches:
            yield batch
            if not mark.exists():
                mark.touch()
                os._exit(1)
            if context.partitionId() == hopeless:
                raise RuntimeError("it never gets through")

    return work


def test_a_named_job_is_done_once_and_a_copy_is_exact(spark: SparkSession, db: Database, queue: str) -> None:
    db.queue("source")
    fill(db, 10, queue="source")
    db.main.execute("insert into queue.source (time, payload, origin, origin_id) values ('2020-01-01', '1', 'eu', 7)")
    db.tick("source")
    found = load(spark, db, "source")
    for _ in range(2):
        save(found, db, job="nightly", verbatim="true")
    columns = "time, type, key, payload::text, headers::text, origin, origin_id"
    copied = db.rows(f"select {columns} from queue.orders order by id")
    assert copied == db.rows(f"select {columns} from queue.source order by id")
    save(found.where("id <= 3"), db)
    times = db.rows("select time = any(select time from queue.source) from queue.orders order by id desc limit 3")
    assert times == [(False,)] * 3


def test_what_cannot_be_published_is_refused(spark: SparkSession, db: Database, queue: str) -> None:
    good = spark.range(1).selectExpr("'1' as payload")
    cases: list[tuple[DataFrame, dict[str, str], str]] = [
        (spark.range(1).selectExpr("id as price"), {}, "an event has no column price"),
        (spark.range(1).selectExpr("'a' as type"), {}, "there is no column payload"),
        (spark.range(1).selectExpr("named_struct('a', 1) as payload"), {}, r"column payload is no text(.|\n)*to_json"),
        (spark.range(1).selectExpr("'1' as payload", "1 as key"), {}, "column key is int(.|\n)*Cast it to string"),
        (good, {"mode": "overwrite"}, "events are never overwritten"),
        (spark.range(1).selectExpr("'{' as payload"), {}, "PayloadError"),
        (spark.range(1).selectExpr("string(null) as payload"), {}, "the payload is null"),
        (spark.range(1).selectExpr("'1' as payload", "'cascade.x' as type"), {}, 'type "cascade.x" is reserved'),
    ]
    for frame, options, fact in cases:
        with pytest.raises(Exception, match=fact):
            save(frame, db, **options)
    # A queue that takes no inserts says so when it is to be published, and nothing is left over.
    db.admin().execute(
        "create trigger refuse before insert on queue.orders for each statement"
        " execute function cascade_internal.refuse_combined()"
    )
    with pytest.raises(Exception, match="CombinedError"):
        save(good, db)
    assert db.value("select count(*) from queue.orders") == 0
    assert db.value("select count(*) from cascade_internal.staged") == 0
