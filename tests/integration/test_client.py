"""The asynchronous client: publishing, transactions, payloads, errors."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from dataclasses import dataclass, field

import psycopg
import pytest

import cascade
from cascade import errors
from tests.fixtures.database import Database


@pytest.fixture
def db(db: Database) -> Database:
    db.queue()
    db.rows("select cascade.subscribe('q', 'c')")
    return db


@pytest.fixture
async def client(db: Database) -> cascade.Client:
    return await cascade.connect(db.dsn)


@pytest.fixture(autouse=True)
async def closing(client: cascade.Client) -> object:
    yield
    await client.close()


async def read(client: cascade.Client, queue: cascade.Queue[object] | None = None) -> list[cascade.Event[object]]:
    queue = queue or client.queue("q")
    await queue.tick()
    batch = await queue.next_batch("c", max_ticks=100)
    assert batch is not None
    async with batch:
        return list(batch)


async def test_an_event_arrives_as_it_was_published(client: cascade.Client) -> None:
    queue = client.queue("q")
    event_id = await queue.publish({"id": 7}, type="order.paid", key="acme", headers={"trace": "x"})
    [event] = await read(client)
    assert (event.id, event.type, event.key, event.payload, event.headers, event.attempt) == (
        event_id, "order.paid", "acme", {"id": 7}, {"trace": "x"}, 1,
    )  # fmt: skip
    assert event.time.tzinfo is not None
    assert (event.origin, event.origin_id) == (None, None)
    assert event.payload_text == '{"id":7}'


PAYLOADS = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "text",
    [],
    {},
    [1, [2, {"a": None}]],
    "\u0000\ud7ff\U0001f600",
    'tab\t"\\n\n\r',
]


async def test_any_json_value_is_a_payload(client: cascade.Client) -> None:
    queue = client.queue("q")
    for payload in PAYLOADS:
        await queue.publish(payload)
    assert [event.payload for event in await read(client)] == PAYLOADS


@pytest.mark.parametrize("copies", [1, 10], ids=["by INSERT", "by COPY"])
async def test_many_events_arrive_as_they_were_published(client: cascade.Client, copies: int) -> None:
    messages = [cascade.Message(payload, type="t\t\\N", key=None, headers={"n": 1}) for payload in PAYLOADS] * copies
    assert await client.queue("q").publish_many(messages) == len(messages)
    events = await read(client)
    assert [event.payload for event in events] == PAYLOADS * copies
    assert {(event.type, event.key, event.headers["n"]) for event in events} == {("t\t\\N", None, 1)}


@pytest.mark.parametrize("count", [3, 300], ids=["by INSERT", "by COPY"])
async def test_many_events_are_published_all_or_none(client: cascade.Client, db: Database, count: int) -> None:
    with pytest.raises(errors.PayloadError, match="not JSON"):
        await client.queue("q").publish_many([*range(count), math.nan])
    with pytest.raises(errors.ArgumentError, match="is reserved"):
        await client.queue("q").publish_many([*range(count), cascade.Message(1, type="cascade.tick")])
    assert db.value("select count(*) from queue.q") == 0
    assert await client.queue("q").publish_many([]) == 0
    assert await client.queue("q").publish_many(range(count)) == count


async def test_a_queue_takes_as_much_by_one_way_as_by_another(client: cascade.Client, db: Database) -> None:
    await client.create_queue("small", payload_max_bytes=1000)
    queue = client.queue("small")
    fits, too_large = "é" * 499, "é" * 499 + "x"
    await queue.publish(fits)
    assert await queue.publish_many([fits] * 3) == 3
    assert await queue.publish_many([fits] * 300) == 300
    for events in ([too_large], [*range(300), too_large], [cascade.Message(fits, headers={})] * 300):
        with pytest.raises(errors.PayloadSizeError, match="the queue takes 1000"):
            await queue.publish_many(events)
    with pytest.raises(errors.PayloadSizeError, match='queue "small" takes 1000'):
        await queue.publish(too_large)
    assert db.value("select count(*) from queue.small") == 304
    await client.alter_queue("small", payload_max_bytes=1001)
    assert await queue.publish_many([too_large]) == 1


@pytest.mark.parametrize("payload", [math.nan, math.inf, object(), {1, 2}, b"bytes"])
async def test_what_is_no_json_is_refused_before_it_is_sent(client: cascade.Client, payload: object) -> None:
    with pytest.raises(errors.PayloadError, match="not JSON"):
        await client.queue("q").publish(payload)


async def test_publishing_joins_the_callers_transaction(db: Database) -> None:
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
        queue = (await cascade.connect(conn)).queue("q")
        await conn.execute("create table app (x int)")
        await queue.publish("rolled back")
        await queue.publish_many(range(100))
        await conn.rollback()
        assert db.value("select to_regclass('app')") is None
        await queue.publish("committed")
        await conn.commit()
        db.tick()
        assert db.drain() == ["committed"]
        with pytest.raises(errors.ConfigError, match="connections of its own"):
            queue.stream("c")


async def test_finishing_joins_the_callers_transaction(client: cascade.Client, db: Database) -> None:
    db.main.execute("create table done (payload json)")
    queue = client.queue("q")
    await queue.publish(1)
    await queue.tick()
    batch = await queue.next_batch("c")
    assert batch is not None
    async with await psycopg.AsyncConnection.connect(db.dsn) as conn:
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("insert into done values ('1')")
                await batch.finish(conn)
                raise ZeroDivisionError
    assert db.value("select count(*) from done") == 0
    again = await queue.next_batch("c")
    assert again is not None
    async with again.transaction() as conn:
        await conn.execute("insert into done values ('1')")
    assert await queue.next_batch("c") is None
    assert db.value("select count(*) from done") == 1
    with pytest.raises(errors.BatchFinishedError):
        async with batch.transaction() as conn:
            await conn.execute("insert into done values ('2')")
    assert db.value("select count(*) from done") == 1, "the effects of a batch are there once"


async def test_a_batch_is_given_back_on_error(client: cascade.Client) -> None:
    queue = client.queue("q")
    await queue.publish(1)
    await queue.tick()
    batch = await queue.next_batch("c", worker="a")
    assert batch is not None
    with pytest.raises(ZeroDivisionError):
        async with batch:
            raise ZeroDivisionError
    again = await queue.next_batch("c", worker="b")
    assert again is not None
    assert [event.payload for event in again] == [1]


async def test_a_batch_that_was_lost_cannot_be_finished(client: cascade.Client, db: Database) -> None:
    queue = client.queue("q")
    await queue.publish(1)
    await queue.tick()
    batch = await queue.next_batch("c")
    assert batch is not None
    await queue.seek("c", "now")
    with pytest.raises(errors.BatchLostError):
        await batch.finish()


async def test_an_event_can_be_put_back(client: cascade.Client) -> None:
    queue = client.queue("q")
    await queue.publish_many(["good", "bad"])
    await queue.tick()
    batch = await queue.next_batch("c")
    assert batch is not None
    async with batch:
        assert len(batch) == 2
        assert await batch.retry(batch[1], after=dt.timedelta(0)) == 2
    again = await queue.next_batch("c")
    assert again is not None
    async with again:
        assert [(event.payload, event.attempt) for event in again[:]] == [("bad", 2)]
    assert await queue.next_batch("c") is None


async def test_a_reserved_id_is_used_once(client: cascade.Client) -> None:
    queue = client.queue("q")
    reserved = await queue.reserve_id()
    assert await queue.publish(1, id=reserved) == reserved
    with pytest.raises(errors.ReservationError):
        await queue.publish(1, id=reserved)


class Status(enum.StrEnum):
    PAID = "paid"


@dataclass(frozen=True)
class Line:
    sku: str
    price: decimal.Decimal


@dataclass
class Order:
    id: uuid.UUID
    placed: dt.datetime
    status: Status
    lines: list[Line]
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "x")


async def test_dataclasses_are_payloads(client: cascade.Client) -> None:
    order = Order(
        uuid.uuid4(),
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        Status.PAID,
        [Line("a", decimal.Decimal("1.10"))],
        tags={"x": 1},
    )
    queue = client.queue("q", codec=cascade.dataclass_codec(Order))
    await queue.publish(order)
    [event] = await read(client, queue)
    assert event.payload == order
    with pytest.raises(errors.PayloadError, match="not a Order"):
        await queue.publish({"id": 1})
    await client.queue("q").publish({"nonsense": 1})
    [event] = await read(client, queue)
    with pytest.raises(errors.PayloadError, match="no Order"):
        _ = event.payload
    with pytest.raises(errors.PayloadError, match="no dataclass"):
        cascade.dataclass_codec(int)


async def test_errors_are_named(client: cascade.Client, db: Database) -> None:
    queue = client.queue("nope")
    with pytest.raises(errors.QueueNotFoundError, match="nope"):
        await queue.publish(1)
    with pytest.raises(errors.QueueNotFoundError, match="nope"):
        await queue.publish_many(range(100))
    with pytest.raises(errors.ConsumerNotFoundError, match=r"hint: select cascade\.subscribe"):
        await client.queue("q").next_batch("stranger")
    with pytest.raises(errors.NameRefusedError):
        client.queue('x"; drop table y')
    with pytest.raises(errors.QueueExistsError):
        await client.create_queue("q", tick_max_lag=dt.timedelta(days=1))
    with pytest.raises(errors.OptionError, match="no option nonsense"):
        await client.create_queue("x", nonsense=1)
    with pytest.raises(errors.QueueInUseError):
        await client.drop_queue("q")
    with pytest.raises(errors.TickNotFoundError):
        await client.queue("q").seek("c", 99)
    await client.alter_queue("q", tick_max_lag=dt.timedelta(seconds=1))
    await client.drop_queue("q", force=True)


async def test_connection_trouble_is_transient_and_tells_no_secret() -> None:
    with pytest.raises(errors.TransientError) as caught:
        await cascade.connect("host=127.0.0.1 port=1 user=x password=geheim connect_timeout=2")
    assert "geheim" not in str(caught.value)
    with pytest.raises(errors.ConfigError) as wrong:
        await cascade.connect("nonsense password=geheim")
    assert "geheim" not in str(wrong.value)


async def test_a_database_without_cascade_is_recognised(backend: object) -> None:
    from tests.fixtures.backend import Backend

    assert isinstance(backend, Backend)
    with Database.fresh(backend, with_schema=False) as empty:
        async with cascade.connect(empty.dsn) as client:
            with pytest.raises(errors.SchemaError, match="not installed"):
                await client.queue("q").publish(1)


async def test_a_client_reconnects_after_the_call_that_met_the_loss(client: cascade.Client, db: Database) -> None:
    queue = client.queue("q")
    await queue.publish(1)
    db.terminate("cascade/client")
    with pytest.raises(errors.TransientError):
        await queue.publish(2)
    await queue.publish(3)
    assert [event.payload for event in await read(client)] == [1, 3]
