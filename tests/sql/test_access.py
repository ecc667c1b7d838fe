"""Privileges: each role tries everything; a producer of one queue can do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from cascade.sql import migrate
from tests.fixtures.backend import OWNER, PREFIX
from tests.fixtures.database import Database
from tests.fixtures.expect import refused
from tests.fixtures.roles import add_to, role_on


@pytest.fixture
def role(db: Database) -> Iterator[str]:
    """A role with no rights."""
    with role_on(db) as name:
        yield name


@pytest.fixture
def db(db: Database) -> Database:
    for name in ("q", "other"):
        db.queue(name)
        db.rows("select cascade.subscribe(%s, 'c')", name)
        db.rows("select cascade.subscribe(%s, 'w', mode => 'work')", name)
        db.insert("secret", "another", queue=name)
        db.tick(name)
    return db


UID = "00000000-0000-0000-0000-000000000001"
NO_OPTIONS = ", null" * 8
#: Everything the interface offers, as somebody might call it.
CALLS = {
    "post": "cascade.post('{q}', '1')",
    "post_many": "cascade.post_many('{q}', array['1']::json[])",
    "reserve_id": "cascade.reserve_id('{q}')",
    "payload_limit": "cascade.payload_limit('{q}')",
    "find_equivalent": "cascade.find_equivalent('{q}', null, '1')",
    "subscribe": "cascade.subscribe('{q}', 'c')",
    "unsubscribe": "cascade.unsubscribe('{q}', 'nobody')",
    "seek": "cascade.seek('{q}', 'c', 'earliest')",
    "next_batch": "cascade.next_batch('{q}', 'c')",
    "batch_events": "cascade.batch_events((select max(id) from batches where queue = '{q}'))",
    "finish_batch": "cascade.finish_batch((select max(id) from batches where queue = '{q}'))",
    "renew_batch": "cascade.renew_batch((select max(id) from batches where queue = '{q}'), '1 s')",
    "release_batch": "cascade.release_batch((select max(id) from batches where queue = '{q}'))",
    "retry_event": "cascade.retry_event((select max(id) from batches where queue = '{q}'), 1, '1 s')",
    "tick_channel": "cascade.tick_channel('{q}')",
    "claim": "cascade.claim('{q}', 'w')",
    "consume": "cascade.consume('{q}', 'w')",
    "complete": "cascade.complete((select max(claim) from batches where queue = '{q}'))",
    "complete_and_claim": "cascade.complete_and_claim((select max(claim) from batches where queue = '{q}'))",
    "fail": "cascade.fail((select max(claim) from batches where queue = '{q}'), 1, 'x')",
    "bury": "cascade.bury((select max(claim) from batches where queue = '{q}'), 1)",
    "release": "cascade.release((select max(claim) from batches where queue = '{q}'))",
    "alter_consumer": "cascade.alter_consumer('{q}', 'w', '{{}}')",
    "why": "cascade.why('{q}', 'w', 1)",
    "extend": "cascade.extend((select max(claim) from batches where queue = '{q}'))",
    "peek": "cascade.peek('{q}', 'w')",
    "take": "cascade.take('{q}', 2, '0')",
    "cancel": "cascade.cancel('{q}', 1)",
    "work_messages": "cascade.work_messages('{q}', 'w')",
    "work_result": "cascade.work_result('{q}', 'w', 1)",
    "work_attempts": "cascade.work_attempts('{q}', 'w', 1)",
    "dead_messages": "cascade.dead_messages('{q}', 'w')",
    "replay": "cascade.replay('{q}', 'w')",
    "purge_dead": "cascade.purge_dead('{q}', 'w')",
    "purge_work": "cascade.purge_work('{q}', 'w')",
    "retry_message": "cascade.retry_message('{q}', 'w', '{{1}}')",
    "bury_message": "cascade.bury_message('{q}', 'w', '{{1}}')",
    "release_message": "cascade.release_message('{q}', 'w', '{{1}}')",
    "dispatch_work": "cascade.dispatch_work('{q}')",
    "tend_work": "cascade.tend_work()",
    "next_work_due": "cascade.next_work_due('{q}')",
    "work_channel": "cascade.work_channel('{q}', 'w')",
    "work_channels": "cascade.work_channels()",
    "tick": "cascade.tick('{q}')",
    "make_ticks": "cascade.make_ticks()",
    "arm_ticker": "cascade.arm_ticker()",
    "disarm_ticker": "cascade.disarm_ticker()",
    "rotate": "cascade.rotate('{q}')",
    "version": "cascade.version()",
    "create_queue": "cascade.create_queue('mine')",
    "alter_queue": "cascade.alter_queue('{q}', '{{}}')",
    "drop_queue": "cascade.drop_queue('{q}', true)",
    "grant_producer": "cascade.grant_producer('{q}', current_user::text)",
    "revoke_producer": "cascade.revoke_producer('{q}', current_user::text)",
    "grant_consumer": "cascade.grant_consumer('{q}', 'c', current_user::text)",
    "revoke_consumer": "cascade.revoke_consumer('{q}', 'c', current_user::text)",
    "create_set": "cascade.create_set('{q}', 'mine')",
    "add_member": "cascade.add_member('{q}', 'mine', 'branch')",
    "drop_member": "cascade.drop_member('{q}', 'mine')",
    "mark_dead": "cascade.mark_dead('{q}', 'mine')",
    "create_node": "cascade.create_node('{q}', 'mine', 'branch', 'a', '{{}}', '{{}}', 1)",
    "readmit_node": "cascade.readmit_node('{q}', '{{}}', 1)",
    "set_provider": "cascade.set_provider('{q}', 'mine')",
    "pause_node": "cascade.pause_node('{q}')",
    "resume_node": "cascade.resume_node('{q}')",
    "set_processing": "cascade.set_processing('{q}', true)",
    "note_error": "cascade.note_error('{q}', 'x')",
    "note_answer": "cascade.note_answer('{q}', 1, 'on path', null, '[]')",
    "raise_generation": "cascade.raise_generation('{q}', 1)",
    "node_generation": "cascade.node_generation('{q}')",
    "describe_node": "cascade.describe_node('{q}')",
    "join_provider": "cascade.join_provider('{q}', '{{}}')",
    "register_subscriber": "cascade.register_subscriber('{q}', 'mine', 1)",
    "forget_subscriber": "cascade.forget_subscriber('{q}', 'mine')",
    "fetch_copy": "cascade.fetch_copy('{q}', 'mine', 1, 1, '', 1, 1, 1)",
    "next_copy": "cascade.next_copy('{q}', 'mine', 1, 1, '', 1, 1)",
    "check_copy": "cascade.check_copy('{q}', 'mine', 1, 1, '', 1)",
    "begin_copy": "cascade.begin_copy('{q}', 'mine', 1, 1, '')",
    "finish_copy": "cascade.finish_copy('{q}', '[]')",
    "finish_leaf_copy": "cascade.finish_leaf_copy('{q}', '[]', '[]')",
    "store_copy": "cascade.store_copy('{q}', 'mine', 1, 1, '', '[]'" + ", null" * 9 + ")",
    "create_merge_leaf": "cascade.create_merge_leaf('{q}', 'mine', '{q}', 'a', '{{}}', '{{}}', 1)",
    "describe_merge": "cascade.describe_merge('{q}')",
    "begin_merge": "cascade.begin_merge('{q}', 'mine', 1, 1, '')",
    "finish_merge": "cascade.finish_merge('{q}', '[]', '[]')",
    "store_merge": "cascade.store_merge('{q}', 'mine', 1, 1, '', '[]'" + ", null" * 9 + ")",
    "tell_merge": "cascade.tell_merge('{q}', 'mine', 1, '{{}}', '[]')",
    "own_fork": "cascade.own_fork('{q}')",
    "note_tracker": "cascade.note_tracker('{q}', 1, 'on path', null, '[]', '[]')",
    "tell": "cascade.tell('{q}', 'mine', '[]')",
    "report": "cascade.report('{q}')",
    "advance_watermark": "cascade.advance_watermark('{q}')",
    "describe_set": "cascade.describe_set('{q}')",
    "begin_operation": f"cascade.begin_operation('{{q}}', '{UID}', 'switchover', 'mine')",
    "raise_fence": f"cascade.raise_fence('{{q}}', '{UID}')",
    "drop_fence": f"cascade.drop_fence('{{q}}', '{UID}')",
    "complete_fence": "cascade.complete_fence('{q}')",
    "name_writers": "cascade.name_writers('{q}')",
    "offer": f"cascade.offer('{{q}}', '{UID}', 'mine', '{UID}')",
    "take_handover": f"cascade.take_handover('{{q}}', '{UID}', 'mine', 1, '')",
    "withdraw_handover": f"cascade.withdraw_handover('{{q}}', '{UID}')",
    "note_withdrawn": f"cascade.note_withdrawn('{{q}}', '{UID}')",
    "next_term_number": "cascade.next_term_number('{q}')",
    "renew_term": "cascade.renew_term('{q}')",
    "open_ballot": f"cascade.open_ballot('{{q}}', 101, '{UID}', 'mine', 1, '')",
    "close_ballot": f"cascade.close_ballot('{{q}}', 101, '{UID}')",
    "promote": f"cascade.promote('{{q}}', '{UID}', 101, 'failover', 1, '')",
    "demote": "cascade.demote('{q}', 'mine')",
    "exchange_terms": "cascade.exchange_terms('{q}', '[]')",
    "stand_down": "cascade.stand_down('{q}')",
    "root_duty": "cascade.root_duty('{q}')",
    "heir_duty": "cascade.heir_duty('{q}')",
    "list_chains": "cascade.list_chains('{q}')",
    "last_common": "cascade.last_common('{q}', '[]')",
    "set_aside": "cascade.set_aside('{q}', '{{}}')",
    "resurrect": "cascade.resurrect('{q}', '{{}}', 'mine')",
    "reset_leaf": "cascade.reset_leaf('{q}', '{{}}')",
    "quarantine_keys": "cascade.quarantine_keys('{q}')",
    "find_logged": "cascade.find_logged('{q}', '[]')",
    "note_duplicates": "cascade.note_duplicates('{q}', '[]')",
    "certificate_report": f"cascade.certificate_report('{{q}}', '{UID}')",
    "amend_certificate": f"cascade.amend_certificate('{{q}}', '{UID}', '{{{{}}}}')",
    "declare_destroyed": f"cascade.declare_destroyed('{{q}}', '{UID}', 'mine', 'gone')",
    "republish": f"cascade.republish('{{q}}', '{UID}', 1, '{{{{}}}}')",
    "read_quarantine": "cascade.read_quarantine('{q}')",
    "settle_quarantine": f"cascade.settle_quarantine('{{q}}', '{UID}', '{{{{1}}}}', 'discarded')",
    "store_document": "cascade.store_document('{q}', 0, '{{}}')",
    "resolve": f"cascade.resolve('{{q}}', '{UID}', 'x')",
    "move_consumer": "cascade.move_consumer('{q}', 'c', 'mine')",
    "accept_consumer": "cascade.accept_consumer('{q}', 'c', 1, 'mine', gen_random_uuid())",
    "refuse_consumer": "cascade.refuse_consumer('{q}', 'c', 'mine', gen_random_uuid())",
    "finish_move": "cascade.finish_move('{q}', 'c', gen_random_uuid())",
    "cancel_move": "cascade.cancel_move('{q}', 'c', gen_random_uuid())",
    "measure_log": "cascade.measure_log('{q}')",
    "digest_spans": "cascade.digest_spans('{q}', '{{1,2}}')",
    "digest_ticks": "cascade.digest_ticks('{q}', 1, 2)",
    "digest_events": "cascade.digest_events('{q}', 1, 2)",
    "read_log": "cascade.read_log('{q}', 1, 2)",
    "read_ticks": "cascade.read_ticks('{q}', 1, 2)",
    "repair_log": f"cascade.repair_log('{{q}}', 'mine', '{UID}', '[]', '{{{{}}}}')",
    "read_repair": f"cascade.read_repair('{{q}}', '{UID}')",
    "begin_staging": "cascade.begin_staging('{q}')",
    "stage": "cascade.stage(cascade.begin_staging('{q}'), 0, 0, 0, '{{t}}', '{{k}}', '{{1}}', '{{null}}')",
    "publish_staging": "cascade.publish_staging(cascade.begin_staging('{q}'), '{{}}', '{{}}', '{{}}')",
    "drop_staging": "cascade.drop_staging(cascade.begin_staging('{q}'))",
    "merge_marks": "cascade.merge_marks('{q}', 1, 1)",
    "find_tick": "cascade.find_tick('{q}', 'earliest')",
    "range_ticks": "cascade.range_ticks('{q}', 1, 1)",
    "range_query": "cascade.range_query('{q}', 1, 1)",
}
#: What one daemon asks of another's database; creating and ending members is for operators.
NODE = {
    "add_member", "create_node", "readmit_node", "set_provider", "pause_node", "resume_node", "set_processing",
    "note_error", "note_answer", "raise_generation", "node_generation", "describe_node", "join_provider",
    "register_subscriber", "forget_subscriber", "fetch_copy", "next_copy", "check_copy", "begin_copy", "finish_copy",
    "finish_leaf_copy", "store_copy", "tell", "report", "advance_watermark", "describe_set", "exchange_terms",
    "stand_down", "complete_fence", "name_writers", "root_duty", "heir_duty", "take_handover", "note_withdrawn",
    "next_term_number", "renew_term", "promote", "demote", "quarantine_keys", "find_logged", "note_duplicates",
    "certificate_report", "amend_certificate", "move_consumer", "accept_consumer", "refuse_consumer", "finish_move",
    "cancel_move", "create_merge_leaf", "describe_merge", "begin_merge", "finish_merge", "store_merge", "tell_merge",
    "measure_log", "digest_spans", "digest_ticks", "digest_events", "read_log", "read_ticks",
    "own_fork", "note_tracker", "reset_leaf", "find_tick", "range_ticks", "range_query",
    "dispatch_work", "tend_work", "next_work_due", "work_channels", "merge_marks",
}  # fmt: skip
PRODUCER = {
    "post", "post_many", "reserve_id", "payload_limit", "find_equivalent", "begin_staging", "stage", "publish_staging",
    "drop_staging",
}  # fmt: skip
CONSUMER = {
    "subscribe", "unsubscribe", "seek", "next_batch", "batch_events", "finish_batch", "renew_batch", "release_batch",
    "retry_event", "tick_channel", "claim", "consume", "complete", "complete_and_claim", "fail", "bury", "release",
    "extend", "alter_consumer", "why", "work_channel", "peek", "take", "cancel", "work_messages", "work_result",
    "work_attempts", "dead_messages", "replay", "purge_dead", "purge_work", "retry_message", "bury_message",
    "release_message",
}  # fmt: skip


def outcome(conn: psycopg.Connection[object], statement: str) -> str:
    """Try a statement, take it back, and return `ok` or the SQLSTATE."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(statement.encode())
    except psycopg.Error as error:
        assert error.sqlstate is not None
        return error.sqlstate
    return "ok"


