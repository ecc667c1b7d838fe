"""cascade dev, as people and programs use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from cascade.cli.dev import dev
from cascade.dev import Cluster
from cascade.dev.processes import wait_until
from cascade.errors import ConfigError, NotFoundError, ServerError

DEV = (sys.executable, "-c", "from cascade.cli.dev import dev; dev()")


def run(*arguments: str) -> Result:
    """Run a command; an error of Cascade's is raised, for it is main() that prints those."""
    return CliRunner().invoke(dev, arguments, catch_exceptions=False)


def run_json(*arguments: str) -> Any:
    """Run a command with --json and return what it printed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.fixture
def running(cluster_dir: Path, templates: Path) -> Iterator[Path]:
    """The directory of a running cluster of one node."""
    with Cluster(cluster_dir, templates=templates, settings={"fsync": "off"}):
        yield cluster_dir


def test_up_status_down_and_remove_tell_the_same_story(cluster_dir: Path) -> None:
    at = ("--dir", str(cluster_dir))
    made = run_json("up", "--nodes", "2", "--set", "fsync=off", *at)
    assert [node["state"] for node in made["nodes"]] == ["running", "running"]
    assert set(made["nodes"][0]) == {"node", "port", "version", "state", "dsn"}
    assert run_json("status", *at) == made
    assert run_json("up", "--nodes", "1", *at) == made
    for node in made["nodes"]:
        with psycopg.connect(node["dsn"]) as connection:
            assert connection.execute("show fsync").fetchone() == ("off",)
    stopped = run_json("down", *at)
    assert [node["state"] for node in stopped["nodes"]] == ["stopped", "stopped"]
    assert run_json("down", *at) == stopped
    assert run_json("down", "--remove", *at) == {"dir": str(cluster_dir), "removed": ["n1", "n2"]}
    assert not cluster_dir.exists()


def test_a_table_shows_each_dsn_on_one_line(running: Path) -> None:
    result = run("status", "--dir", str(running))
    dsn = Cluster.open(running)["n1"].dsn()
    [line] = [line for line in result.stdout.splitlines() if line.startswith("n1")]
    assert line.split()[2:4] == [Cluster.open(running)["n1"].binaries.version_text, "running"]
    assert line.rstrip().endswith(dsn)


def test_servers_outlive_the_command_and_another_command_stops_them(cluster_dir: Path) -> None:
    at = ("--dir", str(cluster_dir))
    subprocess.run([*DEV, "up", "--nodes", "1", *at], check=True, capture_output=True, timeout=60)
    server = Cluster.open(cluster_dir)["n1"]
    assert server.is_running
    subprocess.run([*DEV, "down", *at], check=True, capture_output=True, timeout=60)
    assert not server.is_running


def test_two_ups_at_once_make_one_cluster(cluster_dir: Path) -> None:
    command = [*DEV, "up", "--nodes", "2", "--set", "fsync=off", "--json", "--dir", str(cluster_dir)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (json.loads(process.communicate(timeout=60)[0]) for process in both)
    assert first == second
    assert [node["state"] for node in first["nodes"]] == ["running", "running"]


def test_a_crash_shows_in_the_status_until_the_next_up(running: Path) -> None:
    at = ("--dir", str(running))
    Cluster.open(running)["n1"].kill()
    assert run_json("status", *at)["nodes"][0]["state"] == "crashed"
    assert run_json("up", "--nodes", "1", *at)["nodes"][0]["state"] == "running"


def test_psql_runs_on_the_node_as_the_role_cascade(running: Path) -> None:
    if Cluster.open(running)["n1"].psql is None:
        pytest.skip("psql is not installed")
    command = [*DEV, "psql", "--dir", str(running), "n1", "-Atc", "select current_user, inet_server_port()"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"cascade|{Cluster.open(running)['n1'].port}"


def test_psql_says_so_if_there_is_none_or_the_node_is_down(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.open(running)
    with pytest.raises(NotFoundError, match="no node 'n9'"):
        run("psql", "--dir", str(running), "n9")
    with monkeypatch.context() as patch:
        patch.setattr("cascade.dev.binaries.Binaries.tool", lambda *_: None)
        with pytest.raises(ServerError, match="there is no psql"):
            run("psql", "--dir", str(running), "n1")
    if cluster["n1"].psql is not None:
        cluster.down()
        with pytest.raises(ServerError, match="node n1 is stopped"):
            run("psql", "--dir", str(running), "n1")


def test_logs_show_the_last_lines_of_one_node_or_of_each(running: Path) -> None:
    one = run("logs", "--dir", str(running), "n1", "-n", "1").stdout
    assert one.count("\n") == 1 and "ready to accept connections" in one
    assert run("logs", "--dir", str(running), "-n", "1").stdout == f"n1 | {one}"
    assert run("logs", "--dir", str(running), "-n", "0").stdout == ""


def test_logs_can_be_followed(running: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = [*DEV, "logs", "--dir", str(running), "n1", "-n", "1", "--follow"]
    with seen.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            assert wait_until(lambda: "ready" in seen.read_text(), timeout_s=20)
            with psycopg.connect(Cluster.open(running)["n1"].dsn()) as connection:
                with pytest.raises(psycopg.errors.DivisionByZero):
                    connection.execute("select 1/0 as followed")
            assert wait_until(lambda: "1/0 as followed" in seen.read_text(), timeout_s=20)
        finally:
            process.kill()


@pytest.mark.parametrize("command", ["status", "down", "logs"])
def test_where_there_is_no_cluster_the_error_says_how_to_make_one(command: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)there is no cluster in .*cascade dev up"):
        run(command, "--dir", str(tmp_path))


def test_bad_settings_are_refused_before_anything_is_made(cluster_dir: Path) -> None:
    assert run("up", "--set", "fsync", "--dir", str(cluster_dir)).exit_code == 2
    with pytest.raises(ConfigError, match="port"):
        run("up", "--set", "port=5432", "--dir", str(cluster_dir))
    assert not cluster_dir.exists()


@pytest.mark.parametrize("command", ["up", "down", "status", "psql", "logs"])
def test_every_help_has_an_example(command: str) -> None:
    assert f"cascade dev {command}" in run(command, "--help").stdout
