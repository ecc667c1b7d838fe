"""cascade status and cascade wait: the tree with what is known of every node, and waiting for one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION, combined
from cascade.cli import output as out
from cascade.errors import CascadeError, ConfigError, NodeNotFoundError
from cascade.topology import Node, Role, Set, Topology, load
from cascade.topology.picture import family, tops
from cascade.topology.render import tree

if TYPE_CHECKING:
    from cascade.node.assess import NodeStatus
    from cascade.node.observe import Answer
    from cascade.node.outlook import Outlook
    from cascade.node.parts import PartStatus, Successor

#: What a topology file is called that need not be named where it is.
FILES = ("topology.yaml", "cascade.yaml")
FILE_HELP = f"The topology file; without it {' or '.join(FILES)} of the working directory."


def find_file(named: Path | None) -> Path:
    """Return the topology file that was named, or the one that is here."""
    if named is not None:
        return named
    here = [name for name in FILES if Path(name).is_file()]
    if len(here) == 1:
        return Path(here[0])
    what = f"{' and '.join(here)} are both here" if here else "no topology file was named, and none is here"
    raise ConfigError(what, hint=f"Pass -f FILE or set CASCADE_TOPOLOGY; one {' or '.join(FILES)} here is found.")


FILE_OPTION = click.option(
    "--topology",
    "-f",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="CASCADE_TOPOLOGY",
    show_envvar=True,
    callback=lambda context, _, value: value if context.resilient_parsing else find_file(value),
    help=FILE_HELP,
)


@click.command()
@FILE_OPTION
@click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds to wait for a database.",
)
@JSON_OPTION
def status(path: Path, watch: bool, timeout_s: float, as_json: bool) -> int:
    """Show every set as a tree: roles, lag, rates, and what is wrong.

    Each line has the tick, the lag from the root and per hop, events per second, bytes, notes.  A node
    that does not answer is shown as it was last heard of, with the age of that, and never without lag:
    null in --json is a lag that nobody knows.  Below the tree stands what the root's death would cost
    now, at most.  Exit code: 0 healthy, 1 warning, 2 critical.

    A combined set and its parts are one picture: each merge-leaf has the lag of its part, those that copy
    are joined to the combined-root, dashed while they wait or are stopped, and a line says which branch can be
    promoted.  In --json it has `parts`, how far each carrier is with each part, and `successors`.

    \b
    cascade status
    cascade status -f orders.yaml --watch
    cascade status -f orders.yaml --json | jq '.sets[].nodes[] | select(.level != "healthy")'
    """
    topology = load(path)
    if not watch:
        return show_status(look(topology, timeout_s), as_json=as_json)
    level = 0
    try:
        while True:
            found = look(topology, timeout_s)
            if not as_json:
                click.clear()
            level = show_status(found, as_json=as_json)
            time.sleep(1.0)
            topology = load(path)
    except KeyboardInterrupt:
        return level


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of a topology: of every node, of what each root's death would cost, and of parts."""

    topology: Topology
    nodes: Sequence[NodeStatus]
    outlooks: Sequence[Outlook]
    parts: Sequence[PartStatus]
    successors: Sequence[Successor]


def look(topology: Topology, timeout_s: float) -> Found:
    """Ask every database, and return what is known."""
    from cascade.node.observe import observe

    return make_of(topology, asyncio.run(observe(topology, timeout_s=timeout_s)))


def make_of(topology: Topology, answers: dict[str, Answer]) -> Found:
    """Return what is known after the databases have answered, or have not."""
    from cascade.node.assess import assess
    from cascade.node.outlook import outlook
    from cascade.node.parts import parts_of, successors

    combined = [found for found in topology.sets.values() if found.is_combined]
    return Found(
        topology=topology,
        nodes=assess(topology, answers),
        outlooks=outlook(topology, answers),
        parts=[part for found in combined for part in parts_of(topology, found, answers)],
        successors=[branch for found in combined for branch in successors(found, answers)],
    )


def show_status(found: Found, *, as_json: bool) -> int:
    """Print the pictures, and return the worst level."""
    from cascade.node.assess import LEVELS

    worst = max((node.level for node in found.nodes), default=0)
    if as_json:
        out.echo_json({"level": LEVELS[worst], "sets": [set_row(found, ahead) for ahead in found.outlooks]})
        return worst
    for name in tops(found.topology.sets):
        click.echo(show_family(found, name) + "\n")
    click.echo(LEVELS[worst])
    return worst


