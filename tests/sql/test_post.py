"""Posting: one event, many events, reserved ids; what cannot be posted is refused."""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures.database import Database
from tests.fixtures.expect import refused


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    return db


def test_post_returns_the_id_of_its_event(db: Database) -> None:
    first = db.value("select cascade.post('q', '{\"n\": 1}', 'order.paid', 'acme', '{\"h\": true}')")
    assert db.rows("select id, type, key, payload, headers, origin from queue.q") == [
        (first, "order.paid", "acme", {"n": 1}, {"h": True}, None)
    ]


def test_post_rolls_back_with_its_transaction(db: Database) -> None:
    with pytest.raises(ZeroDivisionError), db.main.transaction():
        db.value("select cascade.post('q', '1')")
        raise ZeroDivisionError
    db.tick()
    assert db.drain() == []


def test_post_many_returns_ids_in_input_order(db: Database) -> None:
    ids = db.value(
        "select cascade.post_many('q', array['\"a\"', '\"b\"', '\"c\"']::json[], type => 't', keys => '{x,y,z}')"
    )
    assert ids == sorted(ids)
    assert db.rows("select id, payload, type, key from queue.q order by id") == [
        (ids[0], "a", "t", "x"),
        (ids[1], "b", "t", "y"),
        (ids[2], "c", "t", "z"),
    ]
    assert db.value("select cascade.post_many('q', '{}')") == []


def test_post_many_refuses_lists_of_different_lengths(db: Database) -> None:
    with refused("QC003", "2 payloads, but 1 types"):
        db.rows("select cascade.post_many('q', array['1', '2']::json[], types => '{a}')")
    with refused("QC003", "4 payloads, but 2 types"):
        db.rows("select cascade.post_many('q', '{{1,2},{3,4}}', types => '{a,b}')")
    with refused("QC302", "payload is null"):
        db.rows("select cascade.post_many('q', array['1', null]::json[])")
    with refused("QC003", "list of payloads is null"):
        db.rows("select cascade.post_many('q', null)")
    assert db.value("select count(*) from queue.q") == 0


def test_a_reserved_id_can_be_posted_once(db: Database) -> None:
    reserved = db.value("select cascade.reserve_id('q')")
    later = db.value("select cascade.post('q', '\"later\"')")
    assert later > reserved
    db.tick()
    assert db.drain() == ["later"]
    assert db.value("select cascade.post('q', '\"reserved\"', id => %s)", reserved) == reserved
    with refused("QC205", f"id {reserved} is not reserved"):
        db.rows("select cascade.post('q', '1', id => %s)", reserved)
    with refused("QC205", "id 999 is not reserved"):
        db.rows("select cascade.post('q', '1', id => 999)")
    db.tick()
    assert db.drain() == ["reserved"]


def test_a_rolled_back_post_keeps_its_reservation(db: Database) -> None:
    reserved = db.value("select cascade.reserve_id('q')")
    with pytest.raises(ZeroDivisionError), db.main.transaction():
        db.value("select cascade.post('q', '1', id => %s)", reserved)
        raise ZeroDivisionError
    assert db.value("select cascade.post('q', '1', id => %s)", reserved) == reserved


def test_a_null_payload_is_refused_on_every_way_in(db: Database) -> None:
    with refused("QC302", "payload is null"):
        db.rows("select cascade.post('q', null)")
    with pytest.raises(psycopg.errors.NotNullViolation):
        db.main.execute("insert into queue.q (type) values ('t')")
    with pytest.raises(psycopg.errors.NotNullViolation):
        db.main.execute("insert into queue.q default values")
    assert db.value("select cascade.post('q', 'null')") is not None


def test_text_that_is_no_json_is_refused(db: Database) -> None:
    for text in ("", "{", "{'a': 1}", "NaN"):
        with refused("22P02", "invalid input syntax for type json", hint=False):
            db.rows("select cascade.post('q', %s::json)", text)


