"""Backfill: the archive and the queue together, each event once, whatever is asked for, broken off and asked again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cascade.cli.main import main
from cascade.errors import ArgumentError, DivergedError, ExpiredError
from cascade.spark.archive import Archive, archive
from cascade.spark.backfill import Plan, backfill, fill, remaining
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database
from tests.spark.conftest import fill as insert
from tests.spark.conftest import rotate_past
from tests.spark.test_archive import fill_day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What stays the same of an event, wherever it is published.
WHOLE = "time, type, key, payload::text, headers::text"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the archive is."""
    return str(tmp_path / "events")


@pytest.fixture
def target(backend: Backend) -> Iterator[Database]:
    """Another database, with an empty queue."""
    with Database.fresh(backend) as made:
        made.queue("copy")
        yield made


def ids(frame: DataFrame) -> list[int]:
    """Return the ids of events, in order."""
    return sorted(row.id for row in frame.select("id").collect())


def split(spark: SparkSession, db: Database, url: str) -> tuple[list[tuple[Any, ...]], int]:
    """Archive 40 events, let the queue forget most of them, and insert 20 more; returns all, and the seam."""
    old = insert(db, 30, ticks=6)
    assert [*db.rotate("orders"), *db.rotate()] == [("switched", 1), ("settled", 1)]
    insert(db, 10, ticks=2)
    seam = archive(spark, url, "orders", dsn=db.dsn).to_tick
    assert seam is not None
    everything = db.rows(f"select id, {WHOLE} from queue.orders")
    # The archive's consumer stands at the seam, in the partition after that of the first ticks.
    rotate_past(db, old[-1])
    insert(db, 20, ticks=4)
    everything += db.rows(f"select id, {WHOLE} from queue.orders where id > 40")
    assert len(db.rows("select from queue.orders where id <= 40")) < 40
    return sorted(everything), seam


def published(target: Database) -> list[tuple[Any, ...]]:
    """Return what was published, in the order it is read in."""
    return target.rows(f"select origin_id, {WHOLE} from queue.copy where origin = 'orders' order by id")


def test_archive_and_queue_meet_without_gap_or_overlap(
    spark: SparkSession, db: Database, queue: str, url: str, target: Database
) -> None:
    everything, seam = split(spark, db, url)
    numbers = [row[0] for row in everything]
    assert ids(backfill(spark, queue, url=url, dsn=db.dsn)) == numbers == list(range(1, 61))
    # A commit after the plan moves the seam and no event: ranges are of ticks.
    with_old_seam = backfill(spark, queue, url=url, dsn=db.dsn)
    Archive(spark, url, queue).compact()
    assert ids(with_old_seam) == numbers
    done = fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn, events_per_job=15)
    assert (done.events, done.seam, done.jobs >= 4) == (60, seam, True)
    assert published(target) == everything, "whole, and in the old order"
    again = fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn)
    assert (again.events, again.jobs, again.jobs_before) == (0, 0, done.jobs)
    # What has come since is added, also when the archive has it by now.
    insert(db, 10, ticks=2)
    archive(spark, url, queue, dsn=db.dsn)
    insert(db, 5)
    assert fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn).events == 15
    assert [row[0] for row in published(target)] == list(range(1, 76))


def test_a_backfill_that_breaks_off_is_gone_on_with(
    spark: SparkSession, db: Database, queue: str, url: str, target: Database
) -> None:
    everything, _ = split(spark, db, url)

    class BreakOff(Exception):
        """What comes in between."""

    def report(done: int, _: int | None) -> None:
        if done >= 30:
            raise BreakOff

    with pytest.raises(BreakOff):
        fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn, events_per_job=10, report=report)
    before = len(published(target))
    assert 30 <= before < 60
    # With other limits, and a seam that has moved.
    archive(spark, url, queue, dsn=db.dsn)
    done = fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn, events_per_job=7)
    assert done.events == 60 - before
    assert sorted(published(target)) == everything


