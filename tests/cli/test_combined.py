"""Operating combined sets and their parts from the command line: no daemons, and nothing written but `combines`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from cascade.cli.main import main
from cascade.dev import Server
from cascade.node import reign
from cascade.node.survey import Links, survey
from cascade.topology import load
from tests.cli.conftest import _database

FILE = """\
version: 1
databases: {a1: {dsn: "${DB_A1}"}, a2: {dsn: "${DB_A2}"}, s1: {dsn: "${DB_S1}"}, s2: {dsn: "${DB_S2}"}, s3: {dsn: "${DB_S3}"}}
sets:
  s:  # made of one part
    combines: [a]
    nodes:
      s1: {database: s1, role: combined-root}
      s2: {database: s2, role: branch, provider: s1}
      s3: {database: s3, role: branch, provider: s1}
  a:
    nodes:
      a1: {database: a1, role: root}
      a2: {database: a2, role: branch, provider: a1}
"""  # noqa: E501
#: A second combined-failover.
AT_S3 = "\n".join(f"      m{n}: {{database: s{n}, role: merge-leaf, provider: a1, into: s}}" for n in (2, 3)) + "\n"
NOBODY = "host=127.0.0.1 port=1 dbname=nobody connect_timeout=2"


class Shop:
    """The file, the databases, and an operator's hands."""

    def __init__(self, file: Path, server: Server, monkeypatch: pytest.MonkeyPatch, text: str = FILE) -> None:
        self.file, self._patch = file, monkeypatch
        self.dsns = {name: _database(server, "cli_template") for name in ("a1", "a2", "s1", "s2", "s3")}
        self.text = text
        file.write_text(text)
        self.connect()
        monkeypatch.setattr(reign, "GRACE_S", 0.02)
        for name in ("a", "s"):
            self.run("set", "create", name)
        self.run("node", "add", "a", "a2")
        self.run("node", "add", "a", "s1")
        for name in ("s2", "s3"):
            self.run("node", "add", "s", name)
        self.settle("s")
        for node in load(file).sets["a"].nodes.values():
            if node.database in ("s2", "s3"):
                self.run("node", "add", "a", node.name)
        self.settle("a", "a2")

    def connect(self, *, lost: tuple[str, ...] = ()) -> None:
        """Have everybody reachable but those who are lost."""
        for name, dsn in self.dsns.items():
            self._patch.setenv(f"DB_{name.upper()}", NOBODY if name in lost else dsn)

    def invoke(self, *arguments: str) -> Result:
        more = () if arguments[0] == "topology" else ("-f", str(self.file))
        return CliRunner().invoke(main, [*arguments, *more], env={"CASCADE_DEBUG": None})

    def run(self, *arguments: str, code: int = 0) -> str:
        result = self.invoke(*arguments)
        assert result.exit_code == code, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        result = self.invoke(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def query(self, name: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsns[name], autocommit=True) as conn:
            found = conn.execute(query.encode(), arguments or None)
            return found.fetchall() if found.description else []

    def settle(self, set_name: str, *nodes: str) -> None:
        """Tick at the root, and have branches copy."""
        topology = load(self.file)
        found = topology.sets[set_name]
        self.query(found.root.database, "select cascade.tick(%s)", set_name)

        async def copy() -> None:
            links = Links(topology, await survey(topology, set_name))
            for node in nodes or [name for name, node in found.nodes.items() if node.role == "branch"]:
                await reign.copy_some(links, node)

        asyncio.run(copy())

    def roles(self, set_name: str) -> dict[str, tuple[str, str | None]]:
        """Return role and provider of everybody, by database."""
        query = "select role, provider from cascade.nodes where set = %s"
        return {name: row for name in self.dsns for row in self.query(name, query, set_name)}


@pytest.fixture
def shop(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path / "combined.yaml", server, monkeypatch)


def test_everything_of_a_file_is_planned_and_parts_come_first(shop: Shop) -> None:
    assert [plan["set"] for plan in shop.json("plan")["plans"]] == ["a", "s"]
    assert shop.run("plan").count("nothing to do") == shop.run("apply").count("nothing to do") == 2
    assert shop.run("plan", "s").count("nothing to do") == 1
    assert "there is no set 'x'" in shop.run("plan", "x", code=2)
    assert shop.run("topology", "export", str(shop.file)) == shop.text


def test_a_combined_set_and_its_part_are_handed_over(shop: Shop) -> None:
    shown = shop.run("switchover", "s", "--to", "s2", "--dry-run")
    assert "s = a\n  s2 combined-root" in shown.partition("after:")[2] and "s1 combined-root  s1" in shown
    assert "name s2" in shop.run("switchover", "s", "--to", "s3", code=3)
    assert "done; writers waited" in shop.run("switchover", "s", "--to", "s2")
    assert shop.roles("s") == {"s1": ("branch", "s2"), "s2": ("combined-root", None), "s3": ("branch", "s2")}
    shown = shop.run("switchover", "a", "--to", "a2")
    assert "s1 copies from a2" in shown and "s2 copies from a2" in shown
    assert shop.roles("a") == {
        "a1": ("branch", "a2"),
        "a2": ("root", None),
        "s1": ("merge-leaf", "a2"),
        "s2": ("merge-leaf", "a2"),
    }
    text = shop.file.read_text()
    assert "s2: {database: s2, role: combined-root}" in text and "merge-leaf" not in text
    assert shop.run("plan").count("nothing to do") == 2
    # The old file, brought up to date.
    shop.file.write_text(shop.text)
    assert "it has" not in shop.run("plan", code=3)
    shop.run("topology", "export", str(shop.file), "--write")
    assert shop.file.read_text().replace("    revision: 1\n", "") == text.replace("    revision: 1\n", "")


def test_a_lost_database_is_left_by_every_set_that_has_something_there(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "  x: {nodes: {x1: {database: s1, role: root}, x2: {database: a2, role: branch, provider: x1}}}\n"
    shop = Shop(tmp_path / "combined.yaml", server, monkeypatch, FILE + other)
    shop.run("set", "create", "x")
    shop.run("node", "add", "x", "x2")
    shop.settle("x")
    shop.connect(lost=("s1",))
    forks = {
        name: shop.query("s2" if name == "s" else "a2", "select tick_id from cascade.nodes where set = %s", name)[0][0]
        for name in ("s", "x")
    }
    words = ("--fenced-by", "powered off", "--reason", "fire", "--allow-loss")
    said = shop.run("failover", "s", "--dead", "s1", *words, str(forks["s"]))
    assert "note: database s1 has the root x1 of set x, too: cascade failover x --dead x1" in said
    assert "has the merge-leaf" not in said
    said = shop.run("apply", "--dead", "s1", "--set", "a", "--set", "s")
    assert "s1 does not answer and stays as it is" in said
    # A node of one set need not be one of the others, but it must be one.
    assert "it has no node" not in shop.run("plan", "a", "x", "--dead", "x1")
    assert "it has no node 's9'" in shop.run("plan", "--dead", "s9", code=3)
    shop.run("failover", "x", "--dead", "x1", *words, str(forks["x"]))
    found = shop.json("certificate", "list")
    assert sorted((row["set"], row["state"], row["pending"]) for row in found) == [
        ("s", "open", ["s1"]),
        ("x", "open", ["x1"]),
    ]
    assert "fire" in shop.run("certificate", "show", "s", "1")
    shop.connect()
    shop.run("resurrect", "s", "s1")
    assert shop.roles("s")["s1"] == ("branch", "s2")
    assert shop.json("certificate", "list", "s")[0]["state"] == "closed"


def test_a_combined_set_that_is_a_part_itself_is_handed_over_and_followed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = "  t: {combines: [s], nodes: {t1: {database: a2, role: combined-root}}}\n"
    shop = Shop(tmp_path / "combined.yaml", server, monkeypatch, FILE + above)
    shop.run("set", "create", "t")
    shop.run("node", "add", "s", "t1")
    assert [plan["set"] for plan in shop.json("plan")["plans"]] == ["a", "s", "t"]
    assert "t1 copies from s2" in shop.run("switchover", "s", "--to", "s2")
    assert shop.roles("s")["a2"] == ("merge-leaf", "s2")
    assert shop.run("plan").count("nothing to do") == 3
    shop.settle("s")
    shop.connect(lost=("s2",))
    [[fork]] = shop.query("s1", "select tick_id from cascade.nodes where set = 's'")
    shop.run("failover", "s", "--dead", "s2", "--fenced-by", "off", "--allow-loss", str(fork))
    assert shop.roles("s")["a2"] == ("merge-leaf", "s1")
    shop.connect()
    shop.run("resurrect", "s", "s2")
    assert shop.run("plan").count("nothing to do") == 3


def test_two_combined_roots_at_once_are_resolved(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.replace("      a2: {", f"{AT_S3}      a2: {{")
    shop = Shop(tmp_path / "combined.yaml", server, monkeypatch, text)
    [[tick]] = shop.query("s2", "select cascade.describe_set('s')->'tick'")
    for name, number in (("s2", 102), ("s3", 103)):
        uid = f"00000000-0000-0000-0000-000000000{number}"
        place = (tick["tick_id"], bytes.fromhex(tick["chain"].removeprefix("\\x")))
        shop.query(name, "select cascade.open_ballot('s', %s, %s, %s, %s, %s)", number, uid, name, *place)
        shop.query(name, "select cascade.promote('s', %s, %s, 'failover', %s, %s, '{}')", uid, number, *place)
    assert "it is split between the terms" in shop.run("plan", "s", code=3)
    keep = ("--keep", "00000000-0000-0000-0000-000000000102")
    assert "give up term 103 of s3" in shop.run("resolve", "s", *keep, "--dry-run")
    assert "told s1, s3, s2" in shop.run("resolve", "s", *keep)
    shop.run("topology", "export", str(shop.file), "--write")
    for name in ("s1", "s3"):
        shop.run("resurrect", "s", name)
    assert shop.roles("s") == {"s1": ("branch", "s2"), "s2": ("combined-root", None), "s3": ("branch", "s2")}
    # What followed from s1 being the combined-root does so no more, and the plan says it.
    assert shop.run("plan", "s").count("nothing to do") == 1
    assert "drop s1: it is no longer a member" in shop.run("plan", "a")


def test_derived_merge_leaves_are_shown_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "combined.yaml"
    file.write_text(FILE)

    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["topology", arguments[0], str(file), *arguments[1:]])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert ask("check") == "ok: 2 sets, 7 nodes, 5 databases\n"
    assert "├─> s1 merge-leaf  s1  into s (derived)" in ask("show")
    _, part = json.loads(ask("show", "--json"))["sets"]
    assert {node["node"]: node["is_derived"] for node in part["nodes"]} == {
        "a1": False, "a2": False, "s1": True, "s2": True,
    }  # fmt: skip
    assert ask("graph", "--format", "svg").count("into s (derived)") == 2
    assert ask("graph", "--format", "mermaid").count("-.->") == 2
