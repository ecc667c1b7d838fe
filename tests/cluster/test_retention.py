"""What a node still needs is kept everywhere, and is freed as soon as nobody does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.cascade import Cascade, eventually


@pytest.fixture
def rotating(cascade: Cascade) -> Iterator[Cascade]:
    """The picture, running, with partitions that are rotated all the time; nobody but nodes holds anything."""
    cascade.define(rotation_period="1 s").create().start()
    cascade.publish(1000)
    cascade.settle()
    yield cascade


def held(cascade: Cascade, name: str, first: int, last: int) -> int:
    """How many of these numbered events a carrier has."""
    return int(
        cascade.dbs[name].value(
            "select count(*) from queue.orders where (payload->>'n')::bigint between %s and %s", first, last
        )
    )


def generation(cascade: Cascade, name: str) -> int:
    return int(cascade.dbs[name].value("select min(gen) from cascade_internal.generation"))


def is_freed(cascade: Cascade, last: int) -> bool:
    return all(held(cascade, name, 1, last) == 0 for name in cascade.carriers())


def leave_behind(cascade: Cascade, name: str) -> int:
    """Stop a node, publish, and see that every carrier keeps what it has not seen; returns the last number."""
    eventually(lambda: is_freed(cascade, 1000), within_s=60)
    cascade.daemon(name).stop()
    first = cascade.published + 1
    for _ in range(3):
        cascade.publish(3000)
        cascade.settle(*(other for other in cascade.nodes if other != name))
    generations = {carrier: generation(cascade, carrier) for carrier in cascade.carriers() if carrier != name}
    # Rotation has tried, and names the node that it waits for.
    eventually(lambda: cascade.node("s1")["held_by"] == name)
    for carrier in generations:
        eventually(
            lambda carrier=carrier: cascade.dbs[carrier].value("select blocked_by from cascade.rotation") == "watermark"
        )
        assert held(cascade, carrier, first, cascade.published) == cascade.published - first + 1
    root = cascade.node("s1")
    assert root["held_bytes"] > 0 and root["held_since"] is not None
    return cascade.published


def test_a_stopped_node_finds_everything_and_then_it_is_freed(rotating: Cascade) -> None:
    last = leave_behind(rotating, "s4")
    code, nodes = rotating.status()
    assert code in (0, 1) and any(note.startswith("s4 holds ") for note in nodes["s1"]["notes"]), str(nodes)
    bytes_held = {name: rotating.node(name)["bytes"] for name in rotating.carriers()}
    before = {name: generation(rotating, name) for name in rotating.carriers()}

    rotating.start("s4")
    rotating.settle()
    rotating.check_leaf()
    eventually(lambda: is_freed(rotating, last), within_s=60)
    for name in rotating.carriers():
        assert generation(rotating, name) > before[name]
        assert rotating.node(name)["bytes"] < bytes_held[name] / 4
    rotating.publish(100)
    rotating.settle()
    rotating.check_identical()
    rotating.check_leaf()


def test_marking_a_node_dead_frees_what_it_held_and_it_is_left_behind(rotating: Cascade) -> None:
    last = leave_behind(rotating, "s4")
    rotating.cli("node", "mark-dead", "orders", "s4")
    eventually(lambda: is_freed(rotating, last), within_s=60)

    rotating.start_one("s4")
    eventually(lambda: rotating.node("s4")["state"] == "dropped")
    rotating.cli("node", "add", "orders", "s4")
    eventually(lambda: rotating.node("s4")["state"] == "expired")
    code, nodes = rotating.status()
    assert code == 2 and nodes["s4"]["state"] == "expired" and "expired: " in "; ".join(nodes["s4"]["notes"])
    # The others do not suffer from it.
    rotating.publish(100)
    rotating.settle("s1", "s2", "s3")
    rotating.check_identical()


def test_a_stopped_branch_finds_everything_and_a_dropped_one_holds_nothing(rotating: Cascade) -> None:
    last = leave_behind(rotating, "s2")
    rotating.start("s2")
    rotating.settle()
    eventually(lambda: is_freed(rotating, last), within_s=60)
    rotating.check_identical()

    rotating.daemon("s2").stop()
    rotating.publish(1000)
    rotating.cli("node", "drop", "orders", "s2")
    rotating.settle("s3", "s4")
    eventually(lambda: all(held(rotating, name, 1, rotating.published) == 0 for name in ("s1", "s3")), within_s=60)
    rotating.check_leaf()


def test_a_slow_reader_never_gets_half_of_what_rotation_removes(rotating: Cascade) -> None:
    """Rotation as fast as it goes, while nodes copy and change their provider."""
    with rotating.load(count=200):
        for provider in ("s2", "s3", "s1"):
            rotating.cli("node", "switch", "orders", "s4", "--provider", provider)
            before = generation(rotating, "s1")
            eventually(lambda before=before: generation(rotating, "s1") > before, within_s=60)
    rotating.settle()
    rotating.check_identical()
    rotating.check_leaf()
