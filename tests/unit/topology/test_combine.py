"""Combined sets in the file: merge-leaves follow from `combines`, and what cannot be merged is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade.topology import Role, Topology, TopologyError, as_document, check, dump, parse, render
from cascade.topology import steps as s
from cascade.topology.decision import Plan
from cascade.topology.edit import edit
from cascade.topology.failover import as_observed, switchover, with_revision
from cascade.topology.lost_root import choose_successor
from cascade.topology.observe import Observed
from cascade.topology.plan import make_plan
from cascade.topology.show_plan import plan_text
from cascade.topology.sketch import document_of
from tests.fixtures.topologies import topologies
from tests.fixtures.worlds import World, accept_all, tick

DATABASES = ", ".join(f"{name}: {{dsn: service={name}}}" for name in ("a1", "a2", "b1", "s1", "s2", "s3", "t1", "x"))
#: The picture: a, b -> s1, s2, s3.  Every node has a database of its own name.
PICTURE = (
    f"version: 1\ndatabases: {{{DATABASES}}}"
    + """
sets:
  a:
    nodes:
      a1: {database: a1, role: root}
      a2: {database: a2, role: branch, provider: a1}
  b: {nodes: {b1: {database: b1, role: root}}}
  s:
    combines: [a, b]
    nodes:
      s1: {database: s1, role: combined-root}
      s2: {database: s2, role: branch, provider: s1}
      s3: {database: s3, role: branch, provider: s1}
