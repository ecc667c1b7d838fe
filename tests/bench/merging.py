"""Merging: how fast a combined-root takes over what its parts have, beside a branch that copies as much."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from cascade.topology import Node, Role, Set
from tests.bench.copying import checkpoint, publish
from tests.bench.measure import Bar, Row, Samples, take_turns
from tests.bench.nodes import SET, Nodes, cpu_s, placed, wait
from tests.bench.servers import Bench

NAME = "merge"
ABOUT = "a combined-root catching up with 1, 2 and 4 parts: events per second of all, CPU; beside a branch that copies"
NOTE = (
    "Four parts and a plain root on one server, a combined-root and a plain branch on another, a daemon for each "
    "database. Merge-leaves or the branch are paused, 300,000 events in all are published in ticks of 500, as many in "
    "each part, and the clock runs from `resume_node` until the last tick of every part is merged, or copied; the "
    "combined set makes its own ticks meanwhile. CPU: of the daemon that merges or copies, from /proc."
)
PARTS = ("a", "b", "c", "d")
SUM = "s"


def run(bench: Bench) -> Iterator[Row]:
    """Measure merging with one, two and four parts, and copying in the same rounds."""
    count = bench.scaled(300_000, 40_000)
    with placed(sets(), {**{f"{part}1": 0 for part in (*PARTS, "o")}, "s1": 1, "o2": 1}) as found:
        found.start()
        costs: dict[str, list[float]] = {}
        sides = {
            "copying": lambda: catch_up(found, "o2", (SET,), count, costs.setdefault("copying", [])),
            **{
                f"{number}": lambda number=number: catch_up(
                    found, "s1", PARTS[:number], count, costs.setdefault(f"{number}", [])
                )
                for number in (1, 2, 4)
            },
        }
        bench.say(f"{count} events, 500 per tick")
        # Connections, plans and partitions are new at first, whoever begins.
        catch_up(found, "o2", (SET,), count // 4, [])
        catch_up(found, "s1", PARTS, count // 4, [])
        values = take_turns(bench.turns(3), sides)
    copying = Samples(label="copying", unit="/s", values=values["copying"])
    for number in (1, 2, 4):
        title = f"merge {number} part{'s' if number > 1 else ''} at once, all together"
        ours = Samples(label="Cascade", unit="/s", values=values[str(number)])
        bar = Bar(kind="at least", limit=0.5) if number == 4 else None
        yield Row(measure=NAME, title=title, ours=ours, theirs=copying, bar=bar)
    for side, title in (("4", "four parts"), ("1", "one part")):
        ours = Samples(label="Cascade", unit=" s", values=tuple(costs[side]))
        theirs = Samples(label="copying", unit=" s", values=tuple(costs["copying"]))
        yield Row(measure=NAME, title=f"CPU of the daemon per million merged events, {title}", ours=ours, theirs=theirs)


def sets() -> dict[str, Set]:
    """Return four parts, what combines them, and a plain set that is copied."""
    roots = {part: Node(name=f"{part}1", set=part, database=f"{part}1", role=Role.ROOT) for part in PARTS}
    made = {part: Set(name=part, nodes={root.name: root}) for part, root in roots.items()}
    total = Node(name="s1", set=SUM, database="s1", role=Role.COMBINED_ROOT)
    root = Node(name="o1", set=SET, database="o1", role=Role.ROOT)
    branch = Node(name="o2", set=SET, database="o2", role=Role.BRANCH, provider="o1")
    return {
        **made,
        SUM: Set(name=SUM, nodes={"s1": total}, combines=PARTS),
        SET: Set(name=SET, nodes={"o1": root, "o2": branch}),
    }


def catch_up(found: Nodes, name: str, wanted: Sequence[str], count: int, costs: list[float]) -> float:
    """Pause sets at one node, publish at their roots, and return how many events per second it then takes over."""
    targets = {}
    for one in wanted:
        root = found.topology.sets[one].root.database
        found.conns[name].execute("select cascade.pause_node(%s)", (one,))
        publish(found.conns[root], count // len(wanted), 500, one)
        targets[one] = found.tick(root, one) or 0
    checkpoint(found, name)
    cpu, before = cpu_s(found.daemons[name].pid), time.perf_counter()
    for one in wanted:
        found.conns[name].execute("select cascade.resume_node(%s)", (one,))
    for one, target in targets.items():
        wait(lambda one=one, target=target: (found.tick(name, one) or 0) >= target, 300, f"set {one} at {name}")
    seconds = time.perf_counter() - before
    costs.append((cpu_s(found.daemons[name].pid) - cpu) / count * 1e6)
    return count / seconds
