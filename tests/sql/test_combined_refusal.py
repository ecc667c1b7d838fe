"""Who may not write into a combined queue, and what cannot be a merge-leaf."""

from __future__ import annotations

import pytest
from psycopg.types.json import Jsonb

from cascade.node.merge import STORE_MERGE
from tests.fixtures.expect import refused
from tests.fixtures.failover import Switchover, fail_over, stand_down
from tests.fixtures.merging import Leaf, Merging, marks_at, numbers
from tests.fixtures.nodes import Node

BEGIN = "select cascade.begin_merge(%s, %s, %s, %s, %s)"
CREATE = "select cascade.create_merge_leaf(%s, %s, %s, %s, %s, %s, %s)"


def begin(leaf: Leaf) -> None:
    """Try to begin a merge from where the merge-leaf stands."""
    me = leaf.describe()
    chain = bytes.fromhex(me["tick"]["chain"].removeprefix("\\x"))
    leaf.value(BEGIN, leaf.set, me["provider"], me["generation"], me["tick"]["tick_id"], chain)


def welcome(root: Node, node: str, into: str | None) -> tuple[Jsonb, Jsonb, int]:
    """Add a member, and return what making its node takes."""
    role = "leaf" if into is None else "merge-leaf"
    found = root.value("select cascade.add_member(%s, %s, %s, '{}', false, %s)", root.set, node, role, into)
    start = root.value("select cascade.register_subscriber(%s, %s, 1)", root.set, node)
    return Jsonb(found), Jsonb(start), root.tick()


# Producers


@pytest.mark.parametrize(
    "statement",
    [
        "insert into queue.s (payload) values ('1')",
        "insert into queue.s (payload) select '1' where false",
        "select cascade.post('s', '1')",
        "select cascade.post_many('s', array['1', '2']::json[])",
        "select cascade.reserve_id('s')",
    ],
    ids=["insert", "insert nothing", "post", "post many", "reserve an id"],
)
def test_producers_insert_into_the_parts_only(merging: Merging, statement: str) -> None:
    merging.build("b", "a", carriers=2)
    for carrier in (merging["s1"], merging["s2"]):
        with refused("QC403", 'queue "s" is a combined set and ') as found:
            carrier.value(statement)
        assert found.value.diag.message_hint == "Insert into its parts: a, b."
        assert numbers(carrier) == []


def test_copy_into_a_combined_queue_is_refused(merging: Merging) -> None:
    for carrier in merging.build("a", carriers=2)["s1"], merging["s2"]:
        with refused("QC403"), carrier.main.cursor().copy("copy queue.s (payload) from stdin") as copy:
            copy.write("1\n")


def test_a_combined_set_without_parts_says_so(merging: Merging) -> None:
    carrier = merging.create("s", combined=True)
    with refused("QC403") as found:
        carrier.insert(1)
    assert found.value.diag.message_hint == "Its events come from its parts, none of which is merged yet."


@pytest.mark.parametrize("ends", ["switchover", "failover"])
def test_producers_are_refused_before_during_and_after_a_change_of_the_root(merging: Merging, ends: str) -> None:
    merging.build("a", carriers=2)
    s1, s2 = merging["s1"], merging["s2"]
    if ends == "switchover":
        step = Switchover(s1, s2)
        step.begin()
        step.fence()
        with refused("QC403"):
            s1.insert(1)
        step.offer()
        s2.catch_up()
        step.take()
        step.promote()
    else:
        fail_over(s2)
    stand_down(s1, s2)
    for carrier in (s1, s2):
        with refused("QC403"):
            carrier.insert(1)


# Where nothing may be merged


def test_a_merge_leaf_at_a_branch_merges_nothing(merging: Merging) -> None:
    merging.build("a", carriers=2)
    merging.root("a").insert(1)
    merging.root("a").tick()
    tracker = merging.tracker("a")
    before = (tracker.position(), marks_at(merging["s2"]))
    with refused("QC401", 'queue "s" takes no events here: this database is branch "s2" of the set, the root is "s1"'):
        begin(tracker)
    for small_bytes in (0, 128 * 1024):
        tracker.small_bytes = small_bytes
        with refused("QC401"):
            tracker.catch_up()
    assert (tracker.position(), marks_at(merging["s2"])) == before
    assert tracker.into() | {"fork": None} == {
        "into": "s", "node": "s2", "is_root": False, "copies": False, "reign": None, "fork": None, "root": "a1",
    }  # fmt: skip


