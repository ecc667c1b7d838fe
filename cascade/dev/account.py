"""The account a server runs under: PostgreSQL refuses root, so root runs it as somebody else.

In a user namespace root's files look like those of an ordinary user, and the server holds no
privilege.  Where namespaces are not to be had, an unprivileged account of the system is used, and
the directories made here are given to it.  No directory that existed before is changed.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cascade.errors import ServerError

UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
UNPRIVILEGED = ("nobody", "postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """How programs are run: behind `prefix`, or as the user `uid`, or plainly as ourselves."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run(self, argv: Sequence[str | Path], *, text: str = "", what: str) -> None:
        """Run a program to its end with `text` as its input; ServerError if it fails."""
        done = subprocess.run(
            [*self.prefix, *argv],
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=120,
            **self._options(argv),
        )
        if done.returncode != 0:
            raise ServerError(f"{what} failed (exit {done.returncode}):\n{done.stdout.strip()}")

    def spawn(self, argv: Sequence[str | Path], *, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program that outlives us, in a session of its own; it keeps the pid returned here."""
        return subprocess.Popen(
            [*self.prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **self._options(argv),
        )

    def own(self, path: Path) -> None:
        """Hand a file or directory that we made to the account."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def make_dir(self, path: Path) -> None:
        """Make a private directory that belongs to the account, unless it is there."""
        if not path.is_dir():
            path.mkdir(mode=0o700)
            self.own(path)

    def make_passage(self, path: Path) -> None:
        """Make a directory that stays ours, unless it is there; the account may pass through it."""
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.uid is not None:
                path.chmod(0o711)

    def _options(self, argv: Sequence[str | Path]) -> dict[str, Any]:
        options: dict[str, Any] = {"env": environment(), "cwd": "/"}
        if self.uid is not None:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
            self._check_access(Path(argv[0]))
        return options

    def _check_access(self, program: Path) -> None:
        try:
            subprocess.run(
                [program, "--version"],
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                check=False,
                timeout=20,
            )
        except PermissionError as error:
            raise ServerError(
                f"{program} cannot be run by the unprivileged account (uid {self.uid})",
                hint="install PostgreSQL where everybody may read it, or do not work as root",
            ) from error


def environment() -> Mapping[str, str]:
    """Our environment without what would steer PostgreSQL, and with messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


@functools.cache
def choose_account() -> Account:
    """Ourselves, unless we are root; then a user namespace, or else an unprivileged account."""
    if os.geteuid() != 0:
        return Account()
    if namespaces_work():
        return Account(prefix=UNSHARE)
    for name in UNPRIVILEGED:
        try:
            return account_named(name)
        except KeyError:
            continue
    raise ServerError(
        "PostgreSQL does not run as root; there are no user namespaces here and no unprivileged account",
        hint="run this as an ordinary user",
    )


def account_named(name: str) -> Account:
    """A named account of the system; KeyError if there is none."""
    entry = pwd.getpwnam(name)
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def namespaces_work() -> bool:
    """Whether a program can be run in a new user namespace here."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False, timeout=20)
    return done.returncode == 0
