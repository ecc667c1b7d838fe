"""Queues in Spark: a data source, and the reconcile, archive, backfill and audit jobs.

    from cascade.spark import session

    spark = session()
    events = spark.read.format("cascade").option("dsn", "service=shop").option("queue", "orders").load()

The extra `cascade-queue[spark]` brings what this needs.  Names are loaded when first used, so that
importing this package starts nothing and needs no Spark.  The jobs are functions of their modules:
`from cascade.spark.reconcile import reconcile`, and so archive, backfill and audit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cascade.spark.launch import register as register
    from cascade.spark.launch import session as session

#: None of them is also the name of a module: once that was imported, it would stand in the function's place.
_HOMES = {"register": "cascade.spark.launch", "session": "cascade.spark.launch"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'cascade.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
