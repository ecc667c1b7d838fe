"""cascade schema, on databases with and without Cascade."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import psycopg
import pytest

from cascade.sql import VERSION
from tests.cli.conftest import invoke


def as_json(*arguments: str, dsn: str) -> Any:
    return json.loads(invoke("schema", *arguments, "--json", dsn=dsn).stdout)


def test_a_schema_is_installed_found_current_and_removed(bare_dsn: str) -> None:
    assert invoke("schema", "status", dsn=bare_dsn).exit_code == 1
    assert as_json("status", dsn=bare_dsn) == {"state": "missing", "installed": None, "wanted": VERSION, "queues": 0}
    assert "installed schema version" in invoke("schema", "install", dsn=bare_dsn).stdout
    result = invoke("schema", "status", dsn=bare_dsn)
    assert result.exit_code == 0 and "current" in result.stdout
    assert "already current" in invoke("schema", "install", dsn=bare_dsn).stdout
    assert "already current" in invoke("schema", "upgrade", dsn=bare_dsn).stdout
    assert as_json("install", dsn=bare_dsn)["before"] == VERSION
    assert as_json("uninstall", dsn=bare_dsn) == {"removed": True, "queues": 0}
    assert as_json("uninstall", dsn=bare_dsn) == {"removed": False, "queues": 0}


def test_an_upgrade_of_nothing_says_to_install(bare_dsn: str) -> None:
    result = invoke("schema", "upgrade", dsn=bare_dsn)
    assert result.exit_code == 1
    assert "not installed" in result.stderr and "cascade schema install" in result.stderr


def test_uninstalling_with_queues_is_refused_unless_forced(dsn: str) -> None:
    invoke("queue", "create", "orders", dsn=dsn)
    result = invoke("schema", "uninstall", dsn=dsn)
    assert result.exit_code == 3 and "--force" in result.stderr
    assert as_json("status", dsn=dsn)["queues"] == 1
    assert as_json("uninstall", "--force", dsn=dsn) == {"removed": True, "queues": 1}
    assert as_json("status", dsn=dsn)["state"] == "missing"


@pytest.mark.parametrize(("change", "state"), [(1, "newer"), (-1, "older")])
def test_another_version_is_told_apart(dsn: str, change: int, state: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("update cascade_internal.schema_version set version = version + %s", (change,))
    result = invoke("schema", "status", dsn=dsn)
    assert result.exit_code == 1 and f"the schema is {state} than this code" in result.stderr
    upgraded = invoke("schema", "upgrade", dsn=dsn)
    assert upgraded.exit_code == (1 if state == "newer" else 0), upgraded.output


def test_the_printed_script_installs(bare_dsn: str) -> None:
    script = invoke("schema", "sql").stdout
    assert json.loads(invoke("schema", "sql", "--json").stdout) == {"version": VERSION, "sql": script}
    try:
        subprocess.run(["psql", "-qX", bare_dsn], input=script, text=True, check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("psql is not installed")
    assert as_json("status", dsn=bare_dsn)["state"] == "current"
