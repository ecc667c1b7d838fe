"""Which processes of the operating system belong to a data directory, and waiting for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "cwd").exists()

# Our own children: each must be waited for once it ended, or it stays behind as a zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


def adopt(child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Keep a child that may outlive the object that started it."""
    _children[child.pid] = child
    return child


def end_child(child: subprocess.Popen[bytes]) -> None:
    """Make a server that we started go away, whatever it is doing."""
    for number in (signal.SIGQUIT, signal.SIGKILL):
        child.send_signal(number)
        if wait_until(lambda: has_ended(child.pid), timeout_s=10):
            return


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; the process may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Look again and again until `condition` holds; False if it did not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_postmaster(pid: int, data_dir: Path) -> bool:
    """Whether `pid` is, at this moment, a server that was started on `data_dir`."""
    if pid in _children and has_ended(pid):
        return False
    program, found, _ = f"{_command(pid)} ".partition(f" -D {data_dir} ")
    return bool(found) and program.endswith("postgres")


def has_gone(pid: int, data_dir: Path) -> bool:
    """Whether what `is_postmaster` said yes to has ended, and left no zombie of ours."""
    return has_ended(pid) if pid in _children else not is_postmaster(pid, data_dir)


def servers_in(data_dir: Path) -> list[int]:
    """Every postgres process at work in `data_dir`, orphans of a killed server too.

    Without /proc orphans cannot be told from strangers, and the answer is empty.
    """
    return [pid for pid in _all_pids() if _works_in(pid, data_dir)] if HAS_PROC else []


def children_of(pid: int) -> list[int]:
    """The processes started by `pid`, where there is no /proc to find them by their directory."""
    if HAS_PROC:
        return []
    pairs = (line.split() for line in _ps("-axo", "pid=,ppid=").splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that ended and was not waited for is not alive."""
    return bool(_command(pid))


def has_ended(pid: int) -> bool:
    """Whether our child has ended; if so it is waited for and forgotten."""
    if (child := _children.get(pid)) is not None and child.poll() is not None:
        _children.pop(pid, None)
    return pid not in _children


def _command(pid: int) -> str:
    if not HAS_PROC:
        return _ps("-ww", "-o", "command=", "-p", str(pid)).strip()
    try:
        return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).replace("\0", " ").strip()
    except OSError:
        return ""


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _works_in(pid: int, data_dir: Path) -> bool:
    process = PROC / str(pid)
    try:
        return os.readlink(process / "cwd") == str(data_dir) and (process / "comm").read_text() == "postgres\n"
    except OSError:
        return False


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False, timeout=20).stdout
