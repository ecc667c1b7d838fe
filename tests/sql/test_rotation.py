"""Rotation: step by step, what it waits for, whom it never makes wait, and what readers see."""

from __future__ import annotations

import threading
import time
from typing import LiteralString

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    return db


def blocked(db: Database) -> tuple[object, ...]:
    row = db.row("select blocked_by, blocker from cascade.rotation")
    assert row is not None
    return row


def test_a_rotation_goes_step_by_step(db: Database) -> None:
    db.insert(1)
    db.tick()
    db.drain()
    assert db.rotate("q") == [("switched", 1)]
    assert db.rotate() == [("settled", 1)]
    db.insert(2)
    assert db.rotate() == [("waiting", 0)]
    assert blocked(db) == ("tick", None)
    db.tick()
    assert blocked(db) == ("consumer", "c")
    assert db.drain() == [2]
    assert db.rotate() == [("released", 0)]
    assert db.rotate() == [("truncated", 0)]
    assert db.rotate() == []
    assert db.row("select generation, oldest_generation, bytes_held from cascade.rotation") == (1, 1, 0)


def test_rotation_is_due_by_its_period(db: Database) -> None:
    assert db.rotate() == []
    db.rows("select cascade.alter_queue('q', '{\"rotation_period\": \"0\"}')")
    assert db.rotate() == [("switched", 1)]


def test_rotation_keeps_what_a_consumer_has_not_read(db: Database) -> None:
    db.insert(*range(100))
    db.tick()
    for _ in range(10):
        db.rotate("q")
        db.tick()
    assert blocked(db) == ("consumer", "c")
    assert db.drain() == list(range(100))


def test_a_switch_needs_a_free_partition(db: Database) -> None:
    db.insert(1)
    for _ in range(10):
        db.rotate("q")
        db.tick()
    assert db.value("select generation from cascade.rotation") == 2
    db.drain()
    eventually(lambda: db.tick() and db.drain() is not None and ("switched", 3) in db.rotate("q"))


def test_rotation_frees_the_disk(db: Database) -> None:
    db.main.execute("insert into queue.q (payload) select to_json(repeat('x', 500)) from generate_series(1, 5000)")
    db.tick()
    db.drain()
    full = db.value("select bytes from cascade.queues")
    assert full > 2_000_000
    db.rotate_away()
    assert db.value("select bytes from cascade.queues") < 100_000


def test_ticks_and_positions_leave_with_their_generation(db: Database) -> None:
    for number in range(50):
        db.insert(number)
        db.tick()
        db.drain()
    db.rotate_away()
    assert db.value("select count(*) from cascade.ticks") < 10
    rows = sum(
        db.value(f"select count(*) from cascade_internal.position_{queue}_{slot}")
        for (queue,) in db.rows("select queue_id from cascade_internal.queue")
        for slot in range(3)
    )
    assert rows < 10


def test_an_idle_consumer_keeps_its_position_through_many_rotations(db: Database) -> None:
    """Its newest row is carried over; the batch it finished last may still be finished again."""
    db.insert(1)
    db.tick()
    batch = db.next()
    assert batch is not None
    db.finish(batch[0])
    here = db.value("select cascade.subscribe('q', 'idle', 'now')")
    assert db.value("select tick_id from cascade.consumers where consumer = 'idle'") == here
    for _ in range(4):
        db.rotate_away()
    db.insert(2)
    db.tick()
    assert db.drain("idle") == [2]
    assert db.drain("c") == [2]


def test_the_transaction_that_holds_rotation_is_named(db: Database) -> None:
    old = db.connect(autocommit=False)
    pid = old.info.backend_pid
    old.execute("select txid_current()")
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    row = db.row("select blocked_by, blocker, pid, age is not null, query from cascade.rotation")
    assert row == ("transaction", f"backend {pid}", pid, True, "select txid_current()")
    detail = db.rows("select action, detail from cascade.rotate()")
    assert detail[0][0] == "waiting"
    assert f"of backend {pid} is open" in detail[0][1]
    old.rollback()
    assert blocked(db) == ("tick", None)


def test_a_prepared_transaction_that_holds_rotation_is_named(db: Database) -> None:
    db.backend.need_prepared()
    other = db.connect()
    other.execute("begin")
    db.insert("prepared", conn=other)
    other.execute("prepare transaction 'forgotten'")
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    # An older transaction, autovacuum's for one, is named first, while it lasts.
    eventually(lambda: blocked(db) == ("transaction", "prepared transaction 'forgotten'"))
    db.main.execute("commit prepared 'forgotten'")
    db.tick()
    assert db.drain() == ["prepared"]


