"""Where nodes are: the file's word first, the database's where the file is silent."""

from __future__ import annotations

from tests.fixtures.cascade import Cascade, eventually


def locations(cascade: Cascade, name: str) -> dict[str, str]:
    """Return where a node's database says that everybody is."""
    return dict(cascade.dbs[name].rows("select node, dsn from cascade.locations"))


def test_a_node_that_moves_is_announced_to_everybody(orders: Cascade) -> None:
    assert locations(orders, "s4")["s2"] == orders.dsn("s2")
    orders.daemon("s2").stop()
    proxy = orders.proxy("s2", "s2")
    orders.start("s2")
    eventually(lambda: f"port={proxy.port}" in locations(orders, "s4")["s2"])
    orders.settle()


def test_a_node_finds_a_provider_that_its_file_does_not_name(orders: Cascade) -> None:
    """No file speaks of s2 any more; the database of s4 knows where it is."""
    orders.settle()
    s2 = orders.nodes.pop("s2")
    orders.write_files()
    orders.nodes["s2"] = s2
    orders.dbs["s4"].rows("select cascade.set_provider('orders', 's2')")
    orders.publish(10)
    orders.settle("s4")
    assert orders.node("s4")["provider"] == "s2"
    orders.check_leaf()
