"""Payloads as Spark's own types: a variant, or the fields of a schema.

What does not fit becomes null, as with from_json(): a payload that is no object, a field of another type.
Spark's own parse_json() and from_json() do this in the JVM, and faster; here it is one option.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from cascade.errors import ConfigError

BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}

#: Turns what JSON says into what Arrow takes; None when it does not fit.
Fit = Callable[[Any], Any]


def convert(array: pa.Array, arrow: pa.DataType, wanted: DataType) -> pa.Array:
    """Return an array of JSON texts, or of anything else that is wanted as it is, as Spark wants it."""
    if isinstance(wanted, StructType):
        fit = _fit(wanted)
        return pa.array([fit(json.loads(text, parse_float=Decimal)) for text in array.to_pylist()], arrow)
    if isinstance(wanted, VariantType):
        return pa.array([_variant(text) for text in array.to_pylist()], arrow)
    return array if array.type == arrow else array.cast(arrow)


def check(wanted: DataType) -> None:
    """Refuse a type that no JSON is read as."""
    _fit(wanted)


def _variant(text: str) -> dict[str, bytes] | None:
    try:
        made = VariantVal.parseJson(text)
    except (UnicodeError, PySparkException):
        # JSON may hold half a character, or more than a variant can.
        return None
    return {"value": made.value, "metadata": made.metadata}


def _fit(wanted: DataType) -> Fit:
    match wanted:
        case StructType():
            return _fit_struct(wanted)
        case ArrayType():
            item = _fit(wanted.elementType)
            return lambda value: [item(found) for found in value] if isinstance(value, list) else None
        case MapType(keyType=StringType()):
            item = _fit(wanted.valueType)
            return lambda value: [(k, item(v)) for k, v in value.items()] if isinstance(value, dict) else None
        case StringType():
            return _text
        case BooleanType():
            return lambda value: value if isinstance(value, bool) else None
        case ByteType() | ShortType() | IntegerType() | LongType():
            most = 1 << (BITS[type(wanted)] - 1)
            return lambda value: value if type(value) is int and -most <= value < most else None
        case FloatType() | DoubleType():
            return lambda value: (
                float(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else None
            )
        case DecimalType():
            return _fit_decimal(wanted)
        case TimestampType():
            return _time
        case DateType():
            return _date
        case VariantType():
            return lambda value: _variant(_dump(value))
    raise ConfigError(
        f"a payload cannot be read as {wanted.simpleString()}",
        hint="Read it as string, and convert it with Spark's functions.",
    )


def _fit_struct(wanted: StructType) -> Fit:
    fields = [(field.name, _fit(field.dataType)) for field in wanted]

    def fit(value: Any) -> Any:
        return {name: fit(value.get(name)) for name, fit in fields} if isinstance(value, dict) else None

    return fit


def _fit_decimal(wanted: DecimalType) -> Fit:
    unit = Decimal(1).scaleb(-wanted.scale)

    def fit(value: Any) -> Any:
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            return None
        try:
            found = Decimal(value).quantize(unit)
        except InvalidOperation:
            return None
        return found if len(found.as_tuple().digits) <= wanted.precision else None

    return fit


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else _dump(value)
    # Half of a character, which JSON can escape, cannot be written as UTF-8.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return None
