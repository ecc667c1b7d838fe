"""cascade demo: a cascade of four databases at work, and a proof that every node holds the same.

    s1 root ──> s2 branch
      └───────> s3 branch ──> s4 leaf

Producers at s1 write an order and its event in one transaction, and some roll back.  On every node somebody
handles the events: consumers on s1, s2 and s3, a handler on the leaf s4.  Each writes what it handled in the
transaction that moves its position.  So at the end the logs must be equal, digest by digest, and
every node must have handled what was committed at s1, whatever was switched and killed meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString

import click
import psycopg
from rich.console import Group
from rich.live import Live
from rich.text import Text

from cascade import sync
from cascade.cli import JSON_OPTION, fetch, until
from cascade.cli import output as out
from cascade.cli.node import Children, loop_factory
from cascade.cli.status import draw
from cascade.client import Client, connect
from cascade.consumer import Batch, Stream
from cascade.dev import Cluster
from cascade.errors import BatchLostError, QueueExistsError
from cascade.event import Message
from cascade.node.assess import NodeStatus, assess
from cascade.node.enroll import dsn_of, location_of
from cascade.node.handler import STORE_TABLE
from cascade.node.observe import observe
from cascade.sql import migrate
from cascade.topology import Database, Node, Role, Set, Topology, dump

SET, CONSUMER = "orders", "billing"
NODES = (
    Node(name="s1", set=SET, database="s1", role=Role.ROOT),
    Node(name="s2", set=SET, database="s2", role=Role.BRANCH, provider="s1"),
    Node(name="s3", set=SET, database="s3", role=Role.BRANCH, provider="s1"),
    Node(
        name="s4",
        set=SET,
        database="s4",
        role=Role.LEAF,
        provider="s3",
        handler="cascade.node.handler:store_events",
    ),
)
CARRIERS = tuple(node.name for node in NODES if node.role.is_carrier)
SHOP: LiteralString = """
    create schema shop;
    create table shop.orders (order_id bigint primary key);
    create table shop.handled (order_id bigint, event_id bigint);
"""
ORDERS: LiteralString = "insert into shop.orders select unnest(%s::bigint[])"
HANDLED: LiteralString = "insert into shop.handled select * from unnest(%s::bigint[], %s::bigint[])"
LOG: LiteralString = """
    select count(*) as events, md5(string_agg(e.digest, '' order by e.id)) as digest
      from (select q.id, md5(concat_ws('/', q.id, q.txid, q.time, q.type, q.key, q.payload)) as digest
              from queue.orders as q where q.origin is null) as e
