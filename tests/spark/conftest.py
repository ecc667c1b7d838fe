"""Spark's tests are one xdist group, so that they share one session, and a single JVM is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.database import Database, eventually, table

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture
def queue(db: Database) -> str:
    """An empty queue in a fresh database."""
    return db.queue("orders")


FILL = """
    insert into TABLE (type, key, payload, headers)
    select 'type.' || mod(n, 3), 'key' || mod(n, 7), json_build_object('n', n, 'text', repeat('x', %s)),
           case when mod(n, 2) = 0 then json_build_object('h', n) end
      from generate_series(%s::bigint, %s::bigint) as n"""


def fill(db: Database, events: int, *, ticks: int = 1, queue: str = "orders", size: int = 20) -> list[int]:
    """Insert events with types, keys and payloads that tell them apart; returns the ticks, each after its share."""
    made = []
    for part in range(ticks):
        first, last = events * part // ticks, events * (part + 1) // ticks
        db.main.execute(FILL.replace("TABLE", table(queue)).encode(), (size, first + 1, last))
        made.append(db.tick(queue))
    return made


def rotate_past(db: Database, tick: int, queue: str = "orders") -> None:
    """Rotate until what follows a tick is gone."""

    def is_gone() -> bool:
        db.rotate(queue)
        db.tick(queue)
        # What is released is emptied by a later step.
        return bool(
            db.value(
                "select cascade.find_tick(%s, 'earliest') > %s and not bool_or(g.released)"
                " from cascade_internal.generation as g",
                queue,
                tick,
            )
        )

    eventually(is_gone)


def payloads(rows: list[Any]) -> list[str]:
    """Return the payloads of rows, in the order of ids."""
    return [row.payload for row in sorted(rows, key=lambda row: row.id)]
