"""Places in a queue and ranges between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.errors import ArgumentError, ConfigError, ExpiredError, TickNotFoundError
from cascade.names import TickId
from cascade.spark.ranges import Range, Tick, connected, find_range, find_tick, held, hold, query, split, ticks
from tests.fixtures.database import Database
from tests.spark.conftest import fill, rotate_past


def test_a_place_is_a_word_a_tick_or_a_time(db: Database, queue: str) -> None:
    first = db.value("select last_tick from cascade.queues")
    made = fill(db, 30, ticks=3)
    times = dict(db.rows("select tick_id, time from cascade.ticks"))
    with connected(db.dsn) as conn:
        assert held(conn, queue) == (first, made[-1])
        assert find_tick(conn, queue, made[1]) == made[1]
        assert find_tick(conn, queue, times[made[1]]) == made[1]
        assert find_tick(conn, queue, times[made[1]] + timedelta(microseconds=1)) == made[1]
        assert find_tick(conn, queue, times[made[1]] - timedelta(microseconds=1)) == made[0]
        # A time without a zone is UTC, and no other one where the database is elsewhere.
        conn.execute("set timezone = 'Asia/Tokyo'")
        plain = times[made[1]].astimezone(UTC).replace(tzinfo=None)
        assert find_tick(conn, queue, plain) == find_tick(conn, queue, str(plain)) == made[1]
        # Nothing was ever removed, so all there is follows any earlier time.
        assert find_tick(conn, queue, "2000-01-01") == first
        assert find_range(conn, queue, made[0], times[made[2]]) == (made[0], made[2])
        for wrong in ("never", "now", datetime.now(UTC) + timedelta(days=1)):
            with pytest.raises(ConfigError, match=r"no place|in the future"):
                find_tick(conn, queue, wrong)
        with pytest.raises(TickNotFoundError, match="has no tick 999"):
            find_tick(conn, queue, 999)
        with pytest.raises(ArgumentError, match="ends before it begins"):
            find_range(conn, queue, made[2], made[0])


def test_a_range_is_read_whole_or_not_at_all(db: Database, queue: str) -> None:
    made = fill(db, 30, ticks=3)
    found = Range(made[0], made[2], 20)
    with connected(db.dsn) as conn:
        listed = ticks(conn, queue, *find_range(conn, queue, made[0], made[2]))
        assert [tick.tick_id for tick in listed] == made
        with hold(conn, queue, TickId(made[0])) as consumer:
            text = query(conn, queue, found)
            assert len(conn.execute(text.encode()).fetchall()) == 20
            assert db.value("select tick_id from cascade.consumers where consumer = %s", consumer) == made[0]
            # Rotation waits for the one who holds it.
            for _ in range(4):
                db.rotate(queue)
                db.tick(queue)
            assert query(conn, queue, found) == text
        assert db.value("select count(*) from cascade.consumers") == 0
        rotate_past(db, made[0])
        for read in (query, lambda *_: ticks(conn, queue, TickId(made[0]), TickId(made[2]))):
            with pytest.raises(ExpiredError, match="no longer holds all events after tick"):
                read(conn, queue, found)
        with pytest.raises(ExpiredError, match="no longer holds all events since 2000-01-01"):
            find_tick(conn, queue, "2000-01-01")
        with pytest.raises(TickNotFoundError):
            query(conn, queue, Range(*held(conn, queue)[::-1], 0))


def tick_list(counts: list[int]) -> list[Tick]:
    """Return ticks with so many events between them."""
    totals = [sum(counts[:n]) for n in range(len(counts) + 1)]
    return [Tick(TickId(n + 1), TickId(n), datetime.now(UTC), 0, [], total) for n, total in enumerate(totals)]


@given(counts=st.lists(st.integers(0, 50), max_size=30), parts=st.integers(1, 8))
def test_parts_are_balanced_and_leave_nothing_out(counts: list[int], parts: int) -> None:
    made = split(tick_list(counts), parts)
    covered = [n for part in made for n in range(part.from_tick, part.to_tick)]
    assert len(covered) == len(set(covered))
    assert {n for n, count in enumerate(counts, 1) if count} <= set(covered)
    assert [part.events for part in made] == [sum(counts[part.from_tick - 1 : part.to_tick - 1]) for part in made]
    assert len(made) <= parts
    assert all(part.events for part in made)
    # No part is further from its share than ticks that may not be cut make it.
    assert max([part.events for part in made], default=0) <= sum(counts) / parts + max(counts, default=0)
