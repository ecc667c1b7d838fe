"""Many events at once: INSERT ... SELECT."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.events import insert_many, pgq_many
from tests.bench.measure import Bar, Row, Samples, per_second, take_turns
from tests.bench.servers import PGQ_DATABASE, Bench

NAME = "bulk"
ABOUT = "100,000 rows by INSERT ... SELECT against as many pgq.insert_event() in one statement, and the raw limit"
NOTE = (
    "One statement in one transaction, into a queue or table made for the round, after a checkpoint. PgQ: "
    "`select count(pgq.insert_event(…)) from generate_series(…)`. Raw: the same INSERT into an unpartitioned table "
    "with the same columns and defaults (slot a constant) and an index on txid."
)
BAR = Bar(kind="at least", limit=3.5)


def run(bench: Bench) -> Iterator[Row]:
    """Measure Cascade, PgQ and the raw limit in turns."""
    count = bench.scaled(100_000, 20_000)

    def execute(database: str, statement: str) -> float:
        bench.checkpoint()
        with bench.connect(database) as conn:
            return per_second(count, lambda: conn.execute(statement.encode()))

    def ours() -> float:
        with bench.queue() as queue:
            return execute("cascade", insert_many(table=f"queue.{queue}", count=count))

    def pgq() -> float:
        with bench.pgq_queue() as queue:
            return execute(PGQ_DATABASE, pgq_many(queue=queue, count=count))

    def raw() -> float:
        with bench.raw_table() as table:
            return execute("cascade", insert_many(table=table, count=count))

    sides = {"Cascade": ours, "plain table": raw} | ({"PgQ": pgq} if bench.has_pgq else {})
    found = take_turns(bench.turns(5, 2), sides)
    samples = {name: Samples(label=name, unit="/s", values=values) for name, values in found.items()}
    title = f"{count:,} rows by INSERT … SELECT"
    yield Row(measure=NAME, title=title, ours=samples["Cascade"], theirs=samples.get("PgQ"), rival="PgQ", bar=BAR)
    yield Row(measure=NAME, title=f"{title}, raw limit", ours=samples["Cascade"], theirs=samples["plain table"])
