"""The checker of the random runs notices what it is there for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fixtures.history import Batch, Consumer, Copy, Ends, History, Producer, Sent
from tests.fixtures.operator import TERM_SPAN

ENDS = Ends({0: {"tick_id": 5, "high": 100, "open": [97]}, 102: None})


def consumer(*batches: Batch) -> Consumer:
    made = Consumer(cast(Any, SimpleNamespace(set_name="orders")), "s2")
    made.batches = list(batches)
    return made


def batch(first: int, last: int, *ids: int) -> Batch:
    return Batch(first, last, [(id, 90 + id, f"0-{id}") for id in ids])


def test_an_event_is_on_the_path_if_the_fork_that_ended_its_term_sees_it() -> None:
    assert ENDS.has(1, 96) and not ENDS.has(1, 97) and not ENDS.has(1, 100)
    assert ENDS.has(102 * TERM_SPAN + 1, 1_000_000)
    assert not ENDS.has(103 * TERM_SPAN + 1, 96), "that term is on nobody's path"


def test_a_batch_that_comes_again_before_it_was_finished_is_no_repeat() -> None:
    assert consumer(batch(1, 2, 1), batch(1, 2, 1), batch(2, 3, 2)).story(set(), ENDS) == {1: "0-1", 2: "0-2"}


def test_a_gap_and_a_step_back_without_a_record_are_noticed() -> None:
    for batches in ((batch(1, 2, 1), batch(3, 4, 2)), (batch(1, 2, 1), batch(2, 3, 2), batch(1, 3, 1, 2))):
        with pytest.raises(AssertionError, match="nothing says so"):
            consumer(*batches).story(set(), ENDS)


def test_after_a_reset_only_what_the_fork_sees_stands() -> None:
    """Event 10 lies beyond the fork, in a batch that the reset cut in two."""
    found = consumer(batch(1, 4, 1), batch(4, 7, 2, 10), batch(5, 8, 3)).story({5}, ENDS)
    assert found == {1: "0-1", 2: "0-2", 3: "0-3"}


def test_an_event_that_is_read_twice_is_noticed() -> None:
    with pytest.raises(AssertionError, match="twice"):
        consumer(batch(1, 2, 1), batch(2, 3, 1)).story(set(), ENDS)


class Ended(History):
    """What producers sent, compared with a path that is given."""

    def ends(self) -> Ends:
        return ENDS


def checked(*events: Sent, standing: dict[int, str], aside: dict[str, Any] | None = None) -> dict[str, int]:
    history = Ended(cast(Any, None), cast(Any, None))
    producer = Producer.__new__(Producer)
    producer.sent = list(events)
    history.producers = [producer]
    return history.check_events(standing, aside or {})


def sent(n: int, state: str = "ok", txid: int = 50) -> Sent:
    return Sent(f"0-{n}", "s1", state, n, txid)


def test_events_that_are_where_they_should_be_pass() -> None:
    held = {"0-2": [Copy("s1", 2, "held")]}
    events = (sent(1), sent(2, txid=101), sent(3, "fail"), sent(4, "unknown"))
    assert checked(*events, standing={1: "0-1"}, aside=held)["unaccounted"] == 0


@pytest.mark.parametrize(
    ("event", "standing", "aside", "says"),
    [
        (sent(1), {}, {}, "nowhere"),
        (sent(1, "fail"), {1: "0-1"}, {}, "where they should not be"),
        (sent(1), {1: "0-1"}, {"0-1": [Copy("s1", 1, "held")]}, "where they should not be"),
        (sent(1, txid=101), {1: "0-1"}, {}, "where they should not be"),
        (sent(1, txid=101), {}, {"0-1": [Copy("s1", 1, "republished")]}, "republished and is nowhere"),
        (sent(1), {1: "0-1", 9: "0-9"}, {}, "nobody sent"),
    ],
    ids=["lost", "refused and there", "both", "beyond the fork", "put back and gone", "from nowhere"],
)
def test_an_event_that_is_not_is_noticed(event: Sent, standing: dict[int, str], aside: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        checked(event, standing=standing, aside=aside)