"""
)
LEAF = "{database: %s, role: merge-leaf, provider: a1, into: s}"


def changed(*changes: tuple[str, str]) -> str:
    """Return the picture with other text."""
    text = PICTURE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def leaves(topology: Topology, part: str = "a") -> dict[str, str]:
    """Return the merge-leaves of a part as 'database provider', '+' for those that are not written."""
    return {
        node.name: f"{'+' if node.is_derived else ''}{node.database} {node.provider}"
        for node in topology.sets[part].nodes.values()
        if node.role is Role.MERGE_LEAF
    }


A1, S1, S2 = "      a1: {database: a1, role: root}\n", "s1: {database: s1, role: combined-root}", "provider: s1}\n"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([], {"s1": "+s1 a1", "s2": "+s2 a1"}),
        # Some or all of it may be written, under any name.
        ([(A1, f"{A1}      m: {LEAF % 's1'}\n")], {"m": "s1 a1", "s2": "+s2 a1"}),
        ([(A1, f"{A1}      m: {LEAF % 's2'}\n")], {"s1": "+s1 a1", "m": "s2 a1"}),
        ([(A1, f"{A1}      m: {LEAF % 's1'}\n      s2: {LEAF % 's2'}\n")], {"m": "s1 a1", "s2": "s2 a1"}),
        # Written at another branch, that one is the combined-failover; there may be several.
        ([(A1, f"{A1}      m: {LEAF % 's3'}\n")], {"s1": "+s1 a1", "m": "s3 a1"}),
        (
            [(A1, f"{A1}      m: {LEAF % 's3'}\n      n: {LEAF % 's2'}\n")],
            {"s1": "+s1 a1", "m": "s3 a1", "n": "s2 a1"},
        ),
        # Without a branch nobody could go on.
        (
            [
                ("      s2: {database: s2, role: branch, provider: s1}\n", ""),
                ("      s3: {database: s3, role: branch, provider: s1}\n", ""),
            ],
            {"s1": "+s1 a1"},
        ),
        # A leaf keeps no queue, so it cannot go on either.
        ([("s2, role: branch", "s2, role: leaf")], {"s1": "+s1 a1", "s3": "+s3 a1"}),
    ],
)  # fmt: skip
def test_merge_leaves_follow_from_what_is_combined(changes: list[tuple[str, str]], found: dict[str, str]) -> None:
    topology = parse(changed(*changes))
    assert leaves(topology) == found
    assert set(leaves(topology, "b")) == {
        "s1",
        *(
            n.name
            for n in topology.sets["s"].nodes.values()
            if n.database in {v.strip("+")[:2] for v in found.values()}
        ),
    }
    assert check(topology) == [] and parse(dump(topology)) == topology


def test_a_written_merge_leaf_of_one_part_decides_for_all() -> None:
    topology = parse(changed((A1, f"{A1}      m: {LEAF % 's3'}\n")))
    assert leaves(topology, "b") == {"s1": "+s1 b1", "s3": "+s3 b1"}


def test_a_database_has_the_nodes_that_follow() -> None:
    topology = parse(PICTURE)
    assert [(node.set, node.role) for node in topology.nodes_at("s2")] == [
        ("a", Role.MERGE_LEAF),
        ("b", Role.MERGE_LEAF),
        ("s", Role.BRANCH),
    ]
    assert topology.find("a", "s1").into == "s"
    assert [node.name for node in topology.sets["a"].path("s1")] == ["a1", "s1"]


def test_combined_sets_are_combined_again() -> None:
    text = changed(("  s:\n", "  t: {combines: [s], nodes: {t1: {database: t1, role: combined-root}}}\n  s:\n"))
    topology = parse(text)
    assert leaves(topology, "s") == {"t1": "+t1 s1"}
    assert leaves(topology) == {"s1": "+s1 a1", "s2": "+s2 a1"}, "t1 carries nothing of s"
    assert topology.parts_first == ("a", "b", "s", "t")
    assert leaves(switchover(topology, "s", "s2"), "s") == {"t1": "+t1 s2"}


@given(topology=topologies())
def test_what_follows_is_never_written(topology: Topology) -> None:
    derived = [n for found in topology.sets.values() for n in found.nodes.values() if n.is_derived]
    for node in derived:
        assert node.name not in as_document(topology)["sets"][node.set]["nodes"]
        assert node.name in document_of(topology.sets[node.set])["nodes"], "the databases are told all the same"
    for found in topology.sets.values():
        if found.is_combined:
            databases = [node.database for node in found.nodes.values() if node.role.is_carrier]
            for part in found.combines:
                into = [n.database for n in topology.sets[part].nodes.values() if n.into == found.name]
                assert found.root.database in into and set(into) <= set(databases)
                assert len(into) == len(set(into)) == min(2, len(databases))


def test_the_databases_are_told_the_same_whether_it_is_written_or_follows() -> None:
    both = f"{A1}      s1: {LEAF % 's1'}\n      s2: {LEAF % 's2'}\n"
    written, derived = parse(changed((A1, both))), parse(PICTURE)
    assert document_of(written.sets["a"]) == document_of(derived.sets["a"])
    assert document_of(derived.sets["s"])["combines"] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "line", "told"),
    [
        (
            [("s1: {database: s1, role", "s1: {database: a2, role")], 10,
            "set s: combined-root s1 has no merge-leaf of part a: database a2 has node a2 of it already;"
            " give s1 or a2 a database of its own",
        ),
        (
            [("database: s2", "database: b1")], 10,
            "set s: combined-failover s2 has no merge-leaf of part b: database b1 has node b1 of it already; give s2 or"
            " b1 a database of its own; or write merge-leaves out where another branch is: it is the combined-failover",
        ),
        (  # written for one part, and no room for the other
            [(A1, f"{A1}      m: {LEAF % 'b1'}\n"), ("s3: {database: s3", "s3: {database: b1")], 11,
             "set s: combined-failover s3 has no merge-leaf of part b: database b1 has node b1 of it already",
        ),
        (
            [("      a2: {database: a2", "      s2: {database: a2")], 10,
            "set s: combined-failover s2 has no merge-leaf of part a: s2 is another node of that set; write it out"
            " under a name of its own: {database: s2, role: merge-leaf, provider: a1, into: s}",
        ),
        (
            [("  s:\n", "  u: {combines: [a], nodes: {u1: {database: s1, role: combined-root}}}\n  s:\n")], 11,
            "set s: combined-root s1 has no merge-leaf of part a: database s1 feeds set u from it already",
        ),
        (
            [("s1: {dsn: service=s1}", "s1: {dsn: service=a2}")], 10,
            "set s: combined-root s1 has no merge-leaf of part a: database s1 has node a2 of it already",
        ),
        ([("combines: [a, b]", "combines: [a, a]")], 10, "set s: part a is combined twice; remove one"),
        (
            [("b: {nodes", "b: {combines: [s], nodes"), ("b1, role: root", "b1, role: combined-root")], 8,
            "set b: sets combine one another: b -> s -> b; remove one of them",
        ),
        ([(A1, f"{A1}      m: {LEAF % 'x'}\n")], 7, "set a, node m: database x does not carry set s"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_explained(changes: list[tuple[str, str]], line: int, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(changed(*changes), source="t")
    found = str(caught.value).splitlines()
    assert any(text.startswith(f"t:{line}: {told}") for text in found), found
    if "another branch" not in told:
        assert len(found) == 1, found


@pytest.mark.parametrize("role", ["role: rot", "role: [x]"])
def test_what_cannot_be_read_is_told_once(role: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(changed(("role: combined-root", role)))
    assert len(caught.value.problems) == 1


# Changing it


def test_merge_leaves_stay_where_they_are_when_the_combined_failover_takes_over() -> None:
    before = parse(PICTURE)
    after = switchover(before, "s", "s2")
    assert after.sets["s"].root.name == "s2"
    assert after.sets["s"].nodes["s1"].role is Role.BRANCH
    assert leaves(after) == leaves(before) == {"s1": "+s1 a1", "s2": "+s2 a1"}
    assert switchover(after, "s", "s1").sets["a"] == before.sets["a"]


def test_merge_leaves_follow_the_root_of_their_part() -> None:
    after = switchover(parse(PICTURE), "a", "a2")
    assert leaves(after) == {"s1": "+s1 a2", "s2": "+s2 a2"}
    # Whoever writes one says whom it copies from; it follows all the same.
    written = parse(changed((A1, f"{A1}      m: {LEAF % 's1'}\n")))
    assert leaves(switchover(written, "a", "a2")) == {"m": "s1 a2", "s2": "+s2 a2"}


def test_a_new_combined_root_has_merge_leaves_whoever_it_is() -> None:
    after = switchover(parse(PICTURE), "s", "s3")
    assert leaves(after) == {"s3": "+s3 a1", "s1": "+s1 a1"}


@pytest.mark.parametrize(("name", "to"), [("a", "a2"), ("s", "s2")])
def test_what_follows_is_not_written_into_the_file(name: str, to: str) -> None:
    wanted = with_revision(switchover(parse(PICTURE), name, to), name, 4)
    made = edit(PICTURE, wanted)
    assert parse(made) == wanted and "merge-leaf" not in made


@settings(max_examples=50)
@given(topology=topologies(), data=st.data())
def test_any_switchover_leaves_the_new_root_with_every_part(topology: Topology, data: st.DataObject) -> None:
    branches = [
        (found.name, node.name)
        for found in topology.sets.values()
        for node in found.nodes.values()
        if node.role is Role.BRANCH and node.handler is None
    ]
    if not branches:
        return
    after = switchover(topology, *data.draw(st.sampled_from(branches)))
    assert [problem.fact for problem in check(after) if "merge-leaf of part" in problem.fact] == []
    for found in after.sets.values():
        for part in found.combines:
            assert found.root.database in {n.database for n in after.sets[part].nodes.values() if n.into == found.name}


# Showing it


def test_a_picture_shows_what_follows() -> None:
    topology = parse(PICTURE)
    assert render.tree(topology.sets["a"]) == (
        "a\n"
        "  a1 root            a1\n"
        "  ├─> a2 branch      a2\n"
        "  ├─> s1 merge-leaf  s1  into s (derived)\n"
        "  └─> s2 merge-leaf  s2  into s (derived)"
    )
    assert render.mermaid(topology).count(" -.-> ") == 4


# Planning


def plan_for(topology: Topology, name: str, world: World, **more: Any) -> Plan:
    """Plan for one set, with everything accepted, the fork too."""
    request = accept_all(world, **more)
    plan = make_plan(topology.sets[name], world.observed(name), request)
    if plan.loss is not None and request.allow_loss is None:
        plan = make_plan(topology.sets[name], world.observed(name), replace(request, allow_loss=plan.loss.fork))
    return plan


def carry_out(plan: Plan, world: World) -> None:
    for step in plan.steps:
        world.run(step)
        assert world.problems() == [], step


def names(plan: Plan) -> list[str]:
    return [f"{type(step).__name__} {step.node}" for step in plan.steps]


def refusals(plan: Plan) -> str:
    return "\n".join(map(str, plan.refusals))


def world_of(name: str, ticks: dict[str, int] | None = None, *silent: str) -> World:
    """Return a set of the picture as it runs."""
    return World.of(parse(PICTURE).sets[name], ticks, frozenset(silent), merging=("s1", "s2"))


def test_merge_leaves_are_re_pointed_when_their_part_is_switched_over() -> None:
    world, wanted = world_of("a"), switchover(parse(PICTURE), "a", "a2")
    plan = plan_for(wanted, "a", world)
    assert (plan.kind, plan.refusals) == ("switchover", ())
    assert names(plan)[3:] == ["Demote a1", "SwitchProvider s1", "SwitchProvider s2", "StoreDocument a2"]
    assert "        if s1 is a merge-leaf of a1" in plan_text(plan, wanted.sets["a"], world.observed("a"))
    carry_out(plan, world)
    assert world.tree()["s1"] == ("merge-leaf", "a2")
    assert plan_for(wanted, "a", world).is_empty


def test_a_merge_leaf_beyond_a_fork_goes_back_by_itself() -> None:
    world = world_of("a", {"a1": 110, "s1": 108, "s2": 106, "a2": 103}, "a1")
    wanted = switchover(parse(PICTURE), "a", "a2")
    plan = plan_for(wanted, "a", world)
    assert plan.loss is not None and (plan.loss.fork, plan.loss.at_most, plan.loss.counted_to) == (103, 50, 108)
    assert names(plan)[-3:] == ["SwitchProvider s1", "SwitchProvider s2", "StoreDocument a2"]
    assert not any(isinstance(step, s.ResetLeaf) for step in plan.steps)
    carry_out(plan, world)
    assert plan_for(wanted, "a", world).is_empty


def test_a_merge_leaf_that_does_not_answer_stands_in_nobodys_way() -> None:
    world = world_of("a", None, "a1", "s1")
    plan = plan_for(switchover(parse(PICTURE), "a", "a2"), "a", world, dead=frozenset({"a1"}), without=frozenset())
    assert plan.refusals == () and "SwitchProvider s2" in names(plan)
    assert "s1 does not answer and stays as it is: no answer" in plan.warnings
    plan = plan_for(parse(PICTURE), "a", world_of("a", None, "s1"))
    assert plan.refusals == () and plan.is_empty


def test_where_a_merge_leaf_stands_makes_no_plan_stale() -> None:
    world = world_of("a", None, "a1")
    plan = plan_for(switchover(parse(PICTURE), "a", "a2"), "a", world)
    world.change("s1", tick=tick(99))
    world.raise_generation("s1")
    assert plan.moved_on(world.observed("a")) == []
    world.change("s1", provider="a2")
    assert plan.moved_on(world.observed("a")) == ["s1: provider is a2, was a1"]


def test_a_combined_set_is_handed_over_to_the_combined_failover() -> None:
    world, wanted = world_of("s"), switchover(parse(PICTURE), "s", "s2")
    plan = plan_for(wanted, "s", world)
    assert (plan.kind, plan.refusals) == ("switchover", ())
    assert names(plan) == [
        "Fence s1",
        "Offer s1",
        "AwaitPromotion s2",
        "Demote s1",
        "SwitchProvider s3",
        "StoreDocument s2",
    ]
    assert "s1 is the combined-root in term" in plan_text(plan, wanted.sets["s"], world.observed("s"))
    carry_out(plan, world)
    assert world.tree() == {"s1": ("branch", "s2"), "s2": ("combined-root", None), "s3": ("branch", "s2")}
    assert plan_for(wanted, "s", world).is_empty


def test_nobody_else_can_be_promoted() -> None:
    told = (
        "s3 cannot become the root: it is no combined-failover, since its database has no merge-leaf of a, b; name s2"
    )
    wanted = switchover(parse(PICTURE), "s", "s3")
    assert refusals(plan_for(wanted, "s", world_of("s"))) == told
    assert told in refusals(plan_for(wanted, "s", world_of("s", None, "s1")))
    world = world_of("s", None, "s1", "s2")
    assert "write merge-leaves of all parts out for its database" in refusals(plan_for(wanted, "s", world))
    assert choose_successor(wanted.sets["s"], world.observed("s"), "s1") is None


def test_the_combined_failover_copies_from_whoever_is_further_and_follows() -> None:
    world = world_of("s", {"s1": 110, "s2": 104, "s3": 107}, "s1")
    assert choose_successor(parse(PICTURE).sets["s"], world.observed("s"), "s1") == "s2"
    wanted = switchover(parse(PICTURE), "s", "s2")
    plan = plan_for(wanted, "s", world)
    assert plan.refusals == () and plan.loss is not None and plan.loss.fork == 107
    assert names(plan)[:4] == ["CatchUp s2", "OpenBallots s2", "Promote s2", "CloseBallots s2"]
    said = plan_text(plan, wanted.sets["s"], world.observed("s"))
    assert "loss: what the old root took after tick 107" in said
    assert "its events are those of its parts, which keep them: they are merged again, under other ids" in said
    carry_out(plan, world)
    world = world.copy(silent=frozenset())
    assert names(plan_for(wanted, "s", world)) == ["Resurrect s1"]
    # Now it is the combined-failover.
    carry_out(plan_for(wanted, "s", world), world)
    back = plan_for(with_revision(parse(PICTURE), "s", 1), "s", world, uid="u3")
    assert back.kind == "switchover" and back.refusals == ()


def test_a_part_that_dropped_the_merge_leaf_is_named() -> None:
    world = world_of("s")
    a, b = world.views["s2"].parts
    world.change("s2", parts=(replace(a, answer="dropped"), b))
    plan = plan_for(switchover(parse(PICTURE), "s", "s2"), "s", world)
    assert plan.warnings == ("a has dropped s2: cascade node add a s2 takes it back",)


def test_merge_leaves_come_and_go_with_what_is_combined() -> None:
    less = parse(changed(("combines: [a, b]", "combines: [b]")))
    plan = plan_for(less, "a", world_of("a"))
    assert names(plan) == ["DropNode s1", "DropNode s2", "StoreDocument a1"]
    world = World.of(less.sets["a"])
    observed = Observed(set="a", views=world.views, missing=frozenset({"s1", "s2"}))
    plan = make_plan(parse(PICTURE).sets["a"], observed, accept_all(world))
    assert [step.text for step in plan.steps] == [
        f"{name} is new: its daemon makes it, as s combines this set: cascade node run" for name in ("s1", "s2")
    ]
    world = world_of("s")
    world.change("s1", revision=4, document=document_of(parse(PICTURE).sets["s"]))
    assert refusals(plan_for(less, "s", world)).startswith(
        "the file is based on no revision, the databases have revision 4: it combines a, b, in the file b;"
    )


def test_a_set_never_becomes_a_combined_one() -> None:
    plain = changed(("    combines: [a, b]\n", ""), ("combined-root", "root"))
    for text, name, told in (
        (plain, "s", "it is a plain one in the file, and a combined set in the databases"),
        (PICTURE, "s", "it is a combined set in the file, and a plain one in the databases"),
    ):
        world = world_of("s") if text is plain else World.of(parse(plain).sets["s"])
        assert told in refusals(plan_for(parse(text), name, world))
    world = world_of("a")
    world.change("s1", role=Role.LEAF)
    assert "s1 is a leaf and cannot become a merge-leaf" in refusals(plan_for(parse(PICTURE), "a", world))


def test_what_the_databases_have_is_the_file_again() -> None:
    before, world = parse(PICTURE), world_of("s")
    carry_out(plan_for(switchover(before, "s", "s2"), "s", world), world)
    found = as_observed(before, world.observed("s"))
    assert (found.sets["s"].root.name, found.sets["s"].root.role) == ("s2", Role.COMBINED_ROOT)
    parts = world_of("a")
    carry_out(plan_for(switchover(before, "a", "a2"), "a", parts), parts)
    found = as_observed(before, parts.observed("a"))
    assert leaves(found) == {"s1": "+s1 a2", "s2": "+s2 a2"}
    assert parse(edit(PICTURE, found)) == found
    written = parse(changed((A1, f"{A1}      s1: {LEAF % 's1'}\n")))
    assert leaves(as_observed(written, parts.observed("a"))) == {"s1": "s1 a2", "s2": "+s2 a2"}


def test_a_lost_combined_root_is_shown_and_counted_as_one() -> None:
    world = world_of("s", None, "s1")
    wanted = parse(PICTURE).sets["s"]
    shown = plan_text(plan_for(parse(PICTURE), "s", world), wanted, world.observed("s"))
    assert "s1 combined-root  s1  tick 100 told  does not answer" in shown
    # s2 was promoted, nobody has heard more of that, and it is lost as well: then s1 is a carrier that may have more.
    world._open_term("s2", "u2", 102, world.views["s2"].tick, "failover")
    world.learn("s3", world.views["s2"].terms)
    world = world.copy(silent=frozenset({"s1", "s2"}))
    world.change("s3", parts=world.views["s2"].parts)
    request = accept_all(world, uid="u3", dead=frozenset({"s2"}), without=frozenset())
    plan = make_plan(switchover(parse(PICTURE), "s", "s3").sets["s"], world.observed("s"), request)
    assert "s1 does not answer and may be further on than tick 100" in refusals(plan)
