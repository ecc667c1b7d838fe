"""Where the demo runs: four servers, and the topology file that tells the daemons who they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import LiteralString

from psycopg.types.json import Jsonb

from cascade import sync
from cascade.dev import Cluster
from cascade.errors import QueueExistsError
from cascade.node.enroll import dsn_of, location_of
from cascade.node.handler import STORE_TABLE
from cascade.sql import migrate
from cascade.topology import Topology, load
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
    #: The set that it is about.
    set: str

    @property
    def topology(self) -> Topology:
        """Return what the file says now."""
        return load(self.file)

    @property
    def root(self) -> str:
        """Return who is root by the file."""
        return self.topology.sets[self.set].root.name

    def change(self, node: str, *, provider: str) -> None:
        """Edit the file, as an operator would."""
        text, found = read_file(self.file), self.topology
        nodes = dict(found.sets[self.set].nodes)
        nodes[node] = replace(nodes[node], provider=provider)
        write_back(self.file, text, edit(text, with_nodes(found, self.set, nodes)))

    def dsn(self, node: str) -> str:
        """Return how to reach a node's database, which is called like it."""
        return dsn_of(self.topology, node)


@contextmanager
def places(directory: Path | None) -> Iterator[Places]:
    """Run four servers, write the topology file, and make the set; temporary servers are gone afterwards."""
    with cluster(directory, NODES) as servers:
        found = Places(cluster=servers, file=servers.dir / f"{SET}.yaml", set=SET)
        found.file.write_text(FILE.format(**{name: json.dumps(servers[name].dsn()) for name in NODES}))
        for node in found.topology.sets[SET].nodes.values():
            prepare(found, node.database, SHOP, STORE_TABLE)
        create_set(found, SET)
        yield found


def cluster(directory: Path | None, nodes: Sequence[str]) -> AbstractContextManager[Cluster]:
    """Return what runs servers during a block, in a directory that stays or in one that is gone afterwards."""
    return Cluster.temporary(nodes=nodes) if directory is None else Cluster(directory, nodes=nodes)


def prepare(where: Places, database: str, *statements: LiteralString) -> None:
    """Install the schema in a database, and what is needed besides, unless something was played here before."""
    with sync.connect(where.dsn(database)) as client:
        migrate.install(client.connection())
        if client.call("select count(*) from cascade.queues"):
            directory = where.cluster.dir
            hint = f"`cascade dev down --remove --dir {directory}` removes the servers with all that is on them."
            raise QueueExistsError(f"there are queues in {directory} already", hint=hint)
        for statement in statements:
            client.connection().execute(statement)


def create_set(where: Places, name: str) -> None:
    """Make a set: its root, as `cascade set create` does."""
    found = where.topology.sets[name]
    with sync.connect(where.dsn(found.root.database)) as client:
        location = location_of(where.topology, found.root)
        arguments = (name, found.root.name, location, Jsonb({}), found.is_combined)
        client.call("select cascade.create_set(%s, %s, %s, %s, %s)", *arguments)
