"""The daemon as a process: it waits for what is not there yet, stops when told, and serves all its sets."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.fixtures.cascade import LINK_TIMEOUT_S, Cascade, eventually

STOP_WITHIN_S = 10.0


def stop_all(cascade: Cascade, *names: str) -> float:
    """Send SIGTERM to daemons, and return how long the last one took."""
    began = time.monotonic()
    for name in names:
        cascade.daemon(name).process.send_signal(signal.SIGTERM)
    for name in names:
        assert cascade.daemon(name).process.wait(timeout=STOP_WITHIN_S * 2) == 0, cascade.daemon(name).log.read_text()
    return time.monotonic() - began


def service(cascade: Cascade, name: str, wanted: str = "orders/node") -> dict[str, Any]:
    """What a daemon says of one of its services, or nothing yet."""
    found = cascade.daemon(name).health() or {"services": {}}
    return defaultdict(str, found["services"].get(wanted, {}))


def test_sigterm_ends_busy_daemons_in_time(orders: Cascade) -> None:
    with orders.load(count=200):
        orders.advance("s4")
        assert stop_all(orders, *orders.nodes) < STOP_WITHIN_S
        orders.start()
        orders.advance("s4")
    orders.check_all()


def test_sigterm_ends_daemons_whose_databases_are_gone_or_silent(cascade: Cascade) -> None:
    links = [cascade.define().proxy("s2", "s2"), cascade.proxy("s3", "s1")]
    cascade.run()
    cascade.publish(100)
    cascade.settle()
    with cascade.down("s4"):
        for link in links:
            link.stall()
        cascade.publish(100)
        assert stop_all(cascade, "s2", "s3", "s4") < STOP_WITHIN_S + LINK_TIMEOUT_S
        for link in links:
            link.heal()
    cascade.start("s2", "s3", "s4")
    cascade.check_all()


def test_a_daemon_leaves_without_a_handler_that_never_returns(cascade: Cascade) -> None:
    """A thread cannot be ended from outside; what it had open is rolled back, and comes again."""
    branch = {"role": "branch", "provider": "s1", "handler": "tests.fixtures.handlers:never_return"}
    cascade.define({"s1": {"role": "root"}, "s2": branch})
    db = cascade.dbs["s2"]
    for table in ("handler_fails (reason text)", "cascade_events (event_id bigint, batch_to bigint, payload json)"):
        db.main.execute(f"create table public.{table}".encode())
    cascade.env["CASCADE_STOP_WITHIN_S"] = "1"
    cascade.run()
    cascade.publish(10)
    stuck = (
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and state = 'idle in transaction' and query like '%handler_fails%'"
    )
    eventually(lambda: db.value(stuck) == 1)
    daemon = cascade.daemon("s2")
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(timeout=STOP_WITHIN_S * 2) == 1
    assert "something did not end in time; leaving" in daemon.log.read_text()

    cascade.nodes["s2"]["handler"] = "tests.fixtures.handlers:store_sync"
    cascade.write_files()
    cascade.start("s2")
    stored = "select count(*), count(distinct event_id) from public.cascade_events"
    eventually(lambda: db.row(stored) == (10, 10))
    cascade.check_all()


def test_a_daemon_may_come_before_its_database_its_provider_and_its_set(cascade: Cascade) -> None:
    cascade.define()
    db = cascade.dbs["s3"]
    with psycopg.connect(db.backend.admin_dsn, autocommit=True) as admin:
        names = sql.Identifier(db.name), sql.Identifier(f"{db.name}_later")
        admin.execute(sql.SQL("alter database {} rename to {}").format(*names))
        with cascade.down("s2"):
            for name in cascade.nodes:
                cascade.start_one(name)
            for name in ("s2", "s3"):
                eventually(lambda name=name: "again in" in cascade.daemon(name).log.read_text())
            eventually(lambda: "set orders does not exist at s1 yet" in str(service(cascade, "s4")["error"]))
            eventually(lambda: "cascade set create orders" in str(service(cascade, "s1")["note"]))
        admin.execute(sql.SQL("alter database {} rename to {}").format(*reversed(names)))
    cascade.create()
    for name in cascade.nodes:
        eventually(lambda name=name: cascade.is_serving(cascade.daemon(name)), within_s=60)
    for name in cascade.carriers():
        cascade.dbs[name].rows("select cascade.subscribe('orders', 'audit', 'earliest')")
    cascade.publish(100)
    cascade.check_all()


def test_one_process_serves_several_sets_and_the_trouble_of_one_is_not_the_others(cascade: Cascade) -> None:
    cascade.define()
    nodes = {
        "i1": {"database": "s2", "role": "root"},
        "i2": {"database": "s1", "role": "branch", "provider": "i1"},
        "i3": {"database": "s3", "role": "leaf", "provider": "i2", "handler": "no.such:handler"},
    }
    cascade.sets["invoices"] = {"nodes": nodes}
    cascade.write_files()
    cascade.cli("set", "create", "invoices")
    cascade.create()
    for name in cascade.nodes:
        cascade.start_one(name)
    found = cascade.dbs["s1"]
    eventually(lambda: found.value("select count(*) from cascade.nodes") == 2, within_s=60)
    for name, expected in (("s1", "invoices/copier"), ("s2", "orders/copier")):
        eventually(lambda name=name, expected=expected: service(cascade, name, expected)["state"] == "running")
    for name in cascade.carriers():
        eventually(lambda name=name: cascade.dbs[name].value("select count(*) from cascade.nodes where set = 'orders'"))
        cascade.dbs[name].rows("select cascade.subscribe('orders', 'audit', 'earliest')")
    found.rows("select cascade.subscribe('invoices', 'audit', 'earliest')")
    for n in range(1, 51):
        cascade.dbs["s2"].main.execute("insert into queue.invoices (type, payload) values ('n', %s)", (json.dumps(n),))
    cascade.publish(100)
    cascade.check_all()
    numbers: list[int] = []
    eventually(lambda: numbers.extend(found.drain("audit", "invoices")) or len(numbers) >= 50)
    assert sorted(numbers) == list(range(1, 51))
    health = eventually(lambda: (answer := cascade.daemon("s3").health()) and not answer["healthy"] and answer)
    assert "no.such" in health["problems"]["invoices/node"]
    assert health["services"]["orders/copier"]["state"] == "running"


def test_systemd_is_told(cascade: Cascade, tmp_path: Path) -> None:
    cascade.define({"s1": {"role": "root"}}).create()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        path = tmp_path / "notify"
        told.bind(str(path))
        told.settimeout(30)
        daemon = cascade.start_one("s1", NOTIFY_SOCKET=str(path), WATCHDOG_USEC="200000")
        seen = {told.recv(100)}
        while not {b"READY=1", b"WATCHDOG=1"} <= seen:
            seen.add(told.recv(100))
        assert b"STOPPING=1" not in seen
        assert told.recv(100) == b"WATCHDOG=1"
        daemon.process.send_signal(signal.SIGTERM)
        while told.recv(100) != b"STOPPING=1":
            pass
        assert daemon.process.wait(timeout=20) == 0
