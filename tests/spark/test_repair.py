"""From a comparison to a repair, as an operator goes: commands, files, journal; refused where it must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from cascade.cli.main import main
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.nodes import same
from tests.fixtures.reconciling import Carriers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def carriers(backends: Callable[..., Backend]) -> Iterator[Carriers]:
    """Three carriers, on servers of different versions where there are some."""
    with Carriers.fresh([backends(label) for label in LABELS]) as made:
        yield made


@pytest.fixture
def cli(carriers: Carriers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command about the set, as an operator would."""
    path = tmp_path / "orders.yaml"
    path.write_text(carriers.text())
    monkeypatch.setenv("CASCADE_TOPOLOGY", str(path))

    def run(*arguments: object, code: int = 0) -> Result:
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output + done.stderr
        return done

    return run


def test_what_differs_is_repaired_from_the_root_downwards(
    spark: SparkSession, carriers: Carriers, cli: Callable[..., Result], tmp_path: Path
) -> None:
    """s3 copies from s2: both are damaged, in the same ticks and in others, and both are mended by one plan."""
    carriers.fill()
    for node in ("s2", "s3"):
        carriers[node].rows("select cascade.subscribe('q', 'late', 'earliest')")
    events = carriers.events()
    carriers.damage("s2", "delete from EVENTS where id = any(%s)", [events[5][0], events[6][0]])
    carriers.damage("s3", "delete from EVENTS where id = any(%s)", [events[5][0], events[20][0]])
    carriers.damage("s3", "delete from TICKS where tick_id = %s", events[30][1])
    carriers.damage("s2", "update EVENTS set payload = '\"ж\"' where id = %s", events[40][0])
    plan, page = tmp_path / "repair.json", tmp_path / "report.html"

    said = cli("spark", "reconcile", "--set", "q", "--plan", plan, "--html", page, code=1)
    assert "6 differences" in said.stdout, said.stdout
    assert "wrote a plan of repair" in said.stderr and page.read_text().startswith("<!doctype html>")
    assert cli("repair", "list", "q", "--json").stdout.strip() == "[]"
    cli("repair", "apply", plan, "--dry-run")
    assert len(carriers.events("s2")) == len(events) - 2

    # How a database writes its times is its own affair.
    setting = sql.SQL("alter database {} {} datestyle").format
    name = sql.Identifier(carriers["s1"].name)
    carriers["s1"].main.execute(setting(name, sql.SQL("set")) + sql.SQL(" = 'German, DMY'"))
    done = json.loads(cli("repair", "apply", plan, "--json").stdout)
    carriers["s1"].main.execute(setting(name, sql.SQL("reset")))
    assert [(one["node"], one["provider"], one["removed"], one["added"]) for one in done["nodes"]] == [
        ("s2", "s1", 1, 3), ("s3", "s2", 0, 2),
    ]  # fmt: skip
    for name in ("s2", "s3"):
        assert same(carriers["s1"], carriers[name]) >= len(events)
        assert len(carriers[name].drain("late")) == len(events)
    assert "equal: " in cli("spark", "reconcile", "--set", "q").stdout

    again = json.loads(cli("repair", "apply", plan, "--json").stdout)
    assert [one["is_repeat"] for one in again["nodes"]] == [True, True]
    listed = json.loads(cli("repair", "list", "q", "--json").stdout)
    assert [(one["node"], one["plan"]) for one in listed] == [("s2", done["plan"]), ("s3", done["plan"])]
    shown = json.loads(cli("repair", "show", "q", done["plan"], "--json").stdout)
    assert [one["payload"] for one in shown if one["what"] == "removed"] == ['"ж"']


def test_a_stale_plan_and_one_of_the_root_are_refused(
    spark: SparkSession, carriers: Carriers, cli: Callable[..., Result], tmp_path: Path
) -> None:
    carriers.fill(ticks=4)
    events = carriers.events()
    carriers.damage("s2", "delete from EVENTS where id = %s", events[5][0])
    plan = tmp_path / "repair.json"
    cli("spark", "reconcile", "--set", "q", "--plan", plan, code=1)
    carriers.damage("s2", "delete from EVENTS where id = %s", events[6][0])
    assert "not what the plan found" in cli("repair", "apply", plan, code=1).stderr
    assert cli("repair", "list", "q", "--json").stdout.strip() == "[]"

    assert "is no plan" in cli("repair", "apply", tmp_path / "orders.yaml", code=2).stderr

    # What two copies have, and the root has not: it is the root that differs, and no plan mends it.
    carriers.damage("s1", "delete from EVENTS where id = %s", events[9][0])
    plan.unlink()
    said = cli("spark", "reconcile", "--set", "q", "--plan", plan, code=1)
    assert "s1 is the root: no other node can say" in said.stderr
    made = json.loads(plan.read_text())
    assert [one["node"] for one in made["nodes"]] == ["s2"] and len(made["refusals"]) == 1