def set_row(found: Found, ahead: Outlook) -> dict[str, Any]:
    """Return a set as the contract of --json has it."""
    row: dict[str, Any] = {"set": ahead.set, "root": ahead.root, "if_the_root_died": if_it_died(ahead)}
    if ahead.is_combined:
        row |= {
            "combines": list(found.topology.sets[ahead.set].combines),
            "parts": [combined.part_row(part) for part in found.parts if part.set == ahead.set],
            "successors": [combined.successor_row(branch) for branch in found.successors if branch.set == ahead.set],
        }
    return {**row, "nodes": [as_row(node) for node in found.nodes if node.set == ahead.set]}


def show_family(found: Found, name: str) -> str:
    """Draw a set with all that it combines, and say what the deaths of their roots would cost."""
    outlooks = [ahead for ahead in found.outlooks if ahead.set in family(found.topology.sets, name)]
    return "\n".join([draw_family(found, name), "", *prospects(found, outlooks)])


def draw_family(found: Found, name: str) -> str:
    """Draw a plain set as a tree, a combined one together with all that it combines."""
    topology, names = found.topology, family(found.topology.sets, name)
    if names == [name]:
        return draw(topology.sets[name], [node for node in found.nodes if node.set == name])
    nodes = {(node.set, node.node): node for node in found.nodes}
    sets = {
        one: as_they_are(topology.sets[one], {node.node: node for node in found.nodes if node.set == one})
        for one in names
    }
    return combined.picture(sets, name, nodes, found.successors)


def prospects(found: Found, outlooks: Sequence[Outlook]) -> Iterator[str]:
    """Yield what the deaths of roots would cost, once for those of which the same is to be said."""
    alike: dict[str, list[Outlook]] = {}
    for ahead in outlooks:
        alike.setdefault(foresee(ahead, "any of them"), []).append(ahead)
    for group in alike.values():
        for ahead in group:
            if ahead.is_combined:
                yield combined.promise(ahead.set, [branch for branch in found.successors if branch.set == ahead.set])
        names = [str(ahead.root) for ahead in group]
        yield foresee(group[0], "the root" if len(outlooks) == 1 else combined.in_words(names, "or"))


def if_it_died(ahead: Outlook) -> dict[str, Any]:
    """Return what a root's death would cost, as the contract of --json has it; what nobody knows is null."""
    tick = None if ahead.heir_tick is None else str(ahead.heir_tick)
    return {"heir": ahead.heir, "heir_tick": tick, "at_most_events": ahead.events, "at_most_seconds": ahead.seconds}


def foresee(ahead: Outlook, root: str = "the root") -> str:
    """Say what a root's death would cost, or does."""
    if ahead.is_lost:
        # Another carrier may have come further, and be no combined-failover.
        best = "no branch answers" if ahead.heir is None else f"{ahead.heir} can follow it, from tick {ahead.heir_tick}"
        return f"the root {ahead.root} is lost: {best}; cascade failover {ahead.set} --dead {ahead.root} --dry-run"
    if ahead.events is None or ahead.seconds is None:
        return f"if {root} died now: no branch that answers could follow it"
    if ahead.events == 0:
        return f"if {root} died now: nothing would be lost, {ahead.heir} has everything"
    events = "1 event" if ahead.events == 1 else f"{ahead.events} events"
    if ahead.is_combined:
        return f"if {root} died now: {ahead.heir} would merge at most {events} again from the parts"
    return f"if {root} died now: at most {events}, {out.human_seconds(ahead.seconds)}; {ahead.heir} has the rest"


def as_row(node: NodeStatus) -> dict[str, Any]:
    """Return a node as the contract of --json has it."""
    from cascade.node.assess import LEVELS

    row = asdict(node)
    return {
        **out.plain(row),
        "tick_id": None if node.tick_id is None else str(node.tick_id),
        "watermark": None if node.watermark is None else str(node.watermark),
        "level": LEVELS[node.level],
        "notes": list(node.notes),
    }


def draw(wanted: Set, found: Sequence[NodeStatus]) -> str:
    """Draw a set as it is: under the root that reigns and the providers that its nodes really have."""
    by_name = {node.node: node for node in found}
    return tree(as_they_are(wanted, by_name), {name: describe(node) for name, node in by_name.items()})


