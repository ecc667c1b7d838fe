"""What a comparison of carriers found: for programs, for the terminal, and as the ground of a repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cascade.spark.differences import Difference, Stretch, Tick

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cascade.topology import Topology

#: These are text in JSON, as all ids are.
IDS = ("tick_id", "from_tick", "to_tick", "first_tick", "last_tick", "found_tick", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Ticks of a carrier that could not be compared, and why: what comes after one, up to another."""

    node: str
    from_tick: int
    to_tick: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One carrier: what it has, and what of that was not compared."""

    node: str
    role: str
    provider: str | None
    first_tick: int
    last_tick: int
    first_time: datetime
    last_time: datetime
    #: It is a copy with events outside its last tick: those are in no batch.
    is_dirty: bool = False
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was compared, and every difference."""

    set: str
    made_at: datetime
    from_tick: int
    to_tick: int
    ticks: int
    events: int
    nodes: tuple[NodeReport, ...]
    #: Carriers that did not answer, or went away meanwhile, and why.
    silent: Mapping[str, str]
    differences: tuple[Difference, ...]
    #: More differs than is told one by one.
    is_truncated: bool = False
    bytes_read: int = 0
    seconds: float = 0.0
    topology: Topology | None = field(default=None, repr=False)
    stretches: tuple[Stretch, ...] = field(default=(), repr=False)
    digests: Mapping[int, Tick] = field(default_factory=dict, repr=False)

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found where carriers could be compared."""
        return not self.differences and not any(node.is_dirty for node in self.nodes)

    @property
    def is_complete(self) -> bool:
        """Whether every carrier was compared."""
        return not self.silent and not self.is_truncated

    @property
    def exit_code(self) -> int:
        """Return 0 when all carriers are known to be equal, else 1."""
        return 0 if self.is_equal and self.is_complete else 1

    def counts(self, node: str) -> Counter[str]:
        """Return how many differences of each kind a carrier has."""
        return Counter(str(found.kind) for found in self.differences if found.node == node)

    def as_json(self) -> dict[str, Any]:
        """Return all of it, as `--json` and the page have it; ids are text."""
        return {
            "set": self.set,
            "made_at": self.made_at.isoformat(),
            "is_equal": self.is_equal,
            "is_complete": self.is_complete,
            "is_truncated": self.is_truncated,
            "from_tick": str(self.from_tick),
            "to_tick": str(self.to_tick),
            "ticks": self.ticks,
            "events": self.events,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "nodes": [_plain(asdict(node)) | {"differences": dict(self.counts(node.node))} for node in self.nodes],
            "silent": dict(self.silent),
            "differences": [_plain(asdict(found)) for found in self.differences],
        }

    def dataframe(self, spark: SparkSession) -> DataFrame:
        """Return the differences as rows, one each."""
        types = dict.fromkeys(("tick_id", "found_tick", "id", "count"), "bigint")
        types |= {"time": "timestamp", "columns": "array<string>"}
        types |= dict.fromkeys(("wanted", "found"), "map<string, string>")
        names = [one.name for one in fields(Difference)]
        rows = [asdict(found) | {"kind": str(found.kind), "columns": list(found.columns)} for found in self.differences]
        schema = ", ".join(f"{name} {types.get(name, 'string')}" for name in names)
        return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, int) and name in IDS else value
