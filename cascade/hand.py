"""What a worker has in hand: its claims, and what is still to be told to the database about each.

Nothing here talks to anybody.  A claim is over when each of its messages is settled: completed, failed or given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cascade.names import ClaimId, EventId
from cascade.work import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed, and what the handler wants done about it."""

    delivery: Delivery[Any]
    error: str
    retry_in_s: float | None = None
    is_hopeless: bool = False


class Claim:
    """Messages that were handed out together."""

    __slots__ = ("done", "done_at", "id", "is_mixed", "open", "renewed_at", "results")

    def __init__(self, claim_id: ClaimId, count: int, now: float) -> None:
        self.id, self.open, self.renewed_at = claim_id, count, now
        #: Completed, and not yet told.
        self.done: list[EventId] = []
        self.results: list[object] = []
        #: When the first of those was.
        self.done_at = 0.0
        #: A handler completed one by itself, so that the rest must be named.
        self.is_mixed = False

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is being worked on or waiting here."""
        return self.open == 0

    def finish(self, message: EventId, result: object, now: float) -> None:
        """Note that a message is completed."""
        if not self.done:
            self.done_at = now
        self.open -= 1
        self.done.append(message)
        if result is not None:
            # As far as there are any: what is missing at the end is None.
            self.results += [None] * (len(self.done) - 1 - len(self.results))
            self.results.append(result)

    def report(self) -> tuple[list[EventId] | None, list[object]]:
        """Return what is completed and not yet told; None stands for all that is left of the claim."""
        if self.is_over and not self.results and not self.is_mixed:
            return None, []
        return self.done[:], self.results + [None] * (len(self.done) - len(self.results)) if self.results else []

    def told(self, count: int) -> None:
        """Forget the completions that were told."""
        del self.done[:count], self.results[:count]


class Hand:
    """All claims of a worker."""

    def __init__(self) -> None:
        self._claims: dict[ClaimId, Claim] = {}
        self.failures: list[Failure] = []
        self.held = 0

    def __iter__(self) -> Iterator[Claim]:
        return iter(list(self._claims.values()))

    def __bool__(self) -> bool:
        return bool(self._claims)

    def take(self, deliveries: list[Delivery[Any]], now: float) -> None:
        """Note what was claimed; messages of one call share a claim."""
        claim_id = deliveries[0].claim_id
        assert claim_id is not None
        self._claims[claim_id] = Claim(claim_id, len(deliveries), now)
        self.held += len(deliveries)

    def get(self, delivery: Delivery[Any]) -> Claim | None:
        """Return the claim that holds a message, unless that was lost."""
        assert delivery.claim_id is not None
        return self._claims.get(delivery.claim_id)

    def finish(self, delivery: Delivery[Any], result: object, now: float) -> Claim | None:
        """Note that a message is completed; returns its claim."""
        claim = self.get(delivery)
        if claim is not None:
            self.held -= 1
            if delivery.is_settled:
                claim.open -= 1
                claim.is_mixed = True
            else:
                claim.finish(delivery.id, result, now)
        return claim

    def settle(self, delivery: Delivery[Any]) -> None:
        """Note that a message was failed or given back."""
        if (claim := self.get(delivery)) is not None:
            self.held -= 1
            claim.open -= 1

    def drop(self, claim: Claim) -> None:
        """Forget a claim: it is over, or somebody else's."""
        if self._claims.pop(claim.id, None) is not None:
            self.held -= claim.open

    def over(self) -> Claim | None:
        """Return a claim that is over."""
        return next((claim for claim in self._claims.values() if claim.is_over), None)

    def late(self, before: float) -> Claim | None:
        """Return a claim with completions that have waited to be told since before a moment."""
        return next((claim for claim in self._claims.values() if claim.done and claim.done_at <= before), None)

    def stale(self, before: float) -> list[Claim]:
        """Return the claims that were last renewed before a moment."""
        return [claim for claim in self._claims.values() if claim.renewed_at <= before]
