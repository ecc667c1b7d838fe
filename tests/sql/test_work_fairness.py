"""Priorities and fairness: shares, minimum, no lending, organisations; counted in messages and claims."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.messages import Work


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def fill(work: Work) -> list[tuple[Any, ...]]:
    """Claim until no more are handed out, completing nothing."""
    held: list[tuple[Any, ...]] = []
    while rows := work.claim(7):
        held += rows
    return held


def test_each_class_has_its_share_of_what_may_be_in_hand(db: Database) -> None:
    work = Work(db, max_active=100)
    for priority in (1, 2, 3, 4):
        work.flood(200, priority=priority)
    work.flood(5, type="other", priority=4)
    work.dispatch()

    held = work.claim(1)
    assert work.classes() in ({1: 20, 2: 15, 3: 10, 4: 5}, {4: 5}), "a type is drawn in batches of half the share"
    held += fill(work)
    assert Counter(row[1] for row in held) == {"t": 100, "other": 5}
    assert work.classes() == {1: 40, 2: 30, 3: 20, 4: 15}, "10 of the type t, and 5 of the other, of class 4"

    urgent = [row for row in held if row[0] <= 200][:10]
    work.complete(*urgent)
    again = work.claim(50)
    assert len(again) == 10
    assert all(row[0] <= 200 for row in again), "what a class gives back is its own again"


def test_a_share_that_is_not_used_is_not_lent_to_a_lower_class(db: Database) -> None:
    work = Work(db, max_active=100)
    work.flood(500, priority=4)
    work.dispatch()
    assert len(fill(work)) == 10
    work.flood(500, priority=1)
    work.dispatch()
    assert len(fill(work)) == 40


def test_the_guaranteed_minimum_and_the_maximum_hold_together(db: Database) -> None:
    rooms = "select cascade_internal.class_rooms(%s, %s)"
    for most in range(4, 200):
        found = db.value(rooms, "{}", most)
        assert sum(found) <= most and min(found) >= min(5, most // 4), (most, found)
    assert db.value(rooms, "{}", 100) == [40, 30, 20, 10]
    assert db.value(rooms, "{}", 30) == [10, 9, 6, 5]
    assert db.value(rooms, '{"min_active": 0, "shares": [100, 0, 0, 0]}', 50) == [47, 1, 1, 1]
    assert db.value(rooms, "{}", 1) == [1, 1, 1, 1]
    work = Work(db, max_active=1)
    for priority in (4, 1):
        work.flood(3, priority=priority)
    work.dispatch()
    [first] = fill(work)
    assert first[0] > 3, "one at a time, the highest class first"


def test_a_flood_of_one_organisation_does_not_delay_another(db: Database) -> None:
    """Whatever waits of one organisation, another's message comes after max_active claims of one message at most."""
    most = 40
    work = Work(db, max_active=most)
    work.flood(3000, key="flood")
    work.dispatch()
    for _ in range(3):
        work.done(5)
    for turn in range(10):
        own = work.post(key=f"small {turn}")
        work.dispatch()
        claims = 0
        while own not in work.done(1):
            claims += 1
            assert claims <= most, "a flood delays nobody for longer than what is drawn already"


def test_room_is_divided_among_organisations(db: Database) -> None:
    work = Work(db, max_active=400, shares=[0, 0, 100, 0], min_active=1)
    for key, count in (("a", 1000), ("b", 1000), ("c", 30), ("d", 1)):
        work.flood(count, key=key)
    work.dispatch()
    drawn = Counter(row[2] for row in work.claim(10000))
    assert sum(drawn.values()) == 199
    assert drawn["c"] == 30 and drawn["d"] == 1, "those with little have all of it"
    assert abs(drawn["a"] - drawn["b"]) <= 1, "and what they leave is divided again"


def test_organisations_are_drawn_at_random_and_none_is_forgotten(db: Database) -> None:
    work = Work(db, max_active=40)
    for n in range(60):
        work.flood(3, key=f"org {n}")
    work.dispatch()
    first: Counter[str | None] = Counter()
    seen: set[str | None] = set()
    while rows := work.claim(4):
        first[rows[0][2]] += 1
        seen |= {row[2] for row in rows}
        work.complete(*rows)
    assert len(seen) == 60
    assert len(first) > 15


def test_within_an_organisation_the_oldest_goes_first(db: Database) -> None:
    work = Work(db, max_active=100)
    work.flood(200)
    work.dispatch()
    found: list[int] = []
    while rows := work.claim(10):
        found += [row[0] for row in rows]
        work.complete(*rows)
    assert found == sorted(found)
    assert len(found) == 200


