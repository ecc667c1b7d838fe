"""A topology as plain values and as YAML again: what `parse` reads back as the same topology."""

from __future__ import annotations

from typing import Any

import yaml

from cascade.topology.model import Node, Set, Topology


def dump(topology: Topology) -> str:
    """Return a topology as YAML."""
    return yaml.safe_dump(as_document(topology), sort_keys=False, allow_unicode=True, default_flow_style=False)


def as_document(topology: Topology) -> dict[str, Any]:
    """Return a topology as the plain values of its file; what is absent, or follows from the rest, is left out."""
    document: dict[str, Any] = {
        "version": topology.version,
        "databases": {name: {"dsn": database.dsn} for name, database in topology.databases.items()},
        "sets": {name: _set(found) for name, found in topology.sets.items()},
    }
    return document | ({"signals": dict(topology.signals)} if topology.signals else {})


def _set(found: Set) -> dict[str, Any]:
    document: dict[str, Any] = {"combines": list(found.combines)} if found.combines else {}
    document["nodes"] = {name: _node(node) for name, node in found.nodes.items() if not node.is_derived}
    more = {"options": dict(found.options) or None, "revision": found.revision}
    return document | {key: value for key, value in more.items() if value is not None}


def _node(node: Node) -> dict[str, Any]:
    parts = {
        "database": node.database,
        "role": str(node.role),
        "provider": node.provider,
        "handler": node.handler,
        "start": node.start,
        "into": node.into,
        "options": dict(node.options) or None,
    }
    return {key: value for key, value in parts.items() if value is not None}
