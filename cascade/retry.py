"""How long to wait before trying again; pure.

The waits grow and are drawn at random below a growing limit, so that many processes which
lost the same server do not all come back at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tenacity import RetryCallState, wait_random_exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double from `first_s` up to `most_s`, each drawn at random below its limit."""

    first_s: float = 0.2
    most_s: float = 15.0

    def delays(self) -> Iterator[float]:
        """Yield the waits before the second, third ... attempt, for ever."""
        wait = wait_random_exponential(multiplier=self.first_s, max=self.most_s, min=self.first_s / 4)
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        while True:
            yield wait(state)
            state.attempt_number += 1
