"""Files are read whole: valid ones become values, and of broken ones every problem is told with its line."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade.errors import ConfigError
from cascade.names import queue_name
from cascade.topology import Problem, Role, Topology, TopologyError, check, dump, fields, load, parse
from tests.fixtures.topologies import ANY, COMBINED, SECRET, Breakage, Document, broken, documents, topologies, write

TOP = Path(__file__).parents[3]
GOOD = """\
version: 1
databases:
  ams1: {dsn: "service=ams1"}
  ams2: {dsn: "host=${PGHOST_AMS2} dbname=app"}
  fra1: {dsn: "service=fra1"}
  bi: {dsn: "service=bi"}
sets:
  orders:
    options: {tick_max_lag: 50 ms, slots: 4}
    revision: 7
    nodes:
      s1: {database: ams1, role: root}
      s2: {database: ams2, role: branch, provider: s1}
      s3: {database: fra1, role: branch, provider: s1}
      s4: {database: bi, role: leaf, provider: s3, start: 42, handler: "shop.handlers:apply", options: {table: sales}}
signals: {mqtt: "mqtt://broker:1883"}
"""


def problems(text: str) -> list[str]:
    """Return what is told about a file, one line each."""
    with pytest.raises(TopologyError) as caught:
        parse(text, source="t.yaml")
    return str(caught.value).splitlines()


def changed(old: str, new: str) -> list[str]:
    """Return what is told about the good file after a change."""
    assert GOOD.count(old) == 1
    return problems(GOOD.replace(old, new))


@given(document=documents())
def test_a_valid_file_says_what_was_written(document: Document) -> None:
    topology = parse(write(document)[0], source="t.yaml")
    assert list(topology.databases) == list(document["databases"])
    assert topology.source == "t.yaml" and topology.version == 1
    for name, written in document["sets"].items():
        found = topology.sets[name]
        assert [node.name for node in found.nodes.values() if not node.is_derived] == list(written["nodes"])
        assert list(found.combines) == written.get("combines", [])
        assert found.revision == written.get("revision")
        for node, parts in written["nodes"].items():
            seen = found.nodes[node]
            assert (seen.set, seen.name, seen.database, seen.role) == (name, node, parts["database"], parts["role"])
            assert (seen.provider, seen.handler) == (parts.get("provider"), parts.get("handler"))
            assert seen.options == parts.get("options", {})
            assert seen.start == (str(parts.get("start", "earliest")) if seen.role is Role.LEAF else None)


@given(topology=topologies())
def test_a_topology_is_the_same_after_a_round_trip(topology: Topology) -> None:
    assert parse(dump(topology)) == topology
    assert check(topology) == []


@pytest.mark.parametrize("breakage", [*ANY, *COMBINED], ids=lambda breakage: breakage.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_broken_is_told_with_its_line(breakage: Breakage, data: st.DataObject) -> None:
    file = data.draw(broken(breakage))
    with pytest.raises(TopologyError) as caught:
        parse(file.text, source="t.yaml")
    found = caught.value.problems
    assert any(file.fact in problem.fact and problem.line in file.lines for problem in found), str(caught.value)
    assert [problem.line for problem in found] == sorted(problem.line for problem in found)
    assert str(caught.value).splitlines() == [f"t.yaml:{p.line}: {p.fact}; {p.remedy}" for p in found]
    assert SECRET not in str(caught.value) and SECRET not in repr(found)
    str(caught.value).encode()


@given(document=documents(combined=False))
def test_problems_are_told_together(document: Document) -> None:
    name = next(iter(document["sets"]))
    document["version"] = 2
    document["databases"]["bad"] = {"dsn": f"password={SECRET}"}
    document["sets"][name]["nodes"]["x"] = {"database": "nowhere", "role": "leav", "provider": "nobody"}
    told = "\n".join(problems(write(document)[0]))
    for fact in ("it is 2", "holds a password", "no database 'nowhere'", "no role 'leav'", "no provider 'nobody'"):
        assert fact in told


@given(text=st.text() | st.text("{}[]:-,&*!|>'\"%@`#?~<\\ \n\tabc0U"))
def test_whatever_the_text_only_topology_errors_come_of_it(text: str) -> None:
    with pytest.raises(TopologyError):
        parse(text)


@given(name=st.text(string.ascii_letters + "0_-. é\n;", max_size=42))
def test_a_set_is_named_like_a_queue(name: str) -> None:
    """The table of fields has the rule as a pattern, for the schema."""
    try:
        is_queue = bool(queue_name(name))
    except ConfigError:
        is_queue = False
    assert bool(re.fullmatch(fields.SET_NAME.pattern, name)) == is_queue


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("database: fra1", "database: fra", "14: set orders, node s3: no database 'fra'; did you mean 'fra1'?"),
        ("role: root", "role: rot", "12: set orders, node s1: no role 'rot'; did you mean 'root'?"),
        ("provider: s3", "provider: s33", "15: set orders, node s4: no provider 's33'; did you mean 's3'?"),
        ("provider: s3", "provider: s4", "15: set orders, node s4: it is its own provider; copy from s1 or s2 or s3"),
        ("provider: s3", "provder: s3", "15: set orders, node s4: unknown key 'provder'; did you mean 'provider'?"),
        ("slots: 4", "slots: 2", "9: set orders: option 'slots' is 2; write a whole number from 3 to 10"),
        ("revision: 7", "revision: no", "10: set orders: revision is true or false; write a whole number"),
        ("{dsn: \"service=bi\"}", "service=bi", "6: database bi: it is text; write a mapping with the key dsn"),
        ("service=bi", "sevice=bi", "6: database bi: the DSN holds the unknown parameter 'sevice'; did you mean 'serv"),
        ("service=bi", "service=fra1", "15: set orders, node s4: databases fra1 and bi have the same DSN; give each"),
        ("role: root", "role: root, role: root", "12: set orders, node s1: the key 'role' is there twice; remove one"),
        ("version: 1", "version: '1'", "1: version: it is text; write 1, the only one this release knows"),
        ("start: 42", "start: 0x42", "15: set orders, node s4: start '0x42' cannot be used; write now, earliest"),
        ("start: 42", "start: 2030-01-01", "15: set orders, node s4: start is a date; put it in quotes, or write now"),
        ("provider: s3,", "provider: 3,", "15: set orders, node s4: provider is a number; put it in quotes, or write "),
        ("  bi: {", "  bi: {password: x, ", "6: database bi: unknown key 'password'; passwords belong in pgpass"),
        ("tick_max_lag: 50 ms", "tick_max_lag: soon", "9: set orders: option 'tick_max_lag' 'soon' cannot be used"),
        ("sets:", "<<: {}\nsets:", "7: the file: '<<' merges are not read; write the keys out, or use an alias"),
        ("sets:", "? [a]\n: b\nsets:", "7: the file: a key is no plain word; write names as keys"),
        ("mqtt://broker:1883", "http://b", "16: signals: the URL of mqtt cannot be used; write mqtt://host:port or mq"),
    ],
)  # fmt: skip
def test_a_message_names_the_object_the_fact_and_the_remedy(old: str, new: str, told: str) -> None:
    assert any(line.startswith(f"t.yaml:{told}") for line in changed(old, new)), changed(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [("database: bi", "database: by"), ("role: leaf", "role: leav"), ("role: leaf, ", ""), ("s1}", "s9}")],
)
def test_one_mistake_is_told_once(old: str, new: str) -> None:
    first = GOOD.index(old)
    assert len(problems(GOOD[:first] + new + GOOD[first + len(old) :])) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.yaml:1: the file is empty; "),
        ("# nothing\n", "t.yaml:1: the file is empty; "),
        ("[]", "t.yaml:1: the file: it is a list; "),
        ("a: b\nc: [1,\n", "t.yaml:3: not YAML: "),
        ("a: b\n\tc: d\n", "t.yaml:2: not YAML: found character '\\t' that cannot start any token; "),
        ("a: b\nc: \x07\n", "t.yaml:2: not YAML: a control character; "),
        ("a: 1\n---\nb: 2\n", "t.yaml:2: not YAML: but found another document; "),
        (f"a: *{SECRET}\n", "t.yaml:1: not YAML: found undefined alias; "),
        ('a: "\\UFFFFFFFF"', "t.yaml:1: not YAML: an escape that stands for no character; "),
        ("[" * 5000, "t.yaml:1: not YAML: it is nested too deeply; "),
    ],
)
def test_what_is_not_yaml_is_told_with_its_line(text: str, told: str) -> None:
    assert problems(text)[0].startswith(told)


def test_an_anchor_that_holds_itself_is_no_trap() -> None:
    assert problems("version: 1\ndatabases: &a {x: *a}\nsets: &b [*b]\n")


def test_a_tag_makes_no_object() -> None:
    assert "of an unknown kind" in problems(GOOD.replace("version: 1", 'version: !!python/name:os.system ""'))[0]


def test_names_that_yaml_takes_for_something_else_are_names() -> None:
    topology = parse(GOOD.replace(" s1:", " no:").replace("provider: s1", "provider: 'no'"))
    assert topology.sets["orders"].root.name == "no"


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(GOOD)
    assert load(file) == parse(GOOD)
    assert load(file).source == str(file)


def test_a_file_that_cannot_be_read_is_a_topology_error(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"version: 1\nsets: {\xe9: 1}\n")
    with pytest.raises(TopologyError, match=r"latin.yaml:2: the file is not UTF-8; save it as UTF-8"):
        load(latin)


def test_the_example_is_valid() -> None:
    found = load(TOP / "deploy" / "examples" / "orders.yaml").sets["orders"]
    assert [(node.name, node.role, node.provider) for node in found.nodes.values()] == [
        ("s1", Role.ROOT, None),
        ("s2", Role.BRANCH, "s1"),
        ("s3", Role.BRANCH, "s1"),
        ("s4", Role.LEAF, "s3"),
    ]


def test_the_combined_set_of_the_design_is_valid() -> None:
    nodes = "nodes: {r: {database: %s, role: root}}"
    topology = parse(f"""
version: 1
databases: {{eu: {{dsn: service=eu}}, us: {{dsn: service=us}}, hq1: {{dsn: service=hq1}}, hq2: {{dsn: service=hq2}}}}
sets:
  orders_eu: {{{nodes % "eu"}}}
  orders_us: {{{nodes % "us"}}}
  all_orders:
    combines: [orders_eu, orders_us]
    nodes:
      c1: {{database: hq1, role: combined-root}}
      c2: {{database: hq2, role: branch, provider: c1}}
""")
    assert topology.sets["all_orders"].combines == ("orders_eu", "orders_us")
    assert topology.sets["all_orders"].root.name == "c1"


def test_a_problem_without_a_line_names_its_source_only() -> None:
    assert str(Problem(source="x", line=0, fact="wrong", remedy="mend it")) == "x: wrong; mend it"
