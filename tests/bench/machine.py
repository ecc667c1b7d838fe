"""What was measured on: the machine and the versions of everything."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the processor, cores, memory and kernel."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "CPU": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{pages / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }


def stolen() -> tuple[int, int] | None:
    """Return the time the host took from this machine and the time there was, in ticks; None if unknown."""
    try:
        times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return times[7], sum(times)


def versions() -> dict[str, str]:
    """Return Python and the drivers."""
    return {
        "Python": platform.python_version(),
        "psycopg": _version("psycopg"),
        "psycopg2": _version("psycopg2-binary", "psycopg2"),
        "Cascade": _commit() or _version("cascade-queue"),
    }


def _commit() -> str | None:
    """Return which commit this tree is at, and whether it was changed since; None outside a repository."""
    command = ["git", "-C", Path(__file__).parent, "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(*packages: str) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"
