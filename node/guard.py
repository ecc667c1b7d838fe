"""Guard: lets one of several daemons serve a node, and takes over from one that is frozen.

    standing by ── the lock is free ──> holding ── no sign of life in time ──> lost
        ^                                  │ what an earlier holder left open is ended
        └──────────────────────────────────┘ the daemon starts anew

The lock belongs to a session that the server ends when it is idle for long, and the holder uses it every
few seconds.  So a daemon that was stopped, or whose machine has gone, loses the lock although
its connections look alive, and its open transaction does not keep the next one waiting for ever: a
session that may have one open holds a lock of its own, by which the next daemon finds and ends it.
"""

from __future__ import annotations

import logging
from typing import LiteralString

from cascade.db import AsyncConnection
from cascade.node.home import Home

log = logging.getLogger("cascade.node")

EXPIRE: LiteralString = "select set_config('idle_session_timeout', %s, false)"
LOCK: LiteralString = "select pg_try_advisory_lock(1127303507, 3000000 + %s)"
#: Ends the sessions of whoever still holds the locks of this node's copier, processor or handler.
EVICT: LiteralString = (
    "select count(*) filter (where pg_terminate_backend(l.pid))"
    "  from pg_catalog.pg_locks as l"
    " where l.locktype = 'advisory' and l.granted"
    "   and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = current_database())"
    "   and l.classid = 1127303507 and l.objid in (1000000 + %s, 2000000 + %s, 4000000 + %s) and l.objsubid = 2"
)


class Guard:
    """One daemon's claim to a node: taken on a connection of its own, kept by using it."""

    def __init__(self, home: Home, conn: AsyncConnection, queue_id: int) -> None:
        self.home, self.conn, self._queue_id = home, conn, queue_id
        #: How often the holder must give a sign of life.
        self.every_s = home.link_timeout_s / 3

    @classmethod
    async def open(cls, home: Home, queue_id: int) -> Guard:
        """Connect, without claiming anything yet."""
        conn = await home.connect("guard")
        try:
            await home.call(conn, EXPIRE, f"{home.link_timeout_s * 2000:.0f}ms")
        except BaseException:
            conn.pgconn.finish()
            raise
        return cls(home, conn, queue_id)

    async def take(self) -> bool:
        """Claim the node; False while another daemon serves it."""
        if not await self.home.call(self.conn, LOCK, self._queue_id):
            return False
        if ended := await self.home.call(self.conn, EVICT, *[self._queue_id] * 3):
            log.warning("set %s: ended %d sessions of a daemon that served this node before", self.home.set, ended)
        return True

    def close(self) -> None:
        """Give the claim up."""
        self.conn.pgconn.finish()
