"""cascade queue: making, showing, changing and dropping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cascade.sync import Client
from tests.cli.conftest import invoke

HOSTILE = ['a"; drop schema cascade; --', "a'b", "../etc", "", "a b", "ä", "x" * 41, "[red]x[/red]", "a\nb"]


def test_a_queue_is_made_once(run_json: Callable[..., Any]) -> None:
    assert run_json("queue", "create", "orders", "--option", "slots=4") == {"queue": "orders", "created": True}
    assert run_json("queue", "create", "orders", "--option", "slots=4") == {"queue": "orders", "created": False}


def test_a_queue_with_other_options_is_in_the_way(run: Callable[..., str], fails: Callable[..., Result]) -> None:
    run("queue", "create", "orders")
    assert "with other options" in fails(1, "queue", "create", "orders", "--option", "tick_idle=3 h").stderr


def test_names_that_cannot_be_are_refused_and_do_no_harm(fails: Callable[..., Result]) -> None:
    for name in HOSTILE:
        assert "name" in fails(2, "queue", "create", "--", name).stderr
        assert "no queue" in fails(1, "queue", "show", "--", name).stderr


def test_a_name_that_looks_like_an_option_can_be_given_after_two_hyphens(fails: Callable[..., Result]) -> None:
    assert "cannot be used" in fails(2, "queue", "create", "--", "--json").stderr


def test_bad_options_are_bad_usage(fails: Callable[..., Result]) -> None:
    for pair in ("slots", "=3", "slots=99", "name=x", "tick_idle=soon", "slots=4=5"):
        fails(2, "queue", "create", "orders", "--option", pair)


def test_an_option_given_twice_is_bad_usage(fails: Callable[..., Result]) -> None:
    result = fails(2, "queue", "create", "orders", "--option", "slots=4", "--option", "slots=5")
    assert "given twice" in result.stderr


def test_options_can_be_changed(run_json: Callable[..., Any], fails: Callable[..., Result]) -> None:
    run_json("queue", "create", "orders")
    changed = run_json("queue", "alter", "orders", "--option", "tick_idle=3 h")
    assert changed["options"]["tick_idle"] == "03:00:00"
    assert "nothing to change" in fails(2, "queue", "alter", "orders").stderr
    fails(2, "queue", "alter", "orders", "--option", "slots=4")
    fails(1, "queue", "alter", "nowhere", "--option", "tick_idle=3 h")


def test_the_list_has_a_row_per_queue(run: Callable[..., str], run_json: Callable[..., Any], client: Client) -> None:
    assert run_json("queue", "list") == []
    run("queue", "create", "orders")
    run("queue", "create", "returns")
    client.queue("orders").publish({"id": 1})
    client.queue("orders").tick()
    orders, returns = run_json("queue", "list")
    assert (orders["queue"], returns["queue"]) == ("orders", "returns")
    assert orders["events_ticked"] == 1 and orders["last_tick"] == "2" and orders["bytes"] > 0
    table = run("queue", "list").splitlines()
    assert table[0].split()[0] == "queue" and [line.split()[0] for line in table[1:]] == ["orders", "returns"]


def test_a_queue_is_shown_with_ticks_consumers_and_rotation(
    run: Callable[..., str], run_json: Callable[..., Any], client: Client
) -> None:
    run("queue", "create", "orders")
    run("consumer", "create", "orders", "billing")
    client.queue("orders").publish({"id": 1})
    client.queue("orders").tick()
    for _ in range(3):
        client.call("select count(*) from cascade.rotate('orders')")
        client.queue("orders").tick()
    shown = run_json("queue", "show", "orders")
    assert shown["options"]["slots"] == 3
    assert int(shown["ticks"][0]["tick_id"]) > int(shown["ticks"][-1]["tick_id"])
    assert shown["subscriptions"][0]["lag_events"] == 1
    assert shown["rotation"]["blocked_by"] == "consumer" and shown["rotation"]["blocker"] == "billing"
    text = run("queue", "show", "orders")
    assert all(word in text for word in ("options", "last ticks", "billing", "waits for", "rotation_period"))


def test_a_queue_that_is_not_there_is_said_to_be_nearly_another(
    run: Callable[..., str], fails: Callable[..., Result]
) -> None:
    run("queue", "create", "orders")
    assert "Did you mean 'orders'?" in fails(1, "queue", "show", "ordres").stderr


def test_a_drop_without_a_terminal_needs_yes(run: Callable[..., str], fails: Callable[..., Result]) -> None:
    run("queue", "create", "orders")
    assert "--yes" in fails(2, "queue", "drop", "orders").stderr
    assert run("queue", "drop", "orders", "--yes") == "dropped queue orders\n"
    fails(1, "queue", "drop", "orders", "--yes")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_a_drop_on_a_terminal_asks(
    answer: str, code: int, run: Callable[..., str], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("queue", "create", "orders")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = invoke("queue", "drop", "orders", dsn=dsn, stdin=answer.encode())
    assert result.exit_code == code and "Drop queue orders" in result.stderr


def test_a_queue_with_consumers_is_dropped_only_by_force(
    run: Callable[..., str], run_json: Callable[..., Any], fails: Callable[..., Result]
) -> None:
    run("queue", "create", "orders")
    run("consumer", "create", "orders", "billing")
    refused = fails(3, "queue", "drop", "orders", "--yes")
    assert "billing" in refused.stderr and "--force" in refused.stderr
    assert run_json("queue", "drop", "orders", "--yes", "--force") == {"queue": "orders", "dropped": True}
