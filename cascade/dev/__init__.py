"""Real PostgreSQL servers for development, tests and the demo; nothing here is meant for production."""

from __future__ import annotations

from cascade.dev.binaries import Binaries, all_binaries, find_binaries
from cascade.dev.cluster import Cluster
from cascade.dev.server import Server, ServerState

__all__ = ["Binaries", "Cluster", "Server", "ServerState", "all_binaries", "find_binaries"]
