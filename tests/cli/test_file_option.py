"""Which topology file a command is about: the one named, the environment's, or the one that is here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cascade.cli.main import main
from cascade.cli.status import FILES
from tests.cli.conftest import invoke


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment that names no file."""
    monkeypatch.chdir(tmp_path)
    for name in ("CASCADE_TOPOLOGY", "CASCADE_DSN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(file: Path, set_name: str) -> str:
    """Write a topology of one set, whose database does not answer."""
    database = '{a: {dsn: "host=127.0.0.1 port=1 dbname=x user=x"}}'
    node = "s1: {database: a, role: root}"
    file.write_text(f"version: 1\ndatabases: {database}\nsets: {{{set_name}: {{nodes: {{{node}}}}}}}\n")
    return str(file)


def sets(*arguments: str) -> list[str]:
    """Return the sets of the file that `cascade status` took."""
    result = invoke("status", "--json", "--timeout", "2", *arguments)
    assert result.stdout, result.stderr
    return [found["set"] for found in json.loads(result.stdout)["sets"]]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_here_need_not_be_named(here: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write(here / name, "found")
    assert sets() == ["found"]
    monkeypatch.setenv("CASCADE_TOPOLOGY", write(here / "other.yaml", "environment"))
    assert sets() == ["environment"]
    assert sets("-f", write(here / "third.yaml", "named")) == ["named"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("wait", "--set", "orders", "--node", "s1"),
        ("plan",),
        ("apply",),
        ("node", "pause", "orders", "s1"),
        ("node", "run", "--database", "a"),
        ("consumer", "move", "orders", "c", "--from", "s1", "--to", "s2"),
    ],
    ids=" ".join,
)
def test_without_a_file_both_ways_to_name_one_are_told(here: Path, arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: no topology file was named, and none is here",
        "hint: Pass -f FILE or set CASCADE_TOPOLOGY; one topology.yaml or cascade.yaml here is found.",
    ]
    for name in FILES:
        write(here / name, "orders")
    result = invoke(*arguments)
    assert result.exit_code == 2 and "topology.yaml and cascade.yaml are both here" in result.stderr


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def test_every_command_that_takes_a_file_finds_it_in_the_same_way() -> None:
    found = {
        words: option
        for words, command in commands(main)
        for option in command.params
        if isinstance(option, click.Option) and option.envvar == "CASCADE_TOPOLOGY"
    }
    assert len(found) > 20
    for words, option in found.items():
        assert "-f" in option.opts and not option.required, words
        assert option.help is not None and all(name in option.help for name in FILES), words
