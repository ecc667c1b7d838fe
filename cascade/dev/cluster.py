"""A few servers in one directory, brought up and down together.

DIR/cluster.json   nodes, ports and programs      DIR/nodes/NAME/    data directories
DIR/pgpass         the password of both roles     DIR/log/NAME.log   what the servers say
DIR/run/           sockets                        DIR/templates/     what nodes are copied from
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from cascade.dev.account import Account, choose_account
from cascade.dev.binaries import Binaries, binaries_like, find_binaries
from cascade.dev.server import Server, StopMode
from cascade.dev.settings import check_settings
from cascade.dev.sockets import drop_socket_dir, free_ports
from cascade.dev.state import ClusterState, check_is_ours, is_own, load_state, node_names, save_state
from cascade.dev.template import Templates, locked, read_password, write_passfile
from cascade.dev.watchdog import Watchdog
from cascade.errors import CascadeError, NotFoundError, ServerError

# A process may be killed here, a machine does not lose power: nothing needs to reach the disk.
TEMPORARY_SETTINGS: Mapping[str, str] = {"fsync": "off"}


class Cluster:
    """The nodes of one directory: `nodes` is a number (n1, n2 …) or their names.

    Making the object changes nothing; `up` and `down` do, and may be called again at any time and by
    several processes at once.  As a context manager it is up inside the block and down after it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        nodes: int | Sequence[str] = 1,
        binaries: Binaries | None = None,
        settings: Mapping[str, str] | None = None,
        templates: str | Path | None = None,
        account: Account | None = None,
    ) -> None:
        self.dir = Path(directory).resolve()
        self._names = node_names(nodes if isinstance(nodes, int) else list(nodes))
        self._binaries = binaries
        self._settings = dict(settings or {})
        check_settings(self._settings)
        self._account = account or choose_account()
        self._templates = Templates(
            Path(templates).resolve() if templates else self.dir / "templates", account=self._account
        )
        self._servers: dict[str, Server] = {}
        if (state := load_state(self.dir)) is not None:
            self._servers = self._make_servers(state)

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """The cluster that is in `directory`, with the nodes it has."""
        state = load_state(Path(directory))
        if state is None:
            raise ServerError(f"there is no cluster in {directory}", hint="`cascade dev up` makes one")
        return cls(directory, nodes=list(state.nodes))

    @classmethod
    @contextlib.contextmanager
    def temporary(
        cls,
        nodes: int | Sequence[str] = 1,
        *,
        settings: Mapping[str, str] | None = None,
        binaries: Binaries | None = None,
        templates: str | Path | None = None,
        account: Account | None = None,
        within: str | Path | None = None,
    ) -> Iterator[Self]:
        """A running cluster that is gone after the block, and even if this process is killed inside it.

        `templates` is a directory that several clusters share, so that only the first runs initdb.
        `within` is where its own directory is made, instead of the system's place for temporary files.
        """
        directory = Path(within or tempfile.gettempdir()) / f"cascade-{secrets.token_hex(6)}"
        cluster = cls(
            directory,
            nodes=nodes,
            settings={**TEMPORARY_SETTINGS, **(settings or {})},
            binaries=binaries,
            templates=templates,
            account=account,
        )
        with Watchdog(directory):
            try:
                cluster.up()
                yield cluster
            finally:
                cluster.remove()

    @property
    def nodes(self) -> Mapping[str, Server]:
        """The servers by the names of their nodes; empty before the first `up`."""
        return self._servers

    def __getitem__(self, name: str) -> Server:
        try:
            return self._servers[name]
        except KeyError:
            there = ", ".join(self._servers) or "none"
            raise NotFoundError(f"there is no node {name!r} in {self.dir}; there are: {there}") from None

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down("immediate")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make the nodes that are missing and start those that are stopped.

        Settings given here are remembered once all servers run with them; a server that ran before
        takes those that need a restart at its next start.  After an error the nodes that could
        be started keep running, and `up` may be called again.
        """
        self._account.make_passage(self.dir)
        check_is_ours(self.dir)
        with locked(self.dir):
            old = load_state(self.dir)
            state = self._plan(old)
            save_state(self.dir, replace(state, settings=old.settings if old else {}))
            template = self._template(self._binaries_for(state))
            for name in ("nodes", "log"):
                self._account.make_passage(self.dir / name)
            self._servers = self._make_servers(state)
            errors = self._start_all(template, is_changed=old is not None and old.settings != state.settings)
            ports = {name: server.port for name, server in self._servers.items()}
            kept = state.settings if not errors else old.settings if old else {}
            save_state(self.dir, replace(state, nodes=ports, settings=kept))
        if errors:
            raise errors[0] if len(errors) == 1 else ServerError("\n".join(str(error) for error in errors))

    def down(self, mode: StopMode = "fast") -> None:
        """Stop every server; what they hold stays."""
        if load_state(self.dir) is not None:
            with locked(self.dir):
                self._stop_all(mode)

    def remove(self) -> None:
        """Stop every server at once and delete the cluster; files that are not its own stay."""
        if not self.dir.is_dir():
            return
        check_is_ours(self.dir)
        with locked(self.dir):
            self._stop_all("immediate")
            for server in self._servers.values():
                server.remove()
            for path in self.dir.iterdir():
                if path.is_dir() and is_own(path.name):
                    shutil.rmtree(path)
                elif is_own(path.name):
                    path.unlink()
            self._servers = {}
        with contextlib.suppress(OSError):
            self.dir.rmdir()

    def _plan(self, old: ClusterState | None) -> ClusterState:
        """The old nodes with their ports, and a port for each new one."""
        ports = dict(old.nodes) if old else {}
        new = [name for name in self._names if name not in ports]
        ports |= zip(new, free_ports(len(new)), strict=True)
        settings = {**(old.settings if old else {}), **self._settings}
        binaries = self._binaries_for(old) if old else self._binaries or find_binaries()
        return ClusterState(
            bin_dir=str(binaries.bin_dir), version=binaries.version_text, nodes=ports, settings=settings
        )

    def _binaries_for(self, state: ClusterState) -> Binaries:
        """Programs that can run what `state` describes: those asked for, those that made it, or alike."""
        if self._binaries is None:
            return binaries_like(Path(state.bin_dir), state.major)
        if self._binaries.version[0] != state.major:
            raise ServerError(
                f"the nodes in {self.dir} are PostgreSQL {state.major}, not {self._binaries.version[0]}",
                hint="choose another directory, or remove this one with `cascade dev down --remove`",
            )
        return self._binaries

    def _make_servers(self, state: ClusterState) -> dict[str, Server]:
        binaries = self._binaries_for(state)
        return {
            name: Server(
                name,
                self.dir / "nodes" / name,
                binaries=binaries,
                port=port,
                run_dir=self.dir / "run",
                log=self.dir / "log" / f"{name}.log",
                passfile=self.dir / "pgpass",
                settings=state.settings,
                account=self._account,
            )
            for name, port in state.nodes.items()
        }

    def _template(self, binaries: Binaries) -> Path:
        self._account.make_passage(self._templates.dir)
        passfile = self.dir / "pgpass"
        if not passfile.exists():
            write_passfile(passfile, self._templates.password())
        return self._templates.get(binaries, read_password(passfile))

    def _start_all(self, template: Path, *, is_changed: bool) -> list[CascadeError]:
        def start(server: Server) -> CascadeError | None:
            try:
                if is_changed and server.is_running:
                    server.reload()
                server.init(template)
                server.start()
            except CascadeError as error:
                return error
            return None

        with ThreadPoolExecutor(max_workers=8) as pool:
            return [error for error in pool.map(start, self._servers.values()) if error]

    def _stop_all(self, mode: StopMode) -> None:
        state = load_state(self.dir)  # another process may have added nodes
        self._servers = self._make_servers(state) if state else self._servers
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(lambda server: server.stop(mode), self._servers.values()))
        drop_socket_dir(self.dir / "run")
