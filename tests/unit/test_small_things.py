"""Pure helpers: names, waits, COPY text."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade.codec import JsonCodec
from cascade.errors import NameRefusedError, PayloadSizeError
from cascade.event import Message
from cascade.names import queue_name
from cascade.producer import BLOCK_BYTES, LIMIT_KNOWN_S, Limits, columns, copy_blocks
from cascade.retry import Backoff


@pytest.mark.parametrize("name", ["q", "Orders-EU", "_x", "9", "x" * 40])
def test_good_names_pass(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", "a b", 'a"b', "a;b", "x" * 41, ".x", "é", "a\n", None, 7])
def test_bad_names_are_refused(name: object) -> None:
    with pytest.raises(NameRefusedError):
        queue_name(name)  # type: ignore[arg-type]


def test_waits_grow_and_stay_below_their_limit() -> None:
    waits = list(islice(Backoff(first_s=0.2, most_s=5).delays(), 200))
    assert all(0.04 < wait <= 5 for wait in waits)
    assert max(waits[:2]) <= 0.4
    assert max(waits[20:]) > 2
    assert len(set(waits[20:])) > 100, "drawn at random"


ORDERS = queue_name("orders")
#: What a queue takes, unless it is told otherwise.
MOST = 64 * 1024 * 1024
#: What PostgreSQL can hold in a text column.
NAMES = st.text(st.characters(exclude_categories=["Cs"]))
#: What a type may be: those of Cascade's own events are refused.
TYPES = NAMES.filter(lambda name: not name.startswith("cascade."))


def unescape(field: str) -> str | None:
    """What PostgreSQL makes of a field of COPY text."""
    if field == "\\N":
        return None
    plain, position = "", 0
    while position < len(field):
        if field[position] == "\\":
            position += 1
            plain += {"n": "\n", "t": "\t", "r": "\r"}.get(field[position], field[position])
        else:
            plain += field[position]
        position += 1
    return plain


@given(st.lists(st.tuples(st.none() | TYPES, st.none() | NAMES, st.text())))
def test_copy_text_can_be_read_back(rows: list[tuple[str | None, str | None, str]]) -> None:
    codec = JsonCodec()
    messages = [Message(payload, type=kind, key=key, headers={"k": kind}) for kind, key, payload in rows]
    text = b"".join(copy_blocks(codec, messages, MOST)).decode()
    lines = text.split("\n")
    assert lines.pop() == ""
    found = [[unescape(field) for field in line.split("\t")] for line in lines]
    assert [(row[0], row[1], row[2]) for row in found] == [(k, y, codec.encode(p)) for k, y, p in rows]


def test_copy_text_comes_in_blocks() -> None:
    blocks = list(copy_blocks(JsonCodec(), (Message("x" * 1000) for _ in range(1000)), MOST))
    assert sum(block.count(b"\n") for block in blocks) == 1000
    assert len(blocks) > 5
    assert all(len(block) < 2 * BLOCK_BYTES for block in blocks)


@pytest.mark.parametrize("text", ["x" * 98, "é" * 49, "\U0001f600" * 24 + "xx", '"' * 49, "\t" * 49])
def test_the_limit_is_of_bytes_and_exact(text: str) -> None:
    """Whatever the characters cost in UTF-8, and however COPY writes them."""
    for message, size in ((Message(text), 100), (Message(text, headers={"n": 1}), 108)):
        assert len(list(copy_blocks(JsonCodec(), [message], size))) == 1
        assert columns(JsonCodec(), [message], size)[2] == [JsonCodec().encode(text)]
        with pytest.raises(PayloadSizeError, match=f"have {size} bytes, the queue takes {size - 1}"):
            list(copy_blocks(JsonCodec(), [message], size - 1))
        with pytest.raises(PayloadSizeError, match=f"have {size} bytes, the queue takes {size - 1}"):
            columns(JsonCodec(), [message], size - 1)


def test_a_limit_is_known_for_a_minute_and_of_one_connection() -> None:
    class Connection:
        pass

    now, here, there = 0.0, Connection(), Connection()
    limits = Limits(lambda: now)
    assert limits.known(here, ORDERS) is None
    assert limits.learn(here, ORDERS, (1000,)) == limits.known(here, ORDERS) == 1000
    assert limits.known(there, ORDERS) is None and limits.known(here, queue_name("other")) is None
    now = LIMIT_KNOWN_S
    assert limits.known(here, ORDERS) is None
    limits.learn(here, ORDERS, (1000,))
    limits.forget()
    assert limits.known(here, ORDERS) is None