def test_a_payload_above_the_limit_is_refused(db: Database) -> None:
    with refused("QC303", "payload and headers have 104857"):
        db.rows("select cascade.post('q', to_json(repeat('x', 100 * 1024 * 1024)))")
    with refused("QC303"):
        db.rows("select cascade.post_many('q', array[to_json(repeat('x', 100 * 1024 * 1024))])")
    db.rows("select cascade.alter_queue('q', '{\"payload_max_bytes\": 100}')")
    with refused("QC303", 'queue "q" takes 100'):
        db.rows("select cascade.post('q', to_json(repeat('x', 100)))")
    assert db.value("select cascade.post('q', to_json(repeat('x', 80)))") is not None


def test_the_limit_is_of_what_the_text_has_however_it_is_stored(db: Database) -> None:
    """A payload that comes from a table may be compressed or stored beside it: neither makes it smaller or larger."""
    db.rows("select cascade.alter_queue('q', '{\"payload_max_bytes\": 10000}')")
    db.main.execute("create table kept (n int, payload json, headers json)")
    db.main.execute(
        "insert into kept select n, to_json(repeat('x', n - 2)), to_json(repeat('h', n - 2))"
        " from unnest(array[5000, 10000, 10001]) as n"
    )
    db.main.execute("create table apart (like kept)")
    db.main.execute("alter table apart alter payload set storage external, alter headers set storage external")
    db.main.execute("insert into apart select n, payload::text::json, headers::text::json from kept")
    assert db.value("select bool_and(pg_column_compression(payload) is not null) from kept")
    assert db.value("select bool_and(pg_column_compression(payload) is null) from apart")
    for table in ("kept", "apart"):
        for post in ("cascade.post('q', k.payload)", "cascade.post_many('q', array[k.payload])"):
            assert db.rows(f"select {post} from {table} as k where n = 10000")
            with refused("QC303", 'payload and headers have 10001 bytes, queue "q" takes 10000'):
                db.rows(f"select {post} from {table} as k where n = 10001")
        for post in ("cascade.post('q', k.payload", "cascade.post_many('q', array[k.payload]"):
            assert db.rows(f"select {post}, headers => k.headers) from {table} as k where n = 5000")
            with refused("QC303", "payload and headers have 10002 bytes"):
                db.rows(f"select {post}, headers => to_json(repeat('h', 5000))) from {table} as k where n = 5000")
    with refused("QC303", "payload and headers have 10003 bytes"):
        db.rows("select cascade.post('q', '11', headers => k.headers) from kept as k where n = 10001")
    with refused("QC303", "payload and headers have 10003 bytes"):
        db.rows(
            "select cascade.post_many('q', array['11']::json[], headers => k.headers) from kept as k where n = 10001"
        )
    assert db.value("select cascade.payload_limit('q')") == 10000


def test_payloads_are_kept_byte_for_byte(db: Database) -> None:
    texts = ['{"a" : 1,  "a":2}', '"\\u0000"', "1e400000", '"\\ud800"', "[ ]", '"' + "é\U0001f600" * 2000 + '"']
    for text in texts:
        db.rows("select cascade.post('q', %s::json)", text)
    db.tick()
    batch = db.next()
    assert batch is not None
    found = db.rows("select payload::text from cascade.batch_events(%s)", batch[0])
    assert [row[0] for row in found] == texts


def test_a_hundred_megabytes_inserted_plainly_arrive(db: Database) -> None:
    """The limit is of post(); the table itself takes what PostgreSQL takes."""
    db.main.execute("insert into queue.q (payload) select to_json(repeat('x', 100 * 1024 * 1024))")
    db.tick()
    batch = db.next()
    assert batch is not None
    assert db.value("select octet_length(payload::text) from cascade.batch_events(%s)", batch[0]) == 104857602


def test_types_of_control_events_are_refused(db: Database) -> None:
    with refused("QC003", "is reserved"):
        db.rows("select cascade.post('q', '1', 'cascade.tick')")
    with refused("QC003", "is reserved"):
        db.rows("select cascade.post_many('q', array['1']::json[], types => '{cascade.global-watermark}')")
