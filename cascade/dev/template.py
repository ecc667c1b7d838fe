"""Templates: a data directory made once by initdb, and copied for every node.

A template holds the role `cascade`, which is no superuser, and a database of the same name that it
owns.  Directories are built under another name and renamed when whole, so whoever is killed on
the way leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade.dev.account import Account
from cascade.dev.binaries import Binaries
from cascade.errors import ServerError

CONF_NAME = "cascade.conf"
ROLES = ("postgres", "cascade")
INITDB_OPTIONS = (
    "--no-sync",
    "--username=postgres",
    "--locale=C",
    "--encoding=UTF8",
    "--auth-local=trust",
    "--auth-host=scram-sha-256",
)


class Templates:
    """The templates in one directory, which several clusters and processes may share.

    They share a password then, too: it is in the template's roles.
    """

    def __init__(self, directory: Path, *, account: Account) -> None:
        self.dir = directory
        self._account = account

    def password(self) -> str:
        """The password new clusters start with; chosen at random by the first."""
        passfile = self.dir / "pgpass"
        with locked(self.dir):
            if not passfile.exists():
                write_passfile(passfile, secrets.token_urlsafe(24))
            return read_password(passfile)

    def get(self, binaries: Binaries, password: str) -> Path:
        """The template for these programs and this password, made if need be."""
        digest = hashlib.sha256(f"{binaries.bin_dir}\0{password}".encode()).hexdigest()[:12]
        path = self.dir / f"pg{binaries.version_text}-{digest}"
        with locked(self.dir):
            if not path.exists():
                with new_dir(path, account=self._account) as partial:
                    self._fill(partial, binaries, password)
        return path

    def _fill(self, data_dir: Path, binaries: Binaries, password: str) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self.dir, prefix="password-") as file:
            file.write(password)
            file.flush()
            self._account.own(Path(file.name))
            self._account.run(
                [binaries.bin_dir / "initdb", *INITDB_OPTIONS, f"--pwfile={file.name}", "-D", data_dir],
                what="initdb",
            )
        create_role = f"create role cascade login createdb password '{password}'"
        create_database = "create database cascade owner cascade"
        run_single(data_dir, [create_role, create_database], binaries=binaries, account=self._account)
        with (data_dir / "postgresql.conf").open("a") as conf:
            conf.write(f"\n# What follows is ours, and written again at every start.\ninclude '{CONF_NAME}'\n")


def run_single(data_dir: Path, statements: Sequence[str], *, binaries: Binaries, account: Account) -> None:
    """Run statements by a server that nobody can connect to; the first that fails is an error."""
    options = ("-j", "-c", "fsync=off", "-c", "exit_on_error=on")
    text = "".join(f"{statement};\n\n" for statement in statements)
    account.run([binaries.postgres, "--single", *options, "-D", data_dir, "postgres"], text=text, what="postgres")


def copy_template(template: Path, data_dir: Path, *, account: Account) -> None:
    """Make `data_dir` a copy of a template, sharing its blocks where the file system can."""
    with new_dir(data_dir, account=account) as partial:
        for command in (("cp", "-a", "--reflink=auto"), ("cp", "-a")):
            done = subprocess.run(
                [*command, f"{template}/.", partial], capture_output=True, text=True, check=False, timeout=120
            )
            if done.returncode == 0:
                return
        raise ServerError(f"{data_dir}: the template cannot be copied\n{done.stderr.strip()}")


@contextlib.contextmanager
def new_dir(path: Path, *, account: Account) -> Iterator[Path]:
    """A directory to fill that becomes `path` when the block ends well, and vanishes otherwise.

    Only one process at a time may build one path.
    """
    for leftover in path.parent.glob(f"{path.name}.*partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    # A name never used before: a program orphaned by a killed builder may still write into its own.
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{path.name}.", suffix=".partial"))
    try:
        account.own(partial)
        yield partial
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def locked(directory: Path, *, timeout_s: float = 120) -> Iterator[None]:
    """Keep other processes out of `directory`; the lock goes with the process that holds it."""
    path, deadline = directory / "lock", time.monotonic() + timeout_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have removed the directory: then this lock keeps nobody out.
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                break
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > deadline:
            raise ServerError(f"{directory} is locked by another process", hint="wait for it, or end it")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(fd)


def write_passfile(path: Path, password: str) -> None:
    """Write the password of both roles where libpq looks it up, for our eyes only."""
    lines = "".join(f"127.0.0.1:*:*:{role}:{password}\n" for role in ROLES)
    write_private(path, lines)


def read_password(path: Path) -> str:
    """The password in a file that `write_passfile` wrote."""
    return path.read_text().splitlines()[0].rpartition(":")[2]


def write_private(path: Path, text: str) -> None:
    """Replace a file by `text` in one step; nobody else may read it."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp makes it 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
