"""Latency from commit to consumer, and what the daemon costs while nothing happens."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.bench.events import insert_many
from tests.bench.measure import Bar, Row, Samples, percentile
from tests.bench.servers import Bench

NAME = "latency"
ABOUT = "commit to consumer at 50 events/s with the real daemon; CPU of the idle daemon and its backends"
NOTE = (
    "`cascade node run` in a process, a consumer (`queue.stream`, async) in another, a producer inserting 50 events/s "
    "one by one, `synchronous_commit = on`, each at a random moment of its 20 ms. The clock starts right before the "
    "INSERT is sent, so its commit and flush are inside; “after commit” starts when the commit has returned. Idle CPU: "
    "/proc/PID/stat of the daemon and of its backends over 10 s without traffic. The one queue holds 100,000 older "
    "events, as queues in use do: what the ticker does must not depend on them."
)
RATE = 50


def run(bench: Bench) -> Iterator[Row]:
    """Trickle events through the daemon, then watch it idle."""
    count = RATE * bench.scaled(20, 5)
    with bench.queue() as queue, _daemon(bench) as daemon:
        with bench.connect() as conn:
            conn.execute(insert_many(f"queue.{queue}", bench.scaled(100_000, 20_000)).encode())
        bench.say(f"{count} events at {RATE}/s")
        before, after = trickle(bench.dsn(), bench.dsn(), queue, count)
        for title, share, aim in (("p50", 0.5, 5.0), ("p99", 0.99, 25.0)):
            yield Row(
                measure=NAME,
                title=f"commit to consumer, {title}",
                ours=Samples(label="Cascade", unit=" ms", values=(percentile(before, share),)),
                bar=Bar(kind="at most", limit=aim, of="value", unit=" ms"),
            )
            yield Row(
                measure=NAME,
                title=f"commit to consumer, {title}, after commit",
                ours=Samples(label="Cascade", unit=" ms", values=(percentile(after, share),)),
            )
        if Path("/proc/self/stat").exists():
            yield from _idle(bench, daemon.pid)


@contextmanager
def _daemon(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """Run the daemon until its services are at work."""
    command = [sys.executable, "-m", "cascade.cli.main", "node", "run", "--dsn", bench.dsn(), "--log-level", "warning"]
    daemon = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 20
        while len(_backends(bench)) < 2:
            assert daemon.poll() is None, "the daemon ended"
            assert time.monotonic() < deadline, "the daemon did not start"
            time.sleep(0.05)
        yield daemon
    finally:
        daemon.terminate()
        daemon.wait(20)


def _backends(bench: Bench) -> dict[str, int]:
    query = "select application_name, pid from pg_stat_activity where application_name = any(%s)"
    with bench.connect() as conn:
        return dict(conn.execute(query, (["cascade/ticker", "cascade/rotator"],)).fetchall())


def trickle(
    producer: str, reader: str, queue: str, count: int, module: str = "tests.bench.consume"
) -> tuple[list[float], list[float]]:
    """Return the latencies in milliseconds, from before the insert and from after its commit."""
    command = [sys.executable, "-m", module, reader, queue, str(count)]
    statement = f"insert into queue.{queue} (type, payload) values ('placed', %s::json)".encode()
    committed: list[int] = []
    chance = random.Random(7)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer,
        psycopg.connect(producer, autocommit=True) as conn,
    ):
        assert consumer.stdout is not None
        too_late = threading.Timer(count / RATE + 60, consumer.kill)
        too_late.daemon = True
        too_late.start()
        assert consumer.stdout.readline() == "ready\n", "the consumer did not start"
        time.sleep(0.5)
        start = time.monotonic()
        for number in range(count):
            _sleep_until(start + (number + chance.random()) / RATE)
            _insert(conn, statement, number)
            committed.append(time.monotonic_ns())
        answer = consumer.stdout.readline()
        too_late.cancel()
    assert answer, "the consumer did not see every event in time"
    seen = json.loads(answer)
    before = [(got - sent) / 1e6 for sent, got in seen.values()]
    after = [(got - committed[int(number)]) / 1e6 for number, (_, got) in seen.items()]
    return before, after


def _insert(conn: psycopg.Connection[tuple[object, ...]], statement: bytes, number: int) -> None:
    conn.execute(statement, (json.dumps({"n": number, "sent": time.monotonic_ns(), "note": "x" * 160}),), prepare=True)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _idle(bench: Bench, daemon: int) -> Iterator[Row]:
    """Watch the processes for a while in which nothing happens."""
    seconds = bench.scaled(10, 3)
    bench.say(f"idle for {seconds} s")
    time.sleep(2)
    backends = [*_backends(bench).values()]
    before = _cpu_s(daemon), sum(map(_cpu_s, backends))
    time.sleep(seconds)
    after = _cpu_s(daemon), sum(map(_cpu_s, backends))
    used = [100 * (end - begin) / seconds for begin, end in zip(before, after, strict=True)]
    bar = Bar(kind="under", limit=1.0, of="value", unit=" %")
    for title, percent in (("daemon", used[0]), ("its server backends", used[1])):
        values = Samples(label="Cascade", unit=" %", values=(percent,))
        yield Row(measure=NAME, title=f"idle, {title}, of a core", ours=values, bar=bar)


def _cpu_s(pid: int) -> float:
    """Return the seconds a process has spent in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
