"""YAML text -> Topology, or every problem in it with its line.

The text is composed into YAML nodes, which know their lines, and read by the table of fields; rules
that need the whole follow (validate.py).  Nothing is executed, and no tag makes an object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, assert_never

import yaml

from cascade.errors import Problem, TopologyError
from cascade.topology import fields as f
from cascade.topology.draft import Draft, Path, line_of, place, quoted
from cascade.topology.model import Database, Node, Role, Set, Topology, did_you_mean
from cascade.topology.validate import find_problems

_TAG = "tag:yaml.org,2002:"
_TYPES = {"str": "text", "int": "a number", "float": "a number", "bool": "true or false", "timestamp": "a date"}
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")


def load(path: str | FilePath) -> Topology:
    """Read a file; raise TopologyError with all its problems, or because it cannot be read."""
    try:
        text = FilePath(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"topology {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = Problem(source=str(path), line=line, fact="the file is not UTF-8", remedy="save it as UTF-8")
        raise TopologyError(problems=[problem]) from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str = "<text>") -> Topology:
    """Read a topology from YAML; raise TopologyError with all its problems."""
    draft, problems = read(text, source=source)
    problems += find_problems(draft)
    if problems:
        raise TopologyError(problems=sorted(problems, key=lambda problem: problem.line))
    return build(draft)


def read(text: str, *, source: str) -> tuple[Draft, list[Problem]]:
    """Return what can be read of a text, and what is wrong with its form."""
    reader = Reader(source)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reader.problems.append(syntax_problem(error, text, source))
        return reader.draft(None), reader.problems
    if root is None:
        remedy = "`cascade topology schema` prints what it may hold"
        reader.problems.append(Problem(source=source, line=1, fact="the file is empty", remedy=remedy))
        return reader.draft(None), reader.problems
    reader.lines[()] = 1
    return reader.draft(reader.read(f.TOPOLOGY, root, ())), reader.problems


def syntax_problem(error: Exception, text: str, source: str) -> Problem:
    """Return what PyYAML could not read, without the text around it, which may hold a secret."""
    line, fact = 1, "the file cannot be read"
    match error:
        case yaml.MarkedYAMLError():
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            # The name of an alias, a tag or an anchor ends the sentence; any of them may be a misplaced secret.
            found = re.sub(r"(alias|anchor|tag|handle|tag handle) ['\"].*", r"\1", error.problem or "")
            fact = found or fact
        case yaml.reader.ReaderError():
            line, fact = text.count("\n", 0, error.position) + 1, "a control character"
        case RecursionError():
            fact = "it is nested too deeply"
        case _:
            fact = "an escape that stands for no character"
    remedy = "mend the YAML; quote text that holds any of : # { } [ ] , & * ! | > % @"
    return Problem(source=source, line=line, fact=f"not YAML: {fact}", remedy=remedy)


class Reader:
    """Reads YAML nodes by the table of fields, and collects lines and problems on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def draft(self, values: Any) -> Draft:
        """Return what was read."""
        return Draft(source=self.source, values=values or {}, lines=self.lines)

    def read(self, kind: f.Kind, node: yaml.Node, path: Path) -> Any:
        """Return a value, or None after reporting why it cannot be read."""
        match kind:
            case f.Record():
                return self.record(kind, node, path)
            case f.MapOf():
                return self.mapping(kind, node, path)
            case f.ListOf():
                return self.listing(kind, node, path)
            case f.Text():
                return self.text(kind, node, path)
            case f.Number():
                return self.number(kind, node, path)
            case f.Choice():
                return self.choice(kind, node, path)
            case f.Scalar():
                return self.scalar(kind, node, path)
        assert_never(kind)

    def record(self, kind: f.Record, node: yaml.Node, path: Path) -> dict[str, Any] | None:
        """Read fixed keys: those unknown and those missing are problems."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong_type(kind, node, path)
            return None
        found = {}
        known = [field.name for field in kind.fields]
        for key, value in self.entries(node, path):
            field = kind.field(key)
            if field is None:
                line = self.lines[(*path, key)]
                self.add(path, f"unknown key {quoted(key)}", unknown_key(key, known), line=line)
            else:
                found[key] = self.read(field.kind, value, (*path, key))
        for field in kind.fields:
            if field.is_required and field.name not in found:
                self.add(path, f"no {field.name!r}", f"add {field.name}: {example(field.kind)}")
        return found

    def mapping(self, kind: f.MapOf, node: yaml.Node, path: Path) -> dict[str, Any] | None:
        """Read names chosen by the user."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong_type(kind, node, path)
            return None
        found = {}
        for key, value in self.entries(node, path):
            if not re.fullmatch(kind.keys.pattern, key):
                self.add((*path, key), "this name cannot be used", f"write {kind.keys.form}")
            found[key] = self.read(kind.values, value, (*path, key))
        return found

    def entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, yaml.Node]]:
        """Yield the keys of a mapping, the first of each name, and note their lines."""
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.add(path, "a key is no plain word", "write names as keys", line=line)
                continue
            key = key_node.value
            if key_node.tag == f"{_TAG}merge":
                self.add(path, "'<<' merges are not read", "write the keys out, or use an alias for a value", line=line)
            elif (first := self.lines.get((*path, key))) is not None:
                remedy = f"remove one; the first is in line {first}"
                self.add(path, f"the key {quoted(key)} is there twice", remedy, line=line)
            else:
                self.lines[(*path, key)] = line
                yield key, value

    def listing(self, kind: f.ListOf, node: yaml.Node, path: Path) -> list[Any] | None:
        """Read a list."""
        if not isinstance(node, yaml.SequenceNode):
            self.wrong_type(kind, node, path)
            return None
        if not node.value:
            self.add(path, f"{path[-1]} is an empty list", f"write {kind.form}, or remove it")
        found = []
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = item.start_mark.line + 1
            found.append(self.read(kind.items, item, (*path, index)))
        return found

    def text(self, kind: f.Text, node: yaml.Node, path: Path) -> str | None:
        """Read text of a certain form."""
        is_number = kind.takes_number and tag_of(node) == "int"
        if not isinstance(node, yaml.ScalarNode) or not (tag_of(node) == "str" or is_number):
            self.wrong_type(kind, node, path)
            return None
        if not re.fullmatch(kind.pattern, node.value) or (is_number and not _WHOLE.fullmatch(node.value)):
            shown = f" {quoted(node.value)}" if kind.is_shown else ""
            self.add(path, f"{key_of(path)}{shown} cannot be used", f"write {kind.form}")
            return None
        return str(node.value)

    def number(self, kind: f.Number, node: yaml.Node, path: Path) -> int | None:
        """Read a whole number within limits."""
        if tag_of(node) != "int" or not _WHOLE.fullmatch(node.value):
            self.wrong_type(kind, node, path)
            return None
        found = int(node.value)
        if not kind.least <= found <= kind.most:
            self.add(path, f"{key_of(path)} is {found}", f"write {kind.form}")
            return None
        return found

    def choice(self, kind: f.Choice, node: yaml.Node, path: Path) -> str | None:
        """Read one of a few words."""
        if tag_of(node) != "str":
            self.wrong_type(kind, node, path)
            return None
        if node.value not in kind.words:
            remedy = did_you_mean(node.value, kind.words, f"write {kind.form}")
            self.add(path, f"no {key_of(path)} {quoted(node.value)}", remedy)
            return None
        return str(node.value)

    def scalar(self, kind: f.Scalar, node: yaml.Node, path: Path) -> str | int | float | bool | None:
        """Read text, a number, true or false."""
        match tag_of(node):
            case "str":
                return str(node.value)
            case "bool" if node.value.lower() in ("true", "yes", "on", "false", "no", "off"):
                return node.value.lower() in ("true", "yes", "on")
            case "int" if _WHOLE.fullmatch(node.value):
                return int(node.value)
            case "float" if (found := plain_float(node.value)) is not None:
                return found
        self.wrong_type(kind, node, path)
        return None

    def wrong_type(self, kind: f.Kind, node: yaml.Node, path: Path) -> None:
        """Report a value that is of another kind than the field's; the value is not repeated."""
        tag = tag_of(node)
        remedy = f"write {kind.form}"
        match node:
            case yaml.MappingNode():
                found = "a mapping"
            case yaml.SequenceNode():
                found = "a list"
            case _:
                found = "empty" if tag == "null" else _TYPES.get(tag, "of an unknown kind")
        if isinstance(kind, f.Text | f.Choice) and tag in ("int", "float", "bool", "timestamp"):
            remedy = f"put it in quotes, or write {kind.form}"
        self.add(path, f"{key_of(path)} is {found}", remedy)

    def add(self, path: Path, fact: str, remedy: str, *, line: int | None = None) -> None:
        """Report a problem at a path; `fact` follows the name of the object it is about."""
        line = line_of(self.lines, path) if line is None else line
        self.problems.append(Problem(source=self.source, line=line, fact=f"{place(path)}: {fact}", remedy=remedy))


