"""cascade quarantine: events that a lost root had and nobody else, and what is to become of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import click

from cascade.cli import JSON_OPTION, operate
from cascade.cli import output as out
from cascade.cli.asking import answering, ask, run, with_ids
from cascade.cli.operate import TIMEOUT_OPTION
from cascade.cli.status import FILE_OPTION

if TYPE_CHECKING:
    from cascade.node.survey import Links

LIST: LiteralString = (
    "select coalesce(jsonb_agg(to_jsonb(q) - 'set'), '[]') from cascade.quarantine as q where q.set = %s"
)
READ: LiteralString = (
    "select coalesce(jsonb_agg(to_jsonb(r) order by r.id), '[]') from cascade.read_quarantine(%s, %s, %s, %s, %s) as r"
)
#: In the order of the page, and in one transaction: they keep their order in the log, and a page waits for one flush.
REPUBLISH: LiteralString = (
    "select array_agg(r.new_id order by r.n)"
    "  from (select x.n, cascade.republish(%s, %s, (x.event->>'id')::bigint, x.event) as new_id"
    "          from jsonb_array_elements(%s) with ordinality as x(event, n)) as r"
)
SETTLE: LiteralString = "select cascade.settle_quarantine(%s, %s, %s, %s, %s)"

#: So many events are read and settled at once.
PAGE = 500

SET = click.argument("set_name", metavar="SET")
NODE = click.argument("node_name", metavar="NODE")
TERM = click.option("--term", "term_uid", metavar="UID", help="Only events of this term.")
IDS = click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="Only this event; may be repeated.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say how many it would be, and stop.")

QUARANTINE_COLUMNS = [
    *out.columns("text", "node", "state"),
    out.Column("events", "events", "number"),
    *out.columns("id", "first_id", "last_id"),
    *out.columns("text", "first_time", "last_time", "term_uid"),
]
EVENT_COLUMNS = [
    out.Column("id", "id", "id"),
    *out.columns("text", "time", "state", "type", "key", "payload"),
    out.Column("new_id", "new id", "id"),
]


@click.group()
def quarantine() -> None:
    """Events that a lost root, or another carrier, had and nobody else: look, republish, discard.

    They are kept in the database of the node that had them, until somebody decides.

    \b
    cascade quarantine list orders -f orders.yaml
    cascade quarantine show orders s1 -f orders.yaml
    cascade quarantine republish orders s1 -f orders.yaml
    """


@quarantine.command("list")
@SET
@FILE_OPTION
@TIMEOUT_OPTION
@JSON_OPTION
def list_quarantine(set_name: str, path: Path, timeout_s: float, as_json: bool) -> None:
    """Count what is in quarantine, by node, term and state.

    \b
    cascade quarantine list orders -f orders.yaml
    """
    topology, observed = ask(path, set_name, timeout_s)

    async def collect(links: Links) -> list[dict[str, Any]]:
        nodes = sorted(observed.views)
        return [{"node": node, **row} for node in nodes for row in await links.call(node, LIST, set_name)]

    found = run(topology, observed, collect)
    out.echo_list(
        QUARANTINE_COLUMNS,
        with_ids(found, "first_id", "last_id"),
        as_json=as_json,
        when_empty="nothing is in quarantine",
    )


@quarantine.command()
@SET
@NODE
@FILE_OPTION
@TERM
@click.option(
    "--state",
    type=click.Choice(["held", "republished", "discarded", "duplicate", "control"]),
    help="Only events in this state.",
)
@click.option("--after", type=int, default=0, metavar="ID", help="Only events after this one, for the next page.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@TIMEOUT_OPTION
@JSON_OPTION
def show(
    set_name: str,
    node_name: str,
    path: Path,
    term_uid: str | None,
    state: str | None,
    after: int,
    limit: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show events in quarantine, whole.

    \b
    cascade quarantine show orders s1 -f orders.yaml --state held
    cascade quarantine show orders s1 -f orders.yaml --json | jq -r '.[].payload | fromjson'
    """
    topology, observed = ask(path, set_name, timeout_s)
    answering(observed, node_name)

    async def collect(links: Links) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await links.call(node_name, READ, set_name, term_uid, state, after, limit)
        return found

    found = with_ids(run(topology, observed, collect), "id", "new_id", "origin_id")
    out.echo_list(EVENT_COLUMNS, found, as_json=as_json, when_empty="no such events are in quarantine")


@quarantine.command()
@SET
@NODE
@FILE_OPTION
@TERM
@IDS
@DRY_RUN
@YES
@TIMEOUT_OPTION
@JSON_OPTION
def republish(set_name: str, node_name: str, **rest: Any) -> None:
    """Put events back into the log, at the root, each once whatever happens.

    They get new ids at the end of the log; `origin` is the set and `origin_id` the old id, so that a handler can
    recognise one that it had seen.  One that the log has already, as after a conflict, is noted as a duplicate.
    Without --id, all that are held.  It may be killed and run again.

    \b
    cascade quarantine republish orders s1 -f orders.yaml --dry-run
    cascade quarantine republish orders s1 -f orders.yaml
    cascade quarantine republish orders s1 --id 8124 --id 8125 -f orders.yaml
    """
    settle(set_name, node_name, "republished", **rest)


