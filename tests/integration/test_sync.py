"""The synchronous client does what the asynchronous one does."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

import cascade.sync
from cascade import errors
from tests.fixtures.database import Database
from tests.fixtures.proxy import FaultProxy


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    return db


@pytest.fixture
def client(db: Database) -> cascade.sync.Client:
    return cascade.sync.connect(db.connect())


def test_publishing_and_reading(client: cascade.sync.Client) -> None:
    queue = client.queue("q")
    first = queue.publish({"id": 1}, type="t", key="k", headers={"h": 1})
    assert queue.publish_many(range(5)) == 5
    assert queue.publish_many(range(100)) == 100
    queue.tick()
    batch = queue.next_batch("c")
    assert batch is not None
    with batch:
        assert (batch[0].id, batch[0].payload, batch[0].headers) == (first, {"id": 1}, {"h": 1})
        assert [event.payload for event in batch][1:] == [*range(5), *range(100)]
    assert queue.next_batch("c") is None


def test_a_queue_takes_as_much_by_one_way_as_by_another(client: cascade.sync.Client) -> None:
    client.create_queue("small", payload_max_bytes=1000)
    queue = client.queue("small")
    fits, too_large = "é" * 499, "é" * 499 + "x"
    queue.publish(fits)
    for count in (3, 300):
        assert queue.publish_many([fits] * count) == count
        with pytest.raises(errors.PayloadSizeError, match="the queue takes 1000"):
            queue.publish_many([*range(count), too_large])
    with pytest.raises(errors.PayloadSizeError, match='queue "small" takes 1000'):
        queue.publish(too_large)
    client.alter_queue("small", payload_max_bytes=1001)
    assert queue.publish_many([too_large]) == 1


def test_a_stream_yields_batches_and_finishes_them(db: Database) -> None:
    with cascade.sync.connect(db.dsn) as client:
        queue = client.queue("q")
        for number in range(3):
            queue.publish(number)
            queue.tick()
        found = []
        for batch in queue.stream("c", max_ticks=1):
            with batch:
                found += [event.payload for event in batch]
            if len(found) == 3:
                break
        assert found == [0, 1, 2]
        assert queue.next_batch("c", worker="x") is None


def test_a_stream_passes_batches_without_events(db: Database) -> None:
    """Heartbeats of an idle queue, and control events of a set, make ticks that show consumers nothing."""
    with cascade.sync.connect(db.dsn) as client:
        queue = client.queue("q")
        for _ in range(3):
            queue.tick()
        queue.publish("after them")
        queue.tick()
        stream = queue.stream("c", max_ticks=1)
        assert [event.payload for event in next(stream)] == ["after them"]
        stream.close()


def test_a_stream_survives_the_loss_of_its_connection(db: Database) -> None:
    found: list[object] = []
    with cascade.sync.connect(db.dsn) as client:
        db.insert(0)
        db.tick()
        for batch in client.queue("q").stream("c", poll_s=0.1):
            with batch:
                found += [event.payload for event in batch]
            if len(found) == 5:
                break
            db.terminate("cascade/client")
            db.insert(len(found))
            db.tick()
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("statement", [b"tick_channel", b"listen ", b"next_batch", b"batch_events"])
def test_a_stream_survives_a_lost_reply(db: Database, statement: bytes) -> None:
    """Whichever statement it was: those by which a stream begins come again after each reconnect."""
    db.insert(1)
    db.tick()
    with FaultProxy.before(db.dsn) as proxy, cascade.sync.connect(proxy.dsn(db.dsn)) as client:
        proxy.lose_reply_to(statement)
        stream = client.queue("q").stream("c", poll_s=0.1, lease=timedelta(seconds=1))
        batch = next(stream)
        assert [event.payload for event in batch] == [1]
        batch.finish()
        stream.close()
        assert proxy.replies_lost == 1


def test_a_stream_goes_on_where_listening_is_refused(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """As some poolers do; it says so once, and not again after each reconnect."""
    db.insert(0)
    db.tick()
    found: list[object] = []
    with FaultProxy.before(db.dsn) as proxy, cascade.sync.connect(proxy.dsn(db.dsn)) as client:
        proxy.misspell(b"listen ")
        for batch in client.queue("q").stream("c", poll_s=0.1):
            with batch:
                found += [event.payload for event in batch]
            if len(found) == 3:
                break
            proxy.cut()
            db.insert(len(found))
            db.tick()
    assert found == [0, 1, 2]
    [said] = [record.message for record in caplog.records if "LISTEN" in record.message]
    assert said.startswith("queue q: LISTEN failed, so looking every 0.1 s: syntax error")


@pytest.mark.parametrize(("threshold", "expected"), [(None, False), (1, True)])
def test_statements_are_prepared_unless_the_client_says_otherwise(
    db: Database, threshold: int | None, expected: bool
) -> None:
    with cascade.sync.connect(db.dsn, prepare_threshold=threshold) as client:
        for _ in range(3):
            client.queue("q").publish(1)
        db.tick()
        for batch in client.queue("q").stream("c"):
            batch.finish()
            break
        assert bool(client.call("select count(*) from pg_prepared_statements")) is expected


def test_a_batch_lost_meanwhile_ends_the_stream_with_a_named_error(db: Database) -> None:
    with cascade.sync.connect(db.dsn) as client:
        queue = client.queue("q")
        queue.publish(1)
        queue.tick()
        with pytest.raises(errors.BatchLostError):
            for batch in queue.stream("c"):  # noqa: B007
                db.rows("select cascade.seek('q', 'c', 'now')")
        assert not batch.is_open


def test_leaving_a_stream_gives_the_batch_back(db: Database) -> None:
    with cascade.sync.connect(db.dsn) as client:
        queue = client.queue("q")
        queue.publish(1)
        queue.tick()
        for _ in queue.stream("c"):
            break
        batch = queue.next_batch("c", worker="x")
        assert batch is not None
        with pytest.raises(ZeroDivisionError), batch:
            raise ZeroDivisionError
        again = queue.next_batch("c", worker="y")
        assert again is not None
        assert [event.payload for event in again] == [1]


def test_effects_and_position_move_together(client: cascade.sync.Client, db: Database) -> None:
    db.main.execute("create table effect (x int)")
    queue = client.queue("q")
    queue.publish(1)
    queue.tick()
    batch = queue.next_batch("c")
    assert batch is not None
    with pytest.raises(ZeroDivisionError), batch.transaction() as conn:
        conn.execute("insert into effect values (1)")
        raise ZeroDivisionError
    with batch.transaction() as conn:
        conn.execute("insert into effect values (2)")
    assert db.rows("select x from effect") == [(2,)]
    with pytest.raises(errors.BatchFinishedError), batch.transaction():
        pass


def test_publishing_joins_the_callers_transaction(db: Database) -> None:
    with psycopg.connect(db.dsn) as conn:
        queue = cascade.sync.connect(conn).queue("q")
        queue.publish("no")
        conn.rollback()
        queue.publish("yes")
        conn.commit()
    db.tick()
    assert db.drain() == ["yes"]


def test_leases_and_retries(client: cascade.sync.Client) -> None:
    queue = client.queue("q")
    queue.publish_many(["good", "bad"])
    queue.tick()
    batch = queue.next_batch("c", worker="w", lease=timedelta(seconds=5))
    assert batch is not None
    batch.renew(timedelta(minutes=1))
    assert batch.retry(batch[1], after=timedelta(0)) == 2
    batch.finish()
    again = queue.next_batch("c", worker="w")
    assert again is not None
    assert [event.attempt for event in again] == [2]
    again.release()
    with pytest.raises(errors.BatchLostError):
        again.finish()


def test_administration(client: cascade.sync.Client) -> None:
    assert client.create_queue("x", tick_max_lag=timedelta(seconds=1)) is True
    assert client.create_queue("x", tick_max_lag="1 s") is False
    client.alter_queue("x", tick_max_events=5)
    queue = client.queue("x")
    assert queue.subscribe("c", at="earliest") == 1
    assert queue.seek("c", "now") == 1
    assert queue.publish(1, id=queue.reserve_id()) == 1
    assert queue.unsubscribe("c") is True
    with client.transaction():
        queue.publish(2)
    client.drop_queue("x")
