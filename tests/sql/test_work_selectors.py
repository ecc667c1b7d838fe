"""Selectors: a jsonpath decides which events are a consumer's messages; what it cannot read stops nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.messages import Work

#: (selector, the payloads of EVENTS that match)
MATCHES = [
    ("$.payload.n > 2", [3, 4]),
    ('$.type starts with "order." && $.payload.n < 4', [1, 3]),
    ('$.key == "acme"', [1, 2]),
    ("$.key == null", [4]),
    ("$.headers.vip", [2]),
    ("$.payload ? (@.n == 3)", [3]),
    ("exists($.payload.extra)", [4]),
    ("$.payload.extra", [4]),
    ("$.payload.n == true", []),
    ("1", [1, 2, 3, 4]),
    ("false", []),
    ("$.missing > 1", []),
    ("$.payload.n / 0 == 1", []),
    ('$.time > "2020-01-01T00:00:00Z" && $.time < "2100"', [1, 2, 3, 4]),
    ('$.time < "2020-01-01T00:00:00Z"', []),
    ('$.payload.n > 1 || $.payload.n.datetime() > "2020-01-01".datetime()', [2, 3, 4]),
    ("$.id >= 3", [3, 4]),
]
EVENTS = [
    ("order.paid", "acme", {"n": 1}, None),
    ("user.made", "acme", {"n": 2}, {"vip": True}),
    ("order.sent", "zenith", {"n": 3}, {"vip": False}),
    ("x", None, {"n": 4, "extra": [0]}, {"vip": None}),
]


def as_json(value: object) -> str | None:
    """Return a value as JSON; None is no JSON."""
    return None if value is None else json.dumps(value)


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    return db


def test_a_message_goes_to_the_consumers_whose_selector_it_matches(db: Database) -> None:
    """Plain messages and messages with options, in chunks and as rows."""
    works = [Work(db, f"c{n}", selector=selector) for n, (selector, _) in enumerate(MATCHES)]
    works += [Work(db, f"f{n}", selector=selector, max_active=100) for n, (selector, _) in enumerate(MATCHES)]
    for kind, key, payload, headers in EVENTS:
        db.main.execute(
            "insert into queue.q (type, key, payload, headers) values (%s, %s, %s, %s)",
            (kind, key, *map(as_json, (payload, headers))),
        )
    works[0].dispatch()
    for work, (selector, wanted) in zip(works, MATCHES * 2, strict=True):
        assert sorted(row[3]["n"] for row in work.claim(10)) == wanted, selector


@pytest.mark.parametrize("options", [{}, {"max_active": 100}], ids=["chunks", "rows"])
def test_what_jsonb_cannot_hold_matches_nothing_is_counted_and_stops_nobody(
    db: Database, options: dict[str, Any]
) -> None:
    work, every = Work(db, "some", selector="$.payload.n > 0", **options), Work(db, "every", **options)
    for payload in ('{"n": 1}', '{"n": 2, "x": "\\u0000"}', '{"n": 1e999999}', '{"n": 3}'):
        db.main.execute("insert into queue.q (payload) values (%s)", (payload,))
    work.dispatch()
    assert len(work.ids()) == 2
    assert len(every.ids()) == 4
    assert work.show("unreadable", "work_stats") == 2
    assert every.show("unreadable", "work_stats") == 0


BAD = [
    ("$.payload.n >> 2", 'at or near ">"', 14),
    ("$.payload.n >", "at end", 14),
    ("$.type starts wiht 1", "", 19),
    ("$.a == 1 && $.b ==== 1", "", 19),
    ("@.a == 1", "@ is not allowed", 1),
    ("", "", 1),
    ('$.a like_regex "("', "", 18),
    ("drop table x", "", 5),
    ("$.payload.n == $x", "no variables", 16),
]


def test_a_bad_selector_is_refused_with_the_place_of_its_error(db: Database) -> None:
    for selector, problem, place in BAD:
        with refused("QC232", "the selector is no jsonpath") as caught:
            Work(db, selector=selector)
        message = str(caught.value.diag.message_primary)
        assert problem in message
        assert message.endswith(f"at character {place}"), message
    with refused("QC232", "has 4001 characters"):
        Work(db, selector="$" + " " * 4000)
    assert db.value("select count(*) from cascade_internal.subscription") == 0
    Work(db, selector='$.type like_regex "^a$" && $.key == "$x"')