def key_of(path: Path) -> str:
    """Return the words for what stands at a path: its key, or its number in a list."""
    match path:
        case () | (_,) | ("databases" | "sets", _) | ("sets", _, "nodes", _):
            return "it"
        case (*_, "options", str(key)):
            return f"option {quoted(key)}"
        case (*_, key, int(index)):
            return f"{key}, item {index + 1},"
        case _:
            return str(path[-1])


def tag_of(node: yaml.Node) -> str:
    """Return the kind of a scalar in YAML's words: str, int, null; '' for what is no scalar."""
    return str(node.tag).removeprefix(_TAG) if isinstance(node, yaml.ScalarNode) else ""


def plain_float(text: str) -> float | None:
    """Return a number that JSON has too, or None."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def unknown_key(key: str, known: list[str]) -> str:
    """Return what helps with a key that is not known."""
    if key.lower() in ("password", "passwd", "sslpassword"):
        return "passwords belong in pgpass, a service file or PGPASSWORD"
    return did_you_mean(key, known, f"known are {', '.join(known)}")


def example(kind: f.Kind) -> str:
    """Return a value of a kind, as it may be written."""
    match kind:
        case f.Text() | f.Number():
            return kind.example
        case f.Choice():
            return kind.words[0]
        case _:
            return f"and below it {kind.form}"


def build(draft: Draft) -> Topology:
    """Return the values of a draft in which nothing is wrong."""
    return Topology(
        version=draft.values["version"],
        databases={name: Database(name=name, dsn=str(dsn)) for name, dsn in draft.databases.items()},
        sets={name: build_set(name, values) for name, values in draft.values["sets"].items()},
        signals=draft.values.get("signals", {}),
        source=draft.source,
    )


def build_set(name: str, values: dict[str, Any]) -> Set:
    """Return a set; a leaf that does not say where it starts does so at the earliest tick."""
    nodes = {}
    for node, parts in values["nodes"].items():
        role = Role(parts["role"])
        defaults = {"start": "earliest"} if role is Role.LEAF else {}
        nodes[node] = Node(name=node, set=name, **{**defaults, **parts, "role": role})
    rest = {"options": values.get("options", {}), "revision": values.get("revision")}
    return Set(name=name, nodes=nodes, combines=tuple(values.get("combines", ())), **rest)
