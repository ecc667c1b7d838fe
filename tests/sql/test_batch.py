"""Consumers and batches: taking, reading, finishing, sharing, putting back, moving."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    return db


def fill(db: Database, ticks: int, *, first: int = 1) -> None:
    """Make ticks of one event each: 1, 2, 3 ..."""
    for number in range(first, first + ticks):
        db.insert(number)
        db.tick()


def take(db: Database, worker: str | None = None, **arguments: object) -> int:
    batch = db.next(worker=worker, **arguments)
    assert batch is not None
    return batch[0]


def position(db: Database) -> int:
    return int(db.value("select tick_id from cascade.consumers"))


def journal(db: Database) -> int:
    """Return how many states of consumers were written down."""
    return int(db.value("select count(*) from cascade_internal.position_1_0"))


# One reader


def test_there_is_no_row_when_there_is_nothing(db: Database) -> None:
    assert db.next() is None
    db.insert(1)
    assert db.next() is None


def test_an_unfinished_batch_comes_again(db: Database) -> None:
    fill(db, 2)
    first = db.next()
    assert first == db.next()
    assert first is not None
    assert first[3] == 1
    assert db.events(first[0]) == db.events(first[0]) == [1]
    db.finish(first[0])
    assert db.drain() == [2]


def test_a_batch_may_span_ticks_up_to_a_number_of_events(db: Database) -> None:
    for size in (2, 3, 4, 0, 1):
        db.insert(*range(size))
        db.tick()
    sizes = []
    while batch := db.next(max_ticks=10, max_events=5):
        sizes.append(batch[3])
        db.finish(batch[0])
    assert sizes == [5, 5]
    db.rows("select cascade.seek('q', 'c', 'earliest')")
    batch = db.next(max_ticks=2, max_events=1)
    assert batch is not None
    assert batch[3] == 2, "a single tick is never cut"


def test_the_largest_limit_is_no_limit(db: Database) -> None:
    fill(db, 3)
    batch = db.next(max_ticks=2**31 - 1, max_events=2**63 - 1)
    assert batch is not None
    assert batch[3] == 3


def test_events_come_in_the_order_of_their_ids(db: Database) -> None:
    early = db.connect(autocommit=False)
    db.insert("first", conn=early)
    db.insert("second")
    early.commit()
    db.tick()
    assert db.drain() == ["first", "second"]


def test_finishing_twice_is_finishing_once(db: Database) -> None:
    fill(db, 2)
    batch = take(db)
    tick = db.finish(batch)
    assert db.finish(batch) == tick
    second = take(db)
    assert db.finish(batch) == tick
    db.finish(second)
    db.rotate_away()
    with refused("QC203", "is not open"):
        db.finish(batch)


def test_finishing_and_taking_the_next_is_one_step(db: Database) -> None:
    fill(db, 3)
    first = take(db)
    before = journal(db)
    second = take(db, finish=first)
    assert journal(db) == before + 1, "one row says both"
    assert db.events(second) == [2]
    assert db.row("select tick_id, open_batches from cascade.consumers") == (2, 1)
    third = take(db, finish=second)
    assert db.events(third) == [3]
    assert db.next(finish=third) is None, "the last one is finished although there is nothing to take"
    assert db.row("select lag_events, open_batches from cascade.consumers") == (0, 0)


def test_finishing_and_taking_may_be_repeated(db: Database) -> None:
    fill(db, 2)
    first = take(db, worker="a")
    second = db.next(worker="a", finish=first)
    before = journal(db)
    assert db.next(worker="a", finish=first) == second
    assert db.finish(first) == 2
    with refused("QC204"):
        db.finish(first, once=True)
    assert journal(db) == before, "nothing was written"
    assert second is not None
    assert db.next(worker="a", finish=second[0]) is None
    assert db.next(worker="a", finish=second[0]) is None


def test_nothing_is_taken_when_the_batch_to_finish_is_lost(db: Database) -> None:
    fill(db, 3)
    db.rows("select cascade.subscribe('q', 'other', 'earliest')")
    first = take(db, worker="a")
    db.rows("select cascade.release_batch(%s)", first)
    taken_over = take(db, worker="b")
    done = db.next("other")
    assert done is not None
    strange = db.next("other", finish=done[0])
    assert strange is not None
    before = journal(db)
    for lost in (first, done[0], strange[0], 0, -1, taken_over + 1, 9_223_372_036_854_775_807):
        with refused("QC203"):
            db.next(worker="a", finish=lost)
    assert journal(db) == before
    assert db.row("select workers, open_batches from cascade.consumers where consumer = 'c'") == (["b"], 1)


def test_whoever_finishes_and_takes_waits_for_another_who_does(db: Database) -> None:
    fill(db, 4)
    first, second = take(db, worker="a"), take(db, worker="b")
    other = db.connect()
    query = "select batch_id from cascade.next_batch('q', 'c', worker => 'b', finish => %s)"
    with ThreadPoolExecutor() as pool:
        with db.main.transaction():
            third = take(db, worker="a", finish=first)
            waiting = pool.submit(other.execute, query, (second,))
            eventually(lambda: db.row("select 1 where cardinality(pg_blocking_pids(%s)) > 0", other.info.backend_pid))
        found = waiting.result(20).fetchone()
    assert found is not None
    assert db.events(third) + db.events(found[0]) == [3, 4]


def test_finishing_and_taking_is_undone_together(db: Database) -> None:
    fill(db, 2)
    first = take(db)
    with db.main.transaction(force_rollback=True):
        assert take(db, finish=first) != first
    assert take(db) == first


def test_a_reader_ahead_finishes_while_it_takes_the_one_after_the_next(db: Database) -> None:
    fill(db, 3)
    first = take(db, worker="a")
    second = take(db, worker="a", after=first)
    third = take(db, worker="a", after=second, finish=first)
    assert db.events(third) == [3]
    assert take(db, worker="a", after=second, finish=first) == third
    assert position(db) == 2


def test_a_worker_that_must_wait_finishes_nevertheless(db: Database) -> None:
    fill(db, 3)
    first, second = take(db, worker="a"), take(db, worker="b")
    assert db.next(worker="a", exclusive=True, finish=first) is None
    assert db.row("select tick_id, workers from cascade.consumers") == (2, ["b"])
    db.finish(second)


def test_what_a_batch_put_back_may_come_in_the_very_next(db: Database) -> None:
    fill(db, 2)
    first = take(db)
    event = db.value("select id from cascade.batch_events(%s)", first)
    db.rows("select cascade.retry_event(%s, %s, '0')", first, event)
    second = take(db, finish=first)
    assert db.rows("select payload, attempt from cascade.batch_events(%s)", second) == [(1, 2), (2, 1)]
    assert db.next(finish=second) is None
    assert db.value("select retries from cascade.consumers") == 0


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_batch_taken_with_an_old_snapshot_is_refused(db: Database, level: psycopg.IsolationLevel) -> None:
    """It would be the batch that was finished meanwhile, and finishing it again would succeed."""
    fill(db, 1)
    old = db.connect(autocommit=False)
    old.isolation_level = level
    old.execute("select 1 from pg_class")
    batch = take(db)
    db.finish(batch)
    db.rotate("q")
    with refused("QC501", "needs READ COMMITTED"):
        old.execute("select * from cascade.next_batch('q', 'c')")
    old.rollback()
    for call in ("finish_batch(%s, true)", "renew_batch(%s, '1 s')", "release_batch(%s)", "retry_event(%s, 1, '0')"):
        with refused("QC501", "needs READ COMMITTED"):
            old.execute(f"select cascade.{call}".encode(), (batch,))
        old.rollback()


def test_finishing_once_refuses_a_repetition(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    db.finish(batch, once=True)
    with refused("QC204", "was finished before"):
        db.finish(batch, once=True)


def test_a_finish_that_is_rolled_back_did_not_happen(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    with pytest.raises(ZeroDivisionError), db.main.transaction():
        db.finish(batch)
        raise ZeroDivisionError
    assert take(db) == batch


def test_finishing_commits_durably(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    with db.main.transaction():
        db.main.execute("set local synchronous_commit = off")
        db.finish(batch)
        assert db.value("show synchronous_commit") == "on"


@pytest.mark.parametrize("batch", [0, -1, 5, 10_000_000_001, 9_223_372_036_854_775_807, -9_223_372_036_854_775_808])
def test_a_batch_that_never_was_is_refused(db: Database, batch: int) -> None:
    for call in (
        "batch_events(%s)",
        "finish_batch(%s)",
        "release_batch(%s)",
        "renew_batch(%s, '1 s')",
        "retry_event(%s, 1, '1 s')",
    ):
        with refused("QC203", f"batch {batch} is not open"):
            db.rows(f"select cascade.{call}", batch)


def test_nulls_are_refused_with_a_name(db: Database) -> None:
    for call in (
        "finish_batch(null)",
        "batch_events(null)",
        "release_batch(null)",
        "next_batch('q', null)",
        "next_batch('q', 'c', null)",
        "next_batch('q', 'c', 0)",
        "next_batch('q', 'c', 1, 0)",
        "next_batch('q', 'c', worker => 'w', lease => '0')",
        "next_batch('q', 'c', worker => 'w', lease => '300000 years')",
        "seek('q', 'c', null)",
        "subscribe('q', 'x', null)",
    ):
        with refused("QC003"):
            db.rows(f"select cascade.{call}")
    with refused("QC001", "consumer name is null"):
        db.rows("select cascade.subscribe('q', null)")


@pytest.mark.parametrize("name", ["", ".global_watermark", "a\nb", "x" * 101])
def test_a_name_that_cannot_be_a_consumer_is_refused(db: Database, name: str) -> None:
    with refused("QC001", "consumer name"):
        db.rows("select cascade.subscribe('q', %s)", name)


def test_hostile_consumer_names_are_just_names(db: Database) -> None:
    for name in ("'; drop table x; --", '"quoted"', "ünïcödé", "with space", "%s", "a.b"):
        db.rows("select cascade.subscribe('q', %s)", name)
        fill(db, 1)
        assert len(db.drain(name)) == 1
        db.rows("select cascade.unsubscribe('q', %s)", name)


def test_an_unknown_consumer_is_named(db: Database) -> None:
    for call in ("next_batch('q', 'nope')", "seek('q', 'nope', 'now')"):
        with refused("QC102", 'queue "q" has no consumer "nope"'):
            db.rows(f"select cascade.{call}")
    assert db.value("select cascade.unsubscribe('q', 'nope')") is False


# Where a consumer begins


def test_a_consumer_may_begin_anywhere(db: Database) -> None:
    fill(db, 3)
    middle = db.value("select tick_id from cascade.ticks where events = 1 order by tick_id limit 1")
    when = db.value("select time from cascade.ticks where tick_id = %s", middle)
    places = {"earliest": [1, 2, 3], "now": [], str(middle): [2, 3], when.isoformat(): [2, 3], "2001-01-01": [1, 2, 3]}
    for place, expected in places.items():
        db.rows("select cascade.subscribe('q', %s, %s)", f"at {place}", place)
        assert db.drain(f"at {place}") == expected, place


def test_now_means_now_even_before_the_tick(db: Database) -> None:
    db.insert("before")
    db.rows("select cascade.subscribe('q', 'late')")
    db.insert("after")
    db.tick()
    assert db.drain("late") == ["after"]
    assert db.drain("c") == ["before", "after"]


def test_a_second_subscription_changes_nothing(db: Database) -> None:
    fill(db, 2)
    here = position(db)
    assert db.value("select cascade.subscribe('q', 'c', 'now')") == here
    assert db.drain() == [1, 2]


@pytest.mark.parametrize(
    ("place", "state", "message"),
    [
        ("99", "QC103", "has no tick 99"),
        ("tomorrow", "QC003", "is in the future"),
        ("2999-01-01", "QC003", "is in the future"),
        ("somewhere", "QC003", "'somewhere' is no place"),
        ("", "QC003", "is no place"),
        ("-5", "QC003", "is no place"),
        ("99999999999999999999", "QC003", "is no place"),
    ],
)
def test_a_place_that_is_none_is_refused(db: Database, place: str, state: str, message: str) -> None:
    with refused(state, message):
        db.rows("select cascade.subscribe('q', 'x', %s)", place)
    with refused(state, message):
        db.rows("select cascade.seek('q', 'c', %s)", place)


def test_a_tick_that_is_gone_is_called_expired(db: Database) -> None:
    fill(db, 1)
    db.drain()
    db.rotate_away()
    with refused("QC402", "has no tick 1"):
        db.rows("select cascade.seek('q', 'c', '1')")


def test_seeking_moves_a_consumer_and_forgets_what_was_open(db: Database) -> None:
    fill(db, 3)
    batch = take(db)
    db.rows("select cascade.retry_event(%s, %s, '0')", batch, 1)
    db.rows("select cascade.seek('q', 'c', 'now')")
    with refused("QC203"):
        db.finish(batch)
    with refused("QC203"):
        db.events(batch)
    assert db.drain() == []
    db.rows("select cascade.seek('q', 'c', 'earliest')")
    assert db.drain() == [1, 2, 3]


def test_unsubscribing_forgets_everything(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    assert db.value("select cascade.unsubscribe('q', 'c')") is True
    with refused("QC203"):
        db.finish(batch)
    db.rows("select cascade.subscribe('q', 'c')")
    assert db.drain() == []


# Several workers


def test_workers_hold_different_batches(db: Database) -> None:
    fill(db, 3)
    a, b = take(db, "a"), take(db, "b")
    assert (db.events(a), db.events(b)) == ([1], [2])
    assert take(db, "a") == a


def test_the_position_never_passes_an_unfinished_batch(db: Database) -> None:
    fill(db, 3)
    start = position(db)
    a, b, c = take(db, "a"), take(db, "b"), take(db, "c")
    assert db.finish(c) == start
    assert db.finish(a) == start + 1
    assert db.finish(b) == start + 3
    assert position(db) == start + 3


def test_a_batch_given_back_goes_to_the_next_who_asks(db: Database) -> None:
    fill(db, 2)
    a = take(db, "a")
    db.rows("select cascade.release_batch(%s)", a)
    with refused("QC203", "is not open"):
        db.finish(a)
    b = take(db, "b")
    assert b != a
    assert db.events(b) == [1]
    for call in ("finish_batch(%s)", "renew_batch(%s, '1 s')", "release_batch(%s)", "batch_events(%s)"):
        with refused("QC203", "is not open"):
            db.rows(f"select cascade.{call}", a)
    db.finish(b)
    assert db.drain(worker="a") == [2]


def test_a_worker_that_asks_again_gets_its_batch_before_an_older_one_given_back(db: Database) -> None:
    fill(db, 3)
    first, second = take(db, worker="b"), take(db, worker="a")
    db.rows("select cascade.release_batch(%s)", first)
    assert take(db, worker="a") == second, "the first reply may have been lost"
    assert db.events(take(db, worker="a", finish=second)) == [1]


def test_an_exclusive_worker_keeps_to_the_order(db: Database) -> None:
    fill(db, 2)
    first = take(db, worker="a", exclusive=True)
    second = take(db, worker="a", exclusive=True, after=first)
    db.rows("select cascade.release_batch(%s)", first)
    again = take(db, worker="a", exclusive=True)
    assert db.events(again) == [1]
    assert take(db, worker="a", exclusive=True, finish=again) == second


def expire(db: Database, worker: str) -> None:
    """Let a worker's lease run out, as time would."""
    table = db.value("select 'cascade_internal.position_' || queue_id || '_0' from cascade_internal.queue")
    db.main.execute(
        f"update {table} set open_batches = array(select case when o.worker = %s then (o.batch_id, o.from_tick,"  # type: ignore[arg-type]
        " o.to_tick, o.events, o.worker, clock_timestamp(), o.attempt)::cascade_internal.open_batch else o end"
        f" from unnest(open_batches) as o) where n = (select max(n) from {table})",
        (worker,),
    )


