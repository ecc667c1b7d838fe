"""Daemons and servers die, and nothing is lost or doubled; everything goes on by itself."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.fixtures.cascade import PICTURE, Cascade, Daemon, eventually


def stands_by(daemon: Daemon) -> bool:
    """Whether a daemon says that another one serves its node."""
    found = daemon.health()
    note = found and found["services"].get("orders/node", {}).get("note")
    return bool(found and found["healthy"] and note == "another daemon serves this node")


def serves(daemon: Daemon) -> bool:
    found = daemon.health()
    return bool(found and found["healthy"] and "orders/copier" in found["services"])


def kill_daemons(orders: Cascade, seed: int, rounds: int) -> None:
    """Kill daemons at moments that the seed chooses; every node's comes first."""
    chance = random.Random(seed)
    names = [*orders.nodes]
    chance.shuffle(names)
    with orders.load(count=300):
        for name in [*names, *chance.choices(names, k=rounds)]:
            time.sleep(chance.uniform(0.0, 0.5))
            orders.daemon(name).kill()
            orders.start_one(name)


def test_killed_daemons_go_on_where_they_were(orders: Cascade) -> None:
    kill_daemons(orders, seed=1, rounds=2)
    orders.check_all()


def test_killed_servers_come_back_and_the_daemons_with_them(orders: Cascade) -> None:
    with orders.load():
        for name in ("s3", "s4", "s1"):
            orders.advance("s4")
            with orders.down(name):
                if name == "s3":
                    orders.advance("s2")
        orders.advance("s2", "s3", "s4")
    orders.check_all()
    for name in orders.nodes:
        assert orders.daemon(name).process.poll() is None
        eventually(lambda name=name: (orders.daemon(name).health() or {}).get("healthy"))


def test_a_provider_that_is_restarted_is_found_again(orders: Cascade) -> None:
    with orders.load():
        orders.advance("s4")
        orders.server("s3").restart()
        orders.dbs["s3"].disconnect()
        orders.advance("s4")
    orders.check_all()


def test_of_five_daemons_one_serves_and_another_takes_over(orders: Cascade) -> None:
    others = [orders.start_one("s2") for _ in range(4)]
    for daemon in others:
        eventually(lambda daemon=daemon: stands_by(daemon), within_s=60)
    with orders.load():
        orders.advance("s2")
        orders.daemons["s2"][0].kill()
        first = eventually(lambda: next((daemon for daemon in others if serves(daemon)), None))
        orders.advance("s2")
        first.kill()
        others.remove(first)
        eventually(lambda: [serves(daemon) for daemon in others].count(True) == 1)
        orders.advance("s2")
    orders.check_all()
    assert [stands_by(daemon) for daemon in others].count(True) == 2


def test_two_daemons_for_the_root_are_harmless(orders: Cascade) -> None:
    second = orders.start_one("s1")
    eventually(lambda: stands_by(second))
    with orders.load():
        orders.advance("s4")
        orders.daemons["s1"][0].kill()
        orders.advance("s4")
    orders.check_all()


@pytest.mark.parametrize("is_copying", [False, True], ids=["idle", "inside a copy"])
def test_a_daemon_that_was_frozen_finds_another_in_its_place(cascade: Cascade, is_copying: bool) -> None:
    link = cascade.define().proxy("s2", "s1")
    cascade.run()
    first, second = cascade.daemon("s2"), cascade.start_one("s2")
    eventually(lambda: stands_by(second))
    if is_copying:
        link.throttle(100_000)
        cascade.publish(5000)
        eventually(
            lambda: cascade.dbs["s2"].value(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and state = 'active' and query ilike 'copy %'"
            )
        )
    first.process.send_signal(signal.SIGSTOP)
    link.heal()
    cascade.publish(100)
    eventually(lambda: serves(second))
    cascade.settle("s2")
    first.process.send_signal(signal.SIGCONT)
    cascade.publish(100)
    eventually(lambda: stands_by(first))
    assert serves(second)
    cascade.check_all()


def give_handlers(cascade: Cascade, handler: str) -> None:
    """Give s2, a branch, and s4, the leaf, a handler that stays inside while handler_fails has a row."""
    nodes = {name: dict(node) for name, node in PICTURE.items()}
    nodes["s2"]["handler"] = nodes["s4"]["handler"] = f"tests.fixtures.handlers:{handler}"
    cascade.define(nodes)
    for name in ("s2", "s4"):
        cascade.dbs[name].main.execute("create table public.handler_fails (reason text)")
        cascade.dbs[name].main.execute("create table public.handler_seat as select 1")
        cascade.dbs[name].main.execute(
            "create table public.cascade_events (event_id bigint, batch_to bigint, type text, key text, payload json)"
        )
    cascade.run()


def check_handled(cascade: Cascade) -> None:
    """See that both handlers have stored every event once."""
    cascade.settle()
    stored = "select count(*) from public.cascade_events"
    for name in ("s2", "s4"):
        eventually(lambda name=name: cascade.dbs[name].value(stored) >= cascade.published)
        cascade.check_leaf(name)


@pytest.mark.parametrize("handler", ["linger", "linger_sync"])
def test_a_daemon_frozen_inside_a_handler_keeps_nothing_from_the_next(cascade: Cascade, handler: str) -> None:
    give_handlers(cascade, handler)
    firsts = [cascade.daemon(name) for name in ("s2", "s4")]
    seconds = [cascade.start_one(name) for name in ("s2", "s4")]
    for second in seconds:
        eventually(lambda second=second: stands_by(second))
    for name in ("s2", "s4"):
        cascade.dbs[name].main.execute("insert into public.handler_fails values ('stay inside')")
    cascade.publish(100)
    inside = (
        "select count(*) from pg_locks as l join pg_database as d on d.oid = l.database"
        " where d.datname = current_database() and mode = 'RowExclusiveLock'"
        "   and l.relation = 'public.cascade_events'::regclass"
    )
    for name, first in zip(("s2", "s4"), firsts, strict=True):
        eventually(lambda name=name: cascade.dbs[name].value(inside))
        first.process.send_signal(signal.SIGSTOP)
        cascade.dbs[name].main.execute("delete from public.handler_fails")
    cascade.publish(100)
    for second in seconds:
        eventually(lambda second=second: serves(second))
    check_handled(cascade)
    for first in firsts:
        first.process.send_signal(signal.SIGCONT)
    cascade.publish(100)
    for first in firsts:
        eventually(lambda first=first: stands_by(first))
    check_handled(cascade)


@pytest.mark.parametrize("handler", ["store", "store_sync"])
def test_a_lock_that_somebody_holds_is_not_waited_for_in_silence(cascade: Cascade, handler: str) -> None:
    """An operator's forgotten transaction, say: the server ends the wait, so no session is left behind."""
    give_handlers(cascade, handler)
    held = {
        "s2": ("orders/processor", "select from cascade_internal.subscription where consumer = '.handler' for update"),
        "s4": ("orders/copier", "select from cascade_internal.queue for no key update"),
    }
    holders = {name: cascade.dbs[name].connect(autocommit=False) for name in held}
    for name, (_, lock) in held.items():
        holders[name].execute(lock.encode())
    cascade.publish(100)

    def is_told(name: str, service: str) -> bool:
        found = cascade.daemon(name).health() or {"services": {}}
        return "lock timeout" in (found["services"].get(service, {}).get("error") or "")

    for name, (service, _) in held.items():
        eventually(lambda name=name, service=service: is_told(name, service))
    for holder in holders.values():
        holder.rollback()
    check_handled(cascade)
