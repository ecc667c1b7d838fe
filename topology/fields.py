"""The fields of a topology file: the table that the parser reads by and the JSON Schema is printed from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from cascade.topology.model import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text of a certain form; where `takes_number`, a whole number stands for its digits."""

    form: str
    pattern: str
    example: str
    takes_number: bool = False
    is_shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A whole number within limits."""

    least: int
    most: int
    example: str

    @property
    def form(self) -> str:
        """Return what it is, in words."""
        if self.least == self.most:
            return f"{self.least}, the only one this release knows"
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def form(self) -> str:
        """Return the words."""
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """Text, a number, true or false: what a handler makes sense of."""

    form: str = "text, a number, true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list of texts, at least one."""

    items: Text
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOf:
    """Names chosen by the user, each with a value of one kind."""

    keys: Text
    values: Kind
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A key and what may stand there."""

    name: str
    kind: Kind
    help: str
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Fixed keys, each with a value of its own kind."""

    fields: tuple[Field, ...]
    form: str

    def field(self, name: str) -> Field | None:
        """Return a field by its key."""
        return next((field for field in self.fields if field.name == name), None)


Kind: TypeAlias = Text | Number | Choice | Scalar | ListOf | MapOf | Record

_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_DECIMAL = r"0|[1-9][0-9]{0,18}"
_LENGTH = r"[0-9]{1,12}(?:\.[0-9]{1,6})? ?"
_UNIT = (
    "(?:us|microseconds?|ms|msecs?|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?"
    "|d|days?|w|weeks?|months?)"
)
_CLOCK = r"[0-9]{1,6}:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"

#: The same rule as cascade.names.queue_name.
SET_NAME = Text(
    form="a queue's name: up to 40 letters, digits, underscores and hyphens, not beginning with a hyphen",
    pattern=r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}",
    example="orders",
)
NAME = Text(
    form="a name: up to 40 letters, digits, underscores, hyphens and dots, beginning with none of the last two",
    pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,39}",
    example="s1",
)
DATABASE_NAME = replace(NAME, example="ams1")
OPTION_NAME = Text(
    form="an option's name: up to 40 letters, digits and underscores, not beginning with a digit",
    pattern=r"[A-Za-z_][A-Za-z0-9_]{0,39}",
    example="table",
)
DSN = Text(
    form="a DSN: 'host=... dbname=...', service=NAME or postgresql://...",
    pattern=r"[^\r\n]+",
    example="service=ams1",
    is_shown=False,
)
URL = Text(form="a URL", pattern=r"[^\r\n]+", example="mqtt://broker:1883", is_shown=False)
HANDLER = Text(
    form="package.module:function",
    pattern=rf"{_WORD}(?:\.{_WORD})*:{_WORD}",
    example="shop.handlers:apply",
)
START = Text(
    form="now, earliest or the id of a tick", pattern=rf"now|earliest|{_DECIMAL}", example="earliest", takes_number=True
)
INTERVAL = Text(
    form="a length of time such as '50 ms', '1 hour 30 min' or a number of seconds",
    pattern=rf"{_LENGTH}{_UNIT}(?: {_LENGTH}{_UNIT})*|{_CLOCK}|{_DECIMAL}",
    example="1 hour",
    takes_number=True,
)

DATABASE = Record(
    form="a mapping with the key dsn",
    fields=(
        Field(
            name="dsn",
            kind=DSN,
            is_required=True,
            help="How to connect, without any password: that is for pgpass, a service file or PGPASSWORD. "
            "${NAME} and ${NAME:-default} are replaced from the environment.",
        ),
    ),
)

NODE = Record(
    form="a mapping such as {database: ams1, role: root}",
    fields=(
        Field(
            name="database", kind=DATABASE_NAME, is_required=True, help="The database it lives in, from `databases`."
        ),
        Field(
            name="role",
            kind=Choice(words=tuple(map(str, Role))),
            is_required=True,
            help="What it does: root takes inserts, branch keeps a full copy, leaf only processes; "
            "a combined set has a combined-root, fed by the merge-leaf of each part, which need not be written.",
        ),
        Field(name="provider", kind=NAME, help="The node of this set it copies from; every node but the root has one."),
        Field(name="handler", kind=HANDLER, help="The function that processes each batch, on a branch or leaf."),
        Field(name="start", kind=START, help="Where a new leaf begins: now, earliest (the default), or a tick."),
        Field(name="into", kind=SET_NAME, help="The combined set that a merge-leaf feeds."),
        Field(
            name="options",
            kind=MapOf(keys=OPTION_NAME, values=Scalar(), form="a mapping of options"),
            help="What the handler is told; never a secret.",
        ),
    ),
)

OPTIONS = Record(
    form="a mapping of options",
    fields=(
        Field(
            name="tick_max_events",
            kind=Number(least=1, most=1_000_000_000, example="500"),
            help="A tick is made once so many events wait for one.",
        ),
        Field(name="tick_max_lag", kind=INTERVAL, help="No event waits longer for a tick."),
        Field(name="tick_idle", kind=INTERVAL, help="A tick is made after so long without events."),
        Field(name="rotation_period", kind=INTERVAL, help="How long one partition is filled before the next."),
        Field(
            name="payload_max_bytes",
            kind=Number(least=1, most=536_870_912, example="67108864"),
            help="The largest payload, its headers included, that the queue takes.",
        ),
        Field(
            name="slots",
            kind=Number(least=3, most=10, example="3"),
            help="The number of partitions; fixed when the queue is made.",
        ),
    ),
)

SET = Record(
    form="a mapping with the key nodes",
    fields=(
        Field(
            name="nodes",
            kind=MapOf(keys=NAME, values=NODE, form="a mapping of nodes by name"),
            is_required=True,
            help="The nodes that carry the queue, by name.",
        ),
        Field(
            name="combines",
            kind=ListOf(items=SET_NAME, form="a list of sets, at least one"),
            help="The sets whose queues are merged into this one, which makes it a combined set. A merge-leaf of each "
            "follows, where the combined-root is and where the first branch is, unless it is written out.",
        ),
        Field(name="options", kind=OPTIONS, help="Options of the queue, for when it is made."),
        Field(
            name="revision",
            kind=Number(least=0, most=2**53 - 1, example="7"),
            help="The revision this file is based on; a file that is older than the databases is refused.",
        ),
    ),
)

SIGNALS = Record(
    form="a mapping with the key mqtt",
    fields=(Field(name="mqtt", kind=URL, help="A broker that carries wake-ups: mqtt:// or mqtts://, no password."),),
)

TOPOLOGY = Record(
    form="a mapping with the keys version, databases and sets",
    fields=(
        Field(
            name="version",
            kind=Number(least=1, most=1, example="1"),
            is_required=True,
            help="The version of this format.",
        ),
        Field(
            name="databases",
            kind=MapOf(keys=DATABASE_NAME, values=DATABASE, form="a mapping of databases by name"),
            is_required=True,
            help="Every database that has a node, by name; some may have none.",
        ),
        Field(
            name="sets",
            kind=MapOf(keys=SET_NAME, values=SET, form="a mapping of sets by name"),
            is_required=True,
            help="The queues that are replicated; each set is named like its queue.",
        ),
        Field(name="signals", kind=SIGNALS, help="Ways to wake a daemon, besides LISTEN and polling."),
    ),
)
