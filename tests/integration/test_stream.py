"""Streams: order, sharing, waking up, reconnecting, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

import cascade
from cascade import errors
from tests.fixtures.database import Database, eventually
from tests.fixtures.proxy import TO_CLIENT, FaultProxy

#: The stream of consumer c has found nothing to read.
WAITING = """
    select from pg_stat_activity
     where application_name = 'cascade/c/read' and query like '%next_batch%' and state = 'idle'
       and datname = current_database()
"""


@pytest.fixture
async def client(ticking: Database) -> AsyncIterator[cascade.Client]:
    ticking.rows("select cascade.subscribe('q', 'c')")
    async with cascade.connect(ticking.dsn) as client:
        yield client


async def collect(stream: cascade.Stream[object], count: int) -> list[object]:
    """Read a number of events, finishing every batch."""
    found: list[object] = []
    async with asyncio.timeout(20), stream:
        async for batch in stream:
            async with batch:
                found += [event.payload for event in batch]
            if len(found) >= count:
                break
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition while the stream under test goes on."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def open_batches(db: Database) -> int:
    """Return how many batches the consumer was given and has not finished."""
    return int(db.value("select open_batches from cascade.consumers"))


def workers(db: Database) -> list[str]:
    """Return who holds a batch of the consumer; one that was given back is nobody's."""
    found: list[str] = db.value("select workers from cascade.consumers")
    return found


async def test_events_come_in_order_and_once(client: cascade.Client) -> None:
    queue = client.queue("q")

    async def publish() -> None:
        for number in range(0, 200, 10):
            await queue.publish_many(range(number, number + 10))

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        reader = group.create_task(collect(queue.stream("c"), 200))
    assert reader.result() == list(range(200))


async def test_a_loop_that_just_goes_on_finishes_its_batches(client: cascade.Client, ticking: Database) -> None:
    await client.queue("q").publish(1)
    stream = client.queue("q").stream("c")
    async with asyncio.timeout(20):
        async for _ in stream:
            stream.stop()
    assert eventually(lambda: ticking.value("select lag_events = 0 from cascade.consumers"))


async def test_an_error_in_the_loop_gives_the_batch_back(client: cascade.Client) -> None:
    queue = client.queue("q")
    await queue.publish("again")
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(20), queue.stream("c") as stream:
            async for batch in stream:
                async with batch:
                    raise ZeroDivisionError
    assert await collect(queue.stream("c"), 1) == ["again"]


async def test_a_batch_given_back_comes_again_before_later_ones(client: cascade.Client, ticking: Database) -> None:
    queue = client.queue("q")
    for number in range(4):
        await queue.publish(number)
        ticking.tick()
    seen: list[object] = []
    failures = 2
    async with asyncio.timeout(20), queue.stream("c", max_ticks=1) as stream:
        async for batch in stream:
            with suppress(ZeroDivisionError):
                async with batch:
                    if batch[0].payload == 1 and failures:
                        failures -= 1
                        raise ZeroDivisionError
                    seen.append(batch[0].payload)
            if len(seen) == 4:
                break
    assert seen == [0, 1, 2, 3]


async def test_leaving_early_gives_back_what_was_read_ahead(client: cascade.Client, ticking: Database) -> None:
    queue = client.queue("q")
    for number in range(5):
        await queue.publish(number)
        ticking.tick()
    first = await collect(queue.stream("c", max_ticks=1), 1)
    rest = await collect(queue.stream("c", max_ticks=1), 4)
    assert first + rest == list(range(5))


