"""cascade dead: messages that failed too often or were buried: look, give them another chance, throw them away."""

from __future__ import annotations

from typing import Any, LiteralString

import click

from cascade.cli import connected, database_options, rows
from cascade.cli import output as out
from cascade.cli.work import ATTEMPTS, CONSUMER, ID, LIMIT, QUEUE, YES, confirm, first_line, show_attempts
from cascade.errors import ArgumentError, EventNotFoundError

LIST: LiteralString = "select d.* from cascade.dead_messages(%s, %s, %s) as d order by d.id"
REPLAY: LiteralString = "select cascade.replay(%s, %s, %s, %s)"
PURGE: LiteralString = "select cascade.purge_dead(%s, %s, %s, %s, %s)"

SELECTOR = click.option(
    "--where", "selector", metavar="JSONPATH", help="Only messages that match, such as '$.type == \"order.paid\"'."
)
MANY_IDS = click.argument("ids", type=int, nargs=-1, metavar="[ID]...")
COLUMNS = [
    out.Column("id", "id", "id"),
    *out.columns("text", "type", "key"),
    out.Column("attempts", "attempts", "number"),
    out.Column("posted_at", "posted", "ago"),
    out.Column("died_at", "died", "ago"),
    out.Column("error", "error"),
]


@click.group()
def dead() -> None:
    """Dead letters: messages that failed too often, or were buried.

    \b
    cascade dead list orders billing
    cascade dead show orders billing 17
    cascade dead replay orders billing --where '$.payload.total > 100'
    """


@dead.command("list")
@QUEUE
@CONSUMER
@LIMIT
@database_options
def list_(queue: str, consumer: str, limit: int, dsn: str, as_json: bool) -> None:
    """List dead messages, the oldest first.

    \b
    cascade dead list orders billing
    """
    with connected(dsn) as client:
        found = rows(client, LIST, queue, consumer, limit)
    if not as_json:
        found = [{**row, "error": first_line(row["error"])} for row in found]
    out.echo_list(COLUMNS, found, as_json=as_json, when_empty="nothing is dead")


@dead.command()
@QUEUE
@CONSUMER
@ID
@database_options
def show(queue: str, consumer: str, message_id: int, dsn: str, as_json: bool) -> None:
    """Show a dead message whole, with every attempt and its error.

    \b
    cascade dead show orders billing 17
    """
    with connected(dsn) as client:
        found = _find(rows(client, LIST, queue, consumer, None), consumer, message_id)
        attempts = rows(client, ATTEMPTS, queue, consumer, message_id)
    if as_json:
        out.echo_json({**out.plain(found), "attempts_made": [out.plain(row) for row in attempts]})
        return
    show_attempts({name: value for name, value in found.items() if name != "error"}, attempts, found["error"])


@dead.command()
@QUEUE
@CONSUMER
@MANY_IDS
@SELECTOR
@click.option("--all", "everything", is_flag=True, help="All of them.")
@database_options
def replay(
    queue: str, consumer: str, ids: tuple[int, ...], selector: str | None, everything: bool, dsn: str, as_json: bool
) -> None:
    """Give dead messages another chance, under their own ids: attempts are counted anew.

    \b
    cascade dead replay orders billing 17 18
    cascade dead replay orders billing --where '$.type == "order.paid"'
    cascade dead replay orders billing --all
    """
    which(ids, selector, everything)
    with connected(dsn) as client:
        count = client.call(REPLAY, queue, consumer, [*ids] or None, selector)
    out.echo_done({"messages": count}, f"{count} replayed", as_json=as_json)


@dead.command()
@QUEUE
@CONSUMER
@MANY_IDS
@SELECTOR
@click.option("--older-than", metavar="INTERVAL", help="Only those that died before, such as '7 days'.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@YES
@database_options
def purge(
    queue: str,
    consumer: str,
    ids: tuple[int, ...],
    selector: str | None,
    older_than: str | None,
    everything: bool,
    yes: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Throw dead messages away.

    \b
    cascade dead purge orders billing --older-than '30 days' --yes
    cascade dead purge orders billing 17
    """
    which(ids, selector or older_than, everything)
    confirm(f"Throw away dead messages of {consumer}?", yes)
    with connected(dsn) as client:
        count = client.call(PURGE, queue, consumer, [*ids] or None, selector, older_than)
    out.echo_done({"messages": count}, f"{count} thrown away", as_json=as_json)


def which(ids: tuple[int, ...], chosen: str | None, everything: bool) -> None:
    """Refuse a command that does not say which messages it means."""
    if not ids and chosen is None and not everything:
        raise ArgumentError("which messages?", hint="Name ids, choose some with --where, or say --all.")


def _find(found: list[dict[str, Any]], consumer: str, message_id: int) -> dict[str, Any]:
    for row in found:
        if row["id"] == message_id:
            return row
    raise EventNotFoundError(
        f"message {message_id} is not dead for {consumer}",
        hint="`cascade work show` says what has become of it.",
    )
