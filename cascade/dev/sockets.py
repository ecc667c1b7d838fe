"""Where servers listen: free TCP ports, and a private directory for their Unix sockets."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from cascade.dev.account import Account

# The path of a socket may be some hundred bytes long.
SOCKET_PATH_BYTES_MAX = 100

_making = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Distinct ports of the loopback interface that nobody listens on; they may be taken a moment later."""
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [int(holder.getsockname()[1]) for holder in holders]


def socket_dir(run_dir: Path) -> Path:
    """Where the sockets of `run_dir` are: there, or in the shorter directory that it links to."""
    return Path(os.readlink(run_dir)) if run_dir.is_symlink() else run_dir


def make_socket_dir(run_dir: Path, *, account: Account) -> Path:
    """Make sure that the directory for sockets is there, and return it.

    If `run_dir` is too long a path for a socket, it becomes a link to a temporary directory.
    """
    with _making:
        if len(os.fsencode(run_dir / ".s.PGSQL.65535")) <= SOCKET_PATH_BYTES_MAX:
            account.make_dir(run_dir)
        elif not _is_private(run_dir, account):
            short = Path(tempfile.mkdtemp(prefix="cascade-run-"))
            account.own(short)
            run_dir.unlink(missing_ok=True)  # its directory is gone, or somebody else has made one of that name
            run_dir.symlink_to(short)
        return socket_dir(run_dir)


def _is_private(run_dir: Path, account: Account) -> bool:
    """Whether the directory is there, ours and closed to others: its sockets ask for no password."""
    if not run_dir.is_dir():
        return False
    found, owner = run_dir.stat(), os.geteuid() if account.uid is None else account.uid
    return found.st_uid == owner and found.st_mode & 0o077 == 0


def drop_socket_dir(run_dir: Path) -> None:
    """Remove the directory for sockets, wherever it is; no server may be using it."""
    shutil.rmtree(socket_dir(run_dir), ignore_errors=True)
    run_dir.unlink(missing_ok=True)
