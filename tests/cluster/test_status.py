"""What people see of a cascade, and what they do to it from the command line."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from cascade.node.assess import assess
from cascade.node.observe import observe
from cascade.topology import load
from tests.cluster.test_reign import hand_over, role
from tests.fixtures.cascade import Cascade, eventually


def done(cascade: Cascade, *arguments: str, check: bool = True) -> dict[str, Any]:
    """Run a command with --json, and return what it says."""
    return dict(json.loads(cascade.cli(*arguments, "--json", check=check).stdout))


def test_a_healthy_tree_is_shown_whole(orders: Cascade) -> None:
    orders.publish(500)
    tick = orders.settle()
    shown = orders.cli("status").stdout
    assert shown.splitlines()[-1] == "healthy"
    for name in orders.nodes:
        assert name in shown
    code, nodes = orders.status()
    assert code == 0 and [*nodes] == [*orders.nodes]
    for name, node in nodes.items():
        assert node["level"] == "healthy" and node["state"] == "running"
        assert node["role"] == node["wanted_role"] == orders.nodes[name]["role"]
        assert node["provider"] == node["wanted_provider"] == orders.nodes[name].get("provider")
        assert isinstance(node["tick_id"], str) and int(node["tick_id"]) >= tick
        assert node["notes"] == [] and node["heard_at"] and node["bytes"] >= 0
        assert {"lag_ticks", "lag_seconds", "lag_events", "hop_ticks", "hop_seconds", "events_per_second"} <= {*node}


def test_a_paused_node_is_a_warning_and_its_lag_is_shown(orders: Cascade) -> None:
    said = done(orders, "node", "pause", "orders", "s3")
    assert said.pop("generation") > 1
    assert said == {"set": "orders", "node": "s3", "action": "paused"}
    orders.publish(100)
    orders.settle("s1", "s2")
    code, nodes = orders.status()
    assert code == 1
    assert nodes["s3"]["level"] == "warning" and "paused" in nodes["s3"]["notes"]
    assert nodes["s3"]["lag_ticks"] > 0 and nodes["s3"]["lag_events"] >= 100
    # The leaf below has everything that s3 has, but not what the root has.
    assert nodes["s4"]["lag_ticks"] > 0 and nodes["s4"]["hop_ticks"] == 0
    assert done(orders, "node", "resume", "orders", "s3")["action"] == "resumed"
    orders.settle()
    assert orders.status()[0] == 0


def test_the_rest_is_shown_while_nodes_are_down(orders: Cascade) -> None:
    orders.publish(100)
    tick = orders.settle()
    # It has told the root, through s3.
    told = "select tick_id >= %s and heard_at is not null from cascade.members where node = 's4'"
    eventually(lambda: orders.dbs["s1"].value(told, tick))
    with orders.down("s4"):
        code, nodes = orders.status("--timeout", "2")
        assert code == 1 and nodes["s4"]["state"] == "silent" and nodes["s4"]["level"] == "warning"
        assert int(nodes["s4"]["tick_id"]) >= tick and nodes["s4"]["heard_at"]
        assert any("last heard" in note for note in nodes["s4"]["notes"])
        assert nodes["s4"]["lag_seconds"] > 0 and nodes["s4"]["lag_ticks"] != 0, "a silent node is never without lag"
        shown = orders.cli("status", "--timeout", "2", check=False).stdout
        [line] = [line for line in shown.splitlines() if "s4" in line]
        assert "last heard" in line and "no lag" not in line
    with orders.down("s1"):
        code, nodes = orders.status("--timeout", "2")
        assert code == 2 and nodes["s1"]["level"] == "critical" and nodes["s1"]["state"] == "silent"
        for name in ("s2", "s3"):
            assert nodes[name]["state"] == "running" and int(nodes[name]["tick_id"]) >= tick
            assert nodes[name]["lag_ticks"] is None and nodes[name]["lag_seconds"] is None
        shown = orders.cli("status", check=False)
        assert shown.exit_code == 2 and "lag unknown" in shown.stdout and "no lag" not in shown.stdout
    eventually(lambda: orders.status()[0] == 0, every_s=0.5, within_s=60)
    orders.check_all()


def test_a_node_without_a_daemon_is_seen_although_its_database_answers(orders: Cascade) -> None:
    orders.publish(100)
    orders.settle()
    eventually(lambda: orders.dbs["s1"].value("select count(*) from cascade.members where heard_at is not null") == 3)
    topology = load(orders.file())
    answers = asyncio.run(observe(topology))
    assert [node.level for node in assess(topology, answers)] == [0, 0, 0, 0]

    long = timedelta(minutes=2)
    root = answers["s1"]
    members = [row | {"heard_at": row["heard_at"] - long} if row["node"] == "s4" else row for row in root.members]
    nodes = {"orders": root.nodes["orders"] | {"tick_age_seconds": 200}}
    found = {
        node.node: node for node in assess(topology, answers | {"s1": replace(root, members=members, nodes=nodes)})
    }
    assert [node.level for node in found.values()] == [2, 0, 0, 1]
    for name in ("s1", "s4"):
        assert any("no sign of its daemon" in note for note in found[name].notes)


def test_the_tree_follows_the_root_and_says_that_the_file_does_not(orders: Cascade) -> None:
    orders.publish(100)
    orders.settle()
    assert "if the root died now: " in orders.cli("status").stdout
    hand_over(orders, "s1", "s2")
    eventually(lambda: role(orders, "s1") == ("branch", "s2"))
    # Whoever asked s1 while it stood down is told "stale", and asks again.
    eventually(lambda: orders.status()[0] == 1, every_s=0.5, within_s=60)
    assert orders.cli("status", check=False).stdout.splitlines()[1].startswith("  s2 root")
    _, nodes = orders.status()
    for name in ("s1", "s2"):
        assert any("TOPOLOGY_DRIFT" in note for note in nodes[name]["notes"])
    [found] = done(orders, "status", check=False)["sets"]
    assert found["root"] == "s2" and found["if_the_root_died"]["heir"] == "s1"


def test_waiting_for_a_node_ends_when_it_is_there_or_in_time(orders: Cascade) -> None:
    orders.publish(100)
    assert "node s4 has tick" in orders.cli("wait", "--set", "orders", "--node", "s4").stdout
    orders.cli("node", "pause", "orders", "s4")
    orders.publish(100)
    tick = str(orders.settle("s3"))
    late = orders.cli("wait", "--set", "orders", "--node", "s4", "--tick", tick, "--timeout", "0.3", check=False)
    assert late.exit_code == 1 and f"not at {tick}" in late.stderr
    orders.cli("node", "resume", "orders", "s4")
    orders.cli("wait", "--set", "orders", "--node", "s4", "--tick", tick)
    unknown = orders.cli("wait", "--set", "orders", "--node", "s9", check=False)
    assert unknown.exit_code == 2 and "s9" in unknown.stderr


def test_members_are_changed_from_the_command_line(orders: Cascade) -> None:
    said = done(orders, "node", "switch", "orders", "s4", "--provider", "s2")
    assert said["action"] == "switched" and said["generation"] > 1
    refused = orders.cli("node", "switch", "orders", "s2", "--provider", "s4", check=False)
    assert refused.exit_code != 0 and "leaf" in refused.stderr
    for verb, state in (("drop", "dropped"), ("mark-dead", "dead")):
        assert done(orders, "node", verb, "orders", "s4") == {
            "set": "orders",
            "node": "s4",
            "action": state,
            "changed": True,
        }
        assert done(orders, "node", verb, "orders", "s4")["changed"] is False
        assert done(orders, "node", "add", "orders", "s4")["action"] == "added"
    refused = orders.cli("node", "drop", "orders", "s1", check=False)
    assert refused.exit_code == 1 and "is the root" in refused.stderr
    orders.publish(100)
    orders.check_all()
    again = orders.cli("set", "create", "orders")
    assert again.exit_code == 0
