"""Nodes come, go and return while events flow."""

from __future__ import annotations

from tests.fixtures.cascade import PICTURE, Cascade, eventually

STORE = "cascade.node.handler:store_events"


def test_a_new_branch_under_load_becomes_identical(orders: Cascade) -> None:
    with orders.load(count=100):
        orders.advance("s4")
        orders.define({"s5": {"role": "branch", "provider": "s2"}})
        orders.start("s5")
        orders.dbs["s5"].rows("select cascade.subscribe('orders', 'audit', 'earliest')")
        orders.advance("s5")
        # It can provide at once.
        orders.cli("node", "switch", "orders", "s4", "--provider", "s5")
        orders.advance("s4")
    orders.check_all()


def test_a_new_leaf_begins_where_it_is_told(orders: Cascade) -> None:
    orders.publish(100)
    middle = orders.settle()
    orders.publish(100)
    orders.settle()
    orders.define(
        {
            "s5": {"role": "leaf", "provider": "s2", "handler": STORE, "start": "now"},
            "s6": {"role": "leaf", "provider": "s3", "handler": STORE, "start": "earliest"},
            "s7": {"role": "leaf", "provider": "s1", "handler": STORE, "start": str(middle)},
        }
    )
    orders.start("s5", "s6", "s7")
    orders.publish(100)
    orders.settle()
    assert orders.check_identical() >= orders.published
    for name, first in (("s4", 1), ("s5", 201), ("s6", 1), ("s7", 101)):
        orders.check_leaf(name, first=first)


def test_a_dropped_node_is_told_so_and_comes_back_when_it_is_added(orders: Cascade) -> None:
    orders.publish(100)
    orders.settle()
    # One is there when it happens, the other is not.
    orders.daemon("s4").stop()
    for name in ("s2", "s4"):
        orders.cli("node", "drop", "orders", name)
    orders.publish(100)
    orders.settle("s3")
    back = orders.start_one("s4")
    for name in ("s2", "s4"):
        eventually(lambda name=name: orders.node(name)["state"] == "dropped")
    code, nodes = orders.status()
    assert code == 2
    for name in ("s2", "s4"):
        assert nodes[name]["state"] == "dropped" and nodes[name]["level"] == "critical"
    eventually(lambda: back.health()["services"]["orders/copier"]["note"] == "stopped: dropped")
    at = {name: orders.tick_of(name) for name in ("s2", "s4")}
    orders.publish(100)
    orders.settle("s3")
    assert at == {name: orders.tick_of(name) for name in ("s2", "s4")}

    # A restart does not bring it back either.
    back.kill()
    orders.start_one("s4")
    for name in ("s2", "s4"):
        orders.cli("node", "add", "orders", name)
    orders.check_all()
    eventually(lambda: orders.status()[0] == 0, every_s=0.5)


def test_a_paused_node_copies_nothing_until_it_is_resumed(orders: Cascade) -> None:
    with orders.load():
        orders.advance("s4")
        for name in ("s3", "s4"):
            orders.cli("node", "pause", "orders", name)
        at = {name: orders.tick_of(name) for name in ("s3", "s4")}
        orders.advance("s2", by=20)
        assert at == {name: orders.tick_of(name) for name in ("s3", "s4")}
        for name in ("s4", "s3"):
            orders.cli("node", "resume", "orders", name)
        orders.advance("s4")
    orders.check_all()


def test_a_chain_of_branches_carries_everything(cascade: Cascade) -> None:
    nodes = {name: dict(node) for name, node in PICTURE.items()}
    nodes["s3"]["provider"] = "s2"
    cascade.define(nodes).run()
    with cascade.load():
        cascade.advance("s4")
        # Around in a ring: the middle one is taken out and put at the end.
        cascade.cli("node", "switch", "orders", "s3", "--provider", "s1")
        cascade.cli("node", "switch", "orders", "s2", "--provider", "s3")
        cascade.advance("s2", "s4")
    cascade.check_all()
