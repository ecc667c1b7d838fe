"""The proof: every event of every part is in the combined set once, in the part's order, and was handled once.

An event is known by its origin: the set and the id that it has there.  A part is read in the order of its ticks, and of
ids within each; what the combined set has of it, in the order of the combined set's ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, LiteralString

from rich.console import RenderableType

from cascade.cli import fetch
from cascade.cli import output as out
from cascade.cli.demo.combined.places import PARTS, SET
from cascade.cli.demo.combined.shops import Shops
from cascade.client import connect

#: A part, in its own order; its ticks say which transactions had committed.
PART: LiteralString = """
    with e as materialized (
        select q.id, q.txid, md5(concat_ws('/', q.id, q.time, q.type, q.key, q.payload, q.headers)) as digest
          from queue.{part} as q where q.origin is distinct from '.cascade'
    ), t as materialized (
        select k.tick_id, k.high, k."open" from cascade.ticks as k where k.queue = '{part}'
    ), o as (
        select e.*, (select min(t.tick_id) from t where e.txid < t.high and e.txid <> all (t."open")) as tick_id from e
    )
    select count(*) as events, md5(string_agg(o.digest, '' order by o.tick_id, o.id)) as digest,
           md5(string_agg(o.id::text, ',' order by o.tick_id, o.id)) as ids
      from o
"""
ORDERS: LiteralString = """
    select (q.payload->>'order')::bigint as order_id from queue.{part} as q where q.origin is distinct from '.cascade'
"""
#: What a carrier of the combined set has of each part, in the combined set's order.
MERGED: LiteralString = """
    select e.origin as part, count(*) as events, count(*) - count(distinct e.origin_id) as twice,
           md5(string_agg(e.digest, '' order by e.id)) as digest
      from (select q.id, q.origin, q.origin_id,
                   md5(concat_ws('/', q.origin_id, q.time, q.type, q.key, q.payload, q.headers)) as digest
              from queue.s as q where q.origin <> '.cascade') as e
     group by e.origin
"""
HANDLED: LiteralString = """
    select h.origin as part, count(*) as handled, md5(string_agg(h.origin_id::text, ',' order by h.n)) as ids
      from hq.handled as h group by h.origin
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found after one act: a row for every part at its root, and at every carrier of the combined set."""

    act: int
    rows: list[dict[str, Any]]
    #: Of every part: acknowledged and not in its log; in its log, but never placed.
    unaccounted: int
    invented: int

    @property
    def is_proven(self) -> bool:
        """Whether every event of every part is everywhere once, in order, and was handled once."""
        return self.unaccounted == self.invented == 0 and all(row["is_equal"] for row in self.rows)

    def show(self) -> list[RenderableType]:
        """Return it for people: the digests of every part side by side."""
        nodes = list(dict.fromkeys(row["node"] for row in self.rows if row["role"] != "root"))
        lines = []
        for part in PARTS:
            root, *others = (row for row in self.rows if row["part"] == part)
            line = {**root, "check": "✓" if all(row["is_equal"] for row in (root, *others)) else "✗"}
            line["root"] = f"{root['node']} {short(root)}"
            lines.append(line | {row["node"]: short(row) for row in others})
        columns = [
            *out.columns("text", "check", "part"),
            *out.columns("number", "committed", "events"),
            *out.columns("text", "root", *nodes),
        ]
        title = f"\ndigests of every part, as it is at its root, and in {SET}"
        return [out.table(columns, lines, title), f"\n{self.sentences()}\n"]

    def sentences(self) -> str:
        """Return the sums, for people."""
        roots = [row for row in self.rows if row["role"] == "root"]
        sums = [row for row in self.rows if row["role"] != "root"]
        total = sum(row["events"] for row in roots)
        missing = sum(row["missing"] for row in sums)
        lines = [
            f"orders that the shops were told to be safe: {sum(row['committed'] for row in roots)}",
            f"events in the four parts: {total}",
        ]
        for node in dict.fromkeys(row["node"] for row in sums):
            here = [row for row in sums if row["node"] == node]
            events, handled = sum(row["events"] for row in here), sum(row["handled"] for row in here)
            lines.append(f"in {SET} at {node}, {here[0]['role']}: {events}, of which {handled} were handled")
        twice = sum(row["twice"] for row in sums)
        lines.append(f"unaccounted: {self.unaccounted}; missing in {SET}: {missing}; twice in {SET}: {twice}")
        return "\n".join(lines)

    def as_plain(self) -> dict[str, Any]:
        """Return it as the contract of --json has it."""
        books = {"unaccounted": self.unaccounted, "invented": self.invented}
        return {
            "act": self.act,
            "proven": self.is_proven,
            "nodes": [out.plain(row) for row in self.rows],
            "books": books,
        }


def short(row: dict[str, Any]) -> str:
    """Return as much of a digest as people compare."""
    return str(row["digest"] or "-")[:8]


async def prove(act: int, shops: Shops, carriers: tuple[str, ...]) -> Proof:
    """Compare every part with what these carriers have of it, and with what the shops were told."""
    topology = shops.where.topology
    rows, parts, unaccounted, invented = [], {}, 0, 0
    for part in PARTS:
        root, book = topology.sets[part].root.name, shops.books[part]
        async with connect(shops.where.dsn(root)) as client:
            [found] = await fetch(client, PART.format(part=part))
            orders = {row["order_id"] for row in await fetch(client, ORDERS.format(part=part))}
        unaccounted += len(book.acknowledged - orders)
        invented += len(orders - book.acknowledged - book.unknown)
        parts[part] = {"node": root, "role": "root", "committed": len(book.acknowledged), **found}
    for part, whole in parts.items():
        rows.append({"part": part, **whole, "is_equal": True})
    for name in carriers:
        async with connect(shops.where.dsn(name)) as client:
            merged = {row["part"]: row for row in await fetch(client, MERGED)}
            handled = {row["part"]: row for row in await fetch(client, HANDLED)}
        role = str(topology.sets[SET].nodes[name].role)
        for part, whole in parts.items():
            rows.append(compare(part, name, role, whole, merged.get(part, {}), handled.get(part, {})))
    rows.sort(key=lambda row: row["part"])
    for row in rows:
        row.pop("ids", None)
    return Proof(act=act, rows=rows, unaccounted=unaccounted, invented=invented)


def compare(
    part: str, node: str, role: str, whole: dict[str, Any], merged: dict[str, Any], handled: dict[str, Any]
) -> dict[str, Any]:
    """Return what one carrier has of one part, and whether it is all, once, and in order."""
    events, twice = merged.get("events", 0), merged.get("twice", 0)
    digest = merged.get("digest")
    return {
        "part": part,
        "node": node,
        "role": role,
        "committed": whole["committed"],
        "events": events,
        "digest": digest,
        "handled": handled.get("handled", 0),
        "twice": twice,
        "missing": whole["events"] - (events - twice),
        "is_equal": (digest, handled.get("ids"), twice) == (whole["digest"], whole["ids"], 0),
    }
