"""cascade topology: check, show, graph and schema of a file; no database is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cascade.topology import json_schema
from tests.cli.conftest import invoke

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "orders.yaml"
TREE = """\
orders
  s1 root          ams1
  ├─> s2 branch    ams2
  └─> s3 branch    fra1
      └─> s4 leaf  bi
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A file with three problems, one of them a password."""
    file = tmp_path / "wrong.yaml"
    text = EXAMPLE.read_text().replace("provider: s3", "provider: s5").replace("role: root", "role: rot")
    file.write_text(text.replace("service=bi", "host=bi password=hunter2"))
    return file


def test_a_good_file_is_ok() -> None:
    result = invoke("topology", "check", str(EXAMPLE))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ok: 1 set, 4 nodes, 4 databases\n", "")
    found = json.loads(invoke("topology", "check", str(EXAMPLE), "--json").stdout)
    assert found == {"ok": True, "sets": 1, "nodes": 4, "databases": 4, "problems": []}


def test_all_problems_of_a_file_are_told(wrong: Path) -> None:
    result = invoke("topology", "check", str(wrong))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{wrong}:13: database bi: the DSN holds a password; "
        "leave it out: libpq finds it in pgpass, in the service file or in PGPASSWORD",
        f"{wrong}:18: set orders, node s1: no role 'rot'; did you mean 'root'?",
        f"{wrong}:21: set orders, node s4: no provider 's5'; copy from s2 or s3",
    ]
    assert result.stderr == f"3 problems in {wrong}\n"


def test_problems_are_objects_for_programs(wrong: Path) -> None:
    result = invoke("topology", "check", str(wrong), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ok"] is False and [problem["line"] for problem in found["problems"]] == [13, 18, 21]
    assert set(found["problems"][0]) == {"source", "line", "fact", "remedy"}


@pytest.mark.parametrize("command", ["check", "show", "graph"])
def test_a_secret_is_never_printed(command: str, wrong: Path) -> None:
    for arguments in ([], ["--json"])[: 1 if command == "graph" else 2]:
        result = invoke("topology", command, str(wrong), *arguments)
        assert result.exit_code in (1, 2) and "hunter2" not in result.output


def test_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    for arguments in (["check", str(tmp_path / "x.yaml")], ["check"], ["graph", str(EXAMPLE), "--format", "png"]):
        result = invoke("topology", *arguments)
        assert result.exit_code == 2 and result.stderr.startswith("error: ")


@pytest.mark.parametrize("command", ["show", "graph"])
def test_a_broken_file_is_neither_shown_nor_drawn(command: str, wrong: Path) -> None:
    result = invoke("topology", command, str(wrong))
    assert result.exit_code == 2 and result.stdout == ""
    assert f"{wrong}:18: set orders, node s1: no role 'rot'" in result.stderr and "Traceback" not in result.stderr


def test_show_prints_the_tree_and_the_databases() -> None:
    result = invoke("topology", "show", str(EXAMPLE))
    assert result.exit_code == 0
    assert result.stdout.startswith(TREE)
    assert "ams2  host=${PGHOST_AMS2:-ams2} dbname=app user=cascade sslmode=verify-full\n" in result.stdout


def test_show_prints_options_and_signals(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    text = EXAMPLE.read_text().replace("    nodes:", "    options: {tick_max_lag: 50 ms}\n    revision: 7\n    nodes:")
    file.write_text(f'{text}signals: {{mqtt: "mqtt://broker:1883"}}\n')
    shown = invoke("topology", "show", str(file)).stdout
    assert "  tick_max_lag: 50 ms\n  revision: 7\n" in shown and "mqtt  mqtt://broker:1883" in shown


def test_show_is_an_object_for_programs() -> None:
    found = json.loads(invoke("topology", "show", str(EXAMPLE), "--json").stdout)
    assert found["databases"][0] == {
        "database": "ams1",
        "dsn": "service=ams1",
        "nodes": [{"set": "orders", "node": "s1"}],
    }
    [orders] = found["sets"]
    assert (orders["set"], orders["combines"], orders["revision"], orders["options"]) == ("orders", [], None, {})
    assert orders["nodes"][3] == {
        "node": "s4",
        "database": "bi",
        "role": "leaf",
        "provider": "s3",
        "handler": None,
        "start": "earliest",
        "into": None,
        "is_derived": False,
        "options": {},
        "path": ["s1", "s3", "s4"],
    }


def test_graphs_are_printed_in_three_forms() -> None:
    assert invoke("topology", "graph", str(EXAMPLE)).stdout == TREE
    assert invoke("topology", "graph", str(EXAMPLE), "--format", "mermaid").stdout.startswith("graph LR\n")
    assert ElementTree.fromstring(invoke("topology", "graph", str(EXAMPLE), "--format", "svg").stdout)


@pytest.mark.parametrize(
    ("name", "arguments", "begin"),
    [
        ("a.svg", [], "<svg "),
        ("a.mmd", [], "graph LR"),
        ("a.txt", [], "orders\n"),
        ("a.svg", ["--format", "text"], "orders\n"),
    ],
)
def test_a_graph_is_written_in_the_form_its_name_tells(
    name: str, arguments: list[str], begin: str, tmp_path: Path
) -> None:
    out = tmp_path / name
    result = invoke("topology", "graph", str(EXAMPLE), "-o", str(out), *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {out}\n")
    assert out.read_text().startswith(begin)


def test_the_schema_is_json(tmp_path: Path) -> None:
    assert json.loads(invoke("topology", "schema").stdout) == json_schema()
    invoke("topology", "schema", "-o", str(tmp_path / "schema.json"))
    assert json.loads((tmp_path / "schema.json").read_text()) == json_schema()


def test_no_command_here_loads_the_driver() -> None:
    code = (
        "import sys\nfrom cascade.cli.main import main\n"
        f"try: main(['topology', 'show', {str(EXAMPLE)!r}])\nexcept SystemExit: sys.exit('psycopg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
