"""Watchdog: removes a temporary cluster when the process that made it dies before it could.

It waits for the end of a pipe that only that process holds open, so that no death goes unnoticed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cascade.dev.processes import wait_until
from cascade.errors import CascadeError

# The imports come last: while it waits it takes a few megabytes.
CODE = """
import sys
sys.stdin.buffer.read()
from cascade.dev.watchdog import discard
discard(sys.argv[1])
"""


class Watchdog:
    """Watches from the moment it is made; the block after which it is called off has removed the cluster."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def discard(directory: str) -> None:
    """Stop what runs in a temporary cluster and delete the directory."""
    from cascade.dev.cluster import Cluster

    with contextlib.suppress(CascadeError, OSError):  # it may not be there, or be half made
        Cluster.open(directory).remove()

    def is_deleted() -> bool:
        shutil.rmtree(directory, ignore_errors=True)  # an orphaned initdb may still be writing
        return not Path(directory).exists()

    wait_until(is_deleted, timeout_s=30)
