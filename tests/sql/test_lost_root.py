"""A root that is lost and comes back: promotion, fences, quarantine, resurrection, certificates that add up."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.fixtures.expect import refused
from tests.fixtures.failover import (
    Switchover,
    common,
    demote,
    fail_over,
    mark_duplicates,
    members_of,
    open_ballot,
    promote,
    report,
    resurrect,
    set_aside,
    stand_down,
)
from tests.fixtures.nodes import Node, Nodes, same
from tests.sql.test_switchover import payloads

#: The events of a quarantine, whole.
HELD = "select term_uid, id, to_jsonb(x) from cascade.read_quarantine('q') as x where state = 'held' order by id"


def lost(nodes: Nodes, count: int = 2) -> list[Node]:
    """A line of nodes: event 1 is everywhere, 2 is ticked and 3 not, at the root only."""
    made = nodes.line(count)
    root = made[0]
    root.insert(1)
    nodes.settle()
    root.insert(2)
    root.tick()
    root.insert(3)
    return made


def tell(node: Node, terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Tell a node terms of its set, and return what it answers."""
    call = "select cascade.exchange_terms('q', %s, (select set_uid from cascade_internal.node))"
    return dict(node.value(call, Jsonb(terms)))


def aside(node: Node) -> list[tuple[Any, str]]:
    """What was set aside at a node, control events left out."""
    query = "select payload, state from cascade.read_quarantine('q') where state <> 'control' order by id"
    return [(int(payload), state) for payload, state in node.rows(query)]


def process(leaf: Node) -> None:
    """Have a leaf process what follows, and learn what its control events say."""
    while (fetched := leaf.fetch(read=False)) is not None:
        rows = fetched.provider.rows(f"select type, payload from ({fetched.query}) as e where origin = '.cascade'")
        controls = Jsonb([{"type": type, "payload": payload} for type, payload in rows])
        with leaf.main.transaction():
            begin = "select cascade.begin_copy('q', %s, %s, %s, %s)"
            leaf.main.execute(begin, (fetched.provider.node, fetched.generation, *fetched.after))
            leaf.main.execute("select cascade.finish_leaf_copy('q', %s, %s)", (Jsonb(fetched.ticks), controls))


# Promotion


def test_a_failover_opens_a_term_after_the_last_tick_and_a_certificate(nodes: Nodes) -> None:
    _s1, s2 = lost(nodes)
    fork = s2.position()
    evidence = {"highest_tick": fork + 1, "at_most": 1}
    made = fail_over(s2, reason="the rack burned", fenced_by="power is off", evidence=evidence)
    s2.insert(4)
    assert made["fork_tick"] == fork
    row = s2.row("select number, state, fork_tick, cause, reason, fenced_by, pending, tail from cascade.certificates")
    assert row == (1, "open", fork, "failover", "the rack burned", "power is off", ["s1"], 0)
    found = s2.value("select certificate->'evidence' from cascade.certificates")
    assert found == evidence | {"is_closing_tick": False}


@pytest.mark.parametrize("until", ["released", "truncated"])
def test_whoever_stands_on_the_opening_tick_goes_on_although_older_events_are_let_go(nodes: Nodes, until: str) -> None:
    """What an older generation held lies before the fork, so nothing of it comes after that tick."""
    s1, s2, s3 = nodes.line(3)
    s1.insert(1)
    nodes.settle()
    s2.rotate("q")
    s2.rotate("q")
    # Its server counts transactions from where it likes; those of this test have one counter.
    s2.main.execute("update cascade_internal.generation set since = since + 1000000 where gen = 1")
    s1.insert(2)
    while s2.rotate() != [(until, 0)]:
        nodes.settle()
        s1.advance()
    opening = fail_over(s2, s3)["tick_id"]
    s2.rows("select cascade.subscribe('q', 'c', 'now')")
    assert opening in [row[0] for row in s2.rows("select tick_id from cascade.ticks")]
    s3.join()
    s3.catch_up()
    assert s3.position() == opening
    s2.insert(3)
    s2.rotate()
    s2.tick()
    assert s2.drain("c") == [3]
    assert s3.join()["answer"] == "on path"
    s3.catch_up()
    assert same(s2, s3)


def test_a_carrier_that_somebody_else_asked_first_refuses_the_ballot(nodes: Nodes) -> None:
    _s1, _s2, s3 = lost(nodes, 3)
    uid, fork = str(uuid4()), s3.describe()["tick"]
    assert open_ballot(s3, 102, uid, "s2", fork) is True
    assert open_ballot(s3, 102, uid, "s2", fork) is False, "a repeat changes nothing"
    with refused("QC212", "s2 is promoted, or about to be"):
        open_ballot(s3, 102, str(uuid4()), "s2", fork)
    assert s3.value("select cascade.next_term_number('q')") == 203, "the next number is above every ballot"
    assert s3.value("select cascade.close_ballot('q', 102, %s)", uid) is True
    with refused("QC212", "no longer counts here"):
        open_ballot(s3, 102, uid, "s2", fork)
    assert open_ballot(s3, 103, str(uuid4()), "s3", fork) is True


def test_a_higher_ballot_closes_a_lower_one(nodes: Nodes) -> None:
    _s1, s2, s3 = lost(nodes, 3)
    uid, fork = str(uuid4()), s2.describe()["tick"]
    open_ballot(s2, 102, uid, "s2", fork)
    open_ballot(s2, 203, str(uuid4()), "s3", fork)
    with refused("QC212", "holds no ballot"):
        promote(s2, uid, 102, "failover", fork)
    assert open_ballot(s3, 203, str(uuid4()), "s3", fork) is True


def test_a_plan_that_has_not_heard_of_the_newest_term_gets_no_ballot(nodes: Nodes) -> None:
    s1, s2, _s3 = lost(nodes, 3)
    before = s1.describe()["tick"]["term_uid"]
    fail_over(s2)
    with refused("QC212", "s2 is promoted"):
        open_ballot(s2, 303, str(uuid4()), "s3", s2.describe()["tick"], before)


