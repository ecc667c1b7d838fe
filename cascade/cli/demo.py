"""cascade demo: one queue at work on a server of its own, and a proof that nothing is lost or doubled.

Producers write an order and its event in one transaction, and some roll back.  Consumers write
what they handled in the transaction that finishes the batch.  So at the end the tables
shop.orders and shop.handled must agree, order by order, whatever was killed meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
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
from cascade.cli.node import Children, loop_factory, stop_at_eof
from cascade.client import Client, connect
from cascade.consumer import Batch, Stream
from cascade.dev import Cluster
from cascade.errors import BatchLostError, QueueExistsError
from cascade.event import Message
from cascade.sql import migrate

QUEUE, CONSUMERS, LEASE = "orders", ("billing", "shipping", "audit"), timedelta(seconds=3)
SHOP: LiteralString = """
    create schema shop;
    create table shop.orders (order_id bigint primary key);
    create table shop.handled (consumer text, worker text, order_id bigint, event_id bigint);
"""
ORDERS: LiteralString = "insert into shop.orders select unnest(%s::bigint[])"
HANDLED: LiteralString = "insert into shop.handled select %s, %s, * from unnest(%s::bigint[], %s::bigint[])"
PROOF: LiteralString = """
    select c.consumer, count(distinct p.placed) as committed, count(p.handled) as handled,
           count(*) filter (where p.handled is null) as missing,
           count(p.handled) - count(distinct p.handled) as doubled,
           count(*) filter (where p.placed is null) as rolled_back_but_seen
      from unnest(%s::text[]) as c(consumer)
     cross join lateral (
           select o.order_id, h.order_id from shop.orders as o
             full join (select * from shop.handled as x where x.consumer = c.consumer) as h using (order_id)
           ) as p(placed, handled)
     group by c.consumer
