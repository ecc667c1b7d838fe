"""The numbers and names that Cascade passes around, each a type of its own."""

from __future__ import annotations

import re
from typing import NewType

from cascade.errors import NameRefusedError

QueueName = NewType("QueueName", str)
TickId = NewType("TickId", int)
EventId = NewType("EventId", int)
BatchId = NewType("BatchId", int)
ClaimId = NewType("ClaimId", int)

_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")


def queue_name(text: str) -> QueueName:
    """Check a queue's name as the database will; the rule is the same in `check_name`."""
    if not isinstance(text, str) or not _QUEUE.fullmatch(text):
        raise NameRefusedError(
            f"queue name {text!r:.80} cannot be used",
            hint="Up to 40 letters, digits, underscores and hyphens, not beginning with a hyphen.",
        )
    return QueueName(text)
