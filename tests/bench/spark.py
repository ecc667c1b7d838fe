"""python -m tests.bench.spark: queues in Spark beside Spark's own JDBC source; writes docs/benchmarks-spark.md."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from psycopg.conninfo import conninfo_to_dict

from cascade.cli.output import console as make_console
from cascade.cli.output import show
from cascade.spark import session
from cascade.spark.archive import archive
from cascade.spark.ranges import connected, held
from cascade.spark.reconcile import reconcile
from tests.bench import machine
from tests.bench.events import PAYLOAD_TEXT, TYPE
from tests.bench.measure import Bar, Row, Samples, per_second, take_turns
from tests.bench.nodes import SET, Nodes, nodes
from tests.bench.report import COLUMNS, cells, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks-spark.md"
#: Where Debian's libpostgresql-jdbc-java puts the driver.
JARS = ("/usr/share/java/postgresql.jar", "/usr/share/java/postgresql-jdbc4.jar")
NO_JAR = "JDBC: not measured (install libpostgresql-jdbc-java)"
EVENTS, PER_TICK = 2_000_000, 1_000
PROVIDERS = {"n1": None, "n2": "n1", "n3": "n1"}
#: What both sides give Spark.
READ = "id, time, txid, type, key, payload::text as payload, headers::text as headers, origin, origin_id"
NOTES = {
    "read": "Every column of every event, into Spark's `noop` sink, on `local[2]`. JDBC: the driver of PostgreSQL, a"
    " fetch size of 10,000, two partitions by id, from the queue's table; ours: the data source as it is.",
    "reconcile": "Three carriers in one server, equal to the last byte. Ours: `reconcile()`. The rival: the rows of all"
    " three, by JDBC or by the data source, two full outer joins by id, and a count of those of which a column differs."
    " `hashed`: somebody who knows Spark has it join a hash over each row's columns in their place.",
    "bytes": "What was received over the loopback interface meanwhile, from the kernel's own counter: all that left the"
    " databases, and what Python and Java said to each other. The data: the carriers' rows as COPY writes them.",
    "damaged": "Ten events of one carrier are changed or removed, in three ticks; then the same comparison.",
    "archive": "A new archive of all events on a disk, in one commit. Memory: that of the command, run once more in a"
    " process of its own: the proportional set size of all its Python processes, the driver and Spark's workers, added"
    " up, looked at up to 20 times a second.",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--events", type=click.IntRange(1000), default=EVENTS, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds; of the joins half as many."
)
@click.option("--quick", is_flag=True, help="100,000 events, one round: to try things out, not to publish.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write every number here.")
@click.option("--write/--no-write", default=None, help="Write docs/benchmarks-spark.md [default: after a full run].")
def main(events: int, rounds: int, quick: bool, json_path: Path | None, write: bool | None) -> None:
    """Measure queues in Spark beside its JDBC source, on a server of its own, in one run."""
    if quick:
        events, rounds = min(events, 100_000), 1
    write = (not quick and events == EVENTS) if write is None else write
    console, begun = make_console(), time.monotonic()
    facts = {"Machine": machine.machine(), "Versions": machine.versions()}
    jar = next((path for path in JARS if Path(path).is_file()), None)

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begun:6.0f} s  {text}", style="dim", highlight=False)

    say("starting a server and three carriers")
    with nodes(PROVIDERS, servers=1) as found, tempfile.TemporaryDirectory(prefix="cascade-bench-") as folder:
        publish(found, events, say)
        with started(jar, Path(folder)) as spark:
            rows = list(measure(Measured(spark, found, events, rounds, jar is not None, Path(folder), say)))
            facts["Versions"] |= {
                "Spark": spark.version,
                "PostgreSQL driver": Path(jar).resolve().name if jar else "none",
            }
    facts["Versions"] |= {name: metadata.version(name) for name in ("pyarrow", "adbc-driver-postgresql")}
    show(table(rows))
    if json_path:
        json_path.write_text(json.dumps([dict(zip(COLUMNS, cells(row), strict=True)) for row in rows], indent=2) + "\n")
    if write:
        PAGE.write_text(page(rows, facts, events))
        console.print(f"written: {PAGE}")
    say("done")


@contextmanager
def started(jar: str | None, folder: Path) -> Iterator[SparkSession]:
    """Yield a session with two threads, and the driver of PostgreSQL if there is one."""
    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "8", "spark.local.dir": str(folder)}
    if jar is not None:
        conf |= {"spark.jars": jar, "spark.driver.extraClassPath": jar}
    spark = session("cascade bench", master="local[2]", conf=conf, log=folder / "spark.log")
    try:
        yield spark
    finally:
        spark.stop()


def publish(found: Nodes, events: int, say: Callable[[str], None]) -> None:
    """Publish events at the root, no two alike, in ticks of a thousand, and have every carrier copy them."""
    found.start()
    head, tail = PAYLOAD_TEXT[: len('{"order":')], PAYLOAD_TEXT[len('{"order":1000000') :]
    insert = (
        f"insert into queue.{SET} (type, payload) select '{TYPE}', ('{head}' || 1000000 + n || '{tail}')::json"
        f" from generate_series(%s::int, %s::int) as n"
    ).encode()
    root = found.conns["n1"]
    for first in range(0, events, PER_TICK):
        root.execute(insert, (first, min(first + PER_TICK, events) - 1))
        root.execute("select cascade.tick(%s)", (SET,))
    say(f"published {events} events, waiting for the carriers")
    found.settle(within_s=600)
    # What follows is measured without anybody at work beside it.
    for daemon in found.daemons.values():
        daemon.terminate()
    for daemon in found.daemons.values():
        daemon.wait(30)
    for name in PROVIDERS:
        found.conns[name].execute("vacuum analyze")


class Measured:
    """What the measures work with."""

    def __init__(
        self,
        spark: SparkSession,
        found: Nodes,
        events: int,
        rounds: int,
        has_jdbc: bool,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.spark, self.nodes, self.events, self.rounds = spark, found, events, rounds
        self.has_jdbc, self.folder, self.say = has_jdbc, folder, say
        self.password = password(found.dsn("n1"))

    def ours(self, name: str = "n1") -> DataFrame:
        """Return all events of a carrier, by the data source."""
        return self.spark.read.format("cascade").options(dsn=self.nodes.dsn(name), queue=SET).load()

    def jdbc(self, name: str = "n1") -> DataFrame:
        """Return the same by JDBC."""
        given = conninfo_to_dict(self.nodes.dsn(name))
        last = self.nodes.conns[name].execute(f"select max(id) from queue.{SET}".encode()).fetchone()
        options: dict[str, Any] = {
            "url": f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}",
            "user": given["user"],
            "password": self.password,
            "driver": "org.postgresql.Driver",
            "dbtable": f"(select {READ} from queue.{SET} where origin is null) as e",
            "fetchsize": 10_000,
            "partitionColumn": "id",
            "lowerBound": 1,
            "upperBound": last[0] if last else 1,
            "numPartitions": 2,
        }
        return self.spark.read.format("jdbc").options(**options).load()

    def data_bytes(self) -> int:
        """Return how many bytes the rows of all carriers are, as COPY writes them."""
        total = 0
        with self.nodes.conns["n1"].cursor() as cursor:
            query = f"copy (select {READ} from queue.{SET} where mod(id, 100) = 0) to stdout"
            with cursor.copy(query.encode()) as copy:
                total = sum(len(block) for block in copy)
        return total * 100 * len(PROVIDERS)


def measure(bench: Measured) -> Iterator[Row]:
    """Measure everything, in turns where there are two sides."""
    yield from measure_reading(bench)
    yield from measure_reconcile(bench)
    yield from measure_archive(bench)


def measure_reading(bench: Measured) -> Iterator[Row]:
    """Read all events, by the data source and by JDBC."""
    sides = {"ours": lambda: per_second(bench.events, lambda: swallow(bench.ours()))}
    if bench.has_jdbc:
        sides["jdbc"] = lambda: per_second(bench.events, lambda: swallow(bench.jdbc()))
    bench.say("reading")
    for side in sides.values():
        side()  # Java compiles what it runs for long, and workers are started, whoever begins.
    values = take_turns(bench.rounds, sides)
    ours = Samples(label="Cascade", unit="/s", values=values["ours"])
    theirs = Samples(label="JDBC", unit="/s", values=values["jdbc"]) if bench.has_jdbc else None
    title = f"batch read of {bench.events:_} events, rows".replace("_", " ")
    yield Row(measure="read", title=title, ours=ours, theirs=theirs, rival=NO_JAR, bar=Bar(kind="at least", limit=0.8))
    wanted = Bar(kind="at least", limit=300_000, of="value", unit=" /s")
    yield Row(measure="read", title="the same, by itself", ours=ours, bar=wanted)


def measure_reconcile(bench: Measured) -> Iterator[Row]:
    """Compare equal carriers, by digests and by joining all rows; then a carrier that is damaged."""
    moved: list[float] = []

    def ours() -> float:
        before, start = received(), time.perf_counter()
        found = reconcile(bench.spark, bench.nodes.topology, SET)
        seconds = time.perf_counter() - start
        moved.append(100 * (received() - before) / data)
        assert found.is_equal and found.is_complete, found
        return seconds

    data = bench.data_bytes()
    sides = {"ours": ours, "source": lambda: joined(bench.ours)}
    if bench.has_jdbc:
        sides |= {"jdbc": lambda: joined(bench.jdbc), "hashed": lambda: joined(hashed(bench.jdbc))}
    bench.say("comparing")
    ours()
    moved.clear()
    values = take_turns(max(1, bench.rounds // 2), sides)
    # The joins take long: more rounds of what is short.
    again = tuple(ours() for _ in range(bench.rounds - len(values["ours"])))
    equal = Samples(label="Cascade", unit=" s", values=values["ours"] + again)
    bar = Bar(kind="at most", limit=0.2)
    title = f"reconcile 3 nodes of {bench.events:,} equal events".replace(",", " ")
    for name, label in (("jdbc", "join by JDBC"), ("source", "join by our source")):
        theirs = Samples(label=label, unit=" s", values=values[name]) if name in values else None
        yield Row(measure="reconcile", title=title, ours=equal, theirs=theirs, rival=NO_JAR, bar=bar)
    if "hashed" in values:
        theirs = Samples(label="join by JDBC, hashed", unit=" s", values=values["hashed"])
        yield Row(measure="reconcile", title=title, ours=equal, theirs=theirs)
    yield Row(
        measure="bytes",
        title="bytes moved meanwhile, of the data",
        ours=Samples(label="Cascade", unit=" %", values=tuple(moved)),
        bar=Bar(kind="under", limit=1, of="value", unit=" %"),
    )
    bench.say("damaging ten events in three ticks")
    wanted = damage(bench.nodes)
    found: list[set[tuple[str, int]]] = []

    def damaged() -> float:
        start = time.perf_counter()
        report = reconcile(bench.spark, bench.nodes.topology, SET)
        seconds = time.perf_counter() - start
        found.append({(str(each.kind), each.id) for each in report.differences if each.id is not None})
        return seconds

    damaged()
    times = tuple(damaged() for _ in range(bench.rounds))
    exact = all({number for _, number in each} == wanted for each in found)
    yield Row(
        measure="damaged",
        title="the same with 10 damaged events in 3 ticks",
        ours=Samples(label="damaged", unit=" s", values=times),
        theirs=Samples(label="equal", unit=" s", values=equal.values),
        bar=Bar(kind="at most", limit=1.5),
    )
    yield Row(
        measure="damaged",
        title="events named that are damaged, of 10",
        ours=Samples(label="", unit="", values=tuple(float(len({n for _, n in each} & wanted)) for each in found[1:])),
        bar=Bar(kind="at least", limit=10, of="value"),
    )
    if not exact:
        bench.say(f"NOT EXACTLY WHAT WAS DAMAGED: wanted {sorted(wanted)}, found {found}")


def measure_archive(bench: Measured) -> Iterator[Row]:
    """Archive everything, and see what memory Python takes when the command does it."""
    rates, size = [], 0
    bench.say("archiving")
    for number in range(bench.rounds + 1):
        url = bench.folder / f"archive{number}"
        start = time.perf_counter()
        done = archive(bench.spark, str(url), SET, dsn=bench.nodes.dsn("n1"), hold=False)
        if number:  # What comes first has Java compile.
            rates.append(done.events / (time.perf_counter() - start))
        assert done.events == bench.events, done
        size = done.held_bytes
        shutil.rmtree(url)
    title = f"archive {bench.events:,} events to Parquet".replace(",", " ")
    yield Row(measure="archive", title=title, ours=Samples(label="Cascade", unit="/s", values=tuple(rates)))
    url = bench.folder / "by the command"
    command = [sys.executable, "-m", "cascade.cli.main", "spark", "archive", SET, str(url), "--master", "local[2]"]
    run = subprocess.Popen([*command, "--no-hold", "--dsn", bench.nodes.dsn("n1")], stdout=subprocess.DEVNULL)
    peak = 0.0
    while run.poll() is None:
        peak = max(peak, sum(pss_mb(pid) for pid in family(run.pid) if is_python(pid)))
        time.sleep(0.05)
    assert run.returncode == 0
    yield Row(
        measure="archive",
        title="cascade spark archive, memory of Python at most",
        ours=Samples(label="", unit=" MB", values=(peak,)),
        bar=Bar(kind="under", limit=500, of="value", unit=" MB"),
    )
    per_event = Samples(label="", unit=" B", values=(size / bench.events,))
    yield Row(measure="archive", title="bytes of Parquet per event", ours=per_event)


def swallow(frame: DataFrame) -> None:
    """Read a frame whole and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def joined(read: Callable[[str], DataFrame]) -> float:
    """Compare all rows of the carriers by full outer joins, as one does without digests; returns the seconds."""
    from pyspark.sql import functions as F

    start = time.perf_counter()
    first, *others = PROVIDERS
    whole = read(first).alias(first)
    columns = [name for name in whole.columns if name not in ("id", "tick")]
    same = F.lit(True)
    for name in others:
        whole = whole.join(read(name).alias(name), F.col(f"{first}.id") == F.col(f"{name}.id"), "full_outer")
        for column in ("id", *columns):
            same = same & F.col(f"{first}.{column}").eqNullSafe(F.col(f"{name}.{column}"))
    assert whole.where(~same).count() == 0
    return time.perf_counter() - start


