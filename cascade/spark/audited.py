"""What an audit found: values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: What is wrong with an event, if something is.
FAULTS = ("missing", "doubled", "extra", "changed", "out_of_order")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAudit:
    """What was found of one part."""

    part: str
    #: The part's ticks that were compared: after one, up to the other; None when there were none.
    from_tick: int | None
    to_tick: int | None
    compared: int = 0
    missing: int = 0
    doubled: int = 0
    extra: int = 0
    changed: int = 0
    out_of_order: int = 0
    lost: int = 0
    skipped: int = 0
    not_compared: int = 0
    #: Marks that do not follow one another.
    broken_marks: int = 0
    #: Ids of missing events: (origin, first, last).
    gaps: tuple[tuple[str, int, int], ...] = ()
    #: For each kind of fault some of its events: (origin, origin id).
    examples: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """Return what a table shows of it."""
        return {name: value for name, value in asdict(self).items() if name not in ("gaps", "examples")}

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken_marks and not any(getattr(self, fault) for fault in FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What was found of a combined set."""

    set: str
    from_tick: int
    to_tick: int
    parts: Sequence[PartAudit]
    #: Events of the combined queue that no mark accounts for, and that name no part.
    untraced: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether every part is, and nothing came from elsewhere."""
        return not self.untraced and all(part.is_clean for part in self.parts)

    def as_plain(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            **asdict(self),
            "clean": self.is_clean,
            "parts": [{**asdict(part), "clean": part.is_clean} for part in self.parts],
        }
