"""cascade history and cascade resolve: the terms of a set, and what to do about two that exclude one another."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import click

from cascade.cli import JSON_OPTION, operate
from cascade.cli import output as out
from cascade.cli.asking import ask, run, with_ids
from cascade.cli.operate import TIMEOUT_OPTION
from cascade.cli.status import FILE_OPTION
from cascade.errors import ConfigError, UnsafeError

if TYPE_CHECKING:
    from cascade.node.survey import Links
    from cascade.topology import Topology
    from cascade.topology.observe import Observed

RESOLVE: LiteralString = "select cascade.resolve(%s, %s, %s)"
JOURNAL: LiteralString = (
    "select coalesce(jsonb_agg(to_jsonb(j) - 'set' order by j.journal_id), '[]')"
    "  from cascade.journal as j where j.set = %s"
)
COLUMNS = [
    out.Column("term", "term", "id"),
    *out.columns("text", "node", "state", "cause"),
    out.Column("fork_tick", "after tick", "id"),
    *out.columns("text", "at", "reason", "uid"),
]
JOURNAL_COLUMNS = [*out.columns("text", "at", "node", "step", "detail", "by_role")]


@click.command()
@click.argument("set_name", metavar="SET")
@FILE_OPTION
@click.option(
    "--journal", "wants_journal", is_flag=True, help="Show every step that was taken in any database instead."
)
@TIMEOUT_OPTION
@JSON_OPTION
def history(set_name: str, path: Path, wants_journal: bool, timeout_s: float, as_json: bool) -> None:
    """Show the reigns of a set's roots, from the first.

    Each term has a number, which the ids of its ticks and events begin with, and a uid.  It began after the last tick
    of its parent that counts, the fork.  Two that are open at once are a conflict: see cascade resolve.

    Each database has a journal of what was done there; --journal shows those of all that answer, by time.

    \b
    cascade history orders -f orders.yaml
    cascade history orders -f orders.yaml --json | jq -r '.[] | select(.state == "open").uid'
    cascade history orders -f orders.yaml --journal
    """
    topology, observed = ask(path, set_name, timeout_s)
    if wants_journal:

        async def collect(links: Links) -> list[dict[str, Any]]:
            found = [line for node in sorted(observed.views) for line in await links.call(node, JOURNAL, set_name)]
            return sorted(found, key=lambda line: datetime.fromisoformat(line["at"]))

        lines = with_ids(run(topology, observed, collect), "journal_id")
        if not as_json:
            lines = [{**line, "detail": ", ".join(f"{k} {v}" for k, v in line["detail"].items())} for line in lines]
        out.echo_list(JOURNAL_COLUMNS, lines, as_json=as_json, when_empty="nothing was done")
        return
    out.echo_list(COLUMNS, rows(observed), as_json=as_json, when_empty=f"nobody knows set {set_name}")


def rows(observed: Observed) -> list[dict[str, Any]]:
    """Return the terms that anybody knows, by number."""
    valid = {term.uid for term in observed.tips}
    return [
        {
            "term": str(term.number),
            "node": term.node,
            "state": "given up" if term.voided_by else ("open" if term.uid in valid else "over"),
            "cause": term.cause,
            "fork_tick": str(term.fork.tick_id) if term.fork else None,
            "at": term.at,
            "reason": term.reason,
            "uid": term.uid,
            "parent_uid": term.parent_uid,
            "voided_by": term.voided_by,
        }
        for term in sorted(observed.terms.values(), key=lambda term: (term.number, term.uid))
    ]


@click.command()
@click.argument("set_name", metavar="SET")
@FILE_OPTION
@click.option("--keep", required=True, metavar="UID", help="The term that stays: cascade history shows them.")
@click.option("--reason", default="", metavar="TEXT", help="Why this one; it is written into the journals.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and stop.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@TIMEOUT_OPTION
@JSON_OPTION
def resolve(
    set_name: str, path: Path, keep: str, reason: str, dry_run: bool, yes: bool, timeout_s: float, as_json: bool
) -> None:
    """Keep one of two roots that were promoted at once.

    Both were fenced when they heard of one another.  The root of the term that is kept takes inserts again; the other
    one stays fenced, keeps everything, and is brought back by cascade resurrect, its tail in quarantine.  Run it again
    when a node that did not answer is back, or when this was killed: it tells whoever has not heard.

    \b
    cascade history orders -f orders.yaml
    cascade resolve orders --keep 5b0c7d1e-8f52-4a64-9a0e-5f0d4d1a2b3c --reason "it has the payments" -f orders.yaml
    """
    topology, observed = ask(path, set_name, timeout_s)
    kept = observed.terms.get(keep)
    if kept is None or kept.voided_by is not None:
        known = ", ".join(term.uid for term in observed.tips)
        raise ConfigError(f"set {set_name} has no such term", hint=f"Open are {known}.")
    if kept not in observed.tips:
        raise UnsafeError(f"term {kept.number} of {kept.node} is over", hint="Keep one that nothing has ended.")
    given_up = [term for term in observed.tips if term is not kept]
    left = unresolved(observed)
    if not given_up and not left:
        out.echo_done({"set": set_name, "kept": keep, "nodes": []}, "nothing to resolve", as_json=as_json)
        return
    if not as_json:
        losing = ", ".join(f"term {term.number} of {term.node}" for term in given_up)
        rest = f"give up {losing}" if losing else f"the other was given up before, tell {', '.join(left)}"
        click.echo(f"keep term {kept.number} of {kept.node}; {rest}")
    done: list[str] = []
    if not dry_run:
        operate.confirm(f"set {set_name}: go ahead?", yes=yes, as_json=as_json)
        done = asyncio.run(tell_all(topology, observed, keep, kept.node, reason))
    message = f"told {', '.join(done)}; cascade plan -f {path} says what is left to do" if done else "nothing was done"
    silent = sorted(observed.silent)
    out.echo_done({"set": set_name, "kept": keep, "nodes": done, "silent": silent}, message, as_json=as_json)


def unresolved(observed: Observed) -> list[str]:
    """Return the nodes that still stand in a conflict, or have not heard which terms were given up."""
    given_up = {uid for uid, term in observed.terms.items() if term.voided_by is not None}
    return [
        view.node
        for view in observed.views.values()
        if view.is_in_conflict or given_up - {term.uid for term in view.terms if term.voided_by is not None}
    ]


async def tell_all(topology: Topology, observed: Observed, keep: str, root: str, reason: str) -> list[str]:
    """Tell every node that answers which term stays: other roots first, then its own, then everybody else."""
    from psycopg.types.json import Jsonb

    from cascade.node.survey import DESCRIBE_SET, EXCHANGE, Links

    order = sorted(observed.views.values(), key=lambda view: (not view.role.is_root, view.node == root, view.node))
    async with Links(topology, observed) as links:
        known = [term for view in order for term in (await links.call(view.node, DESCRIBE_SET, observed.set))["terms"]]
        for view in order:
            await links.call(view.node, EXCHANGE, observed.set, Jsonb(known), view.set_uid)
            await links.call(view.node, RESOLVE, observed.set, keep, reason)
    return [view.node for view in order]
