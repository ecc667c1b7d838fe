"""cascade spark, as far as it comes without Spark: options, places, and errors of one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cascade import errors
from cascade.cli.spark_job import SparkFailedError, explain, parse_conf
from tests.cli.conftest import invoke


def test_the_help_loads_no_spark() -> None:
    code = (
        "import sys\nfrom cascade.cli.main import main\n"
        "try:\n    main(['spark', 'archive', '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "found = {'pyspark', 'psycopg', 'py4j'} & sys.modules.keys()\nassert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "URL is a folder on a disk" in done.stdout


def test_without_the_extra_one_line_says_how_to_install_it(dsn: str, tmp_path: Path) -> None:
    """A Python that cannot find pyspark is one without the extra."""
    code = (
        "import sys\nfrom importlib.abc import MetaPathFinder\n"
        "class Without(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'pyspark':\n            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
        "import importlib.util as util\nfound = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'pyspark' else found(name, *rest)\n"
        "from cascade.cli.main import main\n"
        f"main(['spark', 'archive', 'orders', {str(tmp_path)!r}, '--dsn', {dsn!r}])"
    )
    assert invoke("queue", "create", "orders", dsn=dsn).exit_code == 0
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: PySpark is not installed",
        "hint: pip install 'cascade-queue[spark]' brings it, and Java.",
    ]


def test_a_queue_that_is_not_there_is_named_before_spark_starts(fails: Callable[..., Result], tmp_path: Path) -> None:
    result = fails(1, "spark", "archive", "nothing", str(tmp_path))
    assert 'the database: there is no queue "nothing"' in result.stderr
    assert "hint: cascade queue list" in result.stderr


def test_a_database_that_does_not_answer_is_named(tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    topology.write_text(
        "version: 1\ndatabases:\n  ams: {dsn: 'host=127.0.0.1 port=1 dbname=ams'}\n"
        "sets:\n  orders: {nodes: {s1: {database: ams, role: root}}}\n"
    )
    for more in ((), ("--node", "s1")):
        result = invoke("spark", "archive", "orders", str(tmp_path), "-f", str(topology), *more)
        assert result.exit_code == 1 and result.stderr.count("error: ") == 1
        assert "node s1: " in result.stderr and "refused" in result.stderr and "hint: " in result.stderr
    # The file that is named wins over a database of the environment.
    result = invoke("spark", "archive", "orders", str(tmp_path), "-f", str(topology), dsn="host=127.0.0.1 port=2")
    assert result.exit_code == 1 and "node s1: " in result.stderr
    result = invoke("spark", "archive", "orders", str(tmp_path), "-f", str(topology), "--dsn", "host=127.0.0.1 port=2")
    assert result.exit_code == 2 and "pass one or the other" in result.stderr
    result = invoke("spark", "archive", "orders", str(tmp_path), "-f", str(topology), "--node", "s2")
    assert result.exit_code == 2 and "s2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--conf", "spark.x"), "--conf 'spark.x': no '='"),
        (("--master", "local", "--remote", "sc://here"), "exclude one another"),
        (("--remote", "sc://here"), "cannot be written through Spark Connect"),
        (("--keep", "soon"), "'soon' is no length of time; write 30d"),
        (("--follow", "--to", "7"), "--follow has no end"),
    ],
)
def test_options_that_cannot_be_are_refused(
    run: Callable[..., str], fails: Callable[..., Result], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    run("queue", "create", "orders")
    assert said in fails(2, "spark", "archive", "orders", str(tmp_path), *arguments).stderr


def test_a_log_that_cannot_be_written_is_named(
    run: Callable[..., str], fails: Callable[..., Result], tmp_path: Path
) -> None:
    run("queue", "create", "orders")
    (tmp_path / "file").touch()
    result = fails(2, "spark", "archive", "orders", str(tmp_path), "--log-file", str(tmp_path / "file" / "log"))
    assert "cannot be written" in result.stderr


def test_settings_of_spark_may_hold_equals_signs() -> None:
    assert parse_conf(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}


class Raised(Exception):
    """As Spark's: a message with a trace inside."""


JAVA = "Job aborted due to stage failure: Task 0 failed: org.apache.spark.api.python.PythonException: Traceback\n"


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        (
            f'{JAVA}  File "x.py"\ncascade.errors.ExpiredError: queue "q" let it go\nhint: Later.\n\n  at org.x',
            errors.ExpiredError,
            'queue "q" let it go',
            "Later. The trace is in /tmp/a.log.",
        ),
        (
            f"{JAVA}psycopg.OperationalError: server closed the connection\n  more",
            SparkFailedError,
            "archive: server closed the connection",
            "The trace is in /tmp/a.log.",
        ),
        ("[PATH_NOT_FOUND] no /x.\nmore", SparkFailedError, "archive: [PATH_NOT_FOUND] no /x.", None),
    ],
)
def test_what_spark_raises_becomes_one_line(text: str, kind: type[Any], message: str, hint: str | None) -> None:
    error = explain(Raised(text), Path("/tmp/a.log"), "archive")
    assert (type(error), error.args[0]) == (kind, message)
    assert error.hint == (hint or "The trace is in /tmp/a.log.")
