"""The log beside a few lines of plain Python: whatever happens, both agree.

Writers begin, insert, set and undo savepoints, commit, roll back, prepare, lose their connection;
ticks and rotations fall anywhere; consumers read alone or share, finish in any order, give back,
put events back, die.  The model keeps, per tick, the set of events committed since the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database

_names = itertools.count()


@dataclass
class Writer:
    """A session with a transaction, and what it would commit."""

    conn: psycopg.Connection[Any]
    inserted: list[int] = field(default_factory=list)
    savepoints: list[int] = field(default_factory=list)
    is_open: bool = False


@dataclass
class Held:
    """A batch that a worker holds."""

    batch_id: int
    first: int
    last: int
    retries: list[int]


@dataclass
class Consumer:
    """Where a consumer stands, in numbers of ticks."""

    name: str
    head: int
    held: dict[str, Held] = field(default_factory=dict)
    orphans: list[Held] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    retried: int = 0


class LogMachine(RuleBasedStateMachine):
    """Drives the database and the model side by side."""

    db: Database

    writers = Bundle("writers")
    prepared = Bundle("prepared")

    @initialize()
    def begin(self) -> None:
        self.queue = f"m{next(_names)}"
        self.db.queue(self.queue)
        self.numbers = itertools.count(1)
        self.ticks: list[set[int]] = []
        self.unticked: set[int] = set()
        self.consumers = [Consumer("single", 0), Consumer("shared", 0)]
        self.connections: list[Writer] = []
        for consumer in self.consumers:
            self.db.rows("select cascade.subscribe(%s, %s)", self.queue, consumer.name)

    # Writers

    @rule(target=writers)
    def connect(self) -> Writer:
        writer = Writer(self.db.connect(autocommit=True))
        self.connections.append(writer)
        return writer

    @rule(writer=writers, count=st.integers(1, 3), way=st.sampled_from(["insert", "copy", "post_many"]))
    def insert(self, writer: Writer, count: int, way: str) -> None:
        if writer.conn.closed:
            return
        if not writer.is_open:
            writer.conn.execute("begin")
            writer.is_open = True
        numbers = [next(self.numbers) for _ in range(count)]
        table = f'queue."{self.queue}"'
        if way == "insert":
            values = ", ".join(f"('{number}')" for number in numbers)
            writer.conn.execute(f"insert into {table} (payload) values {values}".encode())
        elif way == "copy":
            with writer.conn.cursor() as cur, cur.copy(f"copy {table} (payload) from stdin".encode()) as copy:
                for number in numbers:
                    copy.write_row((str(number),))
        else:
            writer.conn.execute("select cascade.post_many(%s, %s::json[])", (self.queue, [str(n) for n in numbers]))
        writer.inserted += numbers

    @rule(writer=writers)
    def savepoint(self, writer: Writer) -> None:
        if writer.is_open and not writer.conn.closed:
            writer.conn.execute(f"savepoint s{len(writer.savepoints)}".encode())
            writer.savepoints.append(len(writer.inserted))

    @rule(writer=writers)
    def undo_to_savepoint(self, writer: Writer) -> None:
        if writer.savepoints and not writer.conn.closed:
            mark = writer.savepoints.pop()
            writer.conn.execute(f"rollback to savepoint s{len(writer.savepoints)}".encode())
            writer.conn.execute(f"release savepoint s{len(writer.savepoints)}".encode())
            del writer.inserted[mark:]

    @rule(writer=writers, how=st.sampled_from(["commit", "commit", "rollback", "disconnect"]))
    def end(self, writer: Writer, how: str) -> None:
        if writer.conn.closed:
            return
        if how == "disconnect":
            writer.conn.close()
        elif writer.is_open:
            writer.conn.execute(how.encode())
            if how == "commit":
                self.unticked |= set(writer.inserted)
        writer.inserted, writer.savepoints, writer.is_open = [], [], False

    @rule(target=prepared, writer=writers)
    def prepare(self, writer: Writer) -> tuple[str, list[int]]:
        gid = ""
        inserted = writer.inserted
        if writer.is_open and not writer.conn.closed:
            gid = f"{self.db.name}_{self.queue}_{next(_names)}"
            writer.conn.execute(f"prepare transaction '{gid}'".encode())
            writer.inserted, writer.savepoints, writer.is_open = [], [], False
        return gid, inserted

    @rule(transaction=consumes(prepared), commit=st.booleans())
    def end_prepared(self, transaction: tuple[str, list[int]], commit: bool) -> None:
        gid, inserted = transaction
        if gid:
            self.db.main.execute(f"{'commit' if commit else 'rollback'} prepared '{gid}'".encode())
            self.unticked |= set(inserted) if commit else set()

    # Ticks and rotation

    @rule()
    def tick(self) -> None:
        self.db.tick(self.queue)
        self.ticks.append(self.unticked)
        self.unticked = set()

    @rule(times=st.integers(1, 3))
    def rotate(self, times: int) -> None:
        for _ in range(times):
            self.db.rotate(self.queue)

    # Consumers

    @rule(which=st.sampled_from([0, 1]), worker=st.sampled_from(["a", "b"]), max_ticks=st.integers(1, 3))
    def take(self, which: int, worker: str, max_ticks: int) -> None:
        consumer = self.consumers[which]
        name = None if which == 0 else worker
        row = self.db.next(consumer.name, self.queue, worker=name, max_ticks=max_ticks)
        self.check_taken(consumer, name or "", max_ticks, row)

    def check_taken(self, consumer: Consumer, holder: str, max_ticks: int, row: tuple[int, ...] | None) -> None:
        """Give the model's consumer what it should get, and compare."""
        if held := consumer.held.get(holder):
            assert row is not None
            assert row[0] == held.batch_id
            return
        if consumer.orphans:
            held = min(consumer.orphans, key=lambda orphan: (orphan.first, orphan.batch_id))
            consumer.orphans.remove(held)
        else:
            last = min(consumer.head + max_ticks, len(self.ticks))
            if last == consumer.head and not consumer.waiting:
                assert row is None
                return
            held = Held(0, consumer.head, last, consumer.waiting)
            consumer.head, consumer.waiting = last, []
        assert row is not None
        assert row[0] != held.batch_id
        held.batch_id = row[0]
        consumer.held[holder] = held
        assert row[3] == len(self.expected(held))

    def expected(self, held: Held) -> list[int]:
        return [number for tick in self.ticks[held.first : held.last] for number in tick] + held.retries

    def check_events(self, held: Held) -> list[tuple[int, int]]:
        rows = self.db.rows("select id, payload::text::int from cascade.batch_events(%s)", held.batch_id)
        assert sorted(row[1] for row in rows) == sorted(self.expected(held))
        assert [row[0] for row in rows] == sorted(row[0] for row in rows)
        return rows

    @rule(which=st.sampled_from([0, 1]), worker=st.sampled_from(["a", "b"]), put_back=st.booleans())
    def finish(self, which: int, worker: str, put_back: bool) -> None:
        consumer = self.consumers[which]
        if (held := consumer.held.pop(worker if which else "", None)) is not None:
            self.work(consumer, held, put_back)
            self.db.finish(held.batch_id)

    @rule(
        which=st.sampled_from([0, 1]),
        worker=st.sampled_from(["a", "b"]),
        max_ticks=st.integers(1, 3),
        put_back=st.booleans(),
        is_lost=st.booleans(),
    )
    def finish_and_take(self, which: int, worker: str, max_ticks: int, put_back: bool, is_lost: bool) -> None:
        """One step; asked once more, after a lost reply, it gives the same answer."""
        consumer = self.consumers[which]
        name = None if which == 0 else worker
        if (held := consumer.held.pop(name or "", None)) is not None:
            self.work(consumer, held, put_back)
            arguments = {"worker": name, "max_ticks": max_ticks, "finish": held.batch_id}
            row = self.db.next(consumer.name, self.queue, **arguments)
            self.check_taken(consumer, name or "", max_ticks, row)
            if is_lost:
                assert self.db.next(consumer.name, self.queue, **arguments) == row

    def work(self, consumer: Consumer, held: Held, put_back: bool) -> None:
        """Do what a handler does before it finishes."""
        rows = self.check_events(held)
        numbers = [row[1] for row in rows]
        if put_back and rows and consumer.retried < 5:
            consumer.retried += 1
            self.db.rows("select cascade.retry_event(%s, %s, '0')", held.batch_id, rows[0][0])
            consumer.waiting = [*consumer.waiting, numbers.pop(0)]
        consumer.seen += numbers
        consumer.finished.append(held.batch_id)

    @rule(worker=st.sampled_from(["a", "b"]), put_back=st.booleans())
    def give_back(self, worker: str, put_back: bool) -> None:
        consumer = self.consumers[1]
        held = consumer.held.pop(worker, None)
        if held is None:
            return
        rows = self.check_events(held)
        if put_back and rows:
            self.db.rows("select cascade.retry_event(%s, %s, '0')", held.batch_id, rows[0][0])
        self.db.rows("select cascade.release_batch(%s)", held.batch_id)
        consumer.orphans.append(held)

    @rule(which=st.sampled_from([0, 1]))
    def finish_again(self, which: int) -> None:
        """A lost reply: finishing the last finished batch once more changes nothing."""
        consumer = self.consumers[which]
        if consumer.finished:
            try:
                self.db.finish(consumer.finished[-1])
            except psycopg.Error as error:
                assert error.sqlstate == "QC203", "it may have been forgotten, by rotation"

    @invariant()
    def the_database_agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        for consumer in self.consumers:
            open_batches = [*consumer.held.values(), *consumer.orphans]
            position = min([held.first for held in open_batches], default=consumer.head)
            row = self.db.row(
                "select tick_id, lag_ticks, open_batches from cascade.consumers where queue = %s and consumer = %s",
                self.queue, consumer.name,
            )  # fmt: skip
            assert row == (position + 1, len(self.ticks) - position, len(open_batches))

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for writer in self.connections:
            writer.conn.close()
        for (gid,) in self.db.rows("select gid from pg_prepared_xacts where database = current_database()"):
            self.db.main.execute(f"rollback prepared '{gid}'".encode())
        self.db.tick(self.queue)
        self.ticks.append(self.unticked)
        committed = sorted(number for tick in self.ticks for number in tick)
        for consumer in self.consumers:
            for held in [*consumer.held.values()]:
                consumer.seen += [row[1] for row in self.check_events(held)]
                self.db.finish(held.batch_id)
            consumer.seen += self.db.drain(consumer.name, self.queue, worker="last")
            assert sorted(consumer.seen) == committed
        self.db.rows("select cascade.drop_queue(%s, true)", self.queue)


@pytest.fixture
def prepared_db(backends: Callable[..., Backend]) -> Iterator[Database]:
    with Database.fresh(backends(LABELS[0], max_prepared_transactions="20")) as database:
        database.backend.need_prepared()
        yield database


def run(db: Database, examples: int, steps: int) -> None:
    LogMachine.db = db
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        LogMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            print_blob=True,
            database=None,
        ),
    )


def test_the_log_agrees_with_the_model(prepared_db: Database) -> None:
    run(prepared_db, examples=25, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_log_agrees_with_the_model_for_long(prepared_db: Database, tell: Callable[[str], None]) -> None:
    run(prepared_db, examples=600, steps=80)
    tell("600 examples of up to 80 steps; one that fails prints how to repeat it")
