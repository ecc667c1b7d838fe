"""cascade spark archive: a queue as Parquet, and the upkeep of that."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.cli.spark_job import Job, SparkOptions, find_place, place_options, spark_job, spark_options
from cascade.names import queue_name

if TYPE_CHECKING:
    from cascade.spark.archive import Archive, Archived
    from cascade.spark.manifest import State

UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
#: With --follow, small files are put together after so many commits.
COMPACT_EVERY = 100
#: A run is a few long tasks: a Python for each of them, and none that waits for the next, takes half the memory.
SMALL = {"spark.python.use.daemon": "false", "spark.python.worker.reuse": "false"}


class Length(click.ParamType[timedelta]):
    """A length of time such as 30d, 12h, 10min or 5s."""

    name = "length"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Return it."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d{1,9})\s*(s|min|h|d)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no length of time; write 30d, 12h, 10min or 5s", param, ctx)
        return timedelta(**{UNITS[match[2]]: int(match[1])})


@click.command("archive")
@click.argument("queue")
@click.argument("url")
@place_options
@click.option("--from", "start", default="earliest", show_default=True, help="Where a new archive begins.")
@click.option("--to", "end", default="latest", show_default=True, help="Where this run ends: a tick id or a time.")
@click.option("--follow", is_flag=True, help="Go on as the queue grows, until it is told to stop.")
@click.option("--every", type=Length(), default="10s", show_default=True, help="With --follow: how often to commit.")
@click.option("--compact", is_flag=True, help="Afterwards, make few files of each day's many small ones.")
@click.option("--keep", type=Length(), help="Afterwards, let go of the days that are older, such as 400d.")
@click.option("--grace", type=Length(), default="1d", show_default=True, help="How long readers may use old files.")
@click.option("--events-per-commit", type=click.IntRange(1), default=5_000_000, show_default=True)
@click.option("--no-hold", is_flag=True, help="Register no consumer: the queue may let events go unarchived.")
@click.option("--allow-gap", is_flag=True, help="Go on where the queue begins, when what lies between is gone.")
@click.option("--rewind", is_flag=True, help="After a failover: go back to where the archive left the queue's path.")
@spark_options
@JSON_OPTION
def archive_command(
    queue: str,
    url: str,
    dsn: str | None,
    path: Path | None,
    node: str | None,
    start: str,
    end: str,
    follow: bool,
    every: timedelta,
    compact: bool,
    keep: timedelta | None,
    grace: timedelta,
    events_per_commit: int,
    no_hold: bool,
    allow_gap: bool,
    rewind: bool,
    spark: SparkOptions,
    as_json: bool,
) -> None:
    """Archive a queue as Parquet: every event once, whatever breaks in between.

    URL is a folder on a disk, or anywhere that Hadoop reaches: hdfs://..., s3a://....  A run takes over what the
    archive does not have yet; run it every night, or with --follow all the time.  The queue keeps what is not
    archived yet.

    \b
    cascade spark archive orders /backup/events -f orders.yaml
    cascade spark archive orders /backup/events --node s2 --compact --keep 400d
    cascade spark archive orders hdfs:///events --follow --every 1min --master yarn
    """
    from cascade.errors import ConfigError

    if follow and end != "latest":
        raise click.UsageError("--follow has no end: leave --to out")
    queue_name(queue)
    place = find_place(queue, dsn=dsn, path=path, node=node)
    if spark.remote is not None:
        raise ConfigError(
            "an archive cannot be written through Spark Connect",
            hint="Pass --master: its commit needs the driver's Java.",
        )
    options = spark if follow else replace(spark, conf=SMALL | spark.conf)
    with spark_job(options, "archive", quiet=as_json) as job:
        from cascade.spark.archive import Archive, archive

        home = Archive(job.session, url, queue)
        with job.bar(f"archiving {queue} from {place.name}") as bar:
            done = archive(
                job.session,
                url,
                queue,
                dsn=place.dsn,
                start=start,
                end=end,
                events_per_commit=events_per_commit,
                hold=not no_hold,
                allow_gap=allow_gap,
                rewind=rewind,
                report=bar,
            )
        if follow:
            done = followed(job, home, url, place.dsn, done, every, hold=not no_hold, compact=compact, quiet=as_json)
        fewer, expired, swept = tidy(home, job, compact=compact, keep=keep, grace=grace)
        state = home.manifest.load()
    row = asdict(done) | {"held_events": state.events, "held_bytes": state.bytes, "held_files": len(state.files)}
    extra = {"files_compacted": fewer, "events_expired": expired, "files_swept": swept}
    out.echo_done(row | extra, sentence(done, state, fewer, expired), as_json=as_json)


def followed(
    job: Job,
    home: Archive,
    url: str,
    dsn: str,
    done: Archived,
    every: timedelta,
    *,
    hold: bool,
    compact: bool,
    quiet: bool,
) -> Archived:
    """Follow the queue until a signal comes, and return the sum of both."""
    from cascade.spark.archive import follow

    commits = 0

    def committed(state: State) -> None:
        nonlocal commits
        commits += 1
        if not quiet and state.last is not None:
            at = datetime.now(UTC).astimezone().isoformat(sep=" ", timespec="seconds")
            click.echo(
                f"{at}  tick {state.last.tick_id}, {out.human(state.events, 'number')} events archived", err=True
            )
        if compact and commits % COMPACT_EVERY == 0:
            home.compact()

    with stopping() as stop:
        more = follow(
            job.session,
            url,
            home.queue,
            dsn=dsn,
            every=f"{every.total_seconds():g} seconds",
            stop=stop.is_set,
            hold=hold,
            on_commit=committed,
        )
    return replace(
        more, from_tick=done.from_tick, events=done.events + more.events, commits=done.commits + more.commits
    )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Have SIGINT and SIGTERM set an event: what is being committed is committed whole."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {name: signal.signal(name, lambda *_: stop.set()) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def tidy(home: Archive, job: Job, *, compact: bool, keep: timedelta | None, grace: timedelta) -> tuple[int, int, int]:
    """Do the upkeep; returns how many files fewer there are, events let go, and files removed."""
    fewer = expired = 0
    if keep is not None:
        expired = home.expire((datetime.now(UTC) - keep).date())
    if compact:
        with job.bar(f"compacting {home.queue}", "files"):
            fewer = home.compact()
    return fewer, expired, home.sweep(grace)


def sentence(done: Archived, state: State, fewer: int, expired: int) -> str:
    """Say what was done."""
    held = f"{out.human(state.events, 'number')} events in {len(state.files)} files, {out.human_bytes(state.bytes)}"
    parts = [f"archived {out.human(done.events, 'number')} events of {done.queue} up to tick {done.to_tick}"]
    if fewer:
        parts.append(f"{fewer} files fewer")
    if expired:
        parts.append(f"let go of {out.human(expired, 'number')} events")
    return f"{', '.join(parts)}; {done.url} holds {held}"
