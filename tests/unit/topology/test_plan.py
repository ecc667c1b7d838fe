"""Planning, by the thousand: any tree to any tree, with any of the nodes gone, stopped after any step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cascade.errors import ConfigError, UnsafeError
from cascade.topology import Node, Role, Set
from cascade.topology import steps as s
from cascade.topology.decision import Plan, Request
from cascade.topology.lost_root import carriers, choose_successor
from cascade.topology.observe import Ballot, Fence, Handover, Observed, Operation
from cascade.topology.plan import make_plan
from cascade.topology.show_plan import plan_text
from tests.fixtures.worlds import FIRST, NOW, World, accept_all, plain_sets, tick, trees, worlds


def plan_for(wanted: Set, world: World, **more: object) -> Plan:
    """Plan with everything accepted, the fork too."""
    request = accept_all(world, **more)
    plan = make_plan(wanted, world.observed(), request)
    if plan.loss is not None and request.allow_loss is None:
        plan = make_plan(wanted, world.observed(), replace(request, allow_loss=plan.loss.fork))
    return plan


def carry_out(plan: Plan, world: World, upto: int | None = None) -> None:
    """Carry out a plan in a world, and see that the nodes form a tree after every step."""
    for step in plan.steps[:upto]:
        world.run(step)
        assert world.problems() == [], step


@st.composite
def cases(draw: st.DrawFn, *, is_root_lost: bool | None = None) -> tuple[Set, World]:
    """Return a running set, some nodes gone, and the same nodes in any other tree; the new root answers."""
    found = draw(plain_sets())
    roles = {name: Role.BRANCH if node.role.is_root else node.role for name, node in found.nodes.items()}
    old = found.root.name
    others = [name for name, role in roles.items() if role is Role.BRANCH and name != old]
    root = draw(st.sampled_from(others if is_root_lost and others else [old, *others]))
    if is_root_lost:
        assume(others)
    wanted = draw(trees(roles, root=root))
    lost = frozenset({old}) if is_root_lost or draw(st.booleans()) else frozenset()
    return replace(wanted, revision=3), draw(worlds(found, spared=root, lost=lost))


@settings(deadline=None)
@given(case=cases())
def test_every_step_leaves_a_tree_and_the_end_is_what_was_wanted(case: tuple[Set, World]) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    assert plan.refusals == ()
    carry_out(plan, world)
    assert world.observed().tip.node == wanted.root.name
    for name, (role, provider) in world.tree().items():
        assert role == wanted.nodes[name].role
        if wanted.nodes[name].provider not in world.silent and not plan.warnings:
            assert provider == wanted.nodes[name].provider


@settings(deadline=None)
@given(case=cases(), data=st.data())
def test_a_plan_may_stop_after_any_step_and_planning_again_reaches_the_same_end(
    case: tuple[Set, World], data: st.DataObject
) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    stopped, whole = world.copy(), world.copy()
    carry_out(plan, whole)
    carry_out(plan, stopped, data.draw(st.integers(0, len(plan.steps)), label="steps done"))
    again = plan_for(wanted, stopped, uid="u3", op_id="op2")
    assert again.refusals == ()
    carry_out(again, stopped)
    assert stopped.tree() == whole.tree()
    assert [term.node for term in stopped.observed().tips] == [term.node for term in whole.observed().tips]
    assert len(stopped.observed().terms) == len(whole.observed().terms), "nobody is promoted twice"
    assert plan_for(wanted, stopped).is_empty


@settings(deadline=None)
@given(case=cases())
def test_everybody_comes_back(case: tuple[Set, World]) -> None:
    """Those that were gone return as they were left: beyond the fork, or under providers that are gone."""
    wanted, world = case
    carry_out(plan_for(wanted, world), world)
    world = world.copy(silent=frozenset())
    plan = plan_for(wanted, world)
    assert plan.refusals == () and plan.kind in ("change", "none")
    carry_out(plan, world)
    assert world.tree() == {name: (str(node.role), node.provider) for name, node in wanted.nodes.items()}
    assert plan_for(wanted, world).is_empty


@settings(deadline=None)
@given(case=cases())
def test_a_plan_is_the_same_after_it_was_saved(case: tuple[Set, World]) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    assert Plan.parse(json.loads(json.dumps(plan.as_json()))) == plan
    assert plan.moved_on(world.observed()) == []
    plan.check_fresh(world.observed())
    assert plan_text(plan, wanted, world.observed())


@settings(deadline=None)
@given(case=cases(), data=st.data())
def test_a_saved_plan_is_refused_when_anything_has_moved_on(case: tuple[Set, World], data: st.DataObject) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    node = data.draw(st.sampled_from(sorted(world.observed().views)), label="node")
    moved = data.draw(st.sampled_from(["generation", "term", "revision", "tick", "silence"]), label="what")
    if moved == "generation":
        world.raise_generation(node)
    elif moved == "term":
        view = world.views[node]
        world._open_term(node, "other", 900 + view.node_no, view.tick, "failover")
    elif moved == "revision":
        world.change(node, revision=9)
    elif moved == "tick":
        # Where nothing may be lost, it is no harm that the others have gone on.
        world.change(node, tick=tick(111 if plan.kind == "failover" else 90))
    else:
        world = world.copy(silent=world.silent | {node})
    with pytest.raises(UnsafeError, match="the plan is stale"):
        plan.check_fresh(world.observed())


@settings(deadline=None)
@given(case=cases(is_root_lost=True))
def test_a_failover_needs_every_word_and_forks_at_the_best_tick_that_answers(case: tuple[Set, World]) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    assert plan.kind == "failover" and plan.loss is not None
    root = world.observed().tip.node
    best = max(view.tick.tick_id for view in world.observed().views.values() if view.is_carrier)
    [promote] = [step for step in plan.steps if isinstance(step, s.Promote)]
    assert promote.fork["tick_id"] == plan.loss.fork == best
    everything = {"allow_loss": best, "fenced_by": "off", "dead": frozenset({root}), "without": world.silent - {root}}
    nothing: dict[str, object] = {"allow_loss": None, "fenced_by": " ", "dead": frozenset(), "without": frozenset()}
    for word, missing in nothing.items():
        request = accept_all(world, **(everything | {word: missing}))
        refused = make_plan(wanted, world.observed(), request).refusals
        carriers_gone = [name for name in world.silent - {root} if world.views[name].is_carrier]
        assert len(refused) == (len(carriers_gone) if word == "without" else 1), word
    with pytest.raises(UnsafeError, match=f"after tick {best}, not {best - 1} may be lost"):
        make_plan(wanted, world.observed(), accept_all(world, **(everything | {"allow_loss": best - 1}))).check()


@settings(deadline=None)
@given(case=cases(is_root_lost=True))
def test_at_most_what_anybody_knows_of_is_counted_as_lost(case: tuple[Set, World]) -> None:
    wanted, world = case
    plan = plan_for(wanted, world)
    assert plan.loss is not None
    highest = max(view.tick.tick_id for view in world.observed().views.values())
    assert plan.loss.at_most == 10 * (highest - plan.loss.fork)
    # The member tables of those that answer name the position of those that do not.
    assert plan.loss.highest_known == max(view.tick.tick_id for view in world.views.values())


S1 = Node(name="s1", set="q", database="d1", role=Role.ROOT)
S2 = Node(name="s2", set="q", database="d2", role=Role.BRANCH, provider="s1")
S3 = Node(name="s3", set="q", database="d3", role=Role.BRANCH, provider="s1")
S4 = Node(name="s4", set="q", database="d4", role=Role.LEAF, provider="s3")


def a_set(*nodes: Node, **more: object) -> Set:
    return Set(name="q", nodes={node.name: node for node in nodes}, **more)  # type: ignore[arg-type]


NOW_SO = a_set(S1, S2, S3, S4)
S2_REIGNS = a_set(
    replace(S1, role=Role.BRANCH, provider="s2"),
    replace(S2, role=Role.ROOT, provider=None),
    replace(S3, provider="s2"),
    S4,
)


def names(plan: Plan) -> list[str]:
    return [f"{type(step).__name__} {step.node}" for step in plan.steps]


def refusals(plan: Plan) -> str:
    return "\n".join(map(str, plan.refusals))


def test_a_set_as_the_file_says_needs_nothing() -> None:
    plan = make_plan(NOW_SO, World.of(NOW_SO).observed(), accept_all(World.of(NOW_SO)))
    assert (plan.kind, plan.steps, plan.warnings, plan.refusals) == ("none", (), (), ())
    assert plan_text(plan, NOW_SO, World.of(NOW_SO).observed()).endswith("nothing to do")


def test_another_root_in_the_file_is_a_switchover() -> None:
    world = World.of(NOW_SO)
    plan = plan_for(S2_REIGNS, world)
    assert plan.kind == "switchover" and plan.loss is None and plan.refusals == ()
    assert names(plan) == [
        "Fence s1",
        "Offer s1",
        "AwaitPromotion s2",
        "Demote s1",
        "SwitchProvider s3",
        "StoreDocument s2",
    ]
    text = plan_text(plan, S2_REIGNS, world.observed())
    assert "s1 branch" in text.partition("after:")[2] and "nothing is lost" in text
    steps = text.partition("switchover:\n")[2].splitlines()
    # What must hold before a step stands below it; what only waits for others asks for nothing.
    assert steps[:6] == [
        "   1. fence s1: inserts are refused from here until the new root takes them",
        "        if s1 is the root in term 00000000",
        "   2. close the term at s1 and offer the reign to s2",
        "        if s1 is the root in term 00000000",
        "   3. s2 copies the closing tick, takes the reign from s1 and opens its term",
        "   4. s1, no longer the root, becomes a branch of s2",
    ]
    assert "        if s3 is a branch of s1" in steps


def test_another_root_in_the_file_is_a_failover_when_the_root_does_not_answer() -> None:
    world = World.of(NOW_SO, {"s1": 110, "s2": 104, "s3": 107, "s4": 109}, frozenset({"s1"}))
    plan = plan_for(S2_REIGNS, world)
    assert plan.kind == "failover" and plan.refusals == ()
    assert names(plan) == [
        "CatchUp s2",
        "OpenBallots s2",
        "Promote s2",
        "CloseBallots s2",
        "ResetLeaf s4",
        "SwitchProvider s3",
        "StoreDocument s2",
    ]
    assert plan.loss is not None and (plan.loss.fork, plan.loss.at_most, plan.loss.counted_to) == (107, 20, 109)
    text = plan_text(plan, S2_REIGNS, world.observed())
    assert "at most 20 events up to tick 109" in text and "tick 110 was heard of too" in text
    assert "\n        if s2 is a branch in term 00000000, at tick 107\n" in text
    assert "\n        if s2 is a branch in term 00000000, in generation 1\n" in text


def test_what_must_be_accepted_is_named() -> None:
    world = World.of(NOW_SO, {"s3": 101}, frozenset({"s1", "s3"}))
    plan = make_plan(S2_REIGNS, world.observed(), Request(op_id="op", uid="u", now=NOW))
    told = refusals(plan)
    assert "the root s1 is lost: no answer; --dead s1" in told
    assert (
        "s3 does not answer and may be further on than tick 100: it was last heard of at tick 101; --without s3" in told
    )
    assert "--fenced-by" in told and "--allow-loss 100" in told
    with pytest.raises(UnsafeError) as caught:
        plan.check()
    assert "--without s3" in str(caught.value.hint)
    assert "refused:" in plan_text(plan, S2_REIGNS, world.observed())


def test_a_silent_carrier_that_is_given_up_is_waited_for_like_one_that_was_left_out() -> None:
    world = World.of(NOW_SO, {"s3": 101}, frozenset({"s1", "s3", "s4"}))
    plan = plan_for(S2_REIGNS, world, dead=frozenset({"s1", "s3", "s4"}), without=frozenset())
    assert plan.refusals == () and plan.facts["without"] == ["s3"]
    text = plan_text(plan, S2_REIGNS, world.observed())
    assert "warning: s3 is given up and may be further on than tick 100: the certificate waits" in text
    world = world.copy(silent=frozenset({"s1"}))
    assert plan_for(S2_REIGNS, world, dead=frozenset({"s1", "s3"})).facts["without"] == [], "s3 answers, and was asked"


def test_a_root_that_answers_is_not_dead() -> None:
    world = World.of(NOW_SO)
    plan = plan_for(S2_REIGNS, world, dead=frozenset({"s1"}))
    assert "s1 answers, and its term is open; cascade switchover" in refusals(plan)


def test_a_closed_term_loses_nothing_and_nobody_has_to_allow_it() -> None:
    world = World.of(NOW_SO, silent=frozenset({"s1"}))
    world.change("s2", handover=Handover(uid="u2", target="s2", state="offered", closing_tick=100))
    plan = make_plan(S2_REIGNS, world.observed(), accept_all(world))
    assert plan.loss is not None and plan.loss.is_closed and plan.refusals == ()


def test_a_rewound_root_is_followed_by_the_one_that_has_its_tail() -> None:
    world = World.of(NOW_SO, {"s1": 108, "s2": 104, "s3": 108})
    world.change("s1", fence=Fence(cause="rewound", detail="s1 lost tick 105, which s2 has"))
    world.change("s2", answer="rewound")
    assert [view.node for view in carriers(world.observed())] == ["s2", "s1", "s3"]
    assert choose_successor(NOW_SO, world.observed(), "s1") == "s2"
    assert "s1 cannot become the root: s2 has what its database lost" in refusals(plan_for(NOW_SO, world))
    refused = make_plan(S2_REIGNS, world.observed(), accept_all(world, allow_loss=104))
    assert refusals(refused) == "the root s1 is lost: s1 lost tick 105, which s2 has; --dead s1 if so"
    plan = plan_for(S2_REIGNS, world, dead=frozenset({"s1"}), fenced_by=None)
    assert plan.refusals == () and plan.loss is not None and plan.loss.fork == 104
    # Both followed what is no longer there: s3 copied from the root after it had lost its tail.
    assert {"Resurrect s1", "Resurrect s3"} <= set(names(plan))
    carry_out(plan, world)


def test_a_root_on_another_server_goes_on_in_a_new_term_if_nobody_has_more() -> None:
    world = World.of(NOW_SO, {"s1": 108, "s2": 108, "s3": 107})
    world.change("s1", fence=Fence(cause="rewound", detail="its server is another one"))
    assert choose_successor(NOW_SO, world.observed(), "s1") == "s1"
    plan = make_plan(NOW_SO, world.observed(), accept_all(world))
    assert refusals(plan).splitlines() == [
        "the root s1 is lost: its server is another one; --dead s1 if so",
        "what came after tick 108 may be lost; --allow-loss 108",
    ]
    plan = plan_for(NOW_SO, world, dead=frozenset({"s1"}), allow_loss=108)
    assert names(plan) == ["OpenBallots s1", "Promote s1", "CloseBallots s1", "StoreDocument s1"]
    carry_out(plan, world)
    assert world.observed().tip.cause == "rewind" and world.views["s1"].is_writable


S3_REIGNS = a_set(
    replace(S1, role=Role.BRANCH, provider="s3"),
    replace(S2, provider="s3"),
    replace(S3, role=Role.ROOT, provider=None),
    S4,
)


@pytest.mark.parametrize("knows", ["s3", "s4"])
def test_a_successor_that_is_lost_before_anybody_copied_from_it_is_followed(knows: str) -> None:
    """s2 was promoted at 107, and only its term is known; the leaf had seen the old term up to 109."""
    world = World.of(NOW_SO, {"s1": 110, "s2": 107, "s3": 105, "s4": 109})
    world._open_term("s2", "u2", 102, world.views["s2"].tick, "failover")
    world.learn(knows, world.views["s2"].terms)
    world = world.copy(silent=frozenset({"s1", "s2"}))
    request = accept_all(world, uid="u3", dead=frozenset(), without=frozenset({"s1"}), allow_loss=107)
    assert refusals(make_plan(S3_REIGNS, world.observed(), request)).splitlines() == [
        "the root s2 is lost: no answer; --dead s2 if so",
        "what came after tick 105, not 107 may be lost; --allow-loss 105",
    ]
    plan = plan_for(S3_REIGNS, world, uid="u3")
    assert plan.refusals == () and plan.loss is not None and not plan.loss.is_closed
    assert "nobody who answers has anything of the term u2 of s2" in plan.warnings[0]
    # What s2 had of the old term is known from its fork, the leaf's tick shows more; of its own term nothing is.
    assert (plan.loss.fork, plan.loss.counted_to, plan.loss.at_most) == (105, 109, 40)
    assert names(plan)[:4] == ["OpenBallots s3", "Promote s3", "CloseBallots s3", "ResetLeaf s4"]
    carry_out(plan, world)
    assert world.views["s4"].tick.tick_id == 105 and world.observed().tip.parent_uid == "u2"
    world = world.copy(silent=frozenset())
    back = plan_for(S3_REIGNS, world, uid="u4")
    assert names(back)[:2] == ["Resurrect s1", "Resurrect s2"]
    carry_out(back, world)
    assert [world.views[name].tick.tick_id for name in ("s1", "s2")] == [105, 105]
    assert plan_for(S3_REIGNS, world, uid="u5").is_empty


def test_a_closing_tick_says_nothing_of_what_the_heir_took_before_it_was_lost() -> None:
    world = World.of(NOW_SO)
    world.change("s3", handover=Handover(uid="u2", target="s2", state="heard", closing_tick=100))
    world._open_term("s2", "u2", 102, tick(100), "switchover")
    world.learn("s3", world.views["s2"].terms)
    world = world.copy(silent=frozenset({"s1", "s2"}))
    plan = plan_for(S3_REIGNS, world, uid="u3")
    assert plan.loss is not None and (plan.loss.fork, plan.loss.is_closed) == (100, False)


def test_a_term_that_an_operator_gave_up_counts_no_more() -> None:
    world = World.of(NOW_SO)
    world._open_term("s2", "u2", 102, tick(100), "failover")
    world._open_term("s3", "u3", 103, tick(100), "failover")
    kept, given_up = world.views["s2"].terms[-1], replace(world.views["s3"].terms[-1], voided_by="u2")
    world.learn("s2", (given_up,))
    world.change("s3", terms=(*world.views["s1"].terms, kept, given_up), fence=Fence(cause="over"))
    plan = plan_for(S2_REIGNS, world)
    assert plan.refusals == () and names(plan)[:2] == ["Demote s1", "Resurrect s3"]
    carry_out(plan, world)
    assert world.tree() == {name: (str(node.role), node.provider) for name, node in S2_REIGNS.nodes.items()}


def test_a_lost_branch_loses_nothing() -> None:
    world = World.of(NOW_SO, silent=frozenset({"s3"}))
    wanted = a_set(S1, S2, S3, replace(S4, provider="s2"))
    plan = plan_for(wanted, world)
    assert names(plan) == ["SwitchProvider s4", "StoreDocument s1"]
    assert (plan.kind, plan.pause_s, plan.refusals) == ("change", 0.0, ())
    assert plan.warnings == ("s3 does not answer and stays as it is: no answer",)


def test_old_roots_come_back_with_and_without_a_tail() -> None:
    for dirty, step in ((False, "Demote s1"), (True, "Resurrect s1")):
        world = World.of(NOW_SO, silent=frozenset({"s1"}))
        carry_out(plan_for(S2_REIGNS, world), world)
        world = world.copy(silent=frozenset())
        world.change("s1", is_dirty=dirty)
        assert names(plan_for(S2_REIGNS, world))[:1] == [step]


def test_an_old_file_is_refused_with_the_difference() -> None:
    world = World.of(S2_REIGNS)
    document = plan_for(S2_REIGNS, world).document
    world.change("s2", revision=4, document=document)
    told = refusals(plan_for(replace(NOW_SO, revision=3), world))
    assert (
        "the file is based on revision 3, the databases have revision 4: s1 has role branch, in the file root" in told
    )
    assert plan_for(replace(S2_REIGNS, revision=3), world).is_empty, "what the databases have need not be refused"
    assert plan_for(replace(NOW_SO, revision=4), world).kind == "switchover"
    assert "no revision" in refusals(plan_for(NOW_SO, world))


def test_nodes_are_added_by_daemons_and_dropped_at_the_root() -> None:
    world = World.of(NOW_SO)
    s5 = Node(name="s5", set="q", database="d5", role=Role.LEAF, provider="s2")
    wanted = a_set(S1, S2, replace(S4, provider="s2"), s5)
    observed = world.observed()
    observed = Observed(set="q", views=observed.views, missing=frozenset({"s5"}))
    plan = make_plan(wanted, observed, accept_all(world))
    assert names(plan) == ["SwitchProvider s4", "AddNode s5", "DropNode s3", "StoreDocument s1"]
    assert not plan.is_empty and "s5 is new: its daemon makes it" in plan_text(plan, wanted, observed)


def test_a_split_set_waits_for_a_decision() -> None:
    world = World.of(NOW_SO)
    world._open_term("s2", "u2", 102, tick(100), "failover")
    world._open_term("s3", "u3", 103, tick(100), "failover")
    assert "it is split between the terms u2 of s2, u3 of s3; cascade resolve q --keep UID" in refusals(
        plan_for(NOW_SO, world)
    )


def test_a_decision_that_the_kept_root_has_not_heard_is_gone_on_with() -> None:
    world = World.of(NOW_SO)
    world._open_term("s2", "u2", 102, tick(100), "failover")
    world._open_term("s3", "u3", 103, tick(100), "failover")
    world.learn("s1", (replace(world.views["s3"].terms[-1], voided_by="u2"),))
    world.change("s2", fence=Fence(cause="conflict"))
    assert "s2 stopped in a conflict and has not heard that u2 was kept; cascade resolve q --keep u2" in refusals(
        plan_for(S2_REIGNS, world)
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"role": Role.LEAF}, "it is a leaf and keeps no queue"),
        ({"is_dirty": True}, "it has something of its own"),
        ({"answer": "diverged", "answer_detail": "at 90"}, "it has something of its own: at 90"),
        ({"state": "paused"}, "it is paused; cascade node resume q s2"),
        ({"node": "s9"}, "the database of s2 is node s9"),
        ({"set_uid": "other"}, "different sets of one name"),
    ],
)  # fmt: skip
def test_who_cannot_reign_is_refused(change: dict[str, object], told: str) -> None:
    world = World.of(NOW_SO)
    world.change("s2", **change)
    assert told in refusals(plan_for(S2_REIGNS, world)) or "cannot become a" in refusals(plan_for(S2_REIGNS, world))
    world = World.of(NOW_SO, silent=frozenset({"s2"}))
    assert "s2 cannot become the root: no answer; name a node that answers" in refusals(plan_for(S2_REIGNS, world))


def test_an_operation_that_was_left_behind_is_ended_after_its_time() -> None:
    for expires_at, expected in (("2029-12-31T23:59Z", ["Abort s1"]), ("2030-01-01T00:01Z", [])):
        world = World.of(NOW_SO)
        operation = Operation(op_id="lost", kind="switchover", target="s3", expires_at=expires_at)
        world.change("s1", operation=operation, fence=Fence(cause="operation", op_id="lost"))
        plan = plan_for(NOW_SO, world)
        assert names(plan)[:1] == expected
        assert bool(plan.refusals) == (expected == [])
        assert names(plan_for(S2_REIGNS, world))[:2] == [*expected, *(["Fence s1"] if expected else [])]
    world.change("s1", handover=Handover(uid="u", target="s3", state="taken", term_uid=FIRST))
    assert "s3 has taken the reign from s1: this only goes forward" in refusals(plan_for(NOW_SO, world))
    told = refusals(plan_for(S2_REIGNS, world))
    assert told == "s3 has taken the reign from s1; let the file say that s3 is the root"


def an_heir_is_lost() -> World:
    """s2 has taken the reign from s1, whose term ended at 101, and answers no more."""
    world = World.of(NOW_SO, {"s1": 101, "s3": 98}, frozenset({"s2"}))
    handover = Handover(uid="u2", target="s2", state="taken", term_uid=FIRST, closing_tick=101, op_id="lost")
    world.change("s1", handover=handover, fence=Fence(cause="operation", op_id="lost"))
    return world


@pytest.mark.parametrize("wanted", [NOW_SO, S2_REIGNS, S3_REIGNS])
def test_an_heir_that_took_the_reign_and_does_not_answer_has_to_be_given_up(wanted: Set) -> None:
    told = refusals(plan_for(wanted, an_heir_is_lost(), dead=frozenset()))
    assert told.endswith("; if it is lost: cascade failover q --dead s2 --dry-run")


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        (NOW_SO, ["OpenBallots s1", "Promote s1", "CloseBallots s1", "StoreDocument s1"]),
        (S3_REIGNS, ["CatchUp s3", "OpenBallots s3", "Promote s3", "CloseBallots s3", "Demote s1"]),
    ],
)
def test_an_heir_that_took_the_reign_and_is_lost_is_followed_at_the_closing_tick(wanted: Set, first: list[str]) -> None:
    world = an_heir_is_lost()
    words: dict[str, object] = {"dead": frozenset({"s2"}), "without": frozenset()}
    assert refusals(make_plan(wanted, world.observed(), accept_all(world, **words, fenced_by=""))).splitlines() == [
        's2 cannot be reached and may still take inserts; --fenced-by "how it is kept from that"',
        "what came after tick 101 may be lost; --allow-loss 101",
    ]
    plan = plan_for(wanted, world, **words)
    assert plan.refusals == () and plan.kind == "failover" and names(plan)[: len(first)] == first
    assert plan.loss is not None and (plan.loss.fork, plan.loss.is_closed) == (101, False)
    assert plan.facts["without"] == ["s2"], "the certificate stays open until it was read"
    carry_out(plan, world)
    assert world.observed().tip.node == wanted.root.name and world.views[wanted.root.name].is_writable
    assert plan_for(wanted, world, **words).is_empty


def test_another_promotion_is_finished_or_given_up() -> None:
    world = World.of(NOW_SO, silent=frozenset({"s1"}))
    ballot = Ballot(number=103, uid="other", candidate="s3")
    for node in ("s2", "s3"):
        world.change(node, ballots=(ballot,))
    assert "the promotion of s3 to term 103 was announced" in refusals(plan_for(S2_REIGNS, world))
    assert "--over-ballot other" in refusals(plan_for(S2_REIGNS, world))
    plan = plan_for(S2_REIGNS, world, over_ballot="other")
    [close] = [step for step in plan.steps if isinstance(step, s.CloseBallots) and step.uid == "other"]
    assert plan.refusals == () and close.nodes == ("s3", "s2"), "the candidate first: it must not be promoted after it"
    carry_out(plan, world)


def test_a_promotion_that_was_announced_goes_on_under_its_own_number() -> None:
    world = World.of(NOW_SO, silent=frozenset({"s1"}))
    mine = Ballot(number=102, uid="mine", candidate="s2", fork_tick=100, fork_chain=tick(100).chain)
    world.change("s2", ballots=(mine,))
    plan = plan_for(S2_REIGNS, world)
    [promote] = [step for step in plan.steps if isinstance(step, s.Promote)]
    assert (promote.uid, promote.number) == ("mine", 102)
    assert names(plan)[:2] == ["OpenBallots s2", "Promote s2"]


@pytest.mark.parametrize("stale", [{"fork_tick": 99}, {"fork_chain": "other"}, {"is_fresh": False}])
def test_an_announcement_that_counts_no_more_is_ended_before_anything_else(stale: dict[str, Any]) -> None:
    """It keeps its carriers from copying, the successor too, which is to catch up."""
    world = World.of(NOW_SO, {"s3": 101}, silent=frozenset({"s1"}))
    mine = Ballot(number=102, uid="mine", candidate="s2", fork_tick=101, fork_chain=tick(101).chain)
    world.change("s2", ballots=(replace(mine, **stale),))
    world.change("s3", ballots=(replace(mine, **stale),))
    plan = plan_for(S2_REIGNS, world)
    assert names(plan)[:4] == ["CloseBallots s2", "CatchUp s2", "OpenBallots s2", "Promote s2"]
    [promote] = [step for step in plan.steps if isinstance(step, s.Promote)]
    assert promote.uid == "u2"
    carry_out(plan, world)


def test_the_candidate_is_asked_first_and_who_could_only_refuse_is_not() -> None:
    world = World.of(NOW_SO, {"s3": 101}, silent=frozenset({"s1"}))
    for answer, asked, fork in ((None, ("s2", "s3"), 101), ("dirty", ("s2",), 100)):
        world.change("s3", answer=answer)
        plan = plan_for(S2_REIGNS, world)
        [ballots] = [step for step in plan.steps if isinstance(step, s.OpenBallots)]
        [promote] = [step for step in plan.steps if isinstance(step, s.Promote)]
        assert ballots.nodes == promote.nodes == asked
        assert ballots.fork == promote.fork and ballots.fork["tick_id"] == fork


def test_the_most_advanced_carrier_is_chosen_and_one_with_a_handler_last() -> None:
    observed = World.of(NOW_SO, {"s2": 101, "s3": 102}, frozenset({"s1"})).observed()
    assert choose_successor(NOW_SO, observed, "s1") == "s3"
    busy = a_set(S1, S2, replace(S3, handler="a:b"), S4)
    assert choose_successor(busy, observed, "s1") == "s2"
    assert choose_successor(a_set(S1), observed, "s1") is None


def test_nobody_to_ask_is_a_refusal() -> None:
    nobody = World.of(NOW_SO, silent=frozenset(NOW_SO.nodes))
    assert "none of its databases answers" in refusals(
        make_plan(NOW_SO, nobody.observed(), accept_all(World.of(NOW_SO)))
    )
    unknown = Observed(set="q", missing=frozenset(NOW_SO.nodes))
    request = Request(op_id="op", uid="u", now=NOW)
    assert "cascade set create q" in refusals(make_plan(NOW_SO, unknown, request))
    typo = replace(request, dead=frozenset({"s9"}))
    assert "it has no node 's9'" in refusals(make_plan(NOW_SO, World.of(NOW_SO).observed(), typo))


def test_what_is_no_plan_is_not_read() -> None:
    plan = plan_for(S2_REIGNS, World.of(NOW_SO)).as_json()
    for broken in ({}, {**plan, "version": 2}, {**plan, "steps": [{"step": "Rm"}]}, {**plan, "loss": {"fork": 1}}):
        with pytest.raises(ConfigError):
            Plan.parse(broken)
