"""What the commands of `cascade spark` share: how Spark is reached, bars, and errors of one line.

Spark reports a failure as a stack trace of Java, often with one of Python inside.  Here it becomes a line that names
the object, the fact and the remedy, and the log file that holds the trace.  Nothing imports PySpark until a job
starts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cascade import errors
from cascade.cli import output as out
from cascade.cli.status import FILES, find_file
from cascade.errors import CascadeError, ConfigError
from cascade.topology import Node, Role, Topology, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

LOG_FOLDER = "cascade-spark"
#: How often a bar looks at Spark's tasks.
LOOK_S = 0.3
#: An error of ours or of the driver inside somebody else's message, with its hint.
INNER = re.compile(r"(?<![\w.])(cascade|psycopg)\.(?:[a-z]\w*\.)*([A-Z]\w+): ([^\n]+)(?:\n\s*hint: ([^\n]+))?")


class SparkFailedError(CascadeError):
    """Spark could not do it; the log file that the hint names has the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Which Spark a job runs on, and where its log goes."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    log_file: Path | None = None


def spark_options(command: F) -> F:
    """Give a command --master, --conf, --remote and --log-file, and hand them over as `spark`."""

    @functools.wraps(command)
    def wrapped(
        *arguments: Any,
        master: str | None,
        remote: str | None,
        pairs: tuple[str, ...],
        log_file: Path | None,
        **named: Any,
    ) -> Any:
        if master is not None and remote is not None:
            raise click.UsageError("--master and --remote exclude one another: one starts a driver, the other is one")
        chosen = SparkOptions(master=master, remote=remote, conf=parse_conf(pairs), log_file=log_file)
        return command(*arguments, spark=chosen, **named)

    for option in (
        click.option(
            "--log-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Where Spark's log goes; otherwise a file of the temporary folder, kept when the job fails.",
        ),
        click.option("--conf", "pairs", multiple=True, metavar="K=V", help="A setting of Spark; repeatable."),
        click.option("--remote", metavar="URL", envvar="SPARK_REMOTE", help="A Spark Connect server: sc://host:15002."),
        click.option(
            "--master",
            metavar="URL",
            envvar="CASCADE_SPARK_MASTER",
            show_envvar=True,
            help="local[4], spark://host:7077, yarn, k8s://...; without it all cores of this machine.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings of Spark that were given."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--conf {pair!r}: no '='", hint="Write it as --conf spark.executor.memory=4g.")
        found[name.strip()] = value
    return found


def place_options(command: F) -> F:
    """Give a command the ways to say which database of a set it reads: --dsn, or a file and --node."""
    for option in (
        click.option("--node", metavar="NODE", help="The node of the file to read; otherwise one that answers."),
        click.option(
            "--topology",
            "-f",
            "path",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="CASCADE_TOPOLOGY",
            show_envvar=True,
            help=f"The topology file; without it and --dsn, {' or '.join(FILES)} of the working directory.",
        ),
        click.option(
            "--dsn",
            metavar="DSN",
            envvar="CASCADE_DSN",
            show_envvar=True,
            help="The database to read, in place of a file and a node.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A database that carries a queue, and what it is called."""

    dsn: str
    name: str


def find_place(queue: str, *, dsn: str | None, path: Path | None, node: str | None) -> Place:
    """Return the database to read, after asking it whether it has the queue.

    What stands on the command line wins over what is in the environment.
    """
    said = {name for name in ("dsn", "path", "node") if is_said(name)}
    if "dsn" in said and said & {"path", "node"}:
        raise click.UsageError("--dsn names a database, and so do --topology and --node: pass one or the other")
    if dsn is not None and not said & {"path", "node"}:
        check_queue(Place(dsn=dsn, name="the database"), queue)
        return Place(dsn=dsn, name="the database")
    return find_node(load(find_file(path)), queue, node)


def is_said(parameter: str) -> bool:
    """Whether an option stands on the command line, and not only in the environment."""
    context = click.get_current_context()
    return context.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE


def find_node(topology: Topology, set_name: str, wanted: str | None) -> Place:
    """Return a node of a set that answers and has the queue: the one that is wanted, or a branch before the root."""
    if wanted is not None:
        place = place_of(topology, topology.find(set_name, wanted))
        check_queue(place, set_name)
        return place
    failed: list[str] = []
    for node in carriers(topology, set_name):
        place = place_of(topology, node)
        try:
            check_queue(place, set_name)
        except CascadeError as error:
            failed.append(str(error.args[0]))
            continue
        return place
    raise errors.TransientError(
        f"set {set_name}: no node can be read: {'; '.join(failed)}", hint="cascade status says how they are."
    )


def carriers(topology: Topology, set_name: str) -> list[Node]:
    """Return the nodes that keep a set's events, branches before the root: they have less to do."""
    if set_name not in topology.sets:
        topology.find(set_name, "")
    found = [node for node in topology.sets[set_name].nodes.values() if node.role is Role.BRANCH or node.role.is_root]
    return sorted(found, key=lambda node: node.role.is_root)


def place_of(topology: Topology, node: Node) -> Place:
    """Return where a node is."""
    from cascade.node.enroll import dsn_of

    return Place(dsn=dsn_of(topology, node.database), name=f"node {node.name}")


def check_queue(place: Place, queue: str) -> None:
    """See that a database answers and has a queue; one line when it does not."""
    from cascade.sync import connect

    try:
        with connect(place.dsn) as client:
            found = client.call("select exists (select from cascade.queues as q where q.queue = %s)", queue)
    except CascadeError as error:
        first = str(error.args[0]).strip().splitlines()[0]
        raise type(error)(
            f"{place.name}: {first}", hint=error.hint or "See that it runs and can be reached."
        ) from error
    if not found:
        raise errors.QueueNotFoundError(
            f'{place.name}: there is no queue "{queue}"', hint="cascade queue list shows what is there."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job at work: its session, its log, its bars."""

    session: SparkSession
    log: Path
    quiet: bool

    @contextmanager
    def bar(self, title: str, unit: str = "events") -> Iterator[Bar]:
        """Show a bar on a terminal, for the length of a block; elsewhere nothing is shown."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        drawn = out.console(err=True)
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[tasks]}"),
            console=drawn,
            transient=True,
            disable=self.quiet or not drawn.is_terminal,
        ) as shown:
            bar = Bar(shown, shown.add_task(title, total=None, counted="", tasks=""), unit)
            with watched(self.session, bar) if not shown.disable else contextlib.nullcontext():
                yield bar


class Bar:
    """How far a job is."""

    def __init__(self, shown: Any, task: Any, unit: str) -> None:
        self._shown, self._task, self._unit = shown, task, unit

    def __call__(self, done: int, total: int | None, title: str | None = None) -> None:
        """Say how much is done, of how much."""
        counted = out.human(done, "number") + ("" if total is None else f" / {out.human(total, 'number')}")
        named = {} if title is None else {"description": title}
        self._shown.update(self._task, completed=done, total=total, counted=f"{counted} {self._unit}", **named)

    def tasks(self, done: int, of: int) -> None:
        """Say how many of Spark's tasks are done."""
        self._shown.update(self._task, tasks=f"{done}/{of} tasks" if of else "")


@contextmanager
def watched(session: SparkSession, bar: Bar) -> Iterator[None]:
    """Have a bar show how many tasks of the running stages are done; Spark Connect does not tell."""
    context = getattr(session, "_sc", None)
    ended = threading.Event()

    def look() -> None:
        while context is not None and not ended.wait(LOOK_S):
            with contextlib.suppress(Exception):  # The job has ended meanwhile: whoever runs it says so.
                tracker = context.statusTracker()
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                found = [stage for stage in stages if stage is not None]
                bar.tasks(sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found))

    thread = threading.Thread(target=look, name="spark bar", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


@contextmanager
def spark_job(options: SparkOptions, name: str, *, quiet: bool = False) -> Iterator[Job]:
    """Start Spark for the length of a block, and turn what it raises into one line.

    A session that is there already, as in a notebook, is used and left as it is.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", hint="pip install 'cascade-queue[spark]' brings it, and Java.")
    from cascade.spark.launch import session as start

    log = log_path(options, name)
    is_ours = not is_running()
    with explained(log, name):
        with to_log(log) if is_ours else contextlib.nullcontext():
            session = start(
                f"cascade {name}", options.master or "local[*]", conf=options.conf, remote=options.remote, log=log
            )
        try:
            yield Job(session=session, log=log, quiet=quiet)
        finally:
            if is_ours:
                session.stop()
    if options.log_file is None:
        log.unlink(missing_ok=True)


def is_running() -> bool:
    """Whether a session was started in this process before."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def log_path(options: SparkOptions, name: str) -> Path:
    """Return where the log of a job goes; the folder is there afterwards."""
    if options.log_file is not None:
        path = options.log_file.absolute()
    else:
        folder = Path(tempfile.gettempdir()) / f"{LOG_FOLDER}-{os.getuid()}"
        path = folder / f"{name}-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be written: {error.strerror}", hint="Pass --log-file.") from error
    return path


@contextmanager
def to_log(path: Path) -> Iterator[None]:
    """Have what is started within the block write its errors to a file: Java, and the workers that it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def explained(log: Path, name: str) -> Iterator[None]:
    """Raise what Spark reports as one of Cascade's errors; the trace goes to the log."""
    try:
        yield
    except (CascadeError, click.ClickException, click.Abort):
        raise
    except Exception as error:
        if not is_sparks(error):
            raise
        with log.open("a") as file:
            traceback.print_exception(error, file=file)
        raise explain(error, log, name) from error


def is_sparks(error: Exception) -> bool:
    """Whether an error came from Spark, or from the link to it."""
    if isinstance(error, ConnectionError):
        return True
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j", "grpc")


def explain(error: Exception, log: Path, name: str) -> CascadeError:
    """Return an error of Spark as one of Cascade's: the one that a task raised, or the innermost cause."""
    trace = f"The trace is in {log}."
    for kind, cls, message, hint in INNER.findall(str(error)):
        found = getattr(errors, cls, None) if kind == "cascade" else None
        if kind == "cascade" and isinstance(found, type) and issubclass(found, CascadeError):
            return found(message.strip(), hint=f"{hint.strip()} {trace}".strip())
        return SparkFailedError(f"{name}: {message.strip()}", hint=trace)
    return SparkFailedError(f"{name}: {innermost(error)}", hint=trace)


def innermost(error: Exception) -> str:
    """Return the first line of the innermost cause that Java names."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    try:
        while (cause := java.getCause()) is not None:
            java = cause
        return str(java.toString()).strip().splitlines()[0]
    except Exception:  # The Java process has gone, and with it the cause.
        return f"Spark's Java process ended: {type(error).__name__}"
