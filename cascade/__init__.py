"""Cascade: queues that live inside PostgreSQL and are replicated across databases.

    import cascade

    async with cascade.connect("service=shop") as client:
        orders = client.queue("orders")
        await orders.publish({"id": 7}, type="order.paid", key="acme")
        async for batch in orders.stream("billing"):
            async with batch:
                for event in batch:
                    ...

`cascade.sync.connect` is the same without asyncio.  Names are loaded when first used, so that
`import cascade.topology` pulls in no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cascade.sync as sync
    from cascade.client import Client as Client
    from cascade.client import Queue as Queue
    from cascade.client import connect as connect
    from cascade.codec import Codec as Codec
    from cascade.codec import JsonCodec as JsonCodec
    from cascade.codec import dataclass_codec as dataclass_codec
    from cascade.consumer import Batch as Batch
    from cascade.consumer import Stream as Stream
    from cascade.errors import CascadeError as CascadeError
    from cascade.event import Event as Event
    from cascade.event import Message as Message
    from cascade.event import Options as Options
    from cascade.work import Bury as Bury
    from cascade.work import Delivery as Delivery
    from cascade.work import Retry as Retry
    from cascade.worker import Worker as Worker

__version__ = "0.1.0"

_HOMES = {
    "Batch": "cascade.consumer",
    "Bury": "cascade.work",
    "CascadeError": "cascade.errors",
    "Client": "cascade.client",
    "Codec": "cascade.codec",
    "Delivery": "cascade.work",
    "Event": "cascade.event",
    "JsonCodec": "cascade.codec",
    "Message": "cascade.event",
    "Options": "cascade.event",
    "Queue": "cascade.client",
    "Retry": "cascade.work",
    "Stream": "cascade.consumer",
    "Worker": "cascade.worker",
    "connect": "cascade.client",
    "dataclass_codec": "cascade.codec",
}

__all__ = [*sorted(_HOMES), "sync"]


def __getattr__(name: str) -> object:
    if name == "sync":
        return import_module("cascade.sync")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cascade' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
