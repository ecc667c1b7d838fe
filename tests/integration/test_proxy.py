"""The fault proxy does what its controls say, before a real server."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.proxy import TO_CLIENT, TO_SERVER, FaultProxy

LOST = (psycopg.OperationalError,)


@pytest.fixture(params=["socket", "tcp"])
def proxy(db: Database, request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """A proxy that reaches the server by its socket, or by TCP."""
    db.main.execute("create table note (n int)")
    server = db.backend.server
    if request.param == "tcp" and server is not None:
        made = FaultProxy("127.0.0.1", server.port)
    elif request.param == "tcp":
        pytest.skip(f"needs a server with a socket and a port of ours, and the {db.backend.label} one has its own")
    else:
        made = FaultProxy.before(db.dsn)
    with made as proxy:
        yield proxy


@pytest.fixture
def dial(db: Database, proxy: FaultProxy) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Connect through the proxy; closed with the test."""
    with ExitStack() as stack:

        def connect(**parameters: Any) -> psycopg.Connection[Any]:
            conn = psycopg.connect(proxy.dsn(db.dsn), **({"autocommit": True} | parameters))
            stack.callback(conn.close)
            return conn

        yield connect


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Run something that will have to wait."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def value(conn: psycopg.Connection[Any], query: str = "select 1") -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_everything_passes_and_is_counted(proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]) -> None:
    conn, other = dial(), dial()
    assert value(conn, "select repeat('x', 1000000)") == "x" * 1_000_000
    assert value(other) == 1
    assert (proxy.connections, proxy.open_connections) == (2, 2)
    assert 1_000_000 < proxy.bytes[TO_CLIENT] < 1_010_000
    assert 100 < proxy.bytes[TO_SERVER] < 5000
    conn.close()
    assert eventually(lambda: proxy.open_connections == 1)


def test_a_client_that_asks_for_encryption_is_told_no(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    with psycopg.connect(proxy.dsn(db.dsn), sslmode="prefer") as conn:
        assert value(conn) == 1 and not conn.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(proxy.dsn(db.dsn), sslmode="require")


def test_a_query_can_be_cancelled_through_it(
    dial: Callable[..., psycopg.Connection[Any]], aside: Callable[..., Future[Any]]
) -> None:
    conn = dial()
    sleeping = aside(conn.execute, "select pg_sleep(60)")
    assert eventually(lambda: conn.info.transaction_status.name == "ACTIVE")
    conn.cancel_safe(timeout=5)
    with pytest.raises(psycopg.errors.QueryCanceled):
        sleeping.result(10)


def test_a_delay_is_added_to_both_ways(proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]) -> None:
    conn = dial()
    proxy.delay(0.1)
    start = time.monotonic()
    value(conn)
    assert time.monotonic() - start >= 0.2
    # It is a delay, not a limit: what is sent together arrives together.
    start = time.monotonic()
    value(conn, "select repeat('x', 5000000)")
    assert time.monotonic() - start < 5
    proxy.heal()
    start = time.monotonic()
    value(conn)
    assert time.monotonic() - start < 0.2


def test_a_throttle_limits_the_rate(proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]) -> None:
    conn = dial()
    proxy.throttle(1_000_000)
    start = time.monotonic()
    value(conn, "select repeat('x', 300000)")
    assert time.monotonic() - start >= 0.29


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT, None])
def test_what_is_stalled_is_kept_and_delivered_once_healed(
    db: Database,
    proxy: FaultProxy,
    dial: Callable[..., psycopg.Connection[Any]],
    aside: Callable[..., Future[Any]],
    direction: Any,
) -> None:
    conn = dial()
    before = proxy.bytes.copy()
    proxy.stall(direction)
    waiting = aside(conn.execute, "insert into note values (1)")
    if direction == TO_CLIENT:
        assert eventually(lambda: db.value("select count(*) from note") == 1)
        assert proxy.bytes[TO_SERVER] > before[TO_SERVER]
    with pytest.raises(TimeoutError):
        waiting.result(0.3)
    if direction != TO_CLIENT:
        assert db.value("select count(*) from note") == 0
        assert proxy.bytes == before
    proxy.heal()
    waiting.result(10)
    assert db.value("select count(*) from note") == 1


def test_who_connects_while_it_stalls_waits(db: Database, proxy: FaultProxy, aside: Callable[..., Future[Any]]) -> None:
    proxy.stall()
    waiting = aside(psycopg.connect, proxy.dsn(db.dsn))
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    proxy.heal()
    waiting.result(10).close()


def test_a_cut_ends_every_connection_and_admits_new_ones(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]], aside: Callable[..., Future[Any]]
) -> None:
    idle, busy = dial(), dial()
    backend = value(idle, "select pg_backend_pid()")
    waiting = aside(busy.execute, "select pg_sleep(60)")
    assert eventually(lambda: busy.info.transaction_status.name == "ACTIVE")
    assert proxy.cut() == 2
    with pytest.raises(LOST):
        waiting.result(10)
    with pytest.raises(LOST):
        value(idle)
    assert eventually(lambda: db.row("select from pg_stat_activity where pid = %s", backend) is None)
    assert proxy.open_connections == 0
    assert value(dial()) == 1