def hashed(read: Callable[[str], DataFrame]) -> Callable[[str], DataFrame]:
    """Return what gives the rows of a carrier by their id and a hash over the rest."""
    from pyspark.sql import functions as F

    def give(name: str) -> DataFrame:
        frame = read(name)
        columns = [each for each in frame.columns if each not in ("id", "tick")]
        return frame.select("id", F.xxhash64(*columns, *(F.col(each).isNull() for each in columns)).alias("hash"))

    return give


def damage(found: Nodes) -> set[int]:
    """Change, remove and add ten events of one carrier, in three ticks; returns their ids."""
    conn = found.conns["n3"]
    with connected(found.dsn("n3")) as there:
        first, newest = held(there, SET)
    with conn.transaction():
        rows = conn.execute(
            b"select t.tick_id, t.high from cascade.ticks as t where t.queue = %s and t.events > 10"
            b" and t.tick_id > %s and t.tick_id <= %s order by t.tick_id",
            (SET, first, newest),
        ).fetchall()
        chosen = [rows[len(rows) * part // 4] for part in (1, 2, 3)]
        ids: list[int] = []
        for (_, high), count in zip(chosen, (4, 3, 3), strict=True):
            query = f"select id from queue.{SET} where txid < %s and origin is null order by txid desc, id limit %s"
            ids += [row[0] for row in conn.execute(query.encode(), (high, count)).fetchall()]
        conn.execute(f"update queue.{SET} set payload = '{{}}' where id = any (%s)".encode(), (ids[:5],))
        conn.execute(f"update queue.{SET} set key = 'k' where id = any (%s)".encode(), (ids[5:7],))
        conn.execute(f"delete from queue.{SET} where id = any (%s)".encode(), (ids[7:],))
    return set(ids)


def received() -> int:
    """Return how many bytes came in over the loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def family(pid: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def is_python(pid: int) -> bool:
    """Whether a process is Python."""
    try:
        return "python" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


def pss_mb(pid: int) -> float:
    """Return the memory of a process, what it shares counted in part."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def password(dsn: str) -> str:
    """Return the password of the file that a connection string names: Java does not read it."""
    given = conninfo_to_dict(dsn)
    for line in Path(str(given["passfile"])).read_text().splitlines():
        if line.split(":")[3] == given["user"]:
            return line.split(":", 4)[4]
    return ""


def page(rows: list[Row], facts: dict[str, dict[str, str]], events: int) -> str:
    """Return docs/benchmarks-spark.md."""
    lines = [
        "# Benchmarks: Spark",
        "",
        f"Written by `make bench-spark` on {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC; do not edit.",
        "",
        "All sides run on one machine in one run, with the server: each round measures every side once, in shuffled",
        "order. Numbers are medians [lowest-highest round]; a ratio is that of the medians [of the rounds' own].",
        f"There are {events} events in ticks of {PER_TICK}, with a type of 6 bytes, 204 bytes of JSON, and no key.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
    ]
    for title, found in facts.items():
        lines += [f"**{title}:** " + "; ".join(f"{name} {value}" for name, value in found.items()) + ".", ""]
    lines += ["## What was measured, and how", ""]
    lines += [f"- **{name}**: {note}" for name, note in NOTES.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
