"""cascade work: the messages of consumers in work mode, one by one; running workers is in work_run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString

import click

from cascade.cli import connected, database_options, rows
from cascade.cli import output as out
from cascade.cli.work_run import run
from cascade.errors import ArgumentError, EventNotFoundError

if TYPE_CHECKING:
    from cascade.sync import Client

STATUS: LiteralString = (
    "select * from cascade.work as w join cascade.work_stats as s using (queue, consumer)"
    " where w.queue = coalesce(%s, w.queue) order by w.queue, w.consumer"
)
LIST: LiteralString = "select m.* from cascade.work_messages(%s, %s, %s, %s) as m"
SHOW: LiteralString = "select r.* from cascade.work_result(%s, %s, %s) as r"
WHY: LiteralString = "select w.reason, w.due, w.waits_for from cascade.why(%s, %s, %s) as w"
ATTEMPTS: LiteralString = "select a.* from cascade.work_attempts(%s, %s, %s) as a order by a.attempt"
RETRY: LiteralString = "select cascade.retry_message(%s, %s, %s)"
BURY: LiteralString = "select cascade.bury_message(%s, %s, %s)"
RELEASE: LiteralString = "select cascade.release_message(%s, %s, %s)"
PURGE: LiteralString = "select cascade.purge_work(%s, %s, %s, %s)"

QUEUE = click.argument("queue")
CONSUMER = click.argument("consumer")
IDS = click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
ID = click.argument("message_id", type=int, metavar="ID")
LIMIT = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many."
)
YES = click.option("--yes", is_flag=True, help="Do not ask.")

STATUS_COLUMNS = [
    *out.columns("text", "queue", "consumer"),
    *out.columns("number", "waiting", "urgent", "high", "normal", "low", "delayed", "blocked", "active", "dead"),
    out.Column("oldest_at", "oldest", "ago"),
    *out.columns("number", "done_minute", "done_hour", "failed_hour"),
    out.Column("workers", "workers", "list"),
]
COLUMNS = [
    out.Column("id", "id", "id"),
    *out.columns("text", "state", "type", "key"),
    out.Column("class", "class", "number"),
    out.Column("attempt", "attempt", "number"),
    out.Column("posted_at", "posted", "ago"),
    out.Column("due_at", "due", "time"),
    out.Column("worker", "worker"),
    out.Column("error", "error"),
]
ATTEMPT_COLUMNS = [
    out.Column("attempt", "attempt", "number"),
    *out.columns("text", "outcome", "worker"),
    out.Column("claimed_at", "claimed", "time"),
    out.Column("ended_at", "ended", "time"),
    out.Column("error", "error"),
]


@click.group()
def work() -> None:
    """Workers, and the messages of consumers in work mode.

    Such a consumer takes message after message; `cascade consumer create --mode work` makes one.

    \b
    cascade consumer create orders billing --mode work
    cascade work run shop.tasks:worker --processes 2
    cascade work status
    cascade work list orders billing
    cascade work show orders billing 17
    cascade work retry orders billing 17
    """


work.add_command(run)


@work.command()
@click.argument("queue", required=False)
@database_options
def status(queue: str | None, dsn: str, as_json: bool) -> None:
    """Show how consumers in work mode are doing: what waits, what is worked on, what died, and the rates.

    \b
    cascade work status
    cascade work status orders --json
    """
    with connected(dsn) as client:
        found = rows(client, STATUS, queue)
    out.echo_list(STATUS_COLUMNS, found, as_json=as_json, when_empty="no consumers in work mode")


@work.command("list")
@QUEUE
@CONSUMER
@click.option(
    "--state", type=click.Choice(["waiting", "delayed", "active", "dead"]), help="Only messages in this state."
)
@LIMIT
@database_options
def list_(queue: str, consumer: str, state: str | None, limit: int, dsn: str, as_json: bool) -> None:
    """List messages that are not done.

    \b
    cascade work list orders billing
    cascade work list orders billing --state delayed --json
    """
    with connected(dsn) as client:
        found = rows(client, LIST, queue, consumer, state, limit)
    for row in found:
        row["error"] = first_line(row.get("error")) if not as_json else row.get("error")
    out.echo_list(COLUMNS, found, as_json=as_json, when_empty="no such messages")


@work.command()
@QUEUE
@CONSUMER
@ID
@database_options
def show(queue: str, consumer: str, message_id: int, dsn: str, as_json: bool) -> None:
    """Show what has become of a message: its state, its result, what it waits for, every attempt with its error.

    \b
    cascade work show orders billing 17
    cascade work show orders billing 17 --json | jq .result
    """
    with connected(dsn) as client:
        found = find(client, queue, consumer, message_id)
        attempts = rows(client, ATTEMPTS, queue, consumer, message_id)
        if found["state"] not in ("done", "active"):
            found |= {
                name: value for row in rows(client, WHY, queue, consumer, message_id) for name, value in row.items()
            }
    if as_json:
        out.echo_json(
            {"id": str(message_id), **out.plain(found), "attempts_made": [out.plain(row) for row in attempts]}
        )
        return
    error = next((row["error"] for row in reversed(attempts) if row["error"]), None)
    show_attempts({name: value for name, value in found.items() if name != "error"}, attempts, error)


@work.command()
@QUEUE
@CONSUMER
@IDS
@database_options
def retry(queue: str, consumer: str, ids: tuple[int, ...], dsn: str, as_json: bool) -> None:
    """Make messages ready now that wait for their next attempt or were delayed.

    \b
    cascade work retry orders billing 17 18
    """
    with connected(dsn) as client:
        count = client.call(RETRY, queue, consumer, [*ids])
    _done(count, len(ids), "made ready", as_json=as_json)


@work.command()
@QUEUE
@CONSUMER
@IDS
@database_options
def bury(queue: str, consumer: str, ids: tuple[int, ...], dsn: str, as_json: bool) -> None:
    """Have messages tried no more: they become dead letters, which can be replayed.

    \b
    cascade work bury orders billing 17
    """
    with connected(dsn) as client:
        count = client.call(BURY, queue, consumer, [*ids])
    _done(count, len(ids), "buried", as_json=as_json)


@work.command()
@QUEUE
@CONSUMER
@IDS
@database_options
def release(queue: str, consumer: str, ids: tuple[int, ...], dsn: str, as_json: bool) -> None:
    """Take messages from the workers that have them; others get them at once, and what the former do no longer counts.

    \b
    cascade work release orders billing 17
    """
    with connected(dsn) as client:
        count = client.call(RELEASE, queue, consumer, [*ids])
    _done(count, len(ids), "taken back", as_json=as_json)


@work.command()
@QUEUE
@CONSUMER
@click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="Only this message; may be repeated.")
@click.option(
    "--state",
    type=click.Choice(["waiting", "delayed"]),
    default="waiting",
    show_default=True,
    help="Messages in this state.",
)
@YES
@database_options
def purge(queue: str, consumer: str, ids: tuple[int, ...], state: str, yes: bool, dsn: str, as_json: bool) -> None:
    """Remove messages that nobody has begun, for this consumer; they are not worked on any more.

    \b
    cascade work purge orders billing --yes
    cascade work purge orders billing --id 17 --id 18
    """
    confirm(f"Remove {'these' if ids else 'all'} {state} messages of {consumer}?", yes)
    with connected(dsn) as client:
        count = client.call(PURGE, queue, consumer, [*ids] or None, state)
    _done(count, len(ids), "removed", as_json=as_json)


def _done(count: object, asked: int, what: str, *, as_json: bool) -> None:
    short = f", of {asked} asked for" if asked and count != asked else ""
    noun = "message" if count == 1 else "messages"
    out.echo_done({"messages": count}, f"{count} {noun} {what}{short}", as_json=as_json)


def show_attempts(found: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]], error: str | None) -> None:
    """Show a message to people, every attempt on a line, and the last error whole."""
    out.show(out.facts([(name.replace("_", " "), value_text(value)) for name, value in found.items()]))
    if attempts:
        out.show(out.table(ATTEMPT_COLUMNS, [{**row, "error": first_line(row["error"])} for row in attempts]))
    for line in (error or "").splitlines():
        click.echo(out.printable(line))


def value_text(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return out.human(value, "time" if isinstance(value, datetime) else "text")


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone; programs say --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ArgumentError("this cannot be undone", hint="Pass --yes if it is meant.")
    click.confirm(question, abort=True)


def first_line(text: str | None) -> str | None:
    """Return what an error says; the rest is where it came from."""
    return None if text is None else text.partition("\n")[0]


def find(client: Client, queue: str, consumer: str, message_id: int) -> dict[str, Any]:
    """Return what has become of a message, or raise."""
    found = rows(client, SHOW, queue, consumer, message_id)
    if not found or found[0]["state"] == "unknown":
        raise EventNotFoundError(
            f"message {message_id} of queue {queue} is not known to {consumer}",
            hint="`cascade work list` and `cascade dead list` show those that are not done.",
        )
    return found[0]
