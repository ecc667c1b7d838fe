"""The columns of a queue in Spark, and which of them a read asks for."""

from __future__ import annotations

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType, VariantType

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


def schema(payload: str) -> StructType | str:
    """Return the schema of a read: payload as text, as variant, or parsed as the fields of a DDL string."""
    if payload == "text":
        return EVENT
    # Only the JVM reads DDL.
    wanted = "variant" if payload == "variant" else f"struct<{payload}>"
    fields = [(found.name, wanted if found.name == "payload" else found.dataType.simpleString()) for found in EVENT]
    return ", ".join(f"{name} {type_}" for name, type_ in fields)


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
