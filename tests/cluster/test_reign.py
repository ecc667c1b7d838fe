"""Daemons and the reign: the heir takes what is offered, a root that is over fences itself and follows."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest

from tests.fixtures.cascade import Cascade, eventually


def hand_over(orders: Cascade, old: str, new: str) -> None:
    """Do what an operator's tool does at the old root; the daemons do the rest."""
    op_id = str(uuid4())
    db = orders.dbs[old]
    db.value("select cascade.begin_operation('orders', %s, 'switchover', %s)", op_id, new)
    eventually(lambda: fenced(orders, old, op_id))
    db.value("select cascade.offer('orders', %s, %s, %s)", op_id, new, str(uuid4()))


def fenced(orders: Cascade, name: str, op_id: str) -> bool:
    try:
        orders.dbs[name].value("select cascade.raise_fence('orders', %s)", op_id)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def role(orders: Cascade, name: str) -> tuple[str, str | None]:
    found: tuple[str, str | None] | None = orders.dbs[name].row("select role, provider from cascade_internal.node")
    assert found is not None
    return found


def test_daemons_hand_the_reign_over_and_back_without_a_word_from_anybody(orders: Cascade) -> None:
    orders.publish(100)
    for old, new in (("s1", "s2"), ("s2", "s3"), ("s3", "s1")):
        hand_over(orders, old, new)
        eventually(lambda new=new: role(orders, new) == ("root", None))
        eventually(lambda old=old, new=new: role(orders, old) == ("branch", new))
        orders.publish(50, node=new)
        tick = orders.dbs[new].tick("orders")
        for name in orders.nodes:
            eventually(lambda name=name, tick=tick: orders.tick_of(name) >= tick)
        with pytest.raises(psycopg.Error, match="takes no inserts"):
            orders.publish(1, node=old)
    orders.check_all()
