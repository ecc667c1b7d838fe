"""What a worker has in hand: nothing is told twice, and nothing is forgotten."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cascade.hand import Hand
from cascade.work import Delivery

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def deliveries(claim: int, ids: list[int]) -> list[Delivery[Any]]:
    return [Delivery("q", (n, None, None, "1", None, 1, NOW, NOW, claim), int) for n in ids]  # type: ignore[arg-type]


@given(
    fates=st.lists(st.sampled_from(["done", "result", "failed", "own", "open"]), min_size=1, max_size=12),
    tells=st.lists(st.integers(0, 12), max_size=4),
    data=st.data(),
)
def test_each_completion_is_told_once_with_its_result(fates: list[str], tells: list[int], data: st.DataObject) -> None:
    hand, told = Hand(), dict[int, object]()
    messages = deliveries(1, [*range(len(fates))])
    hand.take(messages, 0.0)
    [claim] = hand

    def tell() -> None:
        count, (ids, results) = len(claim.done), claim.report()
        if ids is None:
            left = {n for n in range(len(fates)) if fates[n] == "done"} - told.keys()
            assert claim.is_over and not results and "own" not in fates, "only then all that is left is what is done"
            ids = sorted(left)
        assert not results or len(results) == len(ids)
        for number, result in zip(ids, results or [None] * len(ids), strict=True):
            assert number not in told
            told[number] = result
        claim.told(count)

    for step, number in enumerate(data.draw(st.permutations([*range(len(fates))]))):
        match fates[number]:
            case "done":
                assert hand.finish(messages[number], None, step) is claim
            case "result":
                hand.finish(messages[number], {"n": number}, step)
            case "own":
                messages[number].is_settled = True
                hand.finish(messages[number], None, step)
            case "failed":
                hand.settle(messages[number])
        if step in tells and claim.done:
            tell()
    if claim.done:
        tell()
    assert told == {
        n: {"n": n} if fate == "result" else None for n, fate in enumerate(fates) if fate in ("done", "result")
    }
    assert hand.held == fates.count("open") and claim.is_over == ("open" not in fates)
    hand.drop(claim)
    assert hand.held == 0 and not hand


def test_a_claim_that_was_lost_is_forgotten_with_what_it_held() -> None:
    hand = Hand()
    first, second = deliveries(1, [1, 2]), deliveries(2, [3])
    hand.take(first, 0.0)
    hand.take(second, 5.0)
    hand.finish(first[0], None, 6.0)
    assert [claim.id for claim in hand.stale(1.0)] == [1] and hand.over() is None
    assert hand.late(5.9) is None and hand.late(6.0) is not None
    hand.drop(next(iter(hand)))
    assert hand.held == 1
    assert hand.finish(first[1], None, 7.0) is None, "its end no longer counts"
    assert hand.finish(second[0], None, 7.0) is hand.over()
