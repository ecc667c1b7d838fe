"""The proof: the logs of all carriers are equal, every node handled what they hold, and the books are closed.

Nothing is taken from the program but what its producers were told: which orders were acknowledged.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, LiteralString

from rich.console import RenderableType

from cascade.cli import fetch
from cascade.cli import output as out
from cascade.cli.demo.places import SET
from cascade.cli.demo.shop import Shop
from cascade.client import connect
from cascade.topology import Node, Role

LOG: LiteralString = """
    select count(*) as events, md5(string_agg(e.digest, '' order by e.id)) as digest
      from (select q.id, md5(concat_ws('/', q.id, q.txid, q.time, q.type, q.key, q.payload, q.origin_id)) as digest
              from queue.orders as q where q.origin is distinct from '.cascade') as e
"""
HANDLED: LiteralString = """
    select count(*) as handled, md5(string_agg(h.order_id::text, ',' order by h.order_id)) as done
      from shop.handled as h
"""
STORED: LiteralString = """
    select count(*) as handled, md5(string_agg(o.id::text, ',' order by o.id)) as done
      from (select (e.payload->>'order')::bigint from public.cascade_events as e) as o(id)
"""
IN_LOG: LiteralString = """
    select (q.payload->>'order')::bigint as order_id, q.origin is not null as is_back
      from queue.orders as q where q.origin is distinct from '.cascade'
"""
CERTIFICATE: LiteralString = """
    select number, state, fork_tick, pending, tail, republished, discarded, duplicates, held, phantoms
      from cascade.certificates where set = %s order by number desc limit 1
"""
COLUMNS = [
    *out.columns("text", "check", "node", "role"),
    *out.columns("number", "events"),
    *out.columns("text", "digest"),
    *out.columns("number", "handled"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What became of every order that a producer was told to be safe; after a failover, with its certificate."""

    acknowledged: int
    in_log: int
    #: Committed, though the answer was lost with the server.
    unanswered: int
    republished: int
    #: Acknowledged and not in the log; in the log, but never placed; in the log more than once.
    unaccounted: int
    invented: int
    doubled: int
    certificate: dict[str, Any] | None = None

    @property
    def is_closed(self) -> bool:
        """Whether everything is where it should be, and the certificate says the same."""
        found = self.certificate
        is_right = found is None or (
            found["state"] == "closed"
            and found["tail"] == found["republished"] == self.republished
            and found["held"] == found["discarded"] == found["duplicates"] == 0
        )
        return is_right and self.unaccounted == self.invented == self.doubled == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found after one act."""

    act: int
    nodes: list[dict[str, Any]]
    books: Books

    @property
    def is_proven(self) -> bool:
        """Whether every node has the same, and the books are closed."""
        return self.books.is_closed and all(row["is_equal"] for row in self.nodes)

    def show(self) -> list[RenderableType]:
        """Return it for people: what every node holds, and the books."""
        rows = [{**row, "check": "✓" if row["is_equal"] else "✗"} for row in self.nodes]
        title = "\nwhat every node holds, and what was handled there"
        return [out.table(COLUMNS, rows, title), f"\n{sentences(self.books)}\n"]

    def as_plain(self) -> dict[str, Any]:
        """Return it as the contract of --json has it."""
        books = asdict(self.books)
        certificate = books.pop("certificate")
        return {
            "act": self.act,
            "proven": self.is_proven,
            "nodes": [out.plain(row) for row in self.nodes],
            "books": books,
            "certificate": certificate and out.plain(certificate),
        }


async def prove(act: int, shop: Shop) -> Proof:
    """Compare the logs of all carriers, what every node has handled, and what producers were told."""
    found = shop.where.topology.sets[SET]
    books, wanted = await audit(shop, found.root)
    rows = [await look(shop, node) for node in found.nodes.values()]
    log = next(row["digest"] for row in rows if row["node"] == found.root.name)
    for row in rows:
        row["is_equal"] = row["digest"] in (log, None) and row.pop("done") == wanted
        row["committed"] = books.acknowledged
    return Proof(act=act, nodes=rows, books=books)


async def audit(shop: Shop, root: Node) -> tuple[Books, str | None]:
    """Compare the log with what the producers were told; return the digest of all orders, too, if there are any."""
    async with connect(shop.where.dsn(root.name)) as client:
        events = await fetch(client, IN_LOG)
        certificates = await fetch(client, CERTIFICATE, SET)
    orders = [row["order_id"] for row in events]
    unique = set(orders)
    books = Books(
        acknowledged=len(shop.acknowledged),
        in_log=len(orders),
        unanswered=len(unique & shop.unknown),
        republished=sum(row["is_back"] for row in events),
        unaccounted=len(shop.acknowledged - unique),
        invented=len(unique - shop.acknowledged - shop.unknown),
        doubled=len(orders) - len(unique),
        certificate=certificates[0] if certificates else None,
    )
    # As HANDLED and STORED compute it.
    return books, hashlib.md5(",".join(map(str, sorted(unique))).encode()).hexdigest() if unique else None


async def look(shop: Shop, node: Node) -> dict[str, Any]:
    """Return what a node holds, and what was handled there."""
    row: dict[str, Any] = {"node": node.name, "role": str(node.role), "events": None, "digest": None}
    async with connect(shop.where.dsn(node.name)) as client:
        if node.role.is_carrier:
            row |= (await fetch(client, LOG))[0]
        row |= (await fetch(client, STORED if node.role is Role.LEAF else HANDLED))[0]
    return row


def sentences(books: Books) -> str:
    """Return the books, for people."""
    lines = [
        f"orders that producers were told to be safe: {books.acknowledged}",
        f"in the log of every carrier: {books.in_log}",
    ]
    if books.unanswered:
        lines.append(f"  of those {books.unanswered} whose COMMIT was never answered")
    if (found := books.certificate) is not None:
        lines.append(f"  of those {books.republished} that only the lost root had")
        sums = " + ".join(f"{found[key]} {key}" for key in ("republished", "discarded", "duplicates", "held"))
        lines.append(f"certificate {found['number']} is {found['state']}: tail {found['tail']} = {sums}")
    lines.append(f"unaccounted: {books.unaccounted}; twice in the log: {books.doubled}")
    return "\n".join(lines)
