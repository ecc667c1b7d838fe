"""What a node still needs is kept everywhere, and is freed as soon as nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.fixtures.cascade import Cascade, eventually
from tests.fixtures.watcher import Watcher


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


def is_freed(cascade: Cascade, last: int, *names: str) -> bool:
    return all(held(cascade, name, 1, last) == 0 for name in names or cascade.carriers())


def leave_behind(cascade: Cascade) -> int:
    """Stop s2 and s4, publish, and see that the others keep what they have not seen; returns the last number."""
    for name in ("s2", "s4"):
        cascade.daemon(name).stop()
    first = cascade.published + 1
    for _ in range(3):
        cascade.publish(3000)
        cascade.settle("s1", "s3")
    # Rotation has tried, and names a node that it waits for.
    eventually(lambda: cascade.node("s1")["held_by"] in ("s2", "s4"))
    for name in ("s1", "s3"):
        eventually(lambda name=name: cascade.dbs[name].value("select blocked_by from cascade.rotation") == "watermark")
        assert held(cascade, name, first, cascade.published) == cascade.published - first + 1
    root = cascade.node("s1")
    assert root["held_bytes"] > 0 and root["held_since"] is not None
    _, nodes = cascade.status()
    assert any(note.startswith(f"{root['held_by']} holds ") for note in nodes["s1"]["notes"]), str(nodes)
    return cascade.published


def test_stopped_nodes_find_everything_and_then_it_is_freed(rotating: Cascade) -> None:
    last = leave_behind(rotating)
    bytes_held = {name: rotating.node(name)["bytes"] for name in ("s1", "s3")}
    before = {name: generation(rotating, name) for name in rotating.carriers()}

    rotating.start("s2", "s4")
    rotating.settle()
    rotating.check_leaf()
    eventually(lambda: is_freed(rotating, last), within_s=60)
    for name in rotating.carriers():
        assert generation(rotating, name) > before[name]
    for name, size in bytes_held.items():
        assert rotating.node(name)["bytes"] < size / 4
    rotating.publish(100)
    rotating.settle()
    rotating.check_identical()
    rotating.check_leaf()


def test_nodes_dropped_or_dead_hold_nothing_and_are_left_behind(rotating: Cascade) -> None:
    last = leave_behind(rotating)
    rotating.cli("node", "mark-dead", "orders", "s4")
    rotating.cli("node", "drop", "orders", "s2")
    eventually(lambda: is_freed(rotating, last, "s1", "s3"), within_s=60)

    for name in ("s2", "s4"):
        rotating.start_one(name)
    for name in ("s2", "s4"):
        eventually(lambda name=name: rotating.node(name)["state"] == "dropped")
        rotating.cli("node", "add", "orders", name)
        eventually(lambda name=name: rotating.node(name)["state"] == "expired")
    code, nodes = rotating.status()
    assert code == 2
    for name in ("s2", "s4"):
        assert nodes[name]["state"] == "expired" and "expired: " in "; ".join(nodes[name]["notes"])
    # The others do not suffer from it.
    rotating.publish(100)
    rotating.settle("s1", "s3")
    rotating.check_identical("s1", "s3")


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


def test_the_watcher_of_random_runs_sees_a_carrier_that_removes_too_much(rotating: Cascade) -> None:
    """s4 needs what s1 has, although it copies from s3; s1 is told that nobody does."""
    with closing(Watcher(rotating)) as watcher:
        rotating.daemon("s4").stop()
        rotating.publish(100)
        rotating.settle("s1", "s2", "s3")
        watcher.look()
        find_queue = "(select q from cascade_internal.queue as q where q.name = 'orders')"
        obey = f"select cascade_internal.move_watermark({find_queue}, %s)"

        def is_noticed() -> bool:
            rotating.publish(10)
            # Again and again: where s4 stands may be in the generation that is filled now, which is held for others.
            rotating.dbs["s1"].value(obey, rotating.tick_of("s1"))
            try:
                watcher.look()
            except AssertionError as error:
                return "s1 holds nothing before" in str(error) and "s4 needs" in str(error)
            return False

        eventually(is_noticed, within_s=60, every_s=0.2)
