"""Options of a message: checked when it is posted, carried in its headers, harmless when they are nonsense."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def test_options_travel_in_one_reserved_header(db: Database) -> None:
    first = db.value("select cascade.post('q', '1')")
    posted = db.value(
        "select cascade.post('q', '1', headers => '{\"trace\":  \"5f1c\" }', deliver_at => '2040-01-01 00:00+02',"
        " expires_at => '2041-01-01 00:00Z', priority => 1, after => array[%s::bigint], dedupe_key => 'k\"')",
        first,
    )
    text, found = db.rows("select headers::text, headers from queue.q where id = %s", posted)[0]
    assert text.startswith('{"trace":  "5f1c", "cascade.options": {'), "the other headers keep their bytes"
    assert found == {
        "trace": "5f1c",
        "cascade.options": {
            "deliver_at": "2039-12-31T22:00:00+00:00",
            "expires_at": "2041-01-01T00:00:00+00:00",
            "priority": 1,
            "after": [first],
            "dedupe_key": 'k"',
        },
    }
    assert db.row("select * from cascade_internal.message_options(%s, now())", text)[1:] == (  # type: ignore[index]
        db.value("select '2041-01-01 00:00Z'::timestamptz"),
        1,
        [first],
        None,
        'k"',
        None,
    )


def test_a_delay_is_a_time_to_come(db: Database) -> None:
    db.rows("select cascade.post('q', '1', delay => '1 hour', headers => '{}')")
    assert db.value(
        "select (headers->'cascade.options'->>'deliver_at')::timestamptz - now() between '59 minutes' and '1 hour'"
        " from queue.q"
    )


def test_a_message_without_options_carries_none(db: Database) -> None:
    db.rows("select cascade.post('q', '1'), cascade.post_many('q', array['1']::json[], headers => '[1]')")
    assert db.rows("select headers from queue.q order by id") == [(None,), ([1],)]


NONSENSE = [
    ("delay => '1 s', deliver_at => now()", "QC230", "both delay and deliver_at"),
    ("delay => '-1 s'", "QC230", "negative"),
    ("delay => '101 years'", "QC230", "more than 100 years"),
    ("deliver_at => 'infinity'", "QC230", "infinite"),
    ("expires_at => now() - interval '1 s'", "QC230", "expired already"),
    ("expires_at => now() + interval '1 h', delay => '2 h'", "QC230", "expires before it is to be delivered"),
    ("priority => 0", "QC230", "priority is 0: out of range"),
    ("priority => 5", "QC230", "priority is 5"),
    ("priority => 70000", "QC230", "priority is 70000"),
    ("after => '{null}'", "QC230", "null or below 1"),
    ("after => '{0}'", "QC230", "null or below 1"),
    ("after => array(select generate_series(1, 1001)::bigint)", "QC230", "more than 1000"),
    ("after => '{99}'", "QC231", "never handed out id 99"),
    ("after_in => '{\"nowhere\": [1]}'", "QC231", 'names queue "nowhere"'),
    ("after_in => '{\"other\": [1]}'", "QC231", 'queue "other" has never handed out id 1'),
    ("after_in => '{\"other\": 1}'", "QC230", "not a list"),
    ("after_in => '[1]'", "QC230", "after_in"),
    ("dedupe_key => ''", "QC230", "has 0 characters"),
    ("dedupe_key => repeat('x', 1001)", "QC230", "has 1001 characters"),
    ("dedupe_key => 'k', dedupe_for => '-1 s'", "QC230", "not positive"),
    ("dedupe_for => '1 s'", "QC230", "without dedupe_key"),
    ("priority => 1, headers => '[1]'", "QC230", "not a JSON object"),
    ("priority => 1, headers => '{\"cascade.options\": {}}'", "QC230", "as arguments and in the headers"),
    ('headers => \'{"cascade.options": {"priority": "x"}}\'', "QC230", 'priority is "x"'),
    ('headers => \'{"cascade.options": {"prio": 1}}\'', "QC230", 'no option "prio"'),
    ('headers => \'{"cascade.options": {"deliver_at": "tomorrow"}}\'', "QC230", "not a time with its zone"),
    ("headers => '{\"cascade.options\": 1}'", "QC230", "not a JSON object"),
]


def test_nonsense_is_refused(db: Database) -> None:
    db.queue("other")
    for arguments, sqlstate, message in NONSENSE:
        with refused(sqlstate, message):
            db.rows(f"select cascade.post('q', '1', {arguments})")
        if "dedupe" not in arguments:
            with refused(sqlstate, message):
                db.rows(f"select cascade.post_many('q', array['1']::json[], {arguments})")
    assert db.value("select count(*) from queue.q") == 0


def test_a_message_cannot_wait_for_itself(db: Database) -> None:
    reserved = db.value("select cascade.reserve_id('q')")
    with refused("QC231", f"message {reserved} would wait for itself"):
        db.rows("select cascade.post('q', '1', id => %s, after => array[%s::bigint])", reserved, reserved)


def test_what_an_insert_says_wrongly_is_a_problem_and_no_error(db: Database) -> None:
    """Every value in every place: what cannot be read leaves a plain message."""
    values = [
        "null",
        "1",
        '"x"',
        "[]",
        "{}",
        "true",
        "1e999999",
        '"\\u0000"',
        "[null]",
        '["x"]',
        '{"a": [0]}',
        "-1",
        '""',
    ]
    names = ["deliver_at", "delay", "expires_at", "priority", "after", "after_in", "dedupe_key", "unknown"]
    bad = 0
    for name in names:
        for value in values:
            headers = f'{{"cascade.options": {{"{name}": {value}}}}}'
            row = db.row("select * from cascade_internal.message_options(%s, now())", headers)
            assert row is not None
            if row[-1] is not None:
                bad += 1
                assert row[:-1] == (None, None, 3, None, None, None), (headers, row)
    assert bad > len(names) * len(values) / 2
    for headers in (
        '"cascade.options"',
        '["cascade.options"]',
        '{"a": "\\"cascade.options\\""}',
        '{"a": {"cascade.options": 1}}',
    ):
        assert db.row("select * from cascade_internal.message_options(%s, now())", headers) == (
            None,
            None,
            3,
            None,
            None,
            None,
            None,
        )


def test_a_duplicate_is_answered_with_the_first_id(db: Database) -> None:
    post = "select cascade.post('q', %s, dedupe_key => %s, dedupe_for => '1 hour')"
    first = db.value(post, "1", "a")
    assert db.value(post, "2", "a") == first
    other = db.value(post, "3", "b")
    assert other != first
    reserved = db.value("select cascade.reserve_id('q')")
    by_id = "select cascade.post('q', '4', id => %s, dedupe_key => %s)"
    assert db.value(by_id, reserved, "a") == first
    assert db.value(by_id, reserved, "c") == reserved, "the reservation was not used up by the duplicate"
    assert db.value(post, "5", "c") == reserved
    assert db.rows("select id, payload from queue.q order by id") == [(first, 1), (other, 3), (reserved, 4)]
    db.main.execute("update cascade_internal.work_dedupe set until = now() where dedupe_key = 'a'")
    again = db.value(post, "6", "a")
    assert again != first, "the window is over"
    assert db.value(post, "7", "a") == again


def test_post_many_leaves_duplicates_out(db: Database) -> None:
    first = db.value("select cascade.post('q', '0', dedupe_key => 'a')")
    ids = db.value(
        "select cascade.post_many('q', array['1', '2', '3', '4', '5']::json[], keys => '{v,w,x,y,z}', priority => 2,"
        " dedupe_keys => '{b,a,null,b,c}')"
    )
    assert ids[1] == first and ids[0] == ids[3]
    assert db.rows("select payload, key, headers->'cascade.options' from queue.q order by id offset 1") == [
        (1, "v", {"priority": 2, "dedupe_key": "b"}),
        (3, "x", {"priority": 2}),
        (5, "z", {"priority": 2, "dedupe_key": "c"}),
    ]
    with refused("QC003", "2 payloads, but 1 dedupe_keys"):
        db.rows("select cascade.post_many('q', array['1', '2']::json[], dedupe_keys => '{a}')")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_of_two_posts_at_once_one_counts(db: Database, ends: str) -> None:
    """The second waits for the first to end; it is a duplicate of one that counts, and counts itself otherwise."""
    one, two = db.connect(autocommit=False), db.connect()
    post = "select cascade.post('q', %s, dedupe_key => 'k')"
    first = one.execute(post, ("1",)).fetchone()
    found: list[Any] = []
    racer = threading.Thread(target=lambda: found.append(two.execute(post, ("2",)).fetchone()))
    racer.start()
    eventually(
        lambda: db.value(
            "select true from pg_stat_activity where pid = %s and wait_event = 'transactionid'", two.info.backend_pid
        )
    )
    one.execute(ends)
    racer.join(30)
    assert (found == [first]) == (ends == "commit")
    assert db.rows("select payload from queue.q") == [(1 if ends == "commit" else 2,)]


def test_the_janitor_forgets_keys_whose_window_is_over(db: Database) -> None:
    db.rows("select cascade.post('q', '1', dedupe_key => i::text) from generate_series(1, 5) as i")
    db.main.execute("update cascade_internal.work_dedupe set until = now() - interval '1 s' where dedupe_key <= '3'")
    assert db.value("select cascade_internal.forget_keys(now())") == 3
    assert db.rows("select dedupe_key from cascade_internal.work_dedupe order by 1") == [("4",), ("5",)]
