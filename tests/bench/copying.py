"""Catching up: how fast a branch copies, beside a raw pipe and beside PgQ's worker; what it costs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from cascade.db import connect
from cascade.node.pipe import deadline, pipe, set_up_reader
from tests.bench.events import PAYLOAD_TEXT, TYPE
from tests.bench.measure import Bar, Row, Samples, take_turns
from tests.bench.nodes import SET, Nodes, cpu_s, nodes, wait
from tests.bench.servers import Bench

NAME = "copy"
ABOUT = "a branch catching up: events per second, CPU of its daemon, WAL; beside a raw COPY pipe and PgQ's worker"
NOTE = (
    "Root and branch on two servers. The branch is paused, 300,000 events are published in ticks of 500 (and of 50), "
    "and the clock runs from `resume_node` to the moment the branch's last tick is visible; the daemon is a process "
    "of its own, its CPU from /proc. Raw: the same rows by binary COPY to COPY in one transaction, into a plain table "
    "with the same index, in 256 KiB blocks. PgQ: pgq_node and the CascadedWorker of Debian's python3-pgq, one tick "
    "after the other as it does, 20,000 events; the clock runs from its first copied tick to its last, so that its "
    "start is not counted. WAL: `pg_current_wal_insert_lsn()` of the branch's server around the copy, a checkpoint "
    "before it."
)
COLUMNS = "id, time, txid, type, key, payload, headers, origin, origin_id"


def run(bench: Bench) -> Iterator[Row]:
    """Measure catching up with ticks of two sizes."""
    count = bench.scaled(300_000, 30_000)
    with nodes({"s1": None, "s2": "s1"}, servers=2) as found, _pgq(bench, found) as rival:
        found.start()
        # The raw pipe may be the first to take its turn: there must be something to move.
        _catch_up(found, count, 500, {"cpu": [], "wal": []})
        for size, limit in ((500, 8.0), (50, 10.0)):
            yield from _sizes(bench, found, rival, count, size, limit)


def _sizes(bench: Bench, found: Nodes, rival: PgqNodes | None, count: int, size: int, limit: float) -> Iterator[Row]:
    costs: dict[str, list[float]] = {"cpu": [], "wal": []}
    bench.say(f"{count} events, {size} per tick")
    sides = {"Cascade": lambda: _catch_up(found, count, size, costs), "raw": lambda: _raw(found, count)}
    wals: list[float] = []
    if rival is not None:
        some = bench.scaled(20_000, 5_000)
        sides["PgQ"] = lambda: rival.catch_up(some, size, wals)
    values = take_turns(bench.turns(3), sides)
    ours = Samples(label="Cascade", unit="/s", values=values["Cascade"])
    title = f"catch up, {size} events per tick"
    raw = Samples(label="raw pipe", unit="/s", values=values["raw"])
    yield Row(
        measure=NAME, title=title, ours=ours, theirs=raw, bar=Bar(kind="at least", limit=0.7) if size == 500 else None
    )
    theirs = Samples(label="PgQ", unit="/s", values=values["PgQ"]) if rival else None
    yield Row(measure=NAME, title=title, ours=ours, theirs=theirs, rival="PgQ", bar=Bar(kind="at least", limit=limit))
    if size == 500:
        cpu = Samples(label="Cascade", unit=" s", values=tuple(costs["cpu"]))
        bar = Bar(kind="at most", limit=4.0, of="value", unit=" s")
        yield Row(measure=NAME, title="CPU of the daemon per million events", ours=cpu, bar=bar)
        wal = Samples(label="Cascade", unit=" B", values=tuple(costs["wal"]))
        other = Samples(label="PgQ", unit=" B", values=tuple(wals)) if wals else None
        limited = Bar(kind="at most", limit=1.03)
        yield Row(measure=NAME, title="WAL per event on the branch", ours=wal, theirs=other, rival="PgQ", bar=limited)


def publish(conn: psycopg.Connection[Any], count: int, size: int, queue: str = SET) -> None:
    """Publish events in ticks of one size."""
    for _ in range(count // size):
        conn.execute(
            f"insert into queue.{queue} (type, payload)"
            f" select '{TYPE}', '{PAYLOAD_TEXT}' from generate_series(1, {size})".encode()
        )
        conn.execute(f"select cascade.tick('{queue}')".encode())


def _catch_up(found: Nodes, count: int, size: int, costs: dict[str, list[float]]) -> float:
    found.conns["s2"].execute("select cascade.pause_node(%s)", (SET,))
    publish(found.conns["s1"], count, size)
    target = found.tick("s1")
    assert target is not None
    checkpoint(found, "s2")
    before, cpu, wal = time.perf_counter(), cpu_s(found.daemons["s2"].pid), lsn(found.conns["s2"])
    found.conns["s2"].execute("select cascade.resume_node(%s)", (SET,))
    wait(lambda: (found.tick("s2") or 0) >= target, 300, "the branch")
    seconds = time.perf_counter() - before
    costs["cpu"].append((cpu_s(found.daemons["s2"].pid) - cpu) / count * 1e6)
    costs["wal"].append((lsn(found.conns["s2"]) - wal) / count)
    return count / seconds


def checkpoint(found: Nodes, name: str) -> None:
    """Write out what was measured before."""
    with psycopg.connect(found.server(name).admin_dsn, autocommit=True) as admin:
        admin.execute("checkpoint")


def lsn(conn: psycopg.Connection[Any]) -> int:
    """Return how much WAL a server has written."""
    return int(conn.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])  # type: ignore[index]


def _raw(found: Nodes, count: int) -> float:
    """Pipe the newest events into a plain table, as fast as the driver can."""
    target = found.conns["s2"]
    target.execute("drop table if exists raw_copy")
    target.execute(f"create table raw_copy as select {COLUMNS} from queue.{SET} limit 0".encode())
    target.execute("create index on raw_copy (txid)")
    checkpoint(found, "s2")
    source = (
        found.conns["s1"]
        .execute("select 'cascade_internal.event_' || queue_id || '_0' from cascade_internal.queue")
        .fetchone()[0]
    )  # type: ignore[index]
    low = (
        found.conns["s1"]
        .execute(f"select min(txid) from (select txid from {source} order by txid desc limit {count}) as t".encode())
        .fetchone()[0]
    )  # type: ignore[index]
    query = f"select {COLUMNS} from {source} where txid >= {low}"

    async def move() -> float:
        a, b = await connect(found.dsn("s1"), service="raw"), await connect(found.dsn("s2"), service="raw")
        await set_up_reader(a, within_s=15)
        start = time.perf_counter()
        with deadline(300, a, b) as timer:
            async with b.transaction():
                await pipe(a, query, b, "raw_copy", timer)
        seconds = time.perf_counter() - start
        await a.close()
        await b.close()
        return seconds

    seconds = asyncio.run(move())
    moved = target.execute("select count(*) from raw_copy").fetchone()[0]  # type: ignore[index]
    return float(moved / seconds)


class PgqNodes:
    """A root and a branch of pgq_node, in databases beside ours."""

    QUEUE = "bench"

    def __init__(self, found: Nodes, python: str, folder: Path) -> None:
        self._python, self._folder, self._nodes = python, folder, found
        self._dsns, self._conns = {}, {}
        for name in ("s1", "s2"):
            with psycopg.connect(found.server(name).admin_dsn, autocommit=True) as admin:
                admin.execute("create database pgq_node_bench owner cascade")
                # Its worker must write to a queue that is closed to others, and only so it may.
                admin.execute("alter role cascade in database pgq_node_bench set session_replication_role = replica")
            admin_dsn = psycopg.conninfo.make_conninfo(found.server(name).admin_dsn, dbname="pgq_node_bench")
            with psycopg.connect(admin_dsn, autocommit=True) as admin:
                admin.execute("create extension pgq; create extension pgq_node; grant pgq_admin to cascade")
            self._dsns[name] = found.server(name).dsn(dbname="pgq_node_bench")
            self._conns[name] = psycopg.connect(self._dsns[name], autocommit=True)
        root, branch = self._conns["s1"], self._conns["s2"]
        queue = self.QUEUE
        location = "select * from pgq_node.register_location(%s, %s, %s, false)"
        root.execute(location, (queue, "s1", self._dsns["s1"]))
        root.execute("select * from pgq_node.create_node(%s, 'root', 's1', 'w1', null, null, null)", (queue,))
        for option in ("ticker_max_count", "ticker_max_lag", "ticker_idle_period"):
            root.execute("select pgq.set_queue_config(%s, %s, %s)", (queue, option, "1" if "count" in option else "0"))
        root.execute(location, (queue, "s2", self._dsns["s2"]))
        mark = root.execute(
            "select global_watermark from pgq_node.register_subscriber(%s, 's2', 'w2', null)", (queue,)
        ).fetchone()
        assert mark is not None
        for name in ("s1", "s2"):
            branch.execute(location, (queue, name, self._dsns[name]))
        branch.execute("select * from pgq_node.create_node(%s, 'branch', 's2', 'w2', 's1', %s, null)", (queue, mark[0]))

    def last_tick(self, name: str) -> int:
        """Return a node's last tick."""
        row = self._conns[name].execute("select max(tick_id) from pgq.tick").fetchone()
        return int(row[0])  # type: ignore[index]

    def catch_up(self, count: int, size: int, wals: list[float]) -> float:
        """Publish, then run PgQ's worker until the branch has it."""
        root = self._conns["s1"]
        first = root.execute("select pgq.ticker(%s)", (self.QUEUE,)).fetchone()
        assert first is not None
        for _ in range(count // size):
            root.execute(
                "select count(pgq.insert_event(%s, %s, %s)) from generate_series(1, %s)",
                (self.QUEUE, TYPE, PAYLOAD_TEXT, size),
            )
            root.execute("select pgq.ticker(%s)", (self.QUEUE,))
        start_tick, last = self.last_tick("s1") - count // size, self.last_tick("s1")
        config = self._folder / "pgq.ini"
        config.write_text(
            "[cascade_bench]\njob_name = w2\nqueue_name = bench\nlogfile = \npidfile = \nloop_delay = 0.05\n"
            f"db = {self._dsns['s2']}\n"
        )
        checkpoint(self._nodes, "s2")
        wal = lsn(self._conns["s2"])
        script = Path(__file__).with_name("pgq_worker.py")
        worker = subprocess.Popen(
            [self._python, str(script), "-q", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait(lambda: self.last_tick("s2") > start_tick, 60, "PgQ's worker", every_s=0.005)
            at, begun = self.last_tick("s2"), time.perf_counter()
            wait(lambda: self.last_tick("s2") >= last, 300, "PgQ's branch", every_s=0.005)
            seconds = time.perf_counter() - begun
        finally:
            worker.terminate()
            worker.wait(20)
        wals.append((lsn(self._conns["s2"]) - wal) / count)
        return (last - at) * size / seconds

    def close(self) -> None:
        """Close the connections."""
        for conn in self._conns.values():
            conn.close()


@contextmanager
def _pgq(bench: Bench, found: Nodes) -> Iterator[PgqNodes | None]:
    """Yield PgQ's nodes where the server has the extensions and some Python has its worker."""
    python = pgq_python()
    has_node = (
        found.conns["s1"].execute("select 1 from pg_available_extensions where name = 'pgq_node'").fetchone()
        is not None
    )
    if not (bench.has_pgq and has_node and python):
        yield None
        return
    made = PgqNodes(found, python, found.file.parent)
    try:
        yield made
    finally:
        made.close()


def pgq_python() -> str | None:
    """Return a Python that can run PgQ's worker, if there is one on this machine."""
    for candidate in (sys.executable, shutil.which("python3"), shutil.which("python3", path="/usr/bin")):
        if (
            candidate
            and not subprocess.run(
                [candidate, "-c", "import pgq.cascade.worker"], capture_output=True, check=False
            ).returncode
        ):
            return candidate
    return None
