"""The behaviour table of node/roles.py, cell by cell: what a node does while nobody's services run but its own.

    a1 root ──> a2 branch            s1 combined-root ──> s2 combined-branch
     ├──> a3 leaf                     ^ merge-leaf of a      ^ merge-leaf of a
     └──────────────────────────────> ┘      a2 ────────────> ┘

Everybody has something to do: a has more than anybody else, and s more than its branch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cascade.batch import Held
from cascade.node import roles
from cascade.node.home import Home
from cascade.node.merge import MergeLeaf
from cascade.node.roles import SERVICES, services_of
from cascade.node.sentinel import Sentinel
from cascade.node.service import Service
from cascade.topology import Database, Role, parse
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import table
from tests.fixtures.failover import fail_over
from tests.fixtures.merging import Merging, marks

#: Who is in which column of the table.
WHO = {
    "root": ("a", "a1"),
    "branch": ("a", "a2"),
    "leaf": ("a", "a3"),
    "c-root": ("s", "s1"),
    "c-branch": ("s", "s2"),
    "m-leaf at c-root": ("a", "s1"),
    "m-leaf at c-branch": ("a", "s2"),
}
FILE = """
version: 1
databases:
  a1: {dsn: service=a1}
  a2: {dsn: service=a2}
  a3: {dsn: service=a3}
  s1: {dsn: service=s1}
  s2: {dsn: service=s2}
sets:
  a:
    nodes:
      a1: {database: a1, role: root}
      a2: {database: a2, role: branch, provider: a1}
      a3: {database: a3, role: leaf, provider: a1}
  s:
    combines: [a]
    nodes:
      s1: {database: s1, role: combined-root}
      s2: {database: s2, role: branch, provider: s1}
"""


def cells() -> dict[str, dict[str, bool]]:
    """Return the table as it is written, column by column."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (roles.__doc__ or "").splitlines()
        if line.startswith("|") and "---" not in line
    ]
    _, *names = rows[0]
    assert all(cell in ("", "yes") for row in rows[1:] for cell in row[1:])
    return {name: {row[0]: row[n] == "yes" for row in rows[1:]} for n, name in enumerate(names, 1)}


@pytest.fixture
def merging(backends: Callable[..., Backend]) -> Iterator[Merging]:
    with Merging.fresh(backends(LABELS[0], max_prepared_transactions="20")) as made:
        yield made


def prepare(merging: Merging) -> None:
    """Make the picture, with something to do for everybody."""
    a1 = merging.build("a", carriers=2).root("a")
    a2 = merging.add("a2", a1)
    leaf = merging.seat("a", "a3", "a3", a1)
    merging.enroll(leaf, "leaf", None)
    a1.insert(1, 2, 3)
    merging.flow()
    # It asks a2, and tells a1: joining says where it stands as well.
    merging.tracker("a").ask()
    merging.tracker("a").switch(a2)
    a1.insert(4, 5)
    a1.tick()
    merging.tracker("a", "s1").merge()
    merging["s1"].tick()
    a1.insert(6)
    a1.tick()


class Watched:
    """One node whose services run, and what they have done since."""

    def __init__(self, merging: Merging, set_name: str, name: str) -> None:
        self.merging, self.node, self.root = merging, merging.made[set_name, name], merging.root(set_name)
        self.processed = 0
        databases = {node.node: Database(name=node.node, dsn=node.dsn) for node in merging.made.values()}
        topology = replace(parse(FILE), databases=databases)
        role = topology.find(set_name, name).role
        home = Home(set=set_name, dsn=self.node.dsn, topology=lambda: topology)
        self.services = services_of(role, home, self.handle)
        self.before = self.look()

    async def handle(self, batch: Held[Any], _conn: Any) -> None:
        self.processed += len(batch)

    def look(self) -> dict[str, Any]:
        """Return all that the rows of the table are about, as it is in the databases."""
        node, root = self.node, self.root
        heard = "select heard_at from cascade_internal.told where queue_id = %s and node = %s and tick_id >= %s"
        queues = [row[0] for row in node.rows("select name from cascade_internal.queue")]
        held = "select count(*) from {} where origin is distinct from '.cascade'"
        return {
            # One that tracks asks its provider, and is moved by others.
            "read from queue": (node.state("answered_at"), node.position()),
            "copy events to queue": {name: node.value(held.format(table(name))) for name in queues},
            "process events": self.processed,
            "send tick id to queue": len(marks(self.merging["s1"], "a")),
            "send global watermark to queue": root.controls("global-watermark"),
            "send local watermark upwards": root.value(heard, root.queue_id, node.node, node.position()),
            "tick": node.position(),
        }

    def done(self) -> dict[str, bool]:
        """Return which rows of the table are true of it."""
        now = self.look()
        done = {what: now[what] not in (None, was) for what, was in self.before.items() if what != "tick"}
        is_behind = now["tick"] < self.root.position()
        done["wait behind the combined set"] = self.node is not self.root and is_behind
        done["ask whether its term is over"] = any(isinstance(service, Sentinel) for service in self.services)
        return done


