"""The daemon as a process: installs, serves, survives its database, stops when told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from cascade.sql import VERSION, migrate
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database, eventually


@contextmanager
def daemon(dsn: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `cascade node run` as an operator would."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cascade.cli.main", "node", "run", "--dsn", dsn, *arguments],
            stderr=output,
            stdout=output,
            cwd=Path(__file__).parents[2],
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def health(port: int) -> tuple[int, dict[str, object]] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return None


def test_the_daemon_installs_the_schema_and_serves(backend: Backend, tmp_path: Path) -> None:
    port = free_port()
    with Database.fresh(backend, with_schema=False) as db:
        with daemon(db.dsn, tmp_path / "log", "--health", f"127.0.0.1:{port}") as process:
            eventually(lambda: (health(port) or (0,))[0] == 200)
            db.queue()
            db.rows("select cascade.subscribe('q', 'c')")
            db.insert(1)
            assert eventually(lambda: db.drain()) == [1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=15) == 0
        assert migrate.status(db.main).state == "current"


def test_the_daemon_survives_the_restart_of_its_database(backends: Callable[..., Backend], tmp_path: Path) -> None:
    backend = backends(LABELS[0], application_name="restarted")
    server = backend.need_server()
    port = free_port()
    with Database.fresh(backend) as db:
        db.queue()
        db.rows("select cascade.subscribe('q', 'c')")
        with daemon(db.dsn, tmp_path / "log", "--health", f"127.0.0.1:{port}") as process:
            eventually(lambda: (health(port) or (0,))[0] == 200)
            server.kill()
            found = eventually(lambda: (answer := health(port)) and answer[0] == 503 and answer)
            assert found[1]["healthy"] is False
            server.start()
            eventually(lambda: (health(port) or (0,))[0] == 200)
            db.main.close()
            db.insert("after")
            assert eventually(lambda: db.drain()) == ["after"]
            assert process.poll() is None


def test_the_daemon_refuses_a_schema_it_does_not_know(db: Database, tmp_path: Path) -> None:
    db.main.execute("insert into cascade_internal.schema_version (version) values (%s)", (VERSION + 1,))
    with daemon(db.dsn, tmp_path / "log") as process:
        assert process.wait(timeout=20) == 1
    assert f"has version {VERSION + 1}" in (tmp_path / "log").read_text()


def test_a_daemon_killed_while_armed_leaves_a_working_queue(db: Database, tmp_path: Path) -> None:
    db.backend.need_none_prepared()
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    armed = "select bool_and(cascade_internal.is_armed(queue_id, slots)) from cascade_internal.queue"
    with daemon(db.dsn, tmp_path / "log") as process:
        eventually(lambda: db.value(armed))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=20)
        db.insert(1)
    with daemon(db.dsn, tmp_path / "log2"):
        assert eventually(lambda: db.drain()) == [1]


def test_the_daemon_waits_for_a_database_that_is_not_there(tmp_path: Path) -> None:
    dsn = psycopg.conninfo.make_conninfo(host="127.0.0.1", port=free_port(), dbname="x", user="x")
    with daemon(dsn, tmp_path / "log") as process:
        eventually(lambda: "again in" in (tmp_path / "log").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
