"""What a cluster remembers between commands: cluster.json, and which files of its directory are its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cascade.dev.template import write_private
from cascade.errors import ConfigError, ServerError

FILE_NAME = "cluster.json"
OWN_NAMES = frozenset({FILE_NAME, "lock", "log", "nodes", "pgpass", "run", "templates"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The nodes with their ports, and the programs that made them; ports are kept while they are free."""

    bin_dir: str
    version: str
    nodes: Mapping[str, int]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def major(self) -> int:
        """The major version of the data directories."""
        return int(self.version.partition(".")[0])


def load_state(directory: Path) -> ClusterState | None:
    """What is remembered of the cluster in `directory`; None if there is no cluster."""
    path = directory / FILE_NAME
    try:
        return ClusterState(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise ServerError(f"{path} is not what Cascade wrote: {error}", hint=f"remove {directory}") from error


def save_state(directory: Path, state: ClusterState) -> None:
    """Remember `state`; whoever reads sees the old one or the new one."""
    write_private(directory / FILE_NAME, json.dumps(asdict(state), indent=2) + "\n")


def is_own(name: str) -> bool:
    """Whether a file of that name in a cluster's directory is the cluster's, or was to become it."""
    return name in OWN_NAMES or name.startswith(tuple(f".{own}-" for own in OWN_NAMES))


def check_is_ours(directory: Path) -> None:
    """Refuse a directory that holds something else: it would be mixed with our files."""
    strangers = sorted(entry.name for entry in directory.iterdir() if not is_own(entry.name))
    if strangers and not (directory / FILE_NAME).exists():
        raise ServerError(
            f"{directory} is not a cluster: it holds {', '.join(strangers[:3])}",
            hint="choose an empty directory, or one that is not there yet",
        )


def node_names(nodes: int | list[str]) -> list[str]:
    """The names asked for: n1 to nN for a number, and otherwise the names themselves."""
    names = [f"n{n}" for n in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
    if not names:
        raise ConfigError("a cluster has at least one node")
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name):
            raise ConfigError(f"{name!r} cannot be the name of a node", hint="a-z, then a-z, 0-9, _ and -")
    if len(set(names)) < len(names):
        raise ConfigError(f"a node is named twice: {', '.join(names)}")
    return names