def turns(services: list[Service]) -> list[float | None]:
    """Return when those services that are not patient by nature have turned last."""
    wanted = ("/copier", "/merge", "/processor", "/watermark")
    return [service.turned_at for service in services if service.name.endswith(wanted)]


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a condition, or until it is too late: what is missing is told by the comparison that follows."""
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.05)


async def run(watched: Watched, wanted: dict[str, bool]) -> None:
    """Run a node's services until they have done what they should, and two more turns to do what they should not."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for service in watched.services:
            group.create_task(service.run(stop), name=service.name)
        await until(lambda: watched.done() == wanted)
        for _ in range(2):
            seen = turns(watched.services)
            await until(lambda seen=seen: all(a != b for a, b in zip(turns(watched.services), seen, strict=True)))
        stop.set()


@pytest.mark.parametrize("column", WHO)
async def test_a_node_does_what_the_table_says_and_nothing_else(merging: Merging, column: str) -> None:
    prepare(merging)
    watched, wanted = Watched(merging, *WHO[column]), cells()[column]
    await run(watched, wanted)
    assert watched.done() == wanted
    assert all(turned is not None for turned in turns(watched.services))
    copied = {name: count - watched.before["copy events to queue"][name]
              for name, count in watched.look()["copy events to queue"].items()}  # fmt: skip
    if column == "m-leaf at c-root":
        assert copied == {"s": 1, "a": 0}, "to the combined set"
    elif wanted["copy events to queue"]:
        assert {name for name, count in copied.items() if count} == {watched.node.set}


async def test_a_merge_leaf_moves_from_one_column_to_the_other_with_the_root(merging: Merging) -> None:
    """Nobody starts anything anew: what it may do is asked of its database."""
    prepare(merging)
    watched = Watched(merging, *WHO["m-leaf at c-branch"])
    assert type(watched.services[0]) is MergeLeaf
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for service in watched.services:
            group.create_task(service.run(stop), name=service.name)
        await until(lambda: watched.done() == cells()["m-leaf at c-branch"])
        assert watched.done()["wait behind the combined set"]
        for name in ("s2", "a2"):
            merging[name].catch_up()
        fail_over(merging["s2"])
        await until(lambda: not watched.done()["wait behind the combined set"])
        stop.set()
    assert watched.look()["copy events to queue"] == {"s": 6, "a": 0}


def test_the_table_has_a_column_for_every_role() -> None:
    assert [*cells()] == [*WHO]
    assert {Role.ROOT, Role.BRANCH, Role.LEAF, Role.COMBINED_ROOT, Role.MERGE_LEAF} == set(SERVICES) == set(Role)


def test_nodes_of_a_set_are_those_of_the_picture(merging: Merging) -> None:
    prepare(merging)
    shown = {
        (node.set, node.node): node.value("select role from cascade.nodes where set = %s", node.set)
        for node in merging.made.values()
    }
    assert {column: shown[who] for column, who in WHO.items()} == {
        "root": "root",
        "branch": "branch",
        "leaf": "leaf",
        "c-root": "combined-root",
        "c-branch": "branch",
        "m-leaf at c-root": "merge-leaf",
        "m-leaf at c-branch": "merge-leaf",
    }
