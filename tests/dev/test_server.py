"""One server: what survives crashes, stale files and taken ports, and who may connect."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from cascade.dev import Cluster, Server, ServerState
from cascade.dev.account import account_named
from cascade.dev.processes import servers_in, wait_until
from cascade.errors import ConfigError, ServerError

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="module")
def shared(templates: Path) -> Iterator[Server]:
    """A server for tests that only look at it."""
    with Cluster.temporary(templates=templates) as cluster:
        yield cluster["n1"]


def one(dsn: str, query: str) -> object:
    """The only column of the only row."""
    with psycopg.connect(dsn, connect_timeout=10) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_the_password_is_in_a_private_file_and_in_no_dsn(shared: Server) -> None:
    passfile = shared.data_dir.parent.parent / "pgpass"
    password = passfile.read_text().splitlines()[0].rpartition(":")[2]
    assert len(password) > 20
    assert stat.S_IMODE(passfile.stat().st_mode) == 0o600
    for dsn in (shared.dsn(), shared.admin_dsn, shared.socket_dsn()):
        assert password not in dsn
        assert one(dsn, "select 1") == 1


def test_tcp_without_the_password_is_refused(shared: Server, tmp_path: Path) -> None:
    no_passwords = tmp_path / "pgpass"
    no_passwords.touch(mode=0o600)
    for user in ("postgres", "cascade"):
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(host="127.0.0.1", port=shared.port, user=user, passfile=str(no_passwords))
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(host="127.0.0.1", port=shared.port, user=user, password="guess")


def test_the_socket_is_in_a_directory_that_only_its_owner_enters(shared: Server) -> None:
    assert stat.S_IMODE(shared.socket_dir.stat().st_mode) == 0o700
    assert (shared.socket_dir / f".s.PGSQL.{shared.port}").is_socket()


def test_the_role_cascade_owns_its_database_and_is_no_superuser(shared: Server) -> None:
    rights = "select array[rolsuper, rolcreaterole, rolcreatedb] from pg_roles where rolname = current_user"
    owner = "select pg_get_userbyid(datdba) from pg_database where datname = 'cascade'"
    assert one(shared.dsn(), rights) == [False, False, True]
    assert one(shared.dsn(), owner) == "cascade"


def test_the_server_listens_on_the_loopback_interface_only(shared: Server) -> None:
    assert one(shared.admin_dsn, "show listen_addresses") == "127.0.0.1"


def test_a_server_started_by_root_holds_no_privilege(shared: Server) -> None:
    assert shared.pid is not None
    status = Path(f"/proc/{shared.pid}/status")
    if os.geteuid() != 0 or not status.exists():
        pytest.skip("only root can lose what root has, and only /proc tells")
    held = dict(line.split(":", 1) for line in status.read_text().splitlines())
    assert int(held["CapEff"], 16) == 0
    same_namespace = os.readlink(f"/proc/{shared.pid}/ns/user") == os.readlink("/proc/self/ns/user")
    assert not same_namespace or held["Uid"].split()[0] != "0"


def test_without_user_namespaces_root_uses_an_unprivileged_account() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    account = account_named("nobody")
    try:
        with Cluster.temporary(account=account) as cluster:
            server = cluster["n1"]
            assert os.stat(f"/proc/{server.pid}").st_uid == account.uid
            assert one(server.dsn(), "select 1") == one(server.socket_dsn(), "select 1") == 1
            server.kill()
            server.start()
            directory = cluster.dir
        assert not directory.exists()
    except ServerError as error:
        if "cannot be run by the unprivileged account" not in str(error):
            raise
        pytest.skip("the programs are where only root may read them")


def test_a_killed_server_starts_again_with_what_was_committed(make_cluster: MakeCluster) -> None:
    with make_cluster() as cluster:
        server = cluster["n1"]
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("create table t as select 7 as x")
            server.kill()
            assert server.state is ServerState.CRASHED
            assert servers_in(server.data_dir) == []
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        server.start()
        assert one(server.dsn(), "select x from t") == 7


def test_a_stale_pid_file_that_names_a_stranger_harms_nobody(make_cluster: MakeCluster) -> None:
    """The number in postmaster.pid belongs to another process by now, perhaps to another server."""
    with make_cluster(nodes=2) as cluster, subprocess.Popen(["sleep", "60"]) as stranger:
        server, other = cluster["n1"], cluster["n2"]
        server.kill()
        pid_file = server.data_dir / "postmaster.pid"
        rest = pid_file.read_text().split("\n", 1)[1]
        assert other.pid is not None
        for pid in (stranger.pid, other.pid):
            pid_file.write_text(f"{pid}\n{rest}")
            assert server.state is ServerState.CRASHED
            server.stop("immediate")
            server.kill()
        assert stranger.poll() is None
        assert other.is_running
        stranger.kill()
        pid_file.write_text(f"{stranger.pid}\n{rest}")
        stranger.wait()
        server.start()
        assert one(server.dsn(), "select 1") == 1


def test_a_server_whose_process_was_killed_by_hand_starts_again(make_cluster: MakeCluster) -> None:
    with make_cluster() as cluster:
        pid = cluster["n1"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: cluster["n1"].state is ServerState.CRASHED, timeout_s=10)
        cluster.up()
        assert cluster["n1"].is_running and cluster["n1"].pid != pid


def test_a_server_gets_another_port_if_its_own_was_taken(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    cluster.up()
    taken, kept = cluster["n1"].port, cluster["n2"].port
    cluster.down()
    with socket.socket() as occupier:
        occupier.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        occupier.bind(("127.0.0.1", taken))
        occupier.listen()
        cluster.up()
    assert cluster["n1"].port != taken
    assert cluster["n2"].port == kept
    assert one(Cluster.open(cluster.dir)["n1"].dsn(), "select 1") == 1


def test_a_server_that_cannot_start_says_why(make_cluster: MakeCluster) -> None:
    with pytest.raises(ServerError, match=r"(?s)stopped while starting.*no_such_setting") as caught:
        make_cluster(settings={"no_such_setting": "1"}).up()
    assert caught.value.hint is not None and "n1.log" in caught.value.hint
    cluster = make_cluster()
    cluster.up()  # the bad setting was not remembered
    assert cluster["n1"].is_running


def test_settings_are_written_as_given(make_cluster: MakeCluster) -> None:
    value = "it's a \\ in here"
    with make_cluster(settings={"cluster_name": value, "work_mem": "5MB"}) as cluster:
        assert one(cluster["n1"].dsn(), "show cluster_name") == value
        assert one(cluster["n1"].dsn(), "show work_mem") == "5MB"
        # A later `up` may change what needs no restart, also by another object.
        make_cluster(settings={"work_mem": "6MB"}).up()
        assert wait_until(lambda: one(cluster["n1"].dsn(), "show work_mem") == "6MB", timeout_s=10)


@pytest.mark.parametrize("name", ["port", "listen_addresses", "a b", "x\ny", ""])
def test_settings_that_cannot_be_given_are_refused(name: str, make_cluster: MakeCluster) -> None:
    with pytest.raises(ConfigError):
        make_cluster(settings={name: "1"})


def test_a_smart_stop_waits_for_clients_and_says_so(make_cluster: MakeCluster) -> None:
    with make_cluster() as cluster:
        server = cluster["n1"]
        with psycopg.connect(server.dsn()):
            with pytest.raises(ServerError, match="did not stop within"):
                server.stop("smart", timeout_s=0.2)
        assert wait_until(lambda: not server.is_running, timeout_s=10)
        server.stop()  # again, on a stopped one


def test_a_restart_keeps_the_port(make_cluster: MakeCluster) -> None:
    with make_cluster() as cluster:
        server = cluster["n1"]
        pid, port = server.pid, server.port
        server.restart()
        assert (server.port, server.pid != pid) == (port, True)


def test_a_temporary_cluster_goes_with_a_process_that_is_killed(templates: Path) -> None:
    code = (
        "import sys, time\n"
        "from cascade.dev import Cluster\n"
        "with Cluster.temporary(templates=sys.argv[1]) as cluster:\n"
        "    print(cluster.dir, cluster['n1'].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, templates], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        process.kill()
    assert wait_until(lambda: not Path(directory).exists(), timeout_s=20)
    assert servers_in(Path(directory) / "nodes" / "n1") == []
    assert not Path(f"/proc/{pid}/cwd").exists()
