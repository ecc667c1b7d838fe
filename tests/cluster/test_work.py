"""Work mode in a cascade: every carrier's workers go on through switchovers, and through the loss of the root."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import cascade as library
from tests.fixtures.cascade import Cascade, eventually

CONSUMER = "crew"


class Crew:
    """A worker at one node, in a thread with a loop of its own, and how often it has handled each number."""

    def __init__(self, cascade: Cascade, node: str) -> None:
        self.node, self.seen = node, Counter[int]()
        self.worker = library.Worker(
            "orders", CONSUMER, self.handle, dsn=cascade.dbs[node].dsn, lease=timedelta(seconds=5), poll_s=0.5
        )

    async def handle(self, payload: dict[str, int]) -> None:
        self.seen[payload["n"]] += 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(self.worker.run()), name=f"crew-{self.node}")
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(self.worker.stop)
            thread.join(60)
            loop.close()


@contextmanager
def crews(cascade: Cascade, *nodes: str) -> Iterator[dict[str, Crew]]:
    """Have a worker at work at each of these nodes during a block."""
    options = '{"backoff": "constant", "backoff_delay": "10 ms"}'
    found = {}
    with ExitStack() as stack:
        for name in nodes:
            cascade.dbs[name].rows(
                "select cascade.subscribe('orders', %s, 'earliest', mode => 'work', options => %s)", CONSUMER, options
            )
            found[name] = Crew(cascade, name)
            stack.enter_context(found[name].at_work())
        yield found


def wait_for(cascade: Cascade, crew: Crew) -> None:
    """Wait until a worker has seen every number that was published."""
    wanted = set(range(1, cascade.published + 1))
    eventually(lambda: set(crew.seen) >= wanted, within_s=60)
    assert set(crew.seen) == wanted


def test_workers_of_every_carrier_go_on_through_switchovers(orders: Cascade) -> None:
    with crews(orders, "s1", "s2", "s3") as found:
        orders.publish(100)
        for new in ("s2", "s3"):
            orders.cli("switchover", "orders", "--to", new)
            orders.publish(50, node=new)
        for crew in found.values():
            wait_for(orders, crew)
            assert set(crew.seen.values()) == {1}, f"at {crew.node} each was handled once"
    assert {name: crew.worker.completed for name, crew in found.items()} == dict.fromkeys(found, 200)


def test_workers_of_the_promoted_node_go_on_when_the_root_is_lost(orders: Cascade) -> None:
    with crews(orders, "s1", "s2", "s3") as found:
        orders.publish(200)
        orders.settle()
        for crew in found.values():
            wait_for(orders, crew)
        with orders.down("s1"):
            shown = orders.cli("failover", "orders", "--dead", "s1", "--json", check=False)
            [plan] = json.loads(shown.stdout)["plans"]
            words = ("--fenced-by", "kill -9", "--allow-loss", plan["loss"]["fork"], "--timeout", "1")
            orders.cli("failover", "orders", "--dead", "s1", *words)
            new = next(name for name in ("s2", "s3") if orders.node(name)["role"] == "root")
            orders.publish(50, node=new)
            for name in ("s2", "s3"):
                wait_for(orders, found[name])
                assert set(found[name].seen.values()) == {1}
        orders.cli("resurrect", "orders", "s1")
        orders.publish(50, node=new)
        # The lost root's worker has reconnected, and works on what the branch is given.
        for crew in found.values():
            wait_for(orders, crew)
