"""The planned change of a root, step by step, and what else may happen between two steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from tests.fixtures.database import eventually
from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, chain_of, demote, fail_over, open_ballot, report, resurrect, stand_down
from tests.fixtures.nodes import Node, Nodes, same

MILLION_MILLION = 10**12


def payloads(node: Node) -> list[object]:
    """Every event that the node holds, control events aside, in the order of ids."""
    return [
        row[0] for row in node.rows("select payload from queue.q where origin is distinct from '.cascade' order by id")
    ]


def begun(nodes: Nodes, count: int = 2) -> tuple[list[Node], Switchover]:
    """A line of nodes, and a switchover from the first to the second that was only announced."""
    made = nodes.line(count)
    step = Switchover(made[0], made[1])
    step.begin()
    return made, step


# All goes well


def test_a_switchover_loses_and_repeats_nothing(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.rows("select cascade.subscribe('q', 'c')")
    s1.insert(1, 2)
    nodes.settle()
    s1.insert(3)
    made = Switchover(s1, s2).run()
    s2.insert(4)
    s2.tick()
    s1.catch_up()
    s3.join()
    s3.catch_up()
    assert payloads(s1) == payloads(s2) == payloads(s3) == [1, 2, 3, 4]
    assert same(s1, s2) and same(s2, s3)
    assert s1.drain() == [1, 2, 3, 4], "a consumer of the old root goes on there"
    assert made["number"] == 102, "the first reign after 0, by member number 2"
    assert s2.value("select min(id) > %s from queue.q where payload::text = '4'", 102 * MILLION_MILLION)
    for node in (s1, s2, s3):
        assert node.rows("select number, node, cause from cascade.terms") == [
            (0, "s1", "created"),
            (102, "s2", "switchover"),
        ]
        assert node.value("select root from cascade.nodes") == "s2"


def test_roles_swapped_twice_keep_every_batch(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    # Two clocks far apart: one database has seen many more transactions.
    for _ in range(50):
        s2.rows("select txid_current()")
    for round, (old, new) in enumerate([(s1, s2), (s2, s1), (s1, s2)]):
        old.insert(f"before {round}")
        Switchover(old, new).run()
        new.insert(f"after {round}")
        new.tick()
        old.catch_up()
        assert same(s1, s2)
    assert payloads(s1) == payloads(s2) == [f"{when} {round}" for round in range(3) for when in ("before", "after")]


def test_a_database_that_prefers_another_form_of_bytes_takes_part(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    for node in (s1, s2):
        node.main.execute(f"alter database {node.name} set bytea_output = 'escape'".encode())
        node.disconnect()
    s1.insert(1)
    Switchover(s1, s2).run()
    s2.insert(2)
    s2.tick()
    s1.join()
    s1.catch_up()
    assert payloads(s1) == [1, 2]
    assert same(s1, s2)


def test_the_closing_tick_and_the_opening_tick_hold_what_they_announce(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    Switchover(s1, s2).run()
    log = s2.log()
    kinds = {
        tick: {
            row[0] for row in s2.rows("select type from queue.q where id = any(%s)", [e[0] for e in log.batches[tick]])
        }
        for tick in log.batches
    }
    closing = s1.value("select closing_tick from cascade_internal.handover")
    assert kinds[closing] == {"cascade.handover"}
    assert kinds[102 * MILLION_MILLION + 1] == {"cascade.term", "cascade.member"}


def test_a_transaction_that_had_its_id_before_the_promotion_may_insert_after_it(nodes: Nodes) -> None:
    """Its id is lower than anything that the new root's clock was set by, were it not for the snapshot's xmin."""
    s1, s2 = nodes.line()
    for _ in range(20):
        s1.insert(0)
    nodes.settle()
    with s2.connect(autocommit=False) as early, s2.connect(autocommit=False) as old_snapshot:
        early.execute("select txid_current()")
        old_snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old_snapshot.execute("select txid_current(), count(*) from cascade_internal.queue")
        Switchover(s1, s2).run()
        s2.tick()
        s2.insert("early", conn=early)
        s2.insert("old", conn=old_snapshot)
        early.commit()
        old_snapshot.commit()
    s2.tick()
    s1.catch_up()
    assert sorted(map(str, payloads(s1)))[-2:] == ["early", "old"]
    assert same(s1, s2)
    assert s2.log().strays == []


# The fence


def test_the_fence_waits_for_a_writer_only_so_long_and_names_it(nodes: Nodes) -> None:
    (s1, _s2), step = begun(nodes)
    with s1.connect(autocommit=False) as writer:
        s1.insert(1, conn=writer)
        pid = writer.info.backend_pid
        with pytest.raises(psycopg.errors.LockNotAvailable, match=f"backend {pid}"):
            step.fence("50 ms")
        writer.commit()
    step.fence()
    with refused("QC401"):
        s1.insert(2)
    assert payloads(s1) == [1]


def test_a_prepared_transaction_is_named(nodes: Nodes) -> None:
    (s1, _s2), step = begun(nodes)
    s1.backend.need_prepared()
    with s1.connect(autocommit=False) as writer:
        s1.insert(1, conn=writer)
        writer.execute("prepare transaction 'forgotten'")
        writer.commit()
    with pytest.raises(psycopg.errors.LockNotAvailable, match="prepared transaction 'forgotten'"):
        step.fence("50 ms")
    assert s1.value("select cascade.describe_set('q')->'prepared'->0->>'gid'") == "forgotten"
    s1.main.execute("commit prepared 'forgotten'")
    step.fence()


def test_an_old_snapshot_cannot_slip_an_event_past_the_fence(nodes: Nodes) -> None:
    (s1, _s2), step = begun(nodes)
    with s1.connect(autocommit=False) as writer:
        writer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        writer.execute("select count(*) from cascade_internal.queue")
        step.fence()
        with refused("QC401"):
            s1.insert(1, conn=writer)
        writer.rollback()


def test_a_fence_without_an_offer_falls_when_its_time_is_over(nodes: Nodes) -> None:
    made = nodes.line()
    s1 = made[0]
    step = Switchover(*made)
    step.begin("100 ms")
    step.fence()
    with refused("QC401"):
        s1.insert(1)
    eventually(lambda: s1.value("select cascade.root_duty('q')")["fence"] is None)
    s1.insert(1)
    with refused("QC209", "not fenced for this operation"):
        step.offer()
    assert s1.rows("select outcome from cascade_internal.operation") == [("expired",)]


def test_an_operation_that_has_made_an_offer_does_not_expire(nodes: Nodes) -> None:
    made = nodes.line()
    step = Switchover(*made)
    step.begin("100 ms")
    step.fence()
    step.offer()
    eventually(lambda: made[0].value("select expires_at < clock_timestamp() from cascade_internal.operation"))
    assert made[0].value("select cascade.root_duty('q')")["fence"]["cause"] == "operation"
    with refused("QC401"):
        made[0].insert(1)


def test_one_operation_at_a_time(nodes: Nodes) -> None:
    (s1, _s2, s3), step = begun(nodes, 3)
    with refused("QC210", "switchover to s2"):
        Switchover(s1, s3).begin()
    assert step.begin()["op_id"] == step.op_id, "the same one may begin again"
    assert s1.value("select cascade.drop_fence('q', %s)", step.op_id) is False
    Switchover(s1, s3).begin()


def test_an_operation_given_up_before_the_offer_leaves_everything_as_it_was(nodes: Nodes) -> None:
    (s1, s2), step = begun(nodes)
    step.fence()
    assert s1.value("select cascade.drop_fence('q', %s)", step.op_id) is True
    s1.insert(1)
    nodes.settle()
    assert payloads(s2) == [1]
    assert s2.rows("select count(*) from cascade.terms") == [(1,)]


# Offered, taken, withdrawn


def test_no_tick_comes_after_the_closing_one(nodes: Nodes) -> None:
    (s1, _s2), step = begun(nodes)
    step.fence()
    closing = step.offer()["tick_id"]
    assert s1.rows("select * from cascade.make_ticks()") == []
    with refused("QC401"):
        s1.tick()
    assert s1.advance().is_published is False
    assert s1.position() == closing
    assert step.offer()["tick_id"] == closing, "a repeated offer is the same offer"


def test_an_offer_needs_the_fence_of_its_operation(nodes: Nodes) -> None:
    (_s1, _s2), step = begun(nodes)
    with refused("QC209", "not fenced"):
        step.offer()


def test_an_offer_goes_to_a_live_branch_only(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", s2, role="leaf")
    for target in (leaf, s1):
        step = Switchover(s1, target)
        step.begin()
        step.fence()
        with refused("QC106", "no live branch"):
            step.offer()
        s1.value("select cascade.drop_fence('q', %s)", step.op_id)


def test_the_reign_is_taken_by_whom_it_was_offered_to_at_the_closing_tick(nodes: Nodes) -> None:
    (s1, s2, _s3), step = begun(nodes, 3)
    before = s2.describe()["tick"]
    step.fence()
    step.offer()
    assert step.duty() is None, "it has not applied the closing tick"
    take = "select cascade.take_handover('q', %s, %s, %s, %s)"
    with refused("QC209", "was not offered"):
        s1.value(take, step.uid, "s2", before["tick_id"], chain_of(before["chain"]))
    s2.catch_up()
    duty = step.duty()
    with refused("QC209", "was not offered"):
        s1.value(take, step.uid, "s3", duty["tick_id"], chain_of(duty["chain"]))
    assert step.take()["state"] == "taken"
    assert step.take()["state"] == "taken", "the one who took it may ask again: the reply may be lost"
    step.promote(duty)
    assert step.new.value("select role from cascade.nodes") == "root"


def test_an_offer_that_was_taken_only_goes_forward(nodes: Nodes) -> None:
    (s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    step.take()
    with refused("QC209", "taken already"):
        s1.value("select cascade.withdraw_handover('q', %s)", step.op_id)
    with refused("QC209", "offered already"):
        s1.value("select cascade.drop_fence('q', %s)", step.op_id)


def test_a_withdrawn_offer_cannot_be_taken_and_the_root_goes_on_in_a_new_term(nodes: Nodes) -> None:
    (s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    duty = step.duty()
    made = s1.value("select cascade.withdraw_handover('q', %s)", step.op_id)
    assert made["number"] == 101
    assert step.take(duty)["state"] == "withdrawn"
    assert s2.value("select cascade.note_withdrawn('q', %s)", step.uid) is True
    assert step.duty() is None
    s1.insert("after")
    s1.tick()
    s2.join()
    s2.catch_up()
    assert payloads(s2) == ["after"]
    assert same(s1, s2)


def test_a_promotion_without_an_offer_or_a_ballot_is_refused(nodes: Nodes) -> None:
    _s1, s2 = nodes.line()
    tick = s2.describe()["tick"]
    call = "select cascade.promote('q', %s, 102, %s, %s, %s, '{}')"
    with refused("QC209", "was offered no reign"):
        s2.value(call, str(uuid4()), "switchover", tick["tick_id"], chain_of(tick["chain"]))
    with refused("QC212", "holds no ballot"):
        s2.value(call, str(uuid4()), "failover", tick["tick_id"], chain_of(tick["chain"]))
    with refused("QC003"):
        s2.value(call, str(uuid4()), "wish", tick["tick_id"], chain_of(tick["chain"]))


def test_a_promotion_may_be_repeated_and_is_done_once(nodes: Nodes) -> None:
    (_s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    duty = step.duty()
    step.take(duty)
    first = step.promote(duty)
    again = step.promote(duty)
    assert (again["uid"], again["is_repeat"]) == (first["uid"], True)
    assert s2.value("select count(*) from cascade.terms") == 2


def test_the_old_root_is_lost_after_its_offer(nodes: Nodes) -> None:
    """The target holds the closing tick, so the failover that follows loses nothing of that term."""
    (s1, s2, s3), step = begun(nodes, 3)
    s1.insert(1)
    step.fence()
    step.offer()
    s2.catch_up()
    made = fail_over(s2, s3)
    assert s2.value("select certificate->'evidence'->'is_closing_tick' from cascade.certificates") is True
    assert s2.rows("select state, pending, tail from cascade.certificates") == [("open", ["s1"], 0)]
    assert stand_down(s1, s2)["cause"] == "over"
    demote(s1, s2)
    s1.catch_up()
    assert same(s1, s2)
    assert report(s1, s2, made["uid"])["state"] == "closed"


def test_a_root_that_withdrew_its_offer_and_was_lost_then_keeps_its_certificate_open(nodes: Nodes) -> None:
    """It went on in a term of its own, of which the others may know nothing: a closing tick proves little."""
    (s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    s1.value("select cascade.withdraw_handover('q', %s)", step.op_id)
    s1.insert("after")
    made = fail_over(s2)
    assert s2.rows("select state, pending from cascade.certificates") == [("open", ["s1"])]
    assert stand_down(s1, s2)["cause"] == "over", "no conflict: the promotion ended the whole reign"
    assert stand_down(s2, s1)["cause"] is None
    resurrect(s1, s2)
    assert s1.join()["answer"] == "on path"
    s1.catch_up()
    assert same(s1, s2)
    done = report(s1, s2, made["uid"])
    assert (done["state"], done["tail"], done["held"]) == ("closed", 1, 1)


def test_a_hand_over_gives_way_to_a_ballot(nodes: Nodes) -> None:
    """The old root is lost after it was taken; another node is about to be promoted when the heir comes to."""
    (s1, s2, _s3), step = begun(nodes, 3)
    step.fence()
    step.offer()
    s2.catch_up()
    duty = step.duty()
    step.take(duty)
    fork = s2.describe()["tick"]
    open_ballot(s2, 203, str(uuid4()), "s3", fork)
    with refused("QC212", "told of another promotion"):
        step.promote(duty)
    open_ballot(s1, 203, str(uuid4()), "s3", fork)
    with refused("QC212", "announced to the old root"):
        step.take(duty)


@pytest.mark.parametrize("is_taken", [False, True], ids=["offered", "taken"])
def test_a_hand_over_gives_way_to_a_promotion_that_the_old_root_has_heard_of(nodes: Nodes, is_taken: bool) -> None:
    """The heir was cut off with the closing tick, and s3 was promoted instead; then the heir asks the old root."""
    (s1, s2, s3), step = begun(nodes, 3)
    s3.switch(s1)
    step.fence()
    step.offer()
    s2.catch_up()
    duty = step.duty()
    if is_taken:
        step.take(duty)
    fail_over(s3, without=["s2"])
    assert stand_down(s1, s3)["cause"] == "over"
    with refused("QC209", "another node reigns already"):
        step.take(duty)
    assert s2.value("select role from cascade.nodes") == "branch"


def test_the_heir_may_ask_again_after_its_own_promotion_was_heard_of(nodes: Nodes) -> None:
    (s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    duty = step.duty()
    step.take(duty)
    step.promote(duty)
    stand_down(s1, s2)
    assert step.take(duty)["state"] == "taken"


def test_a_root_whose_heir_is_lost_after_it_took_the_reign_can_be_promoted_again(nodes: Nodes) -> None:
    (s1, s2), step = begun(nodes)
    step.fence()
    step.offer()
    s2.catch_up()
    step.take()
    fail_over(s1, without=["s2"])
    s1.insert("on")
    assert s1.rows("select state, pending from cascade.certificates") == [("open", ["s2"])]
    assert s1.value("select cascade.describe_set('q')")["operation"] is None, "the next one may begin"


def test_a_root_is_demoted_only_when_its_term_is_over_and_it_has_no_tail(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    with refused("QC208", "is not fenced"):
        demote(s1, s2)
    s1.insert(1)
    fail_over(s2)
    stand_down(s1, s2)
    with refused("QC702", "beyond the fork"):
        demote(s1, s2)


def test_a_root_that_wrote_nothing_but_control_events_beyond_the_fork_becomes_a_branch(nodes: Nodes) -> None:
    """One that comes back publishes a watermark and ticks before it hears; nobody needs that."""
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    s1.rows("select cascade.subscribe('q', 'c')")
    fail_over(s2)
    s1.advance()
    s1.tick()
    s1.drain()
    stand_down(s1, s2)
    assert s1.value("select cascade.root_duty('q')")["is_clean"] is True
    assert demote(s1, s2)["role"] == "branch"
    s2.insert(2)
    s2.tick()
    s1.join()
    s1.catch_up()
    assert payloads(s1) == [1, 2]
    assert same(s1, s2)
    assert s1.drain() == [2]
    assert s1.rows("select consumer, events from cascade_internal.phantom") == [("c", 0)], (
        "set back, and nothing was seen"
    )


def test_a_branch_that_was_switched_over_to_twice_counts_its_generations_anew(nodes: Nodes) -> None:
    """Rotation goes on after a change of clocks: no generation waits for a clock that is no more."""
    s1, s2 = nodes.line()
    for old, new in ((s1, s2), (s2, s1)):
        Switchover(old, new).run()
    s1.insert(*range(5))

    def freed() -> bool:
        s1.tick()
        s2.catch_up()
        s2.tell()
        s1.advance()
        s1.rotate("q")
        return bool(s1.value("select min(gen) >= 2 from cascade_internal.generation"))

    eventually(freed)


def test_a_ticker_that_looked_before_the_offer_makes_no_tick_and_no_fuss(nodes: Nodes) -> None:
    """It reads the list of queues, then their events, then locks; the offer comes in between."""
    (s1, _), step = begun(nodes)
    s1.insert(1)
    ticker, watcher = s1.connect(), s1.connect()
    waiting = f"select wait_event_type from pg_stat_activity where pid = {ticker.info.backend_pid}"
    with ThreadPoolExecutor() as pool:
        with s1.main.transaction():
            s1.main.execute("lock table queue.q in access exclusive mode")
            made = pool.submit(lambda: ticker.execute("select tick_id from cascade.make_ticks()").fetchall())
            eventually(lambda: watcher.execute(waiting.encode()).fetchone() == ("Lock",))
            step.fence()
            step.offer()
        assert made.result(30) == []
