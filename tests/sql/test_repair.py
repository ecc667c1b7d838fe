"""Repair in the database: a branch becomes what its provider is, whole or not at all, journaled, and if unchanged."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes, same

ALL = "'q', 1, 1000000000000000"
CALL = "select cascade.repair_log('q', %s, %s, %s, %s)"


def digest(node: Node, from_tick: int, to_tick: int) -> int:
    """Return the digest of a stretch."""
    return int(node.value("select digest from cascade.digest_spans('q', %s)", [from_tick, to_tick]))


def stretch(node: Node, from_tick: int, to_tick: int, ids: Sequence[int]) -> dict[str, Any]:
    """Return what makes ticks of a node what its provider has."""
    provider = node.provider
    assert provider is not None
    query = "select coalesce(json_agg(e), '[]') from (select * from cascade.read_log('q', %s, %s, %s)) as e"
    return {
        "from_tick": from_tick,
        "to_tick": to_tick,
        "found": digest(node, from_tick, to_tick),
        "wanted": digest(provider, from_tick, to_tick),
        "ticks": provider.value("select cascade.read_ticks('q', %s, %s)", from_tick, to_tick),
        "events": provider.value(query, from_tick, to_tick, list(ids)),
    }


def repair(node: Node, stretches: Sequence[dict[str, Any]], ids: Sequence[int], **other: str) -> dict[str, Any]:
    """Apply a plan."""
    arguments = (other.get("provider", "s1"), other.get("plan", str(uuid.uuid4())), json.dumps(stretches), list(ids))
    found: dict[str, Any] = node.value(CALL, *arguments)
    return found


def table(node: Node, kind: str = "event") -> str:
    return f"cascade_internal.{kind}_{node.queue_id}_0"


@pytest.fixture
def pair(nodes: Nodes) -> tuple[Node, Node]:
    """A root and a branch with ten ticks of three events, one of them large and one with headers."""
    s1, s2 = nodes.line()
    put = "insert into queue.q (type, key, payload, headers) values ('t', %s, %s, %s)"
    for number in range(10):
        s1.main.execute(put, (None, Jsonb({"n": number}), None))
        s1.main.execute(put, ("鍵", Jsonb("x" * 20_000), Jsonb({"h": [1, "\u0001"]})))
        s1.main.execute(put, ("", Jsonb(None), None))
        s1.tick()
    nodes.settle()
    return s1, s2


def events(node: Node) -> list[tuple[int, int]]:
    """Return (id, tick) of the events that were published."""
    query = f"select id, tick_id from cascade.read_log({ALL}) where origin is null order by id"
    return [(row[0], row[1]) for row in node.rows(query)]


def test_a_damaged_branch_becomes_what_its_provider_is(pair: tuple[Node, Node]) -> None:
    """Every kind of damage in one stretch, and a move out of it; the branch copies on afterwards."""
    s1, s2 = pair
    s2.rows("select cascade.subscribe('q', 'late', 'earliest')")
    s2.rows("select cascade.subscribe('q', 'done', 'now')")
    good = [(id, tick) for id, tick in events(s2) if tick > 4]
    (gone, first), (changed, _), (moved, _), (doubled, _) = good[0], good[1], good[3], good[4]
    far = good[-1][1]
    before = s2.log().batches
    s2.rows(f"delete from {table(s2)} where id = %s returning 1", gone)
    s2.rows(f"update {table(s2)} set payload = '2', key = 'é' where id = %s returning 1", changed)
    s2.rows(f"update {table(s2)} set txid = (select txid from {table(s2)} where id = %s) where id = %s returning 1",
            good[-1][0], moved)  # fmt: skip
    s2.rows(f"insert into {table(s2)} select * from {table(s2)} where id = %s returning 1", doubled)
    s2.rows(f"insert into {table(s2)} (id, txid, payload) select 9999, txid, '9' from {table(s2)} where id = %s"
            " returning 1", doubled)  # fmt: skip
    lost = first + 3
    s2.rows(f"delete from {table(s2, 'tick')} where tick_id = %s returning 1", lost)
    s2.rows(f"update {table(s2, 'tick')} set total = total + 1 where tick_id = %s returning 1", lost + 1)
    assert s2.log().batches != before

    ids = [gone, changed, moved, doubled, 9999]
    stretches = [stretch(s2, first - 1, lost + 1, ids), stretch(s2, far - 1, far, ids)]
    plan = str(uuid.uuid4())
    done = repair(s2, stretches, ids, plan=plan)
    # The doubled one was there twice, and so was what was made from it.
    assert (done["removed"], done["added"], done["ticks"], done["is_repeat"]) == (6, 4, 1, False)
    assert done["consumers"] == [{"consumer": "done", "tick_id": s2.position()}]
    assert same(s1, s2) >= 30 and s2.log().batches == before

    again = repair(s2, stretches, ids, plan=plan)
    assert again == done | {"is_repeat": True} and s2.log().batches == before
    [(node, removed, added)] = s2.rows("select node, removed, added from cascade.repairs where plan = %s", plan)
    assert (node, removed, added) == ("s2", 6, 4)
    kept = s2.rows("select is_removed, id, payload from cascade.read_repair('q', %s)", plan)
    assert (True, changed, "2") in kept and [row[1] for row in kept if not row[0]] == sorted(
        [gone, changed, moved, doubled]
    )
    assert [row[0] for row in s2.rows("select step from cascade.journal where op_id = %s", plan)] == ["repair"]
    s1.insert(1)
    s1.tick()
    assert s2.catch_up() and same(s1, s2)
    assert len(s2.drain("late")) == 31


def test_a_plan_that_is_stale_changes_nothing(pair: tuple[Node, Node]) -> None:
    s1, s2 = pair
    (id, tick), (other, _) = events(s2)[6:8]
    s2.rows(f"delete from {table(s2)} where id = %s returning 1", id)
    good = stretch(s2, tick - 1, tick, [id])
    state = s2.log()
    with refused("QC209", "not what the plan found"):
        repair(s2, [good | {"found": good["found"] + 1}], [id])
    with refused("QC209", "not what the plan wants"):
        repair(s2, [good | {"wanted": good["wanted"] + 1}], [id])
    with refused("QC209", "not what the plan wants"):
        repair(s2, [good | {"events": []}], [id])
    with refused("QC209", 'copies from "s1" now'):
        repair(s2, [good], [id], provider="s3")
    with refused("QC209", "not what the plan found"):
        repair(s2, [good | {"to_tick": s2.position() + 1}], [id])
    with refused("QC003", "no ids"):
        s2.value(CALL, "s1", str(uuid.uuid4()), "[]", None)
    # Somebody damages it further, or mends it, after the plan was made.
    s2.rows(f"delete from {table(s2)} where id = %s returning 1", other)
    with refused("QC209", "not what the plan found"):
        repair(s2, [good], [id])
    assert s2.rows("select * from cascade.repairs") == [] and len(events(s2)) == len(events(s1)) - 2
    assert state.ticks == s2.log().ticks


def test_an_event_elsewhere_that_has_the_id_of_an_extra_one_stays(pair: tuple[Node, Node]) -> None:
    """Who puts an event into a copy takes the next id; the root gives it to another one later."""
    s1, s2 = pair
    twin, tick = events(s2)[6]
    s1.insert(5)
    s1.tick()
    assert s2.catch_up()
    id = events(s2)[-1][0]
    s2.rows(
        f"insert into {table(s2)} (id, txid, payload) select %s, txid, '9' from {table(s2)} where id = %s returning 1",
        id,
        twin,
    )
    done = repair(s2, [stretch(s2, tick - 1, tick, [id])], [id])
    assert (done["removed"], done["added"]) == (1, 0)
    assert same(s1, s2) and events(s2)[-1][0] == id


def test_only_a_branch_is_repaired(nodes: Nodes) -> None:
    s1 = nodes.root()
    leaf = nodes.add("s2", s1, role="leaf")
    with refused("QC208", "is a root"):
        repair(s1, [], [])
    with refused("QC208", "is a leaf"):
        repair(leaf, [], [])


def test_a_tick_on_which_a_consumer_stands_is_not_taken_out(pair: tuple[Node, Node]) -> None:
    _, s2 = pair
    tick = events(s2)[6][1]
    query = f"update {table(s2, 'tick')} set tick_id = tick_id + 100000 where tick_id = %s returning 1"
    s2.rows(query, s2.position())
    forged = s2.position()
    s2.rows("select cascade.subscribe('q', 'c', %s)", str(forged))
    forge = "tick_id + 1, tick_id, time, low, high, open, event_seq, total, term_uid, chain, gen, gen_low"
    ticks = table(s2, "tick")
    s2.rows(f"insert into {ticks} select {forge} from {ticks} where tick_id = %s returning 1", forged)
    wrong = stretch(s2, tick, forged, [])
    with refused("QC202", "stands on a tick"):
        repair(s2, [wrong], [])


def test_rotation_and_copying_wait_for_a_repair(pair: tuple[Node, Node]) -> None:
    """They are waited for, or wait, at the rows that they lock themselves; neither fails."""
    s1, s2 = pair
    id, tick = events(s2)[6]
    s2.rows(f"delete from {table(s2)} where id = %s returning 1", id)
    good = stretch(s2, tick - 1, tick, [id])
    conn = s2.connect(autocommit=False)
    conn.execute(CALL.encode(), ("s1", str(uuid.uuid4()), json.dumps([good]), [id]))
    assert [action for action, _ in s2.rotate("q")] == ["waiting"]
    s1.insert(5)
    s1.tick()
    fetched = s2.fetch()
    assert fetched is not None
    s2.main.execute("set lock_timeout = '200ms'")
    with refused("55P03", hint=False):
        s2.store(fetched)
    conn.commit()
    s2.store(fetched)
    assert same(s1, s2) and [action for action, _ in s2.rotate("q")] == ["switched"]


def test_rotation_releases_nothing_that_is_being_repaired(pair: tuple[Node, Node], nodes: Nodes) -> None:
    s1, s2 = pair
    assert [s2.rotate("q")[0][0], s2.rotate()[0][0]] == ["switched", "settled"]
    s1.insert(1)
    for _ in range(3):
        s1.tick()
        nodes.settle()
        s1.advance()
    id, tick = events(s2)[6]
    s2.rows(f"delete from {table(s2)} where id = %s returning 1", id)
    good = stretch(s2, tick - 1, tick, [id])
    conn = s2.connect(autocommit=False)
    conn.execute(CALL.encode(), ("s1", str(uuid.uuid4()), json.dumps([good]), [id]))
    assert s2.rotate() == [("waiting", None)]
    conn.commit()
    assert s2.rotate() == [("released", 0)]


def test_a_repair_reaches_into_the_generation_in_which_its_ticks_lie(nodes: Nodes) -> None:
    """A lost tick between two generations gets both, and its events are put where it lies."""
    s1, s2 = nodes.line()
    s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
    for _ in range(3):
        s1.insert(1, 2)
        s1.tick()
    nodes.settle()
    s2.rotate("q")
    s1.insert(3, 4)
    last = s1.tick()
    s1.insert(5)
    s1.tick()
    nodes.settle()
    ids = [id for id, tick in events(s2) if tick == last]
    for slot in (0, 1):
        for id in ids:
            s2.main.execute(f"delete from cascade_internal.event_{s2.queue_id}_{slot} where id = {id}".encode())
        s2.main.execute(f"delete from cascade_internal.tick_{s2.queue_id}_{slot} where tick_id = {last}".encode())
    done = repair(s2, [stretch(s2, last - 1, last + 1, ids)], ids)
    assert (done["removed"], done["added"]) == (0, 2)
    assert same(s1, s2)
    assert s2.drain("c") == [1, 2, 1, 2, 1, 2, 3, 4, 5]
