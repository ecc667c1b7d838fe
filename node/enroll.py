"""Enrolment: how a database becomes a branch or leaf, and how a node changes its provider.

Adding goes in a safe order: the member row at the root first, so that everybody keeps what the new node will
need; then a place at the provider; then the node itself.  Each step may be repeated.
"""

from __future__ import annotations

import logging
import os
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from cascade.db import AsyncConnection, connect, translated
from cascade.errors import CascadeError, MovedOnError, NodeNotFoundError, TransientError
from cascade.node.home import JOIN, SERVED, Home, Standing, join_error
from cascade.node.pipe import deadline
from cascade.topology import Node, Role, Topology, expand

log = logging.getLogger("cascade.node.enroll")

ADD: LiteralString = "select cascade.add_member(%s, %s, %s, %s, %s, %s)"
TICK: LiteralString = "select cascade.tick(%s)"
REGISTER: LiteralString = "select cascade.register_subscriber(%s, %s, %s, %s)"
CREATE_MERGE_LEAF: LiteralString = "select cascade.create_merge_leaf(%s, %s, %s, %s, %s, %s, %s)"
CREATE: LiteralString = "select cascade.create_node(%s, %s, %s, %s, %s, %s, %s)"
READMIT: LiteralString = "select cascade.readmit_node(%s, %s, %s)"
OWN: LiteralString = (
    "select node, role, provider, generation, state, file_provider, queue_id from cascade.nodes where set = %s"
)
KNOWN_LOCATION: LiteralString = "select location from cascade.members where set = %s and node = %s"
ROOT_NAME: LiteralString = "select root from cascade.nodes where set = %s"
SET_PROVIDER: LiteralString = "select cascade.set_provider(%s, %s, %s, %s)"
FORGET: LiteralString = "select cascade.forget_subscriber(%s, %s)"


def dsn_of(topology: Topology, database: str) -> str:
    """Return how to reach a database of the file, its variables replaced."""
    return expand(topology.databases[database].dsn, os.environ)


def location_of(topology: Topology, node: Node) -> Jsonb:
    """Return what the others are told of where a node is; variables stay as they are written."""
    return Jsonb({"database": node.database, "dsn": topology.databases[node.database].dsn})


async def own_node(home: Home, conn: AsyncConnection) -> dict[str, Any] | None:
    """Return this database's node in a set, if it has one; give the link up when it does not answer."""
    with translated(), deadline(home.link_timeout_s, conn):
        row: Any = await (await conn.execute(OWN, (home.set,))).fetchone()
    names = ("node", "role", "provider", "generation", "state", "file_provider", "queue_id")
    return None if row is None else dict(zip(names, row, strict=True))


async def enroll(home: Home, topology: Topology, node: Node, *, again: bool = False) -> bool:
    """Make this database the node that the file has for it; False when it is one already.

    A root is never made here: that is `cascade set create`.
    """
    assert node.provider is not None, "roots are created by an operator"
    chosen = topology.sets[node.set]
    local = await home.connect("enroll")
    try:
        if not again and await own_node(home, local) is not None:
            return False
        root = await connect(dsn_of(topology, chosen.root.database), service=f"{node.name}/enroll")
        try:
            try:
                welcome = await home.call(
                    root, ADD, node.set, node.name, node.role, location_of(topology, node), again, node.into
                )
            except NodeNotFoundError as error:
                raise TransientError(
                    f"set {node.set} does not exist at {chosen.root.name} yet",
                    hint=f"cascade set create {node.set} -f FILE makes it and its root.",
                ) from error
            # A provider that has come this far knows the member.
            known_from = await home.call(root, TICK, node.set)
        finally:
            await root.close()
        if again and await own_node(home, local) is not None:
            await home.call(local, READMIT, node.set, Jsonb(welcome), known_from)
            return True
        provider = await connect(dsn_of(topology, chosen.nodes[node.provider].database), service=f"{node.name}/enroll")
        try:
            start = await home.call(
                provider, REGISTER, node.set, node.name, welcome["generation"], node.start or "earliest"
            )
        except NodeNotFoundError as error:
            raise TransientError(f"set {node.set}: the provider {node.provider} is no node of the set yet") from error
        finally:
            await provider.close()
        made = bool(await home.call(local, *creation(node, Jsonb(welcome), Jsonb(start), known_from)))
        if made:
            log.info(
                "set %s: made %s %s, to copy from %s after tick %d",
                node.set,
                node.role,
                node.name,
                node.provider,
                start["tick_id"],
            )
        return made
    finally:
        await local.close()