def test_ranges_that_touch_or_overlap_publish_everything_once(
    spark: SparkSession, db: Database, queue: str, url: str, target: Database
) -> None:
    ticks = [fill_day(db, day, 8) for day in (1, 2, 3)]
    archive(spark, url, queue, dsn=db.dsn)
    ticks += [fill_day(db, day, 8) for day in (4, 5)]

    def take(start: Any, end: Any) -> int:
        done = fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn, start=start, end=end)
        return done.events

    assert take("2026-03-02", "2026-03-03") == 8
    assert take("2026-03-04", "2026-03-05T00:00:00+00:00") == 8
    assert take(ticks[0], ticks[3]) == 8, "what lies between, and nothing twice"
    assert take("earliest", "latest") == 16
    origin = "select origin_id, count(*) from queue.copy where origin = 'orders' group by 1 order by 1"
    assert target.rows(origin) == [(number, 1) for number in range(1, 41)]
    assert ids(backfill(spark, queue, url=url, dsn=db.dsn, start="2026-03-03", end=ticks[3])) == list(range(17, 33))
    assert ids(backfill(spark, queue, dsn=db.dsn, start="2027-01-01")) == []
    with pytest.raises(ArgumentError, match="ends before it begins"):
        take(ticks[3], ticks[1])


def test_an_event_keeps_where_it_came_from_first(
    spark: SparkSession, db: Database, queue: str, target: Database
) -> None:
    db.main.execute(b"insert into queue.orders (payload, origin, origin_id) values ('1', 'far', 17), ('2', null, null)")
    db.tick("orders")
    done = fill(spark, queue, dsn=db.dsn, into="copy", into_dsn=target.dsn)
    assert done.events == 2
    assert target.rows("select origin, origin_id from queue.copy order by id") == [("far", 17), ("orders", 2)]


def test_what_nobody_has_any_more_is_named(
    spark: SparkSession, db: Database, queue: str, url: str, target: Database, backend: Backend
) -> None:
    insert(db, 10)
    first = archive(spark, url, queue, dsn=db.dsn, hold=False).to_tick
    [lost] = insert(db, 10)
    rotate_past(db, lost)
    insert(db, 10)
    # The queue does not hold the tick with which the archive ends.
    with pytest.raises(ExpiredError, match=f"the archive ends at tick {first}"):
        backfill(spark, queue, url=url, dsn=db.dsn)
    archive(spark, url, queue, dsn=db.dsn, hold=False, allow_gap=True)
    with pytest.raises(ExpiredError, match=f"neither archive nor queue has the events after tick {first}"):
        fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn)
    done = fill(spark, queue, url=url, dsn=db.dsn, into="copy", into_dsn=target.dsn, allow_gap=True)
    assert done.events == 20
    # Another queue of that name is another log.
    with Database.fresh(backend) as stranger:
        stranger.queue("orders")
        for _ in range(40):
            stranger.tick("orders")
        with pytest.raises(DivergedError):
            backfill(spark, queue, url=url, dsn=stranger.dsn)
    with pytest.raises(ArgumentError, match="holds no archive"):
        backfill(spark, "other", url=url, dsn=db.dsn)
    with pytest.raises(ArgumentError, match="its own events"):
        fill(spark, queue, dsn=db.dsn, into=queue, into_dsn=db.dsn)


def test_the_command_fills_a_queue(spark: SparkSession, db: Database, queue: str, url: str, target: Database) -> None:
    insert(db, 10)
    archive(spark, url, queue, dsn=db.dsn)
    insert(db, 5)
    arguments = ["spark", "backfill", queue, "--dsn", db.dsn, "--archive", url, "--into-dsn", target.dsn, "--into"]
    result = CliRunner().invoke(main, [*arguments, "copy", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["events"] == 15 and len(published(target)) == 15
    again = CliRunner().invoke(main, [*arguments, "copy"])
    assert "published 0 events of orders into copy" in again.stdout and "the archive gave those" in again.stdout
    wrong = CliRunner().invoke(main, [*arguments, "nothing"])
    assert wrong.exit_code == 1 and 'the database to fill: there is no queue "nothing"' in wrong.stderr


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ([], [(10, 50)]),
        ([(0, 5), (60, 70)], [(10, 50)]),
        ([(10, 50)], []),
        ([(0, 20), (15, 30), (40, 90)], [(30, 40)]),
        ([(20, 30), (30, 40)], [(10, 20), (40, 50)]),
    ],
)
def test_what_is_left_is_the_range_less_what_was_published(
    done: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    found = remaining(Plan(from_tick=10, seam=35, to_tick=50), done)
    assert [(plan.from_tick, plan.to_tick) for plan in found] == left
    assert all(plan.from_tick <= plan.seam <= plan.to_tick for plan in found)
    assert [plan.seam for plan in found] == [min(max(35, after), upto) for after, upto in left]
