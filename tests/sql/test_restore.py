"""A dump restored into a fresh server goes on, although transactions count from less there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.work import Work

#: More transactions than a restore takes, which is one for every object of the schema.
AHEAD = 6000


@pytest.fixture
def fresh(backends: Callable[..., Backend]) -> Backend:
    """Another server, of the newest version, whose transaction counter is low."""
    found = backends(sorted(LABELS)[-1], max_prepared_transactions="20", application_name="fresh")
    found.need_another()
    return found


def dump(db: Database, path: Path) -> None:
    subprocess.run([db.backend.need_tool("pg_dump"), "--format=plain", f"--file={path}", db.dsn], check=True)


@pytest.fixture
def restore(fresh: Backend) -> Iterator[Callable[[Path], Database]]:
    """Restores a dump, as the owner, stopping at the first error."""
    with Database.fresh(fresh, with_schema=False) as target:

        def run(path: Path) -> Database:
            psql = fresh.need_tool("psql")
            # Only a newer pg_dump writes this, and it says nothing about our objects.
            script = "\n".join(line for line in path.read_text().splitlines() if "transaction_timeout" not in line)
            subprocess.run([psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", target.dsn], input=script, text=True, check=True)
            return target

        yield run


def age(db: Database, transactions: int) -> None:
    """Let the server's counter run ahead."""
    db.main.execute(
        b"do $$ begin for i in 1 .. %d loop perform txid_current(); commit; end loop; end $$" % transactions
    )


@pytest.fixture
def db(db: Database, fresh: Backend) -> Database:
    """A queue on a server that has counted further than the fresh one."""
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    with psycopg.connect(fresh.admin_dsn, autocommit=True) as conn:
        row = conn.execute("select txid_current()").fetchone()
    assert row is not None
    age(db, max(0, row[0] + AHEAD - db.value("select txid_current()")))
    return db


def test_a_restored_queue_goes_on(db: Database, restore: Callable[[Path], Database], tmp_path: Path) -> None:
    db.insert("ticked")
    db.tick()
    db.insert("unticked")
    late = db.connect(autocommit=False)
    db.insert("never committed", conn=late)
    db.tick()
    assert db.drain(max_ticks=1) == ["ticked", "unticked"]
    db.rows("select cascade.seek('q', 'c', '2')")
    db.insert("unticked too")
    dump(db, tmp_path / "dump.sql")
    late.rollback()
    last = db.value("select max(high) from cascade.ticks")

    new = restore(tmp_path / "dump.sql")
    assert new.value("select txid_current()") < last, "the test needs a server with a lower counter"
    new.insert("before the first tick")
    new.rows("select cascade.subscribe('q', 'fresh', 'earliest')")
    new.tick()
    new.insert("after the first tick")
    new.tick()
    assert new.drain() == ["unticked", "unticked too", "before the first tick", "after the first tick"]
    assert new.drain("fresh", max_ticks=100)[0] == "ticked"
    assert new.value("select bool_and(low > %s) from cascade.ticks where tick_id > 3", last) is True
    new.rotate_away()
    new.insert("after rotation")
    new.tick()
    assert new.drain() == ["after rotation"]


def test_events_inserted_while_the_counter_catches_up_are_not_lost(
    db: Database, restore: Callable[[Path], Database], tmp_path: Path
) -> None:
    """At the first tick the new counter is above the old one: only the server's identity tells."""
    db.insert("old")
    db.tick()
    assert db.drain(max_ticks=10) == ["old"]
    dump(db, tmp_path / "dump.sql")
    last = db.value("select max(high) from cascade.ticks")

    new = restore(tmp_path / "dump.sql")
    below = new.value("select txid_current()")
    assert below < last
    new.insert("early")
    age(new, last - below + 100)
    new.insert("late")
    assert new.value("select txid_current()") > last
    new.tick()
    assert new.drain(max_ticks=10) == ["early", "late"]


def test_a_reserved_id_waits_for_the_first_tick_after_a_restore(
    db: Database, restore: Callable[[Path], Database], tmp_path: Path
) -> None:
    reserved = db.value("select cascade.reserve_id('q')")
    db.insert("old")
    db.tick()
    dump(db, tmp_path / "dump.sql")

    new = restore(tmp_path / "dump.sql")
    # As after a long transaction on the old server: low is far below high.
    table = new.value("select 'cascade_internal.tick_' || queue_id || '_0' from cascade_internal.queue")
    new.main.execute(f"update {table} set low = 1")
    with refused("QC501", "was restored and has not ticked yet"):
        new.rows("select cascade.post('q', '\"reserved\"', id => %s)", reserved)
    new.tick()
    new.rows("select cascade.post('q', '\"reserved\"', id => %s)", reserved)
    new.tick()
    assert new.drain(max_ticks=10) == ["reserved", "old"]


def test_a_transaction_open_during_the_repair_comes_after_it(
    db: Database, restore: Callable[[Path], Database], tmp_path: Path
) -> None:
    db.tick()
    dump(db, tmp_path / "dump.sql")

    new = restore(tmp_path / "dump.sql")
    older = new.connect(autocommit=False)
    older.execute("select txid_current()")
    new.tick()
    new.insert("inserted by an older transaction", conn=older)
    older.commit()
    new.tick()
    assert new.drain(max_ticks=10) == ["inserted by an older transaction"]


def test_work_goes_on_where_it_was_dumped(db: Database, restore: Callable[[Path], Database], tmp_path: Path) -> None:
    """Events lie elsewhere then, sessions are gone, and registers may be ahead of the chunks."""
    work = Work(db, chunk_size=10)
    db.insert(*range(20))
    with db.main.transaction(force_rollback=True):
        db.insert(*range(100))
    work.publish(*range(20, 40))
    held = work.claim(10)
    work.complete(held[0].claim_id, held[0].id)
    work.fail(held[1], retry_in="1 hour")
    db.rows("select cascade.bury(%s, %s, 'bad')", held[2].claim_id, held[2].id)
    before = work.states()
    db.rows("select setval('cascade_internal.work_hint_' || %s, 1000000)", work.id)
    dump(db, tmp_path / "dump.sql")
    work.db = restore(tmp_path / "dump.sql")
    assert work.states() == before
    assert work.tend()["given back"] == 7
    assert sorted(work.drain()) == [*range(3, 40)]
    work.publish("later")
    assert work.drain() == ["later"]
    assert {*work.states().values()} == {"delayed", "dead"}
