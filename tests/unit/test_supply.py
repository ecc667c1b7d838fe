"""Where the tests' servers come from: a setting that cannot work is one usage error, before any test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cascade.dev.sockets import free_ports
from cascade.errors import ConfigError
from tests.fixtures.backend import labels
from tests.fixtures.supply import Choice, Supply, choose

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("environ", "choice"),
    [
        ({}, Choice()),
        ({"CASCADE_TEST_BACKEND": "embedded"}, Choice()),
        ({"CASCADE_TEST_DSN": "", "CASCADE_TEST_BACKEND": "", "CASCADE_TEST_IMAGE": ""}, Choice()),
        ({"CASCADE_TEST_DSN": "host=db"}, Choice(supply=Supply.GIVEN, dsn="host=db")),
        (
            {"CASCADE_TEST_DSN": "postgresql://a@b/c", "CASCADE_TEST_BACKEND": "given"},
            Choice(supply=Supply.GIVEN, dsn="postgresql://a@b/c"),
        ),
        ({"CASCADE_TEST_BACKEND": "containers"}, Choice(supply=Supply.CONTAINERS, image="postgres:17")),
        (
            {"CASCADE_TEST_BACKEND": "containers", "CASCADE_TEST_IMAGE": "postgres:14-alpine"},
            Choice(supply=Supply.CONTAINERS, image="postgres:14-alpine"),
        ),
    ],
)
def test_the_environment_says_where_servers_come_from(environ: dict[str, str], choice: Choice) -> None:
    assert choose(environ) == choice
    if choice.supply is not Supply.EMBEDDED:
        assert labels(choice) == [choice.supply]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CASCADE_TEST_BACKEND": "docker"}, r"there is no 'docker'\nhint: It is one of embedded, given, containers"),
        ({"CASCADE_TEST_BACKEND": "given"}, r"no server is\nhint: Name it in CASCADE_TEST_DSN"),
        ({"CASCADE_TEST_DSN": "host=db", "CASCADE_TEST_BACKEND": "containers"}, "asks for containers"),
        ({"CASCADE_TEST_DSN": "host=db", "CASCADE_TEST_BACKEND": "embedded"}, "asks for embedded"),
        ({"CASCADE_TEST_IMAGE": "postgres:16"}, "no containers are asked for"),
        ({"CASCADE_TEST_IMAGE": "postgres:16", "CASCADE_TEST_DSN": "host=db"}, "no containers are asked for"),
        ({"CASCADE_TEST_DSN": "not a connection string"}, 'CASCADE_TEST_DSN: missing "=" after "not"'),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose(environ)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CASCADE_TEST_BACKEND": "docker"}, "ERROR: CASCADE_TEST_BACKEND: there is no 'docker'"),
        ({"CASCADE_TEST_DSN": "host=127.0.0.1 port={port}"}, "ERROR: CASCADE_TEST_DSN: connection failed: "),
    ],
)
def test_a_run_that_has_no_server_ends_before_it_begins(environ: dict[str, str], said: str) -> None:
    [port] = free_ports(1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CASCADE_TEST_", "PYTEST_"))}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit/test_dice.py"],
        cwd=TOP,
        env=clean | {name: value.format(port=port) for name, value in environ.items()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert found.stderr.startswith(said) and "Traceback" not in found.stderr + found.stdout
