"""A handler's effects happen once, in the transaction that moves the position; its failures are seen and passed."""

from __future__ import annotations

import random
import time

import pytest

from tests.fixtures.cascade import PICTURE, Cascade, eventually

HANDLERS = ["tests.fixtures.handlers:store", "tests.fixtures.handlers:store_sync"]


def prepare(cascade: Cascade, handler: str) -> None:
    """Give s2, a branch, and s4, the leaf, a handler that can be made to fail."""
    nodes = {name: dict(node) for name, node in PICTURE.items()}
    nodes["s2"]["handler"] = nodes["s4"]["handler"] = handler
    cascade.define(nodes)
    for name in ("s2", "s4"):
        cascade.dbs[name].main.execute("create table public.handler_fails (reason text)")
        cascade.dbs[name].main.execute(
            "create table public.cascade_events (event_id bigint, batch_to bigint, type text, key text, payload json)"
        )
    cascade.run()


def stored(cascade: Cascade, name: str) -> int:
    return int(cascade.dbs[name].value("select count(*) from public.cascade_events"))


@pytest.mark.parametrize("handler", HANDLERS, ids=["async", "sync"])
def test_a_failing_handler_stops_processing_and_goes_on_when_it_is_mended(cascade: Cascade, handler: str) -> None:
    prepare(cascade, handler)
    cascade.publish(100)
    cascade.settle()
    eventually(lambda: stored(cascade, "s2") == stored(cascade, "s4") == 100)

    for name in ("s2", "s4"):
        cascade.dbs[name].main.execute("insert into public.handler_fails values ('broken on purpose')")
    at = cascade.node("s4")["events"]
    cascade.publish(100)
    for name in ("s2", "s4"):
        eventually(lambda name=name: "RuntimeError: broken on purpose" in (cascade.node(name)["error"] or ""))
    cascade.settle("s2", "s3")
    code, nodes = cascade.status()
    assert code == 1
    for name in ("s2", "s4"):
        assert any("broken on purpose" in note for note in nodes[name]["notes"]), nodes[name]
    # Ticks that hold nothing but control events pass it all the same.
    assert cascade.node("s4")["events"] == at and stored(cascade, "s4") == stored(cascade, "s2") == 100

    for name in ("s2", "s4"):
        cascade.dbs[name].main.execute("delete from public.handler_fails")
    cascade.publish(100)
    eventually(lambda: stored(cascade, "s2") == 300)
    cascade.check_all()
    cascade.check_leaf("s2")
    for name in ("s2", "s4"):
        eventually(lambda name=name: cascade.node(name)["error"] is None)


@pytest.mark.parametrize("handler", HANDLERS, ids=["async", "sync"])
def test_the_effects_of_a_handler_survive_killed_daemons_once(cascade: Cascade, handler: str) -> None:
    prepare(cascade, handler)
    chance = random.Random(7)
    with cascade.load(count=200):
        for name in ("s4", "s2", "s4"):
            cascade.advance("s2", "s4", by=2)
            time.sleep(chance.uniform(0, 0.3))
            cascade.daemon(name).kill()
            cascade.start_one(name)
    cascade.check_all()
    eventually(lambda: stored(cascade, "s2") == cascade.published)
    cascade.check_leaf("s2")


def test_a_handler_that_is_taken_out_of_the_file_holds_nothing_any_more(cascade: Cascade) -> None:
    prepare(cascade, HANDLERS[0])
    cascade.dbs["s2"].main.execute("insert into public.handler_fails values ('broken on purpose')")
    cascade.publish(100)
    eventually(lambda: cascade.node("s2")["error"])
    consumer = "select count(*) from cascade.consumers where consumer = '.handler'"
    assert cascade.dbs["s2"].value(consumer) == 1

    del cascade.nodes["s2"]["handler"]
    cascade.write_files()
    eventually(lambda: cascade.dbs["s2"].value(consumer) == 0)
    eventually(lambda: cascade.node("s2")["error"] is None)
    cascade.check_all()


def test_a_handler_that_cannot_be_loaded_stops_a_leaf_but_no_branch(cascade: Cascade) -> None:
    prepare(cascade, HANDLERS[0])
    for name in ("s2", "s4"):
        cascade.nodes[name]["handler"] = "tests.fixtures.handlers:stroe"
    cascade.write_files()
    for name in ("s2", "s4"):
        eventually(lambda name=name: "stroe" in (cascade.node(name)["error"] or ""))
        found = cascade.daemon(name).health()
        assert found and not found["healthy"] and "stroe" in found["problems"]["orders/node"]
    at = cascade.tick_of("s4")
    cascade.publish(100)
    cascade.settle("s2", "s3")
    assert cascade.tick_of("s4") == at

    for name in ("s2", "s4"):
        cascade.nodes[name]["handler"] = HANDLERS[0]
    cascade.write_files()
    eventually(lambda: stored(cascade, "s2") == 100)
    cascade.check_all()
    for name in ("s2", "s4"):
        eventually(lambda name=name: (cascade.daemon(name).health() or {}).get("healthy"))
