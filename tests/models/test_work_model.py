"""Work mode beside a few lines of plain Python: whatever workers do, in whatever order, both agree.

Messages are published, plain ones and such as have a row of their own; workers claim, complete in parts, fail, bury,
give back, lose their lease or their session, consume and roll back; messages are taken, buried, replayed and purged
by id; the table is rewritten, the log rotates, and consumers are tended, at any moment.  The model keeps one word
per message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database
from tests.fixtures.work import Message, Work

_names = itertools.count()
MOST = 3
WORKERS = st.integers(0, 2)


class Worker:
    """A session and what it believes to hold."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.claims: dict[int, set[int]] = {}


class WorkMachine(RuleBasedStateMachine):
    """Drives the database and the model side by side."""

    db: Database
    admin: psycopg.Connection[Any]

    @initialize()
    def begin(self) -> None:
        name = f"w{next(_names)}"
        self.db.queue(name)
        self.work = Work(self.db, queue=name, chunk_size=7, max_attempts=MOST, backoff="constant", backoff_delay="0 s")
        self.workers = [Worker(self.db.connect()) for _ in range(3)]
        self.attempts: dict[int, int] = {}
        self.states: dict[int, str] = {}

    # What happens

    @rule(count=st.integers(1, 25), urgent=st.booleans())
    def publish(self, count: int, urgent: bool) -> None:
        query = "select unnest(cascade.post_many(%s, array_fill('0'::json, array[%s]), priority => %s))"
        for (id,) in self.db.rows(query, self.work.queue, count, 1 if urgent else None):
            self.states[id], self.attempts[id] = "waiting", 0
        self.db.tick(self.work.queue)

    @rule(number=WORKERS, count=st.integers(1, 12))
    def claim(self, number: int, count: int) -> None:
        worker = self.workers[number]
        messages = self.work.claim(count, conn=worker.conn)
        assert len(messages) == min(count, len(self.ids("waiting"))), "nothing that is free is overlooked"
        if messages:
            self.check(messages)
            assert messages[0].claim_id is not None
            worker.claims[messages[0].claim_id] = {message.id for message in messages}

    @rule(number=WORKERS, data=st.data(), whole=st.booleans())
    def complete(self, number: int, data: st.DataObject, whole: bool) -> None:
        for claim, ids in self.draw(number, data, whole):
            assert self.work.complete(claim, *([] if whole else ids)) == len(ids)
            self.end(number, claim, ids, "done")

    @rule(number=WORKERS, data=st.data(), how=st.sampled_from(["fail", "bury"]))
    def give_up(self, number: int, data: st.DataObject, how: str) -> None:
        for claim, ids in self.draw(number, data, False):
            for id in ids:
                self.db.rows(f"select cascade.{how}(%s, %s, 'x')", claim, id)
                is_dead = how == "bury" or self.attempts[id] >= MOST
                self.end(number, claim, [id], "dead" if is_dead else "waiting")

    @rule(number=WORKERS, data=st.data(), whole=st.booleans())
    def release(self, number: int, data: st.DataObject, whole: bool) -> None:
        for claim, ids in self.draw(number, data, whole):
            given = self.db.value("select cascade.release(%s, %s)", claim, None if whole else ids)
            assert given == len(ids)
            self.end(number, claim, ids, "waiting")
            for id in ids:
                self.attempts[id] -= 1

    @rule(number=WORKERS, data=st.data())
    def lose_a_lease(self, number: int, data: st.DataObject) -> None:
        for claim, ids in self.draw(number, data, True):
            self.db.main.execute(
                "update cascade_internal.work_claim set until = '-infinity' where claim_id = %s", (claim,)
            )
            assert self.work.tend()["given back"] == len(ids)
            self.lose(number, claim, ids)
            with pytest.raises(psycopg.Error, match="is over"):
                self.work.complete(claim)

    @rule(number=WORKERS)
    def die(self, number: int) -> None:
        worker = self.workers[number]
        self.admin.execute("select pg_terminate_backend(%s, 10000)", (worker.conn.info.backend_pid,))
        worker.conn.close()
        expected = sum(len(ids) for ids in worker.claims.values())
        assert self.work.tend().get("given back", 0) == expected
        for claim, ids in [*worker.claims.items()]:
            self.lose(number, claim, [*ids])
        self.workers[number] = Worker(self.db.connect())

    @rule(number=WORKERS, count=st.integers(1, 12), keep=st.booleans())
    def consume(self, number: int, count: int, keep: bool) -> None:
        conn, query = self.workers[number].conn, "select id from cascade.consume(%s, %s, %s)"
        with conn.transaction(force_rollback=not keep):
            rows = conn.execute(query.encode(), (self.work.queue, self.work.consumer, count)).fetchall()
        assert len(rows) == min(count, len(self.ids("waiting")))
        for (id,) in rows:
            assert self.states[id] == "waiting"
            if keep:
                self.states[id] = "done"

    @rule(data=st.data(), how=st.sampled_from(["take", "cancel", "bury", "release", "purge"]))
    def manage(self, data: st.DataObject, how: str) -> None:
        if not self.states:
            return
        id = data.draw(st.sampled_from(sorted(self.states)))
        state, name = self.states[id], self.work.queue
        if how == "take":
            if state == "active":
                return
            found = self.db.rows("select id from cascade.take(%s, %s, '0 s')", name, id)
            assert bool(found) == (state == "waiting")
            self.states[id] = "done" if found else state
        elif how == "cancel":
            assert self.db.value("select cascade.cancel(%s, %s)", name, id) == (state == "waiting")
            self.states[id] = "done" if state == "waiting" else state
        else:
            call = {"bury": "bury_message", "release": "release_message", "purge": "purge_work"}[how]
            count = self.db.value(f"select cascade.{call}(%s, 'w', %s)", name, [id])
            assert count == (state == ("active" if how == "release" else "waiting"))
            if count and how == "release":
                [(number, claim)] = [
                    (n, claim) for n, w in enumerate(self.workers) for claim, ids in w.claims.items() if id in ids
                ]
                self.end(number, claim, [id], "waiting")
                self.attempts[id] -= 1
            elif count:
                self.states[id] = "dead" if how == "bury" else "done"

    @rule()
    def replay(self) -> None:
        dead = self.ids("dead")
        assert self.db.value("select cascade.replay(%s, 'w')", self.work.queue) == len(dead)
        for id in dead:
            self.states[id], self.attempts[id] = "waiting", 0

    @rule()
    def rotate(self) -> None:
        for _ in range(3):
            self.work.tend()
            self.db.tick(self.work.queue)
            self.db.rows("select * from cascade.dispatch_work()")
            self.db.rotate(self.work.queue)

    @rule()
    def rewrite(self) -> None:
        for (table,) in self.db.rows(
            "select c.oid::regclass::text from pg_inherits as i join pg_class as c on c.oid = i.inhrelid"
            " where i.inhparent = format('queue.%%I', %s::text)::regclass",
            self.work.queue,
        ):
            self.db.main.execute(f"vacuum full {table}".encode())

    # What must hold

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "work"):
            return
        self.db.rows("select * from cascade.dispatch_work()")
        assert self.work.states() == {id: state for id, state in self.states.items() if state != "done"}
        claims = {claim for worker in self.workers for claim in worker.claims}
        assert {row[0] for row in self.db.rows("select claim_id from cascade_internal.work_claim")} == claims

    def teardown(self) -> None:
        if not hasattr(self, "work"):
            return
        for number in range(3):
            self.die(number)
        while messages := self.work.claim(100):
            self.check(messages)
            self.work.complete(messages[0].claim_id)
            for message in messages:
                self.states[message.id] = "done"
        assert {*self.states.values()} <= {"done", "dead"}, "nothing is lost"
        for worker in self.workers:
            worker.conn.close()
        self.db.rows("select cascade.drop_queue(%s, true)", self.work.queue)

    # The model

    def ids(self, state: str) -> list[int]:
        return [id for id, is_so in self.states.items() if is_so == state]

    def check(self, messages: list[Message]) -> None:
        """Nobody else has what a worker was given, and it knows which attempt it is."""
        for message in messages:
            assert self.states[message.id] == "waiting", "one at a time, and never again when it is done"
            self.states[message.id] = "active"
            self.attempts[message.id] += 1
            assert message.attempt == self.attempts[message.id]

    def draw(self, number: int, data: st.DataObject, whole: bool) -> Iterator[tuple[int, list[int]]]:
        """Choose a claim of a worker, and some or all of what it holds."""
        claims = self.workers[number].claims
        if claims:
            claim = data.draw(st.sampled_from(sorted(claims)))
            ids = sorted(claims[claim])
            yield claim, ids if whole else data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))

    def end(self, number: int, claim: int, ids: list[int], state: str) -> None:
        """Messages leave a claim."""
        held = self.workers[number].claims[claim]
        held.difference_update(ids)
        if not held:
            del self.workers[number].claims[claim]
        for id in ids:
            self.states[id] = state

    def lose(self, number: int, claim: int, ids: list[int]) -> None:
        """A claim ends without its holder."""
        for id in ids:
            self.end(number, claim, [id], "dead" if self.attempts[id] >= MOST else "waiting")


@pytest.fixture
def lonely(backends: Callable[..., Backend]) -> Iterator[Database]:
    with Database.fresh(backends(LABELS[0], max_prepared_transactions="20")) as database:
        yield database


def run(db: Database, examples: int, steps: int) -> None:
    WorkMachine.db, WorkMachine.admin = db, db.admin()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        WorkMachine,
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


def test_work_agrees_with_the_model(lonely: Database) -> None:
    run(lonely, examples=10, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_work_agrees_with_the_model_for_long(lonely: Database, tell: Callable[[str], None]) -> None:
    run(lonely, examples=500, steps=60)
    tell("500 examples of up to 60 steps; one that fails prints how to repeat it")
