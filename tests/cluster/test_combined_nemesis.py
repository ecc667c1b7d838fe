"""Roots of parts and of the combined set come and go under load: every event of every part is merged exactly once.

As tests/cluster/test_nemesis.py, which says how to repeat a run; CASCADE_NEMESIS_S says how long the long one takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend, start
from tests.fixtures.combined import Combined
from tests.fixtures.combined_nemesis import CombinedNemesis
from tests.fixtures.dice import Dice
from tests.fixtures.nursery import Nursery

SECONDS = float(os.environ.get("CASCADE_NEMESIS_S", "600"))
#: a1, a2, b1 and s1, s2, s3: a server that dies takes nobody else with it.
SERVERS = 6


@pytest.fixture(scope="module")
def many(servers: list[Backend], templates: Path) -> Iterator[list[Backend]]:
    """As many servers as there are databases."""
    with ExitStack() as stack:
        found = [*servers]
        for number in range(len(servers), SERVERS):
            home = templates / f"cluster{number}"
            home.mkdir(exist_ok=True)
            found.append(stack.enter_context(start(LABELS[number % len(LABELS)], home, {})))
        yield found


@pytest.fixture
def combined(many: list[Backend], nursery: Nursery, tmp_path: Path) -> Iterator[Combined]:
    """A combined set that is not defined yet."""
    with Combined.fresh(many, nursery, tmp_path) as made:
        assert isinstance(made, Combined)
        yield made


def prepared(combined: Combined, dice: Dice) -> CombinedNemesis:
    """Make the cascade with a proxy in every way, and everybody who is to take part."""
    combined.options["rotation_period"] = "1 s"
    combined.build(("a", "b"), branches=("a",), written=False)
    nemesis = CombinedNemesis(combined, dice)
    nemesis.wire()
    combined.run()
    nemesis.subscribe()
    return nemesis


def run(nemesis: CombinedNemesis, is_over: Callable[[], bool], tell: Callable[[str], None]) -> dict[str, int]:
    """Let things happen until it is over, mend everything, check everything, and tell the counts."""
    tell(f"CASCADE_SOAK_SEED={nemesis.dice.seed}")
    try:
        with ExitStack() as stack:
            for one in nemesis.ones.values():
                stack.enter_context(one.history.running())
            while not is_over():
                nemesis.turn()
                nemesis.check_workers()
            nemesis.finish()
        # What producers sent last, and what is still held, has its end now.
        nemesis.finish()
        counts = nemesis.check()
    except BaseException:
        print(nemesis.first.states())  # noqa: T201
        raise
    finally:
        print("\n".join(nemesis.first.notes))  # noqa: T201
    done, struck = nemesis.first.done, nemesis.first.struck
    tell(
        f"{nemesis.dice.turn} turns, {struck.total()} faults, {done['failover']} failovers,"
        f" {done['all at once']} times all at once, {done['switchover']} switchovers,"
        f" {nemesis.rotations()} rotations; {counts}"
    )
    return counts


@pytest.mark.timeout(400)
def test_every_event_of_every_part_is_merged_once_whatever_happens(
    combined: Combined, tell: Callable[[str], None]
) -> None:
    nemesis = prepared(combined, Dice(int(os.environ.get("CASCADE_SOAK_SEED", "7"))))
    done, until = nemesis.first.done, time.monotonic() + 150

    def is_over() -> bool:
        return (done["failover"] >= 3 and done["switchover"] >= 1) or time.monotonic() > until

    counts = run(nemesis, is_over, tell)
    assert done["failover"] >= 3 and done["switchover"] >= 1
    assert counts["of a"] > 0 and counts["of b"] > 0 and nemesis.rotations() > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_long_run_of_faults_merges_every_event_once(combined: Combined, tell: Callable[[str], None]) -> None:
    seed = int(os.environ.get("CASCADE_SOAK_SEED", time.time_ns() % 1_000_000))
    nemesis = prepared(combined, Dice(seed))
    until = time.monotonic() + SECONDS
    counts = run(nemesis, lambda: time.monotonic() > until, tell)
    assert counts["unaccounted"] == 0
    if SECONDS >= 600:
        assert nemesis.first.struck.total() >= 40 and nemesis.first.done["failover"] >= 8
