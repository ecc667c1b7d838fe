"""Handlers: what a branch or leaf does with every batch, in the transaction that moves its position.

    def apply(batch, conn): ...            # with a synchronous connection
    async def apply(batch, conn): ...      # with an asynchronous one

A handler is called once per batch.  What it writes through `conn` is committed together with the
position: both or neither.  When it raises, the batch comes again after a while.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, LiteralString

from psycopg.types.json import Json

from cascade.batch import Held
from cascade.db import AsyncConnection
from cascade.errors import ConfigError

Handler = Callable[[Held[Any], Any], Any]


def load_handler(spec: str) -> Handler:
    """Import 'package.module:function', or say what is wrong with it."""
    module_name, _, name = spec.partition(":")
    try:
        found = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # Whatever a module does while it is imported: it is not ours to die of.
        raise ConfigError(
            f"handler {spec!r} cannot be loaded: {type(error).__name__}: {error}",
            hint="Write 'package.module:function', and have the package where the daemon runs.",
        ) from error
    if not callable(found):
        raise ConfigError(f"handler {spec!r} is no function", hint="Write 'package.module:function'.")
    handler: Handler = found
    return handler


def is_async(handler: Handler) -> bool:
    """Whether a handler wants an asynchronous connection."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


STORE_TABLE: LiteralString = (
    "create table if not exists public.cascade_events"
    " (event_id bigint, batch_to bigint, type text, key text, payload json, stored_at timestamptz default now())"
)
STORE: LiteralString = (
    "insert into public.cascade_events (event_id, batch_to, type, key, payload)"
    " select * from unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::json[])"
)


async def store_events(batch: Held[Any], conn: AsyncConnection) -> None:
    """Write every event into the local table public.cascade_events: an example, and what the tests count."""
    cur = await conn.execute("select to_regclass('public.cascade_events') is null")
    if (await cur.fetchone()) == (True,):
        await conn.execute(STORE_TABLE)
    events = list(batch)
    columns = (
        [event.id for event in events],
        [batch.to_tick] * len(events),
        [event.type for event in events],
        [event.key for event in events],
        [Json(event.payload_text, dumps=lambda text: text) for event in events],
    )
    await conn.execute(STORE, columns)