async def test_a_batch_whose_reply_is_late_is_given_back_when_the_stream_is_left(ticking: Database) -> None:
    ticking.rows("select cascade.subscribe('q', 'c')")
    for number in range(3):
        ticking.insert(number)
        ticking.tick()
    with FaultProxy.before(ticking.dsn) as proxy:
        async with cascade.connect(proxy.dsn(ticking.dsn)) as client:
            queue = client.queue("q")
            async with asyncio.timeout(20), queue.stream("c", max_ticks=1) as stream:
                async for batch in stream:
                    # Replies stall at the moment at which the next batch is asked for.
                    proxy.stall(TO_CLIENT)
                    await until(lambda: open_batches(ticking) == 2)
                    asyncio.get_running_loop().call_later(0.5, proxy.heal)
                    assert batch.is_open
                    break
            assert workers(ticking) == []
            assert await collect(queue.stream("c"), 3) == [0, 1, 2]


async def test_a_stream_that_is_cancelled_gives_back_what_it_was_reading(ticking: Database) -> None:
    ticking.rows("select cascade.subscribe('q', 'c')")
    with FaultProxy.before(ticking.dsn) as proxy:
        async with cascade.connect(proxy.dsn(ticking.dsn)) as client:
            queue = client.queue("q")
            reading = asyncio.create_task(collect(queue.stream("c"), 1))
            await until(lambda: ticking.row(WAITING) is not None)
            proxy.stall(TO_CLIENT)
            ticking.insert("late")
            ticking.tick()
            await until(lambda: open_batches(ticking) == 1)
            reading.cancel()
            asyncio.get_running_loop().call_later(0.5, proxy.heal)
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert workers(ticking) == []
            assert await collect(queue.stream("c"), 1) == ["late"]


@pytest.mark.parametrize("prefetch", [True, False])
async def test_a_stream_stopped_between_finishing_and_taking_the_next_finishes(
    client: cascade.Client, ticking: Database, prefetch: bool
) -> None:
    await client.queue("q").publish(1)
    stream = client.queue("q").stream("c", prefetch=prefetch)
    async with asyncio.timeout(20), stream:
        batches = aiter(stream)
        await anext(batches)
        # The batch is done: asking for the next one is what finishes it, and finds the stream stopped
        # before its first statement.
        asking = asyncio.create_task(anext(batches, None))
        await asyncio.sleep(0)
        stream.stop()
        assert await asking is None
    assert ticking.row("select lag_events, open_batches from cascade.consumers") == (0, 0)


async def test_empty_batches_are_passed_while_a_handler_s_transaction_is_open(
    client: cascade.Client, ticking: Database
) -> None:
    """They are no part of that transaction, so its end, whichever it is, does not bring them back."""
    queue = client.queue("q")
    await queue.publish(1)
    async with asyncio.timeout(20), queue.stream("c", max_ticks=1) as stream:
        async for batch in stream:
            async with batch.transaction():
                last = [ticking.tick() for _ in range(3)][-1]
                query = (
                    "select head = %s and cardinality(open_batches) = 1"
                    " from cascade_internal.position_1_0 order by n desc"
                )
                await asyncio.to_thread(eventually, lambda query=query, last=last: ticking.value(query, last))
            break
    ticking.tick()
    await queue.publish(2)
    assert await collect(queue.stream("c"), 1) == [2]


async def test_the_lease_of_a_long_handler_is_renewed(client: cascade.Client) -> None:
    queue = client.queue("q")
    await queue.publish("long")
    taken: list[object] = []
    other = queue.stream("c", lease=timedelta(seconds=0.6), cooperative=True)

    async def stand_by() -> None:
        async for batch in other:
            taken.append(batch)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        async with queue.stream("c", lease=timedelta(seconds=0.6), cooperative=True) as stream:
            async for batch in stream:
                task = group.create_task(stand_by())
                async with batch:
                    # Longer than the lease; a real handler would be busy here.
                    await asyncio.wait([asyncio.create_task(asyncio.sleep(1.5))])
                break
        other.stop()
        await task
    assert taken == []


