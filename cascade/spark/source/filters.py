"""Conditions that the database can decide, so that other rows never leave it.

Type and key are compared for equality, by list and by prefix; id, txid and time also by order; a tick chooses which
ticks are read at all.  Whatever else a query says stays with Spark, and so does text that PostgreSQL cannot
hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import LiteralString

from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from cascade.spark.ranges import Tick

TEXTS = ("type", "key", "origin")
NUMBERS = ("id", "txid", "origin_id")
ORDERS: dict[type[Filter], LiteralString] = {
    GreaterThan: "{} > {}",
    GreaterThanOrEqual: "{} >= {}",
    LessThan: "{} < {}",
    LessThanOrEqual: "{} <= {}",
}


@dataclass(slots=True)
class Pushed:
    """What the database decides."""

    rows: list[sql.Composable] = field(default_factory=list)
    ticks: list[Callable[[int], bool]] = field(default_factory=list)

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take the conditions that can be taken, and return the others."""
        return [found for found in filters if not self._take(found)]

    def where(self) -> sql.Composable | None:
        """Return the condition on rows; None when there is none."""
        return sql.SQL(" and ").join(self.rows) if self.rows else None

    def runs(self, ticks: Sequence[Tick]) -> list[list[Tick]]:
        """Return the ticks that are wanted as runs, each after the tick that it begins behind."""
        if not self.ticks:
            return [list(ticks)]
        found: list[list[Tick]] = []
        for before, tick in pairwise(ticks):
            if not all(is_wanted(tick.tick_id) for is_wanted in self.ticks):
                continue
            if found and found[-1][-1] is before:
                found[-1].append(tick)
            else:
                found.append([before, tick])
        return found

    def _take(self, found: Filter) -> bool:
        is_negated = isinstance(found, Not)
        inner = found.child if isinstance(found, Not) else found
        name: tuple[str, ...] = getattr(inner, "attribute", ())
        if name == ("tick",):
            wanted = _tick(inner)
            if wanted is None:
                return False
            self.ticks.append(lambda tick: wanted(tick) is not is_negated)
            return True
        row = _row(inner, name[0]) if len(name) == 1 else None
        if row is None:
            return False
        self.rows.append(sql.SQL("not ({})").format(row) if is_negated else row)
        return True


def _row(found: Filter, name: str) -> sql.Composable | None:
    """Return a condition on a column in SQL; None for what is left to Spark."""
    column = sql.Identifier("e", name)
    match found:
        case IsNull():
            return sql.SQL("{} is null").format(column)
        case IsNotNull():
            return sql.SQL("{} is not null").format(column)
        case EqualTo(value=value) if _is_fit(name, value):
            return sql.SQL("{} = {}").format(column, sql.Literal(value))
        case EqualNullSafe(value=value) if _is_fit(name, value):
            return sql.SQL("{} is not distinct from {}").format(column, sql.Literal(value))
        case In(value=values) if values and all(_is_fit(name, value) for value in values):
            return sql.SQL("{} in ({})").format(column, sql.SQL(", ").join(map(sql.Literal, values)))
        case StringStartsWith(value=value) if name in TEXTS and _is_fit(name, value):
            return sql.SQL("starts_with({}, {})").format(column, sql.Literal(value))
        case (
            GreaterThan(value=value)
            | GreaterThanOrEqual(value=value)
            | LessThan(value=value)
            | LessThanOrEqual(value=value)
        ) if name not in TEXTS and _is_fit(name, value):
            # The order of texts is another one in every database.
            return sql.SQL(ORDERS[type(found)]).format(column, sql.Literal(value))
    return None


def _is_fit(name: str, value: object) -> bool:
    """Whether the database compares a column with a value as Spark would."""
    if name in TEXTS:
        return isinstance(value, str) and value.isprintable()
    if name in NUMBERS:
        return type(value) is int
    return name == "time" and isinstance(value, datetime) and value.tzinfo is not None


def _tick(found: Filter) -> Callable[[int], bool] | None:
    """Return a condition on a tick, which is never null."""
    match found:
        case IsNull():
            return lambda _: False
        case IsNotNull():
            return lambda _: True
        case EqualTo(value=int(value)) | EqualNullSafe(value=int(value)):
            return lambda tick: tick == value
        case GreaterThan(value=int(value)):
            return lambda tick: tick > value
        case GreaterThanOrEqual(value=int(value)):
            return lambda tick: tick >= value
        case LessThan(value=int(value)):
            return lambda tick: tick < value
        case LessThanOrEqual(value=int(value)):
            return lambda tick: tick <= value
        case In(value=values) if all(type(value) is int for value in values):
            wanted = frozenset(values)
            return lambda tick: tick in wanted
    return None
