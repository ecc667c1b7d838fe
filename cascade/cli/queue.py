"""cascade queue: make queues, look at them, publish and read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from cascade.cli import connected, database_options, rows, suggestion
from cascade.cli import output as out
from cascade.cli.consumer import COLUMNS as CONSUMER_COLUMNS
from cascade.cli.consumer import batches, reading_as
from cascade.cli.consumer import find as find_consumers
from cascade.errors import PayloadError, QueueInUseError, QueueNotFoundError
from cascade.names import queue_name

if TYPE_CHECKING:
    from cascade.event import Message
    from cascade.sync import Client

LIST_COLUMNS = (
    out.Column("queue", "queue"),
    out.Column("last_tick", "last tick", "id"),
    out.Column("last_tick_at", "ticked", "ago"),
    out.Column("events_ticked", "events", "number"),
    out.Column("ids_after_tick", "after tick", "number"),
    out.Column("consumers", "consumers", "number"),
    out.Column("bytes", "size", "bytes"),
)
TICK_COLUMNS = (
    out.Column("tick_id", "tick", "id"),
    out.Column("time", "time", "time"),
    out.Column("events", "events", "number"),
    out.Column("total", "total", "number"),
    out.Column("gen", "generation", "number"),
)
OPTIONS = click.option(
    "--option", "pairs", multiple=True, metavar="NAME=VALUE", help="An option of the queue; repeatable."
)


@click.group()
def queue() -> None:
    """Make queues, look at them, publish and read.

    \b
    cascade queue create orders
    cascade queue publish orders '{"id": 7}' --type order.paid --key acme
    cascade queue tail orders --from earliest
    """


@queue.command()
@click.argument("name")
@OPTIONS
@database_options
def create(name: str, pairs: tuple[str, ...], dsn: str, as_json: bool) -> None:
    """Make a queue; may be repeated with the same options.

    Options: tick_max_events, tick_max_lag, tick_idle, rotation_period, payload_max_bytes, slots.

    \b
    cascade queue create orders
    cascade queue create orders --option rotation_period='6 hours' --option tick_max_lag='50 ms'
    """
    from psycopg.types.json import Jsonb

    options = parse_options(pairs)
    with connected(dsn) as client:
        is_new = client.call("select cascade.create_queue(%s, %s)", name, Jsonb(options))
    message = f"created queue {name}" if is_new else f"queue {name} was there already, with these options"
    out.echo_done({"queue": name, "created": is_new}, message, as_json=as_json)


@queue.command()
@click.argument("name")
@OPTIONS
@database_options
def alter(name: str, pairs: tuple[str, ...], dsn: str, as_json: bool) -> None:
    """Change options of a queue; those not named stay.

    \b
    cascade queue alter orders --option rotation_period='1 day'
    """
    from psycopg.types.json import Jsonb

    if not pairs:
        raise click.UsageError("nothing to change: give at least one --option NAME=VALUE")
    with connected(dsn) as client:
        client.call("select cascade.alter_queue(%s, %s)", name, Jsonb(parse_options(pairs)))
        found = find(client, name)
    out.echo_done({"queue": name, "options": found["options"]}, f"altered queue {name}", as_json=as_json)


@queue.command("list")
@database_options
def list_(dsn: str, as_json: bool) -> None:
    """List the queues of a database.

    \b
    cascade queue list
    cascade queue list --json | jq '.[].queue'
    """
    with connected(dsn) as client:
        found = rows(client, "select q.* from cascade.queues as q order by q.queue")
    out.echo_list(LIST_COLUMNS, found, as_json=as_json, when_empty="no queues; `cascade queue create NAME` makes one")


@queue.command("show")
@click.argument("name")
@database_options
def show_(name: str, dsn: str, as_json: bool) -> None:
    """Show a queue: options, last ticks, consumers, and what rotation waits for.

    \b
    cascade queue show orders
    """
    with connected(dsn) as client:
        found = find(client, name)
        ticks = rows(
            client, "select t.* from cascade.ticks as t where t.queue = %s order by t.tick_id desc limit 5", name
        )
        consumers = find_consumers(client, name)
        rotation = rows(client, "select r.* from cascade.rotation as r where r.queue = %s", name)[0]
    if as_json:
        parts = {"ticks": [out.plain(row) for row in ticks], "subscriptions": [out.plain(row) for row in consumers]}
        out.echo_json({**out.plain(found), **parts, "rotation": out.plain(rotation)})
        return
    out.show(out.facts([(column.title, out.human(found[column.key], column.kind)) for column in LIST_COLUMNS]))
    out.show(out.facts([(key, str(value)) for key, value in sorted(found["options"].items())], "\noptions"))
    out.show(out.table(TICK_COLUMNS, ticks, "\nlast ticks"))
    out.show(out.table(CONSUMER_COLUMNS[1:], consumers, "\nconsumers") if consumers else "\nno consumers")
    out.show(out.facts(rotation_facts(rotation), "\nrotation"))


@queue.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also when it has consumers.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@database_options
def drop(name: str, force: bool, yes: bool, dsn: str, as_json: bool) -> int:
    """Remove a queue with all its events; refused (exit 3) while it has consumers, unless forced.

    \b
    cascade queue drop orders
    cascade queue drop orders --force --yes
    """
    with connected(dsn) as client:
        found = find(client, name)
        consumers = [row["consumer"] for row in find_consumers(client, name) if not row["consumer"].startswith(".")]
        if consumers and not force:
            hint = f"cascade queue drop {name} --force drops it with their positions."
            raise QueueInUseError(f'queue "{name}" has consumers: {", ".join(consumers)}', hint=hint)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("there is no terminal to ask on: pass --yes to drop the queue unasked")
            size = out.human_bytes(found["bytes"])
            if not click.confirm(f"Drop queue {name}, {size} of events and {len(consumers)} consumers?", err=True):
                click.echo("not dropped", err=True)
                return 1
        client.call("select cascade.drop_queue(%s, %s)", name, force)
    out.echo_done({"queue": name, "dropped": True}, f"dropped queue {name}", as_json=as_json)
    return 0


@queue.command()
@click.argument("name")
@click.argument("payload", required=False)
@click.option("--type", "kind", help="What happened, such as order.paid.")
@click.option("--key", help="Whom it concerns.")
@click.option("--headers", help="A JSON object.")
@click.option("--file", "-f", type=click.File("rb"), help="JSON values, one per line; - is stdin.")
@database_options
def publish(
    name: str,
    payload: str | None,
    kind: str | None,
    key: str | None,
    headers: str | None,
    file: BinaryIO | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Publish one event, or a file of them: all its lines or, if one is bad, none.

    The type, key and headers given are those of every line.

    \b
    cascade queue publish orders '{"id": 7}' --type order.paid --key acme
    cascade queue publish orders --file orders.jsonl
    jq -c '.[]' orders.json | cascade queue publish orders --file -
    """
    from cascade.event import Message

    if (payload is None) == (file is None):
        raise click.UsageError("give either a PAYLOAD or --file")
    extra = (kind, key, None if headers is None else parse_headers(headers))
    with connected(dsn) as client:
        if file is not None:
            count = publish_lines(client, name, (Message(text, *extra) for text in read_lines(file)))
            out.echo_done({"queue": name, "published": count}, f"published {count} events to {name}", as_json=as_json)
            return
        assert payload is not None
        if (problem := json_problem(payload)) is not None:
            raise click.BadParameter(
                f"it is not JSON: {problem}; a string needs quotes: '\"text\"'", param_hint="PAYLOAD"
            )
        event_id = client.queue(name, codec=JsonText()).publish(payload, type=kind, key=key, headers=extra[2])
    out.echo_done(
        {"queue": name, "published": 1, "id": event_id}, f"published event {event_id} to {name}", as_json=as_json
    )


