"""cascade work and cascade dead: running workers, and looking after their messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cascade.sync import Client
from tests.cli.conftest import spawn
from tests.fixtures.database import eventually

OPTIONS = ("--option", "max_attempts=2", "--option", "backoff=constant", "--option", "backoff_delay=1 hour")
TASKS = """
import asyncio, os, time
from pathlib import Path
import cascade

worker = cascade.Worker("orders", "billing")
nothing = 7

@worker.on("paid")
async def paid(payload):
    if payload < 0:
        raise ValueError("below zero")
    return payload * 2

@worker.on("slow")
async def slow(payload):
    Path(f"begun-{payload}").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)

@worker.on("dies")
def dies(payload):
    if not Path("died").exists():
        Path("died").touch()
        os._exit(3)

hasty = cascade.Worker("orders", "billing", stop_within_s=0.2)

@hasty.on()
def stuck(payload):
    Path("stuck").touch()
    time.sleep(3600)
"""


@pytest.fixture
def orders(client: Client, run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue with a consumer in work mode, and a module with a worker in the working directory."""
    client.create_queue("orders")
    run("consumer", "create", "orders", "billing", "--mode", "work", *OPTIONS)
    (tmp_path / "tasks_of_test.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    return "orders"


def publish(client: Client, *payloads: int, kind: str = "paid") -> list[str]:
    ids = [str(client.queue("orders").publish(payload, type=kind)) for payload in payloads]
    client.queue("orders").tick()
    client.call("select count(*) from cascade.dispatch_work()")
    return ids


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start `cascade work run` in the directory of the test; what still runs at the end is killed."""
    started = []

    def begin(*arguments: str, worker: str = "worker") -> Any:
        log = (tmp_path / f"log-{len(started)}").open("w")
        options = {"cwd": tmp_path, "stderr": log, "stdout": log}
        started.append(spawn(dsn, "work", "run", f"tasks_of_test:{worker}", *arguments, **options))
        log.close()
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(20)


def test_messages_are_worked_shown_retried_and_replayed(
    orders: str, client: Client, run: Callable[..., str], run_json: Callable[..., Any], start: Callable[..., Any]
) -> None:
    good, bad = publish(client, 4, -1)
    listed = run_json("work", "list", "orders", "billing")
    assert [(row["id"], row["state"]) for row in listed] == [(good, "waiting"), (bad, "waiting")]
    [status] = run_json("work", "status")
    assert (status["consumer"], status["waiting"], status["dead"]) == ("billing", 2, 0)
    assert "billing" in run("work", "status", "orders") and run_json("work", "status", "other") == []
    assert start("--drain").wait(60) == 0
    found = run_json("work", "show", "orders", "billing", good)
    assert (found["state"], found["result"]) == ("done", 8)
    [left] = run_json("work", "list", "orders", "billing", "--state", "delayed")
    assert left["id"] == bad and left["error"].startswith("ValueError: below zero\n\nTraceback")
    assert "below zero" in run("work", "list", "orders", "billing")
    assert run("work", "retry", "orders", "billing", bad) == "1 message made ready\n"
    assert start("--drain", "--log-format", "json", "--log-level", "warning").wait(60) == 0
    record = json.loads(Path("log-1").read_text())
    assert (record["message_id"], record["attempt"], record["due"]) == (int(bad), 2, None)
    [dead] = run_json("dead", "list", "orders", "billing")
    assert (dead["id"], dead["attempts"], dead["payload"]) == (bad, 2, -1)
    shown = run_json("dead", "show", "orders", "billing", bad)
    assert [row["outcome"] for row in shown["attempts_made"]] == ["failed", "failed"]
    text = run("dead", "show", "orders", "billing", bad)
    assert "Traceback" in text and "below zero" in text and bad in text
    assert "below zero" in run("work", "show", "orders", "billing", bad)
    assert run("dead", "replay", "orders", "billing", "--where", "$.payload > 0") == "0 replayed\n"
    assert run_json("dead", "replay", "orders", "billing", "--where", '$.type == "paid"') == {"messages": 1}
    assert run_json("dead", "list", "orders", "billing") == []
    assert start("--drain").wait(60) == 0
    [again] = run_json("work", "list", "orders", "billing")
    assert (again["id"], again["state"]) == (bad, "delayed")
    assert run("work", "bury", "orders", "billing", bad) == "1 message buried\n"
    assert run_json("dead", "purge", "orders", "billing", bad, "--yes") == {"messages": 1}


def test_waiting_messages_are_purged_and_active_ones_taken_back(
    orders: str, client: Client, run: Callable[..., str], run_json: Callable[..., Any], start: Callable[..., Any]
) -> None:
    first, second = publish(client, 1, 2, kind="slow")
    process = start("--concurrency", "1", "--batch", "1")
    eventually(lambda: Path("begun-1").exists(), within_s=60)
    [active] = run_json("work", "list", "orders", "billing", "--state", "active")
    assert active["id"] == first and active["worker"]
    assert run("work", "release", "orders", "billing", first, second) == "1 message taken back, of 2 asked for\n"
    assert run_json("work", "purge", "orders", "billing", "--yes")["messages"] >= 1
    Path("go").touch()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_sigterm_finishes_what_has_begun(
    orders: str, client: Client, run_json: Callable[..., Any], start: Callable[..., Any]
) -> None:
    ids = publish(client, *range(6), kind="slow")
    process = start("--concurrency", "2", "--processes", "2")
    eventually(lambda: len(list(Path().glob("begun-*"))) == 4, within_s=60)
    process.send_signal(signal.SIGTERM)
    waiting = ("work", "list", "orders", "billing", "--state", "waiting")
    eventually(lambda: len(run_json(*waiting)) == 2, within_s=60)
    Path("go").touch()
    assert process.wait(60) == 0
    states = [run_json("work", "show", "orders", "billing", message)["state"] for message in ids]
    assert sorted(states) == ["done"] * 4 + ["waiting"] * 2


def test_a_process_leaves_without_a_thread_that_does_not_return(
    orders: str, client: Client, run_json: Callable[..., Any], start: Callable[..., Any]
) -> None:
    publish(client, 1)
    process = start(worker="hasty")
    eventually(Path("stuck").exists, within_s=60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert "did not end in time; leaving without it" in Path("log-0").read_text()
    [again] = run_json("work", "list", "orders", "billing")
    assert again["state"] == "waiting"


def test_a_process_that_dies_is_started_again(
    orders: str, client: Client, run_json: Callable[..., Any], start: Callable[..., Any]
) -> None:
    [message] = publish(client, 1, kind="dies")
    process = start("--processes", "2")
    eventually(lambda: "ended with exit code 3; again in 1 s" in Path("log-0").read_text(), within_s=60)

    def is_done() -> bool:
        client.call("select count(*) from cascade.tend_work()")
        run_json("work", "retry", "orders", "billing", message)
        return bool(run_json("work", "show", "orders", "billing", message)["state"] == "done")

    eventually(is_done, within_s=60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_a_command_that_cannot_be_undone_asks(orders: str, fails: Callable[..., Result]) -> None:
    assert "--yes" in fails(2, "work", "purge", "orders", "billing").stderr
    assert "--all" in fails(2, "dead", "purge", "orders", "billing").stderr
    assert "--yes" in fails(2, "dead", "purge", "orders", "billing", "--all").stderr
    assert "--where" in fails(2, "dead", "replay", "orders", "billing").stderr


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("no_such_module:worker", "No module named"),
        ("tasks_of_test:no_such_worker", "no attribute"),
        ("tasks_of_test:nothing", "is a int, no cascade.Worker"),
        ("tasks_of_test", "cannot be loaded"),
    ],
)
def test_a_worker_that_is_not_there_is_an_error_that_says_so(
    orders: str, fails: Callable[..., Result], spec: str, expected: str
) -> None:
    assert expected in fails(2, "work", "run", spec).stderr


def test_what_is_not_known_is_an_error_that_says_where_to_look(orders: str, fails: Callable[..., Result]) -> None:
    assert "cascade work list" in fails(1, "work", "show", "orders", "billing", "17").stderr
    assert "cascade work show" in fails(1, "dead", "show", "orders", "billing", "17").stderr
    fails(1, "work", "list", "orders", "nobody")


def test_a_program_may_run_its_worker_itself(
    orders: str, client: Client, dsn: str, run_json: Callable[..., Any], tmp_path: Path
) -> None:
    [message] = publish(client, 4)
    program = [sys.executable, "-c", "import tasks_of_test as t; t.worker.run_forever()"]
    with subprocess.Popen(program, cwd=tmp_path, env=os.environ | {"CASCADE_DSN": dsn}) as process:
        eventually(lambda: run_json("work", "show", "orders", "billing", message)["state"] == "done", within_s=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
