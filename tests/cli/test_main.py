"""The root command: help, errors and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import psycopg
import pytest
from click.testing import Result

from cascade import __version__
from cascade.cli.main import COMMANDS, main
from tests.cli.conftest import invoke, spawn


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below a group, with its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


def test_help_lists_every_command_and_loads_neither_the_driver_nor_rich() -> None:
    code = (
        "import sys\nfrom cascade.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: sys.exit(bool({'psycopg', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_the_line_in_the_help_is_the_command_s_own() -> None:
    for path, command in commands(main):
        if len(path) == 1:
            assert (command.help or "").splitlines()[0] == COMMANDS[path[0]]


@pytest.mark.parametrize("path", ["/".join(path) for path, _ in commands(main)])
def test_every_help_has_an_example(path: str) -> None:
    result = invoke(*path.split("/"), "--help")
    assert result.exit_code == 0
    assert f"\n  cascade {path.replace('/', ' ')}" in result.stdout


def test_the_version_is_told() -> None:
    assert __version__ in invoke("--version").stdout


def test_without_a_command_the_help_is_shown() -> None:
    result = invoke()
    assert result.exit_code == 2 and result.stderr.startswith("Usage: cascade")


def test_without_a_database_the_error_says_how_to_name_one() -> None:
    result = invoke("queue", "list")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no database was named\nhint: ")
    assert "CASCADE_DSN" in result.stderr and "cascade dev up" in result.stderr


def test_bad_usage_exits_2_and_points_at_the_help() -> None:
    result = invoke("queue", "list", "--nonsense")
    assert result.exit_code == 2
    assert "hint: cascade queue list --help" in result.stderr


@pytest.mark.parametrize("arguments", [("queue", "list", "--nonsense"), ("queue", "list"), ("queue", "lits")])
def test_with_json_an_error_is_one_object(arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 2 and result.stdout == ""
    assert set(json.loads(result.stderr)) == {"error", "hint", "sqlstate"}


def test_a_database_error_carries_its_sqlstate(dsn: str) -> None:
    result = invoke("queue", "create", "no spaces", "--json", dsn=dsn)
    assert result.exit_code == 2
    assert json.loads(result.stderr)["sqlstate"] == "QC001"


def test_a_database_that_is_not_there_is_an_error_and_no_traceback(dsn: str) -> None:
    for wrong in ("host=127.0.0.1 port=1", f"{dsn} dbname=nowhere"):
        result = invoke("queue", "list", dsn=wrong)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: connection failed") and "Traceback" not in result.stderr


def test_a_dsn_that_cannot_be_read_is_bad_usage_and_is_not_repeated() -> None:
    result = invoke("queue", "list", "--dsn", "pasword=secret")
    assert result.exit_code == 2 and "secret" not in result.output


def test_where_cascade_is_missing_every_command_says_how_to_install_it(bare_dsn: str) -> None:
    for arguments in (("queue", "list"), ("queue", "create", "q"), ("consumer", "list"), ("queue", "tail", "q")):
        result = invoke(*arguments, dsn=bare_dsn)
        assert result.exit_code == 1
        assert "not installed" in result.stderr and "cascade schema install" in result.stderr


def test_an_error_of_the_driver_that_has_no_name_is_told_all_the_same(
    dsn: str, fails: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise psycopg.errors.DiskFull("no space left")

    monkeypatch.setattr("cascade.sync.Client.call", refuse)
    assert "no space left" in fails(1, "queue", "create", "q").stderr
    monkeypatch.setenv("CASCADE_DEBUG", "1")
    with pytest.raises(psycopg.errors.DiskFull):
        main(["queue", "create", "q", "--dsn", dsn])


def test_an_argument_that_is_not_utf_8_is_bad_usage(dsn: str) -> None:
    with spawn(dsn, "queue", "drop", "--yes", b"\xff\xfe") as process:
        _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr and process.returncode in (1, 2)


def test_ctrl_c_exits_130_without_a_word(dsn: str, run: Callable[..., str], client: Any) -> None:
    run("queue", "create", "orders")
    with spawn(dsn, "queue", "tail", "orders", "--from", "earliest") as process:
        client.queue("orders").publish(1)
        client.queue("orders").tick()
        assert process.stdout is not None and process.stdout.readline().strip().endswith("1")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and stderr.strip() == ""


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with spawn(None, "schema", "sql", stdout=writer) as process:
        os.close(writer)
        assert process.stderr is not None and process.stderr.read() == ""
    assert process.returncode == 1
