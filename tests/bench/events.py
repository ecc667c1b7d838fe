"""The event that is measured: type of 6 bytes, payload of 204 bytes of JSON, no key."""

from __future__ import annotations

import json
from typing import Any

from cascade.event import Message

TYPE = "placed"
PAYLOAD_BYTES = 204


def payload(number: int) -> dict[str, Any]:
    """Return a payload whose compact JSON has exactly 204 bytes."""
    found = {
        "order": 1_000_000 + number % 8_000_000,
        "customer": 31_415_926,
        "currency": "EUR",
        "total": 1234.56,
        "lines": [{"sku": "A-1000", "count": 2}, {"sku": "B-2000", "count": 1}],
        "note": "",
    }
    found["note"] = "x" * (PAYLOAD_BYTES - len(text(found)))
    return found


def text(value: dict[str, Any]) -> str:
    """Return the JSON as Cascade's codec writes it."""
    return json.dumps(value, separators=(",", ":"))


PAYLOAD_TEXT = text(payload(0))
assert len(PAYLOAD_TEXT) == PAYLOAD_BYTES
assert len(text(payload(7_999_999))) == PAYLOAD_BYTES


def messages(count: int) -> list[Message[Any]]:
    """Return messages with payloads as Python objects, to be encoded while the clock runs."""
    return [Message(payload(number), TYPE) for number in range(count)]


def copy_blocks(count: int, block_bytes: int = 128 * 1024) -> list[bytes]:
    """Return the same messages as blocks of COPY text, encoded before the clock runs."""
    blocks, lines, size = [], [], 0
    for number in range(count):
        lines.append(f"{TYPE}\t\\N\t{text(payload(number))}\t\\N\n")
        size += len(lines[-1])
        if size >= block_bytes:
            blocks.append("".join(lines).encode())
            lines, size = [], 0
    return [*blocks, "".join(lines).encode()] if lines else blocks


def insert_one(queue: str) -> str:
    """Return Cascade's statement for one event."""
    return f"insert into queue.{queue} (type, payload) values ('{TYPE}', '{PAYLOAD_TEXT}')"


def insert_many(table: str, count: int) -> str:
    """Return Cascade's statement for many, which a plain table takes as well."""
    return (
        f"insert into {table} (type, payload) select '{TYPE}', '{PAYLOAD_TEXT}'::json from generate_series(1, {count})"
    )


def pgq_one(queue: str) -> str:
    """Return PgQ's statement for one event."""
    return f"select pgq.insert_event('{queue}', '{TYPE}', '{PAYLOAD_TEXT}')"


def pgq_many(queue: str, count: int) -> str:
    """Return PgQ's statement for many."""
    return f"select count(pgq.insert_event('{queue}', '{TYPE}', '{PAYLOAD_TEXT}')) from generate_series(1, {count})"


#: The table of a queue without what makes it one: no partitions, a constant for the slot.
RAW_TABLE = """
    create sequence {table}_id;
    create table {table} (
        id        bigint not null default nextval('{table}_id'),
        "time"    timestamptz not null default now(),
        txid      bigint not null default txid_current(),
        slot      "char" not null default '0',
        type      text,
        key       text,
        payload   json not null,
        headers   json,
        origin    text,
        origin_id bigint
    ) with (autovacuum_enabled = false, toast.autovacuum_enabled = false);
    create index on {table} (txid);
"""
