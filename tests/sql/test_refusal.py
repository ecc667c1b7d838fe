"""The refusal of inserts, QC401: why, and where the root is, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, demote, stand_down
from tests.fixtures.nodes import Node, Nodes
from tests.fixtures.roles import role_on

RAISE = "create trigger cascade_fence before insert on queue.q execute function cascade_internal.refuse_insert()"


def refusal(
    node: Node, statement: str = "insert into queue.q (payload) values ('1')"
) -> tuple[str, str, dict[str, Any]]:
    """Return the message, the hint and the detail of a refusal."""
    with pytest.raises(psycopg.Error) as caught:
        node.rows(statement)
    diag = caught.value.diag
    assert diag.sqlstate == "QC401", diag.message_primary
    assert diag.message_primary and diag.message_hint and diag.message_detail
    return diag.message_primary, diag.message_hint, json.loads(diag.message_detail)


def fence(node: Node, cause: str | None, detail: str | None = None) -> None:
    """Fence a root, as an operation or its daemon does."""
    node.main.execute("drop trigger if exists cascade_fence on queue.q")
    node.main.execute(RAISE.encode())
    node.main.execute("delete from cascade_internal.fence")
    if cause is not None:
        query = (
            "insert into cascade_internal.fence (queue_id, cause, detail, op_id, is_up)"
            " select %s, x, %s, case x when 'operation' then gen_random_uuid() end, true from unnest(array[%s]) as x"
        )
        node.main.execute(query.encode(), (node.queue_id, detail, cause))


def learn_root(node: Node, root: str) -> None:
    """Have a node hear that another member is the root now, as the log or a daemon tells it."""
    found = node.rows("select to_jsonb(m) - 'queue_id' from cascade_internal.member as m")
    version = max(row["version"] for (row,) in found)
    news = [
        row | {"role": "root" if row["node"] == root else "branch", "version": version + 1 + row["node_no"]}
        for (row,) in found
    ]
    node.rows("select cascade_internal.learn_members(%s, %s)", node.queue_id, Jsonb(news))


def test_a_copy_tells_programs_where_the_root_is(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    message, hint, detail = refusal(s2)
    assert message == 'queue "q" takes no inserts here: this database is branch "s2" of the set, the root is "s1"'
    assert hint == "Do it at the root, database db-s1."
    assert detail == {
        "set": "q", "role": "branch", "node": "s2", "root": "s1", "database": "db-s1", "dsn": "service=s1",
        "cause": None,
    }  # fmt: skip
    assert refusal(s2, "select cascade.reserve_id('q')")[0].startswith('queue "q" hands out no ids here')
    assert refusal(s2, "select cascade.tick('q')")[2] == detail


def test_the_newest_root_that_was_heard_of_is_named(nodes: Nodes) -> None:
    _, s2, s3 = nodes.line(3)
    learn_root(s3, "s2")
    assert refusal(s3)[2] | {"set": "q"} == {
        "set": "q", "role": "branch", "node": "s3", "root": "s2", "database": None, "dsn": None, "cause": None,
    }  # fmt: skip
    assert refusal(s2)[2]["root"] == "s1", "who has not heard names the former one"


@pytest.mark.parametrize("cause", ["operation", None])
def test_a_root_that_is_being_moved_says_try_again(nodes: Nodes, cause: str | None) -> None:
    """Also with the trigger alone: the row that explains it is another transaction's to write."""
    s1 = nodes.root()
    fence(s1, cause, None if cause is None else "switchover to s2")
    message, hint, detail = refusal(s1)
    assert message.startswith('queue "q" takes no inserts here: root "s1" is fenced, the root is being moved')
    assert ("switchover to s2" in message) is (cause is not None)
    assert hint.startswith("Try again in a moment")
    assert (detail["node"], detail["root"], detail["cause"]) == ("s1", "s1", "operation")
    s1.main.execute("drop trigger cascade_fence on queue.q")
    s1.insert("goes on")


