"""Health: tells over HTTP which services run and which wait for their database."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass

from cascade.node.service import Service


@dataclass(slots=True)
class ServiceHealth:
    """The state of one service, as the daemon sees it."""

    service: Service
    error: str | None = None
    restarts: int = 0

    @property
    def state(self) -> str:
        """Return running once a turn of this run succeeded, waiting before that."""
        return "waiting" if self.service.turned_at is None else "running"

    @property
    def idle_s(self) -> float | None:
        """Return how long ago the last turn was."""
        return None if self.service.turned_at is None else round(time.monotonic() - self.service.turned_at, 3)


class Health:
    """Answers GET /health: 200 when every service runs, 503 otherwise."""

    name = "health"

    def __init__(self, address: tuple[str, int], services: dict[str, ServiceHealth]) -> None:
        self._address, self._services = address, services
        self.port: int | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set."""
        server = await asyncio.start_server(self._answer, *self._address)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            await stop.wait()

    def report(self) -> tuple[bool, dict[str, object]]:
        """Return whether all is well, and the details."""
        healthy = all(service.state == "running" for service in self._services.values())
        services = {
            name: {
                "state": service.state,
                "last_turn_s": service.idle_s,
                "error": service.error if service.state == "waiting" else None,
                "restarts": service.restarts,
            }
            for name, service in self._services.items()
        }
        return healthy, {"healthy": healthy, "services": services}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, ConnectionError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                request = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                healthy, report = self.report()
                status, body = ("404 Not Found", b"")
                if len(request) > 1 and request[1] in ("/health", "/"):
                    status = "200 OK" if healthy else "503 Service Unavailable"
                    body = json.dumps(report).encode()
                head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()
