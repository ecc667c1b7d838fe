"""Changing a topology file: roles, providers and revisions are replaced in the text, and nothing else is touched.

Comments, order and layout stay, since the text is not written anew: PyYAML says where each key and value
stands, and only those characters are replaced.  The result is read again, and must say what was wanted.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import yaml

from cascade.errors import ConflictError, TopologyError
from cascade.topology.model import Topology
from cascade.topology.parse import parse

#: Characters from here to there, and what stands there instead.
Change: TypeAlias = tuple[int, int, str]
Pair: TypeAlias = tuple[yaml.Node, yaml.Node]

BY_HAND = "Change role:, provider: and revision: in the file by hand."


def read_file(path: Path) -> str:
    """Return a file's text with its line ends as they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def write_back(path: Path, before: str, after: str) -> None:
    """Replace a file at once; refused if it is no longer what was read."""
    target = path.resolve()
    if read_file(target) != before:
        raise ConflictError(f"{path} was changed meanwhile and is left as it is", hint="Compare it with the databases.")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(target, name)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def edit(text: str, wanted: Topology) -> str:
    """Return a file's text so that it says what is wanted; only roles, providers and revisions may differ."""
    source = wanted.source
    found = parse(text, source=source)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert root is not None, "it was parsed"
    changes = sorted(_changes(text, root, found, wanted))
    for (_, end, _), (start, _, _) in pairwise(changes):
        if start < end:
            raise TopologyError(f"{source}: it shares what has to differ, by an alias", hint=BY_HAND)
    made = text
    for start, end, new in reversed(changes):
        made = made[:start] + new + made[end:]
    try:
        is_right = parse(made, source=source) == wanted
    except TopologyError:
        is_right = False
    if not is_right:
        raise TopologyError(f"{source}: it is written in a way that cannot be changed safely", hint=BY_HAND)
    return made


def _changes(text: str, root: yaml.Node, found: Topology, wanted: Topology) -> Iterator[Change]:
    """Yield what has to be replaced where."""
    sets = _value(root, "sets")
    for name, new in wanted.sets.items():
        if name not in found.sets:
            continue
        old, at = found.sets[name], _value(sets, name)
        if new.revision != old.revision and new.revision is not None:
            yield from _put(text, _pair(sets, name), at, "revision", str(new.revision))
        nodes = _value(at, "nodes")
        for node in new.nodes.values():
            was = old.nodes.get(node.name)
            if was is None or node.is_derived:
                continue
            place = _value(nodes, node.name)
            if node.role != was.role:
                yield _replace(_value(place, "role"), str(node.role))
            if node.provider is None and was.provider is not None:
                yield from _remove(text, place, "provider")
            elif node.provider is not None and was.provider is None:
                yield _insert_after(text, place, "role", f"provider: {_scalar(node.provider)}")
            elif node.provider is not None and node.provider != was.provider:
                yield _replace(_value(place, "provider"), _scalar(node.provider))


def _put(text: str, owner: Pair, mapping: yaml.Node, key: str, value: str) -> Iterator[Change]:
    """Yield the change that gives a mapping a key, as the first of it if it has none."""
    assert isinstance(mapping, yaml.MappingNode), "it was parsed as one"
    if any(name.value == key for name, _ in mapping.value):
        yield _replace(_value(mapping, key), value)
        return
    first = mapping.value[0][0]
    if _is_flow(mapping):
        at = first.start_mark.index
        yield at, at, f"{key}: {value}, "
    else:
        at = _line_end(text, owner[0].end_mark.index)
        yield at, at, f"{_newline(text)}{' ' * first.start_mark.column}{key}: {value}"


def _insert_after(text: str, mapping: yaml.Node, key: str, entry: str) -> Change:
    """Return the change that adds an entry behind another one."""
    name, value = _pair(mapping, key)
    at = int(value.end_mark.index)
    if _is_flow(mapping):
        return at, at, f", {entry}"
    at = _line_end(text, at)
    return at, at, f"{_newline(text)}{' ' * name.start_mark.column}{entry}"


def _replace(node: yaml.Node, value: str) -> Change:
    return node.start_mark.index, node.end_mark.index, value


def _remove(text: str, mapping: yaml.Node, key: str) -> Iterator[Change]:
    """Yield the changes that take an entry away; a comment behind it stays."""
    name, value = _pair(mapping, key)
    start, end = name.start_mark.index, value.end_mark.index
    if "#" in text[name.end_mark.index : value.start_mark.index]:
        raise TopologyError(f"a comment stands between {key}: and its value", hint=BY_HAND)
    if _is_flow(mapping):
        yield from _remove_from_flow(text, mapping, name, start, end)
        return
    line = text.rfind("\n", 0, start) + 1
    stop = _line_end(text, end)
    if text[end:stop].strip():
        yield start, end + len(text[end:stop]) - len(text[end:stop].lstrip()), ""  # the comment takes its place
    else:
        after = stop + (2 if text[stop : stop + 2] == "\r\n" else 1)
        yield (line, after, "") if stop < len(text) else (len(text[:line].rstrip("\r\n")), end, "")


def _remove_from_flow(text: str, mapping: yaml.Node, name: yaml.Node, start: int, end: int) -> Iterator[Change]:
    """Yield the changes that take an entry and one comma away, and what is between them if that is nothing."""
    names = [key for key, _ in mapping.value]
    index = names.index(name)
    if index > 0:
        before = mapping.value[index - 1][1].end_mark.index
        comma = _comma(text, before, start)
        if text[comma + 1 : start].strip():
            yield comma, comma + 1, ""
            yield start, end, ""
        else:
            yield comma, end, ""
    elif len(names) > 1:
        after = names[1].start_mark.index
        comma = _comma(text, end, after)
        rest = text[comma + 1 : after]
        yield start, comma + 1 + (len(rest) - len(rest.lstrip(" ")) if rest.strip() == "" else 0), ""
    else:
        yield start, end, ""


def _comma(text: str, start: int, end: int) -> int:
    """Return where the comma between two entries stands, comments left out."""
    blank = re.sub(r"#[^\r\n]*", lambda match: " " * len(match[0]), text[start:end])
    return start + blank.index(",")


def _value(mapping: yaml.Node, key: str) -> yaml.Node:
    return _pair(mapping, key)[1]


def _pair(mapping: yaml.Node, key: str) -> Pair:
    return next((name, value) for name, value in mapping.value if name.value == key)


def _is_flow(mapping: yaml.Node) -> bool:
    return isinstance(mapping, yaml.MappingNode) and bool(mapping.flow_style)


def _line_end(text: str, at: int) -> int:
    """Return where the line that holds a character ends, its line end not counted."""
    found = re.compile(r"\r?\n|\Z").search(text, at)
    assert found is not None, "every text has an end"
    return found.start()


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _scalar(name: str) -> str:
    """Return a name as YAML, in quotes where YAML would take it for something else."""
    found = yaml.compose(name, Loader=yaml.SafeLoader)
    return name if found is not None and found.tag == "tag:yaml.org,2002:str" and found.value == name else f'"{name}"'
