"""What an archive holds, as a row of numbered files that only ever grows: the manifest.

    _manifest/00000001.json      whole: every data file, and the ticks they cover
    _manifest/00000002.json      what was added and what was taken out since
    ...

A version is made under a name that nobody has taken, whole or not at all.  So of two archivers one makes it, and the
other looks again; and data files that no version lists are not there, whoever left them.  Every fiftieth version
is whole, so that reading takes few files and the older ones can go (docs/adr/0035).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cascade.errors import ConfigError, CorruptionError

if TYPE_CHECKING:
    from cascade.spark.files import Files

FOLDER = "_manifest"
FORMAT = 1
#: Every so many versions one is whole.
WHOLE_EVERY = 50
NAME = re.compile(r"(\d{8,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file: events of one day, from a range of ticks."""

    path: str
    day: str
    events: int
    bytes: int
    first_tick: int
    last_tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A tick as the archive remembers it: its chain proves that a queue is on the same path."""

    tick_id: int
    chain: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an archive holds: all events of the ticks after `first` up to `last`, but for gaps and what was let go."""

    version: int = 0
    first: Mark | None = None
    last: Mark | None = None
    #: Ranges of ticks, (after, up to], that the queue had let go before they were archived.
    gaps: tuple[tuple[int, int], ...] = ()
    #: Events up to this tick may have been let go by the archive's own retention.
    expired_to: int | None = None
    files: Mapping[str, DataFile] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """How many events it holds."""
        return sum(file.events for file in self.files.values())

    @property
    def bytes(self) -> int:
        """How many bytes of Parquet it holds."""
        return sum(file.bytes for file in self.files.values())

    @property
    def complete_after(self) -> int | None:
        """The tick after which nothing is missing."""
        known = [self.first.tick_id] if self.first else []
        known += [] if self.expired_to is None else [self.expired_to]
        return max([*known, *(gap[1] for gap in self.gaps)], default=None)

    def changed(
        self,
        *,
        add: Iterable[DataFile] = (),
        remove: Iterable[str] = (),
        to: Mark | None = None,
        gap: tuple[int, int] | None = None,
        expired_to: int | None = None,
    ) -> State:
        """Return the state after a change, under the next version."""
        gone = set(remove)
        if missing := gone - self.files.keys():
            raise CorruptionError(f"version {self.version} of the archive does not hold {min(missing)}")
        files = {path: file for path, file in self.files.items() if path not in gone}
        return replace(
            self,
            version=self.version + 1,
            first=self.first or to,
            last=to or self.last,
            gaps=self.gaps if gap is None else (*self.gaps, gap),
            expired_to=max((x for x in (self.expired_to, expired_to) if x is not None), default=None),
            files=files | {file.path: file for file in add},
        )


class Manifest:
    """The versions of one archive."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def load(self) -> State:
        """Return the newest state; that of an archive which was never written is empty."""
        versions = self.versions()
        if not versions:
            return State()
        changes: list[dict[str, Any]] = []
        for version in sorted(versions, reverse=True):
            changes.append(self._read(version))
            if "files" in changes[-1]:
                break
        else:
            raise CorruptionError(
                f"{self._files.url}: no whole version of the manifest is left", hint="Restore the folder _manifest."
            )
        files = {file["path"]: DataFile(**file) for file in changes[-1]["files"]}
        for change in reversed(changes[:-1]):
            for path in change["remove"]:
                del files[path]
            files |= {file["path"]: DataFile(**file) for file in change["add"]}
        newest = changes[0]
        return State(
            version=newest["version"],
            first=newest["first"] and Mark(**newest["first"]),
            last=newest["last"] and Mark(**newest["last"]),
            gaps=tuple((after, to) for after, to in newest["gaps"]),
            expired_to=newest["expired_to"],
            files=files,
        )

    def store(self, old: State, new: State, what: str) -> bool:
        """Make the version that follows; False when somebody else has made it."""
        assert new.version == old.version + 1, (old.version, new.version)
        text: dict[str, Any] = {
            "format": FORMAT,
            "version": new.version,
            "what": what,
            "at": datetime.now(UTC).isoformat(),
            "first": new.first and asdict(new.first),
            "last": new.last and asdict(new.last),
            "gaps": new.gaps,
            "expired_to": new.expired_to,
            "add": [asdict(file) for path, file in new.files.items() if path not in old.files],
            "remove": sorted(old.files.keys() - new.files.keys()),
        }
        if new.version % WHOLE_EVERY == 1:
            text["files"] = [asdict(file) for file in new.files.values()]
        return self._files.create(_path(new.version), json.dumps(text))

    def marks(self) -> Iterator[Mark]:
        """Yield the ticks at which commits ended, newest first, as far as their versions are kept."""
        for version in sorted(self.versions(), reverse=True):
            if (last := self._read(version)["last"]) is not None:
                yield Mark(**last)

    def versions(self) -> dict[int, float]:
        """Return the versions that are there, and when each was written."""
        found = {}
        for entry in self._files.list(FOLDER):
            if match := NAME.fullmatch(entry.path.rpartition("/")[2]):
                found[int(match[1])] = entry.written_at
        return found

    def removed_since(self, moment: float) -> set[str]:
        """Return the data files that were taken out since a moment: somebody may still be reading them."""
        recent = [version for version, written_at in self.versions().items() if written_at >= moment]
        return {path for version in recent for path in self._read(version)["remove"]}

    def forget(self, before: float) -> int:
        """Remove the versions that nobody needs any more, written before a moment; returns how many."""
        versions = self.versions()
        newest_whole = max((v for v in versions if v % WHOLE_EVERY == 1), default=0)
        old = [version for version, at in versions.items() if version < newest_whole and at < before]
        for version in old:
            self._files.remove(_path(version))
        return len(old)

    def _read(self, version: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._files.read(_path(version)))
        if found["format"] != FORMAT:
            raise ConfigError(
                f"{self._files.url}: the manifest has format {found['format']}, this program knows {FORMAT}",
                hint="Use the version of cascade-queue that wrote it, or a newer one.",
            )
        return found


def _path(version: int) -> str:
    return f"{FOLDER}/{version:08}.json"
