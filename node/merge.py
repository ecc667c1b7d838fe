"""Merge-leaf: copies a part's events into the combined set, or, where another node does, follows how far that has come.

                 ┌── this database is the combined-root ──> copying: events and mark in one transaction
    standing by ─┤                                            │ promoted, fenced, resurrected
                 └── it is a branch of the combined set ──> tracking: moved by the marks in that set's log

A transaction holds a range of the part's ticks, their events with new ids, and a mark that says how far the part is
merged by it.  So every prefix of the combined log says where each part stands, and whoever is promoted goes on
exactly there.  Nothing here decides that: the database compares and swaps, and refuses where it is not the root.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import DivergedError, FencedError, MovedOnError
from cascade.node.copier import Copier, Pace, Range
from cascade.node.home import JOIN, Home, Standing, join_error
from cascade.node.pipe import Raw, deadline, pipe
from cascade.node.service import pause
from cascade.node.survey import EXCHANGE

log = logging.getLogger("cascade.node.merge")

DESCRIBE_MERGE: LiteralString = "select cascade.describe_merge(%s)"
BEGIN_MERGE: LiteralString = "select partition, txid, merged from cascade.begin_merge(%s, %s, %s, %s, %s)"
FINISH_MERGE: LiteralString = "select cascade.finish_merge(%s, %s::jsonb, %s::jsonb, %s)"
STORE_MERGE: LiteralString = (
    "select cascade.store_merge(%s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
NOTE_TRACKER: LiteralString = "select cascade.note_tracker(%s, %s, %s, %s, %s, %s)"
OWN_FORK: LiteralString = "select cascade.own_fork(%s)"
RESET_LEAF: LiteralString = "select cascade.reset_leaf(%s, %s)"
REPORT: LiteralString = "select cascade.report(%s)"
TELL_MERGE: LiteralString = "select cascade.tell_merge(%s, %s, %s, %s, %s)"

#: The columns that are written: the combined queue gives the ids.
COLUMNS = "time, txid, type, key, payload, headers, origin, origin_id"


def in_order(query: str, ticks: Sequence[Mapping[str, Any]]) -> str:
    """Return the query for a range's events with `n`, the number of the tick that each belongs to.

    An event belongs to the first tick whose snapshot shows it: the first with a higher `high`, unless its
    transaction was open then; those few are listed.
    """
    if len(ticks) == 1:
        return f"select e.*, 1 as n from ({query}) as e where e.origin is distinct from '.cascade'"
    # Whoever is open at a tick belongs to a later one; past the last, it is not in this range.
    late = {txid: n + 1 for n, tick in enumerate(ticks) for txid in tick["open"]}
    highs = ",".join(str(tick["high"]) for tick in ticks)
    found, joined = f"width_bucket(e.txid, array[{highs}]::bigint[])", ""
    if late:
        rows = ",".join(f"({txid}::bigint,{n})" for txid, n in late.items())
        found, joined = f"coalesce(l.n, {found})", f" left join (values {rows}) as l(txid, n) on l.txid = e.txid"
    return f"select e.*, {found} as n from ({query}) as e{joined} where e.origin is distinct from '.cascade'"


def skip_condition(merged: Mapping[str, str] | None) -> str:
    """Return the condition for events that the combined queue has already, though their part had lost them."""
    if not merged:
        return "false"
    arms = " ".join(
        f"when {_literal(origin)} then e.origin_id <@ {_literal(ids)}::int8multirange" for origin, ids in merged.items()
    )
    return f"coalesce(case e.origin {arms} end, false)"


def merge_query(part: str, ordered: str, txid: int, skip: str) -> str:
    """Return the query for what a range becomes in the combined queue, in the order in which it gets ids."""
    return (
        f'select e."time", {txid}::bigint, e.type, e.key, e.payload, e.headers,'
        f" coalesce(e.origin, {_literal(part)}), coalesce(e.origin_id, e.id)"
        f" from ({ordered}) as e where not {skip} order by e.n, e.id"
    )


def skipped_query(ordered: str, skip: str) -> str:
    """Return the query for which rows of a range are left out, counted from one."""
    numbered = f"select row_number() over (order by e.n, e.id) as i, {skip} as is_merged from ({ordered}) as e"
    return f"select coalesce(json_agg(s.i), '[]') from ({numbered}) as s where s.is_merged"


def controls_query(query: str) -> str:
    """Return the query for a range's own control events: they are obeyed here, and never merged."""
    return (
        "select coalesce(json_agg(json_build_object('type', e.type, 'payload', e.payload) order by e.id), '[]')"
        f" from ({query}) as e where e.origin = '.cascade'"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class MergeLeaf(Copier):
    """Feeds a combined set from one of its parts."""

    def __init__(self, home: Home, *, pace: Pace | None = None) -> None:
        super().__init__(home, pace=pace)
        self.name = f"{home.set}/merge"

    async def _follow(self, local: AsyncConnection, me: Standing, stop: asyncio.Event) -> None:
        """Copy while this database is the combined-root, track while it is not."""
        try:
            if (await self.home.call(local, DESCRIBE_MERGE, self.home.set))["copies"]:
                await super()._follow(local, me, stop)
            else:
                await self._track(local, me, stop)
        except FencedError as error:
            log.info("set %s: merging stops: %s", self.home.set, error.args[0])
            await self._wait(error.args[0])
        except DivergedError:
            if not await self._go_back(local):
                raise

    async def _wait(self, why: str) -> None:
        self.note, self.turned_at = why, time.monotonic()
        await self.wakeups.wait(self.pace.poll_s)

    async def _go_back(self, local: AsyncConnection) -> bool:
        """Go back to where the part's later term began, if that is known and this is the combined-root."""
        fork = await self.home.call(local, OWN_FORK, self.home.set)
        if fork is None or not (await self.home.call(local, DESCRIBE_MERGE, self.home.set))["copies"]:
            return False
        found = await self.home.call(local, RESET_LEAF, self.home.set, Jsonb(fork))
        if found["changed"]:
            log.warning(
                "set %s: the part went on from tick %s; %s events beyond it are in set %s",
                self.home.set,
                found["from_tick"],
                found["events"],
                found["into"],
            )
        return True

    async def _track(self, local: AsyncConnection, me: Standing, stop: asyncio.Event) -> None:
        """Ask the part now and then whether it still has what follows, while the combined set's log moves this node."""
        assert me.provider is not None, "only a root has no provider, and rests"
        into = await self.home.call(local, DESCRIBE_MERGE, self.home.set)
        address = await self.home.address(local, me.provider)
        provider = await connect(address, service=f"{me.node}/merge")
        try:
            generation = me.generation
            while not stop.is_set() and me.generation == generation:
                if (await self.home.call(local, DESCRIBE_MERGE, self.home.set))["copies"]:
                    return
                await self._ask(local, provider, me)
                self.note = f"follows set {into['into']}"
                self.turned_at = time.monotonic()
                await self.wakeups.wait(self.pace.poll_s)
                me = await self.home.describe(local)
        finally:
            provider.pgconn.finish()

    async def _ask(self, local: AsyncConnection, provider: AsyncConnection, me: Standing) -> None:
        """Introduce this node, and store the answer; but for a drop none stops it, since others move it."""
        found = await self.home.call(provider, JOIN, self.home.set, Jsonb(me.introduction))
        known = await self.home.call(provider, EXCHANGE, self.home.set, Jsonb([]), None)
        answer = (found["answer"], found["detail"], Jsonb(found["terms"]), Jsonb(known["members"]))
        await self.home.call(local, NOTE_TRACKER, self.home.set, me.generation, *answer)
        if found["answer"] == "dropped":
            raise join_error(found["answer"], found["detail"])

    async def copy(
        self, local: AsyncConnection, provider: AsyncConnection, me: Standing, after: tuple[int, bytes], found: Range
    ) -> None:
        """Merge one range in one transaction; after any error nothing of it is there, or all."""
        begin = (self.home.set, me.provider, me.generation, *after)
        if found.columns is not None:
            await self.home.call(local, STORE_MERGE, *begin, found.ticks, *found.columns)
            self.events += found.events
            self.bytes += sum(len(column.data) for column in found.columns if isinstance(column, Raw))
            return
        self.doubt()
        ordered = in_order(found.query, json.loads(found.ticks))
        with translated(), deadline(self.home.link_timeout_s, local, provider) as timer:
            controls = await _read(provider, controls_query(found.query))
            async with local.transaction():
                partition, txid, merged = await self._begin(local, begin)
                skip = skip_condition(merged)
                skipped = json.loads(await _read(provider, skipped_query(ordered, skip))) if merged else []
                timer.extend()
                query = merge_query(self.home.set, ordered, txid, skip)
                size = await pipe(provider, query, local, partition, timer, columns=COLUMNS)
                finish = (self.home.set, found.ticks, controls, skipped)
                # The look at the provider must come before the commit, not before the ticks.
                await asyncio.gather(self.check(provider, me, after, found), local.execute(FINISH_MERGE, finish))
                timer.extend()
        self.events += found.events
        self.bytes += size
        self.learn(found.events, size)

    async def _begin(self, local: AsyncConnection, begin: tuple[object, ...]) -> tuple[str, int, dict[str, str] | None]:
        row: Any = await (await local.execute(BEGIN_MERGE, begin)).fetchone()
        return row[0], row[1], row[2]


async def _read(conn: AsyncConnection, query: str) -> str:
    """Return one JSON value as text; the query was made by a database, and put together here."""
    row: Any = await (await conn.execute(f"select ({query})::text".encode())).fetchone()
    return str(row[0])


class MergeTeller:
    """Of a merge-leaf: reports to the part's root, after saying in which term of the combined set it copies.

    Whoever copies in a new term has the other merge-leaves set back first: what they told may be more than is left.
    """

    def __init__(self, home: Home, *, interval_s: float = 1.0) -> None:
        self.name = f"{home.set}/watermark"
        self.home, self._interval_s = home, interval_s
        self.turned_at: float | None = None
        self.note: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until `stop` is set."""
        self.turned_at = None
        local = await self.home.connect("watermark")
        root: AsyncConnection | None = None
        root_name = None
        try:
            while not stop.is_set():
                into = await self.home.call(local, DESCRIBE_MERGE, self.home.set)
                report = await self.home.call(local, REPORT, self.home.set)
                if root is None or into["root"] != root_name:
                    if root is not None:
                        root.pgconn.finish()
                    root_name = into["root"]
                    root = await connect(
                        await self.home.address(local, root_name), service=f"{report['node']}/watermark"
                    )
                await self.tell(root, into, report)
                self.turned_at = time.monotonic()
                await pause(stop, self._interval_s)
        finally:
            local.pgconn.finish()
            if root is not None:
                root.pgconn.finish()

    async def tell(self, root: AsyncConnection, into: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Tell how far the part is merged; a former combined-root has nothing to tell until it has come back."""
        if into["is_root"] and not into["copies"]:
            self.note = f"set {into['into']} is fenced here"
            return
        fork = None if into["fork"] is None else Jsonb(into["fork"])
        try:
            await self.home.call(
                root, TELL_MERGE, self.home.set, report["node"], into["reign"], fork, Jsonb(report["rows"])
            )
            self.note = None
        except MovedOnError as error:
            self.note = str(error.args[0])
            log.info("set %s: %s", self.home.set, self.note)
