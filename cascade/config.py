"""What settings may hold beside their text: variables of the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cascade.errors import TopologyError

#: ${NAME}, or ${NAME:-default}.
VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}")


def expand(dsn: str, environ: Mapping[str, str]) -> str:
    """Replace ${NAME} and ${NAME:-default} from the environment, or name every variable that is not set.

    The default stands for a variable that is not set or empty, as in a shell.
    """
    missing: list[str] = []

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            missing.append(name)
        return environ.get(name, "")

    if "${" in VARIABLE.sub("", dsn):
        raise TopologyError("a DSN holds '${' that begins no variable", hint="Write ${NAME} or ${NAME:-default}.")
    expanded = VARIABLE.sub(value, dsn)
    if missing:
        names = " and ".join(dict.fromkeys(missing))
        hint = f"Set it, or write a default: ${{{missing[0]}:-...}}."
        raise TopologyError(f"no environment variable {names}, which a DSN asks for", hint=hint)
    return expanded