@queue.command()
@click.argument("name")
@click.option("--consumer", help="Read as this consumer, and move it; made if need be, and kept.")
@click.option("--from", "start", help="now (default), earliest (default of --no-follow), a tick or a time.")
@click.option("-n", "--events", "most", type=click.IntRange(1), help="Stop after so many events.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more, until interrupted.")
@database_options
def tail(
    name: str, consumer: str | None, start: str | None, most: int | None, follow: bool, dsn: str, as_json: bool
) -> None:
    """Print events, one per line: time, id, type, key, payload.

    Without --consumer it reads as a consumer of its own, which is gone at the end.  With
    one, the events printed are done with and nobody else gets them from that consumer.

    \b
    cascade queue tail orders
    cascade queue tail orders --from '2030-01-31 12:00+00' --no-follow --json
    cascade queue tail orders --consumer billing -n 1
    """
    place = start or ("now" if follow else "earliest")
    with connected(dsn) as client, reading_as(client, dsn, name, consumer, place, is_given=start is not None) as reader:
        left = most
        with closing(batches(client, name, reader, follow=follow)) as found:
            for batch in found:
                events = list(batch)[:left]
                click.echo("".join(out.event_line(event, as_json=as_json) for event in events), nl=False)
                left = None if left is None else left - len(events)
                if left != 0:
                    continue
                if len(events) == len(batch):
                    batch.finish()
                elif consumer is not None:
                    click.echo(f"the rest of a batch was not shown: {consumer} will be given all of it again", err=True)
                return


