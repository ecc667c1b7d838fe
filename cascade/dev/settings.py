"""The settings servers run with, as a file that postgresql.conf includes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cascade.errors import ConfigError

DEFAULTS: Mapping[str, str] = {
    "fsync": "on",
    "jit": "off",
    "log_min_messages": "warning",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "max_connections": "200",
    "max_prepared_transactions": "0",
    "shared_buffers": "128MB",
    "timezone": "UTC",
}
CHOSEN_HERE = frozenset({"data_directory", "listen_addresses", "port", "unix_socket_directories"})


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse names that cannot be settings, and settings that are chosen for every node."""
    for name in settings:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
            raise ConfigError(f"{name!r} is not the name of a PostgreSQL setting")
        if name.lower() in CHOSEN_HERE:
            raise ConfigError(f"the setting {name} cannot be given: it is chosen for every node")


def render_settings(settings: Mapping[str, str]) -> str:
    """The defaults with `settings` over them, as lines of a configuration file."""
    merged = {**DEFAULTS, **{name.lower(): value for name, value in settings.items()}}
    return "".join(f"{name} = {_quote(value)}\n" for name, value in merged.items())


def _quote(value: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ("'", "''"), ("\n", "\\n")):
        value = value.replace(plain, escaped)
    return f"'{value}'"