def test_a_node_that_heard_of_a_term_without_its_ticks_can_end_it(nodes: Nodes) -> None:
    """s2 is promoted and lost before anybody has copied its opening tick."""
    s1, s2, s3 = lost(nodes, 3)
    fail_over(s2)
    tell(s3, s2.describe()["terms"])
    made = fail_over(s3, without=["s2"])
    s3.insert("on")
    s3.tick()
    assert s3.rows("select pending from cascade.certificates") == [(["s1", "s2"],)], "both terms were cut off"
    for node in (s1, s2):
        assert stand_down(node, s3)["cause"] == "over"
        resurrect(node, s3)
        node.join()
        node.catch_up()
        assert same(node, s3)
        done = report(node, s3, made["uid"])
    assert (done["state"], done["tail"]) == ("closed", 2)


def test_a_stale_plan_does_not_promote(nodes: Nodes) -> None:
    _s1, s2 = lost(nodes)
    before = s2.describe()["tick"]
    s2.catch_up()
    uid = str(uuid4())
    open_ballot(s2, 102, uid, "s2", s2.describe()["tick"])
    with refused("QC209", "stands at tick"):
        promote(s2, uid, 102, "failover", before)


def wide(nodes: Nodes) -> tuple[Node, Node, Node, dict[str, Any], str]:
    """A root that is a tick ahead of two branches below it, that tick of theirs, and the uid of a promotion."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    s1.insert(1)
    s1.tick()
    return s1, s2, s3, s2.describe()["tick"], str(uuid4())


def test_a_carrier_that_went_on_since_the_plan_was_made_refuses_the_ballot(nodes: Nodes) -> None:
    """The model's trace: s3 copies from the lost root after the operator has chosen s2, and before he asks it."""
    _s1, s2, s3, fork, uid = wide(nodes)
    s3.catch_up()
    assert open_ballot(s2, 102, uid, "s2", fork)
    with refused("QC209", f"stands at tick {s3.position()}, beyond {fork['tick_id']}"):
        open_ballot(s3, 102, uid, "s2", fork)
    assert s3.value("select cascade.describe_set('q')")["ballots"] == []
    assert open_ballot(s2, 203, uid, "s3", s3.describe()["tick"]), "who stands before the fork does not mind"


@pytest.mark.parametrize("small_bytes", [0, 128 * 1024], ids=["by copy", "inline"])
def test_an_open_ballot_stops_copying_until_the_term_is_heard_of(nodes: Nodes, small_bytes: int) -> None:
    """The model's trace: s3 copies from the lost root after it was asked, and before s2 is promoted."""
    nodes.small_bytes = small_bytes
    _s1, s2, s3, fork, uid = wide(nodes)
    in_hand = s3.fetch()
    assert in_hand is not None
    for carrier in (s2, s3):
        open_ballot(carrier, 102, uid, "s2", fork)
        with refused("QC212", "copies nothing now: s2 is about to be promoted"):
            carrier.catch_up()
    with refused("QC212", "copies nothing now"):
        s3.store(in_hand)
    promote(s2, uid, 102, "failover", fork)
    s3.switch(s2)
    with refused("QC212", "copies nothing now"):
        s3.catch_up()
    s3.join()
    s3.catch_up()
    assert same(s2, s3) and s3.position() == s2.position()
    assert s3.value("select cascade.describe_set('q')")["ballots"] == []


def test_an_open_ballot_stops_a_leaf_too(nodes: Nodes) -> None:
    s1 = nodes.root()
    leaf = nodes.add("s2", s1, role="leaf")
    nodes.settle()
    open_ballot(leaf, 103, str(uuid4()), "s3", leaf.describe()["tick"])
    s1.insert(1)
    s1.tick()
    with refused("QC212", "copies nothing now"):
        leaf.catch_up()


def test_a_ballot_that_is_taken_back_lets_its_carrier_copy(nodes: Nodes) -> None:
    s1, _s2, s3, fork, uid = wide(nodes)
    open_ballot(s3, 102, uid, "s2", fork)
    assert s3.value("select cascade.close_ballot('q', 102, %s)", uid) is True
    s3.catch_up()
    assert s3.position() == s1.position()


def test_a_ballot_expires_and_is_of_no_use_for_half_a_minute_before(nodes: Nodes) -> None:
    """A tool that died freezes nobody for ever, and one that only slept does not promote when others copy again."""
    s1, s2, s3, fork, uid = wide(nodes)
    for carrier in (s2, s3):
        open_ballot(carrier, 102, uid, "s2", fork)
        left = "select extract(epoch from expires_at - clock_timestamp())::float from cascade_internal.ballot"
        assert 30 < carrier.value(left) <= 60
        assert carrier.value("select cascade.describe_set('q')")["ballots"][0]["is_fresh"] is True
        carrier.main.execute("update cascade_internal.ballot set expires_at = expires_at - interval '31 s'")
        assert carrier.value("select cascade.describe_set('q')")["ballots"][0]["is_fresh"] is False
        with refused("QC212", "copies nothing now"):
            carrier.catch_up()
        with refused("QC212", "no longer counts here"):
            open_ballot(carrier, 102, uid, "s2", fork)
    with refused("QC212", "holds no ballot 102"):
        promote(s2, uid, 102, "failover", fork)
    s3.main.execute("update cascade_internal.ballot set expires_at = clock_timestamp()")
    s3.catch_up()
    assert s3.position() == s1.position()


def test_a_ballot_for_another_fork_promotes_nobody(nodes: Nodes) -> None:
    _s1, s2, s3, fork, uid = wide(nodes)
    open_ballot(s2, 102, uid, "s2", fork)
    with refused("QC212", "no longer counts here"):
        open_ballot(s2, 102, uid, "s2", fork | {"tick_id": fork["tick_id"] + 1})
    s2.value("select cascade.close_ballot('q', 102, %s)", uid)
    s2.catch_up()
    open_ballot(s3, 203, uid, "s3", s2.describe()["tick"])
    with refused("QC212", "holds no ballot 203"):
        promote(s3, uid, 203, "failover", fork)
    with refused("QC003"):
        s3.value("select cascade.open_ballot('q', 303, %s, 's3', null, null)", str(uuid4()))


