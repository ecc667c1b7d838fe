"""Several servers in one directory: together up and down, by several processes, and never half made."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from cascade.dev import Cluster, ServerState, all_binaries
from cascade.dev.state import load_state
from cascade.errors import ConfigError, NotFoundError, ServerError

MakeCluster = Callable[..., Cluster]


def test_a_temporary_cluster_is_gone_after_an_exception(templates: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with Cluster.temporary(nodes=2, templates=templates) as cluster:
            directory, servers = cluster.dir, list(cluster.nodes.values())
            assert all(server.is_running for server in servers)
            servers[0].kill()
            raise ZeroDivisionError
    assert not directory.exists()
    assert not any(server.is_running for server in servers)


def test_a_temporary_cluster_that_cannot_start_leaves_nothing(
    templates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ServerError, match="no_such_setting"):
        with Cluster.temporary(templates=templates, settings={"no_such_setting": "1"}) as cluster:
            pytest.fail(f"{cluster} is up")
    assert os.listdir(tmp_path) == []


def test_nodes_are_databases_of_their_own(templates: Path) -> None:
    with Cluster.temporary(nodes=["porto", "lisbon"], templates=templates) as cluster:
        with psycopg.connect(cluster["porto"].dsn()) as connection:
            connection.execute("create table here (x int)")
        with psycopg.connect(cluster["lisbon"].dsn()) as connection:
            assert connection.execute("select to_regclass('here')").fetchone() == (None,)
        with pytest.raises(NotFoundError, match=r"no node 'madrid'.*porto, lisbon"):
            cluster["madrid"]


def test_a_cluster_used_as_a_context_is_down_after_it_and_keeps_its_data(make_cluster: MakeCluster) -> None:
    with make_cluster() as cluster:
        with psycopg.connect(cluster["n1"].dsn()) as connection:
            connection.execute("create table t as select 1 as x")
        port = cluster["n1"].port
    assert cluster["n1"].state is ServerState.STOPPED
    with make_cluster() as cluster:
        assert cluster["n1"].port == port
        with psycopg.connect(cluster["n1"].dsn()) as connection:
            assert connection.execute("select x from t").fetchone() == (1,)


def test_more_nodes_can_be_added_and_fewer_asked_for(make_cluster: MakeCluster) -> None:
    make_cluster(nodes=1).up()
    first = make_cluster(nodes=1)["n1"].pid
    make_cluster(nodes=3).up()
    cluster = make_cluster(nodes=2)
    cluster.up()
    assert list(cluster.nodes) == ["n1", "n2", "n3"]
    assert len({server.port for server in cluster.nodes.values()}) == 3
    assert cluster["n1"].pid == first


def test_half_made_directories_are_made_anew(make_cluster: MakeCluster, cluster_dir: Path, templates: Path) -> None:
    """Killed during initdb or during the copy: what is there is not taken for a node."""
    for leftover in (cluster_dir / "nodes" / "n1.partial", cluster_dir / "nodes" / "n1.x7.partial"):
        leftover.mkdir(parents=True)
        (leftover / "PG_VERSION").write_text("15\n")
    (cluster_dir / "lock").touch()
    with make_cluster() as cluster:
        assert cluster["n1"].is_running
        assert os.listdir(cluster_dir / "nodes") == ["n1"]


def test_a_half_made_template_is_made_anew(tmp_path: Path) -> None:
    with Cluster.temporary(templates=tmp_path) as cluster:
        [template] = tmp_path.glob("pg*-*")
        password = (cluster.dir / "pgpass").read_text()
    template.rename(tmp_path / f"{template.name}.ab.partial")
    with Cluster.temporary(templates=tmp_path) as cluster:
        assert [path.name for path in tmp_path.glob("pg*-*")] == [template.name]
        assert (cluster.dir / "pgpass").read_text() == password


def test_a_directory_that_holds_something_else_is_refused(make_cluster: MakeCluster, cluster_dir: Path) -> None:
    cluster_dir.mkdir()
    (cluster_dir / "thesis.txt").write_text("dear")
    for attempt in (make_cluster().up, make_cluster().remove):
        with pytest.raises(ServerError, match=r"is not a cluster: it holds thesis\.txt"):
            attempt()
    assert os.listdir(cluster_dir) == ["thesis.txt"]


def test_removing_a_cluster_spares_files_that_came_from_elsewhere(make_cluster: MakeCluster, cluster_dir: Path) -> None:
    cluster = make_cluster()
    cluster.up()
    (cluster_dir / "notes.txt").write_text("dear")
    cluster.remove()
    assert os.listdir(cluster_dir) == ["notes.txt"]


def test_a_directory_with_a_long_path_gets_its_socket_elsewhere(tmp_path: Path, templates: Path) -> None:
    directory = tmp_path / ("long" * 30) / "c"
    cluster = Cluster(directory, templates=templates, settings={"fsync": "off"})
    with cluster:
        server = Cluster.open(directory)["n1"]
        short = server.socket_dir
        assert not short.is_relative_to(directory)
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
        with psycopg.connect(server.socket_dsn()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    assert not short.exists()
    with cluster:
        assert cluster["n1"].socket_dir.exists()
    cluster.remove()
    assert not directory.exists()


def test_a_socket_directory_that_others_may_enter_is_not_used_again(tmp_path: Path, templates: Path) -> None:
    """The temporary directory was emptied, and somebody made one of the name that is remembered."""
    with Cluster(tmp_path / ("long" * 30), templates=templates, settings={"fsync": "off"}) as cluster:
        server = cluster["n1"]
        server.kill()
        short = server.socket_dir
        shutil.rmtree(short)
        short.mkdir(mode=0o755)
        server.start()
        assert server.socket_dir != short
        assert os.listdir(short) == []
        short.rmdir()
    cluster.remove()


def test_what_is_remembered_is_private_and_holds_no_password(make_cluster: MakeCluster, cluster_dir: Path) -> None:
    with make_cluster(nodes=2) as cluster:
        file = cluster_dir / "cluster.json"
        state = load_state(cluster_dir)
        assert state is not None
        assert state.nodes == {name: server.port for name, server in cluster.nodes.items()}
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (cluster_dir / "pgpass").read_text().splitlines()[0].rpartition(":")[2] not in file.read_text()


def test_a_damaged_state_file_is_an_error_that_names_it(cluster_dir: Path) -> None:
    cluster_dir.mkdir()
    (cluster_dir / "cluster.json").write_text('{"nodes": 3')
    with pytest.raises(ServerError, match=r"cluster\.json is not what Cascade wrote"):
        Cluster.open(cluster_dir)
    (cluster_dir / "cluster.json").unlink()


def test_nodes_keep_the_major_version_that_made_them(make_cluster: MakeCluster) -> None:
    found = all_binaries()
    if len(found) < 2:
        pytest.skip("one version of PostgreSQL is installed")
    make_cluster(binaries=found[1]).up()
    assert make_cluster()["n1"].binaries.version == found[1].version
    with pytest.raises(ServerError, match="are PostgreSQL"):
        make_cluster(binaries=found[0])


@pytest.mark.parametrize("nodes", [0, [], ["a", "a"], ["../x"], ["a.b"], ["A"]])
def test_nodes_that_cannot_be_are_refused(nodes: int | list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Cluster(tmp_path, nodes=nodes)
