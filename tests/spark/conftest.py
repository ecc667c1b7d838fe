"""One Spark session for all tests of a run: they are one xdist group, so that a single JVM is started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cascade.errors import ConfigError
from tests.fixtures.database import Database, eventually, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def java() -> Path:
    """The Java that Spark runs on; without one, its tests say so and are skipped."""
    from cascade.spark import java

    try:
        return java.find()
    except ConfigError as error:
        pytest.skip(f"SPARK IS NOT TESTED: {error}")


@pytest.fixture(scope="session")
def spark(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share: two threads, and a task that dies is run again twice."""
    from cascade.spark import session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "2",
        # The tests' own time zone must not matter.
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.driver.memory": "1g",
    }
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    made = session("cascade tests", master="local[2,3]", conf=conf, log=folder / "spark.log")
    yield made
    made.stop()
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


#: What starting Spark sets in the environment, and other tests of this process must not see.
ENVIRONMENT = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")


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