def test_an_expiry_is_named(nodes: Nodes) -> None:
    s1 = nodes.root()
    fence(s1, "operation")
    s1.main.execute("update cascade_internal.fence set expires_at = '2030-01-31 12:00+00'")
    assert "at the latest at 2030-01-31" in refusal(s1)[1]


@pytest.mark.parametrize("cause", ["over", "operation", "rewound"])
def test_a_former_root_that_knows_its_successor_sends_there(nodes: Nodes, cause: str) -> None:
    s1, _ = nodes.line()
    fence(s1, cause, "term 102 follows")
    learn_root(s1, "s2")
    message, hint, detail = refusal(s1)
    assert 'the reign of "s1" is over, the root is "s2": term 102 follows' in message
    assert hint.startswith("Do it at the root")
    assert (detail["node"], detail["root"], detail["cause"]) == ("s1", "s2", cause)


@pytest.mark.parametrize(
    ("cause", "words", "remedy"),
    [
        ("over", "its reign is over: heard from s3", "cascade status"),
        ("rewound", "has lost events that other nodes have", "cascade failover"),
        ("conflict", "another node was made the root too", "cascade resolve q --keep UID"),
    ],
)
def test_where_an_operator_must_decide_no_root_is_named(nodes: Nodes, cause: str, words: str, remedy: str) -> None:
    s1, _ = nodes.line()
    fence(s1, cause, "heard from s3")
    if cause == "conflict":
        learn_root(s1, "s2")
    message, hint, detail = refusal(s1)
    assert words in message and remedy in hint
    assert (detail["root"], detail["database"], detail["dsn"], detail["cause"]) == (None, None, None, cause)


def test_a_fenced_root_hands_out_no_ids(nodes: Nodes) -> None:
    """They could be posted nowhere."""
    s1 = nodes.root()
    s1.rows("select cascade.reserve_id('q')")
    fence(s1, "operation")
    with refused("QC401", "hands out no ids"):
        s1.rows("select cascade.reserve_id('q')")


def test_a_producer_who_may_see_nothing_is_told_where_to_go(nodes: Nodes) -> None:
    s1 = nodes.root()
    fence(s1, "over", "x")
    with role_on(s1) as role:
        s1.rows("select cascade.grant_producer('q', %s)", role)
        producer = s1.connect(user=role)
        for statement in ("insert into queue.q (payload) values ('1')", "select cascade.post('q', '1')"):
            with refused("QC401", "its reign is over"):
                producer.execute(statement.encode())
        producer.close()


def test_through_a_switchover_every_refusal_leads_on(nodes: Nodes) -> None:
    """First to wait, then to whoever took the reign, before anybody has published that."""
    s1, s2 = nodes.line()
    nodes.settle()
    change = Switchover(s1, s2)
    change.begin()
    change.fence()
    assert (refusal(s1)[2]["root"], refusal(s2)[2]["root"]) == ("s1", "s1")
    change.offer()
    assert refusal(s1)[2] | {"root": "s1", "cause": "operation"} == refusal(s1)[2]
    s2.catch_up()
    duty = change.duty()
    change.take(duty)
    assert refusal(s1)[2]["root"] == "s2"
    assert refusal(s2)[2]["root"] == "s1", "it has not promoted itself yet: whoever is sent there comes back"
    change.promote(duty)
    s2.insert("goes on")
    stand_down(s1, s2)
    assert refusal(s1)[2]["root"] == "s2"
    demote(s1, s2)
    assert (refusal(s1)[2]["role"], refusal(s1)[2]["root"]) == ("branch", "s2")


def test_an_offer_that_was_withdrawn_leads_nowhere(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    change = Switchover(s1, s2)
    change.begin()
    change.fence()
    change.offer()
    s1.value("select cascade.withdraw_handover('q', %s)", change.op_id)
    s1.insert("goes on")
    fence(s1, "operation")
    assert refusal(s1)[2]["root"] == "s1"
