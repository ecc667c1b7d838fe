"""The server that is measured: one for both sides, with a database for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from cascade.dev import Cluster, Server, find_binaries
from cascade.sql import migrate
from tests.bench.events import RAW_TABLE

try:
    import psycopg2
except ImportError:
    psycopg2 = None

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "max_prepared_transactions": "0",
}
PGQ_DATABASE = "pgq"
#: A tick whenever the ticker is asked, so that batches have the size the measure wants.
PGQ_CONFIG = {"ticker_max_count": "1", "ticker_max_lag": "0", "ticker_idle_period": "0"}
NO_PGQ = "not measured (PgQ is not installed)"


@dataclass
class Bench:
    """What a measure works with; names of queues and tables are new each time."""

    server: Server
    has_pgq: bool
    is_quick: bool
    rounds: int | None
    say: Callable[[str], None]
    facts: dict[str, str] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def scaled(self, full: int, quick: int) -> int:
        """Return how much of something this run takes."""
        return quick if self.is_quick else full

    def turns(self, full: int, quick: int = 1) -> int:
        """Return how many rounds this run takes; --rounds wins."""
        return self.rounds or self.scaled(full, quick)

    def dsn(self, database: str = "cascade", *, synchronous: bool = True) -> str:
        """Return how the plain role connects."""
        options = f"-c synchronous_commit={'on' if synchronous else 'off'}"
        return make_conninfo(self.server.socket_dsn(dbname=database), options=options)

    def connect(self, database: str = "cascade", *, synchronous: bool = True) -> psycopg.Connection[Any]:
        """Open a connection of the plain role, autocommit."""
        return psycopg.connect(self.dsn(database, synchronous=synchronous), autocommit=True)

    def admin(self) -> psycopg.Connection[Any]:
        """Open a connection of the superuser."""
        return psycopg.connect(self.server.socket_dsn("postgres", "postgres"), autocommit=True)

    def checkpoint(self) -> None:
        """Write out what was measured before, so that the next side starts with a clean pool."""
        with self.admin() as conn:
            conn.execute("checkpoint")

    @contextmanager
    def queue(self, **options: object) -> Iterator[str]:
        """Yield a queue of Cascade that is dropped afterwards."""
        name = f"q{next(self._numbers)}"
        with self.connect() as conn:
            conn.execute("select cascade.create_queue(%s, %s)", (name, psycopg.types.json.Jsonb(options)))
        yield name
        with self.connect() as conn:
            conn.execute("select cascade.drop_queue(%s, true)", (name,))

    @contextmanager
    def pgq_queue(self) -> Iterator[str]:
        """Yield a queue of PgQ that is dropped afterwards."""
        name = f"q{next(self._numbers)}"
        with self.connect(PGQ_DATABASE) as conn:
            conn.execute("select pgq.create_queue(%s)", (name,))
            for option, value in PGQ_CONFIG.items():
                conn.execute("select pgq.set_queue_config(%s, %s, %s)", (name, option, value))
        yield name
        with self.connect(PGQ_DATABASE) as conn:
            conn.execute("select pgq.drop_queue(%s, true)", (name,))

    @contextmanager
    def raw_table(self) -> Iterator[str]:
        """Yield a plain table of the same columns that is dropped afterwards."""
        name = f"raw{next(self._numbers)}"
        with self.connect() as conn:
            conn.execute("create schema if not exists raw")
            conn.execute(RAW_TABLE.format(table=f"raw.{name}").encode())
        yield f"raw.{name}"
        with self.connect() as conn:
            conn.execute(f"drop table raw.{name}; drop sequence raw.{name}_id".encode())

    def pgq_driver(self) -> Any:
        """Open PgQ's usual driver, or ours where it is missing; transactions are explicit in both."""
        dsn = self.dsn(PGQ_DATABASE)
        return psycopg.connect(dsn) if psycopg2 is None else psycopg2.connect(dsn)


def driver_name() -> str:
    """Return what the Python side of PgQ is measured with."""
    return "psycopg 3 (psycopg2 is not installed)" if psycopg2 is None else "psycopg2"


@contextmanager
def started(*, is_quick: bool, rounds: int | None, say: Callable[[str], None]) -> Iterator[Bench]:
    """Start a server, prepare both databases, and remove it all at the end."""
    with Cluster.temporary(nodes=1, binaries=find_binaries(), settings=SETTINGS) as cluster:
        bench = Bench(cluster["n1"], False, is_quick, rounds, say)
        with bench.connect() as conn:
            migrate.install(conn)
        with bench.admin() as conn:
            bench.facts["PostgreSQL"] = str(conn.execute("show server_version").fetchone()[0])
            found = conn.execute("select default_version from pg_available_extensions where name = 'pgq'").fetchone()
            bench.facts["PgQ"] = found[0] if found else "not installed"
            bench.has_pgq = found is not None
            if found:
                conn.execute(f"create database {PGQ_DATABASE} owner cascade".encode())
        if bench.has_pgq:
            with psycopg.connect(bench.server.socket_dsn("postgres", PGQ_DATABASE), autocommit=True) as conn:
                conn.execute("create extension pgq")
                conn.execute("grant pgq_admin to cascade")
        yield bench
