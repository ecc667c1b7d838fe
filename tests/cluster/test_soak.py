"""Every fault at once, for minutes, in an order that a seed chooses.

CASCADE_SOAK_SEED repeats a run, CASCADE_SOAK_S makes it longer or shorter.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.fixtures.cascade import PICTURE, Cascade, eventually
from tests.fixtures.proxy import TO_CLIENT, TO_SERVER, FaultProxy

SECONDS = float(os.environ.get("CASCADE_SOAK_S", "240"))


class Chaos:
    """What can go wrong, one method each; every one leaves things so that they can mend."""

    def __init__(self, cascade: Cascade, links: list[FaultProxy], chance: random.Random) -> None:
        self.cascade, self.links, self.chance = cascade, links, chance
        self.done: list[str] = []

    def turn(self) -> None:
        """Let one of them happen."""
        faults: list[Callable[[], None]] = [
            self.kill_daemon,
            self.freeze_daemon,
            self.kill_server,
            self.cut,
            self.cut_within,
            self.lose_commit,
            self.half_open,
            self.stall,
            self.slow,
            self.switch,
            self.pause,
        ]
        fault = self.chance.choice(faults)
        self.done.append(fault.__name__)
        fault()
        time.sleep(self.chance.uniform(0, 1))

    def name(self) -> str:
        return self.chance.choice([*self.cascade.nodes])

    def link(self) -> FaultProxy:
        return self.chance.choice(self.links)

    def kill_daemon(self) -> None:
        name = self.name()
        self.cascade.daemon(name).kill()
        self.cascade.start_one(name)

    def freeze_daemon(self) -> None:
        daemon = self.cascade.daemon(self.name())
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0, 6))
        daemon.process.send_signal(signal.SIGCONT)

    def kill_server(self) -> None:
        with self.cascade.down(self.name()):
            time.sleep(self.chance.uniform(0, 2))

    def cut(self) -> None:
        self.link().cut()

    def cut_within(self) -> None:
        self.link().cut_after(self.chance.randrange(200_000), self.chance.choice([TO_SERVER, TO_CLIENT]))

    def lose_commit(self) -> None:
        self.link().lose_reply_to(self.chance.choice([b"COMMIT", b"store_copy"]))

    def half_open(self) -> None:
        self.link().half_open()

    def stall(self) -> None:
        link = self.link()
        link.stall(self.chance.choice([None, TO_SERVER, TO_CLIENT]))
        time.sleep(self.chance.uniform(0, 5))
        link.heal()

    def slow(self) -> None:
        link = self.link()
        link.delay(self.chance.uniform(0, 0.2))
        time.sleep(self.chance.uniform(0, 2))
        link.heal()

    def switch(self) -> None:
        # It may be refused: who was asked may be down, or copy from the node itself.
        name, provider = self.chance.choice([("s4", "s1"), ("s4", "s2"), ("s4", "s3"), ("s3", "s2"), ("s3", "s1")])
        self.cascade.cli("node", "switch", "orders", name, "--provider", provider, check=False)

    def pause(self) -> None:
        name = self.chance.choice(["s2", "s3", "s4"])
        self.cascade.cli("node", "pause", "orders", name, check=False)
        time.sleep(self.chance.uniform(0, 1))
        eventually(lambda: self.cascade.cli("node", "resume", "orders", name, check=False).exit_code == 0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_faults_together_lose_and_double_nothing(cascade: Cascade, tell: Callable[[str], None]) -> None:
    seed = int(os.environ.get("CASCADE_SOAK_SEED", time.time_ns() % 1_000_000))
    tell(f"CASCADE_SOAK_SEED={seed}")
    nodes = {name: dict(node) for name, node in PICTURE.items()}
    nodes["s2"]["handler"] = "cascade.node.handler:store_events"
    cascade.define(nodes)
    pairs = [(name, name) for name in nodes] + [("s2", "s1"), ("s3", "s1"), ("s3", "s2")]
    links = [cascade.proxy(*pair) for pair in [*pairs, ("s4", "s1"), ("s4", "s2"), ("s4", "s3")]]
    cascade.run()
    chaos = Chaos(cascade, links, random.Random(seed))
    until = time.monotonic() + SECONDS
    with cascade.load(count=100):
        while time.monotonic() < until:
            chaos.turn()
    for link in links:
        link.heal()
    cascade.settle(within_s=120)
    cascade.check_all()
    eventually(lambda: cascade.dbs["s2"].value("select count(*) from public.cascade_events") >= cascade.published)
    cascade.check_leaf("s2")
    tell(f"{len(chaos.done)} faults; events: {cascade.published} published, 0 lost, 0 doubled")