"""
STATE: LiteralString = "select * from cascade.queues join cascade.rotation using (queue) where queue = %s"
WRONG = ("missing", "doubled", "rolled_back_but_seen")
PROOF_COLUMNS = [*out.columns("text", "check", "consumer"), *out.columns("number", "committed", "handled", *WRONG)]
STATE_COLUMNS = [
    *out.columns("text", "consumer"),
    *out.columns("number", "tick_id", "lag_ticks", "lag_events", "done"),
    *out.columns("seconds", "lag_seconds", "p50", "p99"),
]


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End by itself; else Ctrl-C ends it.")
@click.option("--rate", type=click.IntRange(1, 20000), default=200, show_default=True, help="Orders per second.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Keep the server here.")
@JSON_OPTION
def demo(seconds: float | None, rate: int, directory: Path | None, as_json: bool) -> int:
    """Watch a queue at work, and see that nothing is lost or doubled.

    Starts a PostgreSQL server and a node, publishes orders, reads them by three consumers,
    kills a worker now and then, rotates the queue, and at the end compares what was committed
    with what was handled.  Exits 1 if they differ.  Everything is removed afterwards, unless
    --dir says where to keep it, for `cascade dev up --dir DIR` to start again.

    \b
    cascade demo
    cascade demo --seconds 30 --rate 1000
    """
    click.echo("starting a PostgreSQL server ...", err=True)
    with server(directory) as dsn, asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(Demo(dsn, rate, seconds, to_stderr=as_json).run())
    is_proven = not any(row[key] for row in found for key in WRONG)
    if as_json:
        out.echo_json({"proven": is_proven, "consumers": [out.plain(row) for row in found]})
    else:
        rows = [{**row, "check": "✗" if any(row[key] for key in WRONG) else "✓"} for row in found]
        out.show(out.table(PROOF_COLUMNS, rows, "\nevery committed order, by consumer"))
        click.echo("\nEach was handled exactly once." if is_proven else "\nSOMETHING WAS LOST OR DOUBLED.")
    return 0 if is_proven else 1


@contextmanager
def server(directory: Path | None) -> Iterator[str]:
    """Run a server with Cascade and a queue; a temporary one is gone afterwards."""
    with Cluster.temporary() if directory is None else Cluster(directory) as cluster:
        dsn = next(iter(cluster.nodes.values())).dsn()
        with sync.connect(dsn) as client:
            migrate.install(client.connection())
            if not client.create_queue(QUEUE):
                hint = f"`cascade dev down --remove --dir {directory}` removes the server with all that is on it."
                raise QueueExistsError(f"there is a queue {QUEUE} in {directory} already", hint=hint)
            client.connection().execute(SHOP)
        yield dsn


class Handler:
    """Handles the batches of one consumer; `tell` hears about each once it is committed."""

    def __init__(self, consumer: str, worker: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self.consumer, self.worker, self._tell = consumer, worker, tell
        self.stream: Stream[Any] | None = None
        self.is_to_hang = False

    async def run(self, dsn: str) -> None:
        """Read until stopped; workers of shipping share its batches."""
        is_shared = self.consumer == "shipping"
        async with connect(dsn) as client:
            orders = client.queue(QUEUE)
            self.stream = orders.stream(self.consumer, worker=self.worker, cooperative=is_shared, lease=LEASE)
            async with self.stream as stream:
                async for batch in stream:
                    with suppress(BatchLostError):  # somebody else does it; our transaction was undone
                        async with batch:
                            await self._handle(batch)

    async def _handle(self, batch: Batch[Any]) -> None:
        told: dict[str, Any] = {"worker": self.worker, "consumer": self.consumer, "seen_at": time.time()}
        async with batch.transaction() as conn:
            is_picky = self.consumer == "audit"
            later = [event for event in batch if is_picky and event.attempt == 1 and random.random() < 0.002]
            for event in later:
                await batch.retry(event, after=timedelta(seconds=1))
            done = [event for event in batch if event not in later]
            orders = [event.payload["order"] for event in done]
            await conn.execute(HANDLED, (self.consumer, self.worker, orders, [event.id for event in done]))
            first = [order for order, event in zip(orders, done, strict=True) if event.attempt == 1]
            told |= {"orders": first, "done": len(done), "retried": len(later)}
            if self.is_to_hang:
                self._tell({**told, "hangs": True})
                await asyncio.sleep(3600)
        self._tell(told)

    def stop(self) -> None:
        """Finish the batch at hand and end."""
        if self.stream is not None:
            self.stream.stop()


async def work(worker: str) -> None:
    """Be a process that shares the consumer shipping; SIGUSR1 has it hang in its next batch."""
    handler, loop = Handler("shipping", worker, out.echo_json), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, handler.stop)
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(handler, "is_to_hang", True))
    stop_at_eof()
    out.echo_json({"ready": worker})
    await handler.run(os.environ["CASCADE_DSN"])


class Demo:
    """Producers, consumers, a node and somebody who makes trouble, all for one queue."""

    def __init__(self, dsn: str, rate: int, seconds: float | None, *, to_stderr: bool) -> None:
        self.dsn, self.rate, self.seconds, self.to_stderr = dsn, rate, seconds, to_stderr
        self.done: Counter[str] = Counter()
        self.latencies: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2000))
        self.handlers = [Handler(consumer, consumer, self.hear_report) for consumer in ("billing", "audit")]
        self.order_ids, self.worker_ids = itertools.count(1), itertools.count(1)
        self.committed, self.rolled_back, self.committed_at = 0, 0, dict[int, float]()
        self.children, self.group = Children(dsn, self.hear), asyncio.TaskGroup()
        self.ready, self.orphans = set[str](), set[int]()
        self.began_at = self.killed_at = time.monotonic()
        self.queue, self.consumers = dict[str, Any](), list[dict[str, Any]]()
        self.samples, self.notes = deque[tuple[float, int, int]](maxlen=7), deque[str](maxlen=10)
        self.live: Live | None = None
        self.is_ending = asyncio.Event()

    async def run(self) -> list[dict[str, Any]]:
        """Play until stopped, let the consumers catch up, and return the proof."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.end)
        console = out.console(err=self.to_stderr)
        with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as self.live:
            try:
                async with connect(self.dsn) as client, self.group as group:
                    await self.play(client, group)
            finally:
                self.children.kill()
        async with connect(self.dsn) as client:
            return await fetch(client, PROOF, list(CONSUMERS))

    def end(self) -> None:
        """Begin to end; asked a second time, stop where we are."""
        if self.is_ending.is_set():
            raise KeyboardInterrupt
        self.is_ending.set()

    async def play(self, client: Client, group: asyncio.TaskGroup) -> None:
        """Start everybody, wait for the end, stop the producers, then the consumers, then the rest."""
        for consumer in CONSUMERS:
            await client.queue(QUEUE).subscribe(consumer)
        handlers = [group.create_task(handler.run(self.dsn), name=handler.consumer) for handler in self.handlers]
        node = self.children.run("node", "cascade.cli.main", "node", "run", "--log-format", "json", "--until-eof")
        group.create_task(node, name="node")
        self.start_worker()
        self.start_worker()
        await until(lambda: len(self.ready) == 3, timeout_s=30)
        self.began_at, singles = time.monotonic(), -(-self.rate // 250)
        producers = [group.create_task(self.publish(1, singles / self.rate), name="singles") for _ in range(singles)]
        producers.append(group.create_task(self.publish(50 + self.rate // 2, 3.0), name="bursts"))
        others = [group.create_task(self.watch(client), name="watch"), group.create_task(self.make_trouble())]
        with suppress(TimeoutError):
            async with asyncio.timeout(self.seconds):
                await self.is_ending.wait()
        self.is_ending.set()
        self.note("the end: producers stop, consumers catch up")
        await asyncio.wait(producers)
        await until(self.is_caught_up, timeout_s=30)
        for handler in self.handlers:
            handler.stop()
        await asyncio.wait(handlers)
        for task in others:
            task.cancel()
        self.children.end(within_s=10)

    def start_worker(self) -> None:
        """Start a process that shares the consumer shipping."""
        name = f"shipping-{next(self.worker_ids)}"
        self.group.create_task(self.children.run(name, "cascade.cli.demo", name), name=name)

    def is_caught_up(self) -> bool:
        """Whether every committed event is in a tick, and every consumer past it."""
        return self.queue.get("events_ticked") == self.committed and not any(
            row["lag_events"] or row["open_batches"] or row["retries"] for row in self.consumers
        )

    async def publish(self, size: int, every_s: float) -> None:
        """Publish orders, each lot in a transaction; of single ones one in twenty is rolled back."""
        async with connect(self.dsn) as client:
            orders, due = client.queue(QUEUE), time.monotonic()
            while not self.is_ending.is_set():
                lot, is_undone = list(itertools.islice(self.order_ids, size)), size == 1 and random.random() < 0.05
                async with client.transaction() as conn:
                    await conn.execute(ORDERS, (lot,))
                    await orders.publish_many(Message({"order": n}, "order.placed", f"customer-{n % 97}") for n in lot)
                    if is_undone:
                        raise psycopg.Rollback
                self.rolled_back += is_undone
                self.committed += 0 if is_undone else size
                self.committed_at |= {} if is_undone else dict.fromkeys(lot, time.time())
                due = max(due + every_s, time.monotonic() - 1)
                await until(self.is_ending.is_set, timeout_s=due - time.monotonic())

    async def make_trouble(self) -> None:
        """Every now and then kill a worker in the midst of its work, or rotate the queue."""
        pause_s = min(10.0, (self.seconds or 40) / 4)
        async with connect(self.dsn) as client:
            while not await until(self.is_ending.is_set, timeout_s=pause_s):
                *_, worker = workers = self.children.names
                if len(workers) == 3 and worker in self.ready:
                    self.children.signal(worker, signal.SIGUSR1)
                await until(self.is_ending.is_set, timeout_s=pause_s)
                for row in await fetch(client, "select * from cascade.rotate(%s)", QUEUE):
                    if row["action"] == "switched":
                        self.note(f"rotation: new events go to generation {row['generation']}; nobody waits")

    def hear(self, name: str, said: dict[str, Any]) -> None:
        """Listen to a process; a lost worker is replaced once its work was taken over."""
        self.ready.add(name)
        if "worker" in said:
            self.hear_report(said)
        elif str(said.get("logger")).endswith("rotator") or said.get("level", "info") != "info":
            self.note(f"{name}: {said['message']}")

    def hear_report(self, said: dict[str, Any]) -> None:
        """Count what a consumer has done; one that hangs in the midst of a batch is killed."""
        worker, consumer, orders = said["worker"], said["consumer"], said["orders"]
        if "hangs" in said:
            self.children.signal(worker, signal.SIGKILL)
            self.orphans, self.killed_at = set(orders), time.monotonic()
            self.note(f"{worker} was killed (kill -9) amid a batch of {len(orders)}; its lease ends within 3 s")
            return
        self.done[consumer] += said["done"]
        self.latencies[consumer] += (said["seen_at"] - self.committed_at[n] for n in orders if n in self.committed_at)
        if said["retried"]:
            self.note(f"{consumer} put an order back, to see it again in a second")
        if consumer == "shipping" and not self.orphans.isdisjoint(orders):
            self.note(f"{worker} was given those {time.monotonic() - self.killed_at:.1f} s later and handled them")
            self.orphans = set()
            if not self.is_ending.is_set():
                self.start_worker()

    def note(self, text: str) -> None:
        """Tell what happened."""
        self.notes.append(f"{time.monotonic() - self.began_at:6.1f} s  {text}")
        if self.live is None:
            click.echo(self.notes[-1], err=self.to_stderr)

    async def watch(self, client: Client) -> None:
        """Look at the queue twice a second and show it."""
        for turn in itertools.count():
            [self.queue] = await fetch(client, STATE, QUEUE)
            self.consumers = await fetch(client, "select * from cascade.consumers where queue = %s", QUEUE)
            self.samples.append((time.monotonic(), self.committed, self.queue["last_tick"]))
            while len(self.committed_at) > 100_000:
                del self.committed_at[next(iter(self.committed_at))]
            if self.live is not None:
                self.live.update(self.picture(), refresh=True)
            elif turn % 2:
                self.note(" | ".join([self.headline(), *map(self.brief, self.rows())]))
            await asyncio.sleep(0.5)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the consumers, with the latencies that half and nearly all of their last events stayed below."""
        for row in self.consumers:
            name, found = row["consumer"], sorted(self.latencies[row["consumer"]])
            p50, p99 = (found[int(share * (len(found) - 1))] if found else None for share in (0.5, 0.99))
            yield {**row, "done": self.done[name], "p50": p50, "p99": p99}

    def headline(self) -> str:
        """Return the state of the queue as one line."""
        (then, *before), (now, *after) = self.samples[0], self.samples[-1]
        events, ticks = ((new - old) / max(now - then, 0.001) for old, new in zip(before, after, strict=True))
        where = f"{out.human_bytes(self.queue['bytes'])}, generation {self.queue['generation']}"
        text = f"{self.committed} orders, {self.rolled_back} rolled back, {events:.0f} events/s, {ticks:.0f} ticks/s"
        return f"{text}, {where}"

    def brief(self, row: dict[str, Any]) -> str:
        """Return the state of a consumer in a few words."""
        p50, p99 = out.human(row["p50"], "seconds"), out.human(row["p99"], "seconds")
        return f"{row['consumer']} {row['done']} done, {row['lag_events']} behind, p50 {p50}, p99 {p99}"

    def picture(self) -> Group:
        """Return what is shown on a terminal."""
        title = Text(f"queue {QUEUE}: {self.headline()}\n", style="bold")
        table = out.table(STATE_COLUMNS, list(self.rows()), "consumers; p50 and p99 are from commit to handler")
        end = Text("\nCtrl-C ends it, with a proof", style="dim")
        return Group(title, table, Text(), *(Text(out.printable(note)) for note in self.notes), end)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
