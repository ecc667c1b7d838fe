"""Run the marked blocks of a page, in order, in one database."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

from cascade.cli.main import main as cli
from cascade.node.ticker import Ticker
from tests.docs.markdown import TOP, Block, Statement, statements
from tests.fixtures.database import Database, eventually

COMMAND = (sys.executable, "-m", "cascade.cli.main")
TIMEOUT_S = 60

#: Whether the consumers that programs stream for are given everything there is.
ALL_READ = """
    select not exists (
        select from cascade.consumers as c
          join pg_stat_activity as a on a.datname = current_database()
           and a.application_name = 'cascade/' || c.consumer || '/read'
         where c.lag_events > 0)"""


class Runner:
    """What lasts for one page: connections, names, psql's variables, programs in the background."""

    def __init__(self, db: Database, directory: Path, stack: ExitStack) -> None:
        self._db, self._directory, self._stack = db, directory, stack
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._variables: dict[str, str] = {}
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._loop = stack.enter_context(asyncio.Runner())
        self._environment = os.environ | {"CASCADE_DSN": db.dsn, "PYTHONPATH": str(TOP), "NO_COLOR": "1"}

    def run(self, block: Block) -> None:
        """Run one block; an exception says where the page is wrong."""
        if self._is_installed():
            time.sleep(0.02)  # longer than tick_max_lag: whatever was inserted above is due now
            self._db.rows("select * from cascade.make_ticks()")
        match block.words:
            case ("sql", *who):
                self._run_sql(block.text, "admin" if who else "owner")
            case ("python",):
                self._run_python(block)
            case ("python", "background", *twice):
                for _ in range(2 if twice else 1):
                    self._start([sys.executable, "-c", block.text])
            case ("console",):
                for words in commands(block.text):
                    self._run_command(words)
            case ("console", "background"):
                for words in commands(block.text):
                    self._start([*COMMAND, *words])
            case _:
                raise AssertionError(f"nobody knows how to run {' '.join(block.words)}")

    def _is_installed(self) -> bool:
        return self._db.value("select to_regproc('cascade.make_ticks') is not null") is True

    def _run_sql(self, text: str, who: str) -> None:
        if who not in self._connections:
            self._connections[who] = self._db.admin() if who == "admin" else self._db.connect()
        for name in re.findall(r"^create role (\w+)", text, re.M):
            self._stack.callback(drop_role, self._db, name)
        for statement in statements(text):
            self._run_statement(self._connections[who], statement)

    def _run_statement(self, conn: psycopg.Connection[Any], statement: Statement) -> None:
        text = re.sub(r"(?<![\w:\"]):([a-z]\w*)", lambda match: self._variables[match[1]], statement.text)
        try:
            with conn.cursor() as cur:
                if statement.data is not None:
                    with cur.copy(text.encode()) as copy:
                        copy.write(statement.data)
                    return
                cur.execute(text.encode())
                if statement.keeps_row:
                    row = cur.fetchone()
                    assert row is not None and cur.description is not None, f"no row for \\gset: {text}"
                    self._variables |= {
                        column.name: str(value) for column, value in zip(cur.description, row, strict=True)
                    }
        except psycopg.Error as error:
            assert error.sqlstate == statement.error, f"{error}\nin {text}"
        else:
            assert statement.error is None, f"this did not raise {statement.error}: {text}"

    def _run_python(self, block: Block) -> None:
        code = compile("\n" * block.line + block.text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with pytest.MonkeyPatch.context() as patch, ticking(self._db.dsn):
            patch.setenv("CASCADE_DSN", self._db.dsn)
            patch.chdir(self._directory)
            found = eval(code, self._names)
            if found is not None:
                self._loop.run(asyncio.wait_for(found, TIMEOUT_S))

    def _run_command(self, words: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._directory)
            done = CliRunner(env=self._environment).invoke(cli, words)
        assert done.exit_code == 0, f"cascade {shlex.join(words)}: exit {done.exit_code}\n{done.output}"

    def _start(self, command: list[str]) -> None:
        """Start a program and wait until it reads or ticks; it ends with the page."""
        before = self._count_sessions()
        process = subprocess.Popen(
            command,
            env=self._environment,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._stack.callback(self._end, process)
        eventually(lambda: self._count_sessions() > before or process.poll() is not None)

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Interrupt a program once everything is read; it must have done its work and end well."""
        try:
            if process.poll() is None and self._is_installed():
                eventually(lambda: self._db.value(ALL_READ))
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=TIMEOUT_S)[0]
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert process.returncode == 0, said

    def _count_sessions(self) -> int:
        return int(
            self._db.value(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and application_name ~ '/(read|ticker)$'"
            )
        )


@contextmanager
def ticking(dsn: str) -> Iterator[None]:
    """Make ticks, as the daemon does, while a block runs."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(Ticker(dsn).run(stop),), name="ticker")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def commands(text: str) -> list[list[str]]:
    """Return the arguments of every `$ cascade` line."""
    return [shlex.split(line.removeprefix("$ cascade ")) for line in text.splitlines() if line.startswith("$ cascade ")]


def drop_role(db: Database, name: str) -> None:
    """Remove a role that a page made; roles belong to the server and outlive the database."""
    with psycopg.connect(db.backend.admin_dsn, dbname=db.name, autocommit=True) as conn:
        if conn.execute("select from pg_roles where rolname = %s", (name,)).fetchone():
            conn.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))
