"""Queues: made, listed, changed, dropped; names and options that cannot be are refused."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.database import Database
from tests.fixtures.expect import refused


def test_a_queue_is_a_table_that_takes_plain_inserts(db: Database) -> None:
    db.queue("Orders-EU_2")
    db.main.execute("""insert into queue."Orders-EU_2" (type, payload) values ('a', '{"n": 1}'), ('b', '2')""")
    db.main.execute("""insert into queue."Orders-EU_2" (payload) select to_json(n) from generate_series(1, 3) n""")
    with db.main.cursor() as cur, cur.copy('copy queue."Orders-EU_2" (type, payload) from stdin') as copy:
        copy.write_row(("d", "[1, 2]"))
    rows = db.rows('select id, type, payload::text from queue."Orders-EU_2" order by id')
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0][2] == '{"n": 1}'


def test_the_columns_are_those_of_the_interface(db: Database) -> None:
    db.queue()
    columns = db.rows(
        "select attname from pg_attribute where attrelid = 'queue.q'::regclass and attnum > 0 order by attnum"
    )
    assert [row[0] for row in columns] == [
        "id", "time", "txid", "slot", "type", "key", "payload", "headers", "origin", "origin_id",
    ]  # fmt: skip


def test_the_only_index_is_on_txid(db: Database) -> None:
    db.queue()
    found = db.rows("select distinct split_part(indexdef, 'USING ', 2) from pg_indexes where tablename like 'event_%'")
    assert found == [("btree (txid)",)]


def test_the_schema_queue_holds_tables_and_nothing_else(db: Database) -> None:
    db.queue()
    assert db.rows("select relname, relkind::text from pg_class where relnamespace = 'queue'::regnamespace") == [
        ("q", "p")
    ]


def test_creating_a_queue_twice_changes_nothing(db: Database) -> None:
    assert db.value("select cascade.create_queue('q', %s)", Jsonb({"tick_max_lag": "1 s"})) is True
    assert db.value("select cascade.create_queue('q', %s)", Jsonb({"tick_max_lag": "00:00:01"})) is False
    with refused("QC201", 'queue "q" exists already'):
        db.rows("select cascade.create_queue('q', %s)", Jsonb({"tick_max_lag": "2 s"}))


def test_two_creations_at_once_make_one_queue(db: Database) -> None:
    first, second = db.connect(), db.connect(autocommit=False)
    second.execute("select cascade.create_queue('q')")
    first.execute("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        first.execute("select cascade.create_queue('q')")
    second.commit()
    assert first.execute("select cascade.create_queue('q')").fetchone() == (False,)


@pytest.mark.parametrize(
    "name",
    ["", "-x", "a b", "a.b", 'a"b', "a'b", "x; drop table y; --", "é", "a\nb", "x" * 41, ".x", "queue.q", "a/b"],
)
def test_a_name_that_cannot_be_a_queue_is_refused(db: Database, name: str) -> None:
    with refused("QC001", "queue name"):
        db.rows("select cascade.create_queue(%s)", name)
    assert db.rows("select * from cascade.queues") == []


@pytest.mark.parametrize("name", ["q", "Q", "UPPER", "with-hyphen", "_x", "9", "select", "user", "x" * 40])
def test_every_other_name_works_everywhere(db: Database, name: str) -> None:
    db.queue(name)
    db.rows("select cascade.subscribe(%s, 'c')", name)
    assert db.value("select cascade.post(%s, '1')", name) == 1
    db.tick(name)
    assert db.drain(queue=name) == [1]
    db.rows("select cascade.unsubscribe(%s, 'c')", name)
    db.rows("select cascade.drop_queue(%s)", name)
    assert db.rows("select * from cascade.queues") == []


def test_names_are_case_sensitive(db: Database) -> None:
    db.queue("q")
    with refused("QC101", 'no queue "Q"'):
        db.tick("Q")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonsense": 1}, "no option nonsense"),
        ({"tick_max_events": 0}, "tick_max_events is 0, out of range"),
        ({"tick_max_events": 1.5}, "out of range"),
        ({"tick_max_events": "many"}, "'many', which is no number"),
        ({"tick_max_lag": "soon"}, "'soon', which is no interval"),
        ({"tick_max_lag": "-1 s"}, "tick_max_lag is negative"),
        ({"rotation_period": "300000 years"}, "rotation_period is more than 100 years"),
        ({"slots": 2}, "slots is 2, out of range"),
        ({"slots": None}, "slots is null"),
        ([], "not a JSON object"),
        ({"tick_idle": "never", "x": 1}, "there is no option x"),
    ],
)
def test_options_that_cannot_be_are_refused_all_at_once(db: Database, options: object, message: str) -> None:
    with refused("QC002", message):
        db.rows("select cascade.create_queue('q', %s)", Jsonb(options))
    assert db.value("select to_regclass('queue.q')") is None


def test_numbers_may_be_written_in_any_way(db: Database) -> None:
    db.queue(tick_max_events="5e2", slots=3.0)
    assert db.value("select options->>'tick_max_events' from cascade.queues") == "500"


def test_options_can_be_changed_one_by_one(db: Database) -> None:
    db.queue(tick_max_events=7)
    db.rows("select cascade.alter_queue('q', %s)", Jsonb({"tick_max_lag": "2 s"}))
    options = db.value("select options from cascade.queues")
    assert (options["tick_max_events"], options["tick_max_lag"]) == (7, "00:00:02")
    with refused("QC002", "slots can only be chosen when the queue is created"):
        db.rows("select cascade.alter_queue('q', %s)", Jsonb({"slots": 4}))


def test_a_queue_with_consumers_is_dropped_only_by_force(db: Database) -> None:
    numbered = (
        "select relname from pg_class where relnamespace = 'cascade_internal'::regnamespace"
        " and relname ~ '_[0-9]+(_[0-9]+)?$' and relkind in ('r', 'p', 'S') order by 1"
    )
    before = db.rows(numbered)
    db.queue()
    db.rows("select cascade.subscribe('q', 'billing')")
    with refused("QC202", "has consumers: billing"):
        db.rows("select cascade.drop_queue('q')")
    with refused("QC202"):
        db.rows("select cascade.drop_queue('q', null)")
    db.insert(1)
    assert len(db.rows(numbered)) > len(before)
    db.rows("select cascade.drop_queue('q', true)")
    assert db.rows(numbered) == before


@pytest.mark.parametrize("slots", [3, 5, 10])
def test_a_queue_may_have_more_partitions(db: Database, slots: int) -> None:
    db.queue(slots=slots)
    for _ in range(slots + 1):
        db.insert(1)
        db.rotate_away()
    assert db.value("select slots from cascade.rotation") == slots


@pytest.mark.parametrize(
    "call",
    [
        "cascade.tick('nope')",
        "cascade.drop_queue('nope')",
        "cascade.alter_queue('nope', '{}')",
        "cascade.post('nope', '1')",
        "cascade.post_many('nope', '{}')",
        "cascade.reserve_id('nope')",
        "cascade.payload_limit('nope')",
        "cascade.subscribe('nope', 'c')",
        "cascade.unsubscribe('nope', 'c')",
        "cascade.next_batch('nope', 'c')",
        "cascade.seek('nope', 'c', 'now')",
        "cascade.rotate('nope')",
        "cascade.tick_channel('nope')",
        "cascade.grant_producer('nope', 'x')",
        "cascade.grant_consumer('nope', 'c', 'x')",
    ],
)
def test_an_unknown_queue_is_named(db: Database, call: str) -> None:
    with refused("QC101", 'there is no queue "nope"'):
        db.rows(f"select {call}")
    if "rotate" not in call:  # rotate(null) rotates every queue
        with refused("QC003", "the queue name is null"):
            db.rows(f"select {call}".replace("'nope'", "null::text"))
