"""cascade.sql: the schema as SQL files, in the order in which they are loaded.

tables/       what holds data: `if not exists`, so that a second run changes nothing
migrations/   what a release changed in what exists already: `.pre.sql` here, `.post.sql` after the views
functions/    created again on every install
views/        likewise
grants.sql    likewise
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

#: The version of the schema that this code installs and works with.
VERSION = 1


def read_folder(name: str) -> list[tuple[str, str]]:
    """Return (path, text) of every SQL file below a folder, in the order of their paths."""
    return sorted(_walk(resources.files(__package__).joinpath(name), name))


def read_file(name: str) -> str:
    """Return the text of one SQL file."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _walk(folder: Traversable, path: str) -> list[tuple[str, str]]:
    if not folder.is_dir():
        return []
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{path}/{entry.name}")
        elif entry.name.endswith(".sql"):
            found.append((f"{path}/{entry.name}", entry.read_text(encoding="utf-8")))
    return found
