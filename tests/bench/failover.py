"""Another root: how long nobody can write during a switchover, and after an operator's failover is commanded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Any

import psycopg

from cascade import sync
from tests.bench.measure import Bar, Row, Samples, percentile
from tests.bench.nodes import SET, Nodes, nodes, wait
from tests.bench.servers import Bench

NAME = "failover"
ABOUT = "write pause of a switchover, operator failover from command to first insert"
NOTE = (
    "s1 root, s2 and s3 branches, each on a server of its own with a daemon of its own. A producer inserts single "
    "events in transactions of their own without pause; refused or disconnected, it tries the next node at once. The "
    "pause is from the last commit at the old root to the first at the new one. Switchovers are `cascade switchover`, "
    "round after round, each after every node has caught up; `printed` is what the command says. The Python client is "
    "`publish()` of a client that starts at one node and is told by the refusal where to go. Failover: the root's "
    "server is killed (-9), the dry run is read, and the clock runs from the start of the process `cascade failover … "
    "--allow-loss` to the first commit at the new root; then the old root is started again and resurrected."
)
NODES = {"s1": None, "s2": "s1", "s3": "s1"}
INSERT = b"insert into queue.orders (type, payload) values ('n', '{\"n\": 1}')"


class Producer:
    """Inserts wherever it can, and notes each change of the root: how long after the last insert the next one came."""

    def __init__(self, found: Nodes) -> None:
        self.dsns = {name: found.dsn(name) for name in NODES}
        self.root: str | None = None
        self.last_at = self.first_at = 0.0
        self.pauses: list[float] = []
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Producer]:
        """Insert during a block."""
        thread = threading.Thread(target=self.run, name="producer")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()

    def run(self) -> None:
        """Insert until told to stop; a node that takes none is left for the next."""
        conns: dict[str, psycopg.Connection[Any]] = {}
        names = cycle(self.dsns)
        name = next(names)
        while not self._stop.is_set():
            try:
                if name not in conns:
                    conns[name] = psycopg.connect(self.dsns[name], autocommit=True, connect_timeout=2)
                conns[name].execute(INSERT)
            except psycopg.OperationalError:
                conns.pop(name, None)
                name = self._next(names)
            except psycopg.Error as error:
                assert error.sqlstate == "QC401", error
                name = self._next(names)
            else:
                self.note(name)
        for conn in conns.values():
            conn.close()

    def _next(self, names: Iterator[str]) -> str:
        # Three are asked in a millisecond or two; more would only take the processor from those who work.
        time.sleep(0.001)
        return next(names)

    def note(self, name: str) -> None:
        """Remember an insert that was accepted."""
        now = time.perf_counter()
        if name != self.root:
            if self.root is not None:
                self.pauses.append(now - self.last_at)
            self.root, self.first_at = name, now
        self.last_at = now


class ClientProducer(Producer):
    """The same through the Python client, which starts at one node and follows."""

    def run(self) -> None:
        """Publish until told to stop; the longest call is the one that met the switchover."""
        with sync.connect(self.dsns["s1"], databases=self.dsns) as client:
            orders = client.queue(SET)
            while not self._stop.is_set():
                began_at = time.perf_counter()
                orders.publish({"n": 1}, type="n")
                self.pauses.append(time.perf_counter() - began_at)


def run(bench: Bench) -> Iterator[Row]:
    """Hand the reign round, through plain connections and through the client; then lose the root again and again."""
    with nodes(NODES, servers=len(NODES)) as found:
        found.log_level = "error"
        found.start()
        rounds = bench.turns(30, 4)
        bench.say(f"{rounds} switchovers")
        targets = cycle(["s2", "s3", "s1"])
        with Producer(found).running() as producer:
            wait(lambda: producer.root, 60, "the producer")
            printed = [hand_over(found, next(targets), producer) for _ in range(rounds)]
        yield from pause_rows("a producer without pause", producer.pauses, is_bar=True)
        yield from pause_rows("as printed", printed, is_bar=False)
        rounds = bench.turns(6, 2)
        bench.say(f"{rounds} switchovers under the Python client")
        longest = []
        for _ in range(rounds):
            with ClientProducer(found).running() as client:
                wait(lambda client=client: len(client.pauses) > 20, 60, "the client")
                hand_over(found, next(targets))
            longest.append(max(client.pauses))
        yield from pause_rows("the Python client, longest call", longest, is_bar=False)
        rounds = bench.turns(5, 1)
        bench.say(f"{rounds} failovers")
        with Producer(found).running() as producer:
            wait(lambda: producer.root, 60, "the producer")
            values = tuple([fail_over(found, producer) for _ in range(rounds)])
    yield Row(
        measure=NAME,
        title="failover, command to first insert",
        ours=Samples(label="Cascade", unit=" s", values=values),
        bar=Bar(kind="under", limit=3.0, of="value", unit=" s"),
    )


def pause_rows(what: str, pauses: list[float], *, is_bar: bool) -> Iterator[Row]:
    """Return the percentiles of some pauses."""
    for title, share, limit in (("p50", 0.5, 300.0), ("p99", 0.99, 1000.0)):
        yield Row(
            measure=NAME,
            title=f"switchover, write pause {title}, {what}",
            ours=Samples(label="Cascade", unit=" ms", values=(1000 * percentile(pauses, share),)),
            bar=Bar(kind="under", limit=limit, of="value", unit=" ms") if is_bar else None,
        )


def hand_over(found: Nodes, target: str, producer: Producer | None = None) -> float:
    """Make another node the root, wait until all have caught up, and return the pause that the command printed."""
    said = json.loads(command(found, "switchover", SET, "--to", target, "--json"))
    if producer is not None:
        wait(lambda: producer.root == target, 60, f"an insert at {target}")
    settle(found, target)
    return float(said["pause_seconds"])


def fail_over(found: Nodes, producer: Producer) -> float:
    """Kill the root, replace it, bring it back, and return how long it took from the command to the first insert."""
    old = str(producer.root)
    found.server(old).kill()
    found.conns[old].close()
    dry_run = command(found, "failover", SET, "--dead", old, "--dry-run", is_refused=True)
    fork = re.search(r"--allow-loss (\d+)", dry_run)
    assert fork is not None, dry_run
    began_at = time.perf_counter()
    command(found, "failover", SET, "--dead", old, "--fenced-by", "kill -9", "--allow-loss", fork[1])
    wait(lambda: producer.root != old, 60, "an insert at the new root")
    seconds = producer.first_at - began_at
    found.server(old).start()
    found.conns[old] = psycopg.connect(found.dsn(old), autocommit=True)
    wait(lambda: is_branch(found, old), 120, f"{old} as a branch", every_s=0.5)
    settle(found, str(producer.root))
    return seconds


def is_branch(found: Nodes, name: str) -> bool:
    """Resurrect a former root unless it has come back by itself."""
    if role_of(found, name) == "root":
        with suppress(AssertionError):
            command(found, "resurrect", SET, name)
    return role_of(found, name) == "branch"


def role_of(found: Nodes, name: str) -> str:
    """Return what a node is."""
    row: Any = found.conns[name].execute("select role from cascade_internal.node").fetchone()
    return str(row[0])


def settle(found: Nodes, root: str) -> None:
    """Wait until every node is where it should be and has what the root has now."""
    for name in NODES:
        wait(lambda name=name: role_of(found, name) == ("root" if name == root else "branch"), 60, f"{name}'s role")
    row: Any = found.conns[root].execute("select cascade.tick(%s)", (SET,)).fetchone()
    for name in NODES:
        wait(lambda name=name: (found.tick(name) or 0) >= row[0], 60, f"node {name}")


def command(found: Nodes, *arguments: str, is_refused: bool = False) -> str:
    """Run a command of cascade, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "cascade.cli.main", *arguments, "-f", str(found.file)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (3 if is_refused else 0), done.stdout + done.stderr
    return done.stdout + (done.stderr if is_refused else "")
