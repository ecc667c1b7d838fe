"""Follow the root: where a producer goes after a refusal, how often, and with whose credentials.

A refusal (QC401) is an answer: the event was not stored, so publishing it elsewhere publishes it once.  A
lost connection is none, and is never followed.  What the client remembers of a queue:

    home ── refused, the root is elsewhere ──> at the root ── refused ──> wherever that one says
      ^                                           │
      └──────── it cannot be connected to ────────┘

The location of a root comes from a database, so it says where, and nothing about who: user, certificates and
TLS settings are those of the caller's own connection, and no password goes to a host that the
caller did not name (docs/adr/0016).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cascade.config import expand
from cascade.db import AsyncConnection, Connection
from cascade.errors import ConfigError, FencedError, TransientError
from cascade.names import QueueName
from cascade.retry import Backoff

#: How long a call looks for the root; a switchover takes less than a second.
FOLLOW_S = 10.0

#: What a location may say, because it is about the place ...
PLACE = frozenset(["host", "hostaddr", "port", "dbname", "service", "target_session_attrs", "load_balance_hosts"])
#: ... and about how to be sure of it, unless the caller's own connection says that already.
TRUST = frozenset(["sslmode", "sslrootcert", "sslnegotiation", "channel_binding", "require_auth", "gssencmode"])


@dataclass(frozen=True, slots=True)
class Route:
    """A root that a refusal named, and the DSN with which it is reached."""

    root: str
    dsn: str


@dataclass(slots=True)
class Chase:
    """One call on its way to the root: bounded in time, quick at first, slower when it goes in circles."""

    follow_s: float
    clock: Callable[[], float] = time.monotonic
    _seen: set[str | None] = field(default_factory=set)
    _ends_at: float | None = None
    _delays: object = None

    @property
    def is_on(self) -> bool:
        """Whether somebody has refused this call."""
        return self._ends_at is not None

    def wait_s(self, error: FencedError) -> float:
        """Return how long to wait before the next attempt; raise the error when there is none."""
        if not error.is_retryable or self.follow_s <= 0:
            raise error
        self._seen.add(error.node)
        if error.root not in self._seen:
            self._start()
            return 0.0
        return self._next(error)

    def wait_after_loss_s(self, error: TransientError) -> float:
        """Do the same after a root that could not be connected to."""
        return self._next(error)

    def _start(self) -> float:
        if self._ends_at is None:
            self._ends_at = self.clock() + self.follow_s
        return self._ends_at

    def _next(self, error: Exception) -> float:
        if self._delays is None:
            self._delays = Backoff(first_s=0.04, most_s=0.5).delays()
        left = self._start() - self.clock()
        if left <= 0:
            if isinstance(error, FencedError):
                raise explained(error, f"The client has looked for the root for {self.follow_s:g} s.") from error
            raise error
        return min(next(self._delays), left)  # type: ignore[call-overload, no-any-return]


class Trail:
    """Where the roots of one client's queues are, as far as refusals have said."""

    def __init__(self, home: str | None, *, follow_s: float, databases: Mapping[str, str] | None) -> None:
        self._home, self.follow_s = home, follow_s
        #: Who we are at home, and how we make sure of a server: the parameters of the connection there.
        self.own: dict[str, str] = {}
        self._databases = dict(databases or {})
        self._routes: dict[QueueName, Route] = {}
        self._home_nodes: dict[QueueName, str | None] = {}

    def chase(self) -> Chase:
        """Begin a call."""
        return Chase(self.follow_s)

    def route(self, queue: QueueName) -> Route | None:
        """Return where to publish to a queue; None is the caller's own database."""
        return self._routes.get(queue)

    def forget(self, queue: QueueName) -> None:
        """Go back to the caller's own database: it may have heard of another root."""
        self._routes.pop(queue, None)

    def learn(self, queue: QueueName, error: FencedError) -> None:
        """Remember where a refusal sends us."""
        if queue not in self._routes:
            self._home_nodes[queue] = error.node
        if error.root is None or error.root == error.node:
            return
        if error.root == self._home_nodes.get(queue):
            self.forget(queue)
            return
        self._routes[queue] = Route(error.root, self._dsn(error))

    def _dsn(self, error: FencedError) -> str:
        if error.database in self._databases:
            return self._databases[error.database]
        assert self._home is not None, "only a client that connects by itself follows"
        try:
            if error.dsn is None:
                raise ConfigError("where that is, is not known here")
            return root_dsn(expand(error.dsn, os.environ), home=self._home, own=self.own)
        except ConfigError as problem:
            reason = f"It was not followed, {problem.args[0]}: pass databases={{name: DSN}} to connect()."
            raise explained(error, reason) from problem


def parameters(conn: AsyncConnection | Connection) -> dict[str, str]:
    """Return what a connection was made with, wherever that came from, but for the password."""
    return conn.info.get_parameters() | {"user": conn.info.user}


def root_dsn(location: str, *, home: str, own: Mapping[str, str]) -> str:
    """Return how to reach a root as the caller: the place is the location's, everything else the caller's."""
    try:
        there, given = conninfo_to_dict(location), conninfo_to_dict(home)
    except psycopg.ProgrammingError as error:
        raise ConfigError("the DSN of the root's location cannot be read") from error
    found = {name: str(value) for name, value in there.items() if name in PLACE | TRUST}
    found |= {name: value for name, value in own.items() if name not in PLACE and name != "password"}
    is_named = "service" not in there and "service" not in given and _places(there) <= _places(given)
    if given.get("password") and is_named:
        found["password"] = str(given["password"])
    return make_conninfo("", **found)


def _places(parameters: Mapping[str, object]) -> set[tuple[str, str]]:
    """Return the hosts and ports that a DSN names; an address counts, not what it is called."""
    place = parameters.get("hostaddr") or parameters.get("host") or os.environ.get("PGHOST", "")
    hosts = str(place).split(",")
    ports = str(parameters.get("port") or os.environ.get("PGPORT", "5432")).split(",")
    return set(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False))


def explained(error: FencedError, reason: str) -> FencedError:
    """Return a refusal that also says why it was not followed."""
    hint = f"{error.hint} {reason}" if error.hint else reason
    found = FencedError(
        str(error.args[0]), hint=hint, node=error.node, root=error.root, database=error.database, dsn=error.dsn
    )
    found.__cause__ = error.__cause__
    return found


def unreachable(route: Route, error: TransientError) -> TransientError:
    """Return the error of a root that cannot be connected to; nothing was sent to it."""
    return TransientError(
        f'the root "{route.root}" cannot be reached: {error.args[0]}',
        hint="Nothing was published.  A password in a DSN is used at the hosts named there only:"
        " name them all, use pgpass or a service file, or pass databases={name: DSN} to connect().",
    )
