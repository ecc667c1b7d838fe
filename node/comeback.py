"""Comeback: a former root, or any carrier beyond a fork, becomes a branch again, and a leaf goes back to the fork.

    heard of the new term ──> fenced ──> nothing beyond the fork ──> branch
                                 └──> tail to quarantine, chunk by chunk ──> tail deleted, branch ──> reported

Until the last transaction everything can be repeated; after it nothing is left but the report to the root, which
the node's daemon makes as well.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.errors import CascadeError, DirtyError, DivergedError, TransientError, UnsafeError
from cascade.node.home import check_set
from cascade.node.survey import DESCRIBE_SET, EXCHANGE, Links
from cascade.topology import steps as s

log = logging.getLogger("cascade.node.comeback")

STAND_DOWN: LiteralString = "select cascade.stand_down(%s, %s, %s)"
COMPLETE: LiteralString = "select cascade.complete_fence(%s)"
WRITERS: LiteralString = "select cascade.name_writers(%s)"
DEMOTE: LiteralString = "select cascade.demote(%s, %s, %s)"
CHAINS: LiteralString = "select cascade.list_chains(%s, %s)"
COMMON: LiteralString = "select cascade.last_common(%s, %s)"
SET_ASIDE: LiteralString = "select cascade.set_aside(%s, %s, %s)"
RESURRECT: LiteralString = "select cascade.resurrect(%s, %s, %s, %s)"
RESET_LEAF: LiteralString = "select cascade.reset_leaf(%s, %s)"
KEYS: LiteralString = "select cascade.quarantine_keys(%s, %s)"
LOGGED: LiteralString = "select cascade.find_logged(%s, %s)"
DUPLICATES: LiteralString = "select cascade.note_duplicates(%s, %s)"
REPORT: LiteralString = "select cascade.certificate_report(%s, %s)"
AMEND: LiteralString = "select cascade.amend_certificate(%s, %s, %s)"
CERTIFICATES: LiteralString = "select cascade.describe_set(%s)->'certificates'"

#: Runs a statement that returns one value.
Call = Callable[..., Awaitable[Any]]

#: Rows that one transaction sets aside.
CHUNK = 10_000


async def stand_down(links: Links, node: str, root: str, wait_s: float) -> Jsonb:
    """Tell a node what the root knows, and fence it if it was a root; return the members as the root has them.

    The fence waits for open writers, and holds new ones back meanwhile; after `wait_s` that is given up, with the names
    of those that write, and can be tried again.
    """
    mine = await links.call(node, DESCRIBE_SET, links.set)
    found = await links.call(root, EXCHANGE, links.set, Jsonb(mine["terms"]), mine["set_uid"])
    known = check_set(found, links.set, mine["set_uid"])
    members = Jsonb(known["members"])
    await links.call(node, STAND_DOWN, links.set, Jsonb(known["terms"]), members)
    try:
        await links.call(node, COMPLETE, links.set, timeout_s=wait_s)
    except TransientError as error:
        writers = None
        with suppress(CascadeError):
            writers = await links.call(node, WRITERS, links.set)
        if writers is None:
            raise
        raise TransientError(
            f"{node} could not be fenced within {wait_s:g} s: it is being written to by {writers}",
            hint="End the transaction that is named, then run this again; or wait longer: --wait.",
        ) from error
    return members


async def demote(links: Links, step: s.Demote, wait_s: float) -> None:
    """Make a former root a branch; refused when it has something beyond the fork after all."""
    members = await stand_down(links, step.node, step.provider, wait_s)
    try:
        await links.call(step.node, DEMOTE, links.set, step.provider, members)
    except DirtyError as error:
        raise UnsafeError(
            f"set {links.set}: {step.node} has taken inserts that the new root does not have: {error.args[0]}",
            hint=f"Plan again, or: cascade resurrect {links.set} {step.node}",
        ) from error
    await report(links, step.node, step.provider)


async def resurrect(
    links: Links, step: s.Resurrect, wait_s: float, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Set a node's tail aside and make it a branch; return how much that was."""
    members = await stand_down(links, step.node, step.provider, wait_s)
    fork = await last_common(links, step.node, step.provider)
    moved = 0
    while True:
        found = await links.call(step.node, SET_ASIDE, links.set, Jsonb(fork), CHUNK, timeout_s=600.0)
        moved += int(found["moved"])
        if not found["left"]:
            break
        if not found["moved"]:
            raise UnsafeError(f"set {links.set}: {found['left']} events of {step.node} could not be set aside")
        tell(f"{moved} events of {step.node} are in quarantine, {found['left']} to go")
    done = await links.call(step.node, RESURRECT, links.set, Jsonb(fork), step.provider, members, timeout_s=600.0)
    try:
        await mark_duplicates(links.set, partial(links.call, step.node), partial(links.call, step.provider))
    except CascadeError as error:
        log.info("set %s: duplicates of %s wait for its daemon: %s", links.set, step.node, error.args[0])
    await report(links, step.node, step.provider)
    return {"node": step.node, "fork_tick": str(fork["tick_id"]), "set_aside": moved, "phantoms": done["phantoms"]}


async def last_common(links: Links, node: str, root: str) -> Mapping[str, Any]:
    """Return the newest tick that a node shares with the root, as the node holds it."""
    before = None
    while chains := await links.call(root, CHAINS, links.set, before):
        found: Mapping[str, Any] | None = await links.call(node, COMMON, links.set, Jsonb(chains))
        if found is not None:
            return found
        before = chains[-1][0]
    raise DivergedError(
        f"set {links.set}: {node} and {root} have no tick in common any more",
        hint="Drop the queue there and add the node again, once what it holds is saved.",
    )


async def reset_leaf(links: Links, step: s.ResetLeaf, root: str) -> dict[str, Any]:
    """Take a leaf back to the fork, and tell the root what it had processed beyond; return that."""
    found = await links.call(step.node, RESET_LEAF, links.set, Jsonb(dict(step.fork)))
    try:
        # It may not have heard of the term yet that ended its own.
        known = await links.call(root, EXCHANGE, links.set, Jsonb([]), None)
        await links.call(step.node, EXCHANGE, links.set, Jsonb(known["terms"]), known["set_uid"])
    except CascadeError as error:
        log.info("set %s: the terms of %s wait for its daemon: %s", links.set, step.node, error.args[0])
    await report(links, step.node, root)
    return {"node": step.node, **found}


async def mark_duplicates(set_name: str, node: Call, root: Call) -> int:
    """Note which of the events set aside at a node are in the root's log; return how many are news.

    After a conflict the path that is kept may have them.  It may be broken off and called again; whatever is left
    is found when it is republished.
    """
    count = after = 0
    while keys := await node(KEYS, set_name, after):
        after = keys[-1]["id"]
        if found := await root(LOGGED, set_name, Jsonb(keys)):
            count += await node(DUPLICATES, set_name, Jsonb(found))
    return count


async def report(links: Links, node: str, root: str) -> None:
    """Tell the root what a node had beyond forks of open certificates; its daemon does so too, if this fails."""
    try:
        for certificate in await links.call(root, CERTIFICATES, links.set):
            uid = certificate["new_uid"]
            found = await links.call(node, REPORT, links.set, uid)
            is_known = node in certificate["pending"] or node in (certificate.get("reports") or {})
            if is_known or found != {"node": node, "phantoms": []}:
                await links.call(root, AMEND, links.set, uid, Jsonb(found))
    except CascadeError as error:
        log.info("set %s: the report of %s waits for its daemon: %s", links.set, node, error.args[0])