def test_a_batch_whose_lease_ran_out_is_taken_over(db: Database) -> None:
    fill(db, 1)
    dead = take(db, "dead")
    assert db.next(worker="b") is None
    expire(db, "dead")
    mine = take(db, "b")
    assert db.events(mine) == [1]
    with refused("QC203"):
        db.finish(dead)
    db.finish(mine)
    assert db.drain(worker="b") == []


def test_a_late_worker_may_finish_while_nobody_took_over(db: Database) -> None:
    fill(db, 1)
    late = take(db, "late")
    expire(db, "late")
    db.finish(late)
    assert db.drain(worker="b") == []


def test_renewing_extends_a_lease(db: Database) -> None:
    fill(db, 1)
    batch = take(db, "a", lease="1 s")
    until = db.value("select cascade.renew_batch(%s, '1 hour')", batch)
    assert until > db.value("select clock_timestamp() + interval '50 min'")
    assert db.next(worker="b") is None
    with refused("QC003", "lease must be positive"):
        db.rows("select cascade.renew_batch(%s, '0')", batch)


def test_a_worker_that_asks_again_too_late_gets_its_batch_anew(db: Database) -> None:
    fill(db, 1)
    old = take(db, "a")
    expire(db, "a")
    new = take(db, "a", lease="1 hour")
    assert new != old
    assert db.next(worker="b") is None
    with refused("QC203"):
        db.finish(old)
    db.finish(new)


