"""Small files beside the data, on any file system that Hadoop knows: read, listed, removed, and made once.

Only the driver's Java can reach all of them, so this needs a session with one: Spark Connect has none.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a folder holds: a name below it, its size, and when it was written last, in seconds."""

    path: str
    bytes: int
    written_at: float


class Files:
    """The files below one folder; every path is relative to it."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        java: Any = getattr(spark, "_jvm", None)
        if java is None:
            raise ConfigError(
                "an archive cannot be reached through Spark Connect",
                hint="Run the command where the driver runs: with --master in place of --remote.",
            )
        self._java, self._conf = java, spark._jsc.hadoopConfiguration()
        path = self._path(url)
        try:
            self._fs = path.getFileSystem(self._conf)
        except Exception as error:
            raise ConfigError(
                f"{url}: no file system of Hadoop's: {first_line(error)}",
                hint="Write a path, hdfs://..., s3a://... or another scheme that Spark's jars know.",
            ) from error
        #: The folder, whole: what Spark is given to read and write.
        self.url = str(self._fs.makeQualified(path).toString()).rstrip("/")

    def at(self, path: str) -> str:
        """Return a path of this folder as Spark takes it."""
        return f"{self.url}/{path}"

    def list(self, path: str, *, deep: bool = False) -> list[Entry]:
        """Return the files of a folder, or also those in folders below it; none when it is not there."""
        where = self._path(self.at(path))
        if not self._fs.exists(where):
            return []
        found, entries = self._fs.listFiles(where, deep), []
        while found.hasNext():
            status = found.next()
            whole = str(status.getPath().toString())
            entries.append(
                Entry(
                    path=whole.removeprefix(self.url).lstrip("/"),
                    bytes=int(status.getLen()),
                    written_at=status.getModificationTime() / 1000,
                )
            )
        return entries

    def read(self, path: str) -> str:
        """Return what a file holds."""
        stream = self._fs.open(self._path(self.at(path)))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens when it is not there."""
        self._fs.delete(self._path(self.at(path)), True)

    def create(self, path: str, text: str) -> bool:
        """Make a file, whole or not at all; False when it is there already, whoever was first.

        Of several who try at once one succeeds, if the file system renames so: disks, HDFS and those like it do.
        """
        beside = f"{path.rpartition('/')[0]}/.{uuid.uuid4().hex}.new"
        if (disk := self.on_disk(path)) is not None:
            return _link(disk, text)
        stream = self._fs.create(self._path(self.at(beside)), False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        return self._rename(beside, path)

    def settle(self, paths: Iterable[str]) -> None:
        """Have data survive a crash of the machine; file systems other than a disk see to that themselves."""
        folders: set[Path] = set()
        for path in paths:
            disk = self.on_disk(path)
            if disk is not None and disk.exists():
                _sync(disk)
                folders.update(disk.parents[:3])
        for folder in folders:
            _sync(folder)

    def on_disk(self, path: str) -> Path | None:
        """Return where a path is on a disk of this machine, if it is."""
        whole = self.at(path)
        return Path("/" + whole.removeprefix("file:").lstrip("/")) if whole.startswith("file:") else None

    def _rename(self, old: str, new: str) -> bool:
        """Rename a file unless the new name is taken."""
        hadoop = self._java.org.apache.hadoop.fs
        context = hadoop.FileContext.getFileContext(self._path(self.at(new)).toUri(), self._conf)
        kind = getattr(hadoop, "Options$Rename")
        options = self._gateway().new_array(kind, 1)
        options[0] = kind.NONE
        try:
            context.rename(self._path(self.at(old)), self._path(self.at(new)), options)
        except Exception as error:
            self.remove(old)
            if "FileAlreadyExistsException" in str(error):
                return False
            raise
        return True

    def _gateway(self) -> Any:
        from pyspark import SparkContext

        return SparkContext._gateway

    def _path(self, url: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(url)


def _link(path: Path, text: str) -> bool:
    """Make a file on a disk: Java can only look first and then rename, and two could do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{uuid.uuid4().hex}.new")
    try:
        beside.write_text(text)
        _sync(beside)
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    _sync(path.parent)
    return True


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def first_line(error: BaseException) -> str:
    """Return what an error of Java's says first."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]
