"""What commands about a set share: asking its databases, and doing something in several of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cascade.cli.operate import Job, read
from cascade.errors import TransientError

if TYPE_CHECKING:
    from cascade.node.survey import Links
    from cascade.topology import Topology
    from cascade.topology.observe import Observed

T = TypeVar("T")


def ask(path: Path, set_name: str, timeout_s: float) -> tuple[Topology, Observed]:
    """Ask the databases that a file gives a set; somebody must answer."""
    topology = read(path)[1]
    if set_name not in topology.sets:
        topology.find(set_name, "")
    observed = Job(set=set_name, wanted=topology, timeout_s=timeout_s).look()
    if not observed.views:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in observed.silent.items())
        raise TransientError(f"no database of set {set_name} answers with a node of it. {reasons}".strip())
    return topology, observed


def answering(observed: Observed, node: str) -> Observed:
    """Refuse to go on without a node."""
    if node not in observed.views:
        reason = observed.silent.get(node) or "it has no node of the set"
        raise TransientError(f"node {node} does not answer: {reason}")
    return observed


def run(topology: Topology, observed: Observed, work: Callable[[Links], Awaitable[T]]) -> T:
    """Do something with links to the nodes."""
    from cascade.node.survey import Links

    async def with_links() -> T:
        async with Links(topology, observed) as links:
            return await work(links)

    return asyncio.run(with_links())


def with_ids(found: Sequence[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Return rows with their ids as text, as the contract of --json has them."""
    return [{**row, **{key: str(row[key]) for key in keys if row.get(key) is not None}} for row in found]