def as_they_are(wanted: Set, found: Mapping[str, NodeStatus]) -> Set:
    """Return a set with the roles and providers that its nodes really have, the root that reigns before the others."""
    roots = [node for node in found.values() if is_root(node) and node.state != "fenced"]
    root = max(roots, key=lambda node: node.tick_id or 0).node if roots else None
    nodes = {name: as_it_is(node, found[name], root) for name, node in wanted.nodes.items()}
    return replace(wanted, nodes=nodes if root is None else {root: nodes[root], **nodes})


def is_root(node: NodeStatus) -> bool:
    """Whether a node is a root, by what its database says."""
    return node.role is not None and Role(node.role).is_root


def as_it_is(node: Node, found: NodeStatus, root: str | None) -> Node:
    """Return a node with the role and the provider that it has; of one that does not answer, as the file says.

    One that the file has as root, while another one reigns, will come back as its branch.
    """
    was_deposed = found.role is None and node.role.is_root and root is not None
    role = Role.BRANCH if was_deposed else Role(found.role or node.role)
    if role.is_root:
        return replace(node, role=node.role if node.role.is_root else role, provider=None, handler=None)
    return replace(node, role=role, provider=found.provider or node.provider or root or "?", handler=None)


def describe(node: NodeStatus) -> list[str]:
    """Return the columns of one node."""
    mark = ("✓", "!", "✗")[node.level]
    if node.tick_id is None:
        return [f"{mark} {node.state}", "", "", "", "", "; ".join(node.notes)]
    if is_root(node):
        behind = ""
    elif node.lag_ticks is None:
        behind = "lag unknown"
    elif node.role is None:
        behind = f"{_ticks(node.lag_ticks)} behind when last heard"
    elif node.lag_ticks == 0:
        behind = "no lag"
    else:
        hop = (
            ""
            if node.hop_ticks is None or node.hop_ticks == node.lag_ticks
            else f", {node.hop_ticks} from {node.provider}"
        )
        behind = f"{out.human_seconds(node.lag_seconds or 0)} behind ({_ticks(node.lag_ticks)}{hop})"
    rate = "" if node.events_per_second is None else f"{node.events_per_second:g}/s"
    size = "" if node.bytes is None else out.human_bytes(node.bytes)
    return [f"{mark} {node.state}", f"tick {node.tick_id}", behind, rate, size, "; ".join(node.notes)]


def _ticks(count: int) -> str:
    return "1 tick" if count == 1 else f"{count} ticks"


@click.command()
@FILE_OPTION
@click.option("--set", "set_name", required=True, help="The set.")
@click.option("--node", "node_name", required=True, help="The node to wait for.")
@click.option("--tick", type=click.IntRange(0), help="The tick it must have; without it, the root's newest now.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds.")
def wait(path: Path, set_name: str, node_name: str, tick: int | None, timeout_s: float) -> int:
    """Wait until a node has come to a tick; exit 1 when it does not in time.

    \b
    cascade wait -f orders.yaml --set orders --node s4
    cascade wait -f orders.yaml --set orders --node s4 --tick 1234 --timeout 10
    """
    from cascade.node.enroll import dsn_of
    from cascade.sync import connect

    topology = load(path)
    node = topology.find(set_name, node_name)
    query = "select tick_id from cascade.nodes where set = %s"
    deadline = time.monotonic() + timeout_s
    if tick is None:
        with connect(dsn_of(topology, topology.sets[set_name].root.database)) as client:
            tick = _tick(client.call(query, set_name), set_name, topology.sets[set_name].root.name)
    with connect(dsn_of(topology, node.database)) as client:
        while (found := _tick(client.call(query, set_name), set_name, node_name)) < tick:
            if time.monotonic() > deadline:
                raise CascadeError(
                    f"set {set_name}: node {node_name} stands at tick {found}, not at {tick}, after {timeout_s:g} s",
                    hint="cascade status shows what it waits for.",
                )
            time.sleep(0.02)
    click.echo(f"node {node_name} has tick {tick}")
    return 0


def _tick(found: object, set_name: str, node: str) -> int:
    if found is None:
        raise NodeNotFoundError(f"set {set_name}: node {node} does not exist yet", hint="Is its daemon running?")
    return int(str(found))
