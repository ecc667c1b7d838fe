"""Several servers, a topology file and real daemons, for the measures of the cascade."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from cascade.dev import Cluster, Server, find_binaries
from cascade.sql import migrate
from cascade.topology import Database, Node, Role, Set, Topology, dump
from tests.bench.servers import SETTINGS

SET = "orders"


class Nodes:
    """A set over databases on several servers; the n-th node is on server n modulo their number."""

    def __init__(self, cluster: Cluster, providers: Mapping[str, str | None]) -> None:
        self._servers: list[Server] = list(cluster.nodes.values())
        self._names = list(providers)
        #: What daemons print; a measure that kills servers wants less.
        self.log_level = "warning"
        databases = {name: Database(name=name, dsn=self.dsn(name)) for name in providers}
        nodes = {
            name: Node(
                name=name,
                set=SET,
                database=name,
                role=Role.ROOT if provider is None else Role.BRANCH,
                provider=provider,
            )
            for name, provider in providers.items()
        }
        self.topology = Topology(databases=databases, sets={SET: Set(name=SET, nodes=nodes)})
        self.file = cluster.dir / "orders.yaml"
        self.file.write_text(dump(self.topology))
        self.conns: dict[str, psycopg.Connection[Any]] = {}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in providers:
            with psycopg.connect(self.server(name).admin_dsn, autocommit=True) as admin:
                admin.execute(f"create database {name} owner cascade".encode())
            self.conns[name] = psycopg.connect(self.dsn(name), autocommit=True)
            migrate.install(self.conns[name])
        root = self._names[0]
        self.conns[root].execute("select cascade.create_set(%s, %s)", (SET, root))

    def server(self, name: str) -> Server:
        """Return the server of a node."""
        return self._servers[self._names.index(name) % len(self._servers)]

    def dsn(self, name: str) -> str:
        """Return how to reach a node's database."""
        return self.server(name).dsn(dbname=name)

    def start(self, *names: str) -> None:
        """Run daemons until their nodes follow the root."""
        for name in names or self._names:
            command = [sys.executable, "-m", "cascade.cli.main", "node", "run", "--log-level", self.log_level]
            self.daemons[name] = subprocess.Popen([*command, "--topology", str(self.file), "--database", name])
        for name in names or self._names:
            wait(lambda name=name: self.tick(name) is not None, 60, f"daemon {name}")
        self.settle()

    def stop(self) -> None:
        """End every daemon."""
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait(20)
        for conn in self.conns.values():
            conn.close()

    def tick(self, name: str) -> int | None:
        """Return a node's last tick, by a look that costs little."""
        row = self.conns[name].execute("select queue_id from cascade_internal.node").fetchone()
        if row is None:
            return None
        found = self.conns[name].execute(
            f"select max(tick_id) from (select max(tick_id) as tick_id from cascade_internal.tick_{row[0]}_0"
            f" union all select max(tick_id) from cascade_internal.tick_{row[0]}_1) as t".encode()
        )
        return int(found.fetchone()[0])  # type: ignore[index]

    def settle(self, within_s: float = 120.0) -> None:
        """Wait until every node that has a daemon has what the root has now."""
        target = self.conns[self._names[0]].execute("select cascade.tick(%s)", (SET,)).fetchone()[0]  # type: ignore[index]
        for name in self.daemons:
            wait(lambda name=name: (self.tick(name) or 0) >= target, within_s, f"node {name}")


@contextmanager
def nodes(providers: Mapping[str, str | None], *, servers: int) -> Iterator[Nodes]:
    """Yield a set on servers of its own, and remove everything at the end."""
    with Cluster.temporary(nodes=servers, binaries=find_binaries(), settings=SETTINGS) as cluster:
        found = Nodes(cluster, providers)
        try:
            yield found
        finally:
            found.stop()


def wait(condition: Callable[[], object], within_s: float, what: str, *, every_s: float = 0.01) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} was not ready in {within_s:g} s"
        time.sleep(every_s)


def cpu_s(pid: int) -> float:
    """Return the seconds a process has spent in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Return the memory a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