def test_numbers_can_be_changed_while_it_runs(db: Database) -> None:
    work = Work(db, max_active=20)
    work.flood(50, type="a", priority=1)
    work.flood(50, type="b", priority=1)
    work.dispatch()
    assert Counter(row[1] for row in fill(work)) == {"a": 5, "b": 5}
    work.options(max_active=100, topics={"b": 10})
    assert Counter(row[1] for row in fill(work)) == {"a": 35}
    work.options(max_active=None, topics=None)
    assert len(fill(work)) == 55, "without a maximum everything goes"
    work.flood(30, type="a")
    work.options(max_active=8)
    work.dispatch()
    assert len(fill(work)) == 0, "what is in hand counts"
    with refused("QC002", "min_active, shares and topics need max_active"):
        work.options(max_active=None, shares=[25, 25, 25, 25])
    with refused("QC002", "there is no option max_activ"):
        work.options(max_activ=1)
    with refused("QC002", "shares are not four percentages that make 100"):
        work.options(shares=[50, 50, 50, 50])
    with refused("QC002", "order of consumer"):
        work.options(order="key")
    assert work.show("options")["max_active"] == 8


def test_messages_in_parcels_can_fail_come_back_die_and_be_taken(db: Database) -> None:
    """What is drawn together is settled one by one, by whoever has it, and by whoever takes it away."""
    work = Work(db, max_active=100, backoff_delay="0 s", backoff_jitter=0)
    work.flood(12, priority=1)
    work.dispatch()
    rows = work.claim(8)
    claim = rows[0][-1]
    work.complete(rows[0])
    db.rows("select cascade.fail(%s, %s, 'oops')", claim, rows[1][0])
    db.rows("select cascade.release(%s, %s::bigint[])", claim, [rows[2][0]])
    work.bury(rows[3])
    assert db.value("select cascade.cancel('q', %s)", rows[4][0]) is False, "somebody has it"
    drawn = db.value("select ids[1] from cascade_internal.work_parcel where claim_id is null")
    assert db.value("select cascade.cancel('q', %s)", drawn) is True, "it is drawn, and nobody has it"
    assert (work.show("active"), work.show("dead")) == (4, 1)
    db.rows("select cascade.complete(%s)", claim)
    with refused("QC217"):
        db.rows("select cascade.complete(%s)", claim)
    rest: list[int] = []
    while found := work.done(3):
        rest += found
    assert sorted(rest) == sorted({row[0] for row in rows[1:3]} | set(range(9, 13)) - {drawn})
    assert db.value("select attempts from cascade.work_result('q', 'w', %s)", rows[1][0]) == 2
    assert db.value("select attempts from cascade.work_result('q', 'w', %s)", rows[2][0]) == 1
    assert db.value("select count(*) from cascade_internal.work_parcel") == 0


def test_what_a_transaction_consumes_nobody_else_gets_and_a_rollback_returns(db: Database) -> None:
    work = Work(db, max_active=100)
    work.flood(30, priority=1)
    work.dispatch()
    one, two = db.connect(autocommit=False), db.connect()
    consume = "select id from cascade.consume('q', 'w', 8)"
    held = {row[0] for row in one.execute(consume)}
    others = {row[0] for row in two.execute("select id from cascade.claim('q', 'w', 50)")}
    assert len(held) == 8 and others and not held & others
    one.rollback()
    found = [row[0] for row in one.execute(consume)]
    one.commit()
    assert len(found) == 8 and not set(found) & others


def test_sessions_that_draw_at_once_keep_the_maximum(db: Database) -> None:
    """Several workers, one message at a time: each message once, and never more in hand than may be."""
    most, count = 12, 150
    work = Work(db, max_active=most, shares=[100, 0, 0, 0], min_active=1)
    work.flood(count, priority=1)
    work.dispatch()
    taken: list[int] = []
    peak: list[int] = []

    def run() -> None:
        conn = db.connect()
        while True:
            rows = conn.execute("select id, claim_id from cascade.claim('q', 'w', 3)").fetchall()
            if not rows:
                return
            [(active,)] = conn.execute("select coalesce(sum(cardinality(ids)), 0) from cascade_internal.work_parcel")
            peak.append(int(active))
            taken.extend(row[0] for row in rows)
            conn.execute("select cascade.complete(%s)", (rows[0][1],))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    while rows := work.claim(3):
        taken += [row[0] for row in rows]
        work.complete(*rows)
    assert sorted(taken) == list(range(1, count + 1))
    assert max(peak) <= most
