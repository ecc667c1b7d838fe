"""Exactly once, under everything at once: a stress run with a checker.

Eight writers mix long transactions, roll-backs, savepoints, prepared transactions and COPY.  Ticks
fall at random from two tickers, rotation goes on all the time.  One consumer reads alone, one is
shared by worker processes that are killed with -9.  In the end every committed event is in
exactly one batch of every consumer, and nothing else is.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database, eventually


class Crowd:
    """Threads that do something again and again until told to stop; their errors are kept."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def add(self, turn: Callable[[random.Random], None]) -> None:
        chance = random.Random(f"{self.seed}/{len(self._threads)}")

        def body() -> None:
            try:
                while not self.stop.is_set():
                    turn(chance)
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=body))

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
        assert self.errors == []


class Writer:
    """Inserts numbers, and remembers those that were committed."""

    def __init__(self, db: Database, number: int, name: str) -> None:
        self.conn, self.committed = db.connect(), set[int]()
        self._next, self._name = number * 1_000_000, name

    def numbers(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def insert(self, numbers: list[int], way: str) -> None:
        if way == "copy":
            with self.conn.cursor() as cur, cur.copy("copy queue.q (payload) from stdin") as copy:
                for number in numbers:
                    copy.write_row((str(number),))
        elif way == "post":
            self.conn.execute("select cascade.post_many('q', %s::json[])", ([str(n) for n in numbers],))
        else:
            for number in numbers:
                self.conn.execute("insert into queue.q (payload) values (%s)", (str(number),))

    def turn(self, chance: random.Random) -> None:
        kept = self.numbers(chance.randint(1, 8))
        self.conn.execute("begin")
        self.insert(kept, chance.choice(["copy", "post", "insert"]))
        if chance.random() < 0.3:
            self.conn.execute("savepoint s")
            self.insert(self.numbers(2), "insert")
            self.conn.execute("rollback to savepoint s")
        time.sleep(chance.choice([0, 0, 0, 0.01, 0.05, 0.3]))
        if chance.random() < 0.3:
            more = self.numbers(2)
            self.insert(more, "insert")
            kept += more
        match chance.choice(["commit"] * 6 + ["rollback", "prepare", "prepare"]):
            case "commit":
                self.conn.execute("commit")
                self.committed |= set(kept)
            case "rollback":
                self.conn.execute("rollback")
            case _:
                gid = f"{self._name}_{kept[0]}"
                self.conn.execute(f"prepare transaction '{gid}'".encode())
                time.sleep(chance.choice([0, 0.1]))
                if chance.random() < 0.8:
                    self.conn.execute(f"commit prepared '{gid}'".encode())
                    self.committed |= set(kept)
                else:
                    self.conn.execute(f"rollback prepared '{gid}'".encode())


class Workers:
    """Processes that share a consumer and die at random."""

    def __init__(self, db: Database, count: int) -> None:
        self._db = db
        self._names = 0
        self.processes = [self._start() for _ in range(count)]
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        self._names += 1
        command = [sys.executable, "-m", "tests.fixtures.worker", self._db.dsn, "q", "shared", f"w{self._names}"]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2])

    def turn(self, chance: random.Random) -> None:
        time.sleep(chance.uniform(1.0, 2.0))
        index = chance.randrange(len(self.processes))
        self.processes[index].kill()
        self.processes[index].wait(20)
        self.processes[index] = self._start()
        self.killed += 1

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(20)


@pytest.fixture
def db(backends: Callable[..., Backend]) -> Iterator[Database]:
    with Database.fresh(backends(LABELS[0], max_prepared_transactions="20")) as database:
        database.backend.need_prepared()
        database.queue(rotation_period="0")
        database.main.execute("create table seen (consumer text, batch bigint, payload int)")
        for consumer in ("alone", "shared"):
            database.rows("select cascade.subscribe('q', %s)", consumer)
        yield database


def stress(db: Database, seconds: float, seed: int, tell: Callable[[str], None]) -> None:
    crowd = Crowd(seed)
    writers = [Writer(db, number, db.name) for number in range(1, 9)]
    for writer in writers:
        crowd.add(writer.turn)
    for _ in range(2):
        ticker = db.connect()
        crowd.add(lambda chance, ticker=ticker: _tick(ticker, chance))  # type: ignore[misc]
    rotator = db.connect()
    switches: list[int] = []
    crowd.add(lambda chance: _rotate(rotator, chance, switches))
    reader = db.connect()
    alone: list[list[int]] = []
    crowd.add(lambda chance: _read(reader, "alone", alone, chance))
    workers = Workers(db, 3)
    crowd.add(workers.turn)
    try:
        crowd.run(seconds)
        db.tick()
        committed = set[int]().union(*(writer.committed for writer in writers))
        while _read(reader, "alone", alone, None):
            pass
        eventually(lambda: db.value("select lag_events = 0 from cascade.consumers where consumer = 'shared'"))
    finally:
        workers.end()

    assert len(committed) > 50 * seconds
    assert len(switches) > seconds / 3, "rotation succeeds under writers that always overlap"
    assert workers.killed > 2
    shared = [row[0] for row in db.rows("select payload from seen where consumer = 'shared'")]
    found = {"alone": _flat(alone), "shared": shared}
    for consumer, numbers in found.items():
        doubled = [number for number, times in Counter(numbers).items() if times > 1]
        assert doubled == [], consumer
        assert set(numbers) == committed, consumer
    tell(
        f"seed {seed}: {workers.killed} workers killed, {len(switches)} rotations; events: {len(committed)}, each once"
    )


def _tick(conn: psycopg.Connection[Any], chance: random.Random) -> None:
    time.sleep(chance.uniform(0, 0.05))
    conn.execute("select cascade.tick('q')")


def _rotate(conn: psycopg.Connection[Any], chance: random.Random, switches: list[int]) -> None:
    time.sleep(chance.uniform(0, 0.03))
    for action, generation in conn.execute("select action, generation from cascade.rotate()").fetchall():
        if action == "switched":
            switches.append(generation)


def _read(conn: psycopg.Connection[Any], consumer: str, found: list[list[int]], chance: random.Random | None) -> bool:
    row = conn.execute("select batch_id from cascade.next_batch('q', %s, 5)", (consumer,)).fetchone()
    if row is None:
        if chance:
            time.sleep(0.01)
        return False
    batch_id = row[0]
    events = conn.execute("select id, payload::text::int from cascade.batch_events(%s)", (batch_id,)).fetchall()
    ids = [event[0] for event in events]
    assert ids == sorted(ids), "ids ascend inside a batch"
    found.append([event[1] for event in events])
    conn.execute("select cascade.finish_batch(%s, true)", (batch_id,))
    return True


def _flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def test_every_committed_event_is_in_one_batch_of_every_consumer(db: Database, tell: Callable[[str], None]) -> None:
    stress(db, seconds=10, seed=1, tell=tell)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_every_committed_event_is_in_one_batch_for_long(db: Database, seed: int, tell: Callable[[str], None]) -> None:
    stress(db, seconds=120, seed=seed, tell=tell)