def open_batches(db: Database, conn: psycopg.Connection[object]) -> None:
    """Give a role the ids of open batches and claims: knowing them must not help."""
    conn.execute("create temp table batches (queue text, id bigint, claim bigint)")
    for queue in ("q", "other"):
        batch = db.next(queue=queue)
        assert batch is not None
        claim = db.value("select claim_id from cascade.claim(%s, 'w')", queue)
        conn.execute("insert into batches values (%s, %s, %s)", (queue, batch[0], claim))


def may(db: Database, conn: psycopg.Connection[object], queue: str) -> set[str]:
    """Return the calls that succeed."""
    found = {name: outcome(conn, f"select {call.format(q=queue)}") for name, call in CALLS.items()}
    refusals = {state for state in found.values() if state != "ok"}
    # QC203, QC217: a batch or a claim of somebody else is just not open; whose it is stays unsaid.
    assert refusals <= {"42501", "QC301", "QC203", "QC217"}, found
    return {name for name, state in found.items() if state == "ok"}


def test_every_function_is_tried(db: Database) -> None:
    known = {row[0] for row in db.rows("select proname from pg_proc where pronamespace = 'cascade'::regnamespace")}
    assert known == set(CALLS)


def test_nobody_may_do_anything_by_default(db: Database, role: str) -> None:
    conn = db.connect(role)
    open_batches(db, conn)
    assert may(db, conn, "q") == set()


