"""cascade queue publish and tail: events in, events out."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cascade.event import COLUMNS
from cascade.sync import Client
from tests.cli.conftest import invoke, spawn


@pytest.fixture(autouse=True)
def orders(client: Client) -> None:
    """An empty queue."""
    client.create_queue("orders")


@pytest.fixture
def read(run: Callable[..., str], client: Client) -> Callable[..., list[Any]]:
    """Make a tick, and return all events."""

    def read_it(*arguments: str) -> list[Any]:
        client.queue("orders").tick()
        return [
            json.loads(line)
            for line in run("queue", "tail", "orders", "--no-follow", "--json", *arguments).splitlines()
        ]

    return read_it


def test_one_event_is_published_with_all_it_carries(run_json: Callable[..., Any], read: Callable[..., Any]) -> None:
    arguments = ("--type", "order.paid", "--key", "acme", "--headers", '{"trace": "x"}')
    done = run_json("queue", "publish", "orders", '{"id":   7}', *arguments)
    assert done == {"queue": "orders", "published": 1, "id": "1"}
    [event] = read()
    assert set(event) == {*COLUMNS.split(", ")}
    assert (event["id"], event["type"], event["key"], event["attempt"]) == ("1", "order.paid", "acme", 1)
    assert event["payload"] == {"id": 7} and event["headers"] == {"trace": "x"}


def test_lines_from_stdin_are_published_as_they_are(run_json: Callable[..., Any], read: Callable[..., Any]) -> None:
    lines = '{"id": 1}\r\n\n[2, "tab\\t\\\\n"]\n"größe"\nnull\n12345678901234567890123456789\n'
    done = run_json("queue", "publish", "orders", "--file", "-", "--type", "t", stdin=lines.encode())
    assert done == {"queue": "orders", "published": 5}
    events = read()
    expected = [{"id": 1}, [2, "tab\t\\n"], "größe", None, 12345678901234567890123456789]
    assert [event["payload"] for event in events] == expected
    assert {event["type"] for event in events} == {"t"}


def test_many_lines_of_a_file_are_published(
    tmp_path: Path, run_json: Callable[..., Any], read: Callable[..., Any]
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text("\ufeff" + "".join(f'{{"id": {n}}}\n' for n in range(5000)), encoding="utf-8")
    assert run_json("queue", "publish", "orders", "-f", str(path))["published"] == 5000
    assert [event["payload"]["id"] for event in read()] == list(range(5000))


def test_a_bad_line_is_named_and_nothing_is_published(fails: Callable[..., Result], read: Callable[..., Any]) -> None:
    good = b"".join(b'{"id": %d}\n' % n for n in range(6000))  # enough for a block to have been sent before
    for bad in (b"{", b"NaN", b"\xff", b"'a'", b"1 2", b'{"a": "\x00"}', b"[" * 100_000):
        result = fails(1, "queue", "publish", "orders", "-f", "-", stdin=good + b"\n" + bad + b"\n7\n")
        assert "line 6002 is not" in result.stderr
    assert read() == []


def test_what_cannot_be_published_is_bad_usage(fails: Callable[..., Result]) -> None:
    for arguments in ([], ["1", "-f", "-"], ["{"], ["text"], ["1", "--headers", "[]"], ["-f", "/nowhere"]):
        fails(2, "queue", "publish", "orders", *arguments)


def test_publishing_to_no_queue_is_an_error(fails: Callable[..., Result]) -> None:
    assert "nowhere" in fails(1, "queue", "publish", "nowhere", "1").stderr
    assert "nowhere" in fails(1, "queue", "publish", "nowhere", "-f", "-", stdin=b"1\n").stderr
    fails(2, "queue", "publish", 'a"b', "-f", "-", stdin=b"1\n")


def test_lines_of_a_file_are_held_to_the_limit_of_the_queue(fails: Callable[..., Result], client: Client) -> None:
    client.create_queue("small", payload_max_bytes=10)
    result = fails(1, "queue", "publish", "small", "-f", "-", stdin=b"1234567890\n12345678901\n")
    assert "have 11 bytes, the queue takes 10" in result.stderr
    fails(1, "queue", "publish", "small", "12345678901")


def test_people_read_one_line_per_event(run: Callable[..., str], client: Client) -> None:
    client.queue("orders").publish({"id": 7}, type="order.paid", key="\x1b[2Jacme")
    client.queue("orders").tick()
    [line] = run("queue", "tail", "orders", "--no-follow").splitlines()
    assert line.split("  ")[1:] == ["1", "order.paid", "\\x1b[2Jacme", '{"id":7}']


def test_a_tail_leaves_no_consumer_behind(read: Callable[..., Any], run_json: Callable[..., Any]) -> None:
    run_json("queue", "publish", "orders", "1")
    assert len(read()) == 1
    assert run_json("consumer", "list") == []


def test_a_tail_begins_where_it_is_told(client: Client, read: Callable[..., Any], fails: Callable[..., Result]) -> None:
    for number in range(4):
        client.queue("orders").publish(number)
        middle = client.queue("orders").tick()
        if number == 1:
            begin = middle
    assert [event["payload"] for event in read("--from", str(begin))] == [2, 3]
    assert [event["payload"] for event in read("-n", "3")] == [0, 1, 2]
    assert read("--from", "now") == []
    assert "no place" in fails(2, "queue", "tail", "orders", "--from", "soon").stderr


def test_a_named_consumer_is_moved_by_whole_batches(
    client: Client, read: Callable[..., Any], run_json: Callable[..., Any], dsn: str
) -> None:
    client.queue("orders").publish_many([1, 2, 3])
    client.queue("orders").tick()
    arguments = ("queue", "tail", "orders", "--consumer", "billing", "--from", "earliest", "-n", "2")
    result = invoke(*arguments, dsn=dsn)
    assert result.exit_code == 0 and "given all of it again" in result.stderr
    assert [event["payload"] for event in read("--consumer", "billing", "-n", "3")] == [1, 2, 3]
    assert read("--consumer", "billing") == []
    assert run_json("consumer", "show", "orders", "billing")["lag_events"] == 0
    assert "seek" in invoke(*arguments, dsn=dsn).stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_tail_that_is_interrupted_forgets_its_consumer(
    number: int, code: int, client: Client, dsn: str, run_json: Callable[..., Any]
) -> None:
    with spawn(dsn, "queue", "tail", "orders", "--from", "earliest", "--json") as process:
        client.queue("orders").publish({"id": 1})
        client.queue("orders").tick()
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == {"id": 1}
        assert [row["consumer"][:5] for row in run_json("consumer", "list")] == ["tail-"]
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert run_json("consumer", "list") == []
