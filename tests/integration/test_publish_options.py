"""Options of messages as both clients pass them: the same header, whichever way an event is published."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta

import pytest

import cascade
import cascade.sync
from cascade.errors import ArgumentError, CascadeError
from tests.fixtures.database import Database

EXPIRES = dt.datetime(2130, 1, 1, tzinfo=dt.UTC)
STORED = "select headers->'cascade.options' from queue.q where id = %s"


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.queue("other")
    return db


async def test_both_clients_pass_every_option(db: Database) -> None:
    with cascade.sync.connect(db.dsn) as client:
        first = client.queue("q").publish({"n": 1}, priority="urgent", headers={"trace": 1})
        elsewhere = client.queue("other").publish({"n": 1})
    assert db.value(STORED, first) == {"priority": 1}
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        found = await queue.publish({"n": 2}, deliver_at=EXPIRES, expires_at=EXPIRES + timedelta(1), after=[first])
        stored = db.value(STORED, found)
        assert stored["after"] == [first]
        assert [dt.datetime.fromisoformat(stored[name]) for name in ("deliver_at", "expires_at")] == [
            EXPIRES,
            EXPIRES + timedelta(1),
        ]
        found = await queue.publish({"n": 3}, delay=timedelta(minutes=5), after={"other": [elsewhere]}, priority=4)
        stored = db.value(STORED, found)
        assert (stored["after_in"], stored["priority"]) == ({"other": [elsewhere]}, 4)
        wait = dt.datetime.fromisoformat(stored["deliver_at"]) - dt.datetime.now(dt.UTC)
        assert timedelta(minutes=4) < wait <= timedelta(minutes=5)


async def test_a_message_published_twice_is_one(db: Database) -> None:
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        first = await queue.publish({"n": 1}, dedupe_key="k")
        assert await queue.publish({"n": 2}, dedupe_key="k", dedupe_for=timedelta(hours=1)) == first
        assert await queue.publish({"n": 3}, dedupe_key="another") != first
    assert db.value("select count(*) from queue.q") == 2


@pytest.mark.parametrize("copies", [1, 100], ids=["insert", "copy"])
async def test_messages_carry_options_in_bulk(db: Database, copies: int) -> None:
    options = cascade.Options(expires_at=EXPIRES, delay=timedelta(seconds=1.5), priority="low", after={"other": [3]})
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        message = cascade.Message({"n": 1}, headers={"trace": 1}, options=options)
        assert await queue.publish_many([message] * copies) == copies
        with pytest.raises(ArgumentError, match="publish_many cannot look for duplicates"):
            await queue.publish_many([cascade.Message(1, options=cascade.Options(dedupe_key="k"))])
    wanted = {"expires_at": EXPIRES.isoformat(), "delay": "1.5 seconds", "priority": 4, "after_in": {"other": [3]}}
    assert db.rows("select distinct headers::text::jsonb from queue.q") == [({"trace": 1, "cascade.options": wanted},)]


async def test_an_option_that_makes_no_sense_is_refused(db: Database) -> None:
    async with cascade.connect(db.dsn) as client:
        with pytest.raises(CascadeError, match="priority"):
            await client.queue("q").publish({"n": 1}, priority=7)
    assert db.value("select count(*) from queue.q") == 0