def test_the_reader_that_holds_a_partition_is_named(db: Database) -> None:
    reader = db.connect(autocommit=False)
    db.insert(1)
    db.tick()
    db.drain()
    reader.execute("select count(*) from queue.q")
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    eventually(lambda: db.tick() and db.drain() == [] and ("released", 0) in db.rotate())
    assert db.rotate() == [("waiting", 0)]
    row = db.row("select blocked_by, pid from cascade.rotation")
    assert row == ("lock", reader.info.backend_pid)
    reader.rollback()
    assert db.rotate() == [("truncated", 0)]


def test_no_writer_waits_for_a_rotation(db: Database) -> None:
    """Nor for one that waits itself: a writer's lock_timeout never strikes."""
    writer = db.connect()
    writer.execute("set lock_timeout = '50ms'")
    reader = db.connect(autocommit=False)
    reader.execute("select count(*) from queue.q")
    stop = threading.Event()

    def write() -> int:
        number = 0
        while not stop.is_set():
            number += 1
            db.insert(number, conn=writer)
        return number

    written: list[int] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            written.append(write())
        except psycopg.Error as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        for _ in range(6):
            db.rotate("q")
            db.tick()
            db.drain(max_ticks=100)
        reader.rollback()
        for _ in range(12):
            db.rotate("q")
            db.tick()
            db.drain(max_ticks=100)
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert written[0] > 10
    assert db.value("select oldest_generation from cascade.rotation") > 0


def test_a_writer_that_began_before_the_switch_is_not_lost(db: Database) -> None:
    early = db.connect(autocommit=False)
    db.insert("before", conn=early)
    db.rotate("q")
    db.insert("after", conn=early)
    db.rotate("q")
    db.tick()
    db.drain()
    for _ in range(3):
        db.rotate("q")
    early.commit()
    db.tick()
    assert db.drain() == ["before", "after"]


def test_a_prepared_statement_and_an_old_snapshot_use_the_new_partition(db: Database) -> None:
    old = db.connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("select 1")
    db.rotate("q")
    db.insert("old snapshot", conn=old)
    old.commit()
    assert db.rows("select slot::text from queue.q") == [("1",)]
    db.rotate("q")
    db.tick()
    assert db.drain() == ["old snapshot"]


def test_rotation_must_be_the_first_statement_of_its_transaction(db: Database) -> None:
    """An id taken before the switch would mark the wrong moment: rows would be lost."""
    other = db.connect(autocommit=False)
    other.execute("select txid_current()")
    with refused("QC501", "first statement"):
        other.execute("select cascade.rotate()")
    other.rollback()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refused("QC501", "needs READ COMMITTED"):
        other.execute("select cascade.rotate()")


def test_two_rotations_at_once_do_not_wait_for_each_other(db: Database) -> None:
    first, second = db.connect(autocommit=False), db.connect()
    first.execute("select * from cascade.rotate('q')")
    second.execute("set lock_timeout = '100ms'")
    [(action, detail)] = second.execute("select action, detail from cascade.rotate('q')").fetchall()
    assert action == "waiting"
    assert "another rotation" in detail
    first.commit()
    assert second.execute("select action from cascade.rotate('q')").fetchall() == [("settled",)]


def test_a_consumer_at_work_is_not_waited_for(db: Database) -> None:
    db.insert(1)
    db.tick()
    db.drain()
    db.rotate("q")
    db.rotate("q")
    db.rows("select cascade.subscribe('q', 'busy', 'now')")
    db.tick()
    db.drain()
    busy = db.connect(autocommit=False)
    row = busy.execute("select batch_id from cascade.next_batch('q', 'busy')").fetchone()
    assert row is not None
    assert db.rotate()[0][0] == "waiting"
    busy.commit()
    db.finish(row[0])
    eventually(lambda: db.tick() and db.drain() == [] and db.drain("busy") == [] and ("released", 0) in db.rotate())


def reading(db: Database) -> tuple[psycopg.Connection[object], int]:
    """A reader with a batch of one event, about to read it."""
    db.insert("precious")
    db.tick()
    batch = db.next()
    assert batch is not None
    return db.connect(autocommit=False), batch[0]


