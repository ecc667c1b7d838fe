"""A transaction held open for the whole time costs no throughput and leaves no dead tuples.

How fast a machine is says little, and nothing twice; what a statement looks at does.  Where a queue collapses, it is
because each step wades through what vacuum may not remove, a little more of it every time.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.database import Database

CONSUMERS = ("a", "b", "c")
LOOKS = 5
INSERT = "insert into queue.q (type, payload) select 't', '{\"n\": 1}' from generate_series(1, %s)"
READ = "select id, type, payload from cascade.batch_events(%s)"


def work(db: Database, events: int, per_tick: int) -> None:
    """Pass events through three consumers."""
    for _ in range(events // per_tick):
        db.main.execute(INSERT.encode(), (per_tick,))
        db.tick()
        for consumer in CONSUMERS:
            batch = db.next(consumer)
            assert batch is not None
            count = db.value("select count(*) from cascade.batch_events(%s)", batch[0])
            assert count == per_tick
            db.finish(batch[0])


def blocks(db: Database, query: str, *arguments: Any) -> int:
    """Run a statement and return how many blocks it looked at, those of its functions and triggers included."""
    [found] = db.value(f"explain (analyze, buffers, format json) {query}", *arguments)
    return int(found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"])


def cost(db: Database, per_tick: int) -> dict[str, int]:
    """Return what each step costs in blocks: the least of several, as a first time may fill a cache."""
    found = []
    for _ in range(LOOKS):
        step = {"insert": blocks(db, INSERT, per_tick), "tick": blocks(db, "select cascade.tick('q')")}
        for consumer in CONSUMERS:
            step["next"] = blocks(db, "select * from cascade.next_batch('q', %s)", consumer)
            batch = db.next(consumer)
            assert batch is not None and batch[3] == per_tick, "the batch that was taken a moment ago"
            step["read"] = blocks(db, READ, batch[0])
            step["finish"] = blocks(db, "select cascade.finish_batch(%s)", batch[0])
        found.append(step)
    return {name: min(step[name] for step in found) for name in found[0]}


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
            early = cost(db, per_tick)
    late = cost(db, per_tick)
    # An index may have grown by a level meanwhile; wading would be dozens of times as much.
    assert all(late[step] <= 1.5 * early[step] + 10 for step in early), (early, late)
    db.main.execute("select pg_stat_force_next_flush()" if db.main.info.server_version >= 150000 else "select 1")
    dead = db.rows(
        "select relname, n_dead_tup from pg_stat_user_tables where schemaname = 'cascade_internal'"
        " and relname !~ '^event_' and n_dead_tup > 0"
    )
    # Rotation moves a row now and then; what is done for each batch, 630 times by now, leaves none.
    assert sum(row[1] for row in dead) < 100, dead
    seen = db.value("select max(total) from cascade.ticks")
    assert seen == 100_000 + 2 * LOOKS * per_tick
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
