"""Two hops: latency from commit at the root to the second branch; idle daemons; many branches."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.copying import publish
from tests.bench.latency import trickle
from tests.bench.measure import Bar, Row, Samples, percentile
from tests.bench.nodes import SET, cpu_s, nodes, rss_mb, wait
from tests.bench.servers import Bench

NAME = "hops"
ABOUT = "two hops at 50 events/s, four idle daemons, one root with eight branches"
NOTE = (
    "Latency: s1 root, s2 branch of s1, s3 branch of s2, each on a server of its own with a daemon of its own, and a "
    "producer at s1 as in measure `latency`. Visible: a plain reader at s3 that listens to the ticks and selects from "
    "the queue's table. Consumer: `queue.stream` at s3, which is later by taking a batch, durably, and reading it. "
    "Idle: four daemons over 10 s without traffic, the worst of them. Eight branches: 100,000 events in ticks of "
    "500 while they are paused, all resumed at once, on two servers; the sum of their rates, and how long the last one "
    "took."
)
RATE = 50


def run(bench: Bench) -> Iterator[Row]:
    """Trickle, idle, fan out."""
    with nodes({"s1": None, "s2": "s1", "s3": "s2", "s4": "s1"}, servers=4) as found:
        found.start()
        count = RATE * bench.scaled(20, 5)
        for what, module in (("visible", "watch"), ("consumer", "consume")):
            bench.say(f"{count} events at {RATE}/s over two hops, to {what}")
            before, after = trickle(found.dsn("s1"), found.dsn("s3"), SET, count, f"tests.bench.{module}")
            for title, share, aim in (("p50", 0.5, 10.0), ("p99", 0.99, 40.0)):
                for label, values in ((", insert included", before), ("", after)):
                    has_bar = what == "visible" and not label
                    yield Row(
                        measure=NAME,
                        title=f"root commit to {what} two hops down, {title}{label}",
                        ours=Samples(label="Cascade", unit=" ms", values=(percentile(values, share),)),
                        bar=Bar(kind="at most", limit=aim, of="value", unit=" ms") if has_bar else None,
                    )
        seconds = bench.scaled(10, 3)
        bench.say(f"idle for {seconds} s")
        time.sleep(3)
        start = {name: cpu_s(daemon.pid) for name, daemon in found.daemons.items()}
        time.sleep(seconds)
        used = {name: 100 * (cpu_s(daemon.pid) - start[name]) / seconds for name, daemon in found.daemons.items()}
        memory = {name: rss_mb(daemon.pid) for name, daemon in found.daemons.items()}
        for title, value, limit, unit in (
            ("idle daemon, of a core, worst of four", max(used.values()), 1.0, " %"),
            ("idle daemon, memory, worst of four", max(memory.values()), 60.0, " MB"),
        ):
            bar = Bar(kind="under", limit=limit, of="value", unit=unit)
            yield Row(measure=NAME, title=title, ours=Samples(label="Cascade", unit=unit, values=(value,)), bar=bar)
    yield from _fan_out(bench)


def _fan_out(bench: Bench) -> Iterator[Row]:
    branches = [f"b{number}" for number in range(1, 9)]
    count = bench.scaled(100_000, 10_000)
    with nodes({"s1": None, **dict.fromkeys(branches, "s1")}, servers=2) as found:
        found.start()
        bench.say("eight branches")
        for name in branches:
            found.conns[name].execute("select cascade.pause_node(%s)", (SET,))
        publish(found.conns["s1"], count, 500)
        target = found.tick("s1") or 0
        start = time.perf_counter()
        for name in branches:
            found.conns[name].execute("select cascade.resume_node(%s)", (SET,))
        for name in branches:
            wait(lambda name=name: (found.tick(name) or 0) >= target, 300, name)
        seconds = time.perf_counter() - start
    rate = Samples(label="Cascade", unit="/s", values=(len(branches) * count / seconds,))
    yield Row(measure=NAME, title="eight branches catching up at once, all together", ours=rate)
    lag = Samples(label="Cascade", unit=" s", values=(seconds,))
    yield Row(measure=NAME, title=f"the last of eight has {count:,} events after", ours=lag)
