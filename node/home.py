"""Where a node is at home: its set, its database, and the way to its provider."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString, Self

from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import BY_SQLSTATE, ForeignSetError, JoinError, MemberNotFoundError
from cascade.node.pipe import deadline
from cascade.topology import Topology, expand

#: Severing alone would leave a session behind that waits on, and holds the lock of its service.
HURRY: LiteralString = "select set_config('lock_timeout', %s, false)"
DESCRIBE: LiteralString = "select cascade.describe_node(%s)"
JOIN: LiteralString = "select cascade.join_provider(%s, %s)"
NOTE_ANSWER: LiteralString = "select cascade.note_answer(%s, %s, %s, %s, %s)"
RAISE_GENERATION: LiteralString = "select cascade.raise_generation(%s, %s)"
GENERATION: LiteralString = "select cascade.node_generation(%s)"
LOCATION: LiteralString = "select database, dsn from cascade.locations where set = %s and node = %s"

#: The answers with which a node goes on; each of the others stops it, by its SQLSTATE.
SERVED = ("on path", "behind")
#: Those that tell of the provider's trouble: it is asked again.
PASSING = ("conflict", "stale", "rewound")
SQLSTATES = {
    "dropped": "QC701",
    "dirty": "QC702",
    "conflict": "QC703",
    "stale": "QC704",
    "rewound": "QC705",
    "diverged": "QC706",
    "expired": "QC707",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A node as its own database describes it."""

    node: str
    role: str
    provider: str | None
    generation: int
    state: str
    answer: str | None
    queue_id: int
    tick_id: int
    chain: bytes
    #: The combined set that it feeds, if it is a merge-leaf.
    into: str | None
    introduction: Mapping[str, Any]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Read what cascade.describe_node() returned."""
        return cls(
            node=found["node"],
            role=found["role"],
            provider=found["provider"],
            generation=found["generation"],
            state=found["state"],
            answer=found["answer"],
            queue_id=found["queue_id"],
            tick_id=found["tick"]["tick_id"],
            chain=bytes.fromhex(found["tick"]["chain"].removeprefix("\\x")),
            into=found["into"],
            introduction=found,
        )

    def is_like(self, other: Standing) -> bool:
        """Whether nobody switched, paused, promoted or dropped it in between; a term may have been learned."""
        mine = (self.role, self.provider, self.state, self.answer == "dropped")
        return mine == (other.role, other.provider, other.state, other.answer == "dropped")

    @property
    def is_stopped(self) -> bool:
        """Whether an operator, its provider's answer or a promotion keeps it from copying."""
        return (
            self.provider is None or self.state == "paused" or (self.answer is not None and self.answer not in SERVED)
        )

    @property
    def is_kept_waiting(self) -> bool:
        """Whether it is stopped by its provider's trouble, which may pass: a former root follows the new one."""
        return self.state != "paused" and self.answer in PASSING and self.provider is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """One set's node on one database; `topology` gives the file as it is now, if there is one."""

    set: str
    dsn: str
    topology: Callable[[], Topology | None] = lambda: None
    #: No answer for so long means that a link is dead.
    link_timeout_s: float = 15.0

    @property
    def lock_timeout(self) -> str:
        """How long somebody else's lock is waited for: the server ends the wait before the link is severed."""
        return f"{self.link_timeout_s * 500:.0f}ms"

    async def connect(self, service: str) -> AsyncConnection:
        """Connect to the node's own database."""
        return await connect(self.dsn, service=f"{self.set}/{service}")

    async def describe(self, conn: AsyncConnection) -> Standing:
        """Ask the node's own database where it stands."""
        return Standing.parse(await self.call(conn, DESCRIBE, self.set))

    async def generation(self, conn: AsyncConnection) -> int:
        """Ask the node's own database whether anything was switched, paused or dropped."""
        return int(await self.call(conn, GENERATION, self.set))

    async def call(self, conn: AsyncConnection, query: LiteralString, *arguments: object) -> Any:
        """Run a statement that returns one value, and give the link up when it does not answer."""
        with translated(), deadline(self.link_timeout_s, conn):
            row = await (await conn.execute(query, arguments)).fetchone()
        return row[0] if row else None

    async def address(self, conn: AsyncConnection, node: str) -> str:
        """Return how to reach another node: as the file has it, else as the database was told."""
        topology = self.topology()
        if topology is not None and self.set in topology.sets and node in topology.sets[self.set].nodes:
            database = topology.sets[self.set].nodes[node].database
            return expand(topology.databases[database].dsn, os.environ)
        with translated(), deadline(self.link_timeout_s, conn):
            row: Any = await (await conn.execute(LOCATION, (self.set, node))).fetchone()
        if row is None or not row[1]:
            raise MemberNotFoundError(
                f"set {self.set}: it is not known where node {node} is",
                hint="Name it in the topology file; the view cascade.locations shows what is known.",
            )
        return expand(row[1], os.environ)

    async def join(self, local: AsyncConnection, provider: AsyncConnection, me: Standing) -> tuple[Standing, str]:
        """Introduce the node to a provider, and store what both learn; raise the answer if it stops the node.

        Returns the node as it is afterwards (a term learned, or a position told before and lost since,
        gives it a new generation), and the channel on which the provider announces its ticks.
        """
        found = await self.call(provider, JOIN, self.set, Jsonb(me.introduction))
        answer, detail = found["answer"], found["detail"]
        generation = await self.call(local, NOTE_ANSWER, self.set, me.generation, answer, detail, Jsonb(found["terms"]))
        if answer not in SERVED:
            raise join_error(answer, detail)
        told = found["told_generation"]
        if me.into is not None:
            # The combined set's log says where a merge-leaf stands, and its term under which generation it speaks.
            told = None
        if told is not None and (told, found["told_tick"]) > (generation, me.tick_id):
            await self.call(local, RAISE_GENERATION, self.set, told)
            return await self.join(local, provider, await self.describe(local))
        me = me if generation == me.generation else await self.describe(local)
        return me, f"cascade_tick_{found['queue_id']}"


def check_set(answer: dict[str, Any], set_name: str, set_uid: str) -> dict[str, Any]:
    """Return what another node said of its terms, or raise that it belongs to another set of this name."""
    if answer["set_uid"] != set_uid:
        raise ForeignSetError(
            f"node {answer['node']} belongs to set {set_name} of uid {answer['set_uid']}, not {set_uid}",
            hint="Two sets have one name: mend the DSN that leads there.",
        )
    return answer


def join_error(answer: str, detail: str) -> JoinError:
    """Return the error that stands for an answer."""
    error = BY_SQLSTATE[SQLSTATES[answer]](f"{answer}: {detail}")
    assert isinstance(error, JoinError)
    return error
