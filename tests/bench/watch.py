"""The plain reader of the measure of hops, a process of its own: says when each event was visible.

python -m tests.bench.watch DSN QUEUE COUNT: "ready" once it listens, at the end one JSON object.  It knows nothing of
consumers: a tick's notification has it look at the table, and so does the passing of a tenth of a second.
"""

from __future__ import annotations

import json
import sys
import time

import psycopg


def watch(dsn: str, queue: str, count: int) -> dict[int, tuple[int, int]]:
    """Return, per event, when it was sent and when it was here."""
    seen: dict[int, tuple[int, int]] = {}
    new = f"select txid, payload from queue.{queue} where txid > %s and origin is null".encode()
    with psycopg.connect(dsn, autocommit=True) as conn:
        channel, last = conn.execute(
            f"select cascade.tick_channel('{queue}'), coalesce((select max(txid) from queue.{queue}), 0)".encode()
        ).fetchone() or ("", 0)
        conn.execute(f"listen {channel}".encode())
        conn.execute("set enable_seqscan = off")
        print("ready", flush=True)
        while len(seen) < count:
            list(conn.notifies(timeout=0.1, stop_after=1))
            rows = conn.execute(new, (last,), prepare=True).fetchall()
            now = time.monotonic_ns()
            for txid, payload in rows:
                seen[payload["n"]] = (payload["sent"], now)
                last = max(last, txid)
    return seen


if __name__ == "__main__":
    print(json.dumps(watch(sys.argv[1], sys.argv[2], int(sys.argv[3]))), flush=True)
