"""Ticks: when they are made, what they cut, and what they refuse."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused


@pytest.fixture
def db(db: Database) -> Database:
    db.queue(tick_max_lag="1 hour", tick_idle="1 hour", tick_max_events=10)
    db.rows("select cascade.subscribe('q', 'c')")
    return db


def made(db: Database) -> list[tuple[object, ...]]:
    return db.rows("select queue, events from cascade.make_ticks()")


def test_a_tick_is_due_after_enough_events(db: Database) -> None:
    db.insert(*range(9))
    assert made(db) == []
    db.insert(9)
    assert made(db) == [("q", 10)]
    assert made(db) == []


def test_a_tick_is_due_after_enough_time(db: Database) -> None:
    db.insert(1)
    assert made(db) == []
    db.rows("select cascade.alter_queue('q', '{\"tick_max_lag\": \"0\"}')")
    assert made(db) == [("q", 1)]
    assert made(db) == []


def test_after_a_pause_two_ticks_may_follow_each_other(db: Database) -> None:
    """The tick before the last is older than twice the lag: one is in reserve, and no more than one."""
    db.tick()
    db.insert(1)
    assert made(db) == []
    aged = "update cascade_internal.tick_1_0 set time = time - %s::interval where prev_tick is null returning 1"
    assert db.rows(aged, "119 minutes") == [(1,)]
    assert made(db) == []
    assert db.rows(aged, "1 minute") == [(1,)]
    assert made(db) == [("q", 1)]
    db.insert(2)
    assert made(db) == []


def test_an_idle_queue_has_a_heartbeat(db: Database) -> None:
    db.rows('select cascade.alter_queue(\'q\', \'{"tick_max_lag": "0", "tick_idle": "0"}\')')
    assert made(db) == [("q", 0)]


def test_looking_for_ticks_costs_no_transaction_id(db: Database) -> None:
    db.rows("select cascade.alter_queue('q', '{\"tick_max_lag\": \"0\"}')")
    with db.main.transaction():
        assert made(db) == []
        assert db.value("select pg_current_xact_id_if_assigned()") is None


def test_an_event_whose_ids_were_taken_before_the_tick_is_not_forgotten(db: Database) -> None:
    """The sequence stands still when the transaction commits: only the log itself can tell."""
    db.rows("select cascade.alter_queue('q', '{\"tick_max_lag\": \"0\"}')")
    late = db.connect(autocommit=False)
    db.insert("late", conn=late)
    db.tick()
    assert made(db) == []
    late.commit()
    assert made(db) == [("q", 1)]
    assert db.drain() == ["late"]


def test_ticks_count_their_events_exactly(db: Database) -> None:
    open_one = db.connect(autocommit=False)
    db.insert("a", "b", conn=open_one)
    with pytest.raises(ZeroDivisionError), db.main.transaction():
        db.insert("never")
        raise ZeroDivisionError
    db.insert("c")
    db.tick()
    open_one.commit()
    db.tick()
    assert db.rows("select events, total from cascade.ticks order by tick_id") == [(None, 0), (1, 1), (2, 3)]
    assert [db.next(max_ticks=1)[3] for _ in range(1)] == [1]  # type: ignore[index]


def test_ticks_form_a_chain(db: Database) -> None:
    for _ in range(3):
        db.tick()
    ticks = db.rows("select tick_id, prev_tick, chain, term_uid from cascade.ticks order by tick_id")
    assert [row[1] for row in ticks] == [None] + [row[0] for row in ticks[:-1]]
    assert len({row[2] for row in ticks}) == len(ticks)
    assert all(len(row[2]) == 64 for row in ticks)
    assert len({row[3] for row in ticks}) == 1


def test_a_tick_refuses_old_snapshots(db: Database) -> None:
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        other = db.connect(autocommit=False)
        other.isolation_level = level
        with refused("QC501", "needs READ COMMITTED"):
            other.execute("select cascade.tick('q')")
        other.rollback()
        with refused("QC501", "needs READ COMMITTED"):
            other.execute("select cascade.make_ticks()")
        other.rollback()


def test_a_tick_waits_for_another_and_cuts_after_it(db: Database) -> None:
    first, second = db.connect(autocommit=False), db.connect()
    db.insert(1)
    first.execute("select cascade.tick('q')")
    db.insert(2)
    second.execute("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        second.execute("select cascade.tick('q')")
    assert second.execute("select * from cascade.make_ticks()").fetchall() == []
    first.commit()
    second.execute("select cascade.tick('q')")
    assert db.rows("select events from cascade.ticks order by tick_id offset 1") == [(1,), (1,)]


def test_events_of_the_ticking_transaction_come_with_a_later_tick(db: Database) -> None:
    """Its own id lies above the cut, or below it: either way each event comes once."""
    for others in (0, 3):
        own = db.connect(autocommit=False)
        db.insert(f"before {others}", conn=own)
        for _ in range(others):
            db.insert("other")
        own.execute("select cascade.tick('q')")
        db.insert(f"after {others}", conn=own)
        own.commit()
    db.tick()
    seen = db.drain()
    assert sorted(seen) == ["after 0", "after 3", "before 0", "before 3", "other", "other", "other"]


def test_a_prepared_transaction_comes_when_it_is_committed(db: Database) -> None:
    db.backend.need_prepared()
    other = db.connect()
    other.execute("begin")
    db.insert("prepared", conn=other)
    other.execute("prepare transaction 'later'")
    db.insert("now")
    db.tick()
    assert db.drain() == ["now"]
    db.main.execute("commit prepared 'later'")
    db.tick()
    assert db.drain() == ["prepared"]


def test_a_tick_commits_durably_whatever_the_session_says(db: Database) -> None:
    with db.main.transaction():
        db.main.execute("set local synchronous_commit = off")
        db.tick()
        assert db.value("show synchronous_commit") == "on"
    with db.main.transaction():
        db.main.execute("set local synchronous_commit = remote_apply")
        db.tick()
        assert db.value("show synchronous_commit") == "remote_apply"


def test_a_tick_notifies_once_and_never_per_event(db: Database) -> None:
    listener = db.connect()
    listener.execute(f"listen {db.value('select cascade.tick_channel(%s)', 'q')}")
    db.insert(*range(20))
    assert list(listener.notifies(timeout=0.1)) == []
    db.tick()
    assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    assert list(listener.notifies(timeout=0.1)) == []


def test_a_clock_of_the_machine_set_back_does_not_stop_ticks(db: Database) -> None:
    gen_table = db.value("select 'cascade_internal.tick_' || queue_id || '_0' from cascade_internal.queue")
    db.main.execute(f"update {gen_table} set time = now() + interval '1 day'")
    db.insert(1)
    assert made(db) == [("q", 1)]


def test_waiting_events_are_found_in_older_generations_too(db: Database) -> None:
    db.rows("select cascade.alter_queue('q', '{\"tick_max_lag\": \"0\"}')")
    late = db.connect(autocommit=False)
    db.insert("late", conn=late)
    db.rotate("q")
    db.rotate("q")
    db.tick()
    late.commit()
    assert made(db) == [("q", 1)]
    assert db.drain() == ["late"]


def test_a_large_open_transaction_is_not_read_again_and_again(db: Database) -> None:
    """While it goes on, looking for ticks touches none of its rows."""
    db.rows("select cascade.alter_queue('q', '{\"tick_max_lag\": \"0\"}')")
    bulk = db.connect(autocommit=False)
    bulk.execute("insert into queue.q (payload) select '1' from generate_series(1, 20000)")
    queue = db.value("select queue_id from cascade_internal.queue")
    read = f"select pg_stat_get_xact_tuples_fetched(format('cascade_internal.event_%s_0', {queue})::regclass)"
    assert db.value("select queue_id from cascade_internal.queue") == queue
    with db.main.transaction():
        assert made(db) == []
        assert db.value(read) < 100
    db.insert("small")
    assert made(db) == [("q", 1)]
    with db.main.transaction():
        assert made(db) == []
        assert db.value(read) < 100
    bulk.commit()
    assert made(db) == [("q", 20000)]


def test_the_view_of_ticks_shows_all_queues(db: Database) -> None:
    db.queue("other")
    assert {row[0] for row in db.rows("select queue from cascade.ticks")} == {"q", "other"}
    eventually(lambda: db.tick("other") > 2)


def test_a_queue_that_is_fenced_while_ticks_are_made_is_passed_over(db: Database) -> None:
    """The list of queues is read first: an error here would end the daemon that has to raise the fence."""
    db.queue("a", tick_max_events=1)
    db.queue("b", tick_max_events=1)
    db.insert(1, queue="a")
    db.insert(1, queue="b")
    first = db.value("select queue_id from cascade_internal.queue where name = 'a'")
    other = db.connect()
    found: list[Any] = []

    def make_ticks() -> None:
        try:
            found.extend(other.execute("select queue from cascade.make_ticks()").fetchall())
        except psycopg.Error as error:
            found.append(error)

    with db.connect(autocommit=False) as holder:
        for slot in range(3):
            holder.execute(f"lock table cascade_internal.tick_{first}_{slot} in exclusive mode".encode())
        thread = threading.Thread(target=make_ticks)
        thread.start()
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        eventually(lambda: db.value(waiting))
        db.main.execute("update cascade_internal.queue set is_copy = true where name = 'b'")
        holder.rollback()
    thread.join(30)
    assert found == [("a",)]
