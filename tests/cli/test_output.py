"""How values are shown; no database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cascade.cli import suggestion
from cascade.cli.output import event_line, human_bytes, human_seconds, plain, printable
from cascade.event import Event


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0124, "12 ms"), (3.44, "3.4 s"), (310, "5 min 10 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h")],
)
def test_lengths_of_time_are_short(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1536, "1.5 kB"), (5 << 30, "5.0 GB"), (1 << 50, "1024.0 TB")]
)
def test_sizes_are_short(size: int, text: str) -> None:
    assert human_bytes(size) == text


def test_json_has_ids_as_text_times_as_iso_and_intervals_in_seconds() -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    row = {"tick_id": 2**60, "time": moment, "age": timedelta(seconds=1.5), "bytes": Decimal(7), "open": [1]}
    assert plain(row) == {
        "tick_id": "1152921504606846976",
        "time": "2030-01-31T12:00:00+00:00",
        "age_s": 1.5,
        "bytes": 7,
        "open": ["1"],
    }
    assert plain({"age": None, "txid": None}) == {"age_s": None, "txid": None}


def test_text_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\nc\x9b") == "a\\x1b[2Jb\\nc\\x9b"
    assert printable("größe 日本") == "größe 日本"


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    moment = datetime(2030, 1, 31, 12, tzinfo=UTC)
    row = (2**60, moment, 7, "t\n\x1b[0m", None, '{"a":\n\r 1e999}', None, None, None, 1)
    event = Event(row, json.loads)
    human, text = event_line(event, as_json=False), event_line(event, as_json=True)
    assert human.count("\n") == text.count("\n") == 1 and "\x1b" not in human
    assert '"payload": {"a":   1e999}}' in text
    assert json.loads(text)["id"] == str(2**60)


def test_a_name_nearly_right_is_suggested() -> None:
    assert suggestion("ordes", ["orders", "billing"], "none") == "Did you mean 'orders'?"
    assert suggestion("xyz", ["orders"], "none") == "none"
