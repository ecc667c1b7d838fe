"""cascade consumer: where the readers of queues stand, moving them, and reading as one of them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import connected, database_options, rows, suggestion
from cascade.cli.move import move
from cascade.cli.output import Column, echo_done, echo_json, echo_list, facts, human, plain, show
from cascade.errors import ConsumerNotFoundError

if TYPE_CHECKING:
    from cascade.sync import Batch, Client

TAIL_LEASE = timedelta(seconds=30)
COLUMNS = (
    Column("queue", "queue"),
    Column("consumer", "consumer"),
    Column("tick_id", "tick", "id"),
    Column("lag_ticks", "lag ticks", "number"),
    Column("lag_events", "lag events", "number"),
    Column("lag_seconds", "lag", "seconds"),
    Column("open_batches", "open", "number"),
    Column("retries", "retries", "number"),
    Column("last_seen", "seen", "ago"),
    Column("workers", "workers", "list"),
)


@click.group()
def consumer() -> None:
    """Where consumers stand, and moving them.

    A place in a queue is now, earliest, the id of a tick, or a time.

    \b
    cascade consumer create orders billing --at earliest
    cascade consumer list
    cascade consumer seek orders billing '2030-01-31 12:00+00'
    cascade consumer move orders billing --from s1 --to s2 -f orders.yaml
    """


consumer.add_command(move)


@consumer.command("list")
@click.argument("queue", required=False)
@database_options
def list_(queue: str | None, dsn: str, as_json: bool) -> None:
    """List consumers and how far they are behind, of one queue or of all.

    \b
    cascade consumer list
    cascade consumer list orders --json
    """
    with connected(dsn) as client:
        if queue is not None:
            client.call("select cascade.tick_channel(%s)", queue)  # raises if there is no such queue
        found = find(client, queue)
    echo_list(COLUMNS, found, as_json=as_json, when_empty="no consumers; `cascade consumer create` makes one")


@consumer.command("show")
@click.argument("queue")
@click.argument("consumer")
@database_options
def show_(queue: str, consumer: str, dsn: str, as_json: bool) -> None:
    """Show one consumer.

    \b
    cascade consumer show orders billing
    """
    with connected(dsn) as client:
        found = find_one(client, queue, consumer)
    if as_json:
        echo_json(plain(found))
        return
    show(facts([(column.title, human(found[column.key], column.kind)) for column in COLUMNS]))


@consumer.command()
@click.argument("queue")
@click.argument("consumer")
@click.option("--at", default="now", show_default=True, help="Where it begins: now, earliest, a tick or a time.")
@click.option(
    "--mode",
    type=click.Choice(["stream", "work"]),
    default="stream",
    show_default=True,
    help="Batches in order, or message after message.",
)
@click.option("--where", "selector", metavar="JSONPATH", help="Work mode: only messages that match.")
@click.option("--option", "given", multiple=True, metavar="NAME=VALUE", help="Work mode: an option; may be repeated.")
@database_options
def create(
    queue: str, consumer: str, at: str, mode: str, selector: str | None, given: tuple[str, ...], dsn: str, as_json: bool
) -> None:
    """Register a consumer; one that is there already stays where it stands.

    \b
    cascade consumer create orders billing
    cascade consumer create orders audit --at earliest
    cascade consumer create orders mail --mode work --where '$.type == "order.paid"' --option max_attempts=3
    """
    options = work_options(given) if given else None
    with connected(dsn) as client:
        is_known = any(row["consumer"] == consumer for row in find(client, queue))
        tick = client.queue(queue).subscribe(consumer, at=at, mode=mode, selector=selector, options=options)
    done = {"queue": queue, "consumer": consumer, "tick_id": tick, "created": not is_known}
    verb = "was there already and stands" if is_known else "begins"
    echo_done(done, f"consumer {consumer} of queue {queue} {verb} at tick {tick}", as_json=as_json)


@consumer.command()
@click.argument("queue")
@click.argument("consumer")
@click.argument("at")
@database_options
def seek(queue: str, consumer: str, at: str, dsn: str, as_json: bool) -> None:
    """Move a consumer, back or forth: to now, earliest, a tick or a time.

    Batches it has open are taken from it, and events it put back for later are forgotten.

    \b
    cascade consumer seek orders billing earliest
    cascade consumer seek orders billing '2030-01-31 12:00+00'
    """
    with connected(dsn) as client:
        tick = client.call("select cascade.seek(%s, %s, %s)", queue, consumer, at)
    done = {"queue": queue, "consumer": consumer, "tick_id": tick}
    echo_done(done, f"consumer {consumer} of queue {queue} stands at tick {tick}", as_json=as_json)


@consumer.command()
@click.argument("queue")
@click.argument("consumer")
@database_options
def drop(queue: str, consumer: str, dsn: str, as_json: bool) -> None:
    """Forget a consumer and its place; the events it has not read no longer wait for it.

    \b
    cascade consumer drop orders billing
    """
    with connected(dsn) as client:
        if not client.call("select cascade.unsubscribe(%s, %s)", queue, consumer):
            raise not_found(client, queue, consumer)
    done = {"queue": queue, "consumer": consumer, "dropped": True}
    echo_done(done, f"dropped consumer {consumer} of queue {queue}", as_json=as_json)


def work_options(given: tuple[str, ...]) -> dict[str, Any]:
    """Return NAME=VALUE as options; a value that is no JSON is text."""
    found: dict[str, Any] = {}
    for option in given:
        name, separator, value = option.partition("=")
        if not separator:
            raise click.UsageError(f"--option {option}: write NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def find(client: Client, queue: str | None) -> list[dict[str, Any]]:
    """Return the consumers of a queue, or all."""
    return rows(
        client,
        "select c.* from cascade.consumers as c where %s::text is null or c.queue = %s order by c.queue, c.consumer",
        queue,
        queue,
    )


def find_one(client: Client, queue: str, consumer: str) -> dict[str, Any]:
    """Return one consumer, or raise."""
    client.call("select cascade.tick_channel(%s)", queue)
    for row in find(client, queue):
        if row["consumer"] == consumer:
            return row
    raise not_found(client, queue, consumer)


def not_found(client: Client, queue: str, consumer: str) -> ConsumerNotFoundError:
    """Return the error that says what there is instead."""
    known = [row["consumer"] for row in find(client, queue)]
    hint = suggestion(consumer, known, f"cascade consumer create {queue} NAME makes one.")
    return ConsumerNotFoundError(f'queue "{queue}" has no consumer "{consumer}"', hint=hint)


@contextmanager
def reading_as(
    client: Client, dsn: str, name: str, consumer: str | None, place: str, *, is_given: bool
) -> Iterator[str]:
    """Return the consumer to read as; one made for the occasion is gone afterwards, however that comes."""
    from cascade.batch import worker_name

    reader = consumer or f"tail-{worker_name()}"[:100]
    if consumer is not None and is_given and any(row["consumer"] == consumer for row in find(client, name)):
        raise click.UsageError(
            f"consumer {consumer} stands somewhere already: leave out --from, or `cascade consumer seek` first"
        )
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        client.call("select cascade.subscribe(%s, %s, %s)", name, reader, place)
        yield reader
    finally:
        signal.signal(signal.SIGTERM, former)
        if consumer is None:
            # On a connection of its own: the other may have been interrupted in mid-statement.
            with connected(dsn) as other:
                other.call("select cascade.unsubscribe(%s, %s)", name, reader)


def batches(client: Client, name: str, reader: str, *, follow: bool) -> Generator[Batch[Any], None, None]:
    """Yield batches; one not finished by whoever gets it is finished when the next is asked for."""
    from cascade.batch import worker_name

    source = client.queue(name)
    if follow:
        yield from source.stream(reader, lease=TAIL_LEASE)
        return
    worker = worker_name()
    while (
        batch := source.next_batch(reader, max_ticks=100, max_events=5000, worker=worker, lease=TAIL_LEASE)
    ) is not None:
        with batch:
            yield batch
