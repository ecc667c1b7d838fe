"""Joining a provider: each of the nine answers for real, what both sides learn, and the rule's model beside it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes, same
from tests.models.cascade.join import Answer, Role, Standing, Term, Tick, answer, exchange

MILLION_MILLION = 10**12


def tick_row(node: Node, tick_id: int) -> dict[str, Any]:
    """A whole tick, as a term record keeps the one at which it forked."""
    find = "select to_jsonb(cascade_internal.find_tick(queue_id, slots, %s)) from cascade_internal.queue"
    found: dict[str, Any] = node.value(find, tick_id)
    return found


def promote(node: Node, *, number: int, uid: str = "11111111-1111-1111-1111-111111111111") -> None:
    """Make a branch a root that opened a term after its last tick; of a promotion, what joining can see."""
    fork, queue_id = tick_row(node, node.position()), node.queue_id
    node.main.execute(
        "insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause)"
        " values (%s, %s, %s, %s, %s, %s, 'failover')",
        (queue_id, uid, number, node.node, fork["term_uid"], Jsonb(fork)),
    )
    node.main.execute("update cascade_internal.node set role = 'root', provider = null")
    node.main.execute(
        "update cascade_internal.queue set is_copy = false, term = %s, term_uid = %s,"
        " clock_offset = %s - txid_snapshot_xmin(txid_current_snapshot())",
        (number, uid, fork["high"] + 1000),
    )
    node.main.execute("drop trigger cascade_fence on queue.q")
    node.provider = None
    node.tick()


def demote(node: Node, provider: Node) -> None:
    """Make a root a branch again, as fencing and resurrection will."""
    node.main.execute("update cascade_internal.node set role = 'branch', provider = %s", (provider.node,))
    node.main.execute("update cascade_internal.queue set is_copy = true")
    node.provider = provider


def forget_last_tick(node: Node) -> None:
    """Its database lost its tail: the last tick, and what came with it."""
    node.main.execute(
        f"delete from cascade_internal.tick_{node.queue_id}_0 where tick_id = %s".encode(), (node.position(),)
    )


# The answers that let a node go on


def test_a_node_that_stands_on_its_providers_path_goes_on(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    found = s2.join()
    assert (found["answer"], found["detail"], found["node"], found["role"]) == ("on path", None, "s1", "root")
    assert s2.rows("select answer, state from cascade.nodes") == [("on path", "running")]
    s2.catch_up()
    assert s2.join()["answer"] == "on path"
    assert same(s1, s2) == 2


def test_a_node_ahead_of_its_provider_waits_for_it(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    s1.insert(1)
    s1.tick()
    s3.catch_up()
    s3.switch(s2)
    found = s3.join()
    assert (found["answer"], s3.value("select state from cascade.nodes")) == ("behind", "running")
    with refused("QC709", "which is not here"):
        s3.fetch()
    s2.catch_up()
    assert s3.join()["answer"] == "on path"
    assert s3.fetch() is None


def test_a_provider_that_has_not_heard_of_a_new_member_yet_is_behind(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    s2.catch_up()
    s3 = nodes.add("s3")
    s3.switch(s2)
    assert s2.member("s3", "state") is None
    found = s3.join()
    assert found["answer"] == "behind"
    assert "has not heard of s3 yet" in found["detail"]
    s2.catch_up()
    assert s3.join()["answer"] == "on path"


# The answers that stop it


def test_a_dropped_node_is_told_so(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    for end, state in (("mark_dead", "dead"), ("drop_member", "dropped")):
        s1.rows(f"select cascade.{end}('q', 's2')")
        found = s2.join()
        assert (found["answer"], found["detail"]) == ("dropped", f"s2 is no member ({state})")
    with refused("QC701", "s2 is no live member"):
        s2.fetch()
    assert s2.rows("select state, answer from cascade.nodes") == [("dropped", "dropped")]


def test_a_node_that_was_never_added_is_told_so(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.main.execute("delete from cascade_internal.member where node = 's2'")
    s1.tick()
    found = s2.join()
    assert (found["answer"], found["detail"]) == ("dropped", "s2 is no member (never added)")


@pytest.mark.parametrize("where", ["above", "open"])
def test_a_node_with_events_outside_its_last_tick_is_dirty(nodes: Nodes, where: str) -> None:
    s1, s2 = nodes.line()
    writer = s1.connect(autocommit=False)
    s1.insert("open at the tick", conn=writer)
    s1.insert("after it")
    nodes.settle()
    last = tick_row(s2, s2.position())
    assert len(last["open"]) == 1
    txid = last["high"] if where == "above" else last["open"][0]
    put = f"insert into cascade_internal.event_{s2.queue_id}_2 (id, txid, payload) values (99, %s, '1')".encode()
    assert s2.join()["answer"] == "on path"
    s2.main.execute(put, (last["open"][0] - 1,))
    assert s2.join()["answer"] == "on path"
    s2.main.execute(put, (txid,))
    found = s2.join()
    assert (found["answer"], s2.describe()["is_dirty"]) == ("dirty", True)
    assert s2.value("select state from cascade.nodes") == "dirty"


def test_two_terms_that_exclude_one_another_are_a_conflict(nodes: Nodes) -> None:
    """Both were opened after the same term: neither ended the other."""
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    promote(s2, number=102)
    promote(s3, number=103, uid="22222222-2222-2222-2222-222222222222")
    demote(s3, s2)
    found = s3.join()
    assert found["answer"] == "conflict"
    assert s1.join(s2)["answer"] == "conflict"
    assert s2.value("select count(*) from cascade.terms") == s3.value("select count(*) from cascade.terms") == 3


def test_a_number_that_was_issued_twice_is_a_conflict(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    nodes.settle()
    stray = "99999999-9999-9999-9999-999999999999"
    s2.main.execute(
        "insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause)"
        " select queue_id, '22222222-2222-2222-2222-222222222222', 0, 's9', %s, '{\"tick_id\": 1}', 'failover'"
        " from cascade_internal.queue",
        (stray,),
    )
    assert s2.join()["answer"] == "conflict"


def test_a_term_that_repeats_the_number_of_one_it_ended_is_no_conflict(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    promote(s2, number=0)
    s2.insert("in the new term")
    s2.tick()
    demote(s1, s2)
    assert s1.join()["answer"] == "on path"


def test_a_root_whose_term_is_over_serves_nobody(nodes: Nodes) -> None:
    """The subscriber knows it; the root learns it by being asked."""
    s1, s2, s3 = nodes.line(3)
    nodes.settle()
    promote(s2, number=102)
    s3.catch_up()
    assert s3.join(s2)["answer"] == "on path"
    found = s3.join(s1)
    assert found["answer"] == "stale"
    assert s1.value("select max(number) from cascade.terms") == 102
    assert s3.value("select state from cascade.nodes") == "stale"


def test_a_branch_beyond_the_end_of_a_term_serves_nobody(nodes: Nodes) -> None:
    """And one that stands at the end, or before it, is merely behind."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    promote(s2, number=102)
    demote(s1, s3)
    s1.main.execute("update cascade_internal.node set provider = 's2'")
    s1.provider = s2
    assert s1.join()["answer"] == "on path"
    s1.catch_up()
    assert s1.join(s3)["answer"] == "behind"
    last = tick_row(s3, s3.position())
    beyond = last | {"tick_id": last["tick_id"] + 1, "prev_tick": last["tick_id"], "chain": "\\x01"}
    s3.main.execute(
        f"insert into cascade_internal.tick_{s3.queue_id}_0"
        " select * from jsonb_populate_record(null::cascade_internal.tick, %s)".encode(),
        (Jsonb(beyond),),
    )
    assert s1.join(s3)["answer"] == "stale"


