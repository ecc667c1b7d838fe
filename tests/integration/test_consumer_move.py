"""cascade consumer move: planned, interrupted anywhere, repeated, and refused; every event comes once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cascade.cli.main import main
from cascade.sync import Client
from tests.fixtures.backend import Backend
from tests.fixtures.nodes import Node, Nodes

EVENTS = [f"{number}{letter}" for number in range(3) for letter in "ab"]


class Cascade:
    """A root and two branches with events, a consumer `c` at s2, and a topology file."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self.nodes = nodes
        self.s1, self.s2 = nodes.line()
        self.s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
        for number in range(3):
            self.s1.insert(f"{number}a", f"{number}b")
            nodes.settle()
        self.s3 = nodes.add("s3", self.s1)
        nodes.settle()
        self.path = folder / "q.yaml"
        databases = "".join(f"  {node.node}: {{dsn: {json.dumps(bare(node.dsn))}}}\n" for node in nodes.made.values())
        self.path.write_text(
            f"version: 1\ndatabases:\n{databases}sets:\n  q:\n    nodes:\n"
            "      s1: {database: s1, role: root}\n"
            "      s2: {database: s2, role: branch, provider: s1}\n"
            "      s3: {database: s3, role: branch, provider: s1}\n"
        )

    def run(self, *arguments: str, source: str = "s2", to: str = "s3") -> Result:
        """Run the command in this process."""
        words = ["consumer", "move", "q", "c", "--from", source, "--to", to, "-f", str(self.path), *arguments]
        return CliRunner().invoke(main, words, env={"CASCADE_DSN": None, "CASCADE_DEBUG": None})

    def move(self, *arguments: str, **nodes: str) -> dict[str, Any]:
        """Run it, see it succeed, and return what it says to programs."""
        result = self.run(*arguments, "--json", **nodes)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def where(self) -> list[str]:
        """Return the nodes that have the consumer."""
        return [
            node.node
            for node in self.nodes.made.values()
            if node.value("select count(*) from cascade_internal.subscription where consumer = 'c'")
        ]


def bare(dsn: str) -> str:
    """Return a DSN without its password, as files have it."""
    return make_conninfo("", **{name: value for name, value in conninfo_to_dict(dsn).items() if name != "password"})


@pytest.fixture
def carried(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cascade]:
    monkeypatch.setenv("PGPASSWORD", "test")
    with Nodes.fresh(backend) as nodes:
        yield Cascade(nodes, tmp_path)


def read(node: Node, at_least: int) -> list[Any]:
    """Read and finish batches one by one until so many events have come."""
    found: list[Any] = []
    while len(found) < at_least:
        batch = node.next("c")
        assert batch is not None
        found += node.events(batch[0])
        node.finish(batch[0])
    return found


def test_a_consumer_goes_on_where_it_was(carried: Cascade) -> None:
    seen = read(carried.s2, 2)
    moved = carried.move()
    assert (moved["from"], moved["to"], moved["state"], moved["missing_roles"]) == ("s2", "s3", "moved", [])
    assert carried.where() == ["s3"]
    assert seen + carried.s3.drain() == EVENTS
    again = carried.move()
    assert again == moved | {"retries": 0}, "run again, it finds everything done"
    assert carried.s3.drain() == []


def test_it_says_what_it_does_and_would_do(carried: Cascade) -> None:
    planned = carried.run("--dry-run")
    assert planned.exit_code == 0, planned.output
    assert carried.where() == ["s2"]
    assert "stop consumer c at node s2" in planned.stdout and "would go on at node s3" in planned.stdout
    assert carried.move("--dry-run")["state"] == "at home"
    done = carried.run()
    assert done.stdout.splitlines()[:-1] == planned.stdout.splitlines()[:-1]
    assert "goes on at node s3" in done.stdout
    assert "nothing: consumer c has left node s2" in carried.run().stdout


class KilledError(BaseException):
    """The process is gone; nothing after this line runs."""


