"""Operating a set from the command line: four databases, no daemons, one file.

The file names its databases by variables, so that a test can cut one off by giving it an address where nobody is.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.types.json import Jsonb

from cascade.cli import reigns
from cascade.cli.main import main
from cascade.dev import Server
from cascade.errors import TransientError
from cascade.node import heir, reign
from cascade.node.heir import Heir
from cascade.node.home import Home
from cascade.node.survey import EXCHANGE, Links, survey
from cascade.topology import load
from tests.cli.conftest import _database

FILE = """\
# our orders
version: 1
databases:
  d1: {dsn: "${SHOP_D1}"}
  d2: {dsn: "${SHOP_D2}"}
  d3: {dsn: "${SHOP_D3}"}
sets:
  orders:  # the only set
    nodes:
      s1: {database: d1, role: root}  # in Amsterdam
      s2: {database: d2, role: branch, provider: s1}
      s3: {database: d3, role: branch, provider: s1}
"""
NOBODY = "host=127.0.0.1 port=1 dbname=nobody connect_timeout=2"


class Shop:
    """The file, the databases, and an operator's hands."""

    def __init__(self, file: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self._patch = file, monkeypatch
        self.dsns = {f"s{number}": _database(server, "cli_template") for number in (1, 2, 3)}
        file.write_text(FILE)
        self.connect()
        monkeypatch.setattr(reign, "GRACE_S", 0.02)
        self.run("set", "create", "orders")
        for node in ("s2", "s3"):
            self.run("node", "add", "orders", node)
        self.insert("s1", 1, 2, 3)
        self.settle()

    def connect(self, *, lost: tuple[str, ...] = ()) -> None:
        """Have everybody reachable but those who are lost."""
        for node, dsn in self.dsns.items():
            self._patch.setenv(f"SHOP_D{node[1:]}", NOBODY if node in lost else dsn)

    def invoke(self, *arguments: str, stdin: str | None = None) -> Result:
        has_file = arguments[0] in ("topology",) or any(part.endswith(".json") for part in arguments[1:2])
        more = () if has_file else ("-f", str(self.file))
        return CliRunner().invoke(main, [*arguments, *more], env={"CASCADE_DEBUG": None}, input=stdin)

    def run(self, *arguments: str, code: int = 0) -> str:
        result = self.invoke(*arguments)
        assert result.exit_code == code, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        result = self.invoke(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def query(self, node: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsns[node], autocommit=True) as conn:
            found = conn.execute(query.encode(), arguments or None)
            return found.fetchall() if found.description else []

    def insert(self, node: str, *numbers: int) -> None:
        for number in numbers:
            self.query(node, "insert into queue.orders (type, payload) values ('t', %s)", json.dumps({"n": number}))

    def settle(self, *nodes: str) -> None:
        """Tick at the root, and have branches copy."""
        topology = load(self.file)
        root = topology.sets["orders"].root.name
        self.query(root, "select cascade.tick('orders')")

        async def copy() -> None:
            links = Links(topology, await survey(topology, "orders"))
            for node in nodes or [name for name in topology.sets["orders"].nodes if name != root]:
                await reign.copy_some(links, node)

        asyncio.run(copy())

    def heir(self, node: str) -> None:
        """Have a branch copy, and take a turn of the service that reports."""
        self.settle(node)

        async def turn() -> None:
            topology = load(self.file)
            home = Links(topology, await survey(topology, "orders")).home(node)
            local = await home.connect("heir")
            try:
                await Heir(home).turn(local)
            finally:
                local.pgconn.finish()

        asyncio.run(turn())

    def numbers(self, node: str) -> list[int]:
        query = "select (payload->>'n')::int from queue.orders where origin is distinct from '.cascade' order by id"
        return [row[0] for row in self.query(node, query)]


@pytest.fixture
def shop(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path / "orders.yaml", server, monkeypatch)


def test_a_set_as_the_file_says_needs_nothing(shop: Shop) -> None:
    assert "nothing to do" in shop.run("plan")
    assert shop.run("apply").count("nothing to do") == 1
    assert shop.file.read_text() == FILE
    assert shop.json("plan")["plans"][0]["steps"] == []


def test_a_switchover_is_shown_then_done_and_the_file_keeps_its_comments(shop: Shop) -> None:
    shown = shop.run("switchover", "orders", "--to", "s2", "--dry-run")
    assert "now:\norders\n  s1 root" in shown and "after:\norders\n  s2 root" in shown and "fence s1" in shown
    assert shop.file.read_text() == FILE and shop.query("s2", "select role from cascade.nodes") == [("branch",)]
    done = shop.json("switchover", "orders", "--to", "s2", "--reason", "maintenance")
    assert done["kind"] == "switchover" and 0 < done["pause_seconds"] < 10 and done["file_changed"]
    assert done["revision"] == 1
    text = shop.file.read_text()
    expected = FILE.replace("s1: {database: d1, role: root}", "s1: {database: d1, role: branch, provider: s2}")
    expected = expected.replace("s2: {database: d2, role: branch, provider: s1}", "s2: {database: d2, role: root}")
    expected = expected.replace("role: branch, provider: s1}", "role: branch, provider: s2}")
    assert text == expected.replace("# the only set\n", "# the only set\n    revision: 1\n")
    shop.insert("s2", 4)
    assert shop.numbers("s2") == [1, 2, 3, 4]
    assert "nothing to do" in shop.run("switchover", "orders", "--to", "s2")
    terms = shop.json("history", "orders")
    assert [(term["node"], term["state"], term["cause"]) for term in terms] == [
        ("s1", "over", "created"),
        ("s2", "open", "switchover"),
    ]
    assert "switchover" in shop.run("history", "orders")
    journal = shop.json("history", "orders", "--journal")
    steps = [(line["node"], line["step"]) for line in journal]
    taken = [("s1", "fence"), ("s1", "offer"), ("s1", "taken"), ("s2", "open term"), ("s1", "demote")]
    assert [line for line in steps if line in taken] == taken, "of all databases, by time"
    assert "to s2, from s1, by_file False" in shop.run("history", "orders", "--journal"), "s3 was switched"


def test_editing_the_file_and_applying_it_is_the_switchover(shop: Shop) -> None:
    text = FILE.replace("s1: {database: d1, role: root}", "s1: {database: d1, role: branch, provider: s3}")
    shop.file.write_text(
        text.replace("s3: {database: d3, role: branch, provider: s1}", "s3: {database: d3, role: root}")
    )
    assert "done; writers waited" in shop.run("apply", "--yes")
    assert shop.query("s3", "select role from cascade.nodes") == [("root",)]
    assert "revision: 1" in shop.file.read_text()


def test_a_saved_plan_is_carried_out_once(shop: Shop, tmp_path: Path) -> None:
    shop.file.write_text(
        FILE.replace("s3: {database: d3, role: branch, provider: s1}", "s3: {database: d3, role: branch, provider: s2}")
    )
    saved = tmp_path / "plan.json"
    shop.run("plan", "--out", str(saved))
    assert "s3 copies from s2" in shop.run("apply", str(saved), "--dry-run")
    assert shop.query("s3", "select provider from cascade.nodes") == [("s1",)]
    shop.run("apply", str(saved))
    assert shop.query("s3", "select provider from cascade.nodes") == [("s2",)]
    assert "revision: 1" in shop.file.read_text()
    assert "the plan is stale" in shop.run("apply", str(saved), code=3)
    saved.write_text("{}")
    assert "is no plan" in shop.run("apply", str(saved), code=2)


def test_a_lost_root_from_the_first_word_to_the_closed_books(shop: Shop) -> None:
    shop.insert("s1", 4, 5)
    shop.query("s1", "select cascade.tick('orders')")
    shop.insert("s1", 6)
    shop.connect(lost=("s1",))
    refused = shop.run("failover", "orders", "--dead", "s1", code=3)
    [fork] = shop.query("s2", "select tick_id from cascade.nodes")[0]
    assert f"loss: what the old root took after tick {fork}" in refused
    assert f"--allow-loss {fork}" in refused and "--fenced-by" in refused
    assert shop.file.read_text() == FILE
    words = ("--fenced-by", "powered off", "--allow-loss", str(fork), "--reason", "fire")
    assert "done" in shop.run("failover", "orders", "--dead", "s1", *words)
    assert "s1: {database: d1, role: branch, provider: s2}  # in Amsterdam" in shop.file.read_text()
    shop.insert("s2", 7)
    [certificate] = shop.json("certificate", "list")
    assert (certificate["state"], certificate["pending"], certificate["fork_tick"]) == ("open", ["s1"], str(fork))

    shop.insert("s1", 8)  # it has not heard yet
    shop.connect()
    assert "resurrect s1: its tail goes to quarantine" in shop.run("resurrect", "orders", "s1", "--dry-run")
    assert "set aside" in shop.run("resurrect", "orders", "s1")
    [held] = [row for row in shop.json("quarantine", "list", "orders") if row["state"] == "held"]
    assert (held["node"], held["events"]) == ("s1", 4)
    events = shop.json("quarantine", "show", "orders", "s1", "--state", "held")
    assert [json.loads(event["payload"])["n"] for event in events] == [4, 5, 6, 8]
    assert "held" in shop.run("quarantine", "list", "orders")

    assert "1 events would be discarded" in shop.run(
        "quarantine", "discard", "orders", "s1", "--id", events[3]["id"], "--dry-run"
    )
    assert "1 events are discarded" in shop.run("quarantine", "discard", "orders", "s1", "--id", events[3]["id"])
    assert shop.json("quarantine", "republish", "orders", "s1")["events"] == 3
    assert shop.json("quarantine", "republish", "orders", "s1")["events"] == 0
    assert shop.numbers("s2") == [1, 2, 3, 7, 4, 5, 6]
    [certificate] = shop.json("certificate", "list", "orders")
    counts = {key: certificate[key] for key in ("state", "tail", "republished", "discarded", "duplicates", "held")}
    assert counts == {"state": "closed", "tail": 4, "republished": 3, "discarded": 1, "duplicates": 0, "held": 0}
    assert "closed" in shop.run("certificate", "show", "orders", "1")
    assert "has no certificate 2" in shop.run("certificate", "show", "orders", "2", code=1)
    shop.settle()
    assert shop.numbers("s1") == shop.numbers("s2") == shop.numbers("s3")


def test_a_database_that_never_returns_is_declared_destroyed(shop: Shop) -> None:
    shop.connect(lost=("s1",))
    [fork] = shop.query("s2", "select tick_id from cascade.nodes")[0]
    shop.run("failover", "orders", "--dead", "s1", "--to", "s3", "--fenced-by", "gone", "--allow-loss", str(fork))
    words = ("--destroyed", "s1", "--reason", "shredded")
    assert "does not wait for s2" in shop.run(
        "certificate", "close", "orders", "1", "--destroyed", "s2", "--reason", "x", code=2
    )
    assert "certificate 1 is closed" in shop.run("certificate", "close", "orders", "1", *words)


def test_a_lost_branch_is_left(shop: Shop) -> None:
    shop.file.write_text(
        FILE.replace("s3: {database: d3, role: branch, provider: s1}", "s3: {database: d3, role: branch, provider: s2}")
    )
    shop.run("apply")
    shop.connect(lost=("s2",))
    assert "s3 copies from s1" in shop.run("failover", "orders", "--dead", "s2")
    assert shop.query("s3", "select provider from cascade.nodes") == [("s1",)]
    assert "s3: {database: d3, role: branch, provider: s1}" in shop.file.read_text()


def test_an_old_file_is_refused_and_can_be_brought_up_to_date(shop: Shop) -> None:
    shop.run("switchover", "orders", "--to", "s2")
    now = shop.file.read_text()
    shop.file.write_text(FILE)
    refused = shop.run("apply", code=3)
    assert "the file is based on no revision, the databases have revision 1: s1 has role branch" in refused
    assert "nothing to do" in shop.run("switchover", "orders", "--to", "s2"), (
        "a resumed one may still have the old file"
    )
    assert shop.file.read_text() == now
    shop.file.write_text(FILE)
    assert shop.run("topology", "export", str(shop.file)) == now
    shop.run("topology", "export", str(shop.file), "--write")
    assert shop.file.read_text() == now
    assert "nothing to do" in shop.run("plan")


KEEP = ("--keep", "00000000-0000-0000-0000-000000000102", "--reason", "it has more")


def split(shop: Shop) -> None:
    """Have s2 and s3 be promoted at once, from the same tick; s3 takes an event."""
    [tick] = shop.query("s2", "select cascade.describe_set('orders')->'tick'")
    for node, number in (("s2", 102), ("s3", 103)):
        uid = f"00000000-0000-0000-0000-000000000{number}"
        place = (tick[0]["tick_id"], bytes.fromhex(tick[0]["chain"].removeprefix("\\x")))
        shop.query(node, "select cascade.open_ballot('orders', %s, %s, %s, %s, %s)", number, uid, node, *place)
        shop.query(node, "select cascade.promote('orders', %s, %s, 'failover', %s, %s, '{}')", uid, number, *place)
    shop.insert("s3", 30)


def meet(shop: Shop) -> None:
    """Have both hear of one another, and the first root of one of them: all fence themselves."""
    for node, other, cause in (("s2", "s3", "conflict"), ("s3", "s2", "conflict"), ("s1", "s2", "over")):
        [[terms]] = shop.query(other, "select cascade.describe_set('orders')->'terms'")
        [[found]] = shop.query(node, "select cascade.stand_down('orders', %s)", Jsonb(terms))
        assert found["cause"] == cause
        shop.query(node, "select cascade.complete_fence('orders')")


def writers(shop: Shop) -> list[str]:
    """Return the nodes that take an insert."""
    found = []
    for node in shop.dsns:
        with suppress(psycopg.Error):
            shop.insert(node, 40)
            found.append(node)
    return found


def test_two_roots_at_once_are_resolved_by_an_operator(shop: Shop) -> None:
    split(shop)
    assert "it is split between the terms" in shop.run("plan", code=3)
    assert [term["state"] for term in shop.json("history", "orders")] == ["over", "open", "open"]
    assert "give up term 103 of s3" in shop.run("resolve", "orders", *KEEP, "--dry-run")
    assert "no such term" in shop.run(
        "resolve", "orders", "--keep", "00000000-0000-0000-0000-000000000999", "--reason", "x", code=2
    )
    assert "told s1, s3, s2" in shop.run("resolve", "orders", *KEEP)
    assert "nothing to resolve" in shop.run("resolve", "orders", *KEEP)
    assert [term["state"] for term in shop.json("history", "orders")] == ["over", "open", "given up"]
    shop.run("topology", "export", str(shop.file), "--write")
    assert "resurrect s3" in shop.run("resurrect", "orders", "s3")
    assert shop.query("s3", "select role, provider from cascade.nodes") == [("branch", "s2")]
    [held] = [row for row in shop.json("quarantine", "list", "orders") if row["state"] == "held"]
    assert (held["node"], held["events"]) == ("s3", 1)


@pytest.mark.parametrize("has_reigned", [False, True])
def test_an_heir_that_took_the_reign_and_was_lost_is_given_up(
    shop: Shop, has_reigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Home.call

    async def call(home: Home, conn: Any, query: Any, *arguments: Any) -> Any:
        if query == heir.PROMOTE:
            raise TransientError("its database is gone")
        return await whole(home, conn, query, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Home, "call", call)
        patch.setattr(reign, "TAKEN_S", 0.2)
        told = shop.run("switchover", "orders", "--to", "s2", "--wait", "0.2", code=1)
    assert "s2 has taken the reign from s1, and does not reign" in told
    assert "cascade failover orders --dead s2 --dry-run" in told
    if has_reigned:

        async def reign_on() -> None:
            home = Home(set="orders", dsn=shop.dsns["s2"], topology=lambda: load(shop.file))
            local = await home.connect("heir")
            await heir.Heir(home).turn(local)
            local.pgconn.finish()

        asyncio.run(reign_on())
        shop.insert("s2", 20)
        shop.query("s2", "select cascade.tick('orders')")

    shop.connect(lost=("s2",))
    assert "if it is lost: cascade failover orders --dead s2" in shop.run("plan", code=3)
    [[closing]] = shop.query("s1", "select tick_id from cascade.nodes")
    accepting = ("failover", "orders", "--dead", "s2", "--fenced-by", "powered off", "--allow-loss", str(closing))
    shop.run(*accepting)
    shop.insert("s1", 4)
    assert shop.query("s1", "select state, pending from cascade.certificates") == [("open", ["s2"])]
    assert "nothing to do" in shop.run("plan")

    shop.connect()
    if has_reigned:
        for node, other in (("s1", "s2"), ("s2", "s1")):
            [[terms]] = shop.query(other, "select cascade.describe_set('orders')->'terms'")
            shop.query(node, "select cascade.stand_down('orders', %s)", Jsonb(terms))
            shop.query(node, "select cascade.complete_fence('orders')")
        [kept] = [term["uid"] for term in shop.json("history", "orders") if term["cause"] == "failover"]
        shop.run("resolve", "orders", "--keep", kept)
        shop.run("resurrect", "orders", "s2")
        assert shop.query("s1", "select state, tail, held from cascade.certificates") == [("closed", 1, 1)]
    shop.settle()
    assert shop.numbers("s1") == shop.numbers("s2") == shop.numbers("s3") == [1, 2, 3, 4]


@pytest.mark.parametrize("before", ["EXCHANGE", "RESOLVE"])
@pytest.mark.parametrize("told", range(3))
def test_resolving_goes_on_after_the_tool_was_killed(
    shop: Shop, told: int, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before it has told the first node, between two of them, or in the middle of one."""
    split(shop)
    meet(shop)
    whole, left = Links.call, [told]
    deadly = {"EXCHANGE": EXCHANGE, "RESOLVE": reigns.RESOLVE}[before]

    async def call(links: Links, node: str, query: Any, *arguments: Any, **more: Any) -> Any:
        if query == deadly:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return await whole(links, node, query, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Links, "call", call)
        assert shop.invoke("resolve", "orders", *KEEP).exit_code == 130
    # The losing roots are told first, so that there are never two writers.
    assert writers(shop) == []
    if told > 0:
        # The file says s1 still; what has to be done first is said all the same.
        assert "--keep 00000000-0000-0000-0000-000000000102" in shop.run("plan", code=3)
    assert "told s1, s3, s2" in shop.run("resolve", "orders", *KEEP)
    assert writers(shop) == ["s2"]
    [pending] = shop.query("s2", "select pending from cascade.certificates")
    assert pending == (["s1", "s3"],), "what the term that was given up had is accounted for"
    assert "nothing to resolve" in shop.run("resolve", "orders", *KEEP)


@pytest.mark.parametrize("lost", ["s1", "s2", "s3"])
def test_a_node_that_did_not_answer_is_told_later(shop: Shop, lost: str) -> None:
    split(shop)
    meet(shop)
    shop.connect(lost=(lost,))
    shop.run("resolve", "orders", *KEEP)
    shop.connect()
    assert "told" in shop.run("resolve", "orders", *KEEP)
    assert writers(shop) == ["s2"]
    assert "nothing to resolve" in shop.run("resolve", "orders", *KEEP)


@pytest.mark.parametrize("was_back", [False, True])
def test_what_the_kept_log_has_is_no_event_to_publish_again(shop: Shop, was_back: bool) -> None:
    """s3 reigns below s2, and s1 is resurrected there; then an operator keeps s2, which has event 4."""
    shop.insert("s1", 4)
    shop.settle("s2")
    shop.insert("s1", 5)
    for node, number in (("s2", 102), ("s3", 103)):
        uid = f"00000000-0000-0000-0000-000000000{number}"
        [tick] = shop.query(node, "select cascade.describe_set('orders')->'tick'")[0]
        fork = (tick["tick_id"], bytes.fromhex(tick["chain"].removeprefix("\\x")))
        shop.query(node, "select cascade.open_ballot('orders', %s, %s, %s, %s, %s)", number, uid, node, *fork)
        shop.query(node, "select cascade.promote('orders', %s, %s, 'failover', %s, %s, '{}')", uid, number, *fork)
        if node == "s2":
            shop.connect(lost=("s2",))
    text = FILE.replace("s3: {database: d3, role: branch, provider: s1}", "s3: {database: d3, role: root}")
    s1 = "s1: {database: d1, role: root}"
    shop.file.write_text(text.replace(s1, "s1: {database: d1, role: branch, provider: s3}"))
    assert "resurrect s1" in shop.run("resurrect", "orders", "s1")
    if was_back:
        assert shop.json("quarantine", "republish", "orders", "s1")["events"] == 2
    shop.connect()
    shop.run("plan", code=3)
    shop.run("resolve", "orders", "--keep", "00000000-0000-0000-0000-000000000102", "--reason", "it has more")
    shop.run("topology", "export", str(shop.file), "--write")
    assert "resurrect s3" in shop.run("resurrect", "orders", "s3")
    query = "select state, new_id = id from cascade.read_quarantine('orders') where state <> 'control'"
    assert shop.query("s3", query) == ([("duplicate", False), ("held", None)] if was_back else [])
    done = shop.json("quarantine", "republish", "orders", "s3" if was_back else "s1")
    assert (done["events"], done["duplicates"]) == (1, 0 if was_back else 1)
    assert shop.numbers("s2") == [1, 2, 3, 4, 5]
    assert "0 events are republished" in shop.run("quarantine", "republish", "orders", "s1")
    shop.settle("s3")
    shop.heir("s1")
    assert shop.query("s1", query) == [("duplicate", True), ("republished", False)]
    [certificate] = shop.json("certificate", "list", "orders")
    counts = [certificate[key] for key in ("state", "tail", "republished", "discarded", "duplicates", "held")]
    assert counts == ["closed", *([3, 2, 0, 1, 0] if was_back else [1, 1, 0, 0, 0])]


def test_somebody_at_a_terminal_is_asked(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("cascade.cli.operate.sys", terminal)
    assert shop.invoke("switchover", "orders", "--to", "s2", stdin="n\n").exit_code == 130
    assert shop.query("s2", "select role from cascade.nodes") == [("branch",)]
    result = shop.invoke("switchover", "orders", "--to", "s2", stdin="y\n")
    assert result.exit_code == 0 and "switchover of set orders: go ahead?" in result.output
    assert shop.query("s2", "select role from cascade.nodes") == [("root",)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("switchover", "orders", "--to", "s9"), 2, "no node 's9'"),
        (("switchover", "oders", "--to", "s2"), 2, "there is no set 'oders'"),
        (("failover", "orders", "--dead", "s1"), 3, "s1 answers, and its term is open"),
        (("plan", "oders"), 2, "there is no set 'oders'"),
        (("resurrect", "orders", "s1"), 2, "s1 is the root in the file"),
        (("quarantine", "discard", "orders", "s1"), 2, "name events with --id, or pass --all"),
        (("quarantine", "list", "orders"), 0, "nothing is in quarantine"),
        (("certificate", "list"), 0, "there are no certificates"),
    ],
)
def test_what_makes_no_sense_is_said(shop: Shop, arguments: tuple[str, ...], code: int, told: str) -> None:
    assert told in shop.run(*arguments, code=code)
    assert shop.file.read_text() == FILE
