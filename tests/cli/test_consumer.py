"""cascade consumer: registering, showing, moving and dropping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cascade.sync import Client


@pytest.fixture
def orders(client: Client) -> str:
    """A queue with three ticks of one event each, after its first."""
    client.create_queue("orders")
    for number in range(3):
        client.queue("orders").publish({"id": number})
        client.queue("orders").tick()
    return "orders"


def test_a_consumer_is_made_moved_shown_and_dropped(
    orders: str, run: Callable[..., str], run_json: Callable[..., Any]
) -> None:
    made = run_json("consumer", "create", orders, "billing", "--at", "earliest")
    assert made == {"queue": "orders", "consumer": "billing", "tick_id": "1", "created": True}
    assert run_json("consumer", "create", orders, "billing")["created"] is False
    shown = run_json("consumer", "show", orders, "billing")
    assert (shown["tick_id"], shown["lag_ticks"], shown["lag_events"]) == ("1", 3, 3)
    assert shown["lag_seconds"] > 0
    assert run_json("consumer", "seek", orders, "billing", "3")["tick_id"] == "3"
    assert run_json("consumer", "seek", orders, "billing", "now")["tick_id"] == "4"
    assert run_json("consumer", "list") == run_json("consumer", "list", orders)
    assert "billing" in run("consumer", "list") and "lag events" in run("consumer", "show", orders, "billing")
    assert run_json("consumer", "drop", orders, "billing")["dropped"] is True
    assert run_json("consumer", "list") == []


def test_unusual_names_are_taken_as_they_are(
    orders: str, run: Callable[..., str], run_json: Callable[..., Any]
) -> None:
    for name in ('a"b; --', "größe 日本", "[red]x[/red]", "a'b", "--json"):
        run("consumer", "create", orders, "--", name)
        assert [row["consumer"] for row in run_json("consumer", "list", orders)] == [name]
        assert name in run("consumer", "list", orders)
        run("consumer", "drop", "--", orders, name)


def test_names_that_cannot_be_are_refused(orders: str, fails: Callable[..., Result]) -> None:
    for name in ("", ".hidden", "x" * 101, "a\nb", "\x1b[2J"):
        result = fails(2, "consumer", "create", orders, "--", name)
        assert "consumer name" in result.stderr and "\x1b[2J" not in result.stderr


def test_what_is_not_there_is_an_error_that_says_what_is(
    orders: str, run: Callable[..., str], fails: Callable[..., Result]
) -> None:
    run("consumer", "create", orders, "billing")
    assert "Did you mean 'billing'?" in fails(1, "consumer", "show", orders, "biling").stderr
    assert "Did you mean 'billing'?" in fails(1, "consumer", "drop", orders, "biling").stderr
    assert "no queue" in fails(1, "consumer", "list", "nowhere").stderr
    assert "no consumer" in fails(1, "consumer", "seek", orders, "nobody", "now").stderr


def test_places_that_are_none_are_refused(orders: str, run: Callable[..., str], fails: Callable[..., Result]) -> None:
    run("consumer", "create", orders, "billing")
    for place, code in (("soon", 2), ("99", 1), ("2999-01-01", 2), ("-1", 2)):
        fails(code, "consumer", "seek", orders, "billing", "--", place)