def test_a_fenced_combined_root_merges_nothing(merging: Merging) -> None:
    merging.build("a", carriers=2)
    s1, s2, leaf = merging["s1"], merging["s2"], merging.tracker("a", "s1")
    merging.root("a").insert(1)
    merging.root("a").tick()
    step = Switchover(s1, s2)
    step.begin()
    assert leaf.into()["copies"]
    step.fence()
    with refused("QC401", "takes no events here"):
        leaf.merge()
    assert not leaf.into()["copies"] and leaf.into()["is_root"]
    s1.value("select cascade.drop_fence('s', %s)", step.op_id)
    leaf.merge()
    assert numbers(s1) == [1]


def test_a_fence_waits_for_a_merge_and_the_next_one_is_refused(merging: Merging) -> None:
    merging.build("a", carriers=2)
    s1, leaf = merging["s1"], merging.tracker("a", "s1")
    merging.root("a").insert(1)
    merging.root("a").tick()
    fetched = leaf.fetch(read=False)
    assert fetched is not None
    step = Switchover(s1, merging["s2"])
    step.begin()
    with leaf.main.transaction():
        skipped = leaf.write(fetched, leaf.begin(fetched, leaf.main), leaf.main)
        with refused("55P03", 'queue "s" is being written to'):
            step.fence("10 ms")
        leaf.finish(fetched, skipped, leaf.main)
    step.fence()
    merging.root("a").tick()
    with refused("QC401"):
        leaf.catch_up()
    closing = step.offer()["tick_id"]
    assert marks_at(s1, closing) == {"a": fetched.to_tick}


def test_a_root_that_stands_down_merges_nothing_from_that_moment(merging: Merging) -> None:
    """The trigger of its fence may wait for a writer; the row is enough."""
    merging.build("a", carriers=2)
    s1, s2, leaf = merging["s1"], merging["s2"], merging.tracker("a", "s1")
    merging.root("a").insert(1)
    merging.root("a").tick()
    fail_over(s2)
    terms = Jsonb(s2.describe()["terms"])
    assert s1.value("select cascade.stand_down('s', %s)", terms)["is_up"] is False
    with refused("QC401"):
        leaf.catch_up()


# What is no merge-leaf


def test_only_a_merge_leaf_merges(merging: Merging) -> None:
    root = merging.create("a")
    plain = merging.seat("a", "s1", "s1", root, Leaf)
    given, start, known_from = welcome(root, "s1", None)
    plain.value("select cascade.create_node('a', 's1', 'leaf', 'a1', %s, %s, %s)", given, start, known_from)
    with refused("QC208", 'node "s1" is no merge-leaf'):
        begin(plain)
    with refused("QC208", 'node "s1" is no merge-leaf'):
        plain.into()
    with refused("QC208", 'member "s1" of set "a" is no merge-leaf'):
        root.value("select cascade.tell_merge('a', 's1', null, null, '[]')")
    with refused("QC701", "nobody is no live member"):
        root.value("select cascade.tell_merge('a', 'nobody', null, null, '[]')")


def test_a_merge_leaf_without_the_combined_set_in_its_database_merges_nothing(merging: Merging) -> None:
    merging.build("a", carriers=1)
    leaf = merging.tracker("a", "s1")
    merging["s1"].value("select cascade.drop_queue('s', true)")
    for step in (lambda: begin(leaf), leaf.into):
        with refused("QC105", 'this database has no node of the combined set "s"'):
            step()


def test_a_merge_leaf_is_made_beside_a_carrier_of_its_combined_set_only(merging: Merging) -> None:
    root = merging.create("a")
    merging.create("plain", "s1")
    rest = ("a1", *welcome(root, "s1", "s"))
    with refused("QC105", 'this database has no node in set "s"'):
        merging["s1"].value(CREATE, "a", "s1", "s", *rest)
    with refused("QC208", 'set "plain" is no combined set'):
        merging["s1"].value(CREATE, "a", "s1", "plain", *rest)


