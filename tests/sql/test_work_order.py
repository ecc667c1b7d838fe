"""Order: messages that wait for others, in whatever queue, and one message at a time per key; delays and expiry."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.messages import Work


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def settle(work: Work) -> None:
    """Let the dispatcher look again until nothing is to be released or brought."""
    for _ in range(4):
        work.db.rows("select * from cascade.dispatch_work()")


@pytest.mark.parametrize("options", [{}, {"max_active": 40}], ids=["chunks", "fair"])
def test_a_message_waits_until_those_before_it_are_done(db: Database, options: dict[str, Any]) -> None:
    """Plain ones and ones with options, in one batch and in later ones; each consumer for itself."""
    work, other = Work(db, **options), Work(db, "other", **options)
    plain, urgent = work.post(), work.post(priority=1)
    last = work.post(after=[plain, urgent])
    work.dispatch()
    later = work.post(after=[last, plain])
    work.dispatch()
    rows = {row[0]: row for row in work.claim(100) + work.claim(100)}
    assert sorted(rows) == [plain, urgent]
    assert work.show("blocked") == 2
    work.complete(rows[plain])
    assert work.ids() == []
    work.complete(rows[urgent])
    [found] = work.claim(100)
    assert found[0] == last
    assert other.show("blocked") == 2, "what one consumer did lets nobody else's go"
    work.complete(found)
    assert work.done() == [later]
    assert db.value("select count(*) from cascade_internal.work_after where subscription_id = 1") == 0


def test_a_message_that_fails_does_not_wait_for_others_again(db: Database) -> None:
    """It would only be in the way of those who complete and dispatch others."""
    work = Work(db, backoff="constant", backoff_delay="0 s")
    first = work.post(priority=1)
    second = work.post(after=[first])
    work.dispatch()
    assert work.done() == [first]
    [row] = work.claim(1)
    db.rows("select cascade.fail(%s, %s, 'no')", row[-1], second)
    assert db.value("select count(*) from cascade_internal.work_blocker") == 0
    assert work.done() == [second]


def test_what_was_done_before_is_not_waited_for(db: Database) -> None:
    work = Work(db, selector='$.type == "t"')
    done, skipped = work.post(), work.post(type="not for this consumer")
    work.dispatch()
    assert work.done() == [done]
    follower = work.post(after=[done, skipped])
    work.dispatch()
    settle(work)
    assert work.done() == [follower]


def test_a_message_waits_for_messages_of_another_queue(db: Database) -> None:
    """The consumer of the same name has to do them; where there is none, nothing is waited for."""
    db.queue("payments")
    db.queue("unread")
    work, payments = Work(db), Work(db, queue="payments")
    paid = payments.post()
    unread = db.value("select cascade.post('unread', '1')")
    follower = db.value(
        "select cascade.post('q', '1', after_in => %s)", f'{{"payments": [{paid}], "unread": [{unread}]}}'
    )
    work.dispatch()
    settle(work)
    assert work.ids() == []
    assert [state for state, _ in work.why(follower)] == ["blocked"]
    payments.dispatch()
    assert payments.done() == [paid]
    assert work.done() == [follower]


def test_a_dead_message_keeps_its_followers_waiting_and_shows_why(db: Database) -> None:
    work = Work(db)
    first = work.post()
    second = work.post(after=[first])
    third = work.post(after=[second])
    work.dispatch()
    [row] = work.claim(10)
    work.bury(row, "the printer is on fire")
    settle(work)
    assert work.ids() == []
    assert work.why(second) == [("blocked", f"message {first} is dead: the printer is on fire; replay it or cancel it")]
    assert work.why(third) == [("blocked", f"message {second} is not done")]
    assert db.value("select cascade.replay('q', 'w', %s::bigint[])", [first]) == 1
    assert work.done() == [first]
    assert work.done() == [second]
    assert work.done() == [third]


@pytest.mark.parametrize("how", ["expires", "is cancelled", "is taken"])
def test_a_message_that_goes_otherwise_releases_those_that_wait_for_it(db: Database, how: str) -> None:
    work = Work(db)
    first = work.insert(expires_at="2020-01-01T00:00:00Z") if how == "expires" else work.post(priority=2)
    follower = work.post(after=[first])
    work.dispatch()
    if how == "is cancelled":
        assert db.value("select cascade.cancel('q', %s)", first)
    elif how == "is taken":
        assert db.value("select id from cascade.take('q', %s)", first) == first
    settle(work)
    assert work.done() == [follower]
    assert work.show("expired", "work_stats") == (how == "expires")


def test_what_never_comes_is_explained(db: Database) -> None:
    """A rolled-back id, one that is reserved, and messages that wait for one another."""
    work = Work(db)
    with pytest.raises(ZeroDivisionError), db.main.transaction():
        lost = work.post()
        raise ZeroDivisionError
    one, two, open_one = (db.value("select cascade.reserve_id('q')") for _ in range(3))
    db.rows("select cascade.post('q', '1', id => %s, after => array[%s::bigint])", one, two)
    db.rows("select cascade.post('q', '1', id => %s, after => array[%s::bigint])", two, one)
    gone, waiting = work.post(after=[lost]), work.post(after=[open_one])
    work.dispatch()
    settle(work)
    assert work.ids() == []
    [(state, reason)] = work.why(gone)
    assert state == "blocked" and f"message {lost}: it is not in the queue" in reason and "rolled back" in reason
    assert work.why(waiting) == [("blocked", f"message {open_one}: its id is reserved, and it was not posted yet")]
    assert f"they wait for one another: {one} -> {two} -> {one}" in work.why(one)[0][1]
    db.rows("select cascade.post('q', '1', id => %s)", open_one)
    work.dispatch()
    assert work.done() == [open_one]
    assert work.done() == [waiting], "a reserved id is waited for until it is posted"
    assert db.value("select cascade.cancel('q', %s)", one)
    assert work.done() == [two], "whoever cancels one lets the other go"


def test_nobody_is_forgotten_when_the_first_is_completed_while_its_follower_is_dispatched(db: Database) -> None:
    """Both transactions are open at once, and neither sees the other."""
    work = Work(db, max_active=40)
    first = work.post(priority=1)
    work.dispatch()
    [row] = work.claim(1)
    follower = work.post(after=[first])
    db.tick()
    completing = db.connect(autocommit=False)
    completing.execute("select cascade.complete(%s)", (row[-1],))
    looks = set()

    def has_looked_often() -> bool:
        db.rows("select * from cascade.dispatch_work()")
        looks.add(db.value("select look_at from cascade_internal.work_blocker"))
        return len(looks) > 3

    eventually(has_looked_often)
    completing.commit()
    assert db.value("select state from cascade_internal.work_blocker") == "w", "it was missed, as it had to be"

    def is_released() -> bool:
        settle(work)
        return work.done() == [follower]

    eventually(is_released)


def test_many_followers_cost_the_others_nothing(db: Database) -> None:
    """Counted in blocks: those who wait are not looked at when others are claimed, nor when the first is completed."""
    cost = {}
    for waiting in (10, 20_000):
        name = f"many{waiting}"
        db.queue(name)
        work = Work(db, queue=name, max_active=100)
        first = work.post(priority=1)
        work.flood(100, priority=2)
        db.main.execute(
            f"insert into queue.{name} (type, key, payload, headers)"
            " select 't', 'a', '1', json_build_object('cascade.options', json_build_object('after', array[%s::bigint]))"
            " from generate_series(1, %s::int)".encode(),
            (first, waiting),
        )
        work.dispatch()
        held = {row[0]: row for row in work.claim(30)}
        found: Any = db.value(
            f"explain (analyze, buffers, timing off, format json) select * from cascade.claim('{name}', 'w', 10)"
        )
        cost[waiting, "claim"] = found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"]
        found = db.value(
            f"explain (analyze, buffers, timing off, format json) select cascade.complete({held[first][-1]},"
            f" array[{first}])"
        )
        cost[waiting, "complete"] = found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"]
        assert work.show("blocked") == waiting
    for step in ("claim", "complete"):
        assert cost[20_000, step] < 1.5 * cost[10, step] + 50, cost


def test_messages_of_a_key_come_one_at_a_time_and_in_order(db: Database) -> None:
    """Several workers; some attempts fail, which keeps the key until the next one."""
    work = Work(db, order="key", backoff_delay="0 s", backoff_jitter=0)
    wanted = defaultdict(list)
    for n in range(120):
        wanted[f"k{n % 7}"].append(n)
        work.post(n, key=f"k{n % 7}", priority=1 + n % 4)
    work.dispatch()
    done: dict[str, list[int]] = defaultdict(list)
    busy: set[str] = set()
    wrong: list[Any] = []
    failed: set[int] = set()
    lock = threading.Lock()

    def run() -> None:
        conn: psycopg.Connection[Any] = db.connect()
        for _ in range(400):
            rows = conn.execute("select id, key, payload, claim_id from cascade.claim('q', 'w', 3)").fetchall()
            with lock:
                keys = [row[1] for row in rows]
                if len(set(keys)) < len(keys) or busy & set(keys):
                    wrong.append(rows)
                busy.update(keys)
            for row in rows:
                with lock:
                    busy.discard(row[1])
                    fails = row[2] % 10 == 3 and row[2] not in failed
                    failed.add(row[2])
                    if not fails:
                        done[row[1]].append(row[2])
                if fails:
                    conn.execute("select cascade.fail(%s, %s, 'again')", (row[3], row[0]))
                else:
                    conn.execute("select cascade.complete(%s, %s)", (row[3], [row[0]]))
            if sum(map(len, done.values())) == 120:
                return

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert done == wanted


def test_a_key_waits_for_a_transaction_that_consumes_one_of_its_messages(db: Database) -> None:
    work = Work(db, order="key")
    first, second, other = work.post(key="a"), work.post(key="a"), work.post(key="b")
    free = [work.post(), work.post()]
    work.dispatch()
    one = db.connect(autocommit=False)
    taken = [row[0] for row in one.execute("select id from cascade.consume('q', 'w', 100)")]
    assert sorted(taken) == [first, other, *free], "messages without a key wait for nobody"
    assert work.ids() == []
    one.rollback()
    assert sorted(row[0] for row in one.execute("select id from cascade.consume('q', 'w', 100)")) == sorted(taken)
    one.commit()
    [row] = work.claim(100)
    assert row[0] == second
    third = work.post(key="a")
    work.dispatch()
    assert work.why(third)[0][1].startswith(f"message {second} of its key is in hand")
    work.bury(row)
    assert work.done() == [third], "a dead message does not stop its key"


def test_who_takes_from_a_key_holds_it_until_his_transaction_ends(db: Database) -> None:
    """Otherwise another could look for a message in hand before the first commits, and for the oldest one after."""
    work = Work(db, order="key")
    first, second = work.post(key="a"), work.post(key="b")
    work.dispatch()
    one = db.connect(autocommit=False)
    held = "select pg_advisory_xact_lock(hashint8extended(org, subscription_id)) from cascade_internal.work_waiting"
    one.execute(f"{held} where id = {first}".encode())
    assert work.done() == [second]
    one.rollback()
    claiming = db.connect(autocommit=False)
    claiming.execute("select cascade.claim('q', 'w', 10)")
    third = work.post(key="a")
    work.dispatch()
    assert db.value(
        "select not pg_try_advisory_lock(hashint8extended(org, subscription_id))"
        " from cascade_internal.work_waiting where id = %s",
        third,
    )
    claiming.rollback()
    assert work.done(1) == [first]


def test_a_message_is_not_delivered_before_it_is_due_nor_after_it_expired(db: Database) -> None:
    work, fair, keyed = Work(db), Work(db, "fair", max_active=100), Work(db, "keyed", order="key")
    assert db.value("select cascade.next_work_due()") is None
    late = work.post(delay="1 hour")
    due = db.value("select now() + interval '120 ms'")
    soon, gone = work.post(deliver_at=due), work.insert(expires_at="2020-01-01T00:00:00Z", priority=4)
    assert work.post(expires_at="2100-01-01T00:00:00Z", delay="1 hour") > late
    inserted = work.insert(delay=0.12)
    work.dispatch()
    assert db.value("select cascade.next_work_due() <= %s", due)
    assert db.value("select cascade.next_work_due('q')") == db.value("select cascade.next_work_due()")
    for one in (work, fair, keyed):
        found: dict[int, bool] = {}
        claim = f"select id, clock_timestamp() >= %s from cascade.claim('q', '{one.consumer}', 100)"

        def claimed(found: dict[int, bool] = found, claim: str = claim) -> bool:
            found.update(db.rows(claim, due))
            return len(found) == 2

        eventually(claimed)
        settle(work)
        assert found == {soon: True, inserted: True}
        assert one.why(late)[0][0] == "delayed"
        assert one.show("delayed") == 2
        assert one.show("expired", "work_stats") == 1
    assert db.value("select cascade.next_work_due('q') > now() + interval '50 minutes'")
    assert work.why(gone) == [("finished", "it is done, expired or taken, or was not for this consumer")]


def test_options_that_make_no_sense_are_counted_and_the_message_is_plain(db: Database) -> None:
    work = Work(db)
    db.main.execute(
        "insert into queue.q (payload, headers) values ('1', '{\"cascade.options\": {\"priority\": 99}}'),"
        " ('2', '{\"cascade.options\": \"x\"}'), ('3', '{\"a\": \"cascade.options\"}')"
    )
    work.dispatch()
    assert len(work.ids()) == 3
    assert work.show("misoptioned", "work_stats") == 2


def test_priorities_of_a_plain_consumer_are_an_order(db: Database) -> None:
    work = Work(db)
    low, plain = work.post(priority=4), work.post()
    normal, urgent, high = (work.post(priority=priority) for priority in (3, 1, 2))
    work.dispatch()
    found = []
    while rows := work.claim(1):
        found += [row[0] for row in rows]
    assert found == [urgent, high, normal, plain, low]