def test_a_certificate_waits_for_who_stands_beside_the_fork(nodes: Nodes) -> None:
    """The model's trace: s2 has what s1 lost, s3 copied what s1 did instead, and is promoted."""
    s1, s2, s3, _fork, _uid = wide(nodes)
    s2.catch_up()
    ahead = s1.describe()["tick"]
    for table, where, limit in (
        ("tick", "tick_id >= %s", ahead["tick_id"]),
        ("event", "txid >= %s", s1.log().ticks[-2][3]),
    ):
        s1.main.execute(f"delete from cascade_internal.{table}_{s1.queue_id}_0 where {where}".encode(), (limit,))
    s1.insert("instead")
    s1.tick()
    s3.catch_up()
    assert s2.join()["answer"] == "rewound"
    made = fail_over(s3, s2)
    assert s3.rows("select state, pending from cascade.certificates") == [("open", ["s1", "s2"])]
    stand_down(s1, s3)
    demote(s1, s3)
    assert report(s1, s3, made["uid"])["state"] == "open", "what only s2 has is not accounted for yet"
    s2.switch(s3)
    assert s2.join()["answer"] == "diverged"
    resurrect(s2, s3)
    done = report(s2, s3, made["uid"])
    assert (done["state"], done["tail"]) == ("closed", 1)


def test_a_certificate_does_not_wait_for_who_is_only_behind(nodes: Nodes) -> None:
    _s1, s2, s3, _fork, _uid = wide(nodes)
    s2.catch_up()
    fail_over(s2, s3)
    assert s2.rows("select pending from cascade.certificates") == [(["s1"],)]


