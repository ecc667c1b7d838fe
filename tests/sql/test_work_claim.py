"""Message by message: claims, leases, chunks of the log, and what becomes of messages that are not completed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused
from tests.fixtures.work import Work


@pytest.fixture
def work(db: Database) -> Work:
    """A queue and its consumer; what fails comes again at once."""
    db.queue()
    return Work(db, backoff="constant", backoff_delay="0 s", max_attempts=3)


def chunks(work: Work, condition: str = "true") -> list[tuple[Any, ...]]:
    """Return (state, events, first_id) of the chunks."""
    query = "select state::text, events, first_id from cascade_internal.work_chunk where"
    return work.db.rows(f"{query} subscription_id = {work.id} and {condition} order by no")


@pytest.fixture
def another(work: Work) -> Iterator[psycopg.Connection[Any]]:
    """Another session."""
    with work.db.connect() as conn:
        yield conn


def test_messages_are_given_to_one_and_completed(work: Work, another: psycopg.Connection[Any]) -> None:
    work.publish_many(250)
    first, second = work.claim(100), work.claim(100, conn=another)
    assert [len(first), len(second), first[0].attempt] == [100, 100, 1]
    assert not {m.id for m in first} & {m.id for m in second}
    assert len({m.claim_id for m in first}) == 1
    third = work.claim(100)
    assert [m.payload for m in third] == [*range(201, 251)]
    assert work.claim() == []
    for messages in (first, second, third):
        assert work.complete(messages[0].claim_id) == len(messages)
        with refused("QC217", "is over"):
            work.complete(messages[0].claim_id)
    assert work.states() == {}
    assert work.result(first[0].id) == ("done", None, None, 1)


def test_a_claim_may_be_completed_in_parts_all_or_nothing(work: Work) -> None:
    work.publish_many(10)
    messages = work.claim(10)
    claim, ids = messages[0].claim_id, [m.id for m in messages]
    assert work.complete(claim, *ids[:4], results=[{"n": 1}, None, None, 4]) == 4
    for bad in ([ids[4], ids[0]], [ids[5], 999_999], [ids[6], ids[6]]):
        with refused("QC217", "does not hold message"):
            work.complete(claim, *bad)
    with refused("QC003", "1 results for 2 ids"):
        work.complete(claim, ids[4], ids[5], results=[1])
    assert set(work.states()) == {*ids[4:]}
    assert work.result(ids[0])[:2] == ("done", {"n": 1}) and work.result(ids[1])[:2] == ("done", None)
    assert work.complete(claim) == 6
    assert work.claim() == []


def test_completing_and_claiming_the_next_is_one_step(work: Work) -> None:
    work.publish_many(6)
    claim = work.claim(4)[0].claim_id
    query = "select id, payload, claim_id from cascade.complete_and_claim(%s, %s, count => 4) order by id"
    rows = work.db.rows(query, claim, None)
    assert [row[1] for row in rows] == [5, 6]
    with refused("QC217"):
        work.db.rows(query, claim, None)
    assert work.db.rows(query, rows[0][2], None) == []
    assert work.states() == {}


def test_a_claim_smaller_than_a_chunk_splits_it(work: Work) -> None:
    work.publish_many(100)
    assert [m.payload for m in work.claim(30)] == [*range(1, 31)]
    assert chunks(work) == [("h", 30, 1), ("f", 30, 31), ("f", 30, 61), ("f", 10, 91)]
    assert [m.payload for m in work.claim(45)] == [*range(31, 76)]
    assert [m.payload for m in work.claim(100)] == [*range(76, 101)]
    assert sum(events for _, events, _ in chunks(work)) == 100


def test_a_chunk_of_scattered_events_is_read_exactly(work: Work, another: psycopg.Connection[Any]) -> None:
    """Ids of two transactions alternate, and only one of them has committed when the tick is made."""
    with another.transaction():
        for number in range(0, 40, 2):
            work.db.insert(number)
            work.db.insert(number + 1, conn=another)
        work.db.tick()
        assert work.drain(7) == [*range(0, 40, 2)]
    work.db.tick()
    assert work.drain(7) == [*range(1, 40, 2)]


def test_events_are_found_after_the_table_was_rewritten(db: Database) -> None:
    """In the opposite order, so that every chunk lies elsewhere."""
    db.queue()
    work = Work(db, chunk_size=10, backoff="constant", backoff_delay="0 s")
    work.db.insert(*range(10))
    work.publish_many(50)
    work.db.rows("select * from cascade.dispatch_work()")
    held = work.claim(5)
    before = work.db.rows("select ctid::text, id from cascade_internal.event_1_0 order by id")
    work.db.main.execute("create index moved on cascade_internal.event_1_0 (id desc)")
    work.db.main.execute("cluster cascade_internal.event_1_0 using moved")
    assert work.db.rows("select ctid::text, id from cascade_internal.event_1_0 order by id") != before
    work.fail(held[0])
    work.complete(held[0].claim_id)
    assert sorted(work.drain()) == sorted([held[0].payload, *range(5, 10), *range(1, 51)])


def test_a_rollback_of_a_claim_returns_its_chunk(db: Database) -> None:
    """Also when the others have left it far behind."""
    db.queue()
    work = Work(db, chunk_size=10)
    work.publish_many(300)
    db.rows("select * from cascade.dispatch_work()")
    with db.connect() as another:
        with another.transaction(force_rollback=True):
            assert [m.payload for m in work.claim(10, conn=another)] == [*range(1, 11)]
            for start in range(11, 301, 10):
                assert [m.payload for m in work.claim(10)] == [*range(start, start + 10)]
            low, hint = (f"select last_value from cascade_internal.work_{name}_{work.id}" for name in ("low", "hint"))
            assert db.value(hint) > db.value(low) + 8000
        assert [m.payload for m in work.claim(100, conn=another)] == [*range(1, 11)]


def test_a_lost_lease_gives_back_what_was_not_completed(work: Work, another: psycopg.Connection[Any]) -> None:
    work.publish_many(4)
    held = work.claim(4, lease="1 ms")
    work.complete(held[0].claim_id, held[0].id)
    again = eventually(lambda: work.claim(4, conn=another))
    assert [(m.id, m.attempt) for m in again] == [(m.id, 2) for m in held[1:]]
    for statement in ("complete(%s)", "release(%s)", "extend(%s)", f"fail(%s, {held[1].id}, 'x')"):
        with refused("QC217", "is over"):
            work.db.rows(f"select cascade.{statement}", held[0].claim_id)
    assert work.complete(again[0].claim_id) == 3
    assert [row[:2] for row in work.attempts(held[1].id)] == [(1, "lost"), (2, "done")]
    assert work.attempts(held[0].id)[0][:2] == (1, "done")


def test_a_lease_can_be_extended(work: Work) -> None:
    work.publish(1)
    [held] = work.claim(lease="100 ms")
    until = work.db.value("select cascade.extend(%s, '1 hour')", held.claim_id)
    assert until > work.db.value("select clock_timestamp() + interval '59 min'")
    work.db.rows("select pg_sleep(0.12)")
    assert work.claim() == []
    assert work.complete(held.claim_id) == 1


def test_the_messages_of_a_session_that_ended_come_back_at_once(work: Work) -> None:
    work.publish_many(3)
    gone = work.db.connect()
    assert len(work.claim(2, lease="1 hour", conn=gone)) == 2
    kept = work.claim(lease="1 hour")
    assert work.tend() == {}
    gone.close()
    eventually(lambda: work.tend().get("given back") == 2)
    assert [m.attempt for m in work.claim(3)] == [2, 2]
    assert work.complete(kept[0].claim_id) == 1


def test_whoever_extends_a_claim_holds_it_and_sessions_need_not_be_watched(work: Work) -> None:
    work.publish_many(2)
    gone = work.db.connect()
    [held] = work.claim(lease="1 hour", conn=gone)
    work.db.rows("select cascade.extend(%s, '1 hour')", held.claim_id)
    pid = gone.info.backend_pid
    gone.close()
    eventually(lambda: not work.db.rows("select from pg_stat_activity where pid = %s", pid))
    assert work.tend() == {} and work.complete(held.claim_id) == 1
    work.db.rows("""select cascade.alter_consumer('q', 'w', '{"watch_sessions": false}')""")
    gone = work.db.connect()
    [held] = work.claim(lease="1 hour", conn=gone)
    pid = gone.info.backend_pid
    gone.close()
    eventually(lambda: not work.db.rows("select from pg_stat_activity where pid = %s", pid))
    assert work.tend() == {} and work.complete(held.claim_id) == 1


def test_a_released_message_comes_at_once_and_its_attempt_does_not_count(work: Work) -> None:
    work.publish_many(3)
    held = work.claim(3)
    assert work.db.value("select cascade.release(%s, %s)", held[0].claim_id, [held[1].id]) == 1
    assert [(m.payload, m.attempt) for m in work.claim(3)] == [(2, 1)]
    assert work.db.value("select cascade.release(%s)", held[0].claim_id) == 2
    assert [(m.payload, m.attempt) for m in work.claim(3)] == [(1, 1), (3, 1)]


def test_failures_back_off_and_end_among_the_dead(work: Work) -> None:
    work.publish("x")
    long = "e" * 100_000
    for attempt in (1, 2, 3):
        [held] = work.claim()
        assert held.attempt == attempt
        assert (work.fail(held, f"{long}{attempt}") is None) == (attempt == 3)
    assert work.claim() == [] and work.states() == {held.id: "dead"}
    assert [row[:2] for row in work.attempts(held.id)] == [(1, "failed"), (2, "failed"), (3, "failed")]
    errors = work.db.rows("select error from cascade.work_attempts('q', 'w', %s)", held.id)
    assert [error for (error,) in errors] == [f"{long}{attempt}" for attempt in (1, 2, 3)]
    [dead] = work.db.rows("select id, payload, attempts, error from cascade.dead_messages('q', 'w')")
    assert dead == (held.id, "x", 3, f"{long}3")
    assert work.db.value("select cascade.replay('q', 'w')") == 1
    assert work.db.value("select cascade.replay('q', 'w')") == 0
    [held] = work.claim()
    assert (held.id, held.payload, held.attempt) == (dead[0], "x", 1)
    work.complete(held.claim_id)
    assert work.result(held.id)[0] == "done"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backoff": "constant", "backoff_delay": "10 s"}, [10, 10, 10]),
        ({"backoff": "linear", "backoff_delay": "10 s"}, [10, 20, 30]),
        ({"backoff_delay": "10 s"}, [10, 20, 40]),
        ({"backoff_delay": "10 s", "backoff_max": "15 s"}, [10, 15, 15]),
        ({"backoff_delay": "10 s", "backoff_jitter": 0.5}, None),
    ],
)
def test_how_long_a_message_waits(db: Database, options: dict[str, Any], expected: list[int] | None) -> None:
    db.queue()
    work = Work(db, max_attempts=4, **({"backoff_jitter": 0} | options))
    work.publish(1)
    waits = []
    for _ in range(3):
        [held] = work.claim()
        due, now = work.fail(held), db.value("select clock_timestamp()")
        waits.append((due - now).total_seconds())
        assert work.claim() == [] and work.states() == {held.id: "delayed"}
        assert db.value("select cascade.retry_message('q', 'w', %s)", [held.id]) == 1
    if expected is None:
        assert all(0.5 * wait - 1 <= waited <= 1.5 * wait for wait, waited in zip([10, 20, 40], waits, strict=True))
        assert [round(waited, 1) for waited in waits] != [10, 20, 40]
    else:
        assert all(wait - 1 < waited <= wait for wait, waited in zip(expected, waits, strict=True))
    [held] = work.claim()
    assert work.fail(held, retry_in="1 hour") is None, "the last attempt"


def test_numbers_are_numbers_however_they_are_written(db: Database) -> None:
    db.queue()
    work = Work(db, chunk_size=50.0, max_attempts="2", backoff_delay=0)
    work.publish_many(60)
    messages = work.claim(60)
    assert [row[1] for row in chunks(work)] == [50, 10]
    db.rows("select cascade.alter_consumer('q', 'w', '{\"max_attempts\": 1.0}')")
    assert work.fail(messages[0]) is None
    assert db.value("select options from cascade.work") == {"chunk_size": 50, "max_attempts": 1, "backoff_delay": 0}


def test_a_failure_may_say_when_to_try_again(work: Work) -> None:
    work.publish(1)
    [held] = work.claim()
    due = work.fail(held, retry_in="1 hour")
    assert due > work.db.value("select now() + interval '59 min'")
    with refused("QC003"):
        work.fail(held, retry_in="-1 s")


def test_dead_messages_are_replayed_and_purged_by_selector_and_age(work: Work) -> None:
    work.publish(*({"n": n} for n in range(6)))
    for held in work.claim(6):
        work.db.rows("select cascade.bury(%s, %s, 'bad')", held.claim_id, held.id)
    count = "select count(*) from cascade.dead_messages('q', 'w')"
    assert work.db.value(count) == 6
    assert work.db.value("select cascade.replay('q', 'w', selector => '$.payload.n < 2')") == 2
    assert work.db.value("select cascade.purge_dead('q', 'w', older_than => '1 hour')") == 0
    assert work.db.value("select cascade.purge_dead('q', 'w', selector => '$.payload.n == 2')") == 1
    assert sorted(message["n"] for message in work.drain()) == [0, 1]
    assert work.db.value(count) == 3
    work.db.rows("""select cascade.alter_consumer('q', 'w', '{"keep_dead": "0 s"}')""")
    assert work.tend()["dead purged"] == 3


def test_what_is_consumed_is_done_with_the_transaction(work: Work, another: psycopg.Connection[Any]) -> None:
    work.publish_many(5)
    failed = work.claim(1)
    work.fail(failed[0])
    with another.transaction(force_rollback=True):
        assert sorted(work.consume(3, another)) == [1, 2, 3]
        assert sorted(work.consume(5)) == [4, 5]
    assert sorted(work.consume(5)) == [1, 2, 3]
    assert work.consume() == [] and work.states() == {}
    assert work.db.rows("select from cascade_internal.work_claim") == []
    assert work.attempts(failed[0].id)[-1][:2] == (2, "done")


def test_nothing_is_held_open_while_messages_are_worked(work: Work) -> None:
    """The xmin horizon passes the claim, and what others delete meanwhile can be vacuumed."""
    work.publish_many(2)
    held = work.claim(2)
    before = work.db.value("select txid_current()")
    assert work.db.value("select txid_snapshot_xmin(txid_current_snapshot())") > before
    assert work.complete(held[0].claim_id, held[0].id) == 1
    assert work.db.value("select txid_snapshot_xmin(txid_current_snapshot())") > before
    assert work.complete(held[0].claim_id) == 1


def test_the_log_waits_for_the_oldest_chunk_and_for_no_row(work: Work) -> None:
    work.publish("slow", "late")
    slow, late = work.claim(2)
    work.fail(late, retry_in="1 hour")
    for _ in range(6):
        work.publish("next")
        work.drain()
        work.db.rotate("q")
        work.tend()
    held = work.db.rows("select blocked_by, blocker from cascade.rotation")
    assert held == [("consumer", "w")]
    assert work.result(slow.id)[0] == "active"
    work.complete(slow.claim_id)

    def is_gone() -> bool:
        work.publish("next")
        work.drain()
        work.tend()
        work.db.rotate("q")
        return not work.db.rows("select from cascade_internal.event_1_0 where id = %s", slow.id)

    eventually(is_gone)
    assert work.states()[late.id] == "delayed"
    work.db.rows("select cascade.retry_message('q', 'w', %s)", [late.id])
    assert "late" in work.drain()


def test_take_removes_a_message_for_everyone_and_waits_for_who_has_it(work: Work) -> None:
    other = Work(work.db, "other")
    work.publish("a", "b", "c")
    ids = sorted(work.states() or {m: "" for (m,) in work.db.rows("select id from cascade.peek('q', 'w', 3)")})
    assert work.db.rows("select payload, claim_id from cascade.take('q', %s)", ids[0]) == [("a", None)]
    assert work.db.rows("select payload from cascade.take('q', %s)", ids[0]) == []
    assert work.result(ids[0])[0] == other.result(ids[0])[0] == "taken"
    [held] = work.claim()
    assert held.id == ids[1]
    with refused("QC219", "is being worked on"):
        work.db.rows("select * from cascade.take('q', %s, '20 ms')", held.id)
    assert sorted(other.states()) == ids[1:], "nothing was removed"
    assert work.db.value("select cascade.cancel('q', %s)", held.id) is False

    taken: list[Any] = []

    def take(id: int) -> None:
        with work.db.connect() as conn:
            taken.append(conn.execute("select payload from cascade.take('q', %s, '20 s')", (id,)).fetchall())

    thread = threading.Thread(target=take, args=(held.id,))
    thread.start()
    eventually(lambda: work.db.rows("select from pg_stat_activity where wait_event = 'PgSleep'"))
    work.db.rows("select cascade.release(%s)", held.claim_id)
    thread.join(20)
    assert taken == [[("b",)]]

    with work.db.connect() as conn, conn.transaction(force_rollback=True):
        assert work.consume(1, conn) == ["c"]
        thread = threading.Thread(target=take, args=(ids[2],))
        thread.start()
        eventually(lambda: work.db.rows("select from pg_locks where not granted"))
    thread.join(20)
    assert taken[1:] == [[("c",)]]
    assert work.drain() == other.drain() == []
    with refused("QC104", "has no event"):
        work.db.rows("select * from cascade.take('q', 999)")


def test_a_message_is_cancelled_where_nobody_has_begun(work: Work) -> None:
    other = Work(work.db, "other")
    id = work.db.value("select cascade.post('q', '1')")
    assert work.db.value("select cascade.cancel('q', %s)", id) is True, "also one that was not ticked"
    assert work.db.value("select cascade.cancel('q', %s)", id) is False
    assert work.claim() == other.claim() == []
    assert work.result(id)[0] == "cancelled"
    with refused("QC003", "id is null"):
        work.db.rows("select cascade.cancel('q', null)")


def test_peeking_takes_nothing(work: Work) -> None:
    work.publish(1, 2, 3)
    work.fail(work.claim()[0])
    seen = work.db.rows("select payload, attempt, claim_id from cascade.peek('q', 'w', 10)")
    assert seen == [(1, 2, None), (2, 1, None), (3, 1, None)]
    assert sorted(work.drain()) == [1, 2, 3]
    with work.db.connect(autocommit=False) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        for call in ("peek('q', 'w')", "claim('q', 'w')", "alter_consumer('q', 'w', '{}')"):
            with refused("QC501", "READ COMMITTED"):
                conn.execute(f"select cascade.{call}".encode())
            conn.rollback()


def test_operators_move_messages_by_id(work: Work) -> None:
    work.publish(*range(6))
    held = work.claim(2)
    ids = sorted(work.states())
    assert work.db.value("select cascade.release_message('q', 'w', %s)", ids) == 2
    with refused("QC217"):
        work.complete(held[0].claim_id)
    assert work.db.value("select cascade.bury_message('q', 'w', %s)", ids[2:4]) == 2
    assert work.states() == dict.fromkeys(ids, "waiting") | dict.fromkeys(ids[2:4], "dead")
    assert work.attempts(ids[2])[-1][:2] == (0, "buried")
    assert work.db.value("select cascade.purge_work('q', 'w', %s)", ids[:1]) == 1
    assert work.db.value("select cascade.purge_work('q', 'w')") == 3
    assert work.claim() == [] and {*work.states().values()} == {"dead"}
    with refused("QC003", "there is no state"):
        work.db.rows("select * from cascade.work_messages('q', 'w', 'done')")


def test_a_message_that_kills_its_workers_dies(work: Work) -> None:
    work.publish("poison")
    for attempt in (1, 2, 3):
        [held] = eventually(work.claim)
        assert held.attempt == attempt
        work.db.rows("select cascade.extend(%s, '1 ms')", held.claim_id)
        work.db.rows("select pg_sleep(0.005)")
        assert work.tend()["given back"] == 1
    assert work.states() == {held.id: "dead"}
    assert "the lease ran out" in work.result(held.id)[2]


def test_finished_chunks_and_history_are_kept_for_a_time(work: Work) -> None:
    work.publish_many(3)
    held = work.claim(3)
    work.fail(held[0])
    work.complete(held[0].claim_id)
    work.drain()
    assert work.tend() == {} and len(chunks(work)) == 1
    days = "select count(*) from pg_inherits where inhparent = 'cascade_internal.work_history'::regclass"
    assert work.db.value(days) >= 2, "today's or tomorrow's, and the default one"
    work.db.main.execute(
        "create table cascade_internal.work_history_20200101 partition of cascade_internal.work_history"
        " for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')"
    )
    assert work.tend() == {"history dropped": 1}
    work.db.rows("""select cascade.alter_consumer('q', 'w', '{"keep_done": "0 s"}')""")
    assert work.tend()["done forgotten"] == 1
    assert work.result(held[1].id)[0] == "unknown"


def test_a_consumer_has_one_mode(work: Work) -> None:
    work.db.rows("select cascade.subscribe('q', 's')")
    for statement in ("select * from cascade.claim('q', 's')", "select cascade.subscribe('q', 's', mode => 'work')"):
        with refused("QC218", "stream"):
            work.db.rows(statement)
    for statement in ("select * from cascade.next_batch('q', 'w')", "select cascade.subscribe('q', 'w')"):
        with refused("QC218", "work mode"):
            work.db.rows(statement)
    with refused("QC220", "with another selector or other options"):
        work.db.rows("""select cascade.subscribe('q', 'w', mode => 'work', options => '{"max_attempts": 9}')""")
    assert work.db.value("""select cascade.subscribe('q', 'w', mode => 'work', options => '{"max_attempts": 3}')""")
    with refused("QC003", "there is no mode"):
        work.db.rows("select cascade.subscribe('q', 'x', mode => 'both')")
    with refused("QC003", "no selector and no options"):
        work.db.rows("""select cascade.subscribe('q', 'x', options => '{"max_attempts": 9}')""")
    with refused("QC003", "count must be between"):
        work.claim(0)
    with work.db.connect() as conn, conn.transaction(), refused("QC501", "READ COMMITTED"):
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select * from cascade.claim('q', 'w')")


def test_a_consumer_goes_with_everything_it_had(work: Work) -> None:
    work.publish_many(4)
    for how, held in zip(("fail", "bury", "keep", "keep"), work.claim(4), strict=True):
        if how != "keep":
            work.db.rows(f"select cascade.{how}(%s, %s, 'x')", held.claim_id, held.id)
    names = [
        name
        for (name,) in work.db.rows(
            "select relname from pg_class where relnamespace = 'cascade_internal'::regnamespace and relkind = 'r'"
            " and relname ~ '^work_' and relname !~ 'dedupe'"
        )
    ]
    assert work.db.value("select cascade.seek('q', 'w', 'earliest')") == 1
    with refused("QC217"):
        work.complete(held.claim_id)
    assert sorted(work.drain()) == [1, 2, 3, 4], "from there it reads the log as it is"
    work.publish(5)
    work.claim()
    assert work.db.value("select cascade.unsubscribe('q', 'w')")
    left = {name: work.db.value(f"select count(*) from cascade_internal.{name}") for name in names}
    assert not any(left.values()), left
    assert work.db.rows("select from pg_class where relname ~ '^work_(hint|low)_'") == []
    Work(work.db)
    work.db.rows("select cascade.drop_queue('q', true)")
    assert work.db.rows("select from pg_class where relname ~ '^work_(hint|low)_'") == []