def test_a_branch_beside_the_end_of_a_term_serves_nobody(nodes: Nodes) -> None:
    """Its last tick has the id of the fork and is another one: the root had lost that tick and made it anew."""
    s1, s2 = nodes.line()
    s3 = nodes.add("s3")
    nodes.settle()
    s1.tick()
    s2.catch_up()
    forget_last_tick(s1)
    s1.tick()
    s3.catch_up()
    assert s2.position() == s3.position()
    promote(s2, number=102)
    demote(s2, s3)
    assert s2.join()["answer"] == "stale"


def test_a_root_that_lost_its_last_tick_is_rewound(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    forget_last_tick(s1)
    found = s2.join()
    assert (found["answer"], found["detail"]) == ("rewound", f"root s1 has lost tick {s2.position()}, which s2 has")
    with refused("QC709"):
        s2.fetch()


def test_a_root_that_lost_a_tick_and_made_another_in_its_place_is_rewound(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    forget_last_tick(s1)
    s1.insert(2)
    for _ in range(3):
        s1.tick()
    assert s2.join()["answer"] == "rewound"
    with refused("QC709"):
        s2.fetch()


def test_a_node_that_followed_a_lost_tick_has_diverged_from_a_branch_that_did_not(nodes: Nodes) -> None:
    """The root lost two ticks; one branch had them, the other follows what is made in their place.

    While it has not come as far it is taken to be behind: nothing is copied, and then the truth shows.
    """
    s1, s2 = nodes.line()
    s3 = nodes.add("s3")
    nodes.settle()
    s1.insert(1)
    s1.tick()
    s1.tick()
    s2.catch_up()
    forget_last_tick(s1)
    forget_last_tick(s1)
    s1.insert(2)
    s1.tick()
    s3.catch_up()
    assert s2.join(s3)["answer"] == "behind"
    s1.tick()
    s3.catch_up()
    assert s2.join(s3)["answer"] == "diverged"
    assert s2.value("select state from cascade.nodes") == "diverged"


def test_a_tick_that_its_provider_does_not_have_between_others_is_no_common_one(nodes: Nodes) -> None:
    """Were it "on path", the node would join, be refused what follows, and join again, for ever."""
    s1, s2 = nodes.line()
    s3 = nodes.add("s3")
    here = nodes.settle()
    for _ in range(2):
        s1.tick()
    s3.catch_up()
    s3.main.execute(f"delete from cascade_internal.tick_{s3.queue_id}_0 where tick_id = %s".encode(), (here,))
    assert s2.position() == here
    assert s2.join(s3)["answer"] == "diverged"


def test_a_node_beyond_the_fork_of_its_provider_has_diverged(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.tick()
    promote(s2, number=102)
    demote(s1, s2)
    found = s1.join()
    assert found["answer"] == "diverged"
    with refused("QC709"):
        s1.fetch()


def test_a_node_whose_next_events_are_gone_is_left_behind(nodes: Nodes) -> None:
    """Released is enough: what is about to be emptied is not given to anybody new."""
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.tick()
    s1.rows("select cascade.drop_member('q', 's2')")
    for _ in range(2):
        s1.rotate("q")
    for _ in range(8):
        s1.tick()
        s1.advance()
        if s1.rotate() == [("released", 0)]:
            break
    again = s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")
    s2.rows("select cascade.readmit_node('q', %s, %s)", Jsonb(again), s1.tick())
    assert s1.value("select count(*) from queue.q where origin is null") == 1
    assert s2.join()["answer"] == "expired"
    assert s1.rotate() == [("truncated", 0)]
    found = s2.join()
    assert found["answer"] == "expired"
    assert found["detail"].startswith(f"s2 needs what follows tick {s2.position()}; the first held by s1 is ")
    with refused("QC709"):
        s2.fetch()


def test_each_answer_that_stops_a_node_has_its_sqlstate_and_a_remedy(nodes: Nodes) -> None:
    s1 = nodes.root()
    codes = ("QC701", "QC702", "QC703", "QC704", "QC705", "QC706", "QC707", "QC708")
    hints = set()
    for said, sqlstate in zip(Answer, codes, strict=False):
        with refused(sqlstate, f"{said}: the detail"):
            s1.rows("select cascade_internal.raise_answer(%s, 'the detail')", said)
        with pytest.raises(Exception) as caught:
            s1.rows("select cascade_internal.raise_answer(%s, 'the detail')", said)
        hints.add(caught.value.diag.message_hint)  # type: ignore[attr-defined]
    assert len(hints) == len(codes)


def test_who_cannot_be_a_provider_at_all_says_so(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", role="leaf")
    nodes.settle()
    with refused("QC208", 'cannot copy from "s3"'):
        s2.join(leaf)
    with refused("QC208", 'cannot copy from "s2"'):
        s2.join(s2)
    me = s2.describe() | {"set_uid": "00000000-0000-0000-0000-000000000000"}
    with refused("QC208"):
        s1.rows("select cascade.join_provider('q', %s)", Jsonb(me))


# What both sides keep


def state(node: Node) -> dict[str, list[tuple[Any, ...]]]:
    tables = dict.fromkeys(("node", "member", "term", "queue", "generation"), "*")
    tables["told"] = "queue_id, node, generation, tick_id, is_direct, is_waiting"
    return {name: node.rows(f"select {columns} from cascade_internal.{name}") for name, columns in tables.items()}


def test_joining_again_changes_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s2.join()
    before = state(s1), state(s2)
    for _ in range(3):
        assert s2.join()["answer"] == "on path"
    assert (state(s1), state(s2)) == before


def test_joining_again_after_a_refusal_changes_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.drop_member('q', 's2')")
    s1.tick()
    s2.join()
    before = state(s1), state(s2)
    for _ in range(3):
        assert s2.join()["answer"] == "dropped"
    assert (state(s1), state(s2)) == before


def test_a_provider_holds_what_a_joining_node_needs(nodes: Nodes) -> None:
    s1, _, s3 = nodes.line(3)
    nodes.settle()
    s3.switch(s1)
    s3.join()
    assert s1.rows("select node, is_direct from cascade_internal.told order by 1") == [("s2", True), ("s3", True)]
    assert s1.member("s3") == s3.position()


def test_an_answer_to_an_older_generation_is_not_noted(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    s2.rows("select cascade.pause_node('q')")
    s2.rows("select cascade.note_answer('q', 1, 'dropped', 'too late', '[]')")
    assert s2.state("answer") is None


def test_switching_pausing_and_resuming_forget_the_answer(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    for call in ("set_provider('q', 's1')", "pause_node('q')", "resume_node('q')"):
        s2.rows("select cascade.note_answer('q', %s, 'stale', 'x', '[]')", s2.state())
        assert s2.state("answer") == "stale"
        s2.rows(f"select cascade.{call}")
        assert s2.state("answer") is None


def give_unknown_terms(nodes: Nodes) -> None:
    """Give each of a root and a branch a term that the other has not heard of."""
    for node, number in ((nodes.made["s1"], 7701), (nodes.made["s2"], 7702)):
        node.main.execute(
            "insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause)"
            " select queue_id, gen_random_uuid(), %s, 's9', gen_random_uuid(), '{\"tick_id\": 5}', 'failover'"
            " from cascade_internal.queue",
            (number,),
        )


@pytest.mark.parametrize("stop", ["on path", "dropped", "dirty", "rewound"])
def test_terms_are_learned_by_both_sides_whatever_the_answer(nodes: Nodes, stop: str) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    if stop == "dropped":
        s1.rows("select cascade.drop_member('q', 's2')")
    elif stop == "dirty":
        put = f"insert into cascade_internal.event_{s2.queue_id}_0 (id, txid, payload) values (99, %s, '1')"
        s2.main.execute(put.encode(), (2**40,))
    elif stop == "rewound":
        forget_last_tick(s1)
    give_unknown_terms(nodes)
    generations = s1.state(), s2.state()
    assert s2.join()["answer"] == stop
    terms = "select number, uid, node, parent_uid, fork_tick, cause, at from cascade.terms where number <> 0"
    assert s1.rows(terms) == s2.rows(terms)
    assert len(s1.rows(terms)) == 2
    # A root that learns that it lost its tail also stands down.
    assert (s1.state(), s2.state()) == (generations[0] + (2 if stop == "rewound" else 1), generations[1] + 1)
    assert s2.state("answer") is None, "what was said was said to the older generation"
    assert s2.join()["answer"] == s2.state("answer") == stop
    # A root that learns that it lost its tail also stands down.
    assert (s1.state(), s2.state()) == (generations[0] + (2 if stop == "rewound" else 1), generations[1] + 1)


def test_a_node_restored_from_a_backup_is_told_what_it_had_told(nodes: Nodes) -> None:
    """By that it knows to raise its generation, as an older tell of its own would count for the new one."""
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    before = s2.position()
    forget_last_tick(s2)
    s2.main.execute(f"delete from cascade_internal.event_{s2.queue_id}_0".encode())
    found = s2.join()
    assert (found["answer"], found["told_generation"], found["told_tick"]) == ("on path", 1, before)
    s2.rows("select cascade.raise_generation('q', %s)", found["told_generation"])
    found = s2.join()
    assert (found["told_generation"], found["told_tick"]) == (1, before)
    assert s1.member("s2") == s2.position() < before


def test_joining_needs_read_committed(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    me = s2.describe()
    s1.main.execute("begin isolation level repeatable read")
    with refused("QC501", "needs READ COMMITTED"):
        s1.rows("select cascade.join_provider('q', %s)", Jsonb(me))


# The rule and its model


@dataclass(frozen=True)
class Story:
    """A history of one set, in which two nodes stand somewhere."""

    subscriber: Standing
    provider: Standing


def stories(chance: random.Random) -> Story:
    """Make up some terms and ticks, lost tails among them, and two nodes that know some of them."""
    paths, terms = history(chance)
    subscriber = stand(chance, "s2", paths, terms)
    provider = stand(chance, "s1", paths, terms)
    members = frozenset({"s1", "s2"} if chance.random() < 0.95 else {"s1"})
    return Story(
        replace(
            subscriber,
            role=chance.choice([Role.BRANCH, Role.LEAF]),
            is_dirty=chance.random() < 0.05,
        ),
        replace(provider, role=chance.choice([Role.ROOT, Role.BRANCH]), members=members),
    )


def history(chance: random.Random) -> tuple[list[tuple[Tick, ...]], dict[str, Term]]:
    """Return paths, each a whole one from the first tick on, and the terms they run through."""
    terms: dict[str, Term] = {}

    def open_term(number: int, fork: Tick | None) -> Term:
        uid = str(UUID(int=chance.getrandbits(128)))
        made = Term(uid, number, *((fork.term, fork.tick_id, fork.chain) if fork else (None, None, None)))
        return terms.setdefault(uid, made)

    paths = [grow(chance, (), open_term(0, None), chance.randint(1, 4))]
    for number in range(1, chance.randint(1, 5)):
        at = chance.choice(paths)
        at = at[: chance.randint(1, len(at))]
        if chance.random() < 0.3:
            # The root of that term lost its tail, and ticks again: other ticks under the same ids.
            paths.append(grow(chance, at, terms[at[-1].term], chance.randint(0, 3)))
            continue
        older = terms[at[-1].term].number
        ballot = older if chance.random() < 0.1 else (older // 100 + 1) * 100 + chance.choice([1, 2, number])
        paths.append(grow(chance, at, open_term(ballot, at[-1]), chance.randint(1, 3)))
        if len(at) > 1 and at[-2].term == at[-1].term and chance.random() < 0.5:
            # It lost just the tick at which the next term forked.
            paths.append(grow(chance, at[:-1], terms[at[-1].term], chance.randint(1, 2)))
    if chance.random() < 0.05:
        open_term(900, None)  # Of a set that is no more.
    return paths, terms


def grow(chance: random.Random, path: tuple[Tick, ...], term: Term, count: int) -> tuple[Tick, ...]:
    """Make ticks after a path, as the root of a term does."""
    for _ in range(count):
        prev = path[-1] if path else None
        tick_id = max(prev.tick_id if prev else 0, term.number * MILLION_MILLION) + 1
        chain = sha256(f"{prev and prev.chain}/{tick_id}/{chance.random()}".encode()).hexdigest()
        path = (*path, Tick(tick_id, term.uid, prev.tick_id if prev else None, chain))
    return path


def stand(chance: random.Random, name: str, paths: list[tuple[Tick, ...]], terms: dict[str, Term]) -> Standing:
    """Put a node on a path; it has forgotten some ticks and heard of some other terms."""
    path = chance.choice(paths)
    path = path[: chance.randint(max(1, len(path) - 2), len(path))]
    own, last = set(), terms.get(path[-1].term)
    while last is not None:
        own.add(last)
        last = terms.get(last.parent or "")
    heard = {term for term in terms.values() if chance.random() < 0.3}
    first = chance.choice([0, 0, chance.randrange(len(path))])
    kept = path[first:]
    retained = chance.choice([None, None, chance.choice(kept).tick_id])
    return Standing(
        node=name,
        role=Role.BRANCH,
        term=path[-1].term,
        path=kept,
        first_retained=retained,
        terms=frozenset(own | heard),
    )


LOAD = """
do $load$
declare
    v_given constant jsonb := $given${given}$given$;
    v_id    constant integer := (select queue_id from cascade_internal.queue);
begin
    execute format('truncate cascade_internal.tick_%s_0, cascade_internal.tick_%1$s_1', v_id);
    execute format('truncate cascade_internal.event_%s_0', v_id);
    delete from cascade_internal.term;
    delete from cascade_internal.told;
    insert into cascade_internal.term (queue_id, uid, number, node, parent_uid, fork, cause)
    select v_id, t.uid, t.number, 's1', t.parent_uid, t.fork, 'made up'
      from jsonb_populate_recordset(null::cascade_internal.term, v_given->'terms') as t;
    for v_slot in 0 .. 1 loop
        execute format('insert into cascade_internal.tick_%s_%s'
                       ' select * from jsonb_populate_recordset(null::cascade_internal.tick, $1)', v_id, v_slot)
          using v_given->'ticks'->v_slot;
    end loop;
    update cascade_internal.node set role = v_given->>'role', generation = 1,
           provider = case when v_given->>'role' = 'root' then null else 's1' end;
    update cascade_internal.member set state = case when v_given->'members' ? node then 'live' else 'dropped' end;
    if (v_given->>'is_dirty')::boolean then
        execute format('insert into cascade_internal.event_%s_0 (id, txid, payload) values (1, 9999, ''1'')', v_id);
    end if;
end
$load$
"""


def load(node: Node, standing: Standing) -> None:
    """Write a standing into a database's tables; generation 0 is released there, and holds ticks only."""
    ids = [tick.tick_id for tick in standing.path]
    first = ids.index(standing.first_retained) if standing.first_retained in ids else 0
    ticks = [as_row(tick, gen=int(at >= first)) for at, tick in enumerate(standing.path)]
    given = {
        "ticks": [ticks[:first], ticks[first:]],
        "terms": [
            {
                "uid": term.uid,
                "number": term.number,
                "parent_uid": term.parent,
                "fork": term.parent and {"tick_id": term.fork, "chain": f"\\x{term.fork_chain}"},
            }
            for term in standing.terms
        ],
        "role": standing.role,
        "members": sorted(standing.members),
        "is_dirty": standing.is_dirty,
    }
    node.main.execute(LOAD.replace("{given}", json.dumps(given)).encode())


def as_row(tick: Tick, *, gen: int) -> dict[str, Any]:
    return {
        "tick_id": tick.tick_id,
        "prev_tick": tick.prev,
        "time": "2001-01-01T00:00:00Z",
        "low": 1000,
        "high": 1000,
        "open": [],
        "event_seq": 0,
        "total": 0,
        "term_uid": tick.term,
        "chain": f"\\x{tick.chain}",
        "gen": gen,
        "gen_low": gen,
    }


def last_tick_only(standing: Standing) -> Standing:
    """What an introduction says: the last tick, and nothing of those before it."""
    return replace(standing, path=standing.path[-1:])


def test_the_database_answers_as_the_model_does(nodes: Nodes) -> None:
    """Made up histories are loaded into two databases, which then join.

    An introduction names the subscriber's last tick only.  So a provider that stands lower on a path of
    its own within one term is taken to be behind; that they went different ways shows once it has come as far.
    """
    s1, s2 = nodes.line()
    s2.main.execute("update cascade_internal.member set state = 'live'")
    for node in (s1, s2):
        node.rotate("q")
        node.rotate("q")
        node.main.execute("update cascade_internal.generation set released = true where gen = 0")
    seen: dict[str, int] = {}
    later = 0
    for seed in range(200):
        story = stories(random.Random(seed))
        load(s1, story.provider)
        load(s2, story.subscriber)
        subscriber, provider = exchange(story.subscriber, story.provider)
        expected = answer(last_tick_only(subscriber), provider)
        found = s2.join()
        assert found["answer"] == expected, f"seed {seed}: {found['detail']}\n{describe(story)}"
        if expected != answer(subscriber, provider):
            assert (expected, answer(subscriber, provider)) == (Answer.BEHIND, Answer.DIVERGED), describe(story)
            later += 1
        known = [str(row[0]) for row in s1.rows("select uid from cascade.terms order by uid")]
        assert known == sorted(term.uid for term in provider.terms)
        assert known == [str(row[0]) for row in s2.rows("select uid from cascade.terms order by uid")]
        seen[expected] = seen.get(expected, 0) + 1
    assert set(seen) == set(Answer), seen
    assert later < 30


def describe(story: Story) -> str:
    """A story to read when it fails."""
    lines = []
    for standing in (story.subscriber, story.provider):
        path = " ".join(f"{tick.term[-2:]}/{tick.tick_id}[{tick.chain[:4]}]" for tick in standing.path)
        terms = ", ".join(
            f"{term.uid[-2:]} no. {term.number} after {term.parent and term.parent[-2:]}/{term.fork}"
            for term in sorted(standing.terms)
        )
        lines.append(f"{standing.role} {standing.node}: {path}; retained {standing.first_retained}; terms {terms}")
    return "\n".join(lines)


def test_nobody_copies_from_a_node_that_was_dropped(nodes: Nodes) -> None:
    """It gets nothing more: whoever waited for it would wait for ever, without an alarm."""
    s1, s2 = nodes.line()
    s3 = nodes.add("s3", s2)
    nodes.settle()
    s1.rows("select cascade.drop_member('q', 's2')")
    assert s2.join()["answer"] == "dropped"
    assert s3.join(s2)["answer"] == "stale"
    with refused("QC709"):
        s3.fetch()
    assert s3.join(s1)["answer"] == "on path"