def test_a_reader_racing_with_rotation_gets_its_events_or_an_error(db: Database) -> None:
    """TRUNCATE obeys no snapshot: without the check the batch would simply be empty.

    The reader's snapshot still sees the open batch and both its ticks, which lie in
    generation 1; the event lies in generation 0, where its writer had begun.
    """
    writer = db.connect(autocommit=False)
    db.insert("precious", conn=writer)
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    writer.commit()
    db.tick()
    batch = db.next()
    assert batch is not None
    assert batch[3] == 1
    reader = db.connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("select 1")
    db.rows("select cascade.seek('q', 'c', 'now')")
    assert (db.rotate(), db.rotate()) == ([("released", 0)], [("truncated", 0)])
    with refused("QC402", "were removed while it was read"):
        reader.execute("select * from cascade.batch_events(%s)", (batch[0],))
    reader.rollback()
    with refused("QC203", "is not open"):
        reader.execute("select * from cascade.batch_events(%s)", (batch[0],))


def test_an_open_batch_keeps_its_events(db: Database) -> None:
    reader, batch = reading(db)
    for _ in range(8):
        db.rotate("q")
        db.tick()
    rows = reader.execute("select payload from cascade.batch_events(%s)", (batch,)).fetchall()
    assert rows == [("precious",)]


def test_a_subscription_under_way_holds_its_tick(db: Database) -> None:
    db.insert(1)
    db.tick()
    db.drain()
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    slow = db.connect(autocommit=False)
    slow.execute("select cascade.subscribe('q', 'slow', 'earliest')")
    for _ in range(4):
        db.rotate()
    slow.commit()
    db.rotate()
    assert db.drain("slow", max_ticks=10) == [1]


def test_a_consumer_never_begins_where_events_are_gone(db: Database) -> None:
    """A tick made soon after a switch lies in the new generation; its next batch, maybe not."""
    late = db.connect(autocommit=False)
    db.insert("late", conn=late)
    db.rotate("q")
    db.tick()
    first_after = db.value("select max(tick_id) from cascade.ticks")
    db.rotate("q")
    late.commit()
    db.tick()
    db.insert("kept")
    db.tick()
    db.drain()
    assert (db.rotate(), db.rotate()) == ([("released", 0)], [("truncated", 0)])
    db.rows("select cascade.subscribe('q', 'new', 'earliest')")
    db.rows("select cascade.subscribe('q', 'old', '2001-01-01')")
    assert db.drain("new", max_ticks=10) == db.drain("old", max_ticks=10) == ["kept"]
    with refused("QC402", f"has no tick {first_after}"):
        db.rows("select cascade.seek('q', 'c', %s)", str(first_after))


def test_subscribing_and_reserving_do_not_collide_with_a_switch(db: Database) -> None:
    """Foreign keys lock the queue's row; a switch must neither wait for them nor hold them up."""
    switching = db.connect(autocommit=False)
    switching.execute("select cascade.rotate('q')")
    producer = db.connect(autocommit=False)
    producer.execute("set lock_timeout = '100ms'")
    producer.execute("select cascade.reserve_id('q')")
    switching.commit()
    db.main.execute("set lock_timeout = '100ms'")
    assert db.rotate("q") == [("settled", 1)]


@pytest.mark.parametrize(
    "query",
    [
        "select cascade.tick('q')",
        "select cascade.subscribe('q', 'late', 'now')",
        "select cascade.subscribe('q', 'late', 'earliest')",
        "select cascade.seek('q', 'c', 'now')",
    ],
)
def test_a_transaction_that_ticked_or_took_a_place_and_stays_open_is_named(db: Database, query: LiteralString) -> None:
    db.insert("waits for a tick")
    holder = db.connect(autocommit=False)
    holder.execute(query)
    pid = holder.info.backend_pid
    [(action, detail)] = db.rows("select action, detail from cascade.rotate('q')")
    assert action == "waiting"
    assert detail.startswith(f"backend {pid} has made a tick or taken a place in the queue")
    assert db.row("select blocked_by from cascade.rotation") == (None,), "a moment is no news"
    row = eventually(
        lambda: db.row("select blocker, pid, query from cascade.rotation where blocked_by = 'transaction'")
    )
    assert row == (f"backend {pid}", pid, query)
    holder.rollback()
    assert db.row("select blocked_by, pid from cascade.rotation") == (None, None)
    assert db.rotate("q") == [("switched", 1)]


def test_a_held_tick_is_named_also_while_an_older_generation_waits_for_the_next(db: Database) -> None:
    db.rotate("q")
    db.rotate("q")
    assert blocked(db) == ("tick", None)
    holder = db.connect(autocommit=False)
    holder.execute("select cascade.tick('q')")
    eventually(lambda: blocked(db) == ("transaction", f"backend {holder.info.backend_pid}"))


