"""Sets, members and nodes: how they are made, what is refused, and what the views say."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Json, Jsonb

from cascade.topology.dsn import holds_secret
from tests.fixtures.database import Database, eventually
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Node, Nodes, create_node, same
from tests.fixtures.roles import role_on

# Sets


def test_a_new_set_has_a_root_that_is_its_only_member(nodes: Nodes) -> None:
    s1 = nodes.root(tick_max_events=7)
    assert s1.rows("select set, node, role, provider, root, state, answer from cascade.nodes") == [
        ("q", "s1", "root", None, "s1", "running", None)
    ]
    assert s1.rows("select node, node_no, role, state, is_here from cascade.members") == [
        ("s1", 1, "root", "live", True)
    ]
    assert s1.value("select options->>'tick_max_events' from cascade.queues") == "7"
    assert s1.rows("select number, node, parent_uid, fork_tick, cause from cascade.terms") == [
        (0, "s1", None, None, "created")
    ]
    assert s1.value("select term_uid from cascade_internal.queue") == s1.value("select uid from cascade.terms")
    assert s1.watermark() == s1.position() == 1


def test_a_queue_that_stands_alone_becomes_a_set_with_its_events(nodes: Nodes) -> None:
    s1 = nodes.database("s1")
    s1.queue()
    s1.rows("select cascade.subscribe('q', 'c')")
    s1.insert("before", "also before")
    s1.tick()
    s1.rows("select cascade.create_set('q', 's1')")
    s1.insert("after")
    s2 = nodes.add("s2")
    assert s2.rows("select cascade.subscribe('q', 'c', 'earliest')") == [(1,)]
    s1.tick()
    s2.catch_up()
    assert s1.drain() == s2.drain() == ["before", "also before", "after"]
    assert same(s1, s2) == 4


def test_a_queue_whose_beginning_is_gone_becomes_a_set_from_what_is_left(nodes: Nodes) -> None:
    s1 = nodes.database("s1")
    s1.queue()
    s1.insert("gone")
    s1.rotate_away()
    s1.insert("kept")
    s1.tick()
    s1.rows("select cascade.create_set('q', 's1')")
    first = s1.value("select min(tick_id) from cascade.ticks")
    assert s1.watermark() == first > 1
    s2 = nodes.add("s2")
    assert s2.position() == first
    s2.rows("select cascade.subscribe('q', 'c', 'earliest')")
    s2.catch_up()
    assert s2.drain() == ["kept"]


def test_creating_a_set_again_changes_the_location_only(nodes: Nodes) -> None:
    s1 = nodes.root()
    before = s1.rows("select * from cascade_internal.node")
    uid = s1.value("select set_uid from cascade.nodes")
    assert s1.value("select cascade.create_set('q', 's1', %s)", Jsonb({"dsn": "service=new"})) == uid
    assert s1.rows("select * from cascade_internal.node") == before
    assert s1.value("select dsn from cascade.locations") == "service=new"
    assert s1.controls("member") == 1
    s1.rows("select cascade.create_set('q', 's1', %s)", Jsonb({"dsn": "service=new"}))
    assert s1.controls("member") == 1
    assert s1.value("select count(*) from cascade.terms") == 1


def test_a_database_has_one_node_in_a_set(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    with refused("QC207", 'already root "s1"'):
        s1.rows("select cascade.create_set('q', 's9')")
    with refused("QC207", 'already branch "s2"'):
        s2.rows("select cascade.create_set('q', 's2')")


def test_a_node_needs_a_usable_name(nodes: Nodes) -> None:
    s1 = nodes.root()
    for name in ("", ".dot", "a\nb", "x" * 101, None):
        with refused("QC001", "node name"):
            s1.rows("select cascade.create_set('other', %s)", name)
        with refused("QC001", "node name"):
            s1.rows("select cascade.add_member('q', %s, 'branch')", name)
    assert s1.value("select count(*) from cascade_internal.queue") == 1


SECRETS = [
    "host=h password=x",
    "password=x",
    "password = x",
    "host=h PASSWORD='x y'",
    "host=h\tpassword\n=\nx",
    "host=h sslpassword=x",
    "postgresql://user:x@host/db",
    "postgres://user:x@host",
    "postgresql://user:x%40y@host/db",
    "postgresql://:x@host/db",
    "postgresql://user@host/db?password=x",
    "postgresql://user@host/db?sslmode=require&password=x",
    "postgresql://user@host/db?sslpassword=x",
    "postgresql://user:a:b@host/db",
    "postgresql:///db?user=u&PASSWORD=x",
    "postgresql:///db?user=u&p%61ssword=x",
    "host='h'password=x",
    "host=h scram_client_key=x",
    "host=h scram_server_key=x",
    "oauth_client_secret=x",
]


NO_SECRETS = [
    "service=ams1",
    "host=password.example dbname=app user=password",
    "postgresql://user@host:5432/db?sslmode=verify-full&host=%2Frun%2Fpostgresql",
    "postgresql://user@h1:5432,h2:5432/db",
    "postgresql://[::1]:5432/db",
    "host=${PGHOST_AMS1} passfile=/etc/pgpass",
    "host=/run/postgresql options='-c application_name=x'",
]


def test_a_location_with_a_secret_is_refused_in_every_spelling(nodes: Nodes) -> None:
    s1 = nodes.root()
    for dsn in SECRETS:
        location = Jsonb({"database": "d", "dsn": dsn})
        for call in ("create_set('q', 's1', %s)", "add_member('q', 's2', 'branch', %s)"):
            with refused("QC003", "the location holds a password"):
                s1.rows(f"select cascade.{call}", location)
    assert s1.rows("select node, dsn from cascade.locations") == [("s1", "service=s1")]


def test_a_location_without_a_secret_is_kept(nodes: Nodes) -> None:
    s1 = nodes.root()
    for dsn in NO_SECRETS:
        s1.rows("select cascade.add_member('q', 's2', 'branch', %s)", Jsonb({"database": "d", "dsn": dsn}))
        assert s1.value("select dsn from cascade.locations where node = 's2'") == dsn


def test_what_is_secret_in_a_location_is_secret_in_a_topology_file() -> None:
    assert [dsn for dsn in SECRETS if not holds_secret(dsn)] == []
    assert [dsn for dsn in NO_SECRETS if holds_secret(dsn)] == []


def test_a_location_is_a_database_and_a_dsn_and_nothing_else(nodes: Nodes) -> None:
    s1 = nodes.root()
    for location in (None, [], "service=x", 7, {"dsn": "service=x", "password": "x"}, {"host": "h"}):
        with refused("QC003", "a location is"):
            s1.rows("select cascade.add_member('q', 's2', 'branch', %s)", Jsonb(location))
    with refused("QC003", "a location is"):
        s1.rows("select cascade.add_member('q', 's2', 'branch', null)")


# Members


def test_members_are_numbered_and_adding_one_again_changes_nothing(nodes: Nodes) -> None:
    s1 = nodes.root()
    first = s1.value("select cascade.add_member('q', 's2', 'branch')")
    s1.rows("select cascade.add_member('q', 's3', 'leaf')")
    assert s1.value("select cascade.add_member('q', 's2', 'branch')")["generation"] == first["generation"] == 1
    assert s1.rows("select node, node_no, role from cascade.members") == [
        ("s1", 1, "root"),
        ("s2", 2, "branch"),
        ("s3", 3, "leaf"),
    ]
    assert s1.controls("member") == 2
    assert [member["node"] for member in first["members"]] == ["s1", "s2"]
    assert first["set_uid"] == str(s1.value("select set_uid from cascade.nodes"))


def test_the_number_of_a_dropped_member_is_not_given_to_another(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.add_member('q', 's2', 'branch')")
    assert s1.value("select cascade.drop_member('q', 's2')") is True
    assert s1.value("select cascade.add_member('q', 's3', 'branch')")["node_no"] == 3


def test_a_member_keeps_its_role(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.add_member('q', 's2', 'branch')")
    with refused("QC207", "is a branch, not a leaf"):
        s1.rows("select cascade.add_member('q', 's2', 'leaf')")
    for role in ("root", "merge-leaf", None):
        with refused("QC003", "as branch, leaf, or merge-leaf into a combined set"):
            s1.rows("select cascade.add_member('q', 's4', %s)", role)


@pytest.mark.parametrize("end", ["drop_member", "mark_dead"])
def test_a_member_that_was_ended_is_taken_back_only_if_asked(nodes: Nodes, end: str) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.add_member('q', 's2', 'branch')")
    assert s1.value(f"select cascade.{end}('q', 's2')") is True
    assert s1.value(f"select cascade.{end}('q', 's2')") is False
    with refused("QC701", 'member "s2"'):
        s1.rows("select cascade.add_member('q', 's2', 'branch')")
    again = s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")
    assert (again["node_no"], again["generation"]) == (2, 3)
    assert s1.member("s2", "state") == "live"
    assert s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")["generation"] == 3
    assert s1.controls("member") == 3


def test_only_the_root_changes_members(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    for call in ("add_member('q', 's3', 'branch')", "drop_member('q', 's2')", "mark_dead('q', 's2')"):
        with refused("QC206", 'only the root "s1" decides this'):
            s2.rows(f"select cascade.{call}")
    with refused("QC206"):
        s2.advance()


def test_the_root_is_not_ended_and_nobody_unknown_is(nodes: Nodes) -> None:
    s1 = nodes.root()
    for end in ("drop_member", "mark_dead"):
        with refused("QC208", "is the root"):
            s1.rows(f"select cascade.{end}('q', 's1')")
        with refused("QC106", 'no member "s9"'):
            s1.rows(f"select cascade.{end}('q', 's9')")
    with refused("QC105", "no node in set"):
        s1.rows("select cascade.drop_member('other', 's1')")


def test_changes_of_members_reach_every_carrier_through_the_log(nodes: Nodes) -> None:
    s1, s2, s3 = nodes.line(3)
    s1.rows("select cascade.add_member('q', 's4', 'leaf', %s)", Jsonb({"database": "d4", "dsn": "service=d4"}))
    assert s2.member("s4", "state") is None
    s1.rows("select cascade.mark_dead('q', 's4')")
    nodes.settle()
    known = "select node, node_no, role, state, location from cascade.members where node <> 's3'"
    assert s1.rows(known) == s2.rows(known) == s3.rows(known)
    assert s3.member("s4", "state") == "dead"
    assert s3.rows("select node from cascade.locations") == [("s1",), ("s2",), ("s3",)]


def test_an_older_version_of_a_member_does_not_replace_a_newer_one(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    old = s1.value("select cascade_internal.known_members(queue_id) from cascade_internal.queue")
    s1.rows("select cascade.add_member('q', 's2', 'branch', %s)", Jsonb({"dsn": "service=moved"}))
    nodes.settle()
    s2.rows("select cascade_internal.learn_members(queue_id, %s) from cascade_internal.queue", Jsonb(old))
    assert s2.member("s2", "location") == {"dsn": "service=moved"}


def test_a_dropped_node_learns_it_from_the_log_and_stops(nodes: Nodes) -> None:
    """Its provider would tell it anyway; a branch that copies from another learns it on the way."""
    s1, s2 = nodes.line()
    s1.rows("select cascade.add_member('q', 's3', 'branch')")
    s1.tick()
    fetched = s2.fetch()
    assert fetched is not None
    s1.rows("select cascade.drop_member('q', 's2')")
    s2.rows(
        "select cascade_internal.learn_members(queue_id, %s) from cascade_internal.queue",
        Jsonb(s1.value("select cascade_internal.known_members(queue_id) from cascade_internal.queue")),
    )
    assert (s2.state("answer"), s2.state()) == ("dropped", fetched.generation + 1)
    assert s2.value("select state from cascade.nodes") == "dropped"


# Nodes


def welcome(nodes: Nodes, name: str = "s2") -> tuple[Node, dict[str, object], dict[str, object]]:
    """A member that has a place at the root, and no node yet."""
    s1, made = nodes.root(), nodes.database(name)
    made.provider = s1
    found = s1.value("select cascade.add_member('q', %s, 'branch')", name)
    return made, found, s1.value("select cascade.register_subscriber('q', %s, 1)", name)


def test_creating_a_node_again_changes_nothing(nodes: Nodes) -> None:
    s2, found, start = welcome(nodes)
    assert create_node(s2, welcome=found, start=start) is True
    before = s2.rows("select * from cascade_internal.node")
    assert create_node(s2, welcome=found, start=start) is False
    assert s2.rows("select * from cascade_internal.node") == before
    assert s2.rows("select node, role, provider, root, generation, term from cascade.nodes") == [
        ("s2", "branch", "s1", "s1", 1, 0)
    ]
    assert s2.rows("select * from cascade.terms") == nodes.made["s1"].rows("select * from cascade.terms")


def test_a_node_is_not_made_of_a_queue_that_stands_alone(nodes: Nodes) -> None:
    s2, found, start = welcome(nodes)
    s2.queue()
    s2.insert("precious")
    with refused("QC201", "belongs to no set"):
        create_node(s2, welcome=found, start=start)
    assert s2.value("select count(*) from queue.q") == 1


def test_a_node_never_changes_its_set_its_name_or_its_role(nodes: Nodes) -> None:
    s2, found, start = welcome(nodes)
    create_node(s2, welcome=found, start=start)
    other = found | {"set_uid": "00000000-0000-0000-0000-000000000000"}
    with refused("QC207", 'already branch "s2"'):
        create_node(s2, welcome=other, start=start)
    with refused("QC207"):
        create_node(s2, welcome=found, start=start, role="leaf")
    s2.node = "s7"
    with refused("QC207"):
        create_node(s2, welcome=found, start=start)


def test_a_new_node_takes_the_options_and_slots_of_the_root(nodes: Nodes) -> None:
    s1 = nodes.root(slots=5, rotation_period="2 days", tick_max_events=9)
    s2 = nodes.add("s2")
    assert s2.value("select options from cascade.queues") == s1.value("select options from cascade.queues")


def test_a_place_is_given_to_live_members_by_those_who_keep_the_queue(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", role="leaf")
    with refused("QC701", "knows no live member s9"):
        s1.rows("select cascade.register_subscriber('q', 's9', 1)")
    with refused("QC708", "knows no live member s9"):
        s2.rows("select cascade.register_subscriber('q', 's9', 1)")
    with refused("QC208", "is a leaf"):
        leaf.rows("select cascade.register_subscriber('q', 's2', 1)")
    s1.rows("select cascade.mark_dead('q', 's2')")
    with refused("QC701"):
        s1.rows("select cascade.register_subscriber('q', 's2', 1)")


def test_a_consumer_is_not_subscribed_where_no_events_are_kept(nodes: Nodes) -> None:
    """It would get empty batches, and by standing still keep the events on every other node."""
    _, s2 = nodes.line()
    leaf = nodes.add("s3", s2, role="leaf")
    nodes.settle()
    for at in ("now", "earliest"):
        with refused("QC208", 'node "s3" is a leaf of set "q" and keeps no events'):
            leaf.rows("select cascade.subscribe('q', 'c', %s)", at)
    assert leaf.rows("select consumer from cascade.consumers") == []
    assert s2.value("select cascade.subscribe('q', 'c')") == s2.position()


def test_a_place_can_be_chosen(nodes: Nodes) -> None:
    s1 = nodes.root()
    ticks = [s1.tick() for _ in range(4)]
    s1.rows("select cascade.add_member('q', 's2', 'leaf')")
    place = "select cascade.register_subscriber('q', 's2', 1, %s)->>'tick_id'"
    assert s1.value(place, "earliest") == "1"
    assert s1.value(place, str(ticks[1])) == str(ticks[1])
    assert s1.value(place, "now") == str(ticks[3])
    with refused("QC103", "has no tick 99"):
        s1.value(place, "99")


def test_every_change_of_a_node_raises_its_generation(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    nodes.add("s3")
    nodes.settle()
    assert s2.value("select cascade.node_generation('q')") == 1
    assert s2.value("select cascade.set_provider('q', 's3')") == 2
    assert s2.value("select cascade.pause_node('q')") == 3
    assert s2.value("select state from cascade.nodes") == "paused"
    assert s2.value("select cascade.resume_node('q')") == 4
    assert s2.value("select cascade.raise_generation('q', 9)") == 10
    assert s2.value("select cascade.raise_generation('q', 2)") == 11
    assert s2.rows("select provider, state, generation from cascade.nodes") == [("s3", "running", 11)]
    assert s2.value("select cascade.node_generation('q')") == 11


def test_a_provider_is_set_by_compare_and_swap(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    nodes.add("s3")
    nodes.settle()
    assert s2.value("select cascade.set_provider('q', 's3', 1)") == 2
    with refused("QC209", 'node "s2" has moved on to generation 2'):
        s2.rows("select cascade.set_provider('q', 's1', 1)")
    assert s2.rows("select provider, generation, file_provider from cascade.nodes") == [("s3", 2, "s1")]
    assert s2.value("select cascade.set_provider('q', 's1', 2, true)") == 3
    assert s2.rows("select provider, file_provider from cascade.nodes") == [("s1", "s1")]


def test_of_two_changes_at_once_one_is_refused(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    nodes.add("s3")
    nodes.settle()
    other = s2.connect(autocommit=False)
    other.execute("select cascade.set_provider('q', 's3', 1)")
    with refused("55P03", hint=False):
        s2.main.execute("set lock_timeout = '50ms'")
        s2.rows("select cascade.set_provider('q', 's1', 1)")
    other.commit()
    with refused("QC209"):
        s2.rows("select cascade.set_provider('q', 's1', 1)")


def test_a_provider_must_be_a_known_carrier(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    nodes.add("s3", role="leaf")
    nodes.settle()
    with refused("QC106", 'no member "s9"'):
        s2.rows("select cascade.set_provider('q', 's9')")
    for name in ("s3", "s2"):
        with refused("QC208", f'cannot copy from "{name}"'):
            s2.rows("select cascade.set_provider('q', %s)", name)
    with refused("QC003", "no provider"):
        s2.rows("select cascade.set_provider('q', null)")
    for end in ("mark_dead", "drop_member"):
        s1.rows("select cascade.add_member('q', 's4', 'branch', again => true)")
        s1.rows(f"select cascade.{end}('q', 's4')")
        nodes.settle()
        with refused("QC208", 'cannot copy from "s4"'):
            s2.rows("select cascade.set_provider('q', 's4')")
    for call in ("set_provider('q', 's2')", "pause_node('q')", "resume_node('q')"):
        with refused("QC208", "is the root"):
            s1.rows(f"select cascade.{call}")
    assert (s1.state(), s2.state()) == (1, 1)


def test_a_node_that_was_dropped_and_added_again_goes_on(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(1)
    nodes.settle()
    s1.rows("select cascade.drop_member('q', 's2')")
    s1.insert(2)
    s1.tick()
    assert s2.join()["answer"] == "dropped"
    again = s1.value("select cascade.add_member('q', 's2', 'branch', again => true)")
    s2.rows("select cascade.readmit_node('q', %s, %s)", Jsonb(again), s1.tick())
    assert s2.state("answer") is None
    assert s2.state() >= again["generation"]
    assert s2.join()["answer"] == "on path"
    s2.catch_up()
    assert same(s1, s2) > 2
    assert s2.tell() == 1


# The fence


REFUSAL = 'queue "q" takes no inserts here: this database is branch "s2" of the set, the root is "s1"'


@pytest.mark.parametrize("role", ["branch", "leaf"])
def test_a_copy_refuses_every_way_to_insert(nodes: Nodes, role: str) -> None:
    nodes.root()
    s2 = nodes.add("s2", role=role)
    refusal = REFUSAL.replace("branch", role)
    with refused("QC401", refusal):
        s2.insert(1)
    with refused("QC401", refusal):
        s2.rows("insert into queue.q (payload) select '1' where false")
    with refused("QC401", refusal):
        with s2.main.cursor().copy("copy queue.q (type, payload) from stdin") as copy:
            copy.write_row(("t", "1"))
    with refused("QC401", refusal):
        s2.rows("select cascade.post('q', '1')")
    with refused("QC401", refusal):
        s2.rows("select cascade.post_many('q', array['1']::json[])")
    assert s2.value("select count(*) from queue.q where origin is null") == 0


def test_the_refusal_says_where_to_go(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    with pytest.raises(psycopg.Error) as caught:
        s2.insert(1)
    assert caught.value.diag.message_hint == "Do it at the root, database db-s1."


def test_a_prepared_statement_is_refused_too(nodes: Nodes) -> None:
    """It was prepared while the queue was another one, that took inserts."""
    s2, found, start = welcome(nodes)
    s2.queue()
    writer = s2.connect()
    writer.execute("prepare put as insert into queue.q (payload) values ('1')")
    writer.execute("execute put")
    s2.rows("select cascade.drop_queue('q')")
    create_node(s2, welcome=found, start=start)
    with refused("QC401", "takes no inserts"):
        writer.execute("execute put")
    writer.execute("deallocate put")
    writer.execute("prepare put as insert into queue.q (payload) values ('1')")
    for _ in range(7):  # Past the sixth, a generic plan.
        with refused("QC401", "takes no inserts"):
            writer.execute("execute put")


def test_a_transaction_with_an_older_snapshot_is_refused_too(nodes: Nodes) -> None:
    """A fence that is a row would not be seen by it; a trigger is."""
    s2, found, start = welcome(nodes)
    old = s2.connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("select count(*) from cascade_internal.node")
    create_node(s2, welcome=found, start=start)
    with pytest.raises(psycopg.Error):
        s2.insert("too late", conn=old)
    old.rollback()
    assert s2.value("select count(*) from queue.q") == 0


def test_a_producer_of_a_copy_is_told_where_the_root_is(nodes: Nodes) -> None:
    """Whoever has the right to insert gets the refusal, not an error about a table he may not see."""
    _, s2 = nodes.line()
    with role_on(s2) as role:
        s2.rows("select cascade.grant_producer('q', %s)", role)
        producer = s2.connect(user=role)
        with refused("QC401", REFUSAL):
            producer.execute("insert into queue.q (payload) values ('1')")
        with refused("QC401", REFUSAL):
            producer.execute("select cascade.post('q', '1')")
        producer.close()


def test_a_copy_makes_no_ticks(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    with refused("QC401", 'queue "q" makes no ticks here'):
        s2.tick()
    s1.rows("select cascade.alter_queue('q', '{\"tick_idle\": \"0\"}')")
    s2.rows("select cascade.alter_queue('q', '{\"tick_idle\": \"0\"}')")
    s2.queue("alone", tick_idle="0")
    for node, queues in ((s1, {"q"}), (s2, {"alone"})):
        assert (
            eventually(lambda node=node: {row[0] for row in node.rows("select queue from cascade.make_ticks()")})
            == queues
        )


def test_subscribing_at_now_on_a_copy_means_the_last_tick_copied(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert("before")
    here = nodes.settle()
    assert s2.value("select cascade.subscribe('q', 'c', 'now')") == here
    s1.insert("after")
    nodes.settle()
    assert s2.drain() == ["after"]


# What else a node keeps


def test_the_queue_of_a_root_with_members_is_not_dropped(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    with refused("QC202", "with other members: s2"):
        s1.rows("select cascade.drop_queue('q')")
    s2.rows("select cascade.drop_queue('q')")
    assert s2.rows("select * from cascade.nodes") == s2.rows("select * from cascade.terms") == []
    s1.rows("select cascade.drop_member('q', 's2')")
    s1.rows("select cascade.drop_queue('q')")
    assert s1.rows("select * from cascade.members") == []


def test_dropping_the_queue_of_a_root_can_be_forced(nodes: Nodes) -> None:
    s1, _ = nodes.line()
    s1.rows("select cascade.drop_queue('q', force => true)")
    assert s1.rows("select * from cascade.nodes") == []


def test_an_error_is_noted_once_and_taken_back(nodes: Nodes) -> None:
    _, s2 = nodes.line()
    s2.rows("select cascade.note_error('q', %s)", "x" * 5000)
    error, at = s2.rows("select error, error_at from cascade.nodes")[0]
    assert (error, at is not None) == ("x" * 2000, True)
    s2.rows("select cascade.note_error('q', %s)", "x" * 5000)
    assert s2.value("select error_at from cascade.nodes") == at
    s2.rows("select cascade.note_error('q', null)")
    assert s2.rows("select error, error_at, generation from cascade.nodes") == [(None, None, 1)]


def test_a_branch_begins_to_process_with_the_first_tick_it_holds(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    leaf = nodes.add("s3", role="leaf")
    s1.insert(1)
    nodes.settle()
    assert s2.value("select cascade.set_processing('q', true)") is True
    assert s2.value("select cascade.set_processing('q', true)") is False
    assert s2.value("select tick_id from cascade.consumers where consumer = '.handler'") == 1
    assert s2.report()[0]["tick_id"] == 1
    assert s2.value("select cascade.set_processing('q', false)") is True
    assert s2.value("select cascade.set_processing('q', false)") is False
    assert s2.report()[0]["tick_id"] == s2.position()
    for node in (s1, leaf):
        with refused("QC208", "a handler of its own runs on a branch"):
            node.rows("select cascade.set_processing('q', true)")
        assert node.value("select cascade.set_processing('q', false)") is False


def test_the_views_show_a_node_that_lags_and_who_holds_what(nodes: Nodes) -> None:
    s1, s2 = nodes.line()
    s1.insert(*range(3))
    last = nodes.settle()
    s1.insert(*range(2))
    s1.tick()
    assert s1.rows("select events, held_by, held_since is not null from cascade.nodes") == [(5, "s2", True)]
    assert s2.rows("select tick_id, events, held_by, root from cascade.nodes") == [(last, 3, None, "s1")]
    assert s1.rows("select node, tick_id, is_here from cascade.members") == [
        ("s1", last + 1, True),
        ("s2", last, False),
    ]
    assert s1.value("select chain from cascade.nodes") != s2.value("select chain from cascade.nodes")
    assert s1.rows("select node, role, database, dsn from cascade.locations") == [
        ("s1", "root", "db-s1", "service=s1"),
        ("s2", "branch", None, None),
    ]


def test_the_queue_of_a_set_serves_producers_as_before(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.subscribe('q', 'c')")
    s1.rows("select cascade.post('q', %s)", Json(1))
    s1.insert(2)
    s1.tick()
    assert s1.drain() == [1, 2]


def test_a_queue_without_a_set_has_no_node(db: Database) -> None:
    db.queue()
    assert db.rows("select * from cascade.nodes") == db.rows("select * from cascade.members") == []
    with refused("QC105", 'no node in set "q"'):
        db.rows("select cascade.describe_node('q')")


def test_the_hundredth_member_is_refused_with_a_reason(nodes: Nodes) -> None:
    s1 = nodes.root()
    s1.rows("select cascade.add_member('q', 'n' || g, 'leaf') from generate_series(2, 99) as g")
    with refused("QC208", "has had 99 members"):
        s1.rows("select cascade.add_member('q', 'n100', 'leaf')")
    s1.rows("select cascade.drop_member('q', 'n7')")
    s1.rows("select cascade.add_member('q', 'n7', 'leaf', again => true)")
