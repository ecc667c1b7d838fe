"""cascade spark audit: whether a combined queue has every event of its parts once, in order, and nothing else."""

from __future__ import annotations

from pathlib import Path

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.spark_job import SparkOptions, find_node, spark_job, spark_options
from cascade.cli.status import FILE_OPTION
from cascade.errors import ConfigError
from cascade.spark.audited import PartAudit
from cascade.topology import load

COLUMNS = (
    out.Column("part", "part"),
    out.Column("from_tick", "after tick", "id"),
    out.Column("to_tick", "up to", "id"),
    *out.columns("number", "compared", "missing", "doubled", "extra", "changed", "out_of_order", "lost", "skipped"),
    out.Column("not_compared", "not compared", "number"),
)


@click.command("audit")
@click.argument("set_name", metavar="SET")
@FILE_OPTION
@click.option("--node", metavar="NODE", help="The node of the combined set to read; otherwise one that answers.")
@click.option(
    "--part-node",
    "part_nodes",
    multiple=True,
    metavar="PART=NODE",
    help="The node of a part to read; otherwise one that answers.  Repeatable.",
)
@spark_options
@JSON_OPTION
def audit_command(
    set_name: str, path: Path, node: str | None, part_nodes: tuple[str, ...], spark: SparkOptions, as_json: bool
) -> int:
    """Compare a combined queue with its parts: every event there once, in its part's order, and nothing else.

    Compared is what both sides still hold and what was merged.  Events that a part has lost with its root are in the
    combined queue and nowhere else: they are counted as lost, and are no fault.  Exits 1 when something is wrong.

    \b
    cascade spark audit s -f shops.yaml
    cascade spark audit s -f shops.yaml --node s2 --part-node a=a1 --json
    """
    topology = load(path)
    if set_name not in topology.sets:
        topology.find(set_name, "")
    parts = topology.sets[set_name].combines
    if not parts:
        raise ConfigError(
            f"set {set_name} combines nothing", hint="cascade spark reconcile compares copies of one queue."
        )
    wanted = wanted_nodes(part_nodes, parts)
    place = find_node(topology, set_name, node)
    places = {part: find_node(topology, part, wanted.get(part)) for part in parts}
    with spark_job(spark, "audit", quiet=as_json) as job:
        from cascade.spark.audit import audit

        with job.bar(f"comparing {set_name} with its parts", "parts") as bar:
            report = audit(
                job.session,
                set_name,
                dsn=place.dsn,
                parts={part: found.dsn for part, found in places.items()},
                report=bar,
            )
    if as_json:
        out.echo_json(report.as_plain())
        return 0 if report.is_clean else 1
    out.show(out.table(COLUMNS, [part.counts() for part in report.parts]))
    for part in report.parts:
        for line in remarks(part):
            click.echo(line)
    if report.untraced:
        click.echo(f"{report.untraced} events of {set_name} belong to no part")
    click.echo(f"\n{verdict(set_name, [part.part for part in report.parts], is_clean=report.is_clean)}")
    return 0 if report.is_clean else 1


def wanted_nodes(pairs: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str]:
    """Return which node of a part was named."""
    found = {}
    for pair in pairs:
        part, _, node = pair.partition("=")
        if part not in parts or not node:
            raise ConfigError(
                f"--part-node {pair}: no such part", hint=f"Write PART=NODE; the parts are {', '.join(parts)}."
            )
        found[part] = node
    return found


def remarks(part: PartAudit) -> list[str]:
    """Say which events are wrong, the first of each kind."""
    found = []
    if part.from_tick is None:
        found.append(f"{part.part}: nothing of it was merged in what is still held")
    if part.broken_marks:
        found.append(f"{part.part}: {part.broken_marks} marks do not follow one another")
    for fault, events in part.examples.items():
        shown = ", ".join(f"{origin}/{number}" for origin, number in events)
        more = getattr(part, fault) - len(events)
        found.append(f"{part.part}: {fault.replace('_', ' ')}: {shown}{f' and {more} more' if more > 0 else ''}")
    found += [
        f"{part.part}: gap of {origin} from {first} to {last}" for origin, first, last in part.gaps if first != last
    ]
    return found


def verdict(name: str, parts: list[str], *, is_clean: bool) -> str:
    """Say it in a sentence."""
    if is_clean:
        return f"every event of {', '.join(parts)} that can be compared is in {name} once, in order"
    return f"{name} is not what its parts make it: the events above are wrong"
