"""Survey: what every database of a set says of its node, for planning; and links to them, for acting.

Everybody is asked at once, and nobody can keep the others waiting: who does not answer in time is silent.  Members
that the file does not have are asked where they told the others to be.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, LiteralString, Self

import psycopg

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import (
    CascadeError,
    ForeignSetError,
    MemberNotFoundError,
    NodeNotFoundError,
    QueueNotFoundError,
    SchemaError,
    TransientError,
)
from cascade.node.enroll import dsn_of
from cascade.node.home import Home
from cascade.topology import Topology, expand
from cascade.topology.observe import Answer, Observed, View

DESCRIBE_SET: LiteralString = "select cascade.describe_set(%s)"
EXCHANGE: LiteralString = "select cascade.exchange_terms(%s, %s, %s)"
#: Somebody who is said to be dead is asked all the same, but not for longer than this.
DEAD_S = 1.0


async def survey(
    topology: Topology, set_name: str, *, timeout_s: float = 5.0, dead: frozenset[str] = frozenset()
) -> Observed:
    """Ask every database of a set, and members that only the databases know; the dead are not waited for long.

    Raise ForeignSetError when the file leads to two sets of one name: nothing that is known of one holds for the other.
    """
    nodes = topology.sets[set_name].nodes.values()

    async def ask_all(addresses: Mapping[str, str]) -> dict[str, Answer]:
        limits = [min(timeout_s, DEAD_S) if name in dead else timeout_s for name in addresses]
        asked = zip(addresses.values(), limits, strict=True)
        answers = await asyncio.gather(*(_ask(dsn, set_name, limit_s) for dsn, limit_s in asked))
        return dict(zip(addresses, answers, strict=True))

    answers = await ask_all({node.name: dsn_of(topology, node.database) for node in nodes})
    known = Observed.build(set_name, answers)
    check_one_set(known)
    others = {name: known_address(known, name) for name in known.members if name not in answers}
    live = {name: dsn for name, dsn in others.items() if dsn and known.members[name].state == "live"}
    more = {name: _own(answer, known) for name, answer in (await ask_all(live)).items()}
    return Observed.build(set_name, {**answers, **more}) if more else known


def check_one_set(observed: Observed) -> None:
    """Raise ForeignSetError when the databases of a file belong to different sets of one name."""
    sets: dict[str, list[str]] = {}
    for name, view in observed.views.items():
        sets.setdefault(view.set_uid, []).append(name)
    if len(sets) > 1:
        told = "; ".join(f"{', '.join(names)}: set {uid}" for uid, names in sets.items())
        raise ForeignSetError(
            f"set {observed.set}: its databases belong to different sets of one name. {told}",
            hint="Mend the DSN in the file that leads to the other one.",
        )


def _own(answer: Answer, known: Observed) -> Answer:
    """Return what a member that the file does not have says, or that another set is where it told to be."""
    uids = {view.set_uid for view in known.views.values()}
    if isinstance(answer, Mapping) and str(answer["set_uid"]) not in uids:
        return "where it told to be is another set of this name"
    return answer


async def _ask(dsn: str, set_name: str, timeout_s: float) -> Answer:
    """Return what a database says, None when it has no node of the set, or why it does not answer."""
    try:
        async with asyncio.timeout(timeout_s):
            conn = await connect(dsn, service=f"{set_name}/survey")
            try:
                with translated():
                    row: Any = await (await conn.execute(DESCRIBE_SET, (set_name,))).fetchone()
            finally:
                conn.pgconn.finish()
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (NodeNotFoundError, QueueNotFoundError, SchemaError):
        return None
    except (CascadeError, psycopg.Error, OSError) as error:
        return str(error.args[0] if error.args else error).splitlines()[0]
    found: Mapping[str, Any] = row[0]
    return found


def known_address(observed: Observed, node: str) -> str | None:
    """Return where a member told the others to be, variables replaced; None where that cannot be known."""
    dsn = observed.members[node].location.get("dsn")
    try:
        return expand(dsn, os.environ) if dsn else None
    except CascadeError:
        return None


class Links:
    """Connections to the nodes of a set, opened when first used and kept; each is used by one task at a time."""

    def __init__(self, topology: Topology, observed: Observed, *, timeout_s: float = 15.0) -> None:
        self.topology, self.set, self.timeout_s = topology, observed.set, timeout_s
        self._known = observed
        self._open: dict[str, AsyncConnection] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for conn in self._open.values():
            conn.pgconn.finish()

    def address(self, node: str) -> str:
        """Return how to reach a node: as the file has it, else as it told the others."""
        nodes = self.topology.sets[self.set].nodes
        if node in nodes:
            return dsn_of(self.topology, nodes[node].database)
        dsn = known_address(self._known, node) if node in self._known.members else None
        if dsn is None:
            raise MemberNotFoundError(
                f"set {self.set}: it is not known where node {node} is", hint="Name it in the file."
            )
        return dsn

    def home(self, node: str) -> Home:
        """Return a node's home, for what its daemon does too."""
        return Home(set=self.set, dsn=self.address(node), topology=lambda: self.topology, link_timeout_s=self.timeout_s)

    async def connection(self, node: str) -> AsyncConnection:
        """Return the connection to a node; one that broke is opened anew."""
        conn = self._open.get(node)
        if conn is None or conn.closed or conn.broken:
            conn = self._open[node] = await connect(self.address(node), service=f"{self.set}/operator")
        return conn

    async def call(self, node: str, query: LiteralString, *arguments: object, timeout_s: float | None = None) -> Any:
        """Run a statement that returns one value; a node that does not answer in time is given up."""
        limit_s = timeout_s or self.timeout_s
        conn = await self.connection(node)
        try:
            async with asyncio.timeout(limit_s):
                with translated():
                    row = await (await conn.execute(query, arguments)).fetchone()
        except TimeoutError:
            conn.pgconn.finish()
            raise TransientError(f"node {node} gave no answer within {limit_s:g} s") from None
        return row[0] if row else None

    async def view(self, node: str) -> View:
        """Ask a node how it is now."""
        return View.parse(await self.call(node, DESCRIBE_SET, self.set))

    async def warm_up(self, nodes: list[str]) -> None:
        """Open connections before they are needed in a hurry."""
        await asyncio.gather(*(self.connection(node) for node in nodes))