class JsonText:
    """A codec for payloads that are JSON text already: they arrive byte for byte."""

    def encode(self, text: str) -> str:
        """Return it."""
        return text

    decode = encode


def read_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the JSON values of a file, one per line; empty lines count but say nothing."""
    for number, raw in enumerate(file, 1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise PayloadError(f"line {number} is not UTF-8: {error.reason}", hint="Nothing was published.") from error
        if text:
            if (problem := json_problem(text)) is not None:
                raise PayloadError(f"line {number} is not JSON: {problem}", hint="Nothing was published.")
            yield text


def publish_lines(client: Client, name: str, messages: Iterator[Message[str]]) -> int:
    """Send messages by one COPY, all or none; an error among them ends it with nothing published."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from cascade import producer
    from cascade.db import translated

    statement = producer.COPY.format(producer.table(queue_name(name)))
    stderr = out.console(err=True)
    columns = (TextColumn("publishing {task.completed:,.0f} events"), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("", total=None)
        total = 0
        with translated():
            most = client.payload_limit(client.connection(), queue_name(name))
        with translated(), client.connection().cursor() as cursor, cursor.copy(statement) as copy:
            for block in producer.copy_blocks(JsonText(), messages, most):
                copy.write(block)
                total += block.count(b"\n")
                progress.update(task, completed=total)
    return total


def json_problem(text: str) -> str | None:
    """Return why a text is not JSON as PostgreSQL takes it; None when it is."""

    def refuse(word: str) -> object:
        raise ValueError(f"{word} is no number")

    try:
        json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def parse_headers(text: str) -> dict[str, Any]:
    """Return headers, which are a JSON object."""
    if (problem := json_problem(text)) is None:
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise click.BadParameter(f"headers are a JSON object: {problem or text}", param_hint="--headers")


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping; the database knows which names and values there are."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            fault = "given twice" if equals and name.strip() in found else "not NAME=VALUE"
            raise click.BadParameter(f"{pair!r} is {fault}", param_hint="--option")
        found[name.strip()] = value.strip()
    return found


def find(client: Client, name: str) -> dict[str, Any]:
    """Return a queue's row of cascade.queues, or raise."""
    found = rows(client, "select q.* from cascade.queues as q order by q.queue")
    for row in found:
        if row["queue"] == name:
            return row
    hint = suggestion(name, [row["queue"] for row in found], f"cascade queue create {name} makes it.")
    raise QueueNotFoundError(f'there is no queue "{name}"', hint=hint)


def rotation_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the state of rotation as people read it."""
    kept = f"{row['generation'] - row['oldest_generation']} older, {out.human_bytes(row['bytes_held'])}"
    pairs = [("generation", f"{row['generation']}, in {row['slots']} partitions"), ("held", kept)]
    pairs.append(("next switch", out.human(row["next_switch"], "time")))
    return pairs if row["blocked_by"] is None else [*pairs, ("waits for", row["detail"] or row["blocked_by"])]
