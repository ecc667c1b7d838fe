"""The columns of a queue in Spark, and which of them a read asks for."""

from __future__ import annotations

from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType, VariantType

from cascade.errors import ConfigError
from cascade.spark.source.payload import check as check_payload

#: As a schema shows them.  `tick` is not stored with an event: it is the one that ends the event's batch.
EVENT = StructType(
    [
        StructField("id", LongType()),
        StructField("time", TimestampType()),
        StructField("txid", LongType()),
        StructField("tick", LongType()),
        StructField("type", StringType()),
        StructField("key", StringType()),
        StructField("payload", StringType()),
        StructField("headers", StringType()),
        StructField("origin", StringType()),
        StructField("origin_id", LongType()),
    ]
)
NAMES = tuple(EVENT.fieldNames())


def schema(payload: str) -> StructType:
    """Return the schema of a read: payload as text, as variant, or parsed as the fields of a DDL string."""
    return StructType(
        [StructField("payload", payload_type(payload)) if found.name == "payload" else found for found in EVENT]
    )


def payload_type(payload: str) -> DataType:
    """Return what the option `payload` stands for."""
    if payload in ("text", "variant"):
        return StringType() if payload == "text" else VariantType()
    try:
        found = StructType.fromDDL(payload)
    except Exception as error:
        raise ConfigError(
            f"option payload is {payload!r:.80}", hint="Give text, variant, or fields as in 'id bigint, total double'."
        ) from error
    check_payload(found)
    return found


def check(wanted: StructType) -> None:
    """Refuse a schema that asks for other columns, or other types, than a queue has."""
    for found in wanted:
        if found.name not in NAMES:
            raise ConfigError(f"a queue has no column {found.name}", hint=f"It has {', '.join(NAMES)}.")
        if found.name == "payload" and isinstance(found.dataType, VariantType | StructType):
            check_payload(found.dataType)
            continue
        if found.dataType != EVENT[found.name].dataType:
            wrong, right = found.dataType.simpleString(), EVENT[found.name].dataType.simpleString()
            raise ConfigError(f"column {found.name} was asked for as {wrong}", hint=f"It is {right}.")
