"""cascade repair: make branches what their providers are, as a comparison found they should be."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import click

from cascade.cli import JSON_OPTION, operate
from cascade.cli import output as out
from cascade.cli.asking import ask, run, with_ids
from cascade.cli.operate import TIMEOUT_OPTION
from cascade.cli.status import FILE_OPTION

if TYPE_CHECKING:
    from cascade.node.survey import Links
    from cascade.spark.repair import Plan, Repaired

LIST: LiteralString = (
    "select coalesce(jsonb_agg(to_jsonb(r) order by r.repair_id), '[]') from cascade.repairs as r where r.set = %s"
)
READ: LiteralString = "select coalesce(jsonb_agg(to_jsonb(r)), '[]') from cascade.read_repair(%s, %s) as r"

PLAN = click.argument("plan_path", metavar="PLAN", type=click.Path(exists=True, dir_okay=False, path_type=Path))
REPAIR_COLUMNS = [
    *out.columns("text", "node", "at", "provider"),
    *out.columns("id", "from_tick", "to_tick"),
    *out.columns("number", "removed", "added", "ticks"),
    *out.columns("text", "by_role", "plan"),
]
EVENT_COLUMNS = [
    *out.columns("text", "node", "what"),
    out.Column("id", "id", "id"),
    *out.columns("text", "type", "key", "payload"),
]


@click.group()
def repair() -> None:
    """Repair branches whose log differs from their provider's, as `cascade spark reconcile` found it.

    \b
    cascade spark reconcile -f orders.yaml --set orders --plan repair.json
    cascade repair apply repair.json -f orders.yaml --dry-run
    cascade repair apply repair.json -f orders.yaml
    cascade repair list orders -f orders.yaml
    """


@repair.command()
@PLAN
@FILE_OPTION
@click.option("--dry-run", is_flag=True, help="Show what would be done, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask; without a terminal nobody is asked anyway.")
@TIMEOUT_OPTION
@JSON_OPTION
def apply(plan_path: Path, path: Path, dry_run: bool, yes: bool, timeout_s: float, as_json: bool) -> int:
    """Carry out a plan of repair: on each branch, from its provider, in one transaction.

    Nothing is changed on a node whose log is not as the plan found it, or whose provider is not what the plan wants.
    Every event that is taken out or put in is kept in a journal.  It may be killed and run again.

    \b
    cascade repair apply repair.json -f orders.yaml --dry-run
    cascade repair apply repair.json -f orders.yaml --yes
    """
    from cascade.node.survey import Links
    from cascade.spark.repair import Plan, apply_plan

    plan = Plan.load(plan_path)
    if not as_json:
        show_plan(plan)
    if dry_run:
        if as_json:
            out.echo_json(plan.as_json())
        return 0
    topology, observed = ask(path, plan.set, timeout_s)
    links = Links(topology, observed)
    if plan.nodes:
        names = ", ".join(one.node for one in plan.nodes)
        operate.confirm(f"repair {names} of set {plan.set}: go ahead?", yes=yes, as_json=as_json)
    done = apply_plan(plan, links.address, lambda one: None if as_json else show_done(one))
    if as_json:
        out.echo_json({"set": plan.set, "plan": plan.uid, "nodes": [_plain(one) for one in done]})
    return 0


@repair.command("list")
@click.argument("set_name", metavar="SET")
@FILE_OPTION
@TIMEOUT_OPTION
@JSON_OPTION
def list_repairs(set_name: str, path: Path, timeout_s: float, as_json: bool) -> None:
    """Show what was repaired, at every node that answers.

    \b
    cascade repair list orders -f orders.yaml
    """
    topology, observed = ask(path, set_name, timeout_s)

    async def collect(links: Links) -> list[dict[str, Any]]:
        return [row for node in sorted(observed.views) for row in await links.call(node, LIST, set_name)]

    found = with_ids(run(topology, observed, collect), "from_tick", "to_tick")
    out.echo_list(REPAIR_COLUMNS, found, as_json=as_json, when_empty="nothing was repaired")


@repair.command()
@click.argument("set_name", metavar="SET")
@click.argument("uid", metavar="UID")
@FILE_OPTION
@TIMEOUT_OPTION
@JSON_OPTION
def show(set_name: str, uid: str, path: Path, timeout_s: float, as_json: bool) -> None:
    """Show the events that a plan took out and put in, whole.

    \b
    cascade repair show orders 5a1c8a52-0f6e-4f0c-9d0e-3b9a6a1a2b3c -f orders.yaml
    """
    topology, observed = ask(path, set_name, timeout_s)

    async def collect(links: Links) -> list[dict[str, Any]]:
        return [
            {"node": node, "what": "removed" if row["is_removed"] else "added", **row}
            for node in sorted(observed.views)
            for row in await links.call(node, READ, set_name, uid)
        ]

    found = with_ids(run(topology, observed, collect), "id", "origin_id")
    out.echo_list(EVENT_COLUMNS, found, as_json=as_json, when_empty="no such events were repaired")


def show_plan(plan: Plan) -> None:
    """Print what a plan would do."""
    for one in plan.nodes:
        ranges = ", ".join(f"after {part.from_tick} up to {part.to_tick}" for part in one.parts[:10])
        more = f", and {len(one.parts) - 10} more" if len(one.parts) > 10 else ""
        click.echo(f"{one.node}, from {one.provider}: {len(one.ids)} events, ticks {ranges}{more}")
    for refusal in plan.refusals:
        click.echo(f"not repaired: {out.printable(refusal)}")


def show_done(one: Repaired) -> None:
    """Say what was done at a node."""
    again = "was repaired before" if one.is_repeat else "is repaired"
    click.echo(f"{one.node} {again}: {one.removed} events taken out, {one.added} put in, {one.ticks} ticks replaced")
    for row in one.consumers:
        click.echo(f"  consumer {out.printable(row['consumer'])} had passed those ticks, at {row['tick_id']}")


def _plain(one: Repaired) -> dict[str, Any]:
    return asdict(one) | {"consumers": with_ids(one.consumers, "tick_id")}
