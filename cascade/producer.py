"""Write events: the statements and the encoding that both clients share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, LiteralString
from weakref import WeakKeyDictionary

from psycopg import sql

from cascade.codec import Codec
from cascade.errors import ArgumentError, PayloadSizeError
from cascade.event import OPTIONS, Message, Options
from cascade.names import QueueName

POST: LiteralString = (
    "select cascade.post(%(queue)s::text, %(payload)s::json, %(type)s::text, %(key)s::text,"
    " %(headers)s::json, %(id)s::bigint)"
)
#: Each option of a message, and its type; only those that are given are named in the call.
OPTION_TYPES: dict[str, LiteralString] = {
    "delay": "interval",
    "deliver_at": "timestamptz",
    "expires_at": "timestamptz",
    "priority": "integer",
    "after": "bigint[]",
    "after_in": "jsonb",
    "dedupe_key": "text",
    "dedupe_for": "interval",
}
RESERVE: LiteralString = "select cascade.reserve_id(%s)"
INSERT = sql.SQL(
    "insert into {} (type, key, payload, headers) select * from unnest(%s::text[], %s::text[], %s::json[], %s::json[])"
)
LIMIT: LiteralString = "select cascade.payload_limit(%s)"
COPY = sql.SQL("copy {} (type, key, payload, headers) from stdin (encoding 'UTF8')")

#: Up to so many events travel in one INSERT; COPY costs one round trip more.
INSERT_MOST = 20
#: What is handed to the driver at once: little, so that the server has work while the next events are encoded.
BLOCK_BYTES = 16 * 1024
#: How long a queue's limit of size is taken for granted: another question would be half of what an INSERT costs.
LIMIT_KNOWN_S = 60.0


class Limits:
    """What the queues of each database take at most; COPY and INSERT go past cascade.post(), so the client looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By connection, so that what was learned at one root does not hold at the next.
        self._known: WeakKeyDictionary[object, dict[QueueName, tuple[int, float]]] = WeakKeyDictionary()

    def known(self, conn: object, queue: QueueName) -> int | None:
        """Return the limit of a queue, unless that was asked too long ago."""
        most, until = self._known.get(conn, {}).get(queue, (None, 0.0))
        return most if self._clock() < until else None

    def learn(self, conn: object, queue: QueueName, row: Sequence[object] | None) -> int:
        """Remember what LIMIT returned."""
        assert row is not None
        most = int(str(row[0]))
        self._known.setdefault(conn, {})[queue] = most, self._clock() + LIMIT_KNOWN_S
        return most

    def forget(self) -> None:
        """Ask again: an option was changed."""
        self._known.clear()


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


def post(
    arguments: Mapping[str, object], options: Options | None
) -> tuple[LiteralString | sql.Composed, Mapping[str, object]]:
    """Return the call of cascade.post() and what it wants; without options it is POST."""
    given = {} if options is None else options.arguments()
    if not given:
        return POST, arguments
    named = [
        sql.SQL("{} => {}::" + OPTION_TYPES[name]).format(sql.Identifier(name), sql.Placeholder(name)) for name in given
    ]
    return sql.SQL(POST[:-1] + ", {})").format(sql.SQL(", ").join(named)), {**arguments, **given}


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


def columns(codec: Codec[Any], items: Sequence[Any], most: int) -> tuple[Sequence[object], ...]:
    """Return the four arrays that INSERT wants, of events that have no more bytes than the queue takes."""
    messages = [as_message(item) for item in items]
    headers = [_headers(message) for message in messages]
    payloads = [
        _checked(codec.encode(message.payload), also, most) for message, also in zip(messages, headers, strict=True)
    ]
    return [message.type for message in messages], [message.key for message in messages], payloads, headers


def copy_blocks(codec: Codec[Any], items: Iterable[Any], most: int) -> Iterator[bytes]:
    """Yield payloads and messages, of no more bytes than the queue takes, as blocks of COPY text.

    This loop is what bulk publishing costs on the client, so the usual event, whose payload has
    nothing to escape and whose type and key came before, passes through it without a call.
    """
    lines: list[str] = []
    size = 0
    encode = codec.encode
    # No character has more bytes than four.
    plain = most // 4
    prefixes: dict[tuple[str | None, str | None], str] = {}
    for item in items:
        if isinstance(item, Message):
            payload = encode(item.payload)
            prefix = prefixes.get((item.type, item.key))
            if prefix is None:
                prefix = f"{_field(_allowed(item).type)}\t{_field(item.key)}\t"
                if len(prefixes) < 10_000:
                    prefixes[item.type, item.key] = prefix
            headers = "\\N"
            if item.headers is not None or item.options is not None:
                text = _headers(item)
                _checked(payload, text, most)
                headers = _field(text)
        else:
            payload, prefix, headers = encode(item), "\\N\t\\N\t", "\\N"
        if "\\" in payload or "\n" in payload or "\t" in payload or "\r" in payload or len(payload) > plain:
            payload = _field(_checked(payload, None, most))
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
    if message.options is None:
        return None if message.headers is None else json.dumps(message.headers, allow_nan=False)
    if message.options.dedupe_key is not None:
        raise ArgumentError(
            "publish_many cannot look for duplicates", hint="Publish messages with a dedupe_key one by one."
        )
    return json.dumps({**(message.headers or {}), OPTIONS: message.options.header()}, allow_nan=False)


def _checked(payload: str, headers: str | None, most: int) -> str:
    size = _bytes(payload) + (0 if headers is None else _bytes(headers))
    if size > most:
        raise PayloadSizeError(
            f"payload and headers have {size} bytes, the queue takes {most}",
            hint="Store large things elsewhere and publish where they are, or raise payload_max_bytes of the queue.",
        )
    return payload


def _bytes(text: str) -> int:
    # Whether it is ASCII is known without looking at the text.
    return len(text) if text.isascii() else len(text.encode())