def test_a_branch_has_merge_leaves_of_what_its_log_has_heard_of_only(merging: Merging) -> None:
    """Where it would begin is what the log of the combined set says."""
    merging.build("a", carriers=2)
    root = merging.create("b")
    rest = ("b1", *welcome(root, "s2", "s"))
    with refused("QC105", 'set "s" has nothing of part "b" yet'):
        merging["s2"].value(CREATE, "b", "s2", "s", *rest)
    merging.leaf("b", merging["s1"])
    merging.copy()
    assert merging["s2"].value(CREATE, "b", "s2", "s", *rest) is True
    assert merging["s2"].value(CREATE, "b", "s2", "s", *rest) is False, "a repeat changes nothing"


def test_another_set_of_the_name_is_another_part(merging: Merging) -> None:
    """The uid counts: a set that was dropped and made again begins anew."""
    merging.build("a", carriers=2)
    merging.root("a").insert(1)
    merging.flow()
    again = merging.create("a", "again")
    for carrier, refusal in (("s1", 'this database is already leaf "s1" of a set "a"'), ("s2", "has nothing of part")):
        rest = ("again", *welcome(again, carrier, "s"))
        with refused("QC207" if carrier == "s1" else "QC105", refusal):
            merging[carrier].value(CREATE, "a", carrier, "s", *rest)
    merging["s1"].value("select cascade.drop_queue('a', true)")
    again.insert(2)
    del merging.made["a", "s1"]
    merging.leaf("a", merging["s1"], again)
    merging.merge("a")
    merging.copy()
    assert numbers(merging["s2"]) == [1, 2]
    assert marks_at(merging["s2"]) == {"a": again.position()}
    with refused("QC208", "it has no merge-leaf of a"):
        fail_over(merging["s2"])


def test_null_is_not_no_events(merging: Merging) -> None:
    """As for a copy: a range whose events are not at hand would be passed over."""
    merging.build("a", carriers=1)
    leaf = merging.tracker("a", "s1")
    merging.root("a").insert(1)
    merging.root("a").tick()
    fetched = leaf.fetch()
    assert fetched is not None
    before = leaf.position()
    begun = (leaf.set, fetched.provider.node, fetched.generation, *fetched.after, Jsonb(fetched.ticks))
    with refused("QC003", 'the merge-leaf of part "a" cannot store these events'):
        leaf.value(STORE_MERGE, *begun, *[None] * 9)
    assert leaf.position() == before


def test_a_combined_set_is_made_as_such(merging: Merging) -> None:
    carrier = merging.create("s", combined=True)
    with refused("QC201", 'queue "s" is here already and is combined'):
        carrier.value("select cascade.create_set('s', 's1')")
    carrier.queue("plain")
    with refused("QC201", 'queue "plain" is here already and is not combined'):
        carrier.value("select cascade.create_set('plain', 's1', '{}', '{}', true)")


def test_a_branch_without_a_merge_leaf_of_every_part_is_not_promoted(merging: Merging) -> None:
    merging.build("a", "b", carriers=3)
    s3 = merging["s3"]
    merging.leaf("b", s3)
    with refused("QC208", 'this node cannot be the root of combined set "s": it has no merge-leaf of a'):
        fail_over(s3)
    assert s3.value("select cascade.describe_set('s')")["role"] == "branch"
    merging.leaf("a", s3)
    fail_over(s3)
    assert s3.value("select cascade.describe_set('s')")["role"] == "combined-root"


def test_a_branch_without_merge_leaves_does_not_take_what_it_is_offered(merging: Merging) -> None:
    merging.build("a", carriers=3)
    s1, s2, s3 = merging["s1"], merging["s2"], merging["s3"]
    step = Switchover(s1, s3)
    step.begin()
    step.fence()
    step.offer()
    s2.catch_up()
    s3.catch_up()
    assert step.duty() is None
    s1.value("select cascade.withdraw_handover('s', %s)", step.op_id)
    assert s1.value("select cascade.heir_duty('s')")["handover"] is None
    merging.root("a").insert(1)
    merging.flow()
    assert numbers(s3) == [1]
