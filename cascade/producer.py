"""Write events: the statements and the encoding that both clients share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, LiteralString

from psycopg import sql

from cascade.codec import Codec
from cascade.errors import ArgumentError, PayloadSizeError
from cascade.event import Message
from cascade.names import QueueName

POST: LiteralString = (
    "select cascade.post(%(queue)s::text, %(payload)s::json, %(type)s::text, %(key)s::text,"
    " %(headers)s::json, %(id)s::bigint)"
)
RESERVE: LiteralString = "select cascade.reserve_id(%s)"
INSERT = sql.SQL(
    "insert into {} (type, key, payload, headers) select * from unnest(%s::text[], %s::text[], %s::json[], %s::json[])"
)
COPY = sql.SQL("copy {} (type, key, payload, headers) from stdin (encoding 'UTF8')")

#: Up to so many events travel in one INSERT; COPY costs one round trip more.
INSERT_MOST = 20
#: What is handed to the driver at once.
BLOCK_BYTES = 128 * 1024
#: cascade.post() asks the queue; COPY and INSERT go past it, so the client looks itself.
PAYLOAD_MAX_BYTES = 64 * 1024 * 1024


def table(queue: QueueName) -> sql.Identifier:
    """Return the table of a queue, quoted."""
    return sql.Identifier("queue", queue)


def post_arguments(
    queue: QueueName, codec: Codec[Any], message: Message[Any], event_id: int | None
) -> dict[str, object]:
    """Return what POST wants."""
    return {
        "queue": queue,
        "payload": codec.encode(message.payload),
        "type": message.type,
        "key": message.key,
        "headers": _headers(message),
        "id": event_id,
    }


def as_message(item: Any) -> Message[Any]:
    """Return the item as a message: anything that is not one is a payload."""
    return _allowed(item) if isinstance(item, Message) else Message(item)


def _allowed(message: Message[Any]) -> Message[Any]:
    if message.type is not None and message.type.startswith("cascade."):
        raise ArgumentError(
            f'type "{message.type}" is reserved',
            hint='Types that begin with "cascade." are for Cascade\'s own events.',
        )
    return message


def columns(codec: Codec[Any], items: Sequence[Any]) -> tuple[Sequence[object], ...]:
    """Return the four arrays that INSERT wants."""
    messages = [as_message(item) for item in items]
    payloads = [_checked(codec.encode(message.payload)) for message in messages]
    return (
        [message.type for message in messages],
        [message.key for message in messages],
        payloads,
        [_headers(message) for message in messages],
    )


def copy_blocks(codec: Codec[Any], items: Iterable[Any]) -> Iterator[bytes]:
    """Yield payloads and messages as blocks of COPY text.

    This loop is what bulk publishing costs on the client, so the usual event, whose payload has
    nothing to escape and whose type and key came before, passes through it without a call.
    """
    lines: list[str] = []
    size = 0
    encode, most = codec.encode, PAYLOAD_MAX_BYTES
    prefixes: dict[tuple[str | None, str | None], str] = {}
    for item in items:
        if isinstance(item, Message):
            payload = encode(item.payload)
            prefix = prefixes.get((item.type, item.key))
            if prefix is None:
                prefix = f"{_field(_allowed(item).type)}\t{_field(item.key)}\t"
                if len(prefixes) < 10_000:
                    prefixes[item.type, item.key] = prefix
            headers = "\\N" if item.headers is None else _field(_headers(item))
        else:
            payload, prefix, headers = encode(item), "\\N\t\\N\t", "\\N"
        if "\\" in payload or "\n" in payload or "\t" in payload or "\r" in payload or len(payload) > most:
            payload = _field(_checked(payload))
        line = f"{prefix}{payload}\t{headers}\n"
        lines.append(line)
        size += len(line)
        if size >= BLOCK_BYTES:
            yield "".join(lines).encode()
            lines, size = [], 0
    if lines:
        yield "".join(lines).encode()


def _field(value: str | None) -> str:
    if value is None:
        return "\\N"
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if "\n" in value or "\t" in value or "\r" in value:
        value = value.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return value


def _headers(message: Message[Any]) -> str | None:
    return None if message.headers is None else json.dumps(message.headers, allow_nan=False)


def _checked(payload: str) -> str:
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise PayloadSizeError(
            f"a payload has {len(payload)} characters, at most {PAYLOAD_MAX_BYTES} are taken",
            hint="Store large things elsewhere and publish where they are.",
        )
    return payload
