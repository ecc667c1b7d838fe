"""A seed repeats the choices of a random run, although no two runs take the same time."""

from __future__ import annotations

from tests.fixtures.dice import Dice
from tests.fixtures.nemesis import outline

NODES = ("s1", "s2", "s3", "s4")


def test_a_seed_repeats_what_happens_and_another_does_not() -> None:
    assert outline(7, 50) == outline(7, 50)
    assert outline(7, 50) != outline(8, 50)
    assert (
        len({act for act, _ in outline(7, 50)}) == 4
        and len({name for _, found in outline(7, 50) for name in found}) > 8
    )


def test_what_was_decided_more_often_before_changes_nothing() -> None:
    slow, quick = Dice(7), Dice(7)
    for _ in range(5):
        slow.is_so("try again", 0.5)
    assert slow.seconds("wait", 2) == quick.seconds("wait", 2)
    slow.next_turn()
    quick.next_turn()
    assert slow.one_of("way", NODES) == quick.one_of("way", NODES)


def test_a_decision_that_is_made_again_may_turn_out_otherwise() -> None:
    dice = Dice(7)
    assert len({dice.seconds("wait", 2) for _ in range(10)}) == 10


def test_who_cannot_be_chosen_does_not_change_who_is_chosen_of_the_others() -> None:
    for seed in range(20):
        chosen = Dice(seed).pick("root", NODES, NODES)
        others = [name for name in NODES if name != chosen]
        assert Dice(seed).pick("root", [chosen, others[0]], NODES) == chosen
        assert Dice(seed).pick("root", others, NODES) in others
