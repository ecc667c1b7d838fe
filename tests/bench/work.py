"""Work mode: message by message, beside pgmq, pgqueuer and procrastinate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.types.json import Jsonb

import cascade
from tests.bench import rivals
from tests.bench.events import TYPE, insert_many, messages, payload, text
from tests.bench.horizon import _held
from tests.bench.latency import _daemon, trickle
from tests.bench.measure import Bar, Row, Samples, per_second, percentile, take_turns
from tests.bench.rivals import Pgmq, Pgqueuer, Procrastinate, run_alone, why_not
from tests.bench.servers import Bench
from tests.bench.size import LSN

NAME = "work"
ABOUT = "message by message: claim and complete, the Python worker, WAL, latency; beside pgmq, pgqueuer, procrastinate"
NOTE = (
    "Plain: messages are published, ticked and cut into chunks before the clock runs; four connections claim and "
    "complete by the hundred, by libpq's binding and without decoding (`complete_and_claim`; for pgmq `read` and "
    "`delete`). Rows: a consumer with a limit of active messages per type, all four priorities in their shares and 50 "
    "keys, so that every message is a row; by fifty. Python: a no-op asynchronous handler in one process, from before "
    "the first message is published, in bulk, until the last one is completed, with the daemon of Cascade in its own; "
    "pgqueuer in batches of 200, procrastinate 50 at a time, all sides on the same event loop. WAL: inserted in "
    "statements of 1,000, ticked, cut and completed by the hundred, against the same inserts alone. Full: the time of "
    "one claim and completion of 100. Held session: as in the measure of that name. Latency: 50 messages/s one by one, "
    "`cascade node run` and the worker in processes of their own, from before the INSERT to the handler's first line."
)
CONSUMER = "worker"
CLIENTS = 4
LEASE = "30 s"
#: Messages of each class in the shares that classes have: 40, 30, 20 and 10 of a hundred.
SHARE = "1 + (n % 10 > 3)::int + (n % 10 > 6)::int + (n % 10 > 8)::int"
FAIR = {"max_active": 1000}


def run(bench: Bench) -> Iterator[Row]:
    """Measure all seven bars of work mode."""
    found = rivals.present(bench)
    pgmq, pgqueuer, procrastinate = (found.get(name) for name in ("pgmq", "pgqueuer", "procrastinate"))
    assert pgmq is None or isinstance(pgmq, Pgmq)
    yield from _plain(bench, pgmq)
    yield from _rows(bench, pgmq)
    yield from _python(bench, pgqueuer, procrastinate)
    yield _wal(bench)
    yield _full(bench)
    yield _horizon(bench)
    yield from _latency(bench)


# In SQL


@contextmanager
def waiting(bench: Bench, count: int, *, is_fair: bool = False) -> Iterator[str]:
    """Yield a queue with so many messages cut for a consumer, and nothing else to do."""
    with bench.queue() as queue, bench.connect(synchronous=False) as conn:
        subscribe(conn, queue, FAIR if is_fair else {})
        fill(conn, queue, count, is_fair=is_fair)
        bench.checkpoint()
        yield queue


def subscribe(conn: psycopg.Connection[Any], queue: str, options: dict[str, object] | None = None) -> None:
    """Have a consumer in work mode."""
    query = "select cascade.subscribe(%s, %s, mode => 'work', options => %s)"
    conn.execute(query, (queue, CONSUMER, Jsonb(options or {})))


def fill(conn: psycopg.Connection[Any], queue: str, count: int, *, is_fair: bool = False) -> None:
    """Publish, tick and cut; by parts, as ticks come in use."""
    for start in range(0, count, 10_000):
        some = min(10_000, count - start)
        if is_fair:
            conn.execute(
                f"insert into queue.{queue} (type, key, payload, headers)"
                f" select '{TYPE}', 'k' || n % 50, '{text(payload(0))}',"
                f"  json_build_object('cascade.options', json_build_object('priority', {SHARE}))"
                f" from generate_series(1, {some}) as n".encode()
            )
        else:
            conn.execute(insert_many(f"queue.{queue}", some).encode())
        conn.execute("select cascade.tick(%s)", (queue,))
        conn.execute("select * from cascade.dispatch_work(%s)", (queue,))


def by_hand(work: Callable[[psycopg.pq.abc.PGconn, int], int], dsn: str, count: int, size: int) -> float:
    """Return the messages per second of four connections that claim and complete until all are done."""
    done = [0] * CLIENTS
    failed: list[BaseException] = []

    def client(number: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                barrier.wait()
                done[number] = work(conn.pgconn, size)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    barrier = threading.Barrier(CLIENTS + 1)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    rate = per_second(count, lambda: [thread.join() for thread in threads])
    assert not failed, failed
    assert sum(done) == count, f"{sum(done)} of {count}"
    return rate


def prepare(conn: psycopg.pq.abc.PGconn, **queries: str) -> None:
    """Prepare statements by name."""
    for name, query in queries.items():
        made = conn.prepare(name.encode(), query.encode())
        assert made.status == ExecStatus.COMMAND_OK, made.error_message


def execute(conn: psycopg.pq.abc.PGconn, name: str, *arguments: str) -> PGresult:
    """Run a prepared statement; the rows stay as the server sent them."""
    found = conn.exec_prepared(name.encode(), [value.encode() for value in arguments])
    assert found.status == ExecStatus.TUPLES_OK, found.error_message
    return found


COLUMNS = "id, queue, type, key, payload, headers, attempt, posted_at, available_at, claim_id"


def cascade_client(queue: str, conn: psycopg.pq.abc.PGconn, size: int) -> int:
    """Claim and complete until nothing is there."""
    prepare(
        conn,
        claim=f"select {COLUMNS} from cascade.claim($1::text, $2::text, $3::int, $4::interval)",
        following=f"select {COLUMNS} from cascade.complete_and_claim($1::bigint, null, null, $2::int, $3::interval)",
    )
    found, done = execute(conn, "claim", queue, CONSUMER, str(size), LEASE), 0
    while found.ntuples:
        done += found.ntuples
        claim_id = found.get_value(0, 9)
        assert claim_id is not None
        found = execute(conn, "following", claim_id.decode(), str(size), LEASE)
    return done


def pgmq_client(queue: str, conn: psycopg.pq.abc.PGconn, size: int) -> int:
    """Read and delete until nothing is there."""
    prepare(
        conn,
        read="select * from pgmq.read($1::text, $2::int, $3::int)",
        delete="select count(*) from pgmq.delete($1::text, $2::bigint[])",
    )
    done = 0
    while (found := execute(conn, "read", queue, "30", str(size))).ntuples:
        done += found.ntuples
        ids = b",".join(found.get_value(row, 0) or b"" for row in range(found.ntuples)).decode()
        execute(conn, "delete", queue, f"{{{ids}}}")
    return done


def _ours(bench: Bench, count: int, size: int, *, is_fair: bool = False) -> float:
    with waiting(bench, count, is_fair=is_fair) as queue:
        return by_hand(partial(cascade_client, queue), bench.dsn(), count, size)


def _pgmq(bench: Bench, rival: Pgmq, count: int, size: int) -> float:
    rival.fill("messages", count)
    bench.checkpoint()
    return by_hand(partial(pgmq_client, "messages"), rival.dsn, count, size)


def _plain(bench: Bench, pgmq: Pgmq | None) -> Iterator[Row]:
    count = bench.scaled(60_000, 20_000)
    bench.say(f"{count} plain messages")
    sides = {"Cascade": partial(_ours, bench, count, 100)}
    if pgmq:
        sides["pgmq"] = partial(_pgmq, bench, pgmq, count, 100)
    found = take_turns(bench.turns(5, 2), sides)
    yield _row("plain, claim and complete 100, 4 connections", found, "pgmq", Bar(kind="at least", limit=5.0))


def _rows(bench: Bench, pgmq: Pgmq | None) -> Iterator[Row]:
    count = bench.scaled(20_000, 10_000)
    bench.say(f"{count} messages with priorities and fairness")
    sides = {"Cascade": partial(_ours, bench, count, 50, is_fair=True)}
    if pgmq:
        sides["pgmq"] = partial(_pgmq, bench, pgmq, count, 50)
    found = take_turns(bench.turns(3, 2), sides)
    title = "priorities and fairness, claim and complete 50, 4 connections"
    yield _row(title, found, "pgmq", Bar(kind="at least", limit=1.0))


def _row(title: str, found: dict[str, tuple[float, ...]], rival: str, bar: Bar, unit: str = "/s") -> Row:
    samples = {name: Samples(label=name, unit=unit, values=values) for name, values in found.items()}
    named = rival if rival in samples else why_not(rival)
    return Row(measure=NAME, title=title, ours=samples["Cascade"], theirs=samples.get(rival), rival=named, bar=bar)


# In Python


def _python(bench: Bench, pgqueuer: rivals.Rival | None, procrastinate: rivals.Rival | None) -> Iterator[Row]:
    count, fewer, few = bench.scaled(40_000, 10_000), bench.scaled(6_000, 3_000), bench.scaled(1_000, 500)
    bench.say(f"{count} messages through the worker")
    with _daemon(bench):
        sides = {"Cascade": partial(_worker, bench, count)}
        if isinstance(pgqueuer, Pgqueuer):
            sides["pgqueuer"] = partial(pgqueuer.work, fewer, 200)
        if isinstance(procrastinate, Procrastinate):
            sides["procrastinate"] = partial(procrastinate.work, few, 50)
        found = take_turns(bench.turns(3, 2), sides)
    for rival, limit in (("pgqueuer", 3.0), ("procrastinate", 10.0)):
        yield _row("Python worker, publish to complete", found, rival, Bar(kind="at least", limit=limit))


def _worker(bench: Bench, count: int) -> float:
    with bench.queue() as queue:
        with bench.connect() as conn:
            subscribe(conn, queue)
        return run_alone(_publish_and_work(bench.dsn(), queue, count))


async def _publish_and_work(dsn: str, queue: str, count: int) -> float:
    items, handled = messages(count), 0

    async def handle(_: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            worker.stop()

    worker = cascade.Worker(queue, CONSUMER, handle, dsn=dsn)
    async with cascade.connect(dsn) as client:
        start = time.perf_counter()
        await client.queue(queue).publish_many(items)
        await worker.run()
        seconds = time.perf_counter() - start
    assert worker.completed == count, f"{worker.completed} of {count}"
    return count / seconds


# What it costs


def _wal(bench: Bench) -> Row:
    count, size = bench.scaled(50_000, 20_000), 1_000
    bench.say("WAL")

    def written(*, works: bool) -> float:
        with bench.queue() as queue, bench.connect(synchronous=False) as conn:
            if works:
                subscribe(conn, queue)
            bench.checkpoint()
            before = _lsn(conn)
            for _ in range(count // size):
                conn.execute(insert_many(f"queue.{queue}", size).encode())
                if works:
                    conn.execute("select cascade.tick(%s)", (queue,))
                    conn.execute("select * from cascade.dispatch_work(%s)", (queue,))
            if works:
                assert cascade_client(queue, conn.pgconn, 100) == count
            return (_lsn(conn) - before) / count

    sides = {"Cascade": partial(written, works=True), "log": partial(written, works=False)}
    found = take_turns(bench.turns(3), sides)
    ours = Samples(label="Cascade", unit=" B", values=found["Cascade"])
    theirs = Samples(label="the insert alone", unit=" B", values=found["log"])
    bar = Bar(kind="at most", limit=1.5)
    return Row(measure=NAME, title="WAL per plain message, publish to complete", ours=ours, theirs=theirs, bar=bar)


def _lsn(conn: psycopg.Connection[Any]) -> float:
    row = conn.execute(LSN).fetchone()
    assert row is not None
    return float(row[0])


def _full(bench: Bench) -> Row:
    many, few, claims = bench.scaled(1_000_000, 100_000), 1_000, 8
    bench.say(f"{many} waiting")
    with waiting(bench, many) as full:

        def cost(count: int) -> float:
            """Return the milliseconds of one claim and completion, by the median of some."""
            if count == many:
                return _claim_ms(bench, full, claims)
            with waiting(bench, few) as queue:
                return _claim_ms(bench, queue, claims)

        found = take_turns(bench.turns(3, 2), {"many": partial(cost, many), "few": partial(cost, few)})
    ours = Samples(label=f"{many:,} waiting", unit=" ms", values=found["many"])
    theirs = Samples(label=f"{few:,} waiting", unit=" ms", values=found["few"])
    title, bar = "claim and complete 100 of a full queue", Bar(kind="at most", limit=1.3)
    return Row(measure=NAME, title=title, ours=ours, theirs=theirs, bar=bar)


def _claim_ms(bench: Bench, queue: str, claims: int) -> float:
    took = []
    with bench.connect() as conn:
        for _ in range(claims):
            start = time.perf_counter()
            query = f"select {COLUMNS} from cascade.claim(%s, %s, 100, %s::interval)".encode()
            rows = conn.execute(query, (queue, CONSUMER, LEASE), prepare=True).fetchall()
            conn.execute("select cascade.complete(%s)", (rows[0][9],), prepare=True)
            took.append(time.perf_counter() - start)
            assert len(rows) == 100
    # The first prepares both statements.
    return 1000 * percentile(took[1:], 0.5)


def _horizon(bench: Bench) -> Row:
    count = bench.scaled(60_000, 20_000)
    bench.say("beside an idle session")

    def rate(*, is_held: bool) -> float:
        with waiting(bench, count) as queue, _held(bench, "cascade") if is_held else nullcontext():
            return by_hand(partial(cascade_client, queue), bench.dsn(), count, 100)

    sides = {"held": partial(rate, is_held=True), "without": partial(rate, is_held=False)}
    found = take_turns(bench.turns(7, 2), sides)
    ours = Samples(label="idle session", unit="/s", values=found["held"])
    theirs = Samples(label="without", unit="/s", values=found["without"])
    bar = Bar(kind="at least", limit=0.95)
    return Row(measure=NAME, title="plain, beside an idle session in a transaction", ours=ours, theirs=theirs, bar=bar)


def _latency(bench: Bench) -> Iterator[Row]:
    count = 50 * bench.scaled(20, 5)
    bench.say(f"{count} messages at 50/s")
    with bench.queue() as queue, _daemon(bench):
        with bench.connect() as conn:
            subscribe(conn, queue)
        before, _ = trickle(bench.dsn(), bench.dsn(), queue, count, "tests.bench.work_alone")
    for title, share, limit in (("p50", 0.5, 10.0), ("p99", 0.99, 40.0)):
        values = Samples(label="Cascade", unit=" ms", values=(percentile(before, share),))
        bar = Bar(kind="at most", limit=limit, of="value", unit=" ms")
        yield Row(measure=NAME, title=f"publish to handler, {title}", ours=values, bar=bar)
