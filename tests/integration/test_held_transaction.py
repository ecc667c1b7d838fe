"""A transaction held open for the whole time costs no throughput and leaves no dead tuples."""

from __future__ import annotations

import time

import pytest

from tests.fixtures.database import Database

CONSUMERS = ("a", "b", "c")


def work(db: Database, events: int, per_tick: int) -> float:
    """Pass events through three consumers; returns events per second."""
    began = time.perf_counter()
    for _ in range(events // per_tick):
        db.main.execute(
            "insert into queue.q (type, payload) select 't', '{\"n\": 1}' from generate_series(1, %s)", (per_tick,)
        )
        db.tick()
        for consumer in CONSUMERS:
            batch = db.next(consumer)
            assert batch is not None
            count = db.value("select count(*) from cascade.batch_events(%s)", batch[0])
            assert count == per_tick
            db.finish(batch[0])
    return events / (time.perf_counter() - began)


@pytest.mark.parametrize("per_tick", [500])
def test_a_held_transaction_leaves_the_bookkeeping_clean(db: Database, per_tick: int) -> None:
    db.queue(rotation_period="0")
    for consumer in CONSUMERS:
        db.rows("select cascade.subscribe('q', %s)", consumer)
    held = db.connect(autocommit=False)
    held.execute("select txid_current()")
    for round_number in range(10):
        work(db, 10_000, per_tick)
        db.rotate()
        if round_number == 0:
            assert db.value("select blocked_by is not null or generation < 2 from cascade.rotation")
    db.main.execute("select pg_stat_force_next_flush()" if db.main.info.server_version >= 150000 else "select 1")
    dead = db.rows(
        "select relname, n_dead_tup from pg_stat_user_tables where schemaname = 'cascade_internal'"
        " and relname !~ '^event_' and n_dead_tup > 0"
    )
    assert sum(row[1] for row in dead) < 1000, dead
    seen = db.value("select max(total) from cascade.ticks")
    assert seen == 100_000
    # The newest position is found without wading through older ones.
    queue = db.value("select queue_id from cascade_internal.queue")
    plan = db.value(
        f"explain (analyze, buffers, format json) select * from cascade_internal.position_{queue}_0"
        " where subscription_id = 1 order by n desc limit 1"
    )
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] <= 10
    held.rollback()
    db.rotate_away()
    assert db.value("select count(*) from queue.q") == 0