"""
DONE: dict[Role, LiteralString] = {
    Role.ROOT: "select count(*) as handled, md5(string_agg(h.order_id::text, ',' order by h.order_id)) as done"
    " from shop.handled as h",
    Role.LEAF: "select count(*) as handled, md5(string_agg(o.id::text, ',' order by o.id)) as done"
    " from (select (e.payload->>'order')::bigint from public.cascade_events as e) as o(id)",
}
WANTED: LiteralString = (
    "select count(*) as committed, md5(string_agg(order_id::text, ',' order by order_id)) as done from shop.orders"
)
PROOF_COLUMNS = [
    *out.columns("text", "check", "node", "role"),
    *out.columns("number", "events"),
    *out.columns("text", "digest"),
    *out.columns("number", "committed", "handled"),
]


@dataclass(slots=True, kw_only=True)
class Places:
    """Where the demo runs: the topology, and the file that says so to the daemons."""

    topology: Topology
    file: Path

    def write(self) -> None:
        """Write the file, whole or not at all."""
        part = self.file.with_suffix(".part")
        part.write_text(dump(self.topology))
        part.rename(self.file)

    def change(self, node: str, *, provider: str) -> None:
        """Edit the file, as an operator would."""
        orders = self.topology.sets[SET]
        nodes = {**orders.nodes, node: replace(orders.nodes[node], provider=provider)}
        self.topology = replace(self.topology, sets={SET: replace(orders, nodes=nodes)})
        self.write()

    def dsn(self, node: str) -> str:
        """Return how to reach a node's database."""
        return dsn_of(self.topology, node)


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=20.0, show_default=True, help="How long; Ctrl-C ends it sooner."
)
@click.option("--rate", type=click.IntRange(1, 20000), default=200, show_default=True, help="Orders per second.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Keep the servers here.")
@JSON_OPTION
def demo(seconds: float, rate: int, directory: Path | None, as_json: bool) -> int:
    """Watch four databases carry one queue, and see that none loses or doubles anything.

    Starts four PostgreSQL servers and a daemon for each, publishes orders at the root, handles them on
    every node, has the leaf switch providers and a daemon killed while events flow, and at the end compares
    the logs of all nodes and what each has handled.  Exits 1 if they differ.  Everything is
    removed afterwards, unless --dir says where to keep it, for `cascade dev up --dir DIR` to start again.

    \b
    cascade demo
    cascade demo --seconds 60 --rate 1000
    """
    click.echo("starting four PostgreSQL servers ...", err=True)
    with places(directory) as found, asyncio.Runner(loop_factory=loop_factory()) as runner:
        proof = runner.run(Demo(found, rate, seconds, to_stderr=as_json).run())
    is_proven = all(row["is_equal"] for row in proof)
    if as_json:
        out.echo_json({"proven": is_proven, "nodes": [out.plain(row) for row in proof]})
    else:
        rows = [{**row, "check": "✓" if row["is_equal"] else "✗"} for row in proof]
        out.show(out.table(PROOF_COLUMNS, rows, "\nwhat every node holds, and what was handled there"))
        click.echo("\nEvery node has the same." if is_proven else "\nTHE NODES DIFFER.")
    return 0 if is_proven else 1


@contextmanager
def places(directory: Path | None) -> Iterator[Places]:
    """Run four servers, write the topology file, and make the set; temporary servers are gone afterwards."""
    names = [node.name for node in NODES]
    with Cluster.temporary(nodes=names) if directory is None else Cluster(directory, nodes=names) as cluster:
        databases = {name: Database(name=name, dsn=cluster[name].dsn()) for name in names}
        orders = Set(name=SET, nodes={node.name: node for node in NODES})
        found = Places(topology=Topology(databases=databases, sets={SET: orders}), file=cluster.dir / f"{SET}.yaml")
        found.write()
        for node in NODES:
            with sync.connect(found.dsn(node.name)) as client:
                migrate.install(client.connection())
                if client.call("select count(*) from cascade.queues where queue = %s", SET):
                    hint = (
                        f"`cascade dev down --remove --dir {directory}` removes the servers with all that is on them."
                    )
                    raise QueueExistsError(f"there is a queue {SET} in {directory} already", hint=hint)
                client.connection().execute(SHOP)
                client.connection().execute(STORE_TABLE)
                if node.role.is_root:
                    client.call("select cascade.create_set(%s, 's1', %s)", SET, location_of(found.topology, node))
        yield found


