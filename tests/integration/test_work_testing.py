"""What applications test their handlers with: inline, drained, and with a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cascade
from cascade.errors import NotFoundError, PayloadError
from cascade.testing import Clock, drain, run_inline
from cascade.work import NotDoneError
from tests.fixtures.database import Database


@dataclass
class Order:
    id: int


async def test_a_handler_is_called_inline_without_a_database() -> None:
    worker = cascade.Worker("orders", "billing")

    @worker.on("paid")
    async def paid(order: Order, delivery: cascade.Delivery[Order]) -> dict[str, Any]:
        return {"id": order.id, "key": delivery.key, "trace": delivery.headers, "attempt": delivery.attempt}

    @worker.on("sent")
    def sent(order: Order) -> object:
        return order

    found = await run_inline(worker, {"id": 7}, type="paid", key="acme", headers={"n": 1}, attempt=2)
    assert found == {"id": 7, "key": "acme", "trace": {"n": 1}, "attempt": 2}
    with pytest.raises(PayloadError, match="no Order"):
        await run_inline(worker, {"no": 7}, type="paid")
    with pytest.raises(PayloadError, match="not JSON"):
        await run_inline(worker, {"id": 7}, type="sent")
    with pytest.raises(NotFoundError, match="no handler takes type 'lost'"):
        await run_inline(worker, 1, type="lost")


async def test_a_queue_is_drained_and_time_passes_without_sleeping(db: Database) -> None:
    db.queue()
    clock = Clock(db.dsn)
    seen: list[tuple[str, int]] = []
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        await queue.subscribe("w", mode="work", options={"backoff_delay": "1 hour", "max_attempts": 2})
        work = queue.work("w")
        worker = cascade.Worker(queue, "w")

        @worker.on("first")
        async def first(payload: int) -> None:
            seen.append(("first", payload))
            await queue.publish(payload + 1, type="second")

        @worker.on("second")
        async def second(payload: int, delivery: cascade.Delivery[int]) -> str:
            seen.append(("second", payload))
            if payload < 0:
                raise ValueError("below zero")
            return f"done with {payload}"

        early = await queue.publish(1, type="first")
        late = await queue.publish(5, type="second", delay=timedelta(days=2))
        later = datetime.now(UTC) + timedelta(days=2.5)
        gone = await queue.publish(6, type="second", delay=timedelta(days=2), expires_at=later)
        bad = await queue.publish(-1, type="second")
        assert await drain(worker) == 3
        assert sorted(seen) == [("first", 1), ("second", -1), ("second", 2)]
        assert await work.wait(early, timeout_s=20) is None
        assert {(await work.outcome(message)).state for message in (late, gone, bad)} == {"delayed"}

        clock.advance(timedelta(hours=3))
        assert await drain(worker) == 1
        with pytest.raises(NotDoneError, match="is dead: ValueError: below zero"):
            await work.wait(bad, timeout_s=20)

        clock.advance(timedelta(days=3))
        assert await drain(worker) == 1
        assert await work.wait(late, timeout_s=20) == "done with 5"
        assert (await work.outcome(late)).attempts == 1
        with pytest.raises(NotFoundError, match="not known"):
            await work.outcome(late + 1000)
    with cascade.sync.connect(db.dsn) as there:
        old = there.queue("q").work("w")
        assert old.wait(late, timeout_s=20) == "done with 5"
        with pytest.raises(NotDoneError, match="dead"):
            old.wait(bad)


async def test_messages_are_consumed_in_a_transaction_of_ones_own(db: Database) -> None:
    db.queue()
    async with cascade.connect(db.dsn) as client:
        queue = client.queue("q")
        await queue.subscribe("w", mode="work")
        await queue.publish_many([1, 2, 3])
        await queue.tick()
        work = queue.work("w")
        assert [message.payload for message in await work.peek(2)] == [1, 2]
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as conn:
                assert len(await work.consume(conn, 3)) == 3
                1 / 0  # noqa: B018
        async with client.transaction() as conn:
            assert [message.payload for message in await work.consume(conn, 3)] == [1, 2, 3]
        assert await work.peek() == []