def test_a_producer_may_post_to_its_queue_and_nothing_else(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    db.rows("select cascade.grant_producer('q', %s)", role)
    conn = db.connect(role)
    open_batches(db, conn)
    assert may(db, conn, "q") == PRODUCER
    assert may(db, conn, "other") == set()
    conn.execute("insert into queue.q (type, key, payload, headers) values ('t', 'k', '1', '{}')")
    with conn.cursor() as cur, cur.copy("copy queue.q (payload) from stdin") as copy:
        copy.write_row(("2",))
    db.rows("select cascade.revoke_producer('q', %s)", role)
    assert may(db, conn, "q") == set()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("insert into queue.q (payload) values ('1')")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into queue.q (id, payload) values (99, '1')",
        "insert into queue.q (time, payload) values (now(), '1')",
        "insert into queue.q (txid, payload) values (1, '1')",
        "insert into queue.q (slot, payload) values ('1', '1')",
        "insert into queue.q (origin, type, payload) values ('.cascade', 'cascade.global-watermark', '1')",
        "insert into queue.q (origin_id, payload) values (1, '1')",
        "insert into queue.q (payload) values ('1') returning id",
        "select * from queue.q",
        "select count(*) from queue.q",
        "update queue.q set payload = '2'",
        "delete from queue.q",
        "truncate queue.q",
        "drop table queue.q",
        "alter table queue.q add x int",
        "create index on queue.q (key)",
        "create trigger x before insert on queue.q execute function suppress_redundant_updates_trigger()",
        "lock table queue.q in share mode",
        "copy queue.q to stdout",
        "insert into queue.other (payload) values ('1')",
        "create table queue.mine (x int)",
        "create function cascade.mine() returns int language sql as 'select 1'",
        "select * from cascade.queues",
        "select * from cascade.ticks",
        "select * from cascade.consumers",
        "select * from cascade.rotation",
        "select * from cascade_internal.queue",
        "select * from cascade_internal.event_1_0",
        "select cascade_internal.cut(1, false)",
        "select cascade_internal.post('other', '1', null, null, null, null, 'cascade_test_owner'"
        ", null, null, null, null, null, null, null, null)",
        "select cascade_internal.wake('cascade_internal.register_1', 3::smallint)",
        "set role cascade_admin",
        "set session authorization cascade_test_owner",
    ],
)
def test_a_producer_cannot(db: Database, role: str, statement: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    conn = db.connect(role)
    assert outcome(conn, statement) in ("42501", "0A000"), statement


def test_a_producer_cannot_move_registers_by_their_oid(db: Database, role: str) -> None:
    """nextval() and setval() take oids, which ask for no right on the schema."""
    db.rows("select cascade.grant_producer('q', %s)", role)
    conn = db.connect(role)
    sequences = db.rows("select oid::int8, relname from pg_class where relkind = 'S' and relname ~ '_[0-9]+$'")
    assert len(sequences) == 10
    own = db.value("select queue_id from cascade_internal.queue where name = 'q'")
    for oid, name in sequences:
        # It may burn ids of its own queue: that leaves a gap, as every rollback does.
        expected = "ok" if name == f"event_id_{own}" else "42501"
        assert outcome(conn, f"select nextval({oid}::regclass)") == expected, name
        assert outcome(conn, f"select setval({oid}::regclass, 5)") == "42501", name


def test_a_forged_control_event_is_an_ordinary_event(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    conn = db.connect(role)
    conn.execute("insert into queue.q (type, payload) values ('cascade.global-watermark', '1')")
    assert db.rows("select origin from queue.q where type like 'cascade.%%'") == [(None,)]


def test_returning_ids_is_granted_apart(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s, returning_id => true)", role)
    conn = db.connect(role)
    assert outcome(conn, "insert into queue.q (payload) values ('1') returning id") == "ok"
    assert outcome(conn, "select payload from queue.q") == "42501"
    db.rows("select cascade.revoke_producer('q', %s)", role)
    assert outcome(conn, "select id from queue.q") == "42501"


def test_a_consumer_may_read_its_queue_under_its_name_and_nothing_else(db: Database, role: str) -> None:
    db.rows("select cascade.grant_consumer('q', 'c', %s)", role)
    db.rows("select cascade.grant_consumer('q', 'w', %s)", role)
    db.rows("select cascade.grant_consumer('q', 'nobody', %s)", role)
    conn = db.connect(role)
    open_batches(db, conn)
    assert may(db, conn, "q") == CONSUMER
    assert may(db, conn, "other") == set()
    for call in ("subscribe('q', 'x')", "next_batch('q', 'other')", "seek('q', 'x', 'now')", "unsubscribe('q', 'x')"):
        with refused("QC301", "may not act as consumer"):
            conn.execute(f"select cascade.{call}".encode())
    assert outcome(conn, "select * from queue.q") == "42501"
    assert conn.execute("select queue from cascade.queues").fetchall() == [("q",)]
    assert conn.execute("select queue, consumer from cascade.consumers").fetchall() == [("q", "c"), ("q", "w")]
    db.rows("select cascade.revoke_consumer('q', 'c', %s)", role)
    with refused("QC301"):
        conn.execute("select cascade.next_batch('q', 'c')")
    db.rows("select cascade.revoke_consumer('q', 'w', %s)", role)
    db.rows("select cascade.revoke_consumer('q', 'nobody', %s)", role)
    assert may(db, conn, "q") == set()


def test_granting_one_thing_takes_no_other(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    db.rows("select cascade.grant_consumer('q', 'c', %s)", role)
    conn = db.connect(role)
    db.rows("select cascade.revoke_consumer('q', 'c', %s)", role)
    assert outcome(conn, "select cascade.post('q', '1')") == "ok"
    db.rows("select cascade.grant_consumer('q', 'c', %s)", role)
    db.rows("select cascade.revoke_producer('q', %s)", role)
    assert outcome(conn, "select cascade.next_batch('q', 'c')") == "ok"


def test_rights_follow_the_role_that_calls(db: Database, role: str) -> None:
    """A function of the application that runs as its owner posts with the owner's right."""
    admin = db.admin()
    caller = f"{role}_caller"
    admin.execute(f"create role {caller} login password 'test'".encode())
    try:
        db.rows("select cascade.grant_producer('q', %s)", role)
        admin.execute("create schema app")
        admin.execute(
            "create function app.order() returns bigint language sql security definer"
            " as $$ select cascade.post('q', '\"by the application\"') $$"
        )
        admin.execute(f"alter function app.order() owner to {role}".encode())
        admin.execute(f"grant usage on schema app, cascade to {caller}".encode())
        conn = db.connect(caller)
        assert outcome(conn, "select cascade.post('q', '1')") == "42501"
        assert outcome(conn, "select app.order()") == "ok"
    finally:
        admin.execute("drop schema app cascade")
        admin.execute(f"drop owned by {caller}".encode())
        admin.execute(f"drop role {caller}".encode())


def test_the_admin_role_may_do_everything_and_the_node_role_its_part(db: Database, role: str) -> None:
    add_to(db, role, "cascade_node")
    conn = db.connect(role)
    open_batches(db, conn)
    node = {"tick", "make_ticks", "arm_ticker", "disarm_ticker", "rotate", "version"}
    allowed = {name for name, call in CALLS.items() if outcome(conn, f"select {call.format(q='q')}") != "42501"}
    assert allowed == node | CONSUMER | NODE
    assert outcome(conn, "select * from cascade.rotation") == "ok"
    add_to(db, role, "cascade_admin")
    assert outcome(conn, "select cascade.create_queue('mine')") == "ok"
    assert outcome(conn, "select cascade.post('q', '1')") == "ok"
    assert outcome(conn, "insert into queue.q (payload) values ('1')") == "ok"
    assert migrate.status(conn).state == "current"
    assert outcome(conn, "select cascade.drop_queue('q', true)") == "ok"


def test_a_daemon_s_role_cannot_pass_itself_off_as_a_producer(db: Database, role: str) -> None:
    """It may use the schema that holds the inner functions, which believe who they are told calls."""
    add_to(db, role, "cascade_node")
    conn = db.connect(role)
    for call in (
        f"cascade_internal.post('q', '1', null, null, null, null, '{OWNER}'{NO_OPTIONS})",
        f"cascade_internal.post_many('q', array['1']::json[], null, null, null, null, null, '{OWNER}'{NO_OPTIONS})",
        f"cascade_internal.reserve_id('q', '{OWNER}')",
        "cascade_internal.cut(1, false)",
        "cascade_internal.post_control((select q from cascade_internal.queue as q limit 1), 'x', '{}')",
    ):
        assert outcome(conn, f"select {call}") == "42501", call


def test_functions_that_run_as_the_owner_fix_their_search_path(db: Database) -> None:
    found = db.rows(
        "select p.oid::regprocedure::text from pg_proc as p"
        " where p.pronamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)"
        " and (p.prosecdef or p.prosqlbody is null)"
        " and not coalesce(p.proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}'"
    )
    assert found == []


def test_objects_in_front_of_the_search_path_deceive_nobody(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    conn = db.connect(role)
    conn.execute(
        "create function pg_temp.now() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$"
    )
    conn.execute("create function pg_temp.txid_current() returns bigint language sql as $$ select 1::bigint $$")
    conn.execute("set search_path = pg_temp, pg_catalog")
    conn.execute("insert into queue.q (type, payload) values ('mine', '1')")
    conn.execute("select cascade.post('q', '1', 'mine')")
    assert db.value("select bool_and(time < now() and txid > 1) from queue.q where type = 'mine'") is True


def test_an_unknown_role_is_named(db: Database) -> None:
    for call in ("grant_producer('q', 'nope')", "revoke_producer('q', 'nope')", "grant_consumer('q', 'c', 'nope')"):
        with refused("QC003", 'there is no role "nope"'):
            db.rows(f"select cascade.{call}")


def test_the_owner_and_the_roles_of_the_installation_keep_their_rights(db: Database) -> None:
    for name in (OWNER, "cascade_admin", "cascade_node"):
        for call in ("revoke_producer('q', %s)", "revoke_consumer('q', 'c', %s)", "grant_producer('q', %s)"):
            with refused("QC003", "has its rights from the installation"):
                db.rows(f"select cascade.{call}", name)
    db.tick()


def test_a_reserved_id_belongs_to_the_role_that_reserved_it(db: Database, role: str) -> None:
    db.rows("select cascade.grant_producer('q', %s)", role)
    reserved = db.value("select cascade.reserve_id('q')")
    with refused("QC205"):
        db.connect(role).execute("select cascade.post('q', '1', id => %s)", (reserved,))
    assert db.value("select cascade.post('q', '1', id => %s)", reserved) == reserved


def test_hostile_role_names_are_quoted(db: Database) -> None:
    with role_on(db, name=f'{PREFIX}Bob "x"; {db.name}') as name:
        db.rows("select cascade.grant_producer('q', %s)", name)
        db.rows("select cascade.grant_consumer('q', 'c', %s)", name)
        db.rows("select cascade.revoke_consumer('q', 'c', %s)", name)
        db.rows("select cascade.revoke_producer('q', %s)", name)


def test_no_message_of_ours_contains_a_secret(db: Database) -> None:
    sources = "\n".join(row[0] for row in db.rows("select prosrc from pg_proc where proname = 'grant_producer'"))
    assert not re.search("password", sources)
