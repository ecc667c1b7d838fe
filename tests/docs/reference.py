"""Print docs/reference/sql.md from the catalogue and docs/reference/cli.md from the commands.

usage: python -m tests.docs.reference

Signatures, descriptions, columns and errors come from a database with the schema, the longer
descriptions from the comments at the top of sql/functions.  What the catalogue cannot know stands
below: what a second call does, and what a column means.  A test fails when something is missing here.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psycopg

from cascade.cli.main import main as cli
from cascade.sql import read_folder
from tests.docs.markdown import TOP
from tests.fixtures.backend import labels, start
from tests.fixtures.database import Database
from tests.fixtures.supply import choose

SQL_PAGE = TOP / "docs" / "reference" / "sql.md"
CLI_PAGE = TOP / "docs" / "reference" / "cli.md"
NOTE = "<!-- Printed by `python -m tests.docs.reference`; do not edit. -->\n"

#: The functions by purpose: (heading, who may call them, name -> what a second call does).
FUNCTIONS: list[tuple[str, str, dict[str, str]]] = [
    (
        "Queues",
        "Operators: the owner of the schema and members of `cascade_admin`.",
        {
            "create_queue": "The same options: returns false and changes nothing. Other options: raises QC201.",
            "alter_queue": "Sets the same options again: nothing changes.",
            "drop_queue": "Raises QC101, for the queue is gone.",
        },
    ),
    (
        "Producing",
        "Roles that `grant_producer` was called for, and the owner of the schema.",
        {
            "post": "Inserts another event. With `id`: raises QC205, for a reserved id is used once.",
            "post_many": "Inserts the events once more, with new ids.",
            "reserve_id": "Hands out another id.",
            "payload_limit": "Returns the same number, unless the option was changed.",
            "find_equivalent": "Returns the same, and what was posted meanwhile.",
            "begin_staging": "Begins another; with a name it takes over, or returns null once that was published.",
            "stage": "Changes nothing, for the rows are counted.",
            "publish_staging": "Returns the same number; the events are in the log once.",
            "drop_staging": "Returns false.",
        },
    ),
    (
        "Consuming",
        "Roles that `grant_consumer` was called for, and operators.",
        {
            "subscribe": "Changes nothing and returns where the consumer stands now; `at` is not looked at.",
            "unsubscribe": "Returns false.",
            "seek": "Puts the consumer on the place named, whatever it did meanwhile.",
            "next_batch": "Returns the same batch until it is finished, given back or its lease has run out;"
            " with `finish`, the batch that the first call took.",
            "batch_events": "Returns the same events while the batch is open.",
            "finish_batch": "Returns where the consumer stands now. With `once => true`: raises QC204.",
            "renew_batch": "Extends the lease again, from now.",
            "release_batch": "Raises QC203, for the batch is no longer the caller's.",
            "retry_event": "Moves the time; the attempt stays the same.",
            "tick_channel": "Returns the same name.",
        },
    ),
    (
        "Working",
        "Roles that `grant_consumer` was called for, and operators; a claim is its consumer's alone.",
        {
            "claim": "Hands out other messages.",
            "consume": "Hands out other messages.",
            "complete": "Raises QC217, for the claim is over or holds those messages no more.",
            "complete_and_claim": "Raises QC217, as `complete` does, and claims nothing.",
            "fail": "Raises QC217, for the claim holds the message no more.",
            "bury": "Raises QC217, for the claim holds the message no more.",
            "release": "Raises QC217, for the claim is over or holds those messages no more.",
            "extend": "Extends the lease again, from now.",
            "peek": "Shows the same messages, unless somebody claimed them.",
            "take": "Raises QC219 while somebody has it; no row once all are done with it.",
            "cancel": "Returns false.",
            "work_messages": "Lists what is so now.",
            "work_result": "Returns what is so now.",
            "work_attempts": "Lists what is so now.",
            "dead_messages": "Lists what is so now.",
            "replay": "Returns 0, for they are no longer dead.",
            "purge_dead": "Returns 0.",
            "purge_work": "Returns 0, unless new ones came.",
            "retry_message": "Returns 0.",
            "bury_message": "Returns 0.",
            "release_message": "Returns 0, unless somebody claimed them again.",
            "alter_consumer": "Changes nothing.",
            "why": "Returns what is so now.",
            "work_channel": "Returns the same name.",
        },
    ),
    (
        "Looking after work",
        "Operators: the owner of the schema, members of `cascade_admin` and of `cascade_node`. The daemon calls these.",
        {
            "dispatch_work": "Returns no row until there are new events.",
            "tend_work": "Looks again.",
            "next_work_due": "Returns the same until something is due, posted or done.",
            "work_channels": "Returns the same, until somebody subscribes.",
        },
    ),
    (
        "Ticks and rotation",
        "Operators: the owner of the schema, members of `cascade_admin` and of `cascade_node`.",
        {
            "tick": "Makes another tick, without events if none came meanwhile.",
            "make_ticks": "Returns no row until another tick is due.",
            "rotate": "Takes the next step.",
            "arm_ticker": "Changes nothing and counts the writers again.",
            "disarm_ticker": "Changes nothing.",
            "version": "Returns the same number.",
        },
    ),
    (
        "Ranges of ticks",
        "Operators and members of `cascade_node`. For readers that keep their own place, as Spark does.",
        {
            "find_tick": "Returns the same, but `latest` the newest tick there is now.",
            "range_ticks": "Returns the same while the range is held.",
            "range_query": "Returns the same while the range is held: so a reader learns that nothing went meanwhile.",
        },
    ),
    (
        "Sets and members",
        "The owner of the schema and members of `cascade_admin`; `add_member` also members of `cascade_node`.",
        {
            "create_set": "Returns the same uid; a new location is published. For another node: raises QC207.",
            "add_member": "Changes nothing but the location, and returns the same.",
            "drop_member": "Returns false.",
            "mark_dead": "Returns false.",
        },
    ),
    (
        "Nodes",
        "Operators and members of `cascade_node`. Daemons call these; people use `cascade node`.",
        {
            "create_node": "Returns false when the node is there; for another node: raises QC207.",
            "readmit_node": "Raises the generation again.",
            "set_provider": "Raises the generation again.",
            "pause_node": "Raises the generation again.",
            "resume_node": "Raises the generation again.",
            "set_processing": "Returns false.",
            "note_error": "Changes nothing.",
            "note_answer": "Changes nothing.",
            "raise_generation": "Raises it again.",
            "node_generation": "Returns the same number until something is changed.",
            "describe_node": "Returns the same until something is copied or changed.",
            "join_provider": "Returns the answer anew; terms are stored once.",
            "register_subscriber": "Returns a tick anew, and holds that.",
            "forget_subscriber": "Returns false.",
            "fetch_copy": "Returns the same ticks, and those made meanwhile.",
            "next_copy": "Returns the same ticks, and those made meanwhile.",
            "check_copy": "Looks again.",
            "begin_copy": "Returns the same partition, in the same transaction.",
            "finish_copy": "Raises QC901, for the ticks no longer follow.",
            "finish_leaf_copy": "Raises QC901, for the ticks no longer follow.",
            "store_copy": "Raises QC209, for the node stands further now.",
            "create_merge_leaf": "Returns false when the node is there.",
            "describe_merge": "Returns what is so now.",
            "begin_merge": "Returns the same, in the same transaction.",
            "finish_merge": "Raises QC901, for the ticks no longer follow.",
            "store_merge": "Raises QC209, for the node stands further now.",
            "tell_merge": "Returns 0: the greatest position counts, and a term of the combined set begins once.",
            "own_fork": "Returns the same until the node has gone back there.",
            "note_tracker": "Changes nothing.",
            "tell": "Returns 0: the greatest position counts.",
            "report": "Returns what is so now.",
            "advance_watermark": "Publishes nothing unless the watermark can move.",
        },
    ),
    (
        "Reigns",
        "The owner of the schema and members of `cascade_admin`; what daemons do by themselves also members of"
        " `cascade_node`. People use `cascade plan`, `apply`, `switchover` and `failover`.",
        {
            "describe_set": "Returns what is so now.",
            "begin_operation": "Returns the same operation. Another one: raises QC210.",
            "raise_fence": "Changes nothing.",
            "drop_fence": "Returns false.",
            "offer": "Returns the same offer.",
            "take_handover": "Returns the same, to the node that took it.",
            "withdraw_handover": "Raises QC209, for it is withdrawn.",
            "note_withdrawn": "Returns false.",
            "next_term_number": "Returns the same until a term or a ballot is heard of.",
            "open_ballot": "Returns false.",
            "close_ballot": "Returns false.",
            "promote": "With the same uid: returns what the first call made.",
            "renew_term": "Returns false.",
            "exchange_terms": "Returns the terms anew.",
            "stand_down": "Returns the same.",
            "complete_fence": "Returns false.",
            "name_writers": "Returns what is so now.",
            "demote": "Returns the same.",
            "root_duty": "Returns what is to be done now.",
            "heir_duty": "Returns what is to be done now.",
            "store_document": "Raises QC209, for the revision has moved.",
            "resolve": "Changes nothing.",
        },
    ),
    (
        "Closing the books",
        "The owner of the schema and members of `cascade_admin`; reports also members of `cascade_node`. People use"
        " `cascade resurrect`, `quarantine` and `certificate`.",
        {
            "list_chains": "Returns the same, and newer ticks.",
            "last_common": "Returns the same.",
            "set_aside": "Goes on with what is left.",
            "resurrect": "Changes nothing.",
            "reset_leaf": "Changes nothing.",
            "read_quarantine": "Returns the same.",
            "quarantine_keys": "Returns the same.",
            "find_logged": "Returns what is so now.",
            "note_duplicates": "Returns 0.",
            "republish": "Returns the same id; the event is in the log once.",
            "settle_quarantine": "Returns 0.",
            "certificate_report": "Returns what is so now.",
            "amend_certificate": "Changes nothing unless the report did.",
            "declare_destroyed": "Changes nothing.",
        },
    ),
    (
        "Moving consumers",
        "Operators and members of `cascade_node`. `cascade consumer move` calls these, in this order.",
        {
            "move_consumer": "Returns the same, also when the consumer has left. To another node: raises QC213.",
            "accept_consumer": "Changes nothing and returns the same, with `is_new` false, whatever came after.",
            "finish_move": "Returns false.",
            "refuse_consumer": "Returns the same.",
            "cancel_move": "Raises QC209, for the consumer is no longer being moved.",
        },
    ),
    (
        "Comparing copies",
        "Operators and members of `cascade_node`; `repair_log` and `read_repair` only the owner of the schema and"
        " members of `cascade_admin`. `cascade spark reconcile`, `cascade spark audit` and `cascade repair` call"
        " these.",
        {
            "measure_log": "Returns what is so now.",
            "digest_spans": "Returns the same as long as the events are held.",
            "digest_ticks": "Returns the same as long as the events are held.",
            "digest_events": "Returns the same as long as the events are held.",
            "read_log": "Returns the same as long as the events are held.",
            "read_ticks": "Returns the same as long as the ticks are held.",
            "repair_log": "With the same plan: changes nothing, and returns what the first call did.",
            "read_repair": "Returns the same.",
            "merge_marks": "Returns the same as long as the range is held.",
        },
    ),
    (
        "Access",
        "Operators: the owner of the schema and members of `cascade_admin`.",
        {
            "grant_producer": "Changes nothing; with `returning_id => true` it adds that right.",
            "revoke_producer": "Changes nothing.",
            "grant_consumer": "Changes nothing.",
            "revoke_consumer": "Changes nothing.",
        },
    ),
]

#: How many paragraphs of a function's comment are for callers; the others are for whoever changes it.
PARAGRAPHS = {"post": 1, "batch_events": 1, "grant_producer": 1}

#: Errors of a helper that a function calls in a way which cannot raise them.
NOT_RAISED = {
    "batch_events": {"QC501"},  # the isolation level is asked for only where the consumer is moved
    "create_queue": {"QC003", "QC901"},  # the name was checked, and a new queue has no ticks to lose
}

COLUMNS = {
    "staged_jobs": {
        "queue": "the queue",
        "job": "its name; null for one that has none",
        "begun_by": "the role that began it",
        "begun_at": "when that was",
        "published_at": "when its rows were published; null until then",
        "events": "how many those were",
    },
    "queues": {
        "queue": "its name",
        "created_at": "when it was made",
        "term": "the number of its term; 0 for the first",
        "last_tick": "the newest tick",
        "last_tick_at": "when that was made",
        "events_ticked": "events in all ticks so far, those rotated away included",
        "ids_after_tick": "ids taken since the last tick: events that wait, and gaps left by rollbacks",
        "consumers": "how many are subscribed",
        "bytes": "what its events take on disk, indexes and TOAST included",
        "options": "all options with their values",
    },
    "ticks": {
        "queue": "the queue",
        "tick_id": "its id",
        "prev_tick": "the tick before it; null for the first",
        "time": "when it was made",
        "low": "the oldest transaction that was open, on the queue's clock",
        "high": "the first transaction not yet begun, on the queue's clock",
        "open": "the transactions in between that were open",
        "event_seq": "the highest event id handed out",
        "events": "events in the batch that ends here; null for the first tick held",
        "total": "events in all batches up to here",
        "term_uid": "the term it was made in",
        "chain": "a hash over all ticks up to here: equal chains mean equal histories",
        "gen": "the generation that received events",
        "gen_low": "the oldest generation that may hold events of later batches",
    },
    "consumers": {
        "queue": "the queue",
        "consumer": "its name",
        "tick_id": "everything up to this tick is finished",
        "lag_ticks": "ticks after that",
        "lag_events": "events after that, up to the last tick",
        "lag_seconds": "age of that tick, or 0 when no event follows it",
        "open_batches": "batches handed out or given back, and not finished",
        "workers": "the workers that hold them",
        "retries": "events put back for later",
        "last_seen": "when its state last changed",
    },
    "rotation": {
        "queue": "the queue",
        "generation": "the generation that receives events",
        "slots": "how many partitions take turns",
        "oldest_generation": "the oldest generation not emptied",
        "switched_at": "when the newest generation began",
        "next_switch": "when the next one is due",
        "bytes_held": "what the older generations take on disk",
        "blocked_by": "what keeps the oldest one: step, tick, transaction, consumer, watermark, subscriber or lock",
        "blocker": "who that is",
        "pid": "its backend, if it is one",
        "age": "how long its transaction is open, if the owner of the schema may see that",
        "query": "its last statement, likewise",
        "detail": "the same as a sentence",
    },
    "nodes": {
        "set": "the set, and its queue",
        "node": "this database's node in it",
        "role": "root, branch or leaf",
        "provider": "the node it copies from; null for the root",
        "root": "the node that is the root, as far as is known here",
        "state": "running, paused or fenced, or the answer that stops it",
        "answer": "what its provider said at the last join",
        "answer_detail": "the same as a sentence",
        "answered_at": "when that was",
        "error": "what stops its handler now",
        "error_at": "since when",
        "generation": "raised by every switch, pause, drop and learned term",
        "term": "the number of the term of its last tick",
        "term_uid": "the uid of that term",
        "tick_id": "its last tick: where it stands",
        "tick_at": "when the root made that",
        "tick_age_seconds": "how long ago that is",
        "events": "events in all ticks up to there",
        "events_per_second": "over the last ten seconds",
        "chain": "the chain of its last tick",
        "watermark": "the global watermark as it is known here; null on a leaf",
        "held_by": "at the root: the member that is furthest behind, if one is",
        "held_since": "when the tick was made on which that one stands",
        "held_bytes": "what older generations take on disk here",
        "bytes": "what the events take on disk here",
        "set_uid": "tells sets of one name apart",
        "queue_id": "the queue's number in this database",
        "file_provider": "the provider that the topology file asked for when it was last obeyed",
        "fence": "why this root refuses inserts; null while it reigns",
    },
    "members": {
        "set": "the set",
        "node": "the member",
        "node_no": "its number, never given to another",
        "role": "root, branch or leaf",
        "state": "live, dead or dropped",
        "generation": "the generation it last told, or that it was added with",
        "tick_id": "where it stands, its movable consumers counted, as far as is known here",
        "told_at": "when it said so, by its own clock",
        "heard_at": "when that was heard here",
        "is_here": "whether it is this database's own node",
        "is_waiting": "whether its rotation waits for the global watermark",
        "since_tick": "the global watermark when it was added",
        "changed_at": "when the root last changed it",
        "location": "where it is: the name of its database, and a DSN without a password",
    },
    "locations": {
        "set": "the set",
        "node": "a live member",
        "role": "its role",
        "database": "the name of its database in topology files",
        "dsn": "how to reach it; variables are not replaced",
    },
    "terms": {
        "set": "the set",
        "number": "the number of the term, which ids of events and ticks contain",
        "uid": "tells terms apart for ever",
        "node": "whose reign it is",
        "parent_uid": "the term it followed; null for the first",
        "fork_tick": "the last tick of that term that counts",
        "cause": "why it began",
        "reason": "what the operator said about it",
        "at": "when it began",
    },
    "certificates": {
        "set": "the set",
        "number": "counts the set's failovers",
        "state": "open until every carrier that was missing has been read or declared destroyed",
        "term_uid": "the term whose end may be lost",
        "new_uid": "the term that followed it",
        "fork_tick": "the last tick of the lost term that counts",
        "cause": "failover, rewind, or conflict: an operator kept another term than the lost one",
        "reason": "what the operator said about it",
        "fenced_by": "how the operator knew that nobody wrote to the old root",
        "pending": "carriers that were neither read nor declared destroyed",
        "tail": "events that those had beyond the fork, each counted once",
        "republished": "those that are in the log again",
        "discarded": "those that an operator gave up",
        "duplicates": "those that were there already",
        "held": "those in quarantine",
        "phantoms": "consumers and leaves that had processed some of them",
        "opened_at": "when the failover was",
        "closed_at": "when the last carrier was read",
        "certificate": "all of it, with evidence and reports",
    },
    "quarantine": {
        "set": "the set",
        "term_uid": "the term in which the events were accepted",
        "state": "held, republished, discarded or duplicate; control events are kept as control",
        "events": "how many",
        "first_id": "the lowest id",
        "last_id": "the highest id",
        "first_time": "when the oldest was published",
        "last_time": "when the newest was",
    },
    "repairs": {
        "repair_id": "their order in this database",
        "set": "the set",
        "node": "this database's node",
        "plan": "the plan that was applied",
        "provider": "the node whose log it was made equal to",
        "from_tick": "the repaired ticks come after this one",
        "to_tick": "and go up to this one",
        "removed": "events that were taken out",
        "added": "events that were put in",
        "ticks": "ticks that were taken out or replaced",
        "consumers": "who had passed those ticks, and so does not see what was put in",
        "by_role": "by whom",
        "at": "when",
    },
    "work": {
        "queue": "the queue",
        "consumer": "the consumer",
        "waiting": "messages that could be handed out, plain ones included",
        "urgent": "those of class 1 that are rows",
        "high": "those of class 2",
        "normal": "those of class 3",
        "low": "those of class 4",
        "plain": "those without options, which are no rows",
        "undispatched": "events that are ticked and not dispatched yet, matching or not",
        "delayed": "messages that are not due, retries included",
        "blocked": "messages that wait for others; `cascade.why()` says for which",
        "active": "messages in the hands of workers",
        "dead": "messages that failed too often, or were buried",
        "oldest_at": "since when the oldest waits",
        "next_due": "when the next of the delayed is due",
        "workers": "who has claims, where they gave a name",
        "selector": "which events it takes; null: all",
        "options": "what `cascade.alter_consumer()` and `subscribe` set; the others have their defaults",
    },
    "work_stats": {
        "queue": "the queue",
        "consumer": "the consumer",
        "done_minute": "messages completed in the last minute",
        "done_hour": "those completed in the last hour",
        "failed_hour": "attempts that failed in the last hour",
        "lost_hour": "attempts whose worker vanished in the last hour",
        "dead_hour": "messages that died in the last hour, and still lie there",
        "expired_hour": "messages that expired in the last hour",
        "wait_seconds": "how long plain messages completed in the last hour had waited, on average",
        "work_seconds": "how long those completed in the last hour had been in hand, on average",
        "expired": "messages that ever expired",
        "unreadable": "events that a selector could not read, ever: they are not delivered",
        "misoptioned": "events whose options made no sense, ever: they are delivered without",
    },
    "journal": {
        "journal_id": "their order in this database",
        "set": "the set",
        "node": "this database's node",
        "op_id": "the operation it belongs to, if any",
        "step": "what was done",
        "detail": "to what",
        "by_role": "by whom",
        "at": "when",
    },
}

FIND_FUNCTIONS = """
    select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
      from pg_proc as p
     where p.pronamespace = 'cascade'::regnamespace
     order by p.proname"""
FIND_BODIES = """
    select p.pronamespace::regnamespace || '.' || p.proname, pg_get_functiondef(p.oid)
      from pg_proc as p
     where p.pronamespace in ('cascade'::regnamespace, 'cascade_internal'::regnamespace)"""
FIND_VIEWS = "select c.relname, obj_description(c.oid, 'pg_class') from pg_class as c where c.oid = any(%s::regclass[])"
FIND_COLUMNS = """
    select a.attname, format_type(a.atttypid, a.atttypmod)
      from pg_attribute as a
     where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
     order by a.attnum"""


def sql_page(conn: psycopg.Connection[Any]) -> str:
    """Return the page about schema `cascade`, as it is installed in a database."""
    found = {row[0]: row[1:] for row in conn.execute(FIND_FUNCTIONS).fetchall()}
    listed = {name for _, _, names in FUNCTIONS for name in names}
    assert listed == set(found), f"FUNCTIONS and the catalogue differ: {sorted(listed ^ set(found))}"
    comments, errors = file_comments(), function_errors(conn)
    parts = [NOTE, "# SQL reference\n", INTRODUCTION]
    for heading, callers, names in FUNCTIONS:
        parts.append(f"## {heading}\n\n{callers}\n")
        for name, again in names.items():
            parts += function_section(name, *found[name], comments.get(name, []), again, errors[f"cascade.{name}"])
    parts.append(
        "## Views\n\nOperators see everything. Consumers see their own in `queues`, `consumers`, `work` and others.\n"
    )
    for name, meanings in COLUMNS.items():
        parts += view_section(conn, name, meanings)
    return "\n".join(parts)


INTRODUCTION = """\
Everything here is in the schema `cascade`. Arguments can be passed by name, as in
`cascade.finish_batch(batch_id => 7)`. Errors carry an SQLSTATE of class `QC` and a hint; those a function can raise
are listed with it, and [Find out what is wrong](../howto/troubleshoot.md) says what to do about each. A role without
any right to a function gets PostgreSQL's own error 42501. The words are explained in the [glossary](../glossary.md).
"""


def function_section(
    name: str, arguments: str, result: str, comment: str, paragraphs: list[str], again: str, errors: set[str]
) -> Iterator[str]:
    """Yield the lines about one function."""
    yield f"### {name}\n"
    yield f"```sql\n{signature(name, arguments, result)}\n```\n"
    yield f"{comment}\n"
    kept = paragraphs[: PARAGRAPHS.get(name, len(paragraphs))]
    yield from (f"{paragraph}\n" for paragraph in kept)
    yield f"**Called again:** {again}\n"
    raised = sorted(errors - NOT_RAISED.get(name, set()))
    yield f"**Errors:** {', '.join(raised) if raised else 'none of its own'}.\n"


def signature(name: str, arguments: str, result: str) -> str:
    """Return a declaration, broken into lines where it is long."""
    arguments = re.sub(r" DEFAULT NULL::[\w\[\]]+", " default null", arguments).replace(" DEFAULT ", " default ")
    arguments = re.sub(r"('[^']*')::\w+", r"\1", arguments)
    line = f"cascade.{name}({arguments}) returns {result.replace('TABLE', 'table ').replace('SETOF', 'setof')}"
    if len(line) <= 110:
        return line
    lines = ",\n".join(f"    {argument}" for argument in arguments.split(", "))
    head = f"cascade.{name}(\n{lines})" if len(arguments) > 80 else f"cascade.{name}({arguments})"
    return f"{head}\nreturns {result.replace('TABLE', 'table ')}"


def view_section(conn: psycopg.Connection[Any], name: str, meanings: dict[str, str]) -> Iterator[str]:
    """Yield the lines about one view."""
    [(_, comment)] = conn.execute(FIND_VIEWS, ([f"cascade.{name}"],)).fetchall()
    columns = conn.execute(FIND_COLUMNS, (f"cascade.{name}",)).fetchall()
    assert [column for column, _ in columns] == list(meanings), f"COLUMNS and the view {name} differ"
    yield f"### {name}\n"
    yield f"{comment}\n"
    yield "| column | type | meaning |\n|---|---|---|"
    yield from (f"| {column} | {kind} | {meanings[column]} |" for column, kind in columns)
    yield ""


def function_errors(conn: psycopg.Connection[Any]) -> dict[str, set[str]]:
    """Return the codes each function can raise, itself or through the functions it calls."""
    bodies: dict[str, str] = {}
    for name, body in conn.execute(FIND_BODIES).fetchall():
        bodies[name] = bodies.get(name, "") + re.sub(r"--[^\n]*", "", body)
    found = {name: set(re.findall(r"'(QC\d{3})'", body)) for name, body in bodies.items()}
    calls = {
        name: set(re.findall(r"\bcascade_internal\.\w+(?=\()", body)) & set(bodies) for name, body in bodies.items()
    }
    while True:
        wider = {name: found[name].union(*(found[callee] for callee in calls[name])) for name in found}
        if wider == found:
            return found
        found = wider


def file_comments() -> dict[str, list[str]]:
    """Return the paragraphs that stand above a function in sql/functions, as markdown."""
    found = {}
    for _, text in read_folder("functions"):
        for block in re.findall(r"(?:^--[^\n]*\n)+", text, re.M):
            lines = [line[2:].removeprefix(" ") for line in block.splitlines()]
            if match := re.match(r"cascade\.(\w+)\(", lines[0]):
                found[match[1]] = [paragraph(part) for part in "\n".join(lines).split("\n\n")]
    return found


def paragraph(text: str) -> str:
    """Return one paragraph; an indented table becomes a list."""
    if text.startswith("    "):
        items = [line.strip().split(None, 1) for line in text.splitlines()]
        return "\n".join(f"- **{word}**: {meaning}" for word, meaning in items)
    text = re.sub(r"\s+", " ", text)
    return re.sub(r"(^cascade\.\w+\([^)]*\)|\S+<\w+>|\w+ => \w+)", r"`\1`", text)


def cli_page() -> str:
    """Return the page about the command line: every command's own help."""
    parts = [NOTE, "# Command line reference\n", "What `--help` prints, for every command.\n"]
    for context in walk(cli, "cascade", None):
        path, text = context.command_path, re.sub(r"[ \t]+$", "", context.get_help(), flags=re.M)
        parts.append(f"{'#' * min(2 + path.count(' '), 4)} {path}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Yield the context of a command and of all below it, those hidden left out."""
    context = click.Context(command, parent, info_name=name, terminal_width=100, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            if child is not None and not child.hidden:
                yield from walk(child, below, context)


def write() -> None:
    """Write both pages."""
    with (
        tempfile.TemporaryDirectory() as templates,
        start(labels(choose(os.environ))[0], Path(templates), {}) as backend,
    ):
        with Database.fresh(backend) as database:
            SQL_PAGE.write_text(sql_page(database.main))
    CLI_PAGE.write_text(cli_page())


if __name__ == "__main__":
    write()
