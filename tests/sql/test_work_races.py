"""What happens to messages between two sessions, one of which is not done yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused
from tests.fixtures.work import Work


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def post(db: Database, *, queue: str = "q", **options: Any) -> int:
    """Post a message, and return its id."""
    given = "".join(f", {name} => %s" for name in options)
    return int(db.value(f"select cascade.post('{queue}', '1'{given})", *options.values()))


@contextmanager
def at_once(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Call something in a thread, and wait for what it returns."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    yield found
    thread.join(30)
    assert found, "it did not return"


def wait_for_lock(db: Database, conn: psycopg.Connection[Any]) -> None:
    """Wait until a session waits for a lock."""
    query = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    eventually(lambda: db.rows(query, conn.info.backend_pid))


def test_a_claim_outlives_the_chunks_of_it_that_are_forgotten(db: Database) -> None:
    work = Work(db, chunk_size=10, keep_done="0 s", backoff="constant", backoff_delay="0 s")
    work.publish_many(20)
    messages = work.claim(20)
    assert work.complete(messages[0].claim_id, *[m.id for m in messages[:10]]) == 10
    assert work.tend()["done forgotten"] == 1
    work.fail(messages[10])
    assert work.complete(messages[0].claim_id, messages[11].id) == 1
    db.rows("update cascade_internal.work_claim set until = '-infinity' returning 1")
    assert work.tend()["given back"] == 8
    assert sorted(work.drain()) == [11, *range(13, 21)]


def test_a_claim_that_a_seek_overtakes_is_over(db: Database) -> None:
    work = Work(db)
    work.publish_many(3)
    db.rows("select * from cascade.dispatch_work()")
    claiming, seeking = db.connect(autocommit=False), db.connect()
    [message, *_] = work.claim(3, conn=claiming)
    with at_once(lambda: seeking.execute("select cascade.seek('q', 'w', 'earliest')").fetchone()):
        wait_for_lock(db, seeking)
        claiming.commit()
    with refused("QC217", "is over"):
        work.complete(message.claim_id)
    work.tend()
    assert [m.attempt for m in work.claim(3)] == [1, 1, 1]


def test_a_message_placed_while_fairness_is_switched_off_is_not_forgotten(db: Database) -> None:
    work = Work(db, max_active=10)
    work.publish(1)
    placing = db.connect(autocommit=False)
    placing.execute("select * from cascade.dispatch_work()")
    db.rows("select cascade.alter_consumer('q', 'w', %s)", '{"max_active": null}')
    placing.commit()
    assert [m.payload for m in work.claim(5)] == [1]


def test_messages_are_completed_while_they_are_keyed_anew(db: Database) -> None:
    """Altering a consumer changes the rows of messages in hand."""
    work = Work(db, max_active=40)
    ids = [post(db) for _ in range(3)]
    db.tick()
    [first, *_] = work.claim(3)
    altering, completing = db.connect(autocommit=False), db.connect()
    altering.execute("update cascade_internal.work_waiting set org = org + 1 where id < %s", (ids[2],))
    with at_once(lambda: completing.execute("select cascade.complete(%s)", (first.claim_id,)).fetchone()) as found:
        wait_for_lock(db, completing)
        altering.commit()
    assert found == [(3,)]
    assert work.states() == {} and work.result(ids[0])[0] == "done"


def test_followers_of_purged_messages_go_on(db: Database) -> None:
    work = Work(db)
    first = post(db)
    follower = post(db, after=[first])
    db.tick()

    def is_certain() -> bool:
        db.rows("select * from cascade.dispatch_work()")
        return bool(db.value("select is_certain from cascade_internal.work_blocker"))

    eventually(is_certain)
    assert db.value("select cascade.purge_work('q', 'w', state => 'waiting')") == 1
    assert work.result(first)[0] == "cancelled"
    eventually(lambda: [m.id for m in work.claim()] == [follower])


def test_letting_followers_go_keeps_nobody_waiting(db: Database) -> None:
    """They wait for two messages, which are done one after the other, and a transaction is open in between."""
    work = Work(db)
    one, two = post(db, priority=1), post(db, priority=1)
    followers = [post(db, after=[one, two]) for _ in range(3)]
    db.tick()
    [message, _] = work.claim(2)
    first, second = db.connect(autocommit=False), db.connect()
    second.execute("set lock_timeout = '2 s'")
    query = b"select cascade.complete(%s, array[%s]::bigint[])"
    second.execute(query, (message.claim_id, one))
    assert work.consume(conn=first) == []
    second.execute(query, (message.claim_id, two))
    assert work.claim(10, conn=second) == []
    first.commit()
    assert [m.id for m in work.claim(10, conn=second)] == followers


def test_an_expired_message_does_not_hide_the_next_of_its_key(db: Database) -> None:
    work = Work(db, order="key")
    post(db, key="k", expires_at="2099-01-01Z")
    second = post(db, key="k")
    db.tick()
    db.rows("select * from cascade.dispatch_work()")
    expire = "update cascade_internal.work_waiting set expires_at = clock_timestamp() where id < %s returning 1"
    assert db.rows(expire, second)
    assert [m.id for m in work.claim()] == [second]


def test_an_open_transaction_keeps_nobody_from_expiring(db: Database) -> None:
    """It has taken one of two messages that were drawn together; the other one expires."""
    work = Work(db, max_active=40)
    ids = [post(db, expires_at="2099-01-01Z") for _ in range(4)]
    db.tick()
    work.complete(work.claim(2)[0].claim_id)
    consuming, other = db.connect(autocommit=False), db.connect()
    assert work.consume(conn=consuming) == [1]
    expire = "update cascade_internal.work_waiting set expires_at = clock_timestamp() where id = %s returning 1"
    assert db.rows(expire, ids[3])
    other.execute("set lock_timeout = '2 s'")
    other.execute("select * from cascade.dispatch_work()")
    consuming.rollback()
    db.rows("select * from cascade.dispatch_work()")
    assert work.result(ids[3])[0] == "expired" and [m.id for m in work.claim(5)] == [ids[2]]


@pytest.mark.parametrize("table", ["work_chunk", "queue"])
def test_a_message_that_moves_while_it_is_looked_for_is_not_finished(db: Database, table: str) -> None:
    """One that is dispatched, or fails, in between: those that wait for it go on waiting."""
    db.queue("p")
    work, other = Work(db), Work(db, queue="p")
    first = post(db, queue="p")
    post(db, after_in=f'{{"p": [{first}]}}')
    db.tick("p")
    db.tick()
    messages = other.claim() if table == "work_chunk" else []
    db.rows("select * from cascade.dispatch_work('q')")
    by = db.value("select by_subscription from cascade_internal.work_blocker")
    looking, acting = db.connect(), db.connect(autocommit=False)
    acting.execute(f"lock table cascade_internal.{table} in access exclusive mode".encode())
    query = "select cascade_internal.blocker_state(%s, %s)"
    with at_once(lambda: looking.execute(query, (by, first)).fetchone()) as found:
        wait_for_lock(db, looking)
        if messages:
            acting.execute("select cascade.fail(%s, %s, 'no')", (messages[0].claim_id, first))
        else:
            acting.execute("select * from cascade.dispatch_work('p')")
        acting.commit()
    assert found == [("open",)]
    assert work.claim() == []


def test_take_gets_a_message_that_is_given_back_while_it_looks(db: Database) -> None:
    work = Work(db)
    work.publish(1)
    [message] = work.claim()
    taking, acting = db.connect(), db.connect(autocommit=False)
    acting.execute("lock table cascade_internal.work_claim in access exclusive mode")
    with at_once(lambda: taking.execute("select id from cascade.take('q', %s)", (message.id,)).fetchall()) as found:
        wait_for_lock(db, taking)
        acting.execute("select cascade.release(%s)", (message.claim_id,))
        acting.commit()
    assert found == [[(message.id,)]]


def test_a_message_does_not_expire_in_somebodys_hands(db: Database) -> None:
    work = Work(db, max_active=40)
    first, drawn = post(db, expires_at="2099-01-01Z"), post(db, expires_at="2099-01-01Z")
    db.tick()
    [message] = work.claim()
    assert message.id == first
    assert db.rows("update cascade_internal.work_waiting set expires_at = clock_timestamp() returning 1")
    db.rows("select * from cascade.dispatch_work()")
    assert work.complete(message.claim_id) == 1
    assert work.result(first)[0] == "done" and work.result(drawn)[0] == "expired"


def test_the_log_goes_as_far_as_the_oldest_chunk_and_no_further(db: Database) -> None:
    work = Work(db, chunk_size=3)
    for _ in range(2):
        work.publish_many(3)
        db.rows("select * from cascade.dispatch_work()")
    first, second = work.claim(3), work.claim(3)
    place = "select tick_id from cascade.consumers where consumer = 'w'"
    before, head = db.value(place), db.value("select max(to_tick) from cascade_internal.work_chunk")
    work.complete(first[0].claim_id)
    work.tend()
    between = db.value("select max(from_tick) from cascade_internal.work_chunk")
    assert before < between < head and db.value(place) == between
    work.complete(second[0].claim_id)
    work.tend()
    assert db.value(place) == head


def test_a_session_that_began_later_under_the_same_number_is_another_one(db: Database) -> None:
    work = Work(db)
    work.publish(1)
    [message] = work.claim(lease="1 day")
    assert "given back" not in work.tend()
    assert db.rows("update cascade_internal.work_claim set seen_at = '2000-01-01' returning 1")
    assert work.tend()["given back"] == 1
    assert [m.attempt for m in work.claim()] == [2] and message.attempt == 1
