"""Ask every database of a set what it has, before its carriers are compared.

Everybody is asked at once; who does not answer in time is named in the report, and keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from cascade.db import connect, translated
from cascade.errors import (
    ArgumentError,
    CascadeError,
    ExpiredError,
    ForeignSetError,
    NodeNotFoundError,
    QueueNotFoundError,
    TransientError,
)
from cascade.spark.ranges import SERVICE, place
from cascade.topology import Role, Topology, expand
from cascade.topology.observe import Answer, Observed, View
from cascade.topology.terms import left_at

#: What digest_spans() is asked about at once: so many stretches of each log.
PARTS = 256
#: A place that every node has: where its log begins, or ends.
EARLIEST, LATEST = "earliest", "latest"
FIND = "select cascade.find_tick(%s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A node that keeps the events of a set, and which of them."""

    node: str
    role: Role
    provider: str | None
    dsn: str = field(repr=False)
    #: The batches after the first tick, up to the last one, are held whole.
    first_tick: int
    last_tick: int
    events: int
    first_time: datetime
    last_time: datetime
    #: A copy that has events outside its last tick.
    is_dirty: bool = False
    #: The last tick that it has in common with the set, when it went on from there by itself.
    fork_tick: int | None = None
    bounds: tuple[int, ...] = ()
    #: Quick digests of carriers with the same hashing can be compared.
    hashing: int = 0

    @property
    def end(self) -> int:
        """Return the last tick that can be compared."""
        return self.last_tick if self.fork_tick is None else min(self.last_tick, self.fork_tick)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriers:
    """The carriers of a set that answered, those nearest to the root first, and why others did not."""

    found: Mapping[str, Carrier]
    silent: Mapping[str, str]
    observed: Observed


def look(topology: Topology, set_name: str, nodes: Sequence[str] | None = None, *, timeout_s: float = 10.0) -> Carriers:
    """Ask the databases of a set; without `nodes`, all that the file has, and members that only the databases know.

    Raise TransientError when there are no two carriers to compare.
    """
    if set_name not in topology.sets:
        topology.find(set_name, "")
    # A program may have an event loop of its own, as notebooks do.
    with ThreadPoolExecutor(1, thread_name_prefix="carriers") as thread:
        made = thread.submit(asyncio.run, _look(topology, set_name, nodes, timeout_s)).result()
    if len(made.found) < 2:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in made.silent.items())
        raise TransientError(
            f"set {set_name}: there are no two carriers to compare. {reasons}".strip(),
            hint="A leaf keeps no events; cascade status shows who answers.",
        )
    return made


def find_place(carriers: Sequence[Carrier], queue: str, at: str | int | datetime) -> int | None:
    """Return a place as a tick; None for an end of the log, and 0 for a time before all that is held.

    A time means the same tick on every node that holds it.
    """
    text = place(at)
    if text in (EARLIEST, LATEST):
        return None
    if text.isdigit():
        return int(text)
    answers = [answer for _, answer in _gather([(each.dsn, FIND, (queue, text)) for each in carriers])]
    ticks = [answer for answer in answers if isinstance(answer, int)]
    failed = [answer for answer in answers if isinstance(answer, Exception) and not isinstance(answer, ExpiredError)]
    if failed and not ticks:
        raise failed[0]
    return max(ticks, default=0)


async def _look(topology: Topology, set_name: str, nodes: Sequence[str] | None, timeout_s: float) -> Carriers:
    file = topology.sets[set_name].nodes
    dsns = {node.name: expand(topology.databases[node.database].dsn, os.environ) for node in file.values()}
    answers = await _describe_all(dsns, set_name, timeout_s)
    observed = Observed.build(set_name, answers)
    _check_one_set(observed)
    more = {name: dsn for name, dsn in _other_members(observed).items() if name not in dsns}
    if more:
        dsns |= more
        answers |= await _describe_all(more, set_name, timeout_s)
        observed = Observed.build(set_name, answers)
    for name in nodes or ():
        if name not in answers:
            topology.find(set_name, name)
    wanted = [name for name in answers if nodes is None or name in nodes]
    roles = {name: observed.role_of(name) or (file[name].role if name in file else Role.BRANCH) for name in wanted}
    for name, role in roles.items():
        if nodes is not None and not Role(role).is_carrier:
            raise ArgumentError(f"node {name} is a {role} and keeps no events", hint="Name nodes that carry the queue.")
    silent = {
        name: str(observed.silent[name]) for name in wanted if name in observed.silent and Role(roles[name]).is_carrier
    }
    silent |= {name: "it has no node of the set" for name in wanted if name in observed.missing and nodes is not None}
    views = [observed.views[name] for name in wanted if name in observed.views and observed.views[name].is_carrier]
    queries = [(dsns[view.node], "select * from cascade.measure_log(%s, %s)", (set_name, PARTS)) for view in views]
    measured = await asyncio.gather(*(_rows(*query, timeout_s=timeout_s * 6) for query in queries))
    found: dict[str, Carrier] = {}
    for view, rows in sorted(zip(views, measured, strict=True), key=lambda pair: _depth(observed, pair[0])):
        if isinstance(rows, list):
            found[view.node] = _carrier(view, rows[0], dsns[view.node], observed)
        else:
            silent[view.node] = _first_line(rows)
    return Carriers(found=found, silent=silent, observed=observed)


