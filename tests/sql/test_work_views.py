"""What dashboards read of work mode, why a message waits, and events that are equal."""

from __future__ import annotations

import pytest

from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.messages import Work


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


@pytest.mark.parametrize("options", [{}, {"max_active": 100}], ids=["chunks", "fair"])
def test_the_views_add_up(db: Database, options: dict[str, int]) -> None:
    work = Work(db, selector='$.type != "x"', **{"max_attempts": 1, **options})  # type: ignore[arg-type]
    assert db.rows("select waiting, active, delayed, blocked, dead, oldest_at, workers from cascade.work") == [
        (0, 0, 0, 0, 0, None, [])
    ]
    first = work.post(priority=1)
    for priority in (1, 2, 3, 4):
        work.flood(priority, priority=priority)
    work.flood(6)
    work.flood(4, type="x")
    work.post(delay="1 hour")
    work.post(after=[first])
    db.tick()
    assert work.show("undispatched") == 23
    work.dispatch()
    plain = 0 if options else 6
    assert db.rows(
        "select waiting, urgent, high, normal, low, plain, delayed, blocked, active, undispatched from cascade.work"
    ) == [(17, 2, 2, 9 - plain, 4, plain, 1, 1, 0, 0)]
    assert work.show("oldest_at < clock_timestamp() and next_due > now() + interval '50 minutes'") is True
    rows = db.rows("select id, claim_id from cascade.claim('q', 'w', 4, worker => 'me')")
    assert db.rows("select waiting, active, workers from cascade.work") == [(17 - len(rows), len(rows), ["me"])]
    db.rows("select cascade.fail(%s, %s, 'no')", rows[0][1], rows[0][0])
    db.rows("select cascade.complete(%s)", rows[0][1])
    assert db.rows("select waiting, active, dead from cascade.work") == [(17 - len(rows), 0, 1)]
    assert db.rows(
        "select done_minute, done_hour, failed_hour, dead_hour, lost_hour, expired, unreadable, misoptioned"
        " from cascade.work_stats"
    ) == [(len(rows) - 1, len(rows) - 1, 1, 1, 0, 0, 0, 0)]
    assert work.show("work_seconds >= 0", "work_stats") is True


def test_a_consumer_sees_its_own_work_and_works_for_as_long_as_it_may(db: Database) -> None:
    Work(db).post()
    Work(db, "other")
    db.tick()
    db.admin().execute("create role only_w")
    try:
        db.rows("select cascade.grant_consumer('q', 'w', 'only_w')")
        conn = db.admin()
        conn.execute("set role only_w")
        for view in ("work", "work_stats"):
            assert conn.execute(f"select consumer from cascade.{view}".encode()).fetchall() == [("w",)]
        next_ones = "select id, claim_id from cascade.complete_and_claim(%s)"
        row = conn.execute("select id, claim_id from cascade.claim('q', 'w')").fetchone()
        assert row is not None
        db.rows("select cascade.grant_consumer('q', 'other', 'only_w')")
        db.rows("select cascade.revoke_consumer('q', 'w', 'only_w')")
        with refused("QC217", "is over"):
            conn.execute(next_ones.encode(), (row[1],))
        assert db.rows(next_ones, row[1]) == [], "an operator may"
        db.rows("select cascade.revoke_consumer('q', 'other', 'only_w')")
    finally:
        db.admin().execute("drop owned by only_w; drop role only_w")


def test_every_message_says_why_it_waits(db: Database) -> None:
    work = Work(db, max_active=8, backoff_delay="1 hour", backoff_jitter=0)
    work.flood(20, priority=1)
    late = work.post(delay="1 hour")
    work.dispatch()
    one, two = work.claim(1) + work.claim(1)
    assert work.why(one[0])[0][0] == "active"
    [(state, reason)] = work.why(20)
    assert state == "waiting"
    assert reason.startswith('class 1 of type "t": 19 wait before it in its organisation "a"; up to 2 of the class')
    db.rows("select cascade.fail(%s, %s, 'no')", one[-1], one[0])
    [(state, reason)] = work.why(one[0])
    assert state == "delayed" and reason.startswith("attempt 1 failed; the next is not before ")
    work.bury(two, "why not")
    assert work.why(two[0]) == [("dead", "it died after 1 attempts: why not")]
    assert work.why(late)[0][0] == "delayed"
    assert work.why(10**6)[0] == ("unknown", "it has not been posted, or not ticked")
    with refused("QC102"):
        db.rows("select * from cascade.why('q', 'nobody', 1)")


def test_equal_events_are_found_by_key_and_payload(db: Database) -> None:
    work = Work(db)
    same = [work.post({"a": 1, "b": [2, 3]}, key="k"), work.post({"b": [2, 3], "a": 1}, key="k", type="u")]
    work.post({"a": 1, "b": [3, 2]}, key="k")
    work.post({"a": 1, "b": [2, 3]}, key="other")
    nameless = work.post({"a": 1, "b": [2, 3]})
    find = "select id from cascade.find_equivalent('q', %s, '{ \"b\" : [2,3], \"a\":1 }', %s)"
    assert db.rows(find, "k", None) == [(same[1],), (same[0],)]
    assert db.rows(find, "k", "t") == [(same[0],)]
    assert db.rows(find, None, None) == [(nameless,)]
    assert db.rows(find, "nobody", None) == []
    raw = "insert into queue.q (key, payload) values ('raw', '\"\\u0000\"') returning id"
    [(unreadable,)] = db.rows(raw)
    assert db.rows("select id from cascade.find_equivalent('q', 'raw', '\"\\u0000\"')") == [(unreadable,)]
    db.tick()
    assert db.rows("select id from cascade.find_equivalent('q', 'k', '1', since => '0 s')") == []
    assert db.rows(find, "k", None) == [(same[1],), (same[0],)]
    with refused("QC003", "since is null"):
        db.rows("select cascade.find_equivalent('q', 'k', '1', since => null)")
    with refused("QC003", "payload is null"):
        db.rows("select cascade.find_equivalent('q', 'k', null)")
