"""How many bytes an event costs: in the log that is flushed and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from tests.bench.events import insert_many, insert_one, pgq_many, pgq_one
from tests.bench.measure import Bar, Row, Samples, take_turns
from tests.bench.servers import PGQ_DATABASE, Bench

NAME = "bytes"
ABOUT = "bytes of WAL and of disk per event, in bulk and one by one, against PgQ"
NOTE = (
    "WAL: the difference of `pg_current_wal_insert_lsn()` around 100,000 events in one statement, and around 5,000 "
    "events in a transaction each; a checkpoint comes first, so that both sides pay for full-page images alike. "
    "Disk: `pg_total_relation_size` of the filled partition, index included, over the number of events."
)
BAR = Bar(kind="at most", limit=1.03)
LSN = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


def run(bench: Bench) -> Iterator[Row]:
    """Measure WAL and disk of bulk inserts, then the WAL of single ones."""
    count, singles = bench.scaled(100_000, 20_000), bench.scaled(5_000, 1_000)
    disk: dict[str, list[float]] = {"Cascade": [], "PgQ": []}

    def bulk_ours() -> float:
        with bench.queue() as queue, bench.connect() as conn:
            wal = _wal(bench, conn, insert_many(table=f"queue.{queue}", count=count), 1)
            query = "select sum(pg_total_relation_size(t.relid)) from pg_partition_tree(%s) as t where t.isleaf"
            disk["Cascade"].append(_number(conn, query, f"queue.{queue}") / count)
            return wal / count

    def bulk_pgq() -> float:
        with bench.pgq_queue() as queue, bench.connect(PGQ_DATABASE) as conn:
            wal = _wal(bench, conn, pgq_many(queue=queue, count=count), 1)
            query = "select pg_total_relation_size(pgq.current_event_table(%s)::regclass)"
            disk["PgQ"].append(_number(conn, query, queue) / count)
            return wal / count

    def single_ours() -> float:
        with bench.queue() as queue, bench.connect(synchronous=False) as conn:
            return _wal(bench, conn, insert_one(queue=queue), singles) / singles

    def single_pgq() -> float:
        with bench.pgq_queue() as queue, bench.connect(PGQ_DATABASE, synchronous=False) as conn:
            return _wal(bench, conn, pgq_one(queue=queue), singles) / singles

    in_bulk = take_turns(bench.turns(3), {"Cascade": bulk_ours} | ({"PgQ": bulk_pgq} if bench.has_pgq else {}))
    yield _row(f"WAL per event, {count:,} in one statement", in_bulk)
    yield _row(f"disk per event, {count:,} in one statement", {name: tuple(values) for name, values in disk.items()})
    alone = take_turns(bench.turns(3), {"Cascade": single_ours} | ({"PgQ": single_pgq} if bench.has_pgq else {}))
    yield _row(f"WAL per event, {singles:,} in a transaction each", alone)


def _wal(bench: Bench, conn: psycopg.Connection[Any], statement: str, times: int) -> float:
    """Return the bytes of WAL that running the statement so often writes."""
    conn.execute(statement.replace("generate_series(1, ", "generate_series(1, 0 * ").encode())  # warms the catalogues
    bench.checkpoint()
    before = _number(conn, LSN)
    for _ in range(times):
        conn.execute(statement.encode(), prepare=True)
    return _number(conn, LSN) - before


def _number(conn: psycopg.Connection[Any], query: str, *arguments: object) -> float:
    row = conn.execute(query.encode(), arguments or None).fetchone()
    assert row is not None
    return float(row[0])


def _row(title: str, found: dict[str, tuple[float, ...]]) -> Row:
    samples = {name: Samples(label=name, unit=" B", values=values) for name, values in found.items() if values}
    return Row(measure=NAME, title=title, ours=samples["Cascade"], theirs=samples.get("PgQ"), rival="PgQ", bar=BAR)
