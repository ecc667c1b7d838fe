"""cascade spark reconcile: whether all carriers of a set have the same log, and in what they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.operate import TIMEOUT_OPTION
from cascade.cli.spark_job import SparkOptions, spark_job, spark_options
from cascade.cli.status import FILE_OPTION

if TYPE_CHECKING:
    from cascade.spark.report import Report

FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
#: So many differences are shown; --json and the page have all.
SHOWN = 50

NODE_COLUMNS = [
    *out.columns("text", "node", "role", "provider"),
    *out.columns("id", "first_tick", "last_tick"),
    *out.columns("text", "differences", "not_compared"),
]
COLUMNS = [
    *out.columns("text", "node"),
    *out.columns("id", "tick_id", "id"),
    *out.columns("text", "what", "wanted", "found"),
]


@click.command("reconcile")
@FILE_OPTION
@click.option("--set", "set_name", required=True, help="The set.")
@click.option("--nodes", metavar="A,B,...", help="Compare only these; otherwise all carriers.")
@click.option("--from", "start", default="earliest", show_default=True, help="After which tick: a tick id or a time.")
@click.option("--to", "end", default="latest", show_default=True, help="Up to which tick: a tick id or a time.")
@click.option("--html", "page_path", type=FILE, help="Write the report as a page, too.")
@click.option("--plan", "plan_path", type=FILE, help="Write what would repair the branches: cascade repair apply.")
@TIMEOUT_OPTION
@spark_options
@JSON_OPTION
def reconcile_command(
    path: Path,
    set_name: str,
    nodes: str | None,
    start: str,
    end: str,
    page_path: Path | None,
    plan_path: Path | None,
    timeout_s: float,
    spark: SparkOptions,
    as_json: bool,
) -> int:
    """Compare what all carriers of a set have; exits 0 when they are equal, else 1.

    Every database computes digests of its own log; only events that differ are read.  What a node has rotated away, or
    has not copied yet, is not compared.  Nothing is changed, and nobody waits.

    \b
    cascade spark reconcile -f orders.yaml --set orders
    cascade spark reconcile -f orders.yaml --set orders --from 2026-11-01 --html report.html
    cascade spark reconcile -f orders.yaml --set orders --plan repair.json; cascade repair apply repair.json
    """
    from cascade.spark.carriers import look
    from cascade.topology import load

    topology = load(path)
    if set_name not in topology.sets:
        topology.find(set_name, "")
    names = [name.strip() for name in nodes.split(",")] if nodes is not None else None
    look(topology, set_name, names, timeout_s=timeout_s)  # which says in one line what is wrong, before Java starts
    with spark_job(spark, "reconcile", quiet=as_json) as job:
        from cascade.spark.reconcile import reconcile

        with job.bar(f"comparing {set_name}", "steps") as bar:
            report = reconcile(
                job.session,
                topology,
                set_name,
                nodes=names,
                from_=start,
                to=end,
                timeout_s=timeout_s,
                progress=lambda done, total, title: bar(done, total, title),
            )
    plan = write_plan(report, plan_path)
    if page_path is not None:
        from cascade.spark.page import page

        page_path.write_text(page(report), encoding="utf-8")
    if as_json:
        out.echo_json(report.as_json() | {"plan": plan})
    else:
        show(report)
        for made, what in ((page_path, "the report"), (plan_path, "a plan of repair")):
            if made is not None and (made is page_path or plan):
                click.echo(f"wrote {what} to {out.printable(str(made))}", err=True)
    return report.exit_code


def write_plan(report: Report, path: Path | None) -> dict[str, Any] | None:
    """Write a plan of repair when something can be repaired; say what cannot."""
    from cascade.spark.repair import make_plan

    if path is None:
        return None
    plan = make_plan(report)
    for refusal in plan.refusals:
        click.echo(f"note: {refusal}", err=True)
    if not plan.nodes:
        return None
    plan.save(path)
    return plan.as_json()


def show(report: Report) -> None:
    """Print a report for people."""
    out.show(out.table(NODE_COLUMNS, [node_row(report, node.node) for node in report.nodes], f"set {report.set}"))
    for node, reason in report.silent.items():
        click.echo(f"{node} was not compared: {out.printable(reason)}")
    found = report.differences
    if found:
        click.echo()
        out.show(out.table(COLUMNS, [difference_row(one) for one in found[:SHOWN]]))
        if len(found) > SHOWN or report.is_truncated:
            more = "more than that differs" if report.is_truncated else f"and {len(found) - SHOWN} more"
            click.echo(f"{more}; --json and --html have {'the first' if report.is_truncated else 'all'}")
    click.echo()
    compared = f"{out.human(report.events, 'number')} events in {out.human(report.ticks, 'number')} ticks compared"
    read = f"{out.human_bytes(report.bytes_read)} read, {out.human_seconds(report.seconds)}"
    verdict = f"{len(found)} differences" if found else ("equal" if report.is_equal else "not equal")
    click.echo(f"{verdict}: {compared} after tick {report.from_tick} up to {report.to_tick}; {read}")


def node_row(report: Report, name: str) -> dict[str, Any]:
    """Return a carrier's line."""
    node = next(one for one in report.nodes if one.node == name)
    counts = [f"{number} {kind}" for kind, number in sorted(report.counts(name).items())]
    if node.is_dirty:
        counts.append("events outside its last tick")
    skipped = [f"{one.reason}: after {one.from_tick} up to {one.to_tick}" for one in node.skipped]
    return {
        "node": name,
        "role": node.role,
        "provider": node.provider,
        "first_tick": node.first_tick,
        "last_tick": node.last_tick,
        "differences": ", ".join(counts) or "none",
        "not_compared": "; ".join(skipped) or None,
    }


def difference_row(found: Any) -> dict[str, Any]:
    """Return a difference's line."""
    what = str(found.kind)
    if found.columns:
        what += f": {', '.join(found.columns)}"
    if found.found_tick is not None:
        what += f" ({found.count} events are in {found.found_tick})" if found.kind.is_tick else f" {found.found_tick}"
    sides = {side: shorten(getattr(found, side)) for side in ("wanted", "found")}
    return {"node": found.node, "tick_id": found.tick_id, "id": found.id, "what": what, **sides}


def shorten(values: dict[str, str | None]) -> str | None:
    """Return the beginnings of some columns on one line."""
    shown = [f"{name} {'null' if value is None else value[:40]}" for name, value in values.items() if name != "id"]
    return ", ".join(shown) or None
