"""A server for the tests of the command line, a fresh database for each, and ways to run commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from cascade import sync
from cascade.cli.main import main
from cascade.dev import Cluster, Server
from cascade.sql import migrate

NUMBERS = count(1)
COMMAND = (sys.executable, "-m", "cascade.cli.main")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests here, with a template database that has the schema."""
    with Cluster.temporary(1, templates=tmp_path_factory.mktemp("templates")) as cluster:
        made = cluster["n1"]
        _create(made, "cli_template", "template0")
        with sync.connect(made.dsn(dbname="cli_template")) as client:
            migrate.install(client.connection())
        yield made


@pytest.fixture
def dsn(server: Server) -> str:
    """A fresh database with the schema."""
    return _database(server, "cli_template")


@pytest.fixture
def bare_dsn(server: Server) -> str:
    """A fresh database without Cascade."""
    return _database(server, "template0")


def _database(server: Server, template: str) -> str:
    """Make a database; it goes with the server."""
    name = f"cli_{next(NUMBERS)}"
    _create(server, name, template)
    return server.dsn(dbname=name)


def _create(server: Server, name: str, template: str) -> None:
    query = sql.SQL("create database {} owner cascade template {} encoding 'UTF8'")
    with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
        conn.execute(query.format(sql.Identifier(name), sql.Identifier(template)))


def invoke(*arguments: str, dsn: str | None = None, stdin: bytes | None = None) -> Result:
    """Run a command in this process, as a terminal-less user would."""
    return CliRunner().invoke(main, arguments, env={"CASCADE_DSN": dsn, "CASCADE_DEBUG": None}, input=stdin)


@pytest.fixture
def run(dsn: str) -> Callable[..., str]:
    """Run a command that must succeed on the test's database, and return what it printed."""

    def run_it(*arguments: str, stdin: bytes | None = None) -> str:
        result = invoke(*arguments, dsn=dsn, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run_it


@pytest.fixture
def run_json(run: Callable[..., str]) -> Callable[..., Any]:
    """Run a command with --json, and return what it printed as a value."""
    return lambda *arguments, **options: json.loads(run(*arguments, "--json", **options))


@pytest.fixture
def fails(dsn: str) -> Callable[..., Result]:
    """Run a command that must end with an exit code, and one error without a traceback."""

    def run_it(code: int, *arguments: str, stdin: bytes | None = None) -> Result:
        result = invoke(*arguments, dsn=dsn, stdin=stdin)
        assert result.exit_code == code, result.output
        assert result.stderr.count("error: ") == 1 and "Traceback" not in result.stderr
        return result

    return run_it


@pytest.fixture
def client(dsn: str) -> Iterator[sync.Client]:
    """A client of the test's database."""
    with sync.connect(dsn) as made:
        yield made


def spawn(dsn: str | None, *arguments: str | bytes, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    env = {name: value for name, value in os.environ.items() if name not in ("CASCADE_DSN", "CASCADE_DEBUG")}
    env |= {} if dsn is None else {"CASCADE_DSN": dsn}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    root = Path(__file__).parents[2]
    return subprocess.Popen([*COMMAND, *arguments], text=True, env=env, **({"cwd": root} | pipes | options))
