"""Single events: one prepared INSERT per transaction, asynchronous commit."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from tests.bench.events import insert_one, pgq_one
from tests.bench.measure import Bar, Row, Samples, take_turns
from tests.bench.servers import PGQ_DATABASE, Bench

NAME = "single"
ABOUT = "prepared single INSERT against pgq.insert_event(), 1 and 4 clients, asynchronous commit"
NOTE = (
    "`insert into queue.x (type, payload) values (…)` against `select pgq.insert_event(…)`: prepared, one per "
    "transaction, `synchronous_commit = off`, nobody ticking. By pgbench (`-M prepared -n`) where it is installed, "
    "else by Python threads. A single client and its backend take turns, so what they cost is measured with both on "
    "one core. On two, each turn first wakes a core that sleeps, which in a virtual machine takes longer than the "
    "insert, for both sides alike."
)
BAR = Bar(kind="at least", limit=1.2)


def run(bench: Bench) -> Iterator[Row]:
    """Measure, with one client and with four."""
    seconds = bench.scaled(3, 1)
    with ExitStack() as stack:
        scripts = {"Cascade": ("cascade", insert_one(queue=stack.enter_context(bench.queue())))}
        if bench.has_pgq:
            scripts["PgQ"] = (PGQ_DATABASE, pgq_one(queue=stack.enter_context(bench.pgq_queue())))
        for title, clients, has_bar in (
            ("1 client", 1, True),
            ("1 client, cores as they come", 1, False),
            ("4 clients", 4, True),
        ):
            bench.say(title)
            sides = {
                name: partial(_rate, bench, database, statement, clients, seconds)
                for name, (database, statement) in scripts.items()
            }
            with on_one_core(bench) if clients == 1 and has_bar else nullcontext():
                # Four clients, their two threads and the server crowd two cores: rounds differ by a quarter.
                found = take_turns(bench.turns(11 if clients > 2 else 5), sides)
            samples = {name: Samples(label=name, unit="/s", values=values) for name, values in found.items()}
            yield Row(
                measure=NAME,
                title=f"single insert, {title}",
                ours=samples["Cascade"],
                theirs=samples.get("PgQ"),
                rival="PgQ",
                bar=BAR if has_bar else None,
            )


@contextmanager
def on_one_core(bench: Bench) -> Iterator[None]:
    """Have new backends and new clients share a core during a block, where the system can be told so."""
    postmaster = bench.server.pid
    if postmaster is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    # 0 is this thread, whose children inherit it; the server's other processes stay where they are.
    before = {pid: os.sched_getaffinity(pid) for pid in (0, postmaster)}
    try:
        for pid in before:
            os.sched_setaffinity(pid, {max(before[postmaster])})
        yield
    finally:
        for pid, cores in before.items():
            os.sched_setaffinity(pid, cores)


def _rate(bench: Bench, database: str, statement: str, clients: int, seconds: int) -> float:
    pgbench = bench.server.binaries.tool("pgbench")
    if pgbench is None:
        return _rate_by_threads(bench, database, statement, clients, seconds)
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.sql"
        # A colon before a letter would be a variable of pgbench; in this JSON it is before quotes and digits only.
        script.write_text(statement + ";\n")
        command = [pgbench, "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds)]
        done = subprocess.run(
            [*command, "-f", script, bench.server.socket_dsn(dbname=database)],
            env=os.environ | {"PGOPTIONS": "-c synchronous_commit=off"},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"tps = ([\d.]+) \(without", done.stdout)
    assert found, done.stdout
    return float(found[1])


def _rate_by_threads(bench: Bench, database: str, statement: str, clients: int, seconds: int) -> float:
    counts = [0] * clients
    end = time.perf_counter() + seconds

    def insert(client: int) -> None:
        with bench.connect(database, synchronous=False) as conn:
            while time.perf_counter() < end:
                conn.execute(statement.encode(), prepare=True)
                counts[client] += 1

    threads = [threading.Thread(target=insert, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds
