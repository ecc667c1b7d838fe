"""cascade spark backfill: events of long ago, from an archive and the live queue, into another queue."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.spark_job import Place as Database
from cascade.cli.spark_job import SparkOptions, check_queue, find_place, place_options, spark_job, spark_options
from cascade.errors import ConfigError


@click.command("backfill")
@click.argument("queue")
@place_options
@click.option("--archive", "url", metavar="URL", help="Where the older events are; without it the queue alone is read.")
@click.option("--into", required=True, metavar="QUEUE", help="The queue to fill; it exists, and takes inserts.")
@click.option("--into-dsn", metavar="DSN", help="Its database; otherwise the one that is read.")
@click.option("--from", "start", default="earliest", show_default=True, help="A tick id or a time: after it.")
@click.option("--to", "end", default="latest", show_default=True, help="A tick id or a time: up to it.")
@click.option("--events-per-job", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--allow-gap", is_flag=True, help="Leave out what neither the archive nor the queue has any more.")
@spark_options
@JSON_OPTION
def backfill_command(
    queue: str,
    dsn: str | None,
    path: Path | None,
    node: str | None,
    url: str | None,
    into: str,
    into_dsn: str | None,
    start: str,
    end: str,
    events_per_job: int,
    allow_gap: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Publish the events of a queue into another one, from its archive and from itself, each once.

    The archive gives what is older, the queue the rest; they meet at a tick, without gap or overlap.  Each event gets
    a new id there, keeps its time, and has origin and origin_id, as in a combined queue.  Break it off and run it
    again: what was published is known.  Run it later: what has come since is added.

    \b
    cascade queue create orders_2026
    cascade spark backfill orders --archive /backup/events -f orders.yaml --into orders_2026
    cascade spark backfill orders --archive /backup/events --into orders_may --from 2026-05-01 --to 2026-06-01
    """
    place = find_place(queue, dsn=dsn, path=path, node=node)
    target = Database(dsn=into_dsn or place.dsn, name="the database to fill")
    check_queue(target, into)
    if spark.remote is not None and url is not None:
        raise ConfigError(
            "an archive cannot be reached through Spark Connect", hint="Pass --master in place of --remote."
        )
    with spark_job(spark, "backfill", quiet=as_json) as job:
        from cascade.spark.backfill import fill

        with job.bar(f"filling {into} from {queue}") as bar:
            done = fill(
                job.session,
                queue,
                url=url,
                dsn=place.dsn,
                into=into,
                into_dsn=target.dsn,
                start=start,
                end=end,
                events_per_job=events_per_job,
                allow_gap=allow_gap,
                report=bar,
            )
    row = asdict(done) | {"seam": str(done.seam)}
    message = (
        f"published {out.human(done.events, 'number')} events of {queue} into {into}, "
        f"after tick {done.from_tick} up to tick {done.to_tick}"
    )
    if url is not None:
        message += f"; the archive gave those up to tick {done.seam}"
    out.echo_done(row, message, as_json=as_json)
