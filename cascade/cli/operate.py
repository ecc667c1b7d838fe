"""What plan, apply, switchover, failover and resurrect share: look, plan, show, ask, carry out, write back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.errors import CascadeError, ConfigError

# Reading YAML and the driver are loaded when a command needs them, so that `--help` is quick.
if TYPE_CHECKING:
    from cascade.node.executor import Outcome
    from cascade.topology import Topology
    from cascade.topology.decision import Plan
    from cascade.topology.observe import Observed

F = TypeVar("F", bound=Callable[..., Any])

#: What an operator accepts, as keywords of a Request.
Words = Mapping[str, Any]


def operating(command: F) -> F:
    """Give a command what every operation has."""
    options = [
        click.option("--dry-run", is_flag=True, help="Show what would be done, and stop."),
        click.option("--yes", is_flag=True, help="Do not ask; without a terminal nobody is asked anyway."),
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(0.1),
            default=10.0,
            show_default=True,
            help="Seconds to wait for writers, and for the new root, before it is given up.",
        ),
        TIMEOUT_OPTION,
        click.option("--reason", metavar="TEXT", help="Why; it is kept with the new term."),
        JSON_OPTION,
    ]
    for option in reversed(options):
        command = option(command)
    return command


TIMEOUT_OPTION = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds to wait for a database to answer.",
)


DEAD_OPTION = click.option("--dead", metavar="NODE", multiple=True, help="This node is lost, and given up.")


def accepting(command: F) -> F:
    """Give a command the words by which an operator accepts what a failover cannot know."""
    options = [
        click.option(
            "--without", metavar="NODE", multiple=True, help="This carrier does not answer, and may have come further."
        ),
        click.option(
            "--allow-loss", type=int, metavar="TICK", help="What came after this tick, the fork, may be lost."
        ),
        click.option(
            "--fenced-by", metavar="TEXT", help="How the old root, which cannot be reached, is kept from writing."
        ),
        click.option(
            "--over-ballot", metavar="UID", help="Give up another promotion, which was announced and went no further."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(kw_only=True)
class Job:
    """One set of a file to be brought to what is wanted."""

    set: str
    wanted: Topology
    words: Words = field(default_factory=dict)
    timeout_s: float = 5.0
    observed: Observed | None = None
    plan: Plan | None = None

    def look(self) -> Observed:
        """Ask the databases, again if they were asked before."""
        from cascade.node.survey import survey

        dead = self.words.get("dead", frozenset())
        self.observed = asyncio.run(survey(self.wanted, self.set, timeout_s=self.timeout_s, dead=dead))
        return self.observed

    def make_plan(self) -> Plan:
        """Plan from what the databases said last."""
        from cascade.topology.decision import Request
        from cascade.topology.plan import make_plan

        observed = self.observed or self.look()
        request = Request(op_id=str(uuid.uuid4()), uid=str(uuid.uuid4()), now=datetime.now(UTC), **self.words)
        self.plan = make_plan(self.wanted.sets[self.set], observed, request)
        return self.plan

    def text(self) -> str:
        """Return the plan for people."""
        from cascade.topology.show_plan import plan_text

        assert self.plan is not None and self.observed is not None
        return plan_text(self.plan, self.wanted.sets[self.set], self.observed)


def words(
    dead: Sequence[str] = (),
    without: Sequence[str] = (),
    allow_loss: int | None = None,
    fenced_by: str | None = None,
    over_ballot: str | None = None,
    reason: str | None = None,
) -> Words:
    """Return what the operator said, as a Request takes it."""
    same = {"allow_loss": allow_loss, "fenced_by": fenced_by, "over_ballot": over_ballot, "reason": reason}
    return {"dead": frozenset(dead), "without": frozenset(without), **same}


def read(path: Path) -> tuple[str, Topology]:
    """Read a topology file, and keep its text for changing it."""
    from cascade.topology import load, parse
    from cascade.topology.edit import read_file

    load(path)  # which says what is wrong with a file that cannot be read
    text = read_file(path)
    return text, parse(text, source=str(path))


def operate(job: Job, path: Path, text: str, *, dry_run: bool, yes: bool, wait_s: float, as_json: bool) -> int:
    """Plan, show, ask, carry out, write back; return the exit code."""
    plan = job.make_plan()
    if not as_json:
        click.echo(job.text())
    if plan.refusals or dry_run:
        if as_json:
            out.echo_json(saved([job], path, text))
        plan.check()
        return 0
    done: Outcome | None = None
    if not plan.is_empty:
        if confirm(f"{plan.kind} of set {job.set}: go ahead?", yes=yes, as_json=as_json):
            job.look()
        done = carry_out(job, wait_s=wait_s, as_json=as_json)
    written = write_back(job, done, path, text)
    show_outcome(job, done, path, written, as_json=as_json)
    return 0 if written is not None else 1


def confirm(question: str, *, yes: bool, as_json: bool) -> bool:
    """Ask on a terminal; False when nobody was asked."""
    if yes or as_json or not sys.stdin.isatty():
        return False
    click.confirm(question, abort=True, err=True)
    return True


def carry_out(job: Job, *, wait_s: float, as_json: bool) -> Outcome:
    """Take the steps of a plan; refused when the databases have moved on since it was made."""
    from cascade.node.executor import Executor

    def tell(line: str) -> None:
        if not as_json:
            click.echo(f"... {out.printable(line)}")

    assert job.plan is not None and job.observed is not None
    if not as_json:
        click.echo()
    executor = Executor(job.wanted, job.plan, job.observed, wait_s=wait_s, tell=tell)
    return asyncio.run(executor.run())


def write_back(job: Job, done: Outcome | None, path: Path, text: str) -> bool | None:
    """Have the file say what is so now: True when it was changed, None when it should have been and could not."""
    from cascade.topology.edit import edit, write_back
    from cascade.topology.failover import with_revision

    assert job.observed is not None
    revision = done.revision if done is not None else job.observed.revision
    wanted = with_revision(job.wanted, job.set, revision) if revision else job.wanted
    try:
        changed = edit(text, wanted)
        if changed == text:
            return False
        write_back(path, text, changed)
    except (CascadeError, OSError) as error:
        click.echo(f"note: everything was done, but {path} was not changed: {error}", err=True)
        return None
    return True


def show_outcome(job: Job, done: Outcome | None, path: Path, written: bool | None, *, as_json: bool) -> None:
    """Say what was done."""
    assert job.plan is not None
    if as_json:
        found = job.plan.as_json()
        kept = {key: found[key] for key in ("set", "kind", "op_id", "loss", "warnings")}
        result = {
            "steps": done.steps if done else [],
            "pause_seconds": done.pause_s if done else None,
            "revision": done.revision if done else None,
            "reports": done.reports if done else [],
            "file": str(path),
            "file_changed": bool(written),
        }
        out.echo_json(kept | result)
        return
    if done is not None and done.pause_s is not None:
        click.echo(f"done; writers waited {out.human_seconds(done.pause_s)}")
    elif done is not None:
        click.echo("done")
    for report in done.reports if done else []:
        facts = {key: value for key, value in report.items() if key != "phantoms"}
        click.echo("  " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()))
        for phantom in report.get("phantoms") or []:
            ticks = f"after {phantom['from_tick']} up to {phantom['to_tick']}"
            click.echo(f"  consumer {phantom['consumer']} had processed ticks {ticks}, which left the log")
    if written:
        click.echo(f"changed {out.printable(str(path))}")


# Plans that are kept


def saved(jobs: Sequence[Job], path: Path, text: str) -> dict[str, Any]:
    """Return plans as they are saved, with all that is needed to carry them out."""
    from cascade.topology import as_document

    return {
        "file": str(path.resolve()),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "topology": as_document(jobs[0].wanted),
        "plans": [job.plan.as_json() for job in jobs if job.plan is not None],
    }


def load_plan(path: Path) -> tuple[list[Job], Path, str | None]:
    """Read saved plans; the text of the file they were made from is None when that has changed since."""
    from cascade.topology import parse
    from cascade.topology.decision import Plan
    from cascade.topology.edit import read_file

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        topology = parse(json.dumps(found["topology"]), source=str(path))
        file, digest, plans = Path(found["file"]), found["sha256"], [Plan.parse(plan) for plan in found["plans"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no plan: {error}", hint="cascade plan -f FILE --out PLAN makes one.") from error
    try:
        text = read_file(file)
    except OSError:
        text = ""
    jobs = [Job(set=plan.set, wanted=replace(topology, source=str(file)), plan=plan) for plan in plans]
    return jobs, file, text if hashlib.sha256(text.encode()).hexdigest() == digest else None
