"""Where the demo runs: four servers, and the topology file that tells the daemons who they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import LiteralString

from cascade import sync
from cascade.dev import Cluster
from cascade.errors import QueueExistsError
from cascade.node.enroll import dsn_of, location_of
from cascade.node.handler import STORE_TABLE
from cascade.sql import migrate
from cascade.topology import Role, Topology, load
from cascade.topology.edit import edit, read_file, write_back
from cascade.topology.failover import with_nodes

SET = "orders"
NODES = ("s1", "s2", "s3", "s4")
#: Comments stay, whoever edits it: an operator, or a command.
FILE = """\
# Which database is what, and copies from whom.  Change role: or provider: and `cascade apply` it.
version: 1
databases:
  s1: {{dsn: {s1}}}
  s2: {{dsn: {s2}}}
  s3: {{dsn: {s3}}}
  s4: {{dsn: {s4}}}
sets:
  orders:
    nodes:
      s1: {{database: s1, role: root}}                   # Amsterdam, where the shop began
      s2: {{database: s2, role: branch, provider: s1}}   # Berlin
      s3: {{database: s3, role: branch, provider: s1}}   # Chicago
      s4:                                              # the warehouse: handles events, keeps no queue
        database: s4
        role: leaf
        provider: s3
        handler: cascade.node.handler:store_events
"""
SHOP: LiteralString = """
    create schema shop;
    create table shop.orders (order_id bigint primary key);
    create table shop.handled (order_id bigint, event_id bigint primary key);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The servers, and the file, which an operator or a command may change at any time."""

    cluster: Cluster
    file: Path

    @property
    def topology(self) -> Topology:
        """Return what the file says now."""
        return load(self.file)

    @property
    def root(self) -> str:
        """Return who is root by the file."""
        return self.topology.sets[SET].root.name

    def change(self, node: str, *, provider: str) -> None:
        """Edit the file, as an operator would."""
        text, found = read_file(self.file), self.topology
        nodes = dict(found.sets[SET].nodes)
        nodes[node] = replace(nodes[node], provider=provider)
        write_back(self.file, text, edit(text, with_nodes(found, SET, nodes)))

    def dsn(self, node: str) -> str:
        """Return how to reach a node's database."""
        return dsn_of(self.topology, node)


@contextmanager
def places(directory: Path | None) -> Iterator[Places]:
    """Run four servers, write the topology file, and make the set; temporary servers are gone afterwards."""
    with Cluster.temporary(nodes=NODES) if directory is None else Cluster(directory, nodes=NODES) as cluster:
        found = Places(cluster=cluster, file=cluster.dir / f"{SET}.yaml")
        found.file.write_text(FILE.format(**{name: json.dumps(cluster[name].dsn()) for name in NODES}))
        topology = found.topology
        for node in topology.sets[SET].nodes.values():
            with sync.connect(found.dsn(node.name)) as client:
                migrate.install(client.connection())
                if client.call("select count(*) from cascade.queues where queue = %s", SET):
                    hint = (
                        f"`cascade dev down --remove --dir {directory}` removes the servers with all that is on them."
                    )
                    raise QueueExistsError(f"there is a queue {SET} in {directory} already", hint=hint)
                client.connection().execute(SHOP)
                client.connection().execute(STORE_TABLE)
                if node.role is Role.ROOT:
                    location = location_of(topology, node)
                    client.call("select cascade.create_set(%s, %s, %s)", SET, node.name, location)
        yield found
