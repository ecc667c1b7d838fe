"""Trees as text, Mermaid and SVG."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given

from cascade.topology import Node, Role, Set, Topology, parse, render
from cascade.topology.svg import svg
from tests.fixtures.topologies import topologies
from tests.unit.topology.test_parse import GOOD

SVG = "{http://www.w3.org/2000/svg}"


def test_a_tree_shows_who_copies_from_whom() -> None:
    assert render.text(parse(GOOD)) == (
        "orders\n"
        "  s1 root          ams1\n"
        "  ├─> s2 branch    ams2\n"
        "  └─> s3 branch    fra1\n"
        "      └─> s4 leaf  bi    shop.handlers:apply  from 42"
    )


def test_notes_stand_in_columns() -> None:
    found = parse(GOOD.replace(', handler: "shop.handlers:apply"', "").replace("start: 42, ", "")).sets["orders"]
    notes = {"s1": ["tick 1200", "0 s"], "s2": ["tick 7", "12 s", "late"]}
    assert render.tree(found, notes).splitlines()[1:3] == [
        "  s1 root          ams1  tick 1200  0 s",
        "  ├─> s2 branch    ams2  tick 7     12 s  late",
    ]


def test_a_combined_set_says_what_it_combines() -> None:
    root = Node(name="c", set="all", database="hq", role=Role.COMBINED_ROOT)
    assert render.tree(Set(name="all", nodes={"c": root}, combines=("a", "b"))) == "all = a + b\n  c combined-root  hq"


def test_mermaid_has_a_box_per_node_and_an_arrow_per_provider() -> None:
    lines = render.mermaid(parse(GOOD)).splitlines()
    assert lines[:3] == ["graph LR", '  subgraph g0["orders"]', '    n0["s1<br/>root · ams1"]:::root']
    assert [line.strip() for line in lines if "-->" in line] == ["n0 --> n1", "n0 --> n2", "n2 --> n3"]


@given(topology=topologies())
def test_every_node_is_drawn_once_below_its_provider(topology: Topology) -> None:
    for found in topology.sets.values():
        places = list(render.walk(found))
        assert sorted(place.node.name for place in places) == sorted(found.nodes)
        assert [place.depth for place in places] == [len(found.path(place.node.name)) - 1 for place in places]
        assert len(render.tree(found).splitlines()) == len(found.nodes) + 1


@given(topology=topologies())
def test_mermaid_draws_every_node_and_arrow(topology: Topology) -> None:
    nodes = render.all_nodes(topology)
    text = render.mermaid(topology)
    assert text.count(":::") == len(nodes)
    assert text.count(" --> ") == sum(node.provider is not None for node in nodes)
    assert text.count(" -.-> ") == sum(node.role is Role.MERGE_LEAF for node in nodes)


@given(topology=topologies())
def test_a_picture_is_xml_and_its_boxes_do_not_overlap(topology: Topology) -> None:
    root = ElementTree.fromstring(svg(topology))
    nodes = render.all_nodes(topology)
    boxes = [tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height")) for box in root.iter(f"{SVG}rect")]
    assert len(boxes) == len(nodes)
    assert len([path for path in root.iter(f"{SVG}path") if "arrow" in path.attrib["class"]]) == sum(
        (node.provider is not None) + (node.role is Role.MERGE_LEAF) for node in nodes
    )
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for index, (x, y, w, h) in enumerate(boxes):
        assert 0 < x < x + w < width and 0 < y < y + h < height
        assert all(x + w <= a or a + c <= x or y + h <= b or b + d <= y for a, b, c, d in boxes[:index])


def test_what_people_write_is_no_markup() -> None:
    notes = {"orders": {"s1": ['<b>"lag" & \x00 it\'s']}}
    picture = svg(parse(GOOD), notes, title="<script>")
    assert "<b>" not in picture and "<script>" not in picture
    texts = [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert '<b>"lag" &   it\'s' in texts
    label = next(line for line in render.mermaid(parse(GOOD), notes).splitlines() if "lag" in line)
    assert re.fullmatch(r' *n0\["[^"]*"\]:::root', label) and "<b>" not in label


def test_a_picture_reads_in_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in svg(parse(GOOD))


def test_a_set_that_was_not_checked_is_drawn_all_the_same() -> None:
    found = parse(GOOD).sets["orders"]
    lost = replace(found.nodes["s3"], provider="gone")
    circle = {"a": replace(lost, name="a", provider="b"), "b": replace(lost, name="b", provider="a")}
    drawn = render.tree(replace(found, nodes={**found.nodes, "s3": lost, **circle}))
    assert all(sum(f" {name} " in f" {line} " for line in drawn.splitlines()) == 1 for name in ("s1", "s3", "a", "b"))


def test_a_deep_tree_is_drawn() -> None:
    nodes = {"n0": Node(name="n0", set="q", database="d0", role=Role.ROOT)}
    for number in range(1, 1500):
        nodes[f"n{number}"] = Node(
            name=f"n{number}", set="q", database=f"d{number}", role=Role.BRANCH, provider=f"n{number - 1}"
        )
    assert len(render.tree(Set(name="q", nodes=nodes)).splitlines()) == 1501
