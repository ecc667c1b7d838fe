"""The consumer of the latency measure, a process of its own: says when it saw each event.

python -m tests.bench.consume DSN QUEUE COUNT: "ready" once it listens, at the end one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import cascade


async def consume(dsn: str, queue: str, count: int) -> dict[int, tuple[int, int]]:
    """Return, per event, when it was sent and when it was here."""
    seen: dict[int, tuple[int, int]] = {}
    async with cascade.connect(dsn) as client:
        await client.queue(queue).subscribe("latency")
        print("ready", flush=True)
        async with client.queue(queue).stream("latency") as stream:
            async for batch in stream:
                async with batch:
                    now = time.monotonic_ns()
                    for event in batch:
                        seen[event.payload["n"]] = (event.payload["sent"], now)
                if len(seen) >= count:
                    break
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(consume(sys.argv[1], sys.argv[2], int(sys.argv[3])))), flush=True)
