"""One PostgreSQL server on one data directory, started and stopped by whichever process is at hand.

What is running is never remembered here: postmaster.pid says so, and is believed only if the process
it names is a server on this very directory.

    missing ──init──> stopped ──start──> running ──stop──> stopped
                                            └──kill──> crashed ──start──> running
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import make_conninfo

from cascade.dev import processes
from cascade.dev.account import Account, choose_account
from cascade.dev.binaries import Binaries
from cascade.dev.settings import check_settings, render_settings
from cascade.dev.sockets import free_ports, make_socket_dir, socket_dir
from cascade.dev.template import CONF_NAME, copy_template, run_single
from cascade.errors import ServerError

StopMode = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class ServerState(StrEnum):
    """What can be told of a server from its directory."""

    MISSING = "missing"
    STOPPED = "stopped"
    RUNNING = "running"
    CRASHED = "crashed"


class Server:
    """A server called `name`; making the object touches nothing."""

    def __init__(
        self,
        name: str,
        data_dir: Path,
        *,
        binaries: Binaries,
        port: int,
        run_dir: Path,
        log: Path,
        passfile: Path,
        settings: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        self.name, self.binaries, self.port, self.log = name, binaries, port, log
        self.data_dir = data_dir.resolve()
        self.settings = dict(settings or {})
        check_settings(self.settings)
        self._passfile, self._run_dir = passfile, run_dir
        self._account = account or choose_account()

    @property
    def pid(self) -> int | None:
        """The process of the running server; None if there is none."""
        lines = self._pid_lines()
        if len(lines) < 2 or not lines[0].isdigit() or lines[1] != str(self.data_dir):
            return None
        pid = int(lines[0])
        return pid if processes.is_postmaster(pid, self.data_dir) else None

    @property
    def is_running(self) -> bool:
        """Whether there is a server process, ready or not."""
        return self.pid is not None

    @property
    def state(self) -> ServerState:
        """What the directory and the process say."""
        if self.is_running:
            return ServerState.RUNNING
        if not (self.data_dir / "PG_VERSION").exists():
            return ServerState.MISSING
        return ServerState.CRASHED if (self.data_dir / "postmaster.pid").exists() else ServerState.STOPPED

    @property
    def psql(self) -> Path | None:
        """The psql to use with this server; None if none is installed."""
        return self.binaries.tool("psql")

    def dsn(self, user: str = "cascade", dbname: str = "cascade") -> str:
        """How to connect by TCP; the password is not in it, but in the file it names."""
        return make_conninfo(host="127.0.0.1", port=self.port, user=user, dbname=dbname, passfile=str(self._passfile))

    @property
    def admin_dsn(self) -> str:
        """How the superuser connects by TCP."""
        return self.dsn(user="postgres", dbname="postgres")

    def socket_dsn(self, user: str = "cascade", dbname: str = "cascade") -> str:
        """How to connect by the socket, where whoever may enter its directory needs no password."""
        return make_conninfo(host=str(self.socket_dir), port=self.port, user=user, dbname=dbname)

    @property
    def socket_dir(self) -> Path:
        """Where the socket is, or will be."""
        return socket_dir(self._run_dir)

    def init(self, template: Path) -> None:
        """Make the data directory from a template, unless it is there."""
        if not self.data_dir.exists():
            copy_template(template, self.data_dir, account=self._account)

    def start(self, *, timeout_s: float = 60) -> None:
        """Start the server and wait until it answers; on a running one, only wait.

        If another program has taken the port, `port` is a new one afterwards.  After an error no server runs.
        """
        deadline = time.monotonic() + timeout_s
        if self.is_running and self._wait_ready(None, deadline):
            return
        # What a killed server left must go first: PostgreSQL refuses to start beside it.
        processes.wait_until(lambda: not processes.servers_in(self.data_dir), timeout_s=timeout_s)
        make_socket_dir(self._run_dir, account=self._account)
        self._write_conf()
        for _ in range(10):
            log_start = self.log.stat().st_size if self.log.exists() else 0
            child = self._spawn()
            try:
                if self._wait_ready(child, deadline):
                    return
            except BaseException:
                processes.end_child(child)
                raise
            said = self.log.read_bytes()[log_start:].decode(errors="replace")
            if "Address already in use" not in said:
                break
            [self.port] = free_ports(1)
        tail = "\n".join(said.splitlines()[-12:])
        raise ServerError(
            f"node {self.name}: the server stopped while starting (exit {child.returncode})\n{tail}",
            hint=f"the whole log is {self.log}",
        )

    def stop(self, mode: StopMode = "fast", *, timeout_s: float = 60) -> None:
        """Stop the server and wait until it is gone; nothing happens if none runs."""
        if (pid := self.pid) is not None:
            processes.send(pid, SIGNALS[mode])
            if not processes.wait_until(lambda: processes.has_gone(pid, self.data_dir), timeout_s=timeout_s):
                raise ServerError(
                    f"node {self.name}: the server (pid {pid}) did not stop within {timeout_s:g} s",
                    hint="a smart stop waits for every client to leave; 'immediate' waits for nobody",
                )

    def kill(self) -> None:
        """End the server and all its processes without warning, and wait until they are gone."""
        if (pid := self.pid) is None:
            return
        orphans = processes.children_of(pid)
        processes.send(pid, signal.SIGKILL)

        def all_gone() -> bool:
            left = processes.servers_in(self.data_dir) or [orphan for orphan in orphans if processes.is_alive(orphan)]
            for process in left:
                processes.send(process, signal.SIGKILL)
            return not left and processes.has_gone(pid, self.data_dir)

        if not processes.wait_until(all_gone, timeout_s=30):
            raise ServerError(f"node {self.name}: processes of the killed server (pid {pid}) are still there")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, and start again; settings are read anew."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Write the settings, and let a running server take over those that need no restart."""
        self._write_conf()
        if (pid := self.pid) is not None:
            processes.send(pid, signal.SIGHUP)

    def remove(self) -> None:
        """Stop the server at once and delete its data directory and log."""
        self.stop("immediate")
        if self.state is ServerState.CRASHED:
            # Only a start gives back the shared memory of a killed server; failing that costs some bytes.
            with contextlib.suppress(ServerError, OSError):
                run_single(self.data_dir, [], binaries=self.binaries, account=self._account)
        shutil.rmtree(self.data_dir, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        listen: list[str | Path] = ["-p", str(self.port), "-h", "127.0.0.1", "-k", self.socket_dir]
        with self.log.open("ab") as log:
            child = self._account.spawn([self.binaries.postgres, "-D", self.data_dir, *listen], log=log)
        return processes.adopt(child)

    def _wait_ready(self, child: subprocess.Popen[bytes] | None, deadline: float) -> bool:
        """True once the server answers, False if it ended instead."""
        while time.monotonic() < deadline:
            has_ended = processes.has_ended(child.pid) if child else not self.is_running
            if has_ended:
                return False
            if self._answers():
                return True
            time.sleep(0.01)
        raise ServerError(f"node {self.name}: the server did not answer in time", hint=f"its log is {self.log}")

    def _answers(self) -> bool:
        lines = self._pid_lines()
        # Asking before it is ready would fill the log with refusals.
        if len(lines) < 8 or lines[7].strip() != "ready" or not self.is_running:
            return False
        self.port = int(lines[3])
        try:
            with psycopg.connect(self.socket_dsn("postgres", "postgres"), connect_timeout=5) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True

    def _pid_lines(self) -> list[str]:
        try:
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def _write_conf(self) -> None:
        path = self.data_dir / CONF_NAME
        path.write_text(render_settings(self.settings))
        path.chmod(0o600)
        self._account.own(path)
