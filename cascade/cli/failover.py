"""cascade plan, apply, switchover, failover, resurrect: who is root, and who copies from whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION, operate
from cascade.cli import output as out
from cascade.cli.operate import DEAD_OPTION, TIMEOUT_OPTION, Job, Words, accepting, operating, words
from cascade.cli.status import FILE_HELP, FILE_OPTION, find_file
from cascade.errors import UnsafeError

if TYPE_CHECKING:
    from cascade.topology import Node, Topology

SET = click.argument("set_name", metavar="SET")


@click.command()
@FILE_OPTION
@click.argument("sets", metavar="[SET]...", nargs=-1)
@DEAD_OPTION
@accepting
@click.option("--reason", metavar="TEXT", help="Why; it is kept with a new term.")
@click.option(
    "--out", "output", type=click.Path(dir_okay=False, path_type=Path), help="Save the plan, for cascade apply."
)
@TIMEOUT_OPTION
@JSON_OPTION
def plan(path: Path, sets: tuple[str, ...], output: Path | None, timeout_s: float, as_json: bool, **said: Any) -> int:
    """Compare a topology file with the databases, and show what would be done.

    Editing `role:` and `provider:` in the file is how a set is changed: another root is a switchover, or a
    failover when the root does not answer.  The steps are printed with how long writers would wait and what
    may be lost.  Nothing is changed.  Exit code 3: it would be refused as unsafe.

    \b
    cascade plan -f orders.yaml
    cascade plan -f orders.yaml --out change.json && cascade apply change.json
    cascade plan -f orders.yaml --json | jq '.plans[].steps[].text'
    """
    text, topology = operate.read(path)
    names = _in_order(topology, sets)
    jobs = [
        Job(set=name, wanted=topology, words=_words_for(topology, name, names, said), timeout_s=timeout_s)
        for name in names
    ]
    plans = [job.make_plan() for job in jobs]
    found = operate.saved(jobs, path, text)
    if as_json:
        out.echo_json(found)
    else:
        click.echo("\n\n".join(job.text() for job in jobs))
    for made in plans:
        made.check()
    if output is not None:
        output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        click.echo(f"saved {out.printable(str(output))}", err=True)
    return 0


@click.command("apply")
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--topology",
    "-f",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="CASCADE_TOPOLOGY",
    show_envvar=True,
    help=FILE_HELP,
)
@click.option("--set", "only", metavar="SET", multiple=True, help="Only this set of the file.")
@DEAD_OPTION
@accepting
@operating
def apply(
    plan_file: Path | None,
    path: Path | None,
    only: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    wait_s: float,
    timeout_s: float,
    as_json: bool,
    **said: Any,
) -> int:
    """Make the databases what a topology file, or a saved plan, says.

    Each step changes something only if it still is as the plan assumed, and is written into the journal of its
    database.  If this is killed, run it again: it plans from what is.  A saved plan is refused once terms or positions
    have moved on.

    \b
    cascade apply -f orders.yaml --dry-run
    cascade apply -f orders.yaml
    cascade apply change.json --yes
    """
    if plan_file is not None:
        return _apply_saved(
            plan_file, said, dry_run=dry_run, yes=yes, wait_s=wait_s, timeout_s=timeout_s, as_json=as_json
        )
    path = find_file(path)
    code = 0
    text, topology = operate.read(path)
    names = _in_order(topology, only)
    for name in names:
        text, topology = operate.read(path)
        job = Job(set=name, wanted=topology, words=_words_for(topology, name, names, said), timeout_s=timeout_s)
        code = max(code, operate.operate(job, path, text, dry_run=dry_run, yes=yes, wait_s=wait_s, as_json=as_json))
    return code


def _apply_saved(
    plan_file: Path, said: dict[str, Any], *, dry_run: bool, yes: bool, wait_s: float, timeout_s: float, as_json: bool
) -> int:
    """Carry out saved plans, if they are as fresh as when they were made."""
    if any(said.values()):
        raise click.UsageError("a saved plan holds what was accepted; plan again to accept something else")
    jobs, path, text = operate.load_plan(plan_file)
    code = 0
    for job in jobs:
        assert job.plan is not None, "a saved job has its plan"
        job.timeout_s = timeout_s
        job.plan.check()
        job.plan.check_fresh(job.look())
        if not as_json:
            click.echo(job.text())
        if dry_run or job.plan.is_empty:
            continue
        if operate.confirm(f"{job.plan.kind} of set {job.set}: go ahead?", yes=yes, as_json=as_json):
            job.look()
        done = operate.carry_out(job, wait_s=wait_s, as_json=as_json)
        if text is None:
            click.echo(f"note: {path} was changed since the plan was made, and is left as it is", err=True)
        written = False if text is None else operate.write_back(job, done, path, text)
        operate.show_outcome(job, done, path, written, as_json=as_json)
        code = max(code, 1 if written is None else 0)
        text = operate.read(path)[0] if written else text
    return code


@click.command()
@SET
@FILE_OPTION
@click.option("--to", required=True, metavar="NODE", help="The branch that becomes the root.")
@operating
def switchover(
    set_name: str,
    path: Path,
    to: str,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    timeout_s: float,
    reason: str | None,
    as_json: bool,
) -> int:
    """Make another node the root; nothing is lost and nothing is repeated.

    The root refuses inserts while the reign is handed over, with an error that says to try again; how long that
    took is printed.  A writer that holds it up is named, and waited for as long as --wait says; then
    nothing has changed.  The old root, and whoever copied from it, copy from the new one.  The file is changed
    accordingly, its comments kept.  A combined set is handed over to its combined-failover only: the branch whose
    database has a merge-leaf of every part.

    \b
    cascade switchover orders --to s2 -f orders.yaml --dry-run
    cascade switchover orders --to s2 -f orders.yaml
    """
    from cascade.topology import failover as edits

    text, topology = operate.read(path)
    wanted = edits.switchover(topology, set_name, to)
    job = Job(set=set_name, wanted=wanted, words=words(reason=reason), timeout_s=timeout_s)
    return operate.operate(job, path, text, dry_run=dry_run, yes=yes, wait_s=wait_s, as_json=as_json)


@click.command()
@SET
@FILE_OPTION
@click.option("--dead", required=True, metavar="NODE", help="The node that is lost: the root, or a branch.")
@click.option("--to", metavar="NODE", help="Who takes over; without it, whoever has come furthest.")
@accepting
@operating
def failover(
    set_name: str,
    path: Path,
    dead: str,
    to: str | None,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    timeout_s: float,
    as_json: bool,
    **said: Any,
) -> int:
    """Replace a lost root, or leave a lost branch; says first what may be lost.

    The most advanced carrier that answers wins, or the chosen one first copies from it.  Refused, with exit code 3,
    until what nobody can know is accepted: the dry run names the options.  Leaves that had come further go back to the
    fork, and a certificate says what may be lost, until the old root was read or declared destroyed.  The lost
    node stays in the file as a branch: `cascade resurrect` brings it back.  A lost branch loses nothing: its
    subscribers copy from --to, or from its provider.  A combined set is followed by its combined-failover.  What other
    sets have lost with the same database is named at the end.

    \b
    cascade failover orders --dead s1 -f orders.yaml --dry-run
    cascade failover orders --dead s1 -f orders.yaml --fenced-by "powered off" --allow-loss 8123
    cascade failover orders --dead s1 --to s3 --without s2 -f orders.yaml --fenced-by "powered off" --allow-loss 8123
    cascade failover orders --dead s3 -f orders.yaml
    """
    from cascade.topology import failover as edits

    text, topology = operate.read(path)
    lost = topology.find(set_name, dead)
    job = Job(set=set_name, wanted=topology, words=words(dead=[dead], **said), timeout_s=timeout_s)
    if lost.role.is_root and to is None:
        to = _successor(job, dead)
    job.wanted = edits.failover(topology, set_name, dead, to)
    code = operate.operate(job, path, text, dry_run=dry_run, yes=yes, wait_s=wait_s, as_json=as_json)
    for line in _also_lost(topology, lost):
        click.echo(f"note: {line}", err=True)
    return code


def _also_lost(topology: Topology, lost: Node) -> Iterator[str]:
    """Yield what other sets have lost with the database of a node, parts before what combines them."""
    for name in topology.parts_first:
        found = topology.sets[name]
        for node in found.nodes.values():
            is_needed = node.role.is_root or found.subscribers(node.name)
            if name != lost.set and node.database == lost.database and is_needed:
                remedy = f"cascade failover {name} --dead {node.name}"
                yield f"database {node.database} has the {node.role} {node.name} of set {name}, too: {remedy}"


def _successor(job: Job, dead: str) -> str:
    """Choose who follows a lost root; whoever reigns already, if somebody does."""
    from cascade.topology.lost_root import choose_successor

    observed = job.look()
    if len(observed.tips) == 1 and observed.tip.node != dead:
        return observed.tip.node
    chosen = choose_successor(job.wanted.sets[job.set], observed, dead) if len(observed.tips) == 1 else None
    if chosen is None:
        raise UnsafeError(
            f"set {job.set}: nobody who answers can follow {dead}",
            hint=f"cascade plan -f {job.wanted.source} shows how the set is; --to names a node.",
        )
    return chosen


@click.command()
@SET
@click.argument("node_name", metavar="NODE")
@FILE_OPTION
@operating
def resurrect(
    set_name: str,
    node_name: str,
    path: Path,
    dry_run: bool,
    yes: bool,
    wait_s: float,
    timeout_s: float,
    reason: str | None,
    as_json: bool,
) -> int:
    """Bring a former root, or a carrier beyond a fork, back as a branch.

    It is fenced, if it is not yet.  What it has and the set has not, its tail, goes to quarantine; nothing is
    thrown away.  Then it goes on from the fork as a branch, and the certificate of the failover is given its
    numbers.

    \b
    cascade resurrect orders s1 -f orders.yaml
    cascade quarantine list orders -f orders.yaml
    """
    from cascade.topology import failover as edits

    text, topology = operate.read(path)
    topology.find(set_name, node_name)
    job = Job(set=set_name, wanted=topology, words=words(reason=reason), timeout_s=timeout_s)
    observed = job.look()
    if node_name not in observed.views:
        raise UnsafeError(f"{node_name} does not answer: {observed.silent.get(node_name, 'it has no node of the set')}")
    root = observed.tip.node if len(observed.tips) == 1 else None
    job.wanted = edits.resurrect(topology, set_name, node_name, root)
    return operate.operate(job, path, text, dry_run=dry_run, yes=yes, wait_s=wait_s, as_json=as_json)


def _in_order(topology: Topology, sets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sets that were named, or all; parts come before what combines them, which finds a provider then."""
    for name in sets:
        if name not in topology.sets:
            topology.find(name, "")
    return tuple(name for name in topology.parts_first if name in sets or not sets)


def _words_for(topology: Topology, name: str, names: tuple[str, ...], said: Mapping[str, Any]) -> Words:
    """Return what was said, as far as it is about nodes of this set; of those that no set has, each is told."""
    others = {node for other in names if other != name for node in topology.sets[other].nodes}
    strange = others - set(topology.sets[name].nodes)
    lists = {key: [node for node in said[key] if node not in strange] for key in ("dead", "without")}
    return words(**{**said, **lists})
