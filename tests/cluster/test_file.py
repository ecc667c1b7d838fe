"""The file is followed while the daemon runs, an old one is not obeyed, and a broken one is reported."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.fixtures.cascade import Cascade, eventually


def drift(orders: Cascade, name: str) -> str:
    """What a daemon says is not as its file has it."""
    return str((orders.daemon(name).health() or {}).get("drift", {}).get("orders", ""))


def change(orders: Cascade, name: str, **fields: str) -> None:
    """Edit one node in every host's file."""
    orders.nodes[name] |= fields
    orders.write_files()


def copies_from(orders: Cascade, name: str, provider: str) -> Any:
    return orders.dbs[name].value("select provider from cascade.nodes") == provider


def test_a_provider_changed_in_the_file_is_switched_to_without_restart(orders: Cascade) -> None:
    with orders.load():
        for provider in ("s2", "s1", "s3"):
            change(orders, "s4", provider=provider)
            eventually(lambda provider=provider: copies_from(orders, "s4", provider))
            orders.advance("s4")
    assert len(orders.daemons["s4"]) == 1 and not drift(orders, "s4")
    orders.check_all()


def test_an_old_file_is_drift_and_is_not_obeyed(orders: Cascade) -> None:
    orders.cli("node", "switch", "orders", "s4", "--provider", "s2")
    eventually(lambda: "it copies from s2, the file still says s3" in drift(orders, "s4"))
    code, nodes = orders.status()
    assert code == 1 and any("TOPOLOGY_DRIFT" in note for note in nodes["s4"]["notes"])

    orders.daemon("s4").kill()
    orders.start("s4")
    eventually(lambda: "the file still says s3" in drift(orders, "s4"))
    orders.publish(100)
    orders.settle()
    assert copies_from(orders, "s4", "s2")

    # The file is brought up to date, and is obeyed again from then on.
    change(orders, "s4", provider="s2")
    eventually(lambda: not drift(orders, "s4"))
    eventually(lambda: orders.node("s4")["file_provider"] == "s2")
    change(orders, "s4", provider="s3")
    eventually(lambda: copies_from(orders, "s4", "s3"))
    assert orders.status()[0] == 0
    orders.check_all()


def test_a_role_changed_in_the_file_is_drift(orders: Cascade) -> None:
    change(orders, "s2", role="leaf")
    eventually(lambda: "its role is branch, the file says leaf" in drift(orders, "s2"))
    code, nodes = orders.status()
    assert code == 1 and any("TOPOLOGY_DRIFT" in note for note in nodes["s2"]["notes"])
    orders.publish(100)
    change(orders, "s2", role="branch")
    eventually(lambda: not drift(orders, "s2"))
    orders.check_all()


def test_a_broken_file_is_reported_and_the_last_good_one_stays(orders: Cascade) -> None:
    good = orders.file("s2").read_text()
    for text in ("version: 1\nsets: [", good.replace("  s2:\n    dsn", "  s9:\n    dsn").replace(": s2", ": s9")):
        assert text != good
        orders.write_file("s2", text)
        found = eventually(lambda: (health := orders.daemon("s2").health()) and not health["healthy"] and health)
        assert found["problems"]["topology"]
        orders.publish(100)
        orders.settle()
        orders.write_file("s2", good)
        eventually(lambda: (orders.daemon("s2").health() or {}).get("healthy"))
    orders.file("s2").unlink()
    eventually(lambda: "topology" in (orders.daemon("s2").health() or {}).get("problems", {}))
    orders.write_file("s2", good)
    eventually(lambda: (orders.daemon("s2").health() or {}).get("healthy"))
    orders.check_all()


def test_sighup_reads_the_file_anew(orders: Cascade) -> None:
    # The change cannot be seen from outside: same inode, size and time.
    path = orders.file("s4")
    stat, text = path.stat(), path.read_text()
    path.write_text(text.replace("provider: s3", "provider: s2"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    orders.daemon("s4").process.send_signal(signal.SIGHUP)
    eventually(lambda: copies_from(orders, "s4", "s2"))
    orders.publish(100)
    orders.check_all()


def test_a_new_provider_that_is_down_is_drift_until_it_answers(orders: Cascade) -> None:
    with orders.load():
        with orders.down("s2"):
            change(orders, "s4", provider="s2")
            eventually(lambda: "it copies from s3; s2, which the file asks for" in drift(orders, "s4"))
            orders.advance("s4")
        eventually(lambda: copies_from(orders, "s4", "s2"))
        orders.advance("s4")
    eventually(lambda: not drift(orders, "s4"))
    orders.check_all()
