"""A root whose own server loses its tail, or comes to another timeline: real servers, whose files are put back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.cascade import Cascade, eventually
from tests.fixtures.operator import Operator

pytestmark = pytest.mark.timeout(300)


@contextmanager
def put_back(orders: Cascade, name: str, saved: Path) -> Iterator[None]:
    """Whatever a server writes during the block is not there afterwards: its files are those from before."""
    server = orders.server(name)
    server.stop()
    copy(server.data_dir, saved)
    server.start()
    orders.dbs[name].disconnect()
    yield
    server.kill()
    shutil.rmtree(server.data_dir)
    copy(saved, server.data_dir)
    server.start()
    orders.dbs[name].disconnect()


def copy(source: Path, target: Path) -> None:
    """Copy a data directory with its owner, who need not be whoever runs the tests."""
    subprocess.run(["cp", "-a", source, target], check=True)


def fence_of(orders: Cascade, name: str) -> Any:
    """Return why a node refuses inserts, and whether the fence is up; None while it does not answer."""
    try:
        fence = orders.dbs[name].value("select cascade.describe_set('orders')")["fence"]
    except psycopg.OperationalError:
        orders.dbs[name].disconnect()
        return None
    return fence and (fence["cause"], fence["is_up"])


def try_to_publish(orders: Cascade, name: str, first: int, count: int) -> list[int]:
    """Insert events one by one, and return the numbers of those that were acknowledged."""
    taken = []
    for number in range(first, first + count):
        try:
            orders.dbs[name].main.execute(
                "insert into queue.orders (type, payload) values ('n', json_build_object('n', %s::bigint))", (number,)
            )
        except psycopg.Error as error:
            assert error.sqlstate == "QC401", error
        else:
            taken.append(number)
    return taken


def held_by(orders: Cascade, name: str) -> list[int]:
    query = "select (payload->>'n')::bigint from queue.orders where origin is distinct from '.cascade'"
    return sorted(row[0] for row in orders.dbs[name].rows(query))


def test_a_root_whose_server_lost_its_tail_is_noticed_followed_and_resurrected(orders: Cascade, tmp_path: Path) -> None:
    operator = Operator(orders)
    orders.publish(50)
    kept = orders.settle()
    with put_back(orders, "s1", tmp_path / "saved"):
        # Its subscribers copy this, and it forgets.
        assert try_to_publish(orders, "s1", 51, 30) == [*range(51, 81)]
        lost = orders.settle()
        assert lost > kept
    # It has not heard yet, and may take some of these; their ids and transactions were there before.
    taken = try_to_publish(orders, "s1", 1001, 5)
    eventually(lambda: fence_of(orders, "s1") == ("rewound", True), within_s=60)
    assert try_to_publish(orders, "s1", 2001, 1) == []
    eventually(lambda: orders.node("s2")["answer"] == "rewound", within_s=60)

    shown = orders.cli("failover", "orders", "--dead", "s1", "--json", "--dry-run", check=False)
    fork = json.loads(shown.stdout)["plans"][0]["loss"]["fork"]
    # A tick for what members told may have followed.
    assert shown.exit_code == 3 and int(fork) >= lost
    done = json.loads(orders.cli("failover", "orders", "--dead", "s1", "--json", "--allow-loss", fork).stdout)
    assert any(text.startswith("resurrect s1") for text in done["steps"]), "it answers, so it is brought back at once"
    new = operator.root()
    assert new in ("s2", "s3")
    assert held_by(orders, new) == [*range(1, 81)]
    query = "select (payload::json->>'n')::bigint from cascade.read_quarantine('orders', state => 'held') order by id"
    assert [row[0] for row in orders.dbs["s1"].rows(query)] == taken
    orders.cli("quarantine", "republish", "orders", "s1", "--yes")
    eventually(lambda: operator.certificates()[0]["state"] == "closed", within_s=60)
    (certificate,) = operator.certificates()
    assert certificate["tail"] == certificate["republished"] == len(taken)
    follow(orders, new)
    assert held_by(orders, "s1") == sorted([*range(1, 81), *taken])


def test_a_root_whose_server_is_on_a_new_timeline_makes_no_tick_and_goes_on_in_a_new_term(orders: Cascade) -> None:
    """A backup that is brought up to a point in time, or a standby that is promoted: nobody knows what it lost."""
    operator, server = Operator(orders), orders.server("s1")
    orders.publish(50)
    orders.settle()
    server.stop()
    owner = server.data_dir.stat()
    for name, text in (("recovery.signal", ""), ("postgresql.auto.conf", "restore_command = 'false'\n")):
        with (server.data_dir / name).open("a") as file:
            file.write(text)
        os.chown(server.data_dir / name, owner.st_uid, owner.st_gid)
    server.start()
    orders.dbs["s1"].disconnect()
    eventually(lambda: orders.dbs["s1"].value("select not pg_is_in_recovery()"))
    taken = try_to_publish(orders, "s1", 1001, 5)
    eventually(lambda: fence_of(orders, "s1") == ("rewound", True), within_s=60)
    query = "select max(time) < pg_postmaster_start_time() from cascade.ticks where queue = 'orders'"
    assert orders.dbs["s1"].value(query), "no tick was made on the new timeline"

    shown = json.loads(orders.cli("apply", "--json", "--dry-run", check=False).stdout)
    fork = shown["plans"][0]["loss"]["fork"]
    orders.cli("apply", "--yes", "--json", "--dead", "s1", "--allow-loss", str(fork))
    assert operator.root() == "s1" and operator.tip()["cause"] == "rewind"
    follow(orders, "s1")
    assert held_by(orders, "s2") == held_by(orders, "s1") == sorted([*range(1, 51), *taken])
    eventually(lambda: operator.certificates()[0]["cause"] == "rewind")


def follow(orders: Cascade, root: str) -> None:
    """Wait until every node has come to the root's next tick, and see that the carriers hold the same."""
    for name in orders.carriers():
        orders.nodes[name]["role"] = "root" if name == root else "branch"
    tick = int(eventually(lambda: orders.dbs[root].tick("orders")))
    for name in orders.nodes:
        eventually(lambda name=name: orders.tick_of(name) >= tick, within_s=60)
    orders.check_identical()
