"""Queues in Spark: a data source, and the reconcile, archive, backfill and audit jobs.

    from cascade.spark import session

    spark = session()
    events = spark.read.format("cascade").option("dsn", "service=shop").option("queue", "orders").load()

The extra `cascade-queue[spark]` brings what this needs.  Names are loaded when first used, so that
importing this package starts nothing and needs no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cascade.spark.session import session as session

_HOMES = {
    "archive": "cascade.spark.archive",
    "audit": "cascade.spark.audit",
    "backfill": "cascade.spark.backfill",
    "reconcile": "cascade.spark.reconcile",
    "session": "cascade.spark.session",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        # The module has the function's name; the package is to hold the function.
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'cascade.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