def creation(node: Node, welcome: Jsonb, start: Jsonb, known_from: int) -> tuple[LiteralString, *tuple[object, ...]]:
    """Return the statement that makes this database a node, and its arguments."""
    rest = (node.provider, welcome, start, known_from)
    if node.role is Role.MERGE_LEAF:
        return CREATE_MERGE_LEAF, node.set, node.name, node.into, *rest
    return CREATE, node.set, node.name, node.role, *rest


async def announce(home: Home, topology: Topology, node: Node) -> None:
    """Have the root publish where a node is, if the file says something else than everybody knows."""
    wanted = location_of(topology, node)
    local = await home.connect("enroll")
    try:
        if await home.call(local, KNOWN_LOCATION, node.set, node.name) == wanted.obj:
            return
        root_name = await home.call(local, ROOT_NAME, node.set)
        root = await connect(await home.address(local, root_name), service=f"{node.name}/enroll")
        try:
            await home.call(root, ADD, node.set, node.name, node.role, wanted, False, node.into)
        finally:
            await root.close()
        log.info("set %s: node %s is announced at its new place", node.set, node.name)
    finally:
        await local.close()


async def switch(home: Home, provider: str, *, from_file: bool = False, tells_old: bool = True) -> int:
    """Have a node copy from another provider, and return its new generation.

    The new provider is asked first, and the node's row is changed only if it would serve the node; the
    old one is told afterwards, if it can be reached, unless the caller knows that it cannot.
    """
    local = await home.connect("switch")
    try:
        while True:
            me = await home.describe(local)
            await _ask_to_join(home, local, provider, me)
            try:
                generation = int(await home.call(local, SET_PROVIDER, home.set, provider, me.generation, from_file))
                break
            except MovedOnError:
                # After a promotion every node learns the new term within moments, which is nobody's change of mind.
                if not (await home.describe(local)).is_like(me):
                    raise
        if me.provider == provider:
            return generation
        log.info("set %s: node %s copies from %s now, no longer from %s", home.set, me.node, provider, me.provider)
        if tells_old and me.provider is not None:
            await _forget(home, local, me.provider, me.node)
        return generation
    finally:
        await local.close()


async def _ask_to_join(home: Home, local: AsyncConnection, provider: str, me: Standing) -> None:
    """Introduce a node to a provider, and raise the answer if that would not serve it."""
    new = await connect(await home.address(local, provider), service=f"{me.node}/switch")
    try:
        answer = await home.call(new, JOIN, home.set, Jsonb(me.introduction))
    finally:
        await new.close()
    # A merge-leaf beyond a fork of its part goes back by itself, once it has a provider that tells it.
    if answer["answer"] not in SERVED and not (me.into is not None and answer["answer"] == "diverged"):
        raise join_error(answer["answer"], answer["detail"])


async def _forget(home: Home, local: AsyncConnection, provider: str, node: str) -> None:
    """Tell a former provider that it need not hold anything; it finds out by itself if this fails."""
    try:
        old = await connect(await home.address(local, provider), service=f"{node}/switch")
        try:
            await home.call(old, FORGET, home.set, node)
        finally:
            await old.close()
    except CascadeError as error:
        log.info("set %s: %s was not told that %s has left: %s", home.set, provider, node, error.args[0])
