"""The rules of the cascade hold in every interleaving of the models, and each of them is needed.

The models are in `tests/models/cascade`; what they say is written up in `docs/explain/model.md`, and
these tests compare the page with them.  Everything here is pure and takes about a minute; larger
worlds are explored by `tests/models/cascade/test_deeper.py`, which `make soak` runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.models.cascade import model_copier, model_failover, model_join, model_switchover, model_watermark
from tests.models.cascade.explore import Result, explore
from tests.models.cascade.join import Answer, Role, Standing, Term, Tick, answer, exchange, last_common

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "model.md"
MODELS = {
    "join": model_join,
    "watermark": model_watermark,
    "copier": model_copier,
    "switchover": model_switchover,
    "failover": model_failover,
}

WORLDS = [
    pytest.param(model, world, id=f"{name}: {world.name}") for name, model in MODELS.items() for world in model.WORLDS
]
RULES = [pytest.param(model, rule, id=f"{name}: {rule}") for name, model in MODELS.items() for rule in model.Rule]
REACHED = [
    (model_join.FAILOVERS, "A joins B: dirty, and is resurrected"),
    (model_join.FAILOVERS, "A joins B: diverged, and is resurrected"),
    (model_join.FAILOVERS, "A copies u1/1 from B"),
    (model_join.FAILOVERS, "C copies u2/2 from A"),
    (model_join.REWIND, "A joins B: diverged, and is resurrected"),
    (model_join.RETENTION, "C joins A: expired, and is seeded anew"),
    (model_watermark.MOVE, "N switches to A"),
    (model_watermark.MOVE, "R truncates 2"),
    (model_watermark.MIXED, "N joins again: expired"),
    (model_watermark.MIXED, "N joins again: dropped"),
    (model_watermark.MIXED, "N joins again at 1, join 2"),
    (model_watermark.ADD, "X takes a snapshot of B at 2"),
    (model_copier.SWITCH, "D1 commits u0/2, the reply is lost"),
    (model_copier.SWITCH, "D1 is refused u0/2 again"),
    (model_copier.SWITCH, "D2 finds no link at A"),
    (model_copier.SWITCH, "D1 commits u1/1"),
    (model_copier.RETENTION, "D1 reads no rows of u0/2"),
    (model_copier.RETENTION, "D1 looks again and throws the batch away"),
    (model_copier.TERMS, "D2 commits v1/2"),
    (model_switchover.TOOLS, "C promotes itself: term u2"),
    (model_switchover.TARGET, "B is back"),
    (model_switchover.FAILOVER, "A hears of f1"),
    (model_switchover.LOST, "A is promoted by the operator: term f1"),
    (model_switchover.LOST, "B copies f1/3"),
    (model_failover.PLAIN, "the transaction of 2 commits"),
    (model_failover.PLAIN, "L reads u1/2 from B"),
    (model_failover.PLAIN, "the certificate of u0 is amended by A, closed"),
    (model_failover.OPERATORS, "operator 2 opens ballot 203 at B"),
    (model_failover.LEFT_OUT, "C is resurrected at u0/1 below B"),
    (model_failover.PARTITION, "an operator keeps u2"),
    (model_failover.PARTITION, "the certificate of u1 is amended by B, closed"),
    (model_failover.REWIND, "C is resurrected at u0/1 below B"),
    (model_failover.REWIND_OUT, "A marks 2"),
    (model_failover.AGAIN, "A publishes 1 of B again"),
    (model_failover.AGAIN, "C copies u2/4 from A"),
]


@cache
def explored(world: Any) -> Result:
    """Explore a world once for all the tests that ask for it."""
    model = next(model for model in MODELS.values() if isinstance(world, model.World))
    result: Result = model.check(world)
    return result


# The models


@pytest.mark.parametrize(("model", "world"), WORLDS)
def test_with_all_rules_every_state_is_right(model: ModuleType, world: model_join.World) -> None:
    result = explored(world)
    assert result.trace is None, f"\n{result}"
    assert result.is_exhausted
    assert result.states > 400
    assert f"| {world.name} | {result.states:,} |" in PAGE.read_text()


@pytest.mark.parametrize(("model", "rule"), RULES)
def test_without_this_rule_a_state_is_wrong(model: ModuleType, rule: model_join.Rule) -> None:
    result = model.check_without(rule)
    assert result.trace is not None, f"nobody needs this rule: {result}"
    told = " → ".join(result.trace)
    assert f"| {rule} | {told} ⇒ **{result.violation}** |" in PAGE.read_text(), (
        f"the page tells another story:\n{result}"
    )


def test_each_of_the_nine_answers_is_given_somewhere() -> None:
    names = frozenset[str]().union(*(explored(world).names for world in model_join.WORLDS))
    given = {name.partition(": ")[2].partition(",")[0] for name in names if " joins " in name}
    assert given == set(Answer)


@pytest.mark.parametrize(("world", "name"), REACHED, ids=lambda value: value if isinstance(value, str) else value.name)
def test_the_search_gets_as_far_as_this(world: model_join.World, name: str) -> None:
    assert name in explored(world).names


@pytest.mark.parametrize("world", [model_watermark.MIXED, model_watermark.ADD], ids=lambda world: world.name)
def test_forgetting_idle_tells_hides_nothing(world: model_watermark.World) -> None:
    """The reduction of the watermark model is compared with the model without it, at one tick."""
    small, model = replace(world, ticks=1), model_watermark
    whole = explore(model.start(small), partial(model.steps, small), partial(model.violated, small), 400_000)
    reduced = explored(small)
    assert whole.is_exhausted
    assert whole.trace is None
    assert whole.states > reduced.states
    assert whole.names == reduced.names


# The rule of the nine answers

U0 = Term("u0", 0, None, None, None)
FIRST, SECOND, THIRD = (Tick(n, "u0", n - 1 or None, f"c{n}") for n in (1, 2, 3))
U1 = Term("u1", 102, "u0", SECOND.tick_id, SECOND.chain)
OPENING = Tick(102 * 10**12 + 1, "u1", SECOND.tick_id, "c2 u1")
BOTH = frozenset({"sub", "pro"})
SUB = Standing(node="sub", role=Role.BRANCH, term="u0", path=(FIRST, SECOND), terms=frozenset({U0}))
PRO = Standing(node="pro", role=Role.ROOT, term="u0", path=(FIRST, SECOND, THIRD), terms=frozenset({U0}), members=BOTH)
NEXT = replace(PRO, term="u1", path=(FIRST, SECOND, OPENING), terms=frozenset({U0, U1}))
"""A root of the term after u0, which ended at the second tick."""
RIVAL = Term("u2", 103, "u0", FIRST.tick_id, FIRST.chain)

EXAMPLES = {
    "the same path, further on": (SUB, PRO, Answer.ON_PATH),
    "the same last tick": (SUB, replace(PRO, path=SUB.path), Answer.ON_PATH),
    "a new term opened where the subscriber stands": (SUB, NEXT, Answer.ON_PATH),
    "a new node": (replace(SUB, path=()), PRO, Answer.ON_PATH),
    "a leaf, which has one tick": (replace(SUB, role=Role.LEAF, path=(SECOND,)), PRO, Answer.ON_PATH),
    "no longer a member": (SUB, replace(PRO, members=frozenset({"pro"})), Answer.DROPPED),
    "rows after the last tick": (replace(SUB, is_dirty=True), PRO, Answer.DIRTY),
    "dropped comes before dirty": (replace(SUB, is_dirty=True), replace(PRO, members=frozenset()), Answer.DROPPED),
    "two terms of one parent": (replace(SUB, terms=frozenset({U0, RIVAL})), NEXT, Answer.CONFLICT),
    "two terms of one number": (
        SUB,
        replace(NEXT, terms=frozenset({U0, U1, Term("x", 102, "y", 1, "z")})),
        Answer.CONFLICT,
    ),
    "a root of a term that is over": (replace(SUB, terms=frozenset({U0, U1})), PRO, Answer.STALE),
    "a branch beyond the fork": (replace(SUB, terms=frozenset({U0, U1})), replace(PRO, role=Role.BRANCH), Answer.STALE),
    "a branch at the fork": (
        replace(SUB, terms=frozenset({U0, U1})),
        replace(PRO, role=Role.BRANCH, path=SUB.path),
        Answer.ON_PATH,
    ),
    "a root without the subscriber's tick": (SUB, replace(PRO, path=(FIRST,)), Answer.REWOUND),
    "a root with another chain there": (SUB, replace(PRO, path=(FIRST, SECOND._replace(chain="x"))), Answer.REWOUND),
    "beyond the fork": (replace(SUB, path=(FIRST, SECOND, THIRD)), NEXT, Answer.DIVERGED),
    "beside the path, inside one term": (
        replace(SUB, path=(FIRST, SECOND._replace(chain="x"))),
        replace(PRO, role=Role.BRANCH),
        Answer.DIVERGED,
    ),
    "events after it are gone": (SUB, replace(PRO, first_retained=3), Answer.EXPIRED),
    "events and ticks after it are gone": (SUB, replace(PRO, path=(THIRD,)), Answer.EXPIRED),
    "only the new term is held": (SUB, replace(NEXT, path=(OPENING,)), Answer.EXPIRED),
    "just still held": (SUB, replace(PRO, first_retained=2), Answer.ON_PATH),
    "a branch that lags": (SUB, replace(PRO, role=Role.BRANCH, path=(FIRST,)), Answer.BEHIND),
    "a branch that lags behind a leaf": (
        replace(SUB, role=Role.LEAF, path=(SECOND,)),
        replace(PRO, role=Role.BRANCH, path=(FIRST,)),
        Answer.BEHIND,
    ),
    "a branch that lags below the fork": (
        replace(SUB, term="u1", path=NEXT.path, terms=NEXT.terms),
        replace(PRO, role=Role.BRANCH, path=(FIRST,)),
        Answer.BEHIND,
    ),
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_answer_is_the_first_that_applies(title: str) -> None:
    subscriber, provider, expected = EXAMPLES[title]
    assert answer(*exchange(subscriber, provider)) is expected


def test_the_examples_show_all_nine_answers() -> None:
    assert {expected for _, _, expected in EXAMPLES.values()} == set(Answer)


def test_diverged_paths_part_after_their_last_common_tick() -> None:
    subscriber, provider, _ = EXAMPLES["beyond the fork"]
    assert last_common(subscriber, provider) == SECOND


# The explorer


def count(state: int) -> Iterator[tuple[str, int]]:
    """Steps of a toy model: add one, or double."""
    if state < 100:
        yield f"{state}+1", state + 1
        yield f"{state}*2", state * 2


def test_a_counter_example_is_a_shortest_one() -> None:
    result = explore(1, count, lambda state: "reached 12" if state == 12 else None, 1000)
    assert result.trace == ["1+1", "2+1", "3*2", "6*2"]
    assert str(result).endswith("4. 6*2\n=> reached 12")


def test_a_search_without_a_find_says_that_it_saw_everything() -> None:
    result = explore(1, count, lambda state: None, 1000)
    assert (result.trace, result.is_exhausted, result.states) == (None, True, 149)


def test_a_search_that_reaches_its_limit_says_so() -> None:
    result = explore(1, count, lambda state: None, 10)
    assert (result.trace, result.is_exhausted) == (None, False)


def test_states_of_one_canonical_form_are_visited_once() -> None:
    result = explore(1, count, lambda state: None, 1000, canonical=lambda state: min(state, 50))
    assert (result.is_exhausted, result.states) == (True, 50)
