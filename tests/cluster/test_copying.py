"""Events flow from the root to every node, and everybody holds the same."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.fixtures.cascade import Cascade
from tests.fixtures.database import eventually


def check_all(orders: Cascade) -> None:
    """Everything that must hold after any run."""
    orders.settle()
    assert orders.check_identical() >= orders.published
    orders.check_leaf()
    for name in orders.carriers():
        orders.check_consumer(name)


def test_every_node_gets_every_event_once(orders: Cascade) -> None:
    for _ in range(10):
        orders.publish(50)
    orders.publish(5000)
    check_all(orders)


def test_a_long_transaction_is_copied_with_the_tick_that_sees_it(orders: Cascade) -> None:
    slow = orders.dbs["s1"].connect(autocommit=False)
    orders.publish(10, conn=slow)
    orders.publish(10)
    orders.settle()
    slow.commit()
    check_all(orders)


def test_a_branch_and_a_leaf_refuse_inserts_and_name_the_root(orders: Cascade) -> None:
    for name, role in (("s2", "branch"), ("s4", "leaf")):
        with pytest.raises(psycopg.Error) as caught:
            orders.publish(1, node=name)
        orders.published -= 0
        assert caught.value.sqlstate == "QC401"
        assert f'{role} "{name}"' in str(caught.value) and 'the root is "s1"' in str(caught.value)


def test_switching_back_and_forth_under_load_loses_and_repeats_nothing(orders: Cascade) -> None:
    stop = threading.Event()

    def write() -> None:
        conn = orders.dbs["s1"].connect()
        while not stop.is_set():
            orders.publish(20, conn=conn)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for provider in ("s2", "s1", "s3", "s2"):
            orders.cli("node", "switch", "orders", "s4", "--provider", provider)
            before = orders.tick_of("s4")
            eventually(lambda before=before: orders.tick_of("s4") > before + 2)
        orders.cli("node", "switch", "orders", "s3", "--provider", "s2")
    finally:
        stop.set()
        writer.join()
    assert orders.node("s4")["provider"] == "s2" and orders.node("s3")["provider"] == "s2"
    check_all(orders)