class Demo:
    """Producers, consumers, four daemons and somebody who makes trouble."""

    def __init__(self, where: Places, rate: int, seconds: float, *, to_stderr: bool) -> None:
        self.where, self.rate, self.seconds, self.to_stderr = where, rate, seconds, to_stderr
        self.children = Children(self.hear)
        self.order_ids = itertools.count(1)
        self.committed, self.rolled_back = 0, 0
        self.statuses: list[NodeStatus] = []
        self.streams: list[Stream[Any]] = []
        self.notes: deque[str] = deque(maxlen=12)
        self.began_at = time.monotonic()
        self.live: Live | None = None
        self.is_ending = asyncio.Event()

    async def run(self) -> list[dict[str, Any]]:
        """Play until the time is up, let every node catch up, and return the proof."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.end)
        console = out.console(err=self.to_stderr)
        with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as self.live:
            try:
                async with asyncio.TaskGroup() as group:
                    await self.play(group)
            finally:
                self.children.kill()
        return await self.prove()

    def end(self) -> None:
        """Begin to end; asked a second time, stop where we are."""
        if self.is_ending.is_set():
            raise KeyboardInterrupt
        self.is_ending.set()

    async def play(self, group: asyncio.TaskGroup) -> None:
        """Start everybody, make trouble, stop the producers, let the nodes catch up, stop the rest."""
        for node in NODES:
            group.create_task(self.daemon(node.name), name=f"daemon {node.name}")
        watching = group.create_task(self.watch(), name="watch")
        if not await until(lambda: sum(node.role is not None for node in self.statuses) == len(NODES), timeout_s=60):
            raise TimeoutError("the nodes did not come up within a minute")
        self.began_at = time.monotonic()
        consumers = [group.create_task(self.consume(name), name=f"consumer {name}") for name in CARRIERS]
        singles = -(-self.rate // 250)
        producers = [group.create_task(self.publish(1, singles / self.rate), name="singles") for _ in range(singles)]
        producers.append(group.create_task(self.publish(50 + self.rate // 2, 2.0), name="bursts"))
        trouble = group.create_task(self.make_trouble(group), name="trouble")
        await until(self.is_ending.is_set, timeout_s=self.seconds)
        self.is_ending.set()
        self.note("the end: producers stop, every node catches up")
        await asyncio.wait([*producers, trouble])
        await self.catch_up()
        for stream in self.streams:
            stream.stop()
        await asyncio.wait(consumers)
        watching.cancel()
        self.children.end(within_s=10)

    async def daemon(self, name: str) -> None:
        """Run a daemon until it is told to end."""
        arguments = ("node", "run", "--topology", str(self.where.file), "--database", name)
        await self.children.run(f"daemon {name}", "cascade.cli.main", *arguments, "--log-format", "json", "--until-eof")

    async def consume(self, name: str) -> None:
        """Handle every event on one node, in the transaction that finishes its batch."""
        async with connect(self.where.dsn(name)) as client:
            orders = client.queue(SET)
            await orders.subscribe(CONSUMER, at="earliest")
            stream = orders.stream(CONSUMER)
            self.streams.append(stream)
            async with stream:
                async for batch in stream:
                    with suppress(BatchLostError):
                        async with batch:
                            await self.handle(batch)

    async def handle(self, batch: Batch[Any]) -> None:
        """Write down what was handled."""
        async with batch.transaction() as conn:
            await conn.execute(HANDLED, ([event.payload["order"] for event in batch], [event.id for event in batch]))

    async def publish(self, size: int, every_s: float) -> None:
        """Publish orders, each lot in a transaction; of single ones one in twenty is rolled back."""
        async with connect(self.where.dsn("s1")) as client:
            orders, due = client.queue(SET), time.monotonic()
            while not self.is_ending.is_set():
                lot, is_undone = list(itertools.islice(self.order_ids, size)), size == 1 and random.random() < 0.05
                async with client.transaction() as conn:
                    await conn.execute(ORDERS, (lot,))
                    await orders.publish_many(Message({"order": n}, "order.placed", f"customer-{n % 97}") for n in lot)
                    if is_undone:
                        raise psycopg.Rollback
                self.rolled_back += is_undone
                self.committed += 0 if is_undone else size
                due = max(due + every_s, time.monotonic() - 1)
                await until(self.is_ending.is_set, timeout_s=due - time.monotonic())

    async def make_trouble(self, group: asyncio.TaskGroup) -> None:
        """Have the leaf switch providers, and kill a daemon; whether the end comes first does not matter."""
        if await until(self.is_ending.is_set, timeout_s=self.seconds * 0.3):
            return
        self.where.change("s4", provider="s2")
        self.note("the topology file says now that s4 copies from s2, not from s3; nobody is stopped")
        if await until(self.is_ending.is_set, timeout_s=self.seconds * 0.3):
            return
        self.children.signal("daemon s2", signal.SIGKILL)
        self.note("the daemon of s2 was killed (kill -9)")
        await until(self.is_ending.is_set, timeout_s=min(3.0, self.seconds * 0.1))
        group.create_task(self.daemon("s2"), name="daemon s2 again")
        self.note("the daemon of s2 was started again")

    async def catch_up(self) -> None:
        """Wait until every node has the root's last tick, and every consumer is past it."""
        async with AsyncExitStack() as stack:
            clients = {node.name: await stack.enter_async_context(connect(self.where.dsn(node.name))) for node in NODES}
            tick = await clients["s1"].queue(SET).tick()
            async with asyncio.timeout(60):
                for name, client in clients.items():
                    while not await self.is_past(client, name, tick):  # noqa: ASYNC110 - nobody announces it
                        await asyncio.sleep(0.1)
        self.note(f"every node has tick {tick}")

    async def is_past(self, client: Client, name: str, tick: int) -> bool:
        """Whether a node, and its consumer, have come to a tick."""
        [row] = await fetch(client, "select tick_id from cascade.nodes where set = %s", SET)
        behind = await fetch(
            client,
            "select 1 from cascade.consumers where queue = %s and consumer = %s and tick_id < %s",
            SET,
            CONSUMER,
            tick,
        )
        return bool(row["tick_id"] >= tick) and not behind

    async def prove(self) -> list[dict[str, Any]]:
        """Compare the logs of all carriers, and what every node has handled with what was committed."""
        found = []
        for node in NODES:
            async with connect(self.where.dsn(node.name)) as client:
                row: dict[str, Any] = {"node": node.name, "role": str(node.role), "events": None, "digest": None}
                if node.role.is_carrier:
                    row |= (await fetch(client, LOG))[0]
                row |= (await fetch(client, DONE.get(node.role, DONE[Role.ROOT])))[0]
                if node.role.is_root:
                    wanted = (await fetch(client, WANTED))[0]
                found.append(row)
        root = found[0]
        for row in found:
            row["committed"] = wanted["committed"]
            is_same_log = row["digest"] == root["digest"] or row["digest"] is None
            row["is_equal"] = is_same_log and row.pop("done") == wanted["done"]
        return found

    def hear(self, name: str, said: dict[str, Any]) -> None:
        """Listen to a daemon."""
        if said.get("level", "info") not in ("info", "debug") or "copies from" in str(said.get("message")):
            self.note(f"{name}: {str(said['message']).splitlines()[0]}")

    def note(self, text: str) -> None:
        """Tell what happened."""
        self.notes.append(f"{time.monotonic() - self.began_at:6.1f} s  {text}")
        if self.live is None:
            click.echo(self.notes[-1], err=self.to_stderr)

    async def watch(self) -> None:
        """Look at every node once a second, and show the tree."""
        for turn in itertools.count():
            self.statuses = assess(self.where.topology, await observe(self.where.topology))
            if self.live is not None:
                self.live.update(self.picture(), refresh=True)
            elif turn % 3 == 2:
                click.echo(f"\n{self.headline()}\n{self.tree()}\n", err=self.to_stderr)
            await asyncio.sleep(1.0)

    def tree(self) -> str:
        """Return the set as it is now."""
        return draw(self.where.topology.sets[SET], self.statuses)

    def headline(self) -> str:
        """Return what the producers did so far."""
        return f"{self.committed} orders committed at s1, {self.rolled_back} rolled back"

    def picture(self) -> Group:
        """Return what is shown on a terminal."""
        end = Text("\nCtrl-C ends it, with a proof", style="dim")
        tree = Text(self.tree(), no_wrap=True)
        return Group(
            Text(f"{self.headline()}\n", style="bold"),
            tree,
            Text(),
            *(Text(out.printable(note)) for note in self.notes),
            end,
        )
