"""The operators' commands on servers with daemons: a planned round of roots, and a root that is lost and comes back."""

from __future__ import annotations

import json
import time

from tests.fixtures.cascade import Cascade, eventually


def provider(orders: Cascade, name: str) -> tuple[str, str | None]:
    row = orders.node(name)
    return row["role"], row["provider"]


def test_the_reign_goes_round_and_writers_wait_for_moments(orders: Cascade) -> None:
    orders.publish(100)
    pauses = []
    for new in ("s2", "s3", "s1"):
        done = json.loads(orders.cli("switchover", "orders", "--to", new, "--json").stdout)
        pauses.append(done["pause_seconds"])
        orders.publish(50, node=new)
        assert provider(orders, new) == ("root", None)
    assert max(pauses) < 5, pauses
    assert orders.cli("plan").stdout.endswith("nothing to do\n")
    orders.check_all()


def test_a_root_is_lost_followed_and_brought_back(orders: Cascade) -> None:
    orders.publish(200)
    orders.settle()
    with orders.down("s1"):
        refused = orders.cli("failover", "orders", "--dead", "s1", "--json", check=False)
        assert refused.exit_code == 3, refused.stdout
        [plan] = json.loads(refused.stdout)["plans"]
        words = ("--fenced-by", "its server was killed", "--allow-loss", plan["loss"]["fork"])
        began_at = time.monotonic()
        orders.cli("failover", "orders", "--dead", "s1", *words, "--timeout", "1")
        new = next(name for name in ("s2", "s3") if provider(orders, name)[0] == "root")
        orders.publish(50, node=new)
        assert time.monotonic() - began_at < 20
    # Its daemon hears of the new term, and follows by itself or is resurrected.
    orders.cli("resurrect", "orders", "s1")
    eventually(lambda: provider(orders, "s1") == ("branch", new))
    tick = orders.dbs[new].tick("orders")
    for name in orders.nodes:
        eventually(lambda name=name: orders.tick_of(name) >= tick, within_s=60)
    orders.check_identical()
    [certificate] = eventually(
        lambda: [
            row for row in json.loads(orders.cli("certificate", "list", "--json").stdout) if row["state"] == "closed"
        ]
    )
    assert certificate["tail"] == sum(certificate[key] for key in ("republished", "discarded", "duplicates", "held"))
