"""A combined set and its parts as one picture."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from cascade.topology import Topology, parse
from cascade.topology.picture import draw, family, title, tops
from tests.fixtures.topologies import topologies

NAMES = ("a1", "a2", "b1", "c1", "s1", "s2", "s3", "x1", "x2")
DATABASES = ", ".join(f"{name}: {{dsn: service={name}}}" for name in NAMES)
ONE_LEVEL = (
    f"version: 1\ndatabases: {{{DATABASES}}}"
    + """
sets:
  a: {nodes: {a1: {database: a1, role: root}, a2: {database: a2, role: branch, provider: a1}}}
  b: {nodes: {b1: {database: b1, role: root}}}
  s:
    combines: [a, b]
    nodes:
      s1: {database: s1, role: combined-root}
      s2: {database: s2, role: branch, provider: s1}
      s3: {database: s3, role: branch, provider: s2}
"""
)
TWO_LEVELS = (
    f"version: 1\ndatabases: {{{DATABASES}}}"
    + """
sets:
  s:
    combines: [x, c]
    nodes: {s1: {database: s1, role: combined-root}, s2: {database: s2, role: branch, provider: s1}}
  a: {nodes: {a1: {database: a1, role: root}}}
  b: {nodes: {b1: {database: b1, role: root}}}
  x:
    combines: [a, b]
    nodes: {x1: {database: x1, role: combined-root}, x2: {database: x2, role: branch, provider: x1}}
  c: {nodes: {c1: {database: c1, role: root}}}
  alone: {nodes: {a1: {database: a1, role: root}}}
"""
)


def lines(found: Topology, name: str) -> list[str]:
    return [line.drawing.rstrip() for line in draw(found.sets, name)]


def test_every_part_flows_into_the_combined_root() -> None:
    found = parse(ONE_LEVEL)
    assert title(found.sets, "s") == "s = a + b"
    assert lines(found, "s") == [
        "a1 root",
        "├─> a2 branch",
        "├─> s1 merge-leaf ──┐",
        "└─> s2 merge-leaf   │",
        "b1 root             │",
        "├─> s1 merge-leaf ──┤",
        "└─> s2 merge-leaf   │",
        "s1 combined-root <──┘",
        "└─> s2 branch",
        "    └─> s3 branch",
    ]


def test_a_part_that_is_combined_brings_its_own_along() -> None:
    found = parse(TWO_LEVELS)
    assert title(found.sets, "s") == "s = x + c, x = a + b"
    assert lines(found, "s") == [
        "a1 root",
        "├─> x1 merge-leaf ──┐",
        "└─> x2 merge-leaf   │",
        "b1 root             │",
        "├─> x1 merge-leaf ──┤",
        "└─> x2 merge-leaf   │",
        "x1 combined-root <──┘",
        "├─> x2 branch",
        "├─> s1 merge-leaf ────┐",
        "└─> s2 merge-leaf     │",
        "c1 root               │",
        "├─> s1 merge-leaf ────┤",
        "└─> s2 merge-leaf     │",
        "s1 combined-root <────┘",
        "└─> s2 branch",
    ]


def test_sets_that_are_parts_of_others_have_no_picture_of_their_own() -> None:
    assert tops(parse(TWO_LEVELS).sets) == ["s", "alone"]
    assert family(parse(TWO_LEVELS).sets, "s") == ["a", "b", "x", "c", "s"]


def test_what_does_not_flow_is_dashed_and_roles_may_be_called_otherwise() -> None:
    found = draw(
        parse(ONE_LEVEL).sets,
        "s",
        called=lambda node: "combined-failover" if (node.set, node.name) == ("s", "s2") else str(node.role),
        flows=lambda node: node.set != "b",
    )
    drawn = [line.drawing.rstrip() for line in found]
    assert drawn[2].endswith("merge-leaf ──┐") and drawn[5].endswith("merge-leaf ╌╌┤")
    assert drawn[8] == "└─> s2 combined-failover"
    assert len({len(line.drawing) for line in found}) == 1


def test_the_line_leads_to_whoever_is_root_now() -> None:
    sets = dict(parse(ONE_LEVEL).sets)
    roles = {"s1": {"role": sets["s"].nodes["s2"].role, "provider": "s2"}, "s2": {"role": sets["s"].root.role}}
    nodes = {
        name: replace(sets["s"].nodes[name], **{"provider": None, **roles.get(name, {"provider": "s2"})})
        for name in ("s2", "s1", "s3")
    }
    sets["s"] = replace(sets["s"], nodes=nodes)
    drawn = [line.drawing.rstrip() for line in draw(sets, "s")]
    assert drawn[2:4] == ["├─> s1 merge-leaf", "└─> s2 merge-leaf ──┐"]
    assert drawn[7] == "s2 combined-root <──┘"


def test_a_root_without_merge_leaves_has_no_line() -> None:
    sets = {name: replace(found, nodes=dict(found.nodes)) for name, found in parse(ONE_LEVEL).sets.items()}
    for part in ("a", "b"):
        nodes = {name: node for name, node in sets[part].nodes.items() if node.into is None}
        sets[part] = replace(sets[part], nodes=nodes)
    assert [line.drawing.rstrip() for line in draw(sets, "s")][3] == "s1 combined-root"


@given(found=topologies())
def test_every_node_is_drawn_once(found: Topology) -> None:
    drawn = [(line.node.set, line.node.name) for name in tops(found.sets) for line in draw(found.sets, name)]
    assert sorted(set(drawn)) == sorted(
        (node.set, node.name) for one in found.sets.values() for node in one.nodes.values()
    )
    for name in tops(found.sets):
        pairs = [(line.node.set, line.node.name) for line in draw(found.sets, name)]
        assert len(pairs) == len(set(pairs))