def test_a_node_beyond_the_end_of_its_term_is_not_promoted(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    s1.insert(2)
    s1.tick()
    s3.catch_up()
    fail_over(s2)
    tell(s3, s2.describe()["terms"])
    with refused("QC209", "is over, ended by term"):
        fail_over(s3)


def test_terms_that_several_nodes_told_are_learned_at_once(nodes: Nodes) -> None:
    s1, s2, s3 = lost(nodes, 3)
    fail_over(s2)
    known = [*s1.describe()["terms"], *s2.describe()["terms"]]
    given_up = {**known[-1], "voided_by": known[0]["uid"]}
    found = tell(s3, [given_up, *known])["terms"]
    assert [(term["uid"], term["voided_by"]) for term in found] == [
        (known[0]["uid"], None),
        (known[-1]["uid"], known[0]["uid"]),
    ]


def test_a_leaf_and_a_dirty_branch_are_not_promoted(nodes: Nodes) -> None:
    _s1, s2 = lost(nodes)
    leaf = nodes.add("s3", s2, role="leaf")
    with refused("QC208", "is a leaf"):
        fail_over(leaf)
    partition = f"cascade_internal.event_{s2.queue_id}_0"
    s2.main.execute(f"insert into {partition} (id, txid, payload) values (99, 9999999, '1')".encode())
    with refused("QC702"):
        fail_over(s2)


def test_members_start_at_the_last_watermark_in_the_new_roots_log(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(1)
    nodes.settle()
    s1.advance()
    nodes.settle()
    mark = s2.watermark()
    fail_over(s2, s3)
    positions = dict(s2.rows("select node, tick_id from cascade.members"))
    assert positions["s1"] == positions["s3"] == mark
    assert mark < s2.position()
    s2.rotate("q")
    assert s2.advance().tick_id == mark, "nothing is released before they tell anew"


# The old root returns


def test_the_old_root_takes_inserts_until_it_hears_and_loses_none(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    made = fail_over(s2)
    s2.insert("new")
    s2.tick()
    s1.insert(4)
    assert stand_down(s1, s2) == {"role": "root", "cause": "over", "is_up": False} | {
        "detail": f"term {made['uid']} of node s2 ended this one at tick {made['fork_tick']}"
    }
    with refused("QC401"):
        s1.insert(5)
    assert s1.rows("select * from cascade.make_ticks()") == []
    found = resurrect(s1, s2)
    assert (found["role"], found["provider"]) == ("branch", "s2")
    assert aside(s1) == [(2, "held"), (3, "held"), (4, "held")]
    s1.join()
    s1.catch_up()
    assert payloads(s1) == [1, "new"]
    assert same(s1, s2) and s1.log().strays == []


def test_rows_of_transactions_open_at_the_fork_belong_to_the_tail(nodes: Nodes) -> None:
    """By their number they seem to lie before the fork; the batch after it would hold them on this node only."""
    s1, s2 = nodes.line()
    with s1.connect(autocommit=False) as long:
        s1.insert("long", conn=long)
        s1.insert("other")
        nodes.settle()
        long.commit()
    s1.tick()
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    assert s1.rows("select payload #>> '{}' from (select payload::jsonb from cascade.read_quarantine('q')) as x") == [
        ("long",)
    ]
    s2.insert("new")
    s2.tick()
    s1.join()
    s1.catch_up()
    assert payloads(s1) == payloads(s2) == ["other", "new"]
    assert same(s1, s2)


def test_setting_aside_goes_in_steps_that_may_be_repeated(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.insert(*range(25))
    fail_over(s2)
    stand_down(s1, s2)
    fork = common(s1, s2)
    left = [set_aside(s1, fork, 10)["left"] for _ in range(4)]
    assert left == [15, 5, 0, 0]
    assert len(aside(s1)) == 25
    call = "select cascade.resurrect('q', %s, 's2', %s)"
    first = s1.value(call, fork, members_of(s2))
    again = s1.value(call, fork, members_of(s2))
    assert (first["events"], again["events"], again["is_repeat"]) == (25, 0, True)
    assert len(aside(s1)) == 25


def test_nothing_is_deleted_that_is_not_in_quarantine(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    fail_over(s2)
    stand_down(s1, s2)
    fork = common(s1, s2)
    call = "select cascade.resurrect('q', %s, 's2', %s)"
    with refused("QC702", "not in quarantine"):
        s1.value(call, fork, members_of(s2))
    set_aside(s1, fork)
    s1.main.execute("update cascade_internal.quarantine set payload = '33' where payload::text = '3'")
    with refused("QC702", "not in quarantine"):
        s1.value(call, fork, members_of(s2))
    assert payloads(s1) == [1, 2, 3]


def test_a_root_that_still_reigns_is_not_resurrected(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    with refused("QC208", "not fenced"):
        set_aside(s1, common(s1, s2))


def test_a_tick_that_is_not_common_is_no_fork(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    fail_over(s2)
    stand_down(s1, s2)
    wrong = common(s1, s2).obj | {"chain": "\\x00"}
    with refused("QC706", "does not hold tick"):
        set_aside(s1, Jsonb(wrong))


def test_a_branch_that_was_ahead_of_the_fork_is_treated_like_an_old_root(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    s1.insert(2)
    s1.tick()
    s3.catch_up()
    made = fail_over(s2, without=["s3"])
    s3.switch(s2)
    assert s3.join()["answer"] == "diverged"
    assert resurrect(s3, s2)["events"] == 1
    s3.join()
    s3.catch_up()
    assert same(s2, s3)
    stand_down(s1, s2)
    resurrect(s1, s2)
    report(s3, s2, made["uid"])
    done = report(s1, s2, made["uid"])
    assert (done["tail"], done["held"], done["copies"], done["state"]) == (1, 1, 1, "closed"), "one event, two copies"


def test_consumers_beyond_the_fork_go_back_to_it_and_are_named(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'ahead'), cascade.subscribe('q', 'behind')")
    s1.insert(1)
    nodes.settle()
    s1.insert(2)
    ahead = s1.tick()
    assert s1.drain("ahead") == [1, 2]
    made = fail_over(s2)
    stand_down(s1, s2)
    found = resurrect(s1, s2)
    assert found["phantoms"] == [{"consumer": "ahead", "from_tick": made["fork_tick"], "to_tick": ahead}]
    s2.insert("new")
    s2.tick()
    s1.join()
    s1.catch_up()
    assert s1.drain("ahead") == ["new"]
    assert s1.drain("behind") == [1, "new"]
    phantoms = report(s1, s2, made["uid"])["phantoms"]
    assert [(p["node"], p["consumer"], p["to_tick"]) for p in phantoms] == [("s1", "ahead", ahead)]


def test_a_consumer_that_goes_back_twice_in_one_term_is_listed_with_all_that_it_saw(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    ticks = [nodes.settle()]
    s2.rows("select cascade.subscribe('q', 'c')")
    for number in (1, 2):
        s1.insert(number)
        ticks.append(nodes.settle())
    for back_to in (ticks[1], ticks[0]):
        s2.catch_up()
        s2.drain("c")
        query = "select to_jsonb(cascade_internal.find_tick(queue_id, slots, %s)) from cascade_internal.queue"
        fork = Jsonb(s2.value(query, back_to))
        set_aside(s2, fork)
        s2.value("select cascade.resurrect('q', %s, 's1', %s)", fork, members_of(s1))
        s2.join()
    query = "select from_tick, to_tick, events from cascade_internal.phantom where consumer = 'c'"
    assert s2.rows(query) == [(ticks[0], ticks[2], 3)], "at most so many: one was seen again"


def test_a_batch_that_was_open_beyond_the_fork_is_taken_away(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.rows("select cascade.subscribe('q', 'c')")
    nodes.settle()
    s1.insert(2)
    s1.tick()
    batch = None
    while (found := s1.next("c")) is not None:
        batch = found
        if found[3]:
            break
        s1.finish(found[0])
    assert batch is not None
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    with refused("QC203"):
        s1.finish(batch[0])


def test_a_leaf_ahead_of_the_fork_is_set_back_and_says_what_it_had_processed(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", s1, role="leaf")
    nodes.settle()
    s1.insert(2)
    ahead = s1.tick()
    leaf.catch_up()
    made = fail_over(s2)
    fork = s2.value("select fork from cascade_internal.term where uid = %s", made["uid"])
    found = leaf.value("select cascade.reset_leaf('q', %s)", Jsonb(fork))
    assert (found["from_tick"], found["to_tick"], found["events"]) == (made["fork_tick"], ahead, 1)
    assert leaf.value("select cascade.reset_leaf('q', %s)", Jsonb(fork))["changed"] is False
    leaf.switch(s2)
    assert leaf.join()["answer"] == "on path"
    process(leaf)
    duty = "select cascade.heir_duty('q')->'reports'"
    assert leaf.value(duty) == [made["uid"]], "its daemon tells the root, which did not ask for it"
    [phantom] = report(leaf, s2, made["uid"])["phantoms"]
    told = [phantom[key] for key in ("node", "consumer", "from_tick", "to_tick", "events")]
    assert told == ["s3", ".leaf", made["fork_tick"], ahead, 1]
    s2.tick()
    process(leaf)
    assert leaf.value(duty) == []


def test_a_branch_that_lost_no_event_says_who_had_processed_some(nodes: Nodes) -> None:
    """What was beyond the fork are ticks of the old root alone, yet a consumer here had gone that far."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    s3.rows("select cascade.subscribe('q', 'c')")
    s1.tick()
    s3.catch_up()
    assert s3.drain("c") == []
    made = fail_over(s2)
    tell(s3, s2.describe()["terms"])
    assert resurrect(s3, s2)["phantoms"] != []
    s3.join()
    s3.catch_up()
    duty = "select cascade.heir_duty('q')->'reports'"
    assert s3.value(duty) == [made["uid"]]
    assert [(p["node"], p["consumer"], p["events"]) for p in report(s3, s2, made["uid"])["phantoms"]] == [
        ("s3", "c", 0)
    ]
    s2.tick()
    s3.catch_up()
    assert s3.value(duty) == []
    assert s2.value("select cascade.heir_duty('q')->'reports'") == []


def test_a_node_below_the_fork_just_goes_on(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.insert(1)
    s1.tick()
    s2.catch_up()
    fail_over(s2, s3)
    s3.join()
    s3.catch_up()
    assert same(s2, s3)


# What was set aside


def test_an_event_is_republished_once_whatever_happens(nodes: Nodes) -> None:
    s1, s2, s3 = lost(nodes, 3)
    made = fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    held = s1.rows(HELD)
    ids = []
    for term_uid, event_id, event in held:
        call = "select cascade.republish('q', %s, %s, %s)"
        first = s2.value(call, term_uid, event_id, Jsonb(event))
        s2.main.execute("set timezone = 'Asia/Tokyo'")
        assert s2.value(call, term_uid, event_id, Jsonb(event)) == first, "a repeat finds the key"
        s2.main.execute("reset timezone")
        ids.append((event_id, first))
    s2.tick()
    found = s2.rows("select payload, origin, origin_id, id from queue.q where origin = 'q' order by id")
    assert found == [(n, "q", old, new) for n, (old, new) in zip((2, 3), ids, strict=True)]
    settle = "select cascade.settle_quarantine('q', %s, %s, 'republished', %s)"
    assert s1.value(settle, held[0][0], [i for i, _ in ids], [n for _, n in ids]) == 2
    assert s1.value(settle, held[0][0], [i for i, _ in ids], [n for _, n in ids]) == 0
    done = report(s1, s2, made["uid"])
    assert {key: done[key] for key in ("tail", "republished", "discarded", "duplicates", "held", "state")} == {
        "tail": 2, "republished": 2, "discarded": 0, "duplicates": 0, "held": 0, "state": "closed",
    }  # fmt: skip
    # Lost once more, it is still the same event.
    again = dict(held[0][2]) | {"origin": "q", "origin_id": held[0][1], "id": ids[0][1]}
    assert s2.value("select cascade.republish('q', %s, %s, %s)", made["uid"], ids[0][1], Jsonb(again)) == ids[0][1]
    # Another event under the same id, of a root that had lost its tail, is not.
    other = dict(held[0][2]) | {"payload": '"other"'}
    assert s2.value("select cascade.republish('q', %s, %s, %s)", held[0][0], held[0][1], Jsonb(other)) != ids[0][1]
    # The key went with the log: the next root knows it too.
    s3.join()
    s3.catch_up()
    fail_over(s3)
    assert s3.value("select cascade.republish('q', %s, %s, %s)", held[0][0], held[0][1], Jsonb(held[0][2])) == ids[0][1]


def test_an_event_keeps_its_bytes_and_its_time_through_quarantine(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    odd = '{"b":1,  "a": 2.50, "b":"\\u00e9"}'
    s1.main.execute("insert into queue.q (type, key, payload, headers) values ('t', 'k', %s, %s)", (odd, '{ "h":1}'))
    [(time,)] = s1.rows("select time from queue.q where key = 'k'")
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    [(term, event_id, event)] = s1.rows(HELD)
    s2.value("select cascade.republish('q', %s, %s, %s)", term, event_id, Jsonb(event))
    row = s2.row("select time, type, key, payload::text, headers::text from queue.q where origin = 'q'")
    assert row == (time, "t", "k", odd, '{ "h":1}')


def test_discarded_and_held_events_are_counted_apart(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    made = fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    [(term, first), _] = s1.rows(
        "select term_uid, id from cascade.read_quarantine('q') where state = 'held' order by id"
    )
    with refused("QC003"):
        s1.value("select cascade.settle_quarantine('q', %s, %s, 'republished')", term, [first])
    with refused("QC003"):
        s1.value("select cascade.settle_quarantine('q', %s, %s, 'lost')", term, [first])
    assert s1.value("select cascade.settle_quarantine('q', %s, %s, 'discarded')", term, [first]) == 1
    done = report(s1, s2, made["uid"])
    assert (done["tail"], done["discarded"], done["held"]) == (2, 1, 1)


def test_a_certificate_stays_open_until_every_carrier_was_read_or_declared_destroyed(nodes: Nodes) -> None:
    _s1, s2, s3 = lost(nodes, 3)
    made = fail_over(s2, without=["s3"])
    assert s2.value("select pending from cascade.certificates") == ["s1", "s3"]
    s3.join()
    s3.catch_up()
    assert s3.value("select cascade.heir_duty('q')")["reports"] == [made["uid"]], "its daemon is told to report"
    assert report(s3, s2, made["uid"])["state"] == "open"
    with refused("QC003", "without a reason"):
        s2.value("select cascade.declare_destroyed('q', %s, 's1', ' ')", made["uid"])
    done = s2.value("select cascade.declare_destroyed('q', %s, 's1', 'shredded')", made["uid"])
    assert (done["state"], done["reports"]["s1"]["destroyed"]) == ("closed", "shredded")
    s2.tick()
    s3.catch_up()
    assert s3.rows("select state, pending from cascade.certificates") == [("closed", [])], "every carrier has it"


def test_a_root_reports_what_it_had_before_it_was_one(nodes: Nodes) -> None:
    """It came back, and its successor was lost, before its daemon had told anybody."""
    s1, s2 = lost(nodes, 2)
    first = fail_over(s2)
    s2.tick()
    stand_down(s1, s2)
    resurrect(s1, s2)
    s1.join()
    s1.catch_up()
    fail_over(s1)
    assert s1.value("select cascade.heir_duty('q')")["reports"] == [first["uid"]]
    assert s1.value("select cascade.heir_duty('q')")["root"] == "s1", "it tells itself"
    assert report(s1, s1, first["uid"])["state"] == "closed"
    assert s1.value("select cascade.heir_duty('q')")["reports"] == []


def test_a_member_that_the_lost_tail_added_is_no_member(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.value("select cascade.add_member('q', 's9', 'branch')")
    fail_over(s2)
    stand_down(s1, s2)
    resurrect(s1, s2)
    assert s1.member("s9", "state") is None


# Terms beside one another


def test_two_promotions_at_once_end_in_conflict_and_an_operator_keeps_one(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    one, other = fail_over(s2), fail_over(s3)
    s2.insert("two")
    s3.insert("three")
    for root in (s2, s3):
        root.tick()
    assert stand_down(s2, s3)["cause"] == "conflict"
    assert stand_down(s3, s2)["cause"] == "conflict"
    for root in (s2, s3):
        with refused("QC401"):
            root.insert(0)
    assert s1.describe()["terms"] is not None
    for node in (s2, s3):
        node.value("select cascade.resolve('q', %s, 'the larger site')", one["uid"])
        node.value("select cascade.complete_fence('q')")
    s2.insert("more")
    s2.tick()
    assert s3.value("select cascade.describe_set('q')")["fence"]["cause"] == "over"
    assert resurrect(s3, s2)["events"] > 0
    s3.join()
    s3.catch_up()
    assert payloads(s3) == ["two", "more"]
    assert same(s2, s3)
    assert [row[0] for row in s3.rows("select payload from cascade.read_quarantine('q') where state = 'held'")] == [
        '"three"'
    ]
    stand_down(s1, s2)
    assert s1.value("select voided_by from cascade_internal.term where uid = %s", other["uid"]) is not None
    demote(s1, s2)
    s1.join()
    s1.catch_up()
    assert same(s1, s2)


def in_conflict(nodes: Nodes) -> tuple[Node, Node, dict[str, Any]]:
    """Two roots that were promoted at once and have heard of one another; s3 has an event.  Returns the term of s2."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    kept = fail_over(s2)
    fail_over(s3)
    s3.insert("three")
    assert stand_down(s2, s3)["cause"] == stand_down(s3, s2)["cause"] == "conflict"
    return s2, s3, kept


@pytest.mark.parametrize("hears", ["stand_down", "root_duty", "resolve"])
def test_a_root_that_was_kept_goes_on_whoever_tells_it(nodes: Nodes, hears: str) -> None:
    """Only the losing root was told; the one that was kept hears it from there."""
    s2, s3, kept = in_conflict(nodes)
    s3.value("select cascade.resolve('q', %s, 'the larger site')", kept["uid"])
    if hears == "stand_down":
        assert stand_down(s2, s3)["cause"] is None
    else:
        tell(s2, s3.describe()["terms"])
        if hears == "root_duty":
            assert s2.value("select cascade.root_duty('q')")["fence"] is None
        else:
            s2.value("select cascade.resolve('q', %s, 'again')", kept["uid"])
    s2.insert("on")
    s2.tick()
    with refused("QC401"):
        s3.insert(0)
    assert s2.rows("select state, pending from cascade.certificates") == [("open", ["s1", "s3"])]


def test_a_root_that_had_offered_its_reign_does_not_go_on_after_its_closing_tick(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    step = Switchover(s1, s2)
    step.begin()
    step.fence()
    step.offer()
    rival = s1.describe()["terms"][0] | {"uid": str(uuid4()), "node": "x"}
    assert s1.value("select cascade.stand_down('q', %s)", Jsonb([rival]))["cause"] == "conflict"
    rival["voided_by"] = s1.describe()["terms"][0]["uid"]
    assert s1.value("select cascade.stand_down('q', %s)", Jsonb([rival]))["cause"] == "operation"
    with refused("QC401"):
        s1.insert(0)
    s1.value("select cascade.withdraw_handover('q', %s)", step.op_id)
    s1.insert("on")


def test_another_set_of_this_name_is_refused_and_teaches_nothing(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    mine = s1.describe()
    stranger = mine["terms"][0] | {"uid": str(uuid4()), "node": "x"}
    call = "select cascade.exchange_terms('q', %s, %s)"
    for uid in (uuid4(), None):
        with refused("QC216", "belongs to set"):
            s2.value(call, Jsonb([stranger]), uid)
    assert s2.describe()["terms"] == s1.value(call, Jsonb(mine["terms"]), mine["set_uid"])["terms"] == mine["terms"]


def test_what_is_given_up_beside_a_term_that_was_handed_over_gets_a_certificate(nodes: Nodes) -> None:
    """The model's trace, with a hand-over as the other promotion: there was nothing to certify before."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    kept = Switchover(s1, s2).run()
    fail_over(s3)
    s3.insert("three")
    assert stand_down(s2, s3)["cause"] == stand_down(s3, s2)["cause"] == "conflict"
    for node in (s2, s3):
        node.value("select cascade.resolve('q', %s, 'it was planned')", kept["uid"])
        node.value("select cascade.complete_fence('q')")
    query = "select new_uid::text, state, cause, reason, pending from cascade.certificates"
    assert s2.rows(query) == [(kept["uid"], "open", "conflict", "it was planned", ["s3"])]
    s2.tick()
    s1.join()
    s1.catch_up()
    assert s1.rows(query) == s2.rows(query), "it goes with the log"
    resurrect(s3, s2)
    done = report(s3, s2, kept["uid"])
    assert (done["state"], done["tail"], done["held"]) == ("closed", 1, 1)
    s2.value("select cascade.resolve('q', %s, 'once more')", kept["uid"])
    assert s2.rows("select state, pending from cascade.certificates") == [("closed", [])], "it was read already"


def test_what_is_given_up_is_in_the_certificate_of_the_term_that_it_stood_beside(nodes: Nodes) -> None:
    """s2 handed its reign over before anybody met s3: the kept term is not the one that was contested."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    s4 = nodes.add("s4", s2)
    nodes.settle()
    first = fail_over(s2, s4)
    s4.join()
    s4.catch_up()
    given_up = fail_over(s3)
    s3.insert("three")
    kept = Switchover(s2, s4).run()
    stand_down(s1, s4)
    demote(s1, s4)
    assert report(s1, s4, first["uid"])["state"] == "closed"
    assert stand_down(s3, s4)["cause"] == "conflict"
    for node in (s4, s3):
        node.value("select cascade.resolve('q', %s, 'it is newer')", kept["uid"])
        node.value("select cascade.complete_fence('q')")
    found = s4.rows("select new_uid::text, state, pending, certificate->'evidence'->'voided' from cascade.certificates")
    assert found == [(first["uid"], "open", ["s3"], [given_up["uid"]])]
    resurrect(s3, s4)
    done = report(s3, s4, first["uid"])
    assert (done["state"], done["tail"], done["held"]) == ("closed", 1, 1)


def split(nodes: Nodes) -> tuple[Node, Node, Node, dict[str, Any]]:
    """Have s2 reign with event 2 and s3 without, at once; s1 is set back below s3, with 2 and 3 set aside."""
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    s1.insert(2)
    s1.tick()
    s2.catch_up()
    s1.insert(3)
    one = fail_over(s2, without=["s3"])
    fail_over(s3, without=["s2"])
    stand_down(s1, s3)
    resurrect(s1, s3)
    assert aside(s1) == [(2, "held"), (3, "held")]
    assert mark_duplicates(s1, s3) == 0
    return s1, s2, s3, one


def keep(one: dict[str, Any], kept: Node, *others: Node) -> None:
    """Have the nodes meet, and an operator keep one term."""
    for node in others:
        for a, b in ((kept, node), (node, kept)):
            a.value("select cascade.stand_down('q', %s)", Jsonb(b.value("select cascade.describe_set('q')->'terms'")))
    for node in (kept, *others):
        node.value("select cascade.resolve('q', %s, 'it has more')", one["uid"])
        node.value("select cascade.complete_fence('q')")


def republish(node: Node, root: Node) -> list[tuple[int, int]]:
    """Have the root take what is held at a node, noting it nowhere; returns its ids, old and new."""
    call = "select cascade.republish('q', %s, %s, %s)"
    return [(id, int(root.value(call, term_uid, id, Jsonb(event)))) for term_uid, id, event in node.rows(HELD)]


COUNTS = ("tail", "republished", "discarded", "duplicates", "held")


def test_what_the_kept_log_has_under_its_first_id_is_not_published_again(nodes: Nodes) -> None:
    """The trace that the model finds; event 2 was set aside below a term that an operator gave up afterwards."""
    s1, s2, s3, one = split(nodes)
    keep(one, s2, s1, s3)
    [(two, again), (three, new)] = republish(s1, s2)
    assert (again == two, new != three) == (True, True)
    s2.tick()
    assert payloads(s2) == [2, 3]
    assert mark_duplicates(s1, s2) == 1
    assert mark_duplicates(s1, s2) == 0
    assert s1.rows("select id, state, new_id from cascade.read_quarantine('q') where state <> 'control'") == [
        (two, "duplicate", two),
        (three, "held", None),
    ]
    done = report(s1, s2, one["uid"])
    assert [done[key] for key in COUNTS] == [1, 0, 0, 0, 1], "what the fork sees was never lost"


def test_a_copy_of_what_the_kept_log_has_is_a_duplicate_and_the_numbers_add_up(nodes: Nodes) -> None:
    """The side that is given up had published both events again."""
    s1, s2, s3, one = split(nodes)
    first = republish(s1, s3)
    s3.tick()
    keep(one, s2, s1, s3)
    resurrect(s3, s2)
    assert mark_duplicates(s3, s2) == 1
    query = "select id, state, new_id from cascade.read_quarantine('q') where state <> 'control'"
    assert s3.rows(query) == [(first[0][1], "duplicate", first[0][0]), (first[1][1], "held", None)]
    [(_, new)] = republish(s3, s2)
    assert [id for _, id in republish(s1, s2)] == [first[0][0], new]
    s2.tick()
    assert payloads(s2) == [2, 3]
    mark_duplicates(s1, s2)
    for node in (s1, s3):
        [(term_uid, id, _)] = node.rows(HELD)
        call = "select cascade.settle_quarantine('q', %s, %s, 'republished', %s)"
        assert node.value(call, term_uid, [id], [new]) == 1
        done = report(node, s2, one["uid"])
    assert [done[key] for key in COUNTS] == [3, 2, 0, 1, 0]
    assert (done["state"], done["copies"]) == ("closed", 0)


def test_a_duplicate_that_came_late_is_found_and_an_event_open_at_the_fork_is_none(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s3.switch(s1)
    nodes.settle()
    reserved = s1.value("select cascade.reserve_id('q')")
    with s1.connect(autocommit=False) as long, s1.connect(autocommit=False) as longer:
        s1.insert(2, conn=long)
        s1.insert(3, conn=longer)
        for _ in range(3):
            s1.insert(0)
            s1.tick()
        long.commit()
        s1.value("select cascade.post('q', '1', id => %s)", reserved)
        s1.tick()
        s2.catch_up()
        longer.commit()
    one = fail_over(s2, without=["s3"])
    fail_over(s3, without=["s2"])
    stand_down(s1, s3)
    resurrect(s1, s3)
    keep(one, s2, s1, s3)
    assert mark_duplicates(s1, s2) == 5
    assert sorted(aside(s1)) == [*[(0, "duplicate")] * 3, (1, "duplicate"), (2, "duplicate"), (3, "held")]


def test_what_rotation_has_taken_away_cannot_be_looked_up(nodes: Nodes) -> None:
    s1, s2, s3, one = split(nodes)
    keep(one, s2, s1, s3)
    [(_, two, _), _] = s1.rows(HELD)
    call = "select cascade.find_logged('q', %s)"
    keys = Jsonb(s1.value("select cascade.quarantine_keys('q')"))
    assert [found["id"] for found in s2.value(call, keys)] == [two]
    s2.main.execute(f"delete from cascade_internal.event_{s2.queue_id}_0 where id = {two}".encode())
    assert s2.value(call, keys) == []


def test_a_duplicate_that_leaves_the_log_in_its_turn_is_held_again(nodes: Nodes) -> None:
    s1, s2, s3, one = split(nodes)
    keep(one, s2, s1, s3)
    assert mark_duplicates(s1, s2) == 1
    # s1 follows the path that was kept, and gets the event back; then it leaves that path below the event.
    fork = s1.describe()["tick"]
    s1.switch(s2)
    s1.join()
    s1.catch_up()
    assert 2 in payloads(s1)
    set_aside(s1, Jsonb(fork))
    assert aside(s1) == [(2, "held"), (3, "held")]


def test_a_term_that_does_not_end_this_one_fences_nobody(nodes: Nodes) -> None:
    s1, _s2 = lost(nodes)
    stranger = {
        "uid": str(uuid4()), "number": 502, "node": "x", "parent_uid": str(uuid4()), "cause": "failover",
        "fork": s1.describe()["tick"], "reason": None, "at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    found = s1.value("select cascade.stand_down('q', %s)", Jsonb([stranger]))
    assert found["cause"] is None
    s1.insert(4)


# A root whose database lost its tail


def test_a_subscriber_that_is_ahead_proves_that_the_root_lost_its_tail(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.settle()
    s1.insert(1)
    ahead = s1.tick()
    s2.catch_up()
    for table in ("tick", "event"):
        where = "tick_id = %s" if table == "tick" else "txid >= %s"
        limit = ahead if table == "tick" else s1.log().ticks[-2][3]
        s1.main.execute(f"delete from cascade_internal.{table}_{s1.queue_id}_0 where {where}".encode(), (limit,))
    assert s2.join()["answer"] == "rewound"
    assert s1.rows("select * from cascade.make_ticks()") == []
    s1.value("select cascade.complete_fence('q')")
    with refused("QC401"):
        s1.insert(2)
    made = fail_over(s2)
    assert made["fork_tick"] == ahead
    resurrect(s1, s2)
    s1.join()
    s1.catch_up()
    assert payloads(s1) == [1]
    assert same(s1, s2)


def test_a_root_on_another_timeline_makes_no_tick_and_opens_a_term_of_its_own(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    s1.main.execute("update cascade_internal.queue set timeline = 'FFFFFFFF'")
    with refused("QC705", "not the one on which the term"):
        s1.tick()
    s1.main.execute("update cascade_internal.queue set tick_max_lag = '0 s'")
    assert s1.rows("select * from cascade.make_ticks()") == []
    assert s1.value("select cascade.describe_set('q')")["fence"]["cause"] == "rewound"
    s1.value("select cascade.complete_fence('q')")
    fail_over(s1, s2, cause="rewind")
    s1.insert(2)
    s1.tick()
    s2.join()
    s2.catch_up()
    assert payloads(s2) == [1, 2]
    assert same(s1, s2)
    assert s1.rows("select cause, pending from cascade.certificates") == [("rewind", ["s1"])]


def test_a_root_whose_ids_run_out_opens_a_term_and_goes_on(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    assert s1.value("select cascade.renew_term('q')") is False
    s1.insert(1)
    s1.main.execute(f"select setval('cascade_internal.event_id_{s1.queue_id}', 999999999990)".encode())
    s1.insert(2)
    assert s1.value("select cascade.root_duty('q')")["is_range_ending"] is True
    assert s1.value("select cascade.renew_term('q')") is True
    assert s1.value("select cascade.renew_term('q')") is False
    s1.insert(3)
    s1.tick()
    s2.join()
    s2.catch_up()
    assert payloads(s2) == [1, 2, 3]
    assert same(s1, s2)
    assert s2.rows("select number, cause from cascade.terms") == [(0, "created"), (101, "range")]
    assert s2.value("select max(id) > 101 * 10::bigint ^ 12 from queue.q")


def test_a_new_node_learns_what_was_republished_before_it_came(nodes: Nodes) -> None:
    s1, s2 = lost(nodes)
    made = fail_over(s2, document={"n": 1})
    stand_down(s1, s2)
    resurrect(s1, s2)
    [(term, event_id, event), _] = s1.rows(HELD)
    new_id = s2.value("select cascade.republish('q', %s, %s, %s)", term, event_id, Jsonb(event))
    nodes.made["s1"] = s2
    s3 = nodes.add("s3", s2, at="now")
    s3.provider = s2
    assert s3.rows("select new_uid, state from cascade.certificates") == [(UUID(made["uid"]), "open")]
    fail_over(s3)
    assert s3.value("select cascade.republish('q', %s, %s, %s)", term, event_id, Jsonb(event)) == new_id
    assert s3.value("select cascade.describe_set('q')->'revision'") == 1


# The topology in the databases


def test_the_document_is_changed_by_compare_and_swap_and_goes_with_the_log(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    call = "select cascade.store_document('q', %s, %s)"
    assert s1.value(call, 0, Jsonb({"nodes": 1})) == 1
    with refused("QC209", "has revision 1"):
        s1.value(call, 0, Jsonb({"nodes": 2}))
    assert s1.value(call, 1, Jsonb({"nodes": 2})) == 2
    nodes.settle()
    assert s2.rows("select revision, document from cascade_internal.document") == [(2, {"nodes": 2})]
    with refused("QC206"):
        s2.value(call, 2, Jsonb({}))
    fail_over(s2, document={"nodes": 3})
    assert s2.value("select cascade.describe_set('q')->'revision'") == 3


def test_every_step_is_in_the_journal_of_the_database_it_changed(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    Switchover(s1, s2).run()
    steps = [row[0] for row in s1.rows("select step from cascade.journal order by journal_id")]
    assert steps == ["add member", "begin switchover", "fence", "offer", "taken", "stand down", "demote"]
    assert [row[0] for row in s2.rows("select step from cascade.journal")] == ["open term"]


def test_producers_cannot_forge_a_hand_over(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    forged = {
        "uid": str(uuid4()),
        "term_uid": str(uuid4()),
        "from_node": "s1",
        "target": "s2",
        "closing_tick": s2.position() + 1,
    }
    with pytest.raises(psycopg.Error):
        s1.value("select cascade.post('q', %s, 'cascade.handover')", Jsonb(forged))
    s1.main.execute("insert into queue.q (type, payload) values ('cascade.handover', %s)", (Jsonb(forged),))
    nodes.settle()
    assert s2.value("select cascade.heir_duty('q')")["handover"] is None


def test_an_event_whose_republication_was_lost_is_put_back_once_whoever_has_it(nodes: Nodes) -> None:
    """The old root's copy is republished, by a tool that dies, into a term that is lost in its turn."""
    s1, s2, s3 = lost(nodes, 3)
    s3.switch(s2)
    s3.catch_up()
    first = fail_over(s2, s3)
    s3.join()
    s3.catch_up()
    stand_down(s1, s2)
    resurrect(s1, s2)
    call = "select cascade.republish('q', %s, %s, %s)"

    def held(node: Node) -> list[tuple[Any, ...]]:
        return node.rows(
            "select term_uid::text, id, jsonb_build_object('time', time, 'type', type, 'key', key, 'payload', payload,"
            " 'headers', headers, 'origin', origin, 'origin_id', origin_id)"
            " from cascade.read_quarantine('q', state => 'held') order by id"
        )

    for term_uid, id, event in held(s1):
        s2.value(call, term_uid, id, Jsonb(event))
    s2.tick()
    # Neither did the tool note that at s1, nor did anybody copy it.
    fail_over(s3)
    stand_down(s2, s3)
    resurrect(s2, s3)
    assert first["uid"] in {row[0] for row in held(s2)}
    new_ids = [
        [s3.value(call, term_uid, id, Jsonb(event)) for term_uid, id, event in held(node)] for node in (s2, s1, s2)
    ]
    assert new_ids[0] == new_ids[1] == new_ids[2]
    s3.tick()
    assert payloads(s3) == [1, 2, 3]


def test_what_a_lost_tail_said_of_a_certificate_does_not_outlive_it(nodes: Nodes) -> None:
    """Both roots count versions from the fork on: the one that stands is learned, although the number is the same."""
    s1, s2, s3 = lost(nodes, 3)
    s3.switch(s2)
    s3.catch_up()
    first = fail_over(s2, s3)
    s2.tick()
    s3.join()
    s3.catch_up()
    amend = "select cascade.amend_certificate('q', %s, %s)"
    s2.value(amend, first["uid"], Jsonb({"node": "s1", "held": "{[2,4)}"}))
    s2.tick()
    fail_over(s3)
    s3.value(amend, first["uid"], Jsonb({"node": "s1", "republished": "{[2,4)}"}))
    s3.tick()
    stand_down(s2, s3)
    resurrect(s2, s3)
    s2.join()
    s2.catch_up()
    query = "select held, republished from cascade.certificates where number = 1"
    assert s2.row(query) == s3.row(query) == (0, 2)
    # The one that was opened in the tail itself is gone.
    assert s2.rows("select number, new_uid from cascade.certificates") == s3.rows(
        "select number, new_uid from cascade.certificates"
    )
    assert s1
