"""The frame of every measure: samples taken in turns, and rows that compare two sides."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What one side gave, one number per round."""

    label: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The number that counts."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What is wanted of the ratio, or of Cascade's own number."""

    kind: Literal["at least", "at most", "under"]
    limit: float
    of: Literal["ratio", "value"] = "ratio"
    unit: str = ""

    def is_met(self, found: float) -> bool:
        """Whether a number passes."""
        return found >= self.limit if self.kind == "at least" else found <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report; `rival` is what the other side is called when it was not measured."""

    measure: str
    title: str
    ours: Samples | None
    theirs: Samples | None = None
    rival: str = ""
    bar: Bar | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over theirs, of the medians; None when there is nothing to compare with."""
        if self.ours is None or self.theirs is None or not self.theirs.median:
            return None
        return self.ours.median / self.theirs.median

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round; sides took turns in it, so they met the same machine."""
        if self.ours is None or self.theirs is None or len(self.ours.values) != len(self.theirs.values):
            return []
        return [a / b for a, b in zip(self.ours.values, self.theirs.values, strict=True) if b]

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None without a bar or without the numbers."""
        found = self.ratio if self.bar and self.bar.of == "ratio" else self.ours and self.ours.median
        return None if self.bar is None or found is None else self.bar.is_met(found)


Side = Callable[[], float]


def take_turns(rounds: int, sides: Mapping[str, Side], *, seed: int = 7) -> dict[str, tuple[float, ...]]:
    """Run every side once per round, in an order that changes, and return their numbers."""
    order = random.Random(seed)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in order.sample(list(sides), len(sides)):
            found[name].append(sides[name]())
    return {name: tuple(values) for name, values in found.items()}


def per_second(count: int, work: Callable[[], object]) -> float:
    """Return how many of `count` things per second the work gets done."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