def test_an_exclusive_worker_waits_while_another_has_read_ahead(db: Database) -> None:
    fill(db, 2)
    first = take(db, "a", exclusive=True)
    take(db, "a", exclusive=True, after=first)
    db.rows("select cascade.release_batch(%s)", first)
    assert db.next(worker="b", exclusive=True) is None


def test_an_exclusive_worker_waits_for_the_other(db: Database) -> None:
    fill(db, 2)
    a = take(db, "a", exclusive=True)
    assert db.next(worker="b", exclusive=True) is None
    db.finish(a)
    assert db.events(take(db, "b", exclusive=True)) == [2]


def test_a_worker_reads_ahead(db: Database) -> None:
    fill(db, 3)
    first = take(db, "a", exclusive=True)
    second = take(db, "a", exclusive=True, after=first)
    third = take(db, "a", exclusive=True, after=second)
    assert [db.events(batch) for batch in (first, second, third)] == [[1], [2], [3]]
    assert take(db, "a", exclusive=True, after=first) == second
    assert db.next(worker="a", exclusive=True, after=third) is None
    db.finish(first)
    assert take(db, "a", exclusive=True, after=first) == second, "a finished batch has nothing to come after"


def test_two_workers_at_once_never_get_the_same_batch(db: Database) -> None:
    fill(db, 2)
    a, b = db.connect(autocommit=False), db.connect()
    held = a.execute("select batch_id from cascade.next_batch('q', 'c', worker => 'a')").fetchone()
    b.execute("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        b.execute("select * from cascade.next_batch('q', 'c', worker => 'b')")
    a.commit()
    other = b.execute("select batch_id from cascade.next_batch('q', 'c', worker => 'b')").fetchone()
    assert other != held


# Events put back


def test_an_event_put_back_comes_again_with_its_attempt(db: Database) -> None:
    db.insert("good", "bad")
    db.tick()
    batch = take(db)
    bad = db.value("select id from cascade.batch_events(%s) where payload::text = '\"bad\"'", batch)
    assert db.value("select cascade.retry_event(%s, %s, '0')", batch, bad) == 2
    assert db.next() == db.next()
    db.finish(batch)
    for attempt in (2, 3):
        batch = take(db)
        assert db.rows("select id, attempt from cascade.batch_events(%s)", batch) == [(bad, attempt)]
        if attempt == 2:
            assert db.value("select cascade.retry_event(%s, %s, '0')", batch, bad) == 3
        db.finish(batch)
    assert db.drain() == []
    assert db.value("select count(*) from cascade_internal.retry") == 0


def test_an_event_put_back_comes_among_newer_ones(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    db.rows("select cascade.retry_event(%s, 1, '0')", batch)
    db.finish(batch)
    fill(db, 1, first=2)
    row = db.next()
    assert row is not None
    assert row[3] == 2
    assert db.rows("select payload, attempt from cascade.batch_events(%s)", row[0]) == [(1, 2), (2, 1)]


def test_an_event_is_put_back_for_one_consumer_only(db: Database) -> None:
    db.rows("select cascade.subscribe('q', 'other')")
    fill(db, 1)
    batch = take(db)
    db.rows("select cascade.retry_event(%s, 1, '0')", batch)
    db.finish(batch)
    assert db.drain("other") == [1]
    assert db.drain("c") == [1]


def test_an_event_put_back_waits_for_its_time(db: Database) -> None:
    fill(db, 1)
    batch = take(db)
    db.rows("select cascade.retry_event(%s, 1, '1 hour')", batch)
    db.finish(batch)
    assert db.next() is None
    assert db.value("select retries from cascade.consumers") == 1
    db.main.execute("update cascade_internal.retry set due = now()")
    assert db.drain() == [1]


def test_putting_back_is_void_when_the_batch_changes_hands(db: Database) -> None:
    """The event comes with the batch again: it must not come a second time by itself."""
    fill(db, 1)
    a = take(db, "a")
    db.rows("select cascade.retry_event(%s, 1, '0')", a)
    expire(db, "a")
    b = take(db, "b")
    db.finish(b)
    assert db.drain(worker="b") == []
    fill(db, 1, first=2)
    a = take(db, "a")
    db.rows("select cascade.retry_event(%s, 2, '0')", a)
    db.rows("select cascade.release_batch(%s)", a)
    assert db.drain(worker="b") == [2]
    assert db.value("select count(*) from cascade_internal.retry") == 0


def test_what_was_put_back_goes_along_when_its_batch_changes_hands(db: Database) -> None:
    fill(db, 1)
    batch = take(db, "a")
    db.rows("select cascade.retry_event(%s, 1, '0')", batch)
    db.finish(batch)
    again = take(db, "a")
    assert db.events(again) == [1]
    expire(db, "a")
    taken = take(db, "b")
    assert db.rows("select payload, attempt from cascade.batch_events(%s)", taken) == [(1, 2)]
    db.finish(taken)
    assert db.drain(worker="b") == []


def test_only_events_of_the_batch_can_be_put_back(db: Database) -> None:
    fill(db, 2)
    batch = take(db)
    for event in (2, 99, None):
        with refused("QC104", "has no event"):
            db.rows("select cascade.retry_event(%s, %s, '0')", batch, event)
    with refused("QC003", "delay is null, negative"):
        db.rows("select cascade.retry_event(%s, 1, '-1 s')", batch)


# What people see


def test_the_lag_is_exact(db: Database) -> None:
    db.insert(1, 2)
    db.tick()
    db.insert(3)
    db.tick()
    assert db.row("select lag_ticks, lag_events, lag_seconds > 0 from cascade.consumers") == (2, 3, True)
    db.finish(take(db))
    assert db.row("select lag_ticks, lag_events from cascade.consumers") == (1, 1)
    db.drain()
    assert db.row("select lag_ticks, lag_events, lag_seconds, open_batches from cascade.consumers") == (0, 0, 0, 0)


def test_the_view_names_the_workers(db: Database) -> None:
    fill(db, 2)
    take(db, "a")
    take(db, "b")
    assert db.row("select open_batches, workers from cascade.consumers") == (2, ["a", "b"])
