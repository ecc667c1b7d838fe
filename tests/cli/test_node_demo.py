"""cascade node run and cascade demo, as real processes."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cascade.cli.demo.combined.proof import Proof, compare
from cascade.cli.node import JsonLines
from cascade.sync import Client
from tests.cli.conftest import invoke, spawn


@pytest.mark.parametrize("address", ["x", "1:2:3", "host:", "host:99999", "host:-1", "host:http"])
def test_an_address_that_is_none_is_bad_usage(address: str) -> None:
    result = invoke("node", "run", "--dsn", "host=127.0.0.1 port=1", "--health", address)
    assert result.exit_code == 2 and "HOST:PORT" in result.stderr


def test_a_record_is_one_line_of_json_with_its_error_and_extras() -> None:
    try:
        raise ValueError("broken\nline")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("cascade.node", logging.WARNING, __file__, 1, "queue %s", ("orders",), info)
    record.queue = "orders"
    text = JsonLines().format(record)
    found = json.loads(text)
    assert "\n" not in text and found["message"] == "queue orders" and found["queue"] == "orders"
    assert found["level"] == "warning" and "broken" in found["error"]


def test_a_node_installs_ticks_logs_json_and_ends_with_sigterm(bare_dsn: str) -> None:
    with spawn(bare_dsn, "node", "run", "--log-format", "json", "--health", "127.0.0.1:0") as process:
        assert process.stderr is not None
        said = [json.loads(process.stderr.readline())["message"]]
        while not said[-1].startswith("serving"):
            said.append(json.loads(process.stderr.readline())["message"])
        with Client(bare_dsn) as client:
            client.create_queue("orders")
            assert client.queue("orders").publish(1) == 1
            result = invoke("queue", "tail", "orders", "--from", "earliest", "-n", "1", "--json", dsn=bare_dsn)
            assert json.loads(result.stdout)["payload"] == 1
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 0
    assert all(set(json.loads(line)) >= {"time", "level", "logger", "message"} for line in rest)


def test_a_node_kept_by_a_parent_ends_when_the_parent_does(dsn: str) -> None:
    with spawn(dsn, "node", "run", "--until-eof", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stdin is not None
        process.stderr.readline()
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_demo_proves_that_every_node_has_the_same() -> None:
    with spawn(None, "demo", "--act", "1", "--seconds", "8", "--json") as process:
        stdout, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    proof = json.loads(stdout)
    assert proof["proven"] is True
    assert [(row["node"], row["role"]) for row in proof["nodes"]] == [
        ("s1", "root"),
        ("s2", "branch"),
        ("s3", "branch"),
        ("s4", "leaf"),
    ]
    assert len({row["digest"] for row in proof["nodes"] if row["role"] != "leaf"}) == 1
    for row in proof["nodes"]:
        assert row["committed"] == row["handled"] > 100
    assert "s4 copies from s2 now, no longer from s3" in stderr
    assert "the daemon of s2 was killed (kill -9)" in stderr


@pytest.mark.timeout(400)
def test_a_demo_loses_its_root_and_closes_the_books() -> None:
    with spawn(None, "demo", "--act", "2", "--rate", "60", "--json") as process:
        stdout, stderr = process.communicate(timeout=380)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert found["proven"] is True
    [act] = found["acts"]
    roles = {row["node"]: row["role"] for row in act["nodes"]}
    assert roles["s1"] == "branch" and sorted(roles.values()) == ["branch", "branch", "leaf", "root"]
    assert len({row["digest"] for row in act["nodes"] if row["role"] != "leaf"}) == 1
    books, certificate = act["books"], act["certificate"]
    assert books["unaccounted"] == books["invented"] == books["doubled"] == 0
    assert books["in_log"] == books["acknowledged"] + books["unanswered"]
    assert certificate["state"] == "closed" and certificate["held"] == 0
    assert certificate["tail"] == certificate["republished"] == books["republished"] > 10
    for line in (
        "if the root died now: at most",
        "the root s1 is lost",
        "--allow-loss",
        "stands down",
        "# Berlin",
        "takes orders",
    ):
        assert line in stderr, line


def test_a_demo_merges_four_queues_and_proves_that_their_sum_is_whole() -> None:
    with spawn(None, "demo", "--combined", "--act", "1", "--seconds", "6", "--rate", "80", "--json") as process:
        stdout, stderr = process.communicate(timeout=150)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert found["proven"] is True
    check_sum(found["nodes"])
    assert "the daemon of s1 was killed (kill -9)" in stderr and "<──┘" in stderr


@pytest.mark.timeout(400)
def test_a_demo_loses_its_combined_root_and_the_sum_is_whole() -> None:
    with spawn(None, "demo", "--combined", "--act", "2", "--rate", "40", "--json") as process:
        stdout, stderr = process.communicate(timeout=380)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    [act] = found["acts"]
    assert found["proven"] is act["proven"] is True and act["books"] == {"unaccounted": 0, "invented": 0}
    check_sum(act["nodes"])
    roles = {row["node"]: row["role"] for row in act["nodes"] if row["role"] != "root"}
    assert roles == {"s1": "branch", "s2": "combined-root", "s3": "branch"}
    for line in (
        "set s: s2 can be promoted, it follows every part",
        "s1 is gone",
        "s2 merges",
        "set aside",
        "set s: s1 can be promoted, it follows every part",
    ):
        assert line in stderr, line


def check_sum(rows: list[dict[str, Any]]) -> None:
    """See that every part has a row at its root and at each carrier of the sum, and that they are equal."""
    for part in ("a", "b", "c", "d"):
        [root, *others] = [row for row in rows if row["part"] == part]
        assert (root["node"], root["role"]) == (f"{part}1", "root") and root["events"] >= root["committed"] > 10
        assert [row["node"] for row in others] == ["s1", "s2", "s3"]
        for row in others:
            assert row["is_equal"] and row["digest"] == root["digest"]
            assert row["handled"] == row["events"] == root["events"] and row["twice"] == row["missing"] == 0


def test_a_sum_that_is_not_whole_is_not_proven() -> None:
    whole = {"events": 3, "committed": 3, "digest": "d", "ids": "i"}
    merged = {"events": 3, "twice": 0, "digest": "d"}
    handled = {"handled": 3, "ids": "i"}
    assert compare("a", "s2", "branch", whole, merged, handled)["is_equal"]
    for wrong in ({"digest": "other order"}, {"twice": 1, "events": 4}, {"digest": "less", "events": 2}):
        assert not compare("a", "s2", "branch", whole, merged | wrong, handled)["is_equal"]
    assert compare("a", "s2", "branch", whole, merged | {"events": 2}, handled)["missing"] == 1
    assert not compare("a", "s2", "branch", whole, merged, {"handled": 2, "ids": "j"})["is_equal"]
    assert not compare("a", "s2", "branch", whole, {}, {})["is_equal"], "nothing of the part is there"
    row = compare("a", "s2", "branch", whole, merged, handled)
    assert Proof(act=1, rows=[row], unaccounted=0, invented=0).is_proven
    for found in ({"unaccounted": 1, "invented": 0}, {"unaccounted": 0, "invented": 1}):
        assert not Proof(act=1, rows=[row], **found).is_proven


def test_a_demo_ends_by_ctrl_c_and_leaves_its_servers_where_it_was_told(tmp_path: Path) -> None:
    directory = str(tmp_path / "demo")
    with spawn(None, "demo", "--rate", "50", "--dir", directory) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert stdout.count("✓ ") >= 4 and "Every node has the same." in stdout
    result = invoke("demo", "--seconds", "1", "--dir", directory)
    assert result.exit_code == 1 and "cascade dev down --remove" in result.stderr
    assert invoke("dev", "down", "--remove", "--dir", directory).exit_code == 0
