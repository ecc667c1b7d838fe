"""Observation: what every database of a topology says of its nodes, asked at once.

A database that does not answer is no reason to show nothing: assess.py and outlook.py make the best of the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from cascade.db import connect, translated
from cascade.errors import CascadeError, SchemaError
from cascade.node.enroll import dsn_of
from cascade.topology import Topology

NODES: LiteralString = "select n.*, clock_timestamp() as asked_at from cascade.nodes as n"
MEMBERS: LiteralString = "select * from cascade.members"
ROTATION: LiteralString = "select * from cascade.rotation"
QUEUES: LiteralString = (
    "select queue, events_ticked, ids_after_tick,"
    " extract(epoch from (options->>'tick_idle')::interval)::float8 as tick_idle_s from cascade.queues"
)
CERTIFICATES: LiteralString = "select set, number, pending from cascade.certificates where state = 'open'"
PARTS: LiteralString = "select * from cascade.parts"
QUARANTINE: LiteralString = (
    "select set, sum(events)::bigint as events from cascade.quarantine where state = 'held' group by set"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one database said, or why it said nothing."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: list[dict[str, Any]] = field(default_factory=list)
    rotation: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Certificates that are open, and how many events are held in quarantine here.
    certificates: list[dict[str, Any]] = field(default_factory=list)
    quarantine: dict[str, int] = field(default_factory=dict)
    #: How far the parts of combined sets have come here.
    parts: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


async def observe(topology: Topology, *, timeout_s: float = 5.0) -> dict[str, Answer]:
    """Ask every database of the topology at once; none can keep the others waiting longer than this."""
    names = list(topology.databases)
    answers = await asyncio.gather(*(_ask(topology, name, timeout_s) for name in names))
    return dict(zip(names, answers, strict=True))


async def _ask(topology: Topology, database: str, timeout_s: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_s):
            conn = await connect(dsn_of(topology, database), service="status")
            try:
                async with conn.cursor(row_factory=dict_row) as cur:
                    with translated():
                        nodes = await (await cur.execute(NODES)).fetchall()
                        members = await (await cur.execute(MEMBERS)).fetchall()
                        rotation = await (await cur.execute(ROTATION)).fetchall()
                        queues = await (await cur.execute(QUEUES)).fetchall()
                        certificates = await (await cur.execute(CERTIFICATES)).fetchall()
                        quarantine = await (await cur.execute(QUARANTINE)).fetchall()
                        parts = await (await cur.execute(PARTS)).fetchall()
            finally:
                conn.pgconn.finish()
    except TimeoutError:
        return Answer(error=f"no answer within {timeout_s:g} s")
    except SchemaError as error:
        return Answer(error=str(error.args[0]))
    except (CascadeError, psycopg.Error, OSError) as error:
        return Answer(error=str(error.args[0] if error.args else error).splitlines()[0])
    return Answer(
        nodes={row["set"]: row for row in nodes},
        members=members,
        rotation={row["queue"]: row for row in rotation},
        queues={row["queue"]: row for row in queues},
        certificates=certificates,
        quarantine={row["set"]: row["events"] for row in quarantine},
        parts=parts,
    )
