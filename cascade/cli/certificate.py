"""cascade certificate: what failovers may have lost, and closing the books on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import click

from cascade.cli import JSON_OPTION, operate
from cascade.cli import output as out
from cascade.cli.asking import answering, ask, run, with_ids
from cascade.cli.operate import TIMEOUT_OPTION
from cascade.cli.status import FILE_OPTION
from cascade.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from cascade.topology.observe import Observed

DESTROYED: LiteralString = "select cascade.declare_destroyed(%s, %s, %s, %s)"
COLUMNS = [
    out.Column("set", "set"),
    out.Column("number", "no", "number"),
    *out.columns("text", "state"),
    out.Column("fork_tick", "after tick", "id"),
    *out.columns("number", "tail", "republished", "discarded", "duplicates", "held"),
    out.Column("pending", "not read yet", "list"),
    *out.columns("text", "opened_at", "reason"),
]


@click.group()
def certificate() -> None:
    """What failovers may have lost, and what became of it.

    A failover writes a certificate: the fork, who was not there, how the old root was fenced.  It is closed when every
    carrier that was missing has been read, or declared destroyed, and then its numbers add up:
    tail = republished + discarded + duplicates + held.

    \b
    cascade certificate list -f orders.yaml
    cascade certificate show orders 1 -f orders.yaml
    """


@certificate.command("list")
@click.argument("set_name", metavar="[SET]", required=False)
@FILE_OPTION
@TIMEOUT_OPTION
@JSON_OPTION
def list_certificates(set_name: str | None, path: Path, timeout_s: float, as_json: bool) -> None:
    """List the certificates of a set, or of all sets in the file.

    \b
    cascade certificate list -f orders.yaml
    cascade certificate list orders -f orders.yaml --json | jq '.[] | select(.state == "open")'
    """
    sets = operate.read(path)[1].sets
    names = [set_name] if set_name else list(sets)
    found = [dict(row) for name in names for row in known_certificates(ask(path, name, timeout_s)[1])]
    out.echo_list(COLUMNS, with_ids(found, "fork_tick"), as_json=as_json, when_empty="there are no certificates")


@certificate.command("show")
@click.argument("set_name", metavar="SET")
@click.argument("number", type=int)
@FILE_OPTION
@TIMEOUT_OPTION
@JSON_OPTION
def show_certificate(set_name: str, number: int, path: Path, timeout_s: float, as_json: bool) -> None:
    """Show one certificate: its numbers, who was there, and who had processed what was lost.

    \b
    cascade certificate show orders 1 -f orders.yaml
    """
    found = find(ask(path, set_name, timeout_s)[1], number)
    if as_json:
        out.echo_json(with_ids([found], "fork_tick")[0])
        return
    plain = {key: value for key, value in found.items() if not isinstance(value, dict | list)}
    out.show(out.facts([(key.replace("_", " "), out.human(value)) for key, value in plain.items()]))
    for key in ("pending", "phantoms"):
        for item in found.get(key) or []:
            text = ", ".join(f"{k} {v}" for k, v in item.items()) if isinstance(item, dict) else str(item)
            click.echo(f"{'not read yet' if key == 'pending' else 'phantom'}: {out.printable(text)}")


@certificate.command()
@click.argument("set_name", metavar="SET")
@click.argument("number", type=int)
@FILE_OPTION
@click.option("--destroyed", "node_name", required=True, metavar="NODE", help="The carrier that never returns.")
@click.option("--reason", required=True, metavar="TEXT", help="How that is known; it is kept.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@TIMEOUT_OPTION
@JSON_OPTION
def close(
    set_name: str, number: int, path: Path, node_name: str, reason: str, yes: bool, timeout_s: float, as_json: bool
) -> None:
    """Declare that a database which a certificate waits for is destroyed.

    Whatever only it had is lost then, and the certificate says so.  It is closed when it waits for nobody else.

    \b
    cascade certificate close orders 1 --destroyed s1 --reason "its disks were shredded" -f orders.yaml
    """
    topology, observed = ask(path, set_name, timeout_s)
    found = find(observed, number)
    root = observed.tip.node
    if node_name not in found["pending"]:
        waits = ", ".join(found["pending"]) or "nobody"
        raise ConfigError(f"certificate {number} does not wait for {node_name}", hint=f"It waits for {waits}.")
    answering(observed, root)
    operate.confirm(f"what only {node_name} had is lost: go ahead?", yes=yes, as_json=as_json)
    arguments = (set_name, found["new_uid"], node_name, reason)
    done = run(topology, observed, lambda links: links.call(root, DESTROYED, *arguments))
    message = f"certificate {number} is {done['state']}"
    out.echo_done(
        {"set": set_name, "number": number, "state": done["state"], "pending": done["pending"]},
        message,
        as_json=as_json,
    )


def known_certificates(observed: Observed) -> Sequence[Mapping[str, Any]]:
    """Return the certificates as the root has them, or whoever stands furthest on."""
    views = sorted(observed.views.values(), key=lambda view: (view.is_carrier, view.tick.tick_id))
    return views[-1].certificates


def find(observed: Observed, number: int) -> dict[str, Any]:
    """Return one certificate."""
    for row in known_certificates(observed):
        if row["number"] == number:
            return dict(row)
    raise NotFoundError(f"set {observed.set} has no certificate {number}", hint="cascade certificate list shows them.")