@quarantine.command()
@SET
@NODE
@FILE_OPTION
@TERM
@IDS
@click.option("--all", "is_all", is_flag=True, help="All that are held.")
@DRY_RUN
@YES
@TIMEOUT_OPTION
@JSON_OPTION
def discard(set_name: str, node_name: str, ids: tuple[int, ...], is_all: bool, **rest: Any) -> None:
    """Decide that events do not come back; they stay readable where they are.

    \b
    cascade quarantine discard orders s1 --id 8126 -f orders.yaml
    cascade quarantine discard orders s1 --all -f orders.yaml
    """
    if bool(ids) == is_all:
        raise click.UsageError("name events with --id, or pass --all")
    settle(set_name, node_name, "discarded", ids=ids, **rest)


def settle(
    set_name: str,
    node_name: str,
    state: str,
    *,
    path: Path,
    term_uid: str | None,
    ids: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Republish or discard what is held at a node, and tell the root's certificates."""
    topology, observed = ask(path, set_name, timeout_s)
    answering(observed, node_name)
    root = observed.tip.node
    answering(observed, root)
    count, duplicates = run(topology, observed, lambda links: count_held(links, node_name, term_uid, ids)), 0
    if not dry_run and count:
        operate.confirm(f"{count} events of {node_name} will be {state}: go ahead?", yes=yes, as_json=as_json)
        count, duplicates = run(
            topology, observed, lambda links: settle_all(links, node_name, root, state, term_uid, ids)
        )
    result = {"set": set_name, "node": node_name, "state": state, "events": count, "duplicates": duplicates}
    told = f"{count} events {'would be' if dry_run else 'are'} {state}"
    if duplicates:
        told += f", {duplicates} are in the log already"
    out.echo_done(result | {"dry_run": dry_run}, told, as_json=as_json)


async def count_held(links: Links, node: str, term_uid: str | None, ids: Sequence[int]) -> int:
    """Return how many events there are to settle."""
    if not ids:
        rows = await links.call(node, LIST, links.set)
        return sum(
            row["events"] for row in rows if row["state"] == "held" and row["term_uid"] == (term_uid or row["term_uid"])
        )
    return sum([len(page) async for page in pages(links, node, term_uid, ids)])


async def pages(
    links: Links, node: str, term_uid: str | None, ids: Sequence[int]
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield what is held at a node, some at a time, in order."""
    after = 0
    while page := await links.call(node, READ, links.set, term_uid, "held", after, PAGE):
        after = page[-1]["id"]
        yield [event for event in page if not ids or event["id"] in ids]


async def settle_all(
    links: Links, node: str, root: str, state: str, term_uid: str | None, ids: Sequence[int]
) -> tuple[int, int]:
    """Settle what is held: first at the root, where the key of each makes it once, then where it is kept.

    Returns how many came to that state, and how many turned out to be in the log already.
    """
    from cascade.node.comeback import mark_duplicates, report

    counts = {state: 0, "duplicate": 0}
    if state == "republished" and links.topology.sets[links.set].is_combined:
        # What was merged again is no orphan.
        counts["duplicate"] += await mark_duplicates(links.set, partial(links.call, node), partial(links.call, root))
    async for page in pages(links, node, term_uid, ids):
        for term in dict.fromkeys(event["term_uid"] for event in page):
            mine = [event for event in page if event["term_uid"] == term]
            if state != "republished":
                settled = [event["id"] for event in mine]
                counts[state] += await links.call(node, SETTLE, links.set, term, settled, state, None)
                continue
            found = list(zip(mine, await republish_page(links, root, term, mine), strict=True))
            for word in counts:
                is_old = word == "duplicate"
                now = {event["id"]: id for event, id in found if was_there(links.set, event, id) is is_old}
                if now:
                    counts[word] += await links.call(node, SETTLE, links.set, term, [*now], word, [*now.values()])
    await report(links, node, root)
    return counts[state], counts["duplicate"]


def was_there(set_name: str, event: Mapping[str, Any], id: int) -> bool:
    """Whether the id that an event has in the log is one that it had before it was set aside."""
    first: int = event["origin_id"] if event["origin"] == set_name else event["id"]
    return id in (event["id"], first)


async def republish_page(links: Links, root: str, term_uid: str, events: Sequence[Mapping[str, Any]]) -> list[int]:
    """Insert events at the root, but for those that are there; return the id of each in the log."""
    from psycopg.types.json import Jsonb

    keys = ("id", "time", "type", "key", "payload", "headers", "origin", "origin_id")
    body = Jsonb([{key: event[key] for key in keys} for event in events])
    return list(await links.call(root, REPUBLISH, links.set, term_uid, body))
