"""Links break in every way a network can, and nothing is lost or doubled."""

from __future__ import annotations

import pytest

from tests.fixtures.cascade import LINK_TIMEOUT_S, Cascade, eventually
from tests.fixtures.proxy import TO_CLIENT, TO_SERVER


def is_told_of(cascade: Cascade, name: str, service: str) -> bool:
    """Whether a daemon says in its health that a service waits, and why."""
    found = cascade.daemon(name).health()
    state = (found or {}).get("services", {}).get(service)
    return bool(found and not found["healthy"] and state and state["state"] == "waiting" and state["error"])


def test_a_connection_cut_in_the_middle_of_a_copy_costs_nothing(cascade: Cascade) -> None:
    links = [
        (cascade.define().proxy("s2", "s1"), TO_CLIENT),
        (cascade.proxy("s2", "s2"), TO_SERVER),
        (cascade.proxy("s4", "s3"), TO_CLIENT),
        (cascade.proxy("s4", "s4"), TO_SERVER),
    ]
    cascade.run()
    for link, direction in links:
        before = link.connections
        link.cut_after(200_000, direction)
        cascade.publish(3000)
        cascade.settle()
        assert link.connections > before, "the connection was not cut"
    cascade.check_all()


@pytest.mark.parametrize(("count", "commit"), [(50, b"store_copy"), (3000, b"COMMIT")], ids=["small", "large"])
def test_a_lost_reply_to_commit_is_no_reason_to_copy_twice(cascade: Cascade, count: int, commit: bytes) -> None:
    """A small range is stored by one call, which is its transaction; a leaf has one around its handler."""
    links = [cascade.define().proxy(name, name) for name in ("s2", "s4")]
    cascade.run()
    for turn in range(1, 4):
        for link, text in zip(links, (commit, b"COMMIT"), strict=True):
            link.lose_reply_to(text)
        cascade.publish(count)
        for link in links:
            eventually(lambda link=link, turn=turn: link.replies_lost == turn)
        cascade.settle()
    cascade.check_all()


def test_a_stalled_link_to_the_provider_is_noticed_and_the_rest_goes_on(cascade: Cascade) -> None:
    link = cascade.define().proxy("s2", "s1")
    cascade.run()
    cascade.publish(100)
    cascade.settle()
    link.stall()
    cascade.publish(100)
    eventually(lambda: is_told_of(cascade, "s2", "orders/copier"), within_s=LINK_TIMEOUT_S * 3)
    cascade.settle("s3", "s4")
    link.heal()
    cascade.check_all()


def test_half_open_links_to_providers_are_replaced(cascade: Cascade) -> None:
    links = [cascade.define().proxy("s2", "s1"), cascade.proxy("s4", "s3")]
    cascade.run()
    with cascade.load():
        cascade.advance("s2", "s4")
        for link in links:
            assert link.half_open() > 0
        cascade.advance("s2", "s4", within_s=LINK_TIMEOUT_S * 5)
    cascade.check_all()


def test_half_open_links_to_the_own_database_are_replaced(cascade: Cascade) -> None:
    cascade.define()
    links = [cascade.proxy(name, name) for name in cascade.nodes]
    cascade.run()
    with cascade.load():
        cascade.advance("s2", "s4")
        for link in links:
            assert link.half_open() > 0
        cascade.advance("s1", "s2", "s3", "s4", within_s=LINK_TIMEOUT_S * 8)
    cascade.check_all()


def test_a_stalled_link_to_the_own_database_is_noticed(cascade: Cascade) -> None:
    cascade.define()
    links = {name: cascade.proxy(name, name) for name in ("s1", "s2", "s4")}
    cascade.run()
    cascade.publish(100)
    cascade.settle()
    for link in links.values():
        link.stall()
    for name in links:
        eventually(lambda name=name: is_told_of(cascade, name, "ticker"), within_s=LINK_TIMEOUT_S * 5)
        eventually(lambda name=name: is_told_of(cascade, name, "orders/node"), within_s=LINK_TIMEOUT_S * 5)
    for link in links.values():
        link.heal()
    cascade.publish(100)
    cascade.check_all()


def test_a_flapping_link_is_taken_up_each_time_without_a_storm_of_logs(cascade: Cascade) -> None:
    link = cascade.define().proxy("s3", "s1")
    cascade.run()
    with cascade.load():
        for _ in range(6):
            eventually(link.cut)
            cascade.advance("s3", by=1)
    cascade.check_all()
    assert len(cascade.daemon("s3").log.read_text().splitlines()) < 100


def test_a_slow_link_catches_up(cascade: Cascade) -> None:
    link = cascade.define().proxy("s2", "s1")
    cascade.run()
    link.delay(0.1)
    with cascade.load():
        cascade.settle("s3", "s4")
        cascade.advance("s2")
    cascade.settle()
    link.heal()
    link.throttle(1_000_000)
    cascade.publish(5000)
    cascade.check_all()