def test_a_consumer_at_work_and_a_reservation_are_no_holders(db: Database) -> None:
    db.insert(1)
    db.tick()
    other = db.connect(autocommit=False)
    other.execute("select cascade.next_batch('q', 'c')")
    other.execute("select cascade.reserve_id('q')")
    other.execute("select * from cascade.rotation")
    time.sleep(1.1)
    assert db.row("select blocked_by from cascade.rotation") == (None,)
    assert db.rotate("q") == [("switched", 1)]


def test_reservations_are_forgotten_after_a_month(db: Database) -> None:
    old, posting, young = (db.value("select cascade.reserve_id('q')") for _ in range(3))
    db.main.execute(
        "update cascade_internal.reservation set reserved_at = now() - interval '31 days' where id <> %s", (young,)
    )
    producer = db.connect(autocommit=False)
    producer.execute("select cascade.post('q', '1', id => %s)", (posting,))
    db.main.execute("set lock_timeout = '5s'")
    assert db.rotate("q") == [("switched", 1)]
    assert db.rows("select id from cascade_internal.reservation order by id") == [(posting,), (young,)]
    producer.commit()
    with refused("QC205", f"id {old} is not reserved"):
        db.rows("select cascade.post('q', '1', id => %s)", old)


def test_a_blocked_queue_holds_up_no_other(db: Database) -> None:
    db.queue("other")
    reader = db.connect(autocommit=False)
    db.insert(1)
    db.tick()
    db.drain()
    reader.execute("select count(*) from queue.q")
    db.rotate("q")
    db.rotate("q")
    db.tick()
    db.drain()
    assert db.rotate("q")[0] == ("released", 0)
    db.rows("select cascade.alter_queue('other', '{\"rotation_period\": \"0\"}')")
    actions = [db.rows("select queue_name, action from cascade.rotate()") for _ in range(2)]
    assert actions[0] == [("q", "waiting"), ("other", "switched")]
    assert ("other", "settled") in actions[1]


def test_registers_that_a_dump_read_late_are_mended(db: Database) -> None:
    """pg_dump reads sequences outside its snapshot: they may be ahead of the tables."""
    db.insert("precious")
    db.tick()
    queue = db.value("select queue_id from cascade_internal.queue")
    db.main.execute(f"select setval('cascade_internal.first_{queue}', 5)")
    db.main.execute("select cascade_internal.set_register(q, 2, false) from cascade_internal.queue as q")
    db.insert("later")
    db.tick()
    assert db.drain(max_ticks=10) == ["precious", "later"]
    assert db.rotate() == [("settled", 2)]
    assert db.rows("select gen from cascade_internal.generation order by gen") == [(0,), (1,), (2,)]
    eventually(lambda: db.tick() and db.drain() == [] and ("truncated", 1) in db.rotate())


def test_ticks_that_are_lost_are_not_begun_anew(db: Database) -> None:
    db.rotate("q")
    queue = db.value("select queue_id from cascade_internal.queue")
    db.main.execute(f"truncate cascade_internal.tick_{queue}_0, cascade_internal.tick_{queue}_1")
    with refused("QC901", "has lost its ticks"):
        db.tick()


def test_rotation_needs_no_consumer(db: Database) -> None:
    db.rows("select cascade.unsubscribe('q', 'c')")
    db.insert(1)
    db.rotate_away()
    assert db.value("select count(*) from queue.q") == 0


def test_unticked_events_are_never_emptied(db: Database) -> None:
    db.rows("select cascade.unsubscribe('q', 'c')")
    db.insert("unticked")
    for _ in range(8):
        db.rotate("q")
    assert db.value("select count(*) from queue.q") == 1


def test_arming_survives_a_switch(db: Database) -> None:
    internal = "cascade_internal.is_armed(queue_id, slots)"
    db.main.execute(
        "select cascade_internal.set_register(q, cascade_internal.current_gen(queue_id, slots), true)"
        " from cascade_internal.queue as q"
    )
    db.insert("armed")
    assert db.rotate("q") == [("switched", 1)]
    assert db.value(f"select {internal} from cascade_internal.queue") is True
    db.insert("armed too")
    db.rows("select cascade.disarm_ticker()")
    assert db.value(f"select {internal} from cascade_internal.queue") is False
    assert db.value("select cascade_internal.current_gen(queue_id, slots) from cascade_internal.queue") == 1
    db.tick()
    assert db.drain() == ["armed", "armed too"]