def _carrier(view: View, row: Sequence[Any], dsn: str, observed: Observed) -> Carrier:
    first_tick, last_tick, _, events, first_time, last_time, is_dirty, bounds, hashing = row
    fork = left_at(view.tick, observed.terms, observed.tip) if len(observed.tips) == 1 else None
    return Carrier(
        node=view.node,
        role=view.role,
        provider=view.provider,
        dsn=dsn,
        first_tick=first_tick,
        last_tick=last_tick,
        events=events,
        first_time=first_time,
        last_time=last_time,
        is_dirty=is_dirty and fork is None,
        fork_tick=fork.tick_id if fork else None,
        bounds=tuple(bounds),
        hashing=hashing,
    )


def _check_one_set(observed: Observed) -> None:
    uids = {view.set_uid for view in observed.views.values()}
    if len(uids) > 1:
        told = "; ".join(f"{view.node}: set {view.set_uid}" for view in observed.views.values())
        raise ForeignSetError(
            f"set {observed.set}: its databases belong to different sets of one name. {told}",
            hint="Mend the DSN in the file that leads to the other one.",
        )


def _other_members(observed: Observed) -> dict[str, str]:
    """Return where live members are that told the others."""
    found = {}
    for name, member in observed.members.items():
        dsn = member.location.get("dsn")
        if member.state == "live" and member.is_carrier and dsn:
            try:
                found[name] = expand(str(dsn), os.environ)
            except CascadeError:
                continue  # A variable that is not set here: it cannot be reached from here.
    return found


def _depth(observed: Observed, view: View) -> tuple[bool, int, str]:
    """Return how many hops a node is away from the root; who reigns comes before who still thinks it does."""
    depth, name = 0, view.provider
    while name is not None and depth <= len(observed.views):
        depth, name = depth + 1, observed.provider_of(name)
    return view.role.is_root and view.node not in [term.node for term in observed.tips], depth, view.node


async def _describe_all(dsns: Mapping[str, str], set_name: str, timeout_s: float) -> dict[str, Answer]:
    found = await asyncio.gather(
        *(_rows(dsn, "select cascade.describe_set(%s)", (set_name,), timeout_s=timeout_s) for dsn in dsns.values())
    )
    return {name: _answer(rows) for name, rows in zip(dsns, found, strict=True)}


def _answer(rows: list[Any] | Exception) -> Answer:
    if isinstance(rows, list):
        found: Mapping[str, Any] = rows[0][0]
        return found
    return None if isinstance(rows, NodeNotFoundError | QueueNotFoundError) else _first_line(rows)


def _gather(queries: Sequence[tuple[str, str, tuple[Any, ...]]]) -> list[tuple[str, Any]]:
    """Run a query in each of some databases; return its value, or the error."""

    async def ask() -> Sequence[list[Any] | Exception]:
        return await asyncio.gather(*(_rows(*query, timeout_s=60.0) for query in queries))

    with ThreadPoolExecutor(1, thread_name_prefix="carriers") as thread:
        answers = thread.submit(asyncio.run, ask()).result()
    return [
        (query[0], rows[0][0] if isinstance(rows, list) else rows) for query, rows in zip(queries, answers, strict=True)
    ]


async def _rows(dsn: str, query: str, arguments: tuple[Any, ...], *, timeout_s: float) -> list[Any] | Exception:
    """Return the rows of a query, one value each, or why there are none."""
    try:
        return await fetch(dsn, query, arguments, timeout_s=timeout_s)
    except (CascadeError, psycopg.Error, OSError) as error:
        return error


async def fetch(dsn: str, query: str, arguments: Sequence[Any], *, timeout_s: float) -> list[Any]:
    """Run one query on a connection of its own; a database that does not answer in time is given up."""
    try:
        async with asyncio.timeout(timeout_s):
            conn = await connect(dsn, service=f"{SERVICE}/reconcile", prepare_threshold=None)
            try:
                with translated():
                    found: list[Any] = await (await conn.execute(query.encode(), arguments, binary=True)).fetchall()
                return found
            finally:
                conn.pgconn.finish()
    except TimeoutError:
        raise TransientError(f"no answer within {timeout_s:g} s") from None


def _first_line(error: Exception) -> str:
    return (str(error.args[0] if error.args else error).strip().splitlines() or [type(error).__name__])[0]
