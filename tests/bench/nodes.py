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
from psycopg.types.json import Jsonb

from cascade.dev import Cluster, Server, find_binaries
from cascade.node.enroll import location_of
from cascade.sql import migrate
from cascade.topology import Database, Node, Role, Set, Topology, dump
from tests.bench.servers import SETTINGS

SET = "orders"


class Nodes:
    """Sets over databases on several servers; who is where is given as the number of the server by the database."""

    def __init__(self, cluster: Cluster, sets: Mapping[str, Set], places: Mapping[str, int]) -> None:
        self._servers: list[Server] = list(cluster.nodes.values())
        self._places = places
        self._names = list(places)
        #: What daemons print; a measure that kills servers wants less.
        self.log_level = "warning"
        databases = {name: Database(name=name, dsn=self.dsn(name)) for name in places}
        self.topology = Topology(databases=databases, sets=sets)
        self.file = cluster.dir / "orders.yaml"
        self.file.write_text(dump(self.topology))
        self.conns: dict[str, psycopg.Connection[Any]] = {}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in places:
            with psycopg.connect(self.server(name).admin_dsn, autocommit=True) as admin:
                admin.execute(f"create database {name} owner cascade".encode())
            self.conns[name] = psycopg.connect(self.dsn(name), autocommit=True)
            migrate.install(self.conns[name])
        for found in self.topology.sets.values():
            location = location_of(self.topology, found.root)
            arguments = (found.name, found.root.name, location, Jsonb({}), found.is_combined)
            query = "select cascade.create_set(%s, %s, %s, %s, %s)"
            self.conns[found.root.database].execute(query, arguments)

    def server(self, name: str) -> Server:
        """Return the server of a node."""
        return self._servers[self._places[name]]

    def dsn(self, name: str) -> str:
        """Return how to reach a node's database."""
        return self.server(name).dsn(dbname=name)

    def start(self, *names: str) -> None:
        """Run daemons until their nodes follow the root."""
        for name in names or self._names:
            command = [sys.executable, "-m", "cascade.cli.main", "node", "run", "--log-level", self.log_level]
            self.daemons[name] = subprocess.Popen([*command, "--topology", str(self.file), "--database", name])
        for name in names or self._names:
            for node in self.topology.nodes_at(name):
                wait(lambda node=node: self.tick(node.database, node.set) is not None, 60, f"set {node.set} at {name}")
        for set_name in self.topology.sets:
            self.settle(set_name)

    def stop(self) -> None:
        """End every daemon."""
        for daemon in self.daemons.values():
            daemon.terminate()
        for daemon in self.daemons.values():
            daemon.wait(20)
        for conn in self.conns.values():
            conn.close()

    def tick(self, name: str, set_name: str = SET) -> int | None:
        """Return the last tick of a set at one node, by a look that costs little."""
        query = "select queue_id from cascade_internal.queue where name = %s"
        row = self.conns[name].execute(query, (set_name,)).fetchone()
        if row is None:
            return None
        found = self.conns[name].execute(
            f"select max(tick_id) from (select max(tick_id) as tick_id from cascade_internal.tick_{row[0]}_0"
            f" union all select max(tick_id) from cascade_internal.tick_{row[0]}_1) as t".encode()
        )
        return found.fetchone()[0]  # type: ignore[index,no-any-return]

    def settle(self, set_name: str = SET, within_s: float = 120.0) -> None:
        """Wait until every node of a set that has a daemon has what the root has now."""
        found = self.topology.sets[set_name]
        target = self.conns[found.root.database].execute("select cascade.tick(%s)", (set_name,)).fetchone()[0]  # type: ignore[index]
        for node in found.nodes.values():
            if node.database in self.daemons:
                at = node.database
                wait(lambda at=at: (self.tick(at, set_name) or 0) >= target, within_s, f"set {set_name} at {at}")


@contextmanager
def nodes(providers: Mapping[str, str | None], *, servers: int) -> Iterator[Nodes]:
    """Yield the set `orders` on servers of its own, the n-th node on server n modulo their number."""
    found = {
        name: Node(
            name=name, set=SET, database=name, role=Role.ROOT if provider is None else Role.BRANCH, provider=provider
        )
        for name, provider in providers.items()
    }
    places = {name: number % servers for number, name in enumerate(providers)}
    with placed({SET: Set(name=SET, nodes=found)}, places) as made:
        yield made


@contextmanager
def placed(sets: Mapping[str, Set], places: Mapping[str, int]) -> Iterator[Nodes]:
    """Yield sets on servers of their own, and remove everything at the end."""
    servers = max(places.values()) + 1
    with Cluster.temporary(nodes=servers, binaries=find_binaries(), settings=SETTINGS) as cluster:
        made = Nodes(cluster, sets, places)
        try:
            yield made
        finally:
            made.stop()


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