async def test_renewing_never_disturbs_the_handlers_transaction(client: cascade.Client, ticking: Database) -> None:
    """With a lease this short, renewals fall between finishing and commit all the time."""
    ticking.main.execute("create table effect (event bigint)")
    queue = client.queue("q")
    done = 0
    async with asyncio.timeout(60), queue.stream("c", max_ticks=1, lease=timedelta(seconds=0.03)) as stream:
        await queue.publish_many(range(3))
        async for batch in stream:
            with suppress(errors.BatchLostError):
                async with batch, batch.transaction() as conn:
                    for event in batch:
                        await conn.execute("insert into effect values (%s)", (event.id,))
                done += len(batch)
            if done >= 300:
                break
            await queue.publish_many(range(3))
    assert ticking.row("select count(*), count(distinct event) from effect") == (done, done)


async def test_a_second_stream_stands_by_and_takes_over(client: cascade.Client) -> None:
    queue = client.queue("q")
    lease = timedelta(seconds=1)
    for number in range(3):
        await queue.publish(number)
    async with asyncio.timeout(20):
        dying = await queue.next_batch("c", worker="dying", lease=lease)
        while dying is None:
            await asyncio.sleep(0.01)
            dying = await queue.next_batch("c", worker="dying", lease=lease)
        assert await collect(queue.stream("c", lease=lease, poll_s=0.2), 3) == [0, 1, 2]
        with pytest.raises(errors.BatchLostError):
            await dying.finish()


async def test_cooperating_streams_share_the_events(client: cascade.Client, ticking: Database) -> None:
    queue = client.queue("q")
    streams = [queue.stream("c", cooperative=True, max_ticks=1) for _ in range(3)]
    seen: list[list[object]] = [[], [], []]

    async def work(number: int) -> None:
        async with streams[number] as stream:
            async for batch in stream:
                async with batch:
                    seen[number] += [event.payload for event in batch]
                if sum(map(len, seen)) == 60:
                    for each in streams:
                        each.stop()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))
        for number in range(60):
            await queue.publish(number)
            ticking.tick()
    assert sorted(value for part in seen for value in part) == list(range(60))


async def test_a_stream_survives_the_loss_of_its_connections(client: cascade.Client, ticking: Database) -> None:
    queue = client.queue("q")
    found: list[object] = []
    stream = queue.stream("c", poll_s=0.2)
    async with asyncio.timeout(30), stream:
        await queue.publish(0)
        async for batch in stream:
            async with batch:
                found += [event.payload for event in batch]
                ticking.terminate("cascade/c/%")
            if len(found) == 5:
                break
            await queue.publish(len(found))
    assert found == [0, 1, 2, 3, 4]
    assert stream.reconnects > 0


