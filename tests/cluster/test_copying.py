"""Events flow from the root to every node, and everybody holds the same."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest

from tests.fixtures.cascade import Cascade, eventually
from tests.fixtures.failover import chain_of


def test_every_node_gets_every_event_once(orders: Cascade) -> None:
    for _ in range(10):
        orders.publish(50)
    orders.publish(5000)
    orders.check_all()


def test_a_long_transaction_is_copied_with_the_tick_that_sees_it(orders: Cascade) -> None:
    slow = orders.dbs["s1"].connect(autocommit=False)
    orders.publish(10, conn=slow)
    orders.publish(10)
    orders.settle()
    slow.commit()
    orders.check_all()


def test_a_branch_and_a_leaf_refuse_inserts_and_name_the_root(orders: Cascade) -> None:
    for name, role in (("s2", "branch"), ("s4", "leaf")):
        with pytest.raises(psycopg.Error) as caught:
            orders.publish(1, node=name)
        assert caught.value.sqlstate == "QC401"
        assert f'{role} "{name}"' in str(caught.value) and 'the root is "s1"' in str(caught.value)


def test_switching_back_and_forth_under_load_loses_and_repeats_nothing(orders: Cascade) -> None:
    with orders.load():
        for provider in ("s2", "s1", "s3", "s2"):
            orders.cli("node", "switch", "orders", "s4", "--provider", provider)
            orders.advance("s4")
        orders.cli("node", "switch", "orders", "s3", "--provider", "s2")
        orders.advance("s3")
    assert orders.node("s4")["provider"] == "s2" and orders.node("s3")["provider"] == "s2"
    orders.check_all()


def test_a_carrier_waits_while_somebody_is_about_to_be_promoted(orders: Cascade) -> None:
    """Its daemon asks again and again, and goes on by itself."""
    s3, uid = orders.dbs["s3"], str(uuid4())

    def is_asked() -> bool:
        tick = s3.value("select cascade.describe_set('orders')->'tick'")
        call = "select cascade.open_ballot('orders', 102, %s, 's2', %s, %s)"
        # It may have gone on since it was looked at.
        try:
            return bool(s3.value(call, uid, tick["tick_id"], chain_of(tick["chain"])))
        except psycopg.Error as error:
            assert error.sqlstate == "QC209"
            return False

    eventually(is_asked)
    fork = orders.tick_of("s3")
    orders.publish(5)
    orders.settle("s2")
    eventually(lambda: "copies nothing now: s2 is about to be promoted" in str(orders.daemon("s3").health()))
    assert orders.tick_of("s3") == fork
    s3.value("select cascade.close_ballot('orders', 102, %s)", uid)
    orders.check_all()


def test_databases_that_prefer_another_encoding_get_the_same_text(cascade: Cascade) -> None:
    """A database's client_encoding is a default for clients that do not care; copying cares."""
    cascade.define()
    for name, encoding in (("s1", "LATIN1"), ("s2", "WIN1252"), ("s4", "LATIN1")):
        db = cascade.dbs[name]
        db.main.execute(f"alter database {db.name} set client_encoding = '{encoding}'".encode())
    cascade.create().start()
    text = "é ü ß"
    conn = cascade.dbs["s1"].connect(client_encoding="UTF8")
    conn.execute(
        "insert into queue.orders (type, key, payload) values (%s, %s, %s)", (text, text, f'{{"n": "{text}"}}')
    )
    cascade.settle()
    for name in ("s1", "s2", "s3"):
        found = cascade.dbs[name].connect(client_encoding="UTF8")
        rows = found.execute("select type, key, payload::text from queue.orders where origin is null").fetchall()
        assert rows == [(text, text, f'{{"n": "{text}"}}')], name
    found = cascade.dbs["s4"].connect(client_encoding="UTF8")
    assert found.execute("select type, key from public.cascade_events").fetchall() == [(text, text)]
