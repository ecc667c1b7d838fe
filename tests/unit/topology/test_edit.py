"""Files are changed where they must be, and nowhere else: comments, order and layout stay."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade.errors import ConflictError
from cascade.topology import Role, Topology, TopologyError, check, parse
from cascade.topology.edit import edit, read_file, write_back
from cascade.topology.failover import failover, resurrect, switchover, with_nodes, with_revision
from tests.fixtures.topologies import Document, documents, write

BLOCK = """\
# our shop
version: 1
databases:
  a: {dsn: service=a}
  b: {dsn: service=b}   # the new machine
  c: {dsn: service=c}
sets:
  q:  # orders
    # three nodes
    nodes:
      s1:
        database: a
        role: root  # in Amsterdam
      # the spare
      s2:
        provider: s1  # never from s3
        role: branch
        database: b
      s3: {database: c, role: leaf, provider: s1} # bi
"""


@st.composite
def commented(draw: st.DrawFn) -> tuple[Document, str, list[str]]:
    """Return a document, one of the many ways to write it, and the comments in that."""
    document = draw(documents())
    style = draw(st.sampled_from(["lines", "block", "mixed", "flow"]))
    flow = {"block": False, "mixed": None, "flow": True}.get(style)
    text = (
        write(document)[0] if style == "lines" else yaml.safe_dump(document, sort_keys=False, default_flow_style=flow)
    )
    comments: list[str] = []
    lines = []
    for line in text.splitlines():
        # Behind or before a line that ends an entry; a text that goes on in the next line holds no comment.
        if style in ("lines", "block") and draw(st.booleans()):
            comments.append(f"# c{len(comments)}, {{x: y}}")
            line = f"{line}  {comments[-1]}" if draw(st.booleans()) else f"{comments[-1]}\n{line}"
        lines.append(line)
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    made = ending.join("\n".join(lines).splitlines()) + draw(st.sampled_from([ending, ""]))
    return document, made, comments


def roots(topology: Topology) -> list[tuple[str, str]]:
    """Return every switchover that is possible: set and new root."""
    return [
        (found.name, node.name)
        for found in topology.sets.values()
        for node in found.nodes.values()
        if node.role is Role.BRANCH and node.handler is None
    ]


@settings(deadline=None)
@given(written=commented(), data=st.data())
def test_a_file_says_what_is_wanted_and_keeps_its_comments(
    written: tuple[Document, str, list[str]], data: st.DataObject
) -> None:
    _, text, comments = written
    topology = parse(text)
    name = data.draw(st.sampled_from(sorted(topology.sets)), label="set")
    wanted = with_revision(topology, name, data.draw(st.integers(0, 10**9), label="revision"))
    if places := roots(topology):
        wanted = switchover(wanted, *data.draw(st.sampled_from(places), label="root"))
    made = edit(text, wanted)
    assert parse(made) == wanted
    assert re.findall(r"# c\d+, {x: y}", made) == comments
    assert made.count("\r\n") == made.count("\n") or "\r\n" not in text
    assert edit(made, wanted) == made
    untouched = [line for line in text.splitlines() if not re.search("role|provider|revision|[{}]", line)]
    assert [line for line in made.splitlines() if line in untouched] == untouched


def test_only_what_differs_is_changed() -> None:
    made = edit(BLOCK, with_revision(switchover(parse(BLOCK), "q", "s2"), "q", 8))
    expected = BLOCK.replace("  q:  # orders\n", "  q:  # orders\n    revision: 8\n")
    expected = expected.replace("role: root  # in Amsterdam\n", "role: branch  # in Amsterdam\n        provider: s2\n")
    expected = expected.replace("provider: s1  # never", "# never").replace("provider: s1}", "provider: s2}")
    assert made == expected.replace("role: branch\n        database: b", "role: root\n        database: b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{role: branch, provider: s1, database: b}", "{role: root, database: b}"),
        ("{provider: s1, role: branch, database: b}", "{role: root, database: b}"),
        ("{provider: s1, # why\n role: branch, database: b}", "{ # why\n role: root, database: b}"),
        ("{role: branch, # how, why\n provider: s1, # where\n database: b}", "{role: root # how, why\n , # where\n "),
        ("{role: branch, database: b,\n provider: s1,\n }", "{role: root, database: b,\n }"),
        ('{"role": "branch", "provider": \'s1\', "database": "b"}', '{"role": root, "database": "b"}'),
    ],
)  # fmt: skip
def test_an_entry_goes_with_its_comma(before: str, after: str) -> None:
    text = f"version: 1\ndatabases: {{a: {{dsn: service=a}}, b: {{dsn: service=b}}}}\nsets: {{q: {{nodes: {{s1: {{role: root, database: a}}, s2: {before}}}}}}}\n"  # noqa: E501
    made = edit(text, switchover(parse(text), "q", "s2"))
    assert after in made and "s1: {role: branch, provider: s2, database: a}" in made
    assert "q: {revision: 5, nodes:" in edit(text, with_revision(parse(text), "q", 5))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("role: root  # in Amsterdam", "role: &r root"),
        ("      s3: {database: c, role: leaf, provider: s1} # bi", "      s3: {database: c, role: leaf, provider: *p}"),
        ("provider: s1  # never from s3", "provider: # never from s3\n          s1"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left(old: str, new: str) -> None:
    text = BLOCK.replace(old, new)
    if "*p" in new:
        text = text.replace("provider: s1  # never", "provider: &p s1  # never")
    if "&r" in new:
        text = text.replace("  c: {dsn: service=c}", "  c: {dsn: service=c}\n  root: {dsn: service=r}").replace(
            "database: b", "database: *r"
        )
    wanted = switchover(parse(text), "q", "s2")
    with pytest.raises(TopologyError, match="by hand"):
        edit(text, wanted)


def test_other_differences_are_not_written() -> None:
    topology = parse(BLOCK)
    nodes = {name: node for name, node in topology.sets["q"].nodes.items() if name != "s3"}
    with pytest.raises(TopologyError, match="cannot be changed safely"):
        edit(BLOCK, with_nodes(topology, "q", nodes))


def test_names_that_yaml_takes_for_something_else_are_quoted() -> None:
    text = BLOCK.replace("      s2:", "      no:")
    assert 'provider: "no"' in edit(text, switchover(parse(text), "q", "no"))


def test_a_file_is_replaced_at_once_unless_somebody_changed_it(tmp_path: Path) -> None:
    file, link = tmp_path / "t.yaml", tmp_path / "link.yaml"
    file.write_bytes(BLOCK.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    link.symlink_to(file)
    text = read_file(link)
    assert "\r\n" in text
    write_back(link, text, text + "# end\r\n")
    assert read_file(file) == text + "# end\r\n" and link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ConflictError, match="was changed meanwhile"):
        write_back(link, text, text)
    assert sorted(os.listdir(tmp_path)) == ["link.yaml", "t.yaml"]


# What the commands want of a file


@settings(deadline=None)
@given(document=documents(combined=False), data=st.data())
def test_a_set_without_one_of_its_nodes_is_still_a_tree(document: Document, data: st.DataObject) -> None:
    topology = parse(write(document)[0])
    name = data.draw(st.sampled_from(sorted(topology.sets)), label="set")
    found = topology.sets[name]
    dead = data.draw(st.sampled_from(sorted(found.nodes)), label="dead")
    others = [n.name for n in found.nodes.values() if n.role is Role.BRANCH and n.handler is None and n.name != dead]
    to = data.draw(st.sampled_from([None, *others]), label="to")
    try:
        wanted = failover(topology, name, dead, to)
    except TopologyError as error:
        assert (found.nodes[dead].role is Role.LEAF) or (found.nodes[dead].role.is_root and to is None), error
        return
    assert check(wanted) == []
    assert [node.name for node in wanted.sets[name].nodes.values() if node.provider == dead] == []
    assert list(wanted.sets[name].nodes) == list(found.nodes)
    assert wanted.sets[name].nodes[dead].role is Role.BRANCH


def test_what_cannot_be_wanted_is_refused() -> None:
    topology = parse(BLOCK)
    assert switchover(topology, "q", "s1") == topology
    with pytest.raises(TopologyError, match="a leaf cannot become the root"):
        switchover(topology, "q", "s3")
    with pytest.raises(TopologyError, match="no node 's9'"):
        switchover(topology, "q", "s9")
    assert failover(topology, "q", "s1", "s1") == topology, "a root that lost its tail may go on"
    with pytest.raises(TopologyError, match="cannot follow itself"):
        failover(topology, "q", "s2", "s2")
    with pytest.raises(TopologyError, match="is a leaf, which keeps no queue"):
        failover(switchover(topology, "q", "s2"), "q", "s1", "s3")
    busy = with_nodes(topology, "q", {n: replace(v, handler="a:b") if n == "s2" else v for n, v in topology.sets["q"].nodes.items()})  # noqa: E501  # fmt: skip
    with pytest.raises(TopologyError, match="it runs the handler a:b, and a root runs none"):
        failover(busy, "q", "s1", "s2")


def test_a_node_that_comes_back_is_a_branch_of_whoever_reigns() -> None:
    topology = parse(BLOCK)
    moved = switchover(topology, "q", "s2")
    assert resurrect(moved, "q", "s1") == moved
    assert resurrect(topology, "q", "s1", "s2") == moved
    with pytest.raises(TopologyError, match="s1 is the root in the file"):
        resurrect(topology, "q", "s1")
    with pytest.raises(TopologyError, match="has no tail"):
        resurrect(topology, "q", "s3")
