"""The values: frozen, and able to find their way in the tree."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import pytest
from hypothesis import given

from cascade.topology import Database, Node, Role, Set, Topology, TopologyError, check
from tests.fixtures.topologies import topologies


def make(*nodes: Node) -> Topology:
    """Return a topology of one set, a database per node."""
    databases = {node.database: Database(name=node.database, dsn=f"service={node.database}") for node in nodes}
    return Topology(databases=databases, sets={"q": Set(name="q", nodes={node.name: node for node in nodes})})


ROOT = Node(name="s1", set="q", database="d1", role=Role.ROOT)
BRANCH = Node(name="s2", set="q", database="d2", role=Role.BRANCH, provider="s1")
LEAF = Node(name="s3", set="q", database="d3", role=Role.LEAF, provider="s2")


@given(topology=topologies())
def test_every_path_leads_from_the_root(topology: Topology) -> None:
    for found in topology.sets.values():
        for node in found.nodes.values():
            path = found.path(node.name)
            assert (path[0], path[-1]) == (found.root, node)
            assert all(below in found.subscribers(above.name) for above, below in pairwise(path))


@given(topology=topologies())
def test_every_node_is_found_at_its_database(topology: Topology) -> None:
    found = [node for database in topology.databases for node in topology.nodes_at(database)]
    assert set(found) == {node for one in topology.sets.values() for node in one.nodes.values()}
    assert len(found) == len(set(found))
    assert all(topology.find(node.set, node.name) is node for node in found)


def test_what_is_not_there_is_told_with_what_was_meant() -> None:
    topology = make(ROOT, BRANCH)
    for wrong in (lambda: topology.find("q", "s11"), lambda: topology.sets["q"].subscribers("s11")):
        with pytest.raises(TopologyError, match=r"set q has no node 's11'\nhint: Did you mean 's1'\?"):
            wrong()
    with pytest.raises(TopologyError, match=r"there is no set 'x'\nhint: Known are q\."):
        topology.find("x", "s1")
    with pytest.raises(TopologyError, match=r"there is no database 'd11'\nhint: Did you mean 'd1'\?"):
        topology.nodes_at("d11")


def test_only_the_root_goes_without_a_provider() -> None:
    with pytest.raises(TopologyError, match="set q, node s1: only the root goes without a provider"):
        replace(ROOT, provider="s2")
    with pytest.raises(TopologyError, match="only the root"):
        replace(BRANCH, provider=None)


def test_values_cannot_be_changed() -> None:
    topology = make(ROOT)
    with pytest.raises(FrozenInstanceError):
        ROOT.name = "x"  # type: ignore[misc]
    for mapping in (topology.databases, topology.sets, topology.sets["q"].nodes, ROOT.options):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


def test_a_topology_made_by_hand_can_be_checked() -> None:
    assert check(make(ROOT, BRANCH, LEAF)) == []
    found = check(make(ROOT, LEAF))
    assert [str(problem) for problem in found] == ["<topology>: set q, node s3: no provider 's2'; copy from s1"]


def test_a_set_that_was_not_checked_does_not_hang() -> None:
    two = make(replace(BRANCH, provider="s3"), replace(LEAF, role=Role.BRANCH)).sets["q"]
    with pytest.raises(TopologyError, match="form a circle"):
        two.path("s2")
    with pytest.raises(TopologyError, match="set q has no root"):
        _ = two.root
