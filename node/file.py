"""TopologyFile: the file as it was last read without a problem, and when it changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from cascade.errors import TopologyError
from cascade.topology import Topology, load

log = logging.getLogger("cascade.node")

LOOK_S = 1.0


class TopologyFile:
    """Watches one file; a broken one is reported and the last good one stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._asked = asyncio.Event()
        self.topology = load(path)
        self.problem: str | None = None

    def get(self) -> Topology:
        """Return what the file says."""
        return self.topology

    def reload(self) -> None:
        """Read the file anew at once, as SIGHUP asks."""
        self._seen = None
        self._asked.set()

    async def changed(self) -> bool:
        """Wait a while; True when the file says something else now."""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._asked.wait()
        except TimeoutError:
            pass
        self._asked.clear()
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            found = load(self._path)
        except (TopologyError, OSError) as error:
            self.problem = str(error)
            log.error("the topology file is not obeyed:\n%s", error)
            return False
        self.problem = None
        if found == self.topology:
            return False
        self.topology = found
        log.info("the topology file has changed")
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
