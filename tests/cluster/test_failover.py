"""Roots that are handed over, lost and found again, by an operator's commands, under load: the books are closed."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.fixtures.cascade import Cascade, eventually
from tests.fixtures.history import History
from tests.fixtures.operator import Operator

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def history(orders: Cascade) -> History:
    """Producers and consumers of the picture, not at work yet."""
    return History.of(Operator(orders), random.Random(1))


def fail_over(orders: Cascade, dead: str, *options: str) -> dict[str, Any]:
    """Do as an operator who reads the dry run, and accepts what it says."""
    command = ("failover", "orders", "--dead", dead, "--json", *options)
    shown = orders.cli(*command, "--dry-run", check=False)
    assert shown.exit_code == 3, shown.stdout + shown.stderr
    fork = json.loads(shown.stdout)["plans"][0]["loss"]["fork"]
    done = orders.cli(*command, "--fenced-by", "kill -9", "--allow-loss", str(fork))
    return dict(json.loads(done.stdout))


def root_of(orders: Cascade) -> str:
    found = json.loads(orders.cli("history", "orders", "--json").stdout)
    (node,) = (term["node"] for term in found if term["state"] == "open")
    return str(node)


@contextmanager
def lost_with_a_tail(orders: Cascade, history: History, root: str = "s1", count: int = 30) -> Iterator[None]:
    """Have a root accept events that nobody copies, because its daemon sleeps, and kill its server for the block."""
    daemon = orders.daemon(root)
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        history.more(count, at=root)
        with orders.down(root):
            daemon.process.send_signal(signal.SIGCONT)
            yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def close_the_books(orders: Cascade, history: History, *, republish: str = "s1") -> dict[str, int]:
    """Put what was set aside back into the log, and check everything there is to check."""
    orders.cli("quarantine", "republish", "orders", republish, "--yes")
    history.converge()
    return history.check()


def test_a_killed_root_is_replaced_comes_back_and_the_books_are_closed(orders: Cascade, history: History) -> None:
    operator = history.operator
    with history.running():
        orders.advance("s2", "s3", "s4")
        with lost_with_a_tail(orders, history):
            done = fail_over(orders, "s1")
            new = root_of(orders)
            assert new in ("s2", "s3") and done["kind"] == "failover"
            history.more(50, at=new)
            (certificate,) = operator.certificates()
            assert (certificate["state"], certificate["pending"]) == ("open", ["s1"])
        eventually(lambda: operator.is_fenced("s1"), within_s=60)
        orders.cli("resurrect", "orders", "s1", "--yes")
        eventually(lambda: operator.certificates()[0]["state"] == "closed")
        assert operator.certificates()[0]["held"] >= 30
        history.more(50, at=new)
    counts = close_the_books(orders, history)
    (certificate,) = operator.certificates()
    assert certificate["republished"] == certificate["tail"] == counts["quarantined"] >= 30
    assert counts["unaccounted"] == 0


def test_who_had_processed_what_was_lost_is_in_the_certificate(orders: Cascade, history: History) -> None:
    """s3 and the leaf below it have come further than s2, which is promoted without them."""
    operator = history.operator
    with history.running():
        orders.advance("s2", "s4")
        orders.daemon("s2").kill()
        history.more(30, at="s1")
        aim = orders.dbs["s1"].tick("orders")
        for name in ("s3", "s4"):
            eventually(lambda name=name: orders.tick_of(name) >= aim, within_s=60)
        eventually(lambda: any(batch.to_tick >= aim for batch in history.consumers["s3"].batches))
        with orders.down("s1"):
            operator.fail_over("s1", "s2", without=["s3"])
        orders.start_one("s2")
        eventually(lambda: operator.mend() or not operator.ailing(), within_s=60, every_s=0.2)
        history.more(30, at="s2")
    for name in orders.carriers():
        operator.settle(name)
    history.converge()
    counts = history.check()
    assert counts["quarantined"] >= 30
    (certificate,) = operator.certificates()
    seen = {(phantom["node"], phantom["consumer"]) for phantom in certificate["phantoms"]}
    assert seen >= {("s3", "audit"), ("s4", ".leaf")}


def test_an_old_root_takes_inserts_until_it_hears_and_loses_none_of_them(orders: Cascade, history: History) -> None:
    operator = history.operator
    sticky = history.producers[0]
    sticky.stays_at = "s1"
    with history.running():
        orders.advance("s2", "s3", "s4")
        with orders.down("s1"):
            orders.daemon("s1").kill()
            fail_over(orders, "s1", "--to", "s2")
        # Nobody tells it yet: it reigns on, in a term that is over.
        history.more(40, at="s1")
        assert operator.survey()["s1"]["fence"] is None
        orders.start_one("s1")
        eventually(lambda: operator.is_fenced("s1"), within_s=60)
        sticky.stays_at = None
        orders.cli("resurrect", "orders", "s1", "--yes")
        history.more(40, at="s2")
    counts = close_the_books(orders, history)
    assert counts["quarantined"] >= 40 and counts["unaccounted"] == 0


def test_a_root_without_a_tail_follows_the_new_one_by_itself(orders: Cascade, history: History) -> None:
    operator = history.operator
    orders.publish(100)
    orders.settle()

    def is_at_rest() -> bool:
        views = operator.survey().values()
        return not any(view["is_dirty"] for view in views) and len({view["tick"]["tick_id"] for view in views}) == 1

    def has_ended_at_rest() -> bool:
        eventually(is_at_rest, within_s=60)
        orders.daemon("s1").kill()
        if not is_at_rest():
            orders.start("s1")
        return is_at_rest()

    # The root has nothing unticked, not even a watermark that it published.
    eventually(has_ended_at_rest, within_s=120)
    with orders.down("s1"):
        fail_over(orders, "s1", "--to", "s3")
    orders.start_one("s1")
    eventually(lambda: orders.node("s1")["role"] == "branch", within_s=60)
    with history.running():
        history.more(20, at="s3")
    history.converge()
    (certificate,) = operator.certificates()
    assert (certificate["state"], certificate["tail"]) == ("closed", 0)


def test_subscribers_of_a_lost_branch_go_elsewhere_and_nothing_is_lost(orders: Cascade, history: History) -> None:
    with history.running():
        orders.advance("s4")
        with orders.down("s3"):
            history.more(30, at="s1")
            orders.cli("failover", "orders", "--dead", "s3", "--yes")
            orders.advance("s4")
            assert orders.node("s4")["provider"] != "s3"
        orders.advance("s3")
    history.converge()
    counts = history.check()
    assert counts["quarantined"] == 0 and history.operator.certificates() == []


def test_switchovers_under_load_lose_and_repeat_nothing(orders: Cascade, history: History) -> None:
    for producer in history.producers:
        producer.tries_again = True
    with history.running():
        for new in ("s2", "s3", "s1"):
            history.more(30)
            done = json.loads(orders.cli("switchover", "orders", "--to", new, "--json").stdout)
            assert done["pause_seconds"] is not None
            history.more(30, at=new)
    history.converge()
    counts = history.check()
    assert counts["quarantined"] == 0 and history.operator.certificates() == []
    # Each event was sent until it was taken: all of them are there, and once.
    assert counts["log"] == len({event.uid for event in history.sent()})


def test_a_tool_that_dies_before_the_offer_leaves_a_fence_that_falls_by_itself(
    orders: Cascade, history: History
) -> None:
    operator = history.operator
    with history.running():
        history.more(10, at="s1")
        operator.fence("s1", "s2", str(uuid4()), expires="2 s")
        assert operator.survey()["s1"]["state"] == "fenced"
        history.more(30, at="s1")
    assert operator.reigns("s1") and len(operator.terms) == 1
    history.converge()
    assert history.check()["quarantined"] == 0


def test_a_tool_that_dies_after_the_offer_is_not_needed(orders: Cascade, history: History) -> None:
    operator = history.operator
    with history.running():
        history.more(10, at="s1")
        operator.switch_over("s2")
        history.more(30, at="s2")
        eventually(lambda: orders.node("s1")["role"] == "branch", within_s=60)
        # Whoever comes next finds everything done, and points the others to the new root.
        orders.cli("switchover", "orders", "--to", "s2", "--yes")
    history.converge()
    assert history.check()["quarantined"] == 0
    assert orders.node("s3")["provider"] == "s2"


def test_two_promotions_at_once_fence_one_another_until_one_is_kept(orders: Cascade, history: History) -> None:
    one, other = history.operator, Operator(orders)
    with history.running():
        history.more(10, at="s1")
        orders.advance("s2", "s3")
        with orders.down("s1"):
            # Neither sees the other, nor the other's carrier; nor do the daemons tell before both have promoted.
            for name in ("s2", "s3"):
                orders.daemon(name).kill()
            one.cut_off, other.cut_off = {"s3"}, {"s2"}
            kept = one.fail_over("s1", "s2", without=["s3"])
            other.fail_over("s1", "s3", without=["s2"])
            one.cut_off.clear()
            for name in ("s2", "s3"):
                orders.start_one(name)
            for name in ("s2", "s3"):
                fence = eventually(lambda name=name: one.survey()[name]["fence"], within_s=60)
                assert fence["cause"] == "conflict"
            refused = orders.cli("switchover", "orders", "--to", "s2", check=False)
            assert refused.exit_code == 3 and "resolve" in refused.stderr
        orders.cli("resolve", "orders", "--keep", kept, "--reason", "it has the payments", "--yes")
        history.more(30, at="s2")
        # Each hears of it in its own time, and one without a tail is a branch again before the other has heard.
        for name in ("s1", "s3"):
            eventually(lambda name=name: orders.node(name)["role"] == "branch" or one.is_fenced(name), within_s=60)
        # With the file that says so, everybody comes back who is still astray.
        orders.cli("switchover", "orders", "--to", "s2", "--yes")
    # The leaf may have copied from the other root meanwhile; it has stopped then, and the next look finds it.
    tick = orders.tick_of("s2")
    eventually(lambda: orders.cli("apply", "--yes") and history.has_reached("s4", tick), within_s=60, every_s=1)
    history.converge()
    counts = history.check()
    assert counts["unaccounted"] == 0
    assert [term["state"] for term in json.loads(orders.cli("history", "orders", "--json").stdout)].count("open") == 1