async def test_a_stream_makes_progress_without_notifications(
    client: cascade.Client, ticking: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a transaction pooler: LISTEN does nothing, polling remains."""
    monkeypatch.setattr(
        "cascade.consumer.CHANNEL", "select 'a_channel_that_nobody_notifies' where %s::text is not null"
    )
    queue = client.queue("q")
    found: list[object] = []
    async with asyncio.timeout(20), queue.stream("c", poll_s=0.1, prefetch=False) as stream:
        await queue.publish(0)
        async for batch in stream:
            async with batch:
                found += [event.payload for event in batch]
            if len(found) == 3:
                break
            await queue.publish(len(found))
    assert found == [0, 1, 2]


async def test_a_stream_goes_on_where_listening_is_refused(ticking: Database, caplog: pytest.LogCaptureFixture) -> None:
    """As some poolers do; it says so once, and not again after each reconnect."""
    ticking.rows("select cascade.subscribe('q', 'c')")
    with FaultProxy.before(ticking.dsn) as proxy:
        proxy.misspell(b"listen ")
        async with cascade.connect(proxy.dsn(ticking.dsn)) as client:
            queue = client.queue("q")
            found: list[object] = []
            stream = queue.stream("c", poll_s=0.1, prefetch=False)
            async with asyncio.timeout(20), stream:
                await queue.publish(0)
                async for batch in stream:
                    async with batch:
                        found += [event.payload for event in batch]
                    if len(found) == 3:
                        break
                    ticking.terminate("cascade/c/read")
                    await queue.publish(len(found))
    assert found == [0, 1, 2] and stream.reconnects > 0
    [said] = [record.message for record in caplog.records if "LISTEN" in record.message]
    assert said.startswith("queue q: LISTEN failed, so looking every 0.1 s: syntax error")


async def test_a_connection_lost_while_it_begins_to_listen_is_opened_again(ticking: Database) -> None:
    ticking.rows("select cascade.subscribe('q', 'c')")
    with FaultProxy.before(ticking.dsn) as proxy:
        async with cascade.connect(proxy.dsn(ticking.dsn)) as client:
            await client.queue("q").publish(1)
            proxy.lose_reply_to(b"listen ")
            assert await collect(client.queue("q").stream("c"), 1) == [1]
        assert proxy.replies_lost == 1


async def test_statements_are_prepared_unless_the_client_says_otherwise(ticking: Database) -> None:
    """A transaction pooler gives the next statement to a session that knows nothing of them."""
    ticking.rows("select cascade.subscribe('q', 'c')")
    prepared = "select count(*) from pg_prepared_statements"
    for threshold, expected in ((None, False), (1, True)):
        async with cascade.connect(ticking.dsn, prepare_threshold=threshold) as client:
            queue = client.queue("q")
            for _ in range(3):
                await queue.publish(1)
            assert bool(await client.call(prepared)) is expected
            async with asyncio.timeout(20), queue.stream("c") as stream:
                async for batch in stream:
                    # Nothing else is asked of the reading connection, and this is not the moment to.
                    assert stream._reader is not None and stream._reader.prepare_threshold == threshold
                    async with batch.transaction() as conn:
                        for _ in range(3):
                            await conn.execute("select 1")
                        row = await (await conn.execute(prepared)).fetchone()
                        assert row is not None and bool(row[0]) is expected
                    break


async def test_a_stream_wakes_up_on_a_tick(client: cascade.Client) -> None:
    """With polling once an hour, only a notification can wake it."""
    queue = client.queue("q")
    publishing: list[asyncio.Task[object]] = []
    found: list[object] = []
    async with asyncio.timeout(20), queue.stream("c", poll_s=3600, prefetch=False) as stream:
        await queue.publish(0)
        async for batch in stream:
            async with batch:
                found += [event.payload for event in batch]
            if len(found) == 3:
                break
            publishing.append(asyncio.create_task(queue.publish(len(found))))
    assert found == [0, 1, 2]


async def test_an_idle_stream_stops_at_once(client: cascade.Client) -> None:
    stream = client.queue("q").stream("c", poll_s=3600)

    async def read() -> list[object]:
        return [batch async for batch in stream]

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        task = group.create_task(read())
        await asyncio.sleep(0)
        stream.stop()
    assert task.result() == []


async def test_a_stream_of_an_unknown_consumer_says_so(client: cascade.Client) -> None:
    with pytest.raises(errors.ConsumerNotFoundError):
        await collect(client.queue("q").stream("stranger"), 1)


async def test_effects_and_position_move_together(client: cascade.Client, ticking: Database) -> None:
    """The handler fails after its writes, again and again: each event has its effect once."""
    ticking.main.execute("create table effect (event bigint)")
    queue = client.queue("q")
    await queue.publish_many(range(50))
    failures = 3
    done = 0
    while done < 50:
        try:
            async with asyncio.timeout(20), queue.stream("c", max_ticks=1, poll_s=0.2) as stream:
                async for batch in stream:
                    async with batch, batch.transaction() as conn:
                        for event in batch:
                            await conn.execute("insert into effect values (%s)", (event.id,))
                        if failures:
                            failures -= 1
                            raise ZeroDivisionError
                    done += len(batch)
                    if done >= 50:
                        break
        except ZeroDivisionError:
            continue
    assert ticking.row("select count(*), count(distinct event) from effect") == (50, 50)