def test_refusing_resets_new_connections_and_leaves_the_others(
    proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    conn = dial()
    proxy.refuse()
    with pytest.raises(LOST):
        dial()
    assert proxy.refused >= 1 and proxy.connections == 1
    assert value(conn) == 1
    proxy.heal()
    assert value(dial()) == 1


def test_a_half_open_connection_is_gone_for_the_server_only(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]], aside: Callable[..., Future[Any]]
) -> None:
    conn = dial()
    backend = value(conn, "select pg_backend_pid()")
    assert proxy.half_open() == 1
    assert eventually(lambda: db.row("select from pg_stat_activity where pid = %s", backend) is None)
    waiting = aside(conn.execute, "insert into note values (1)")
    with pytest.raises(TimeoutError):
        waiting.result(0.3)
    assert value(dial()) == 1, "new connections work"
    proxy.heal()
    with pytest.raises(LOST):
        waiting.result(10)
    assert db.value("select count(*) from note") == 0


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_a_copy_is_cut_after_so_many_bytes(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]], direction: Any
) -> None:
    db.main.execute("insert into note select generate_series(1, 100000)")
    conn = dial()
    proxy.cut_after(200_000, direction)
    before = proxy.bytes[direction]
    with pytest.raises(LOST), conn.cursor() as cur:
        if direction == TO_SERVER:
            with cur.copy("copy note from stdin") as copy:
                for number in range(100_000):
                    copy.write_row([number])
        else:
            with cur.copy("copy note to stdout") as copy:
                for _ in copy:
                    pass
    assert proxy.bytes[direction] - before == 200_000
    assert db.value("select count(*) from note") == 100_000, "a COPY cut short leaves nothing"
    again = dial()
    assert value(again, "select count(*) from note where repeat('x', 300000) <> ''") == 100_000, "it strikes once"


def test_the_reply_to_a_commit_is_lost_and_the_commit_is_not(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    conn = dial()
    proxy.lose_reply_to(b"COMMIT")
    with pytest.raises(LOST), conn.transaction():
        conn.execute("insert into note values (1)")
    assert db.value("select count(*) from note") == 1
    assert proxy.replies_lost == 1
    with dial() as other, other.transaction():
        other.execute("insert into note values (2)")
    assert db.value("select count(*) from note") == 2, "it strikes once"


def test_the_reply_to_a_prepared_statement_is_lost_too(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    conn = dial(prepare_threshold=0)
    insert = "insert into note values (%s)"
    conn.execute(insert, (1,))
    proxy.lose_reply_to(b"insert into note")
    with pytest.raises(LOST):
        conn.execute(insert, (2,))
    assert db.value("select count(*) from note") == 2


def test_replies_to_what_was_sent_before_still_arrive(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    conn = dial()
    proxy.lose_reply_to(b"insert into note values (2)")
    before = proxy.bytes[TO_CLIENT]
    conn.pgconn.enter_pipeline_mode()
    for query in ("insert into note select 1 from pg_sleep(0.2)", "insert into note values (2)"):
        conn.pgconn.send_query_params(f"{query} returning repeat('x', 1000)".encode(), [])
        conn.pgconn.pipeline_sync()
    assert eventually(lambda: proxy.open_connections == 0)
    # Whether the client gets to read it before the cut is another matter.
    assert 1000 < proxy.bytes[TO_CLIENT] - before < 2000
    assert [row[0] for row in db.rows("select n from note order by n")] == [1, 2]


def test_the_reply_to_a_copy_is_lost_and_its_rows_are_not(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]]
) -> None:
    conn = dial()
    proxy.lose_reply_to(b"copy note")
    with pytest.raises(LOST), conn.cursor() as cur, cur.copy("copy note from stdin") as copy:
        copy.write_row([7])
    assert db.value("select n from note") == 7
    assert proxy.replies_lost == 1 and eventually(lambda: proxy.open_connections == 0)


@pytest.mark.parametrize("pattern", [b"copy note", b"values (8)"])
def test_the_right_reply_is_lost_around_a_copy_by_the_extended_protocol(
    db: Database, proxy: FaultProxy, dial: Callable[..., psycopg.Connection[Any]], pattern: bytes
) -> None:
    conn = dial()
    proxy.lose_reply_to(pattern)
    with pytest.raises(LOST):
        # libpq sends a Sync with the statement here, and another one at the end of the data.
        pgconn = conn.pgconn
        pgconn.exec_params(b"copy note from stdin", [])
        pgconn.put_copy_data(b"7\n")
        pgconn.put_copy_end()
        pgconn.flush()
        while pgconn.is_busy():
            # Waiting inside libpq would stop the proxy's thread too.
            assert select.select([pgconn.socket], [], [], 10)[0]
            pgconn.consume_input()
        while pgconn.get_result():
            pass
        conn.execute("insert into note values (8)")
    assert db.value("select array_agg(n order by n) from note") == ([7] if pattern == b"copy note" else [7, 8])
    assert proxy.replies_lost == 1 and eventually(lambda: proxy.open_connections == 0)