@pytest.mark.parametrize("calls", range(1, 6))
def test_interrupted_after_any_statement_it_is_run_again(
    carried: Cascade, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Each statement commits by itself, so this is what kill -9 leaves behind."""
    seen = read(carried.s2, 2)
    original, left = Client.call, [calls]

    def call(self: Client, query: Any, *arguments: object) -> object:
        found = original(self, query, *arguments)
        left[0] -= 1
        if left[0] == 0:
            raise KilledError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Client, "call", call)
        with pytest.raises(KilledError):
            CliRunner().invoke(
                main, ["consumer", "move", "q", "c", "--from", "s2", "--to", "s3", "-f", str(carried.path)],
                catch_exceptions=False,
            )  # fmt: skip
    assert carried.where() in (["s2"], ["s2", "s3"], ["s3"])
    if carried.where() == ["s2", "s3"]:
        seen += read(carried.s3, 2)
    carried.move()
    assert carried.where() == ["s3"]
    assert seen + carried.s3.drain() == EVENTS


def test_a_move_that_cannot_end_well_is_not_begun(carried: Cascade) -> None:
    carried.s3.rows("select cascade.subscribe('q', 'c')")
    result = carried.run()
    assert result.exit_code == 1 and "has a consumer" in result.stderr
    assert carried.s2.drain() == EVENTS, "it was never stopped"


@pytest.mark.parametrize("killed", [False, True], ids=["at once", "after it was killed"])
def test_a_consumer_that_the_new_node_cannot_take_goes_on_where_it_was(
    carried: Cascade, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The name is taken between the look and the step."""
    original = Client.call

    def call(self: Client, query: Any, *arguments: object) -> object:
        if "move_consumer" in query and arguments[-1] is False:
            carried.s3.rows("select cascade.subscribe('q', 'c')")
        found = original(self, query, *arguments)
        if killed and "refuse_consumer" in query:
            raise KilledError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Client, "call", call)
        if killed:
            with pytest.raises(KilledError):
                carried.run()
    with monkeypatch.context() as patch:
        if not killed:
            patch.setattr(Client, "call", call)
        result = carried.run()
    assert result.exit_code == 1 and "consumer c goes on at node s2" in result.stderr
    assert carried.s2.drain() == EVENTS


def test_readers_are_waited_for_only_so_long(carried: Cascade) -> None:
    batch = carried.s2.next("c", worker="w")
    assert batch is not None
    result = carried.run("--wait", "0.2")
    assert result.exit_code == 1 and "is busy" in result.stderr
    finishing = threading.Timer(0.3, carried.s2.finish, (batch[0],))
    finishing.start()
    assert carried.move("--wait", "20")["state"] == "moved"
    finishing.join()
    assert carried.s3.drain() == EVENTS[batch[3] :]


def test_the_new_node_is_waited_for(carried: Cascade) -> None:
    carried.s1.insert("new")
    carried.s1.tick()
    carried.s2.catch_up()
    carried.s2.drain()
    result = carried.run("--wait", "0")
    assert result.exit_code == 1 and "has not come to tick" in result.stderr
    assert carried.where() == ["s2"]
    copying = threading.Timer(0.3, carried.s3.catch_up)
    copying.start()
    carried.move("--wait", "20")
    copying.join()
    assert carried.where() == ["s3"]


def test_nodes_that_the_file_does_not_have_are_refused(carried: Cascade) -> None:
    for nodes in ({"source": "s8"}, {"to": "s8"}):
        result = carried.run(**nodes)
        assert result.exit_code == 2 and "s8" in result.stderr


def test_moving_while_events_flow_skips_and_repeats_nothing(carried: Cascade) -> None:
    """Back and forth between three nodes, reading a little at each."""
    stop = threading.Event()
    sent = list(EVENTS)
    errors: list[BaseException] = []

    def flow() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                sent.append(str(number))
                carried.s1.insert(str(number))
                carried.nodes.settle()
        except BaseException as error:
            errors.append(error)

    seen: list[Any] = []
    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        here = carried.s2
        for target in (carried.s1, carried.s3, carried.s2, carried.s1, carried.s2):
            seen += read_some(here)
            carried.move("--wait", "20", source=here.node, to=target.node)
            here = target
    finally:
        stop.set()
        flowing.join()
    assert errors == []
    carried.nodes.settle()
    seen += read_some(here, everything=True)
    assert seen == sent


def read_some(node: Node, *, everything: bool = False) -> list[Any]:
    """Read a few batches, on a connection of this thread's own."""
    conn = node.connect()
    found: list[Any] = []
    turns = 0
    while everything or turns < 3:
        turns += 1
        row = conn.execute("select batch_id from cascade.next_batch('q', 'c', 2)").fetchone()
        if row is None:
            break
        found += [
            event for (event,) in conn.execute("select payload from cascade.batch_events(%s)", (row[0],)).fetchall()
        ]
        conn.execute("select cascade.finish_batch(%s)", (row[0],))
    conn.close()
    return found
