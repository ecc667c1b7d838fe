"""Health: tells over HTTP which services run and which wait, and why."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field

from cascade.node.service import Service

log = logging.getLogger("cascade.node")

#: The same trouble is logged so often while it lasts, with a count: no storm.
REPEAT_S = 60.0


@dataclass(slots=True)
class ServiceHealth:
    """The state of one service, as the daemon sees it."""

    service: Service
    error: str | None = None
    restarts: int = 0
    _logged: str | None = None
    _logged_at: float = 0.0
    _unlogged: int = 0

    @property
    def state(self) -> str:
        """Return running once a turn of this run succeeded, waiting before that."""
        return "waiting" if self.service.turned_at is None else "running"

    @property
    def idle_s(self) -> float | None:
        """Return how long ago the last turn was."""
        return None if self.service.turned_at is None else round(time.monotonic() - self.service.turned_at, 3)

    def tell(self, name: str, error: Exception, delay_s: float) -> None:
        """Log an error, but the same one only once a minute."""
        text = str(error)
        if text == self._logged and time.monotonic() - self._logged_at < REPEAT_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more like the last)" if self._unlogged else ""
        log.warning("service %s: %s%s; again in %.1f s", name, error, more, delay_s)
        self._logged, self._logged_at, self._unlogged = text, time.monotonic(), 0


@dataclass(slots=True)
class Report:
    """What the daemon knows of itself."""

    services: dict[str, ServiceHealth] = field(default_factory=dict)
    #: What is not as the topology file says, and why the file could not be read.
    drift: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, service: Service) -> ServiceHealth:
        """Begin to tell about a service."""
        state = ServiceHealth(service)
        self.services[service.name] = state
        return state

    def take(self) -> tuple[bool, dict[str, object]]:
        """Return whether all is well, and the details."""
        healthy = not self.problems and all(service.state == "running" for service in self.services.values())
        services = {
            name: {
                "state": service.state,
                "last_turn_s": service.idle_s,
                "error": service.error if service.state == "waiting" else None,
                "note": getattr(service.service, "note", None),
                "restarts": service.restarts,
            }
            for name, service in self.services.items()
        }
        found: dict[str, object] = {"healthy": healthy, "services": services}
        if self.drift:
            found["drift"] = {name: f"TOPOLOGY_DRIFT: {text}" for name, text in self.drift.items()}
        if self.problems:
            found["problems"] = dict(self.problems)
        return healthy, found


class Health:
    """Answers GET /health: 200 when every service runs, 503 otherwise."""

    name = "health"

    def __init__(self, address: tuple[str, int], report: Report) -> None:
        self._address, self._report = address, report
        self.port: int | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set."""
        server = await asyncio.start_server(self._answer, *self._address)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            await stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, ConnectionError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                request = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                healthy, report = self._report.take()
                status, body = ("404 Not Found", b"")
                if len(request) > 1 and request[1] in ("/health", "/"):
                    status = "200 OK" if healthy else "503 Service Unavailable"
                    body = json.dumps(report).encode()
                head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()
