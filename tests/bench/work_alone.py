"""The worker of the latency measure, a process of its own: says when its handler began with each message.

python -m tests.bench.work_alone DSN QUEUE COUNT: "ready" once it listens, at the end one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import cascade


async def work(dsn: str, queue: str, count: int) -> dict[int, tuple[int, int]]:
    """Return, per message, when it was sent and when its handler began."""
    seen: dict[int, tuple[int, int]] = {}

    async def handle(payload: dict[str, Any]) -> None:
        seen[payload["n"]] = (payload["sent"], time.monotonic_ns())
        if len(seen) >= count:
            worker.stop()

    worker = cascade.Worker(queue, "worker", handle, dsn=dsn)
    print("ready", flush=True)
    await worker.run()
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))), flush=True)
