"""The one module that opens connections, and turns database errors into Cascade's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.types.string import TextBinaryLoader, TextLoader

from cascade import errors

#: Connections are autocommit: a transaction is what `async with conn.transaction()` encloses.
AsyncConnection = psycopg.AsyncConnection[tuple[object, ...]]
Connection = psycopg.Connection[tuple[object, ...]]

CONNECT_TIMEOUT_S = 10
#: A statement is prepared when it comes the sixth time, as psycopg does by itself.
PREPARE_THRESHOLD = 5
#: A machine that has gone without a word is noticed by the kernel within half a minute, not within hours.
ALIVE: dict[str, str | int | None] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


async def connect(dsn: str, *, service: str, prepare_threshold: int | None = PREPARE_THRESHOLD) -> AsyncConnection:
    """Open a connection of one service; `service` is shown in pg_stat_activity."""
    with translated():
        return await psycopg.AsyncConnection.connect(
            complete(dsn, service), autocommit=True, prepare_threshold=prepare_threshold
        )


def connect_sync(dsn: str, *, service: str, prepare_threshold: int | None = PREPARE_THRESHOLD) -> Connection:
    """Open a connection for the synchronous client."""
    with translated():
        return psycopg.Connection.connect(complete(dsn, service), autocommit=True, prepare_threshold=prepare_threshold)


def complete(dsn: str, service: str) -> str:
    """Return a DSN with what every connection has, unless it says otherwise."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        # The text of the DSN is not repeated: it may hold a password.
        raise errors.ConfigError(
            "the connection string cannot be read",
            hint="Write host=... dbname=..., service=NAME, or a postgresql:// address.",
        ) from error
    usual: dict[str, str | int | None] = {
        "application_name": f"cascade/{service}"[:63],
        "connect_timeout": CONNECT_TIMEOUT_S,
        **ALIVE,
    }
    found: dict[str, str | int | None] = {name: usual[name] for name in usual.keys() - given.keys()}
    # JSON is written in UTF-8 here, and must not be taken for something else because a database prefers that.
    return psycopg.conninfo.make_conninfo(dsn, **found, client_encoding="UTF8")


class Notifications:
    """What a connection was notified of; a notification that comes during a statement is not lost.

    The driver's own waiting wakes ten times a second, on every connection, and costs an idle daemon most of its time.
    """

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn, self._came = conn, False
        self._waiting: asyncio.Future[None] | None = None
        conn.add_notify_handler(self._note)

    async def wait(self, seconds: float) -> bool:
        """Wait for a notification, but not longer than this; True when one came since the last wait."""
        loop, fd = asyncio.get_running_loop(), self._conn.pgconn.socket
        if not self._came:
            woken: asyncio.Future[None] = loop.create_future()
            self._waiting = woken
            timer = loop.call_later(seconds, _wake, woken)
            loop.add_reader(fd, self._read, woken)
            try:
                await woken
            finally:
                self._waiting = None
                loop.remove_reader(fd)
                timer.cancel()
        came, self._came = self._came, False
        return came

    def nudge(self) -> None:
        """End a wait that is under way, as its time would."""
        if self._waiting is not None:
            _wake(self._waiting)

    def _note(self, _: psycopg.Notify) -> None:
        self._came = True

    def _read(self, woken: asyncio.Future[None]) -> None:
        try:
            self._conn.pgconn.consume_input()
            while self._conn.pgconn.notifies() is not None:
                self._came = True
        except psycopg.Error as error:
            if not woken.done():
                woken.set_exception(error)
        if self._came:
            _wake(woken)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def raw_json(adapters: AdaptersMap) -> None:
    """Have json columns arrive as text: events are decoded when somebody looks at them."""
    adapters.register_loader("json", TextLoader)
    adapters.register_loader("json", TextBinaryLoader)


@contextmanager
def translated() -> Iterator[None]:
    """Raise Cascade's errors in place of the driver's, with the driver's as their cause."""
    try:
        yield
    except psycopg.Error as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error


def translate(error: psycopg.Error) -> errors.CascadeError | None:
    """Return the error that callers can act on, or None for one that is not ours to name."""
    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    state = error.sqlstate or ""
    if state == errors.FencedError.sqlstate:
        return _fenced(message, error.diag)
    if state in errors.BY_SQLSTATE:
        return errors.BY_SQLSTATE[state](message, hint=error.diag.message_hint)
    if state == "22P02" and "json" in message:
        return errors.PayloadError(f"{message}: {error.diag.message_detail}")
    if state == "23502" and error.diag.column_name == "payload":
        return errors.PayloadError("the payload is null", hint="An event says something: pass JSON.")
    if state in ("3F000", "42883", "42P01") and ("cascade." in message or '"cascade"' in message):
        return errors.SchemaError("Cascade is not installed in this database", hint="cascade schema install --dsn ...")
    if state == "42P01" and "queue." in message:
        return errors.QueueNotFoundError(message, hint="cascade queue create NAME makes one.")
    if state == "42501":
        return errors.ForbiddenError(
            message,
            hint="An operator grants it: cascade.grant_producer() and cascade.grant_consumer() for applications,"
            " membership in cascade_node or cascade_admin for operators.",
        )
    # 25006: a server that is still recovering, or a standby that is about to be promoted, takes no writes yet.
    if state[:2] in ("08", "57") or state in ("25006", "40001", "40P01", "55P03", "53300"):
        return errors.TransientError(message, hint=error.diag.message_hint)
    if isinstance(error, psycopg.OperationalError) and not state:
        return errors.TransientError(message)
    return None


def _fenced(message: str, diag: psycopg.errors.Diagnostic) -> errors.FencedError:
    """Return a refusal with where to go instead, which DETAIL says to programs."""
    try:
        found = json.loads(diag.message_detail or "{}")
    except ValueError:
        found = {}
    where = {name: found.get(name) for name in ("node", "root", "database", "dsn")}
    return errors.FencedError(message, hint=diag.message_hint, **where)
