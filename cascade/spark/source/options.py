"""The options of `format("cascade")`, checked before anything is read or written."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cascade.config import expand
from cascade.errors import ConfigError
from cascade.names import QueueName, queue_name

#: What may be given, as it is shown; Spark itself does not tell cases apart.
KNOWN = (
    "dsn", "topology", "database", "queue", "from", "to", "partitions", "payload", "consumer", "maxTicksPerTrigger",
    "job", "verbatim", "pushdown",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a read or a write was asked for; the repr hides how to get there."""

    dsn: str = field(repr=False)
    queue: QueueName
    start: str = "earliest"
    end: str = "latest"
    partitions: int | None = None
    payload: str = "text"
    consumer: str | None = None
    max_ticks: int | None = None
    job: str | None = None
    verbatim: bool = False
    pushdown: bool = False


def parse(given: Mapping[str, str]) -> Options:
    """Return options as Spark hands them over, or raise ConfigError for the first that is wrong."""
    found = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name.lower() not in {known.lower() for known in KNOWN}:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(KNOWN)}."
            raise ConfigError(f'format("cascade") has no option {name}', hint=hint)
    if "queue" not in found:
        raise ConfigError("no queue was named", hint='Add .option("queue", NAME).')
    queue = queue_name(found["queue"])
    return Options(
        dsn=_dsn(found, queue),
        queue=queue,
        start=found.get("from", "earliest"),
        end=found.get("to", "latest"),
        partitions=_positive(found, "partitions"),
        payload=found.get("payload", "text"),
        consumer=found.get("consumer"),
        max_ticks=_positive(found, "maxTicksPerTrigger"),
        job=found.get("job"),
        verbatim=_truth(found, "verbatim"),
        pushdown=_truth(found, "pushdown"),
    )


def _dsn(found: Mapping[str, str], queue: str) -> str:
    """Return how to get to the database: said outright, or as one of a topology; the root's, if none is named."""
    if "dsn" in found:
        if "topology" in found or "database" in found:
            raise ConfigError("both dsn and topology were given", hint="dsn alone says where the queue is.")
        return expand(found["dsn"], os.environ)
    if "topology" not in found:
        raise ConfigError(
            "no database was named",
            hint='Add .option("dsn", ...), or .option("topology", FILE) and .option("database", NAME).',
        )
    from cascade.topology import load

    topology = load(found["topology"])
    name = found.get("database")
    if name is None:
        if queue not in topology.sets:
            raise ConfigError(
                f"{found['topology']} has no set {queue}", hint='Name the database: .option("database", NAME).'
            )
        name = topology.sets[queue].root.database
    if name not in topology.databases:
        hint = f"It has {', '.join(sorted(topology.databases))}."
        raise ConfigError(f"{found['topology']} has no database {name}", hint=hint)
    return expand(topology.databases[name].dsn, os.environ)


def _positive(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name} is {text!r}", hint="Give a whole number from 1.")
    return int(text)


def _truth(found: Mapping[str, str], name: str) -> bool:
    text = found.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}", hint="Give true or false.")
    return text == "true"
