"""Tells systemd that the daemon is ready, alive and stopping, where systemd asked to be told."""

from __future__ import annotations

import asyncio
import os
import socket

from cascade.node.service import pause


def notify(state: str) -> bool:
    """Send a state to systemd; False when nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
            link.connect(address)
            link.sendall(state.encode())
    except OSError:
        return False
    return True


def watchdog_s() -> float | None:
    """Return how often systemd wants a sign of life: half of what it allows; None when it does not care."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    allowed = os.environ.get("WATCHDOG_USEC", "")
    return int(allowed) / 2_000_000 if allowed.isdigit() and int(allowed) else None


async def keep_alive(stop: asyncio.Event) -> None:
    """Tell systemd that the event loop turns, until `stop` is set."""
    if (every_s := watchdog_s()) is None:
        return
    while not stop.is_set():
        notify("WATCHDOG=1")
        await pause(stop, every_s)
