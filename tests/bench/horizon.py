"""A transaction that somebody left open: what it costs to publish, tick and read beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import cascade.sync
from tests.bench.events import insert_many, pgq_many
from tests.bench.measure import Bar, Row, Samples, per_second, take_turns
from tests.bench.servers import PGQ_DATABASE, Bench

NAME = "horizon"
ABOUT = "rate beside a session left idle in a transaction, against the rate without it; dead tuples"
NOTE = (
    "One process publishes 500 events by one INSERT, makes a tick, and lets three consumers (sync `next_batch`; for "
    "PgQ its functions) read and finish that batch, again and again. With the session: `begin isolation level "
    "repeatable read; select txid_current()`, held from before the first event until after the last. Dead tuples: the "
    "sum of `n_dead_tup` over the bookkeeping tables (all but the events) less what was there before, session still "
    "open; an autovacuum in between shows as too few, at least 0."
)
BAR = Bar(kind="at least", limit=0.97)
CONSUMERS = ("first", "second", "third")
TICK_EVENTS = 500
DEAD = (
    "select coalesce(sum(n_dead_tup), 0), coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)"
    " from pg_stat_user_tables where schemaname = any(%s) and relname !~ '^event_[0-9]'"
)


def run(bench: Bench) -> Iterator[Row]:
    """Measure with and without the session, for Cascade and, if it is there, PgQ."""
    count = bench.scaled(50_000, 10_000)
    dead: dict[str, list[float]] = {}
    works = {"Cascade": ("cascade", _ours)} | ({"PgQ": (PGQ_DATABASE, _pgq)} if bench.has_pgq else {})
    sides = {
        f"{name}, {state}": partial(_one, bench, database, work, count, dead, f"{name}, {state}")
        for name, (database, work) in works.items()
        for state in ("idle session", "without")
    }
    # A bar of 0.97 is closer than five rounds, of a few seconds each, agree with one another.
    found = take_turns(bench.turns(11), sides)
    for name in works:
        held, free = f"{name}, idle session", f"{name}, without"
        yield Row(
            measure=NAME,
            title=f"{name}: {count:,} events, three consumers",
            ours=Samples(label="idle session", unit="/s", values=found[held]),
            theirs=Samples(label="without", unit="/s", values=found[free]),
            bar=BAR if name == "Cascade" else None,
        )
        yield Row(
            measure=NAME,
            title=f"{name}: dead tuples of bookkeeping",
            ours=Samples(label="idle session", unit="", values=tuple(dead[held])),
            theirs=Samples(label="without", unit="", values=tuple(dead[free])),
        )


def _one(
    bench: Bench, database: str, work: Callable[..., float], count: int, dead: dict[str, list[float]], name: str
) -> float:
    """Run one side, and note how many dead tuples it left."""
    bench.checkpoint()
    before = _dead(bench, database)
    holding = _held(bench, database) if name.endswith("idle session") else nullcontext()
    with bench.queue() if database == "cascade" else bench.pgq_queue() as queue:
        with holding:
            rate = work(bench, queue, count)
            dead.setdefault(name, []).append(max(0.0, _dead(bench, database) - before))
    return rate


@contextmanager
def _held(bench: Bench, database: str) -> Iterator[None]:
    """Hold a transaction with an id and a snapshot open."""
    with bench.connect(database) as conn:
        conn.execute("begin isolation level repeatable read")
        conn.execute("select txid_current()")
        yield
        conn.execute("rollback")


def _dead(bench: Bench, database: str) -> float:
    """Return the dead tuples, once the statistics of ended sessions have settled."""
    last = None
    with bench.connect(database) as conn:
        while True:
            row = conn.execute(DEAD, (["cascade_internal", "pgq"],)).fetchone()
            if row == last:
                return float(row[0])
            last = row
            time.sleep(0.2)


def _ours(bench: Bench, queue: str, count: int) -> float:
    publish = insert_many(table=f"queue.{queue}", count=TICK_EVENTS).encode()

    def work() -> None:
        for _ in range(count // TICK_EVENTS):
            conn.execute(publish)
            conn.execute("select cascade.tick(%s)", (queue,))
            for reader, consumer in readers:
                with reader.next_batch(consumer) as batch:
                    assert len(batch) == TICK_EVENTS

    with bench.connect() as conn:
        clients = [cascade.sync.connect(bench.dsn()) for _ in CONSUMERS]
        readers = [(client.queue(queue), consumer) for client, consumer in zip(clients, CONSUMERS, strict=True)]
        for reader, consumer in readers:
            reader.subscribe(consumer)
        rate = per_second(count, work)
        for client in clients:
            client.close()
    return rate


def _pgq(bench: Bench, queue: str, count: int) -> float:
    publish = pgq_many(queue=queue, count=TICK_EVENTS).encode()

    def work() -> None:
        for _ in range(count // TICK_EVENTS):
            conn.execute(publish)
            conn.execute("select pgq.ticker(%s)", (queue,))
            for reader, consumer in readers:
                cur = reader.cursor()
                cur.execute("select pgq.next_batch(%s, %s)", (queue, consumer))
                batch = cur.fetchone()
                reader.commit()
                cur.execute("select * from pgq.get_batch_events(%s)", batch)
                assert len(cur.fetchall()) == TICK_EVENTS
                cur.execute("select pgq.finish_batch(%s)", batch)
                reader.commit()

    with bench.connect(PGQ_DATABASE) as conn:
        readers = [(bench.pgq_driver(), consumer) for consumer in CONSUMERS]
        for _, consumer in readers:
            conn.execute("select pgq.register_consumer(%s, %s)", (queue, consumer))
        rate = per_second(count, work)
        for reader, _ in readers:
            reader.close()
    return rate
