"""Plans are carried out in real databases: no daemon runs, so that the tool does everything itself.

`s1` is the root, `s2` and `s3` are branches of it, `s4` is a leaf of `s3`.  A node that is cut off has an address
that nobody answers at.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from cascade.errors import BallotError, ForeignSetError, MovedOnError, OperationError, TransientError, UnsafeError
from cascade.node import comeback, reign
from cascade.node import sentinel as sentinel_module
from cascade.node.executor import Executor, Outcome
from cascade.node.home import Home
from cascade.node.sentinel import Sentinel
from cascade.node.survey import Links, survey
from cascade.topology import Database, Node, Role, Set, Topology
from cascade.topology import steps as s
from cascade.topology.decision import Plan, Request
from cascade.topology.failover import failover, switchover
from cascade.topology.observe import Observed
from cascade.topology.plan import make_plan
from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.expect import refused
from tests.fixtures.nodes import Nodes, same

NOBODY = "host=127.0.0.1 port=1 dbname=nobody connect_timeout=2"


@pytest.fixture
def backend(backends: Callable[..., Backend]) -> Backend:
    return backends(LABELS[0], max_prepared_transactions="20")


class Shop:
    """A running set, and what an operator does to it."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.root = nodes.root()
        self.s2, self.s3 = nodes.add("s2"), nodes.add("s3")
        self.s4 = nodes.add("s4", self.s3, "leaf")
        roles = {"s1": (Role.ROOT, None), "s2": (Role.BRANCH, "s1"), "s3": (Role.BRANCH, "s1"), "s4": (Role.LEAF, "s3")}
        found = {
            name: Node(name=name, set="q", database=name, role=role, provider=above)
            for name, (role, above) in roles.items()
        }
        databases = {name: Database(name=name, dsn=nodes.made[name].dsn) for name in roles}
        self.topology = Topology(databases=databases, sets={"q": Set(name="q", nodes=found)})

    def cut_off(self, *names: str) -> Topology:
        """Return the topology with addresses at which nobody answers."""
        databases = {
            name: replace(found, dsn=NOBODY) if name in names else found
            for name, found in self.topology.databases.items()
        }
        return replace(self.topology, databases=databases)

    def look(self, topology: Topology | None = None) -> Observed:
        return asyncio.run(survey(topology or self.topology, "q", timeout_s=3.0))

    def plan(self, wanted: Topology, *, accept: bool = True, **words: Any) -> tuple[Plan, Observed]:
        """Plan; the fork is accepted unless the test says otherwise."""
        observed = self.look(wanted)
        base = max(wanted.sets["q"].revision or 0, observed.revision)
        wanted_set = replace(wanted.sets["q"], revision=base)
        request = Request(op_id=str(uuid.uuid4()), uid=str(uuid.uuid4()), now=datetime.now(UTC), **words)
        plan = make_plan(wanted_set, observed, request)
        if accept and plan.loss is not None:
            plan = make_plan(wanted_set, observed, replace(request, allow_loss=plan.loss.fork))
        return plan, observed

    def carry_out(self, wanted: Topology, *, upto: int | None = None, wait_s: float = 5.0, **words: Any) -> Outcome:
        """Plan and carry out; `upto` is how many steps are taken before the tool is killed."""
        plan, observed = self.plan(wanted, **words)
        return self.run(wanted, plan, observed, upto=upto, wait_s=wait_s)

    def run(
        self,
        wanted: Topology,
        plan: Plan,
        observed: Observed,
        *,
        upto: int | None = None,
        wait_s: float = 5.0,
        tell: Callable[[str], None] | None = None,
    ) -> Outcome:
        told: list[str] = []

        def listen(text: str) -> None:
            if tell is not None:
                tell(text)
            if upto is not None and len(told) >= upto:
                raise Killed
            told.append(text)

        return asyncio.run(Executor(wanted, plan, observed, wait_s=wait_s, tell=listen).run())

    def fill(self, *, count: int = 5) -> None:
        """Insert, tick, and have the branches copy."""
        for number in range(count):
            self.root.insert({"n": number})
        self.root.tick()
        self.s2.catch_up()
        self.s3.catch_up()

    def leaf_at(self, tick: dict[str, Any]) -> None:
        """Have the leaf stand on a tick, as if it had processed everything up to it."""
        row = "jsonb_populate_record(null::cascade_internal.tick, %s)"
        self.s4.rows(f"insert into cascade_internal.tick_1_0 select * from {row} returning 1", Jsonb(tick))

    def tree(self) -> dict[str, tuple[str, str | None]]:
        return {name: (node.state("role"), node.state("provider")) for name, node in self.nodes.made.items()}


class Killed(Exception):
    """The tool is gone."""


@pytest.fixture
def shop(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(reign, "GRACE_S", 0.02)
    with Nodes.fresh(backend) as nodes:
        shop = Shop(nodes)
        shop.fill()
        yield shop


def numbers(node: Any) -> list[int]:
    """Return what the log of a node holds, in order."""
    rows = node.rows("select (payload->>'n')::int from queue.q where origin is null order by id")
    return [row[0] for row in rows]


S2_REIGNS = {"s1": ("branch", "s2"), "s2": ("root", None), "s3": ("branch", "s2"), "s4": ("leaf", "s3")}


def test_a_survey_says_what_every_database_says(shop: Shop) -> None:
    observed = shop.look(shop.cut_off("s3"))
    assert set(observed.views) == {"s1", "s2", "s4"} and list(observed.silent) == ["s3"]
    assert observed.tip.node == "s1" and observed.role_of("s3") == "branch"
    assert observed.views["s2"].tick.tick_id == shop.root.position()
    nobody = replace(shop.topology, sets={"other": replace(shop.topology.sets["q"], name="other")})
    assert asyncio.run(survey(nobody, "other")).missing == {"s1", "s2", "s3", "s4"}


@pytest.fixture
def stranger(shop: Shop) -> Iterator[Any]:
    """The root of another set that has the same name."""
    with Nodes.fresh(shop.nodes._backend) as nodes:
        yield nodes.root()


def leading_to(shop: Shop, stranger: Any, node: str) -> Topology:
    """Return the topology with a node's address leading to another set of the same name."""
    databases = {**shop.topology.databases, node: Database(name=node, dsn=stranger.dsn)}
    return replace(shop.topology, databases=databases)


def test_a_root_is_not_fenced_by_another_set_of_its_name(shop: Shop, stranger: Any) -> None:
    topology = leading_to(shop, stranger, "s3")
    sentinel = Sentinel(Home(set="q", dsn=shop.root.dsn, topology=lambda: topology))

    async def turn() -> None:
        local = await sentinel.home.connect("sentinel")
        try:
            await sentinel.turn(local)
        finally:
            local.pgconn.finish()
            for other in list(sentinel._links):
                sentinel._hang_up(other)

    asyncio.run(turn())
    assert sentinel.note == "the address of s3 leads to another set of this name"
    shop.root.insert({"n": 5})
    shop.root.tick()
    terms = [len(node.describe()["terms"]) for node in (shop.root, shop.s2, stranger)]
    assert terms == [1, 1, 1], "nobody has learned anything"
    topology = shop.topology
    asyncio.run(turn())
    assert sentinel.note is None


def test_what_is_done_to_a_set_is_not_done_to_another_of_its_name(shop: Shop, stranger: Any) -> None:
    with pytest.raises(ForeignSetError, match=r"different sets of one name.*s3: set"):
        shop.look(leading_to(shop, stranger, "s3"))

    observed = shop.look()

    async def come_back() -> None:
        async with Links(leading_to(shop, stranger, "s1"), observed) as links:
            await comeback.stand_down(links, "s2", "s1", 5.0)

    with pytest.raises(ForeignSetError, match="belongs to set"):
        asyncio.run(come_back())
    assert len(shop.s2.describe()["terms"]) == 1


def test_a_member_that_moved_out_of_the_file_and_whose_place_another_set_has_is_silent(
    shop: Shop, stranger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = psycopg.conninfo.conninfo_to_dict(stranger.dsn)
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:{given['user']}:{given['password']}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    location = {"dsn": make_conninfo(**{key: value for key, value in given.items() if key != "password"})}
    shop.root.value("select cascade.add_member('q', 's4', 'leaf', %s)", Jsonb(location))
    nodes = {name: node for name, node in shop.topology.sets["q"].nodes.items() if name != "s4"}
    topology = replace(shop.topology, sets={"q": replace(shop.topology.sets["q"], nodes=nodes)})
    assert shop.look(topology).silent == {"s4": "where it told to be is another set of this name"}


def test_a_switchover_loses_nothing_and_says_how_long_writers_waited(shop: Shop) -> None:
    shop.root.insert({"n": 5})
    outcome = shop.carry_out(switchover(shop.topology, "q", "s2"))
    assert shop.tree() == S2_REIGNS
    assert outcome.pause_s is not None and 0 < outcome.pause_s < 5 and outcome.revision == 1
    shop.s2.insert({"n": 6})
    assert numbers(shop.s2) == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(psycopg.Error) as caught:
        shop.root.insert({"n": 7})
    assert caught.value.sqlstate == "QC401"
    shop.s2.tick()
    shop.root.provider = shop.s3.provider = shop.s2
    shop.root.join()
    shop.s3.join()
    shop.root.catch_up()
    shop.s3.catch_up()
    assert same(shop.root, shop.s2) and same(shop.s3, shop.s2) and numbers(shop.root) == numbers(shop.s2)
    plan, _ = shop.plan(switchover(shop.topology, "q", "s2"))
    assert plan.is_empty and plan.refusals == ()


@pytest.mark.parametrize("upto", range(6))
def test_a_switchover_goes_on_after_the_tool_was_killed(shop: Shop, upto: int) -> None:
    wanted = switchover(shop.topology, "q", "s2")
    with pytest.raises(Killed):
        shop.carry_out(wanted, upto=upto)
    shop.carry_out(wanted)
    assert shop.tree() == S2_REIGNS
    assert [term.node for term in shop.look().terms.values()].count("s2") == 1
    assert numbers(shop.s2) == [0, 1, 2, 3, 4]


def test_a_writer_that_holds_the_fence_is_named_and_waited_for_only_so_long(shop: Shop) -> None:
    writer = shop.root.connect(autocommit=False)
    shop.root.insert({"n": 5}, conn=writer)
    plan, observed = shop.plan(switchover(shop.topology, "q", "s2"))
    assert any("a writer holds the fence up: process" in warning for warning in plan.warnings)
    with pytest.raises(TransientError, match=f"could not be fenced within 0.7 s.*backend {writer.info.backend_pid}"):
        shop.run(shop.topology, plan, observed, wait_s=0.7)
    writer.commit()
    shop.root.insert({"n": 6})
    assert shop.look().views["s1"].operation is None
    shop.carry_out(switchover(shop.topology, "q", "s2"))
    assert numbers(shop.s2) == [0, 1, 2, 3, 4, 5, 6]


def test_a_prepared_transaction_is_named_too(shop: Shop) -> None:
    shop.root.backend.need_prepared()
    writer = shop.root.connect(autocommit=False)
    shop.root.insert({"n": 5}, conn=writer)
    writer.execute("prepare transaction 'forgotten'")
    plan, observed = shop.plan(switchover(shop.topology, "q", "s2"))
    try:
        assert any("'forgotten'" in warning for warning in plan.warnings)
        with pytest.raises(TransientError, match="forgotten"):
            shop.run(shop.topology, plan, observed, wait_s=0.5)
    finally:
        shop.root.main.execute("rollback prepared 'forgotten'")


def test_an_offer_that_is_not_taken_is_withdrawn(shop: Shop) -> None:
    wanted = switchover(shop.topology, "q", "s2")
    plan, observed = shop.plan(wanted)
    name = shop.s2.name

    def lose(text: str) -> None:
        if text.startswith("s2 copies the closing tick"):
            with psycopg.connect(shop.nodes._backend.admin_dsn, autocommit=True) as admin:
                admin.execute(f'alter database "{name}" allow_connections false'.encode())
                admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))

    with pytest.raises(TransientError, match="s2 did not take the reign within 1 s; s1 goes on in a new term"):
        shop.run(wanted, plan, observed, wait_s=1.0, tell=lose)
    shop.root.insert({"n": 5})
    with psycopg.connect(shop.nodes._backend.admin_dsn, autocommit=True) as admin:
        admin.execute(f'alter database "{name}" allow_connections true'.encode())
    shop.s2.disconnect()
    shop.carry_out(wanted)
    assert shop.tree() == S2_REIGNS and numbers(shop.s2) == [0, 1, 2, 3, 4, 5]
    assert [term.cause for term in shop.look().terms.values()] == ["created", "withdrawn", "switchover"]


def test_one_operation_at_a_time(shop: Shop) -> None:
    with pytest.raises(Killed):
        shop.carry_out(switchover(shop.topology, "q", "s3"), upto=1)
    plan, _ = shop.plan(switchover(shop.topology, "q", "s2"))
    assert "an operation to make s3 the root is under way at s1" in str(plan.refusals[0])
    with pytest.raises(UnsafeError):
        plan.check()
    shop.carry_out(switchover(shop.topology, "q", "s3"))
    assert shop.tree()["s3"] == ("root", None)


def test_two_tools_at_once_do_not_both_begin(shop: Shop) -> None:
    wanted = switchover(shop.topology, "q", "s2")
    first, observed = shop.plan(wanted)
    second, _ = shop.plan(wanted)
    with pytest.raises(Killed):
        shop.run(wanted, first, observed, upto=1)
    with pytest.raises(OperationError, match="has an open operation: switchover to s2"):
        shop.run(wanted, second, observed)


def test_a_stale_plan_changes_nothing(shop: Shop) -> None:
    wanted = failover(shop.cut_off("s1"), "q", "s1", "s2")
    words: dict[str, Any] = {"dead": frozenset({"s1"}), "fenced_by": "off"}
    plan, _ = shop.plan(wanted, **words)
    shop.root.insert({"n": 5})
    shop.root.tick()
    shop.s3.catch_up()
    with pytest.raises(UnsafeError, match="the plan is stale:\ns3: tick is"):
        shop.run(wanted, plan, shop.look(wanted))
    assert shop.tree()["s2"] == ("branch", "s1")


def lose_root(shop: Shop) -> Topology:
    """Have s3 come further than s2, the leaf further than both, and the root furthest; then the root is gone."""
    shop.root.insert({"n": 5})
    shop.root.tick()
    shop.s3.catch_up()
    shop.root.insert({"n": 6})
    shop.root.tick()
    shop.leaf_at(shop.root.describe()["tick"])
    shop.root.insert({"n": 7})
    shop.root.tick()
    shop.root.insert({"n": 8})
    return failover(shop.cut_off("s1"), "q", "s1", "s2")


DEAD: dict[str, Any] = {"dead": frozenset({"s1"}), "fenced_by": "its power is off", "reason": "it burnt down"}


@pytest.mark.parametrize("upto", [None, *range(6)])
def test_a_lost_root_is_followed_and_comes_back_with_its_tail_in_quarantine(shop: Shop, upto: int | None) -> None:
    wanted = lose_root(shop)
    plan, _ = shop.plan(wanted, **DEAD)
    assert plan.loss is not None
    assert (plan.loss.fork, plan.loss.counted_to) == (shop.s3.position(), shop.s4.position())
    assert plan.loss.at_most >= 1
    if upto is not None:
        with pytest.raises(Killed):
            shop.carry_out(wanted, upto=upto, **DEAD)
    shop.carry_out(wanted, **DEAD)
    assert {name: row for name, row in shop.tree().items() if name != "s1"} == {
        name: row for name, row in S2_REIGNS.items() if name != "s1"
    }
    shop.s2.insert({"n": 9})
    assert numbers(shop.s2) == [0, 1, 2, 3, 4, 5, 9]
    assert shop.s4.position() == plan.loss.fork, "the leaf is back at the fork"
    [(state, pending, fenced_by)] = shop.s2.rows("select state, pending, fenced_by from cascade.certificates")
    assert (state, pending, fenced_by) == ("open", ["s1"], "its power is off")
    certificate = shop.s2.value("select certificate from cascade.certificates")
    seen = [(p["node"], p["consumer"], p["from_tick"], p["to_tick"]) for p in certificate["phantoms"]]
    assert seen == [("s4", ".leaf", plan.loss.fork, plan.loss.counted_to)], "the leaf's is known before its daemon runs"

    # The old root has heard of nothing, and takes inserts until it does.
    shop.root.insert({"n": 10})
    wanted = replace(wanted, databases=shop.topology.databases)
    back, observed = shop.plan(wanted)
    assert [type(step) for step in back.steps][:1] == [s.Resurrect]
    outcome = shop.run(wanted, back, observed)
    assert shop.tree() == S2_REIGNS
    [report] = outcome.reports
    assert report["set_aside"] >= 4
    query = "select r.payload::jsonb->>'n' from cascade.read_quarantine('q', null, 'held') as r order by r.id"
    held = shop.root.rows(query)
    assert [row[0] for row in held] == ["6", "7", "8", "10"]
    shop.root.provider = shop.s2
    shop.s2.tick()
    shop.root.join()
    shop.root.catch_up()
    assert same(shop.root, shop.s2) and numbers(shop.root) == [0, 1, 2, 3, 4, 5, 9]
    [(state, tail, held_count)] = shop.s2.rows("select state, tail, held from cascade.certificates")
    assert (state, tail, held_count) == ("closed", 4, 4)


def test_a_carrier_that_goes_on_while_the_plan_is_carried_out_stops_it(shop: Shop) -> None:
    """The root is cut off from the operator only: s3 still copies from it, before it is asked."""
    wanted = lose_root(shop)
    plan, observed = shop.plan(wanted, **DEAD)

    def go_on(text: str) -> None:
        if text.startswith("announce"):
            shop.s3.catch_up()

    with pytest.raises(MovedOnError, match=f"stands at tick {shop.root.position()}, beyond {shop.s3.position()}"):
        shop.run(wanted, plan, observed, tell=go_on)
    assert shop.tree()["s2"][0] == "branch"
    # What was announced to s2 says where the term was to begin: it is taken back, and s2 may copy what s3 has.
    again, observed = shop.plan(wanted, **DEAD)
    assert [type(step) for step in again.steps][:3] == [s.CloseBallots, s.CatchUp, s.OpenBallots]
    shop.run(wanted, again, observed)
    assert shop.tree()["s2"] == ("root", None) and numbers(shop.s2) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_certificate_waits_for_a_second_node_that_is_given_up(shop: Shop) -> None:
    lose_root(shop)
    wanted = failover(shop.cut_off("s1", "s3"), "q", "s1", "s2")
    shop.carry_out(wanted, **DEAD | {"dead": frozenset({"s1", "s3"})})
    assert shop.s3.position() > shop.s2.value("select fork_tick from cascade.certificates")
    assert shop.s2.rows("select state, pending from cascade.certificates") == [("open", ["s1", "s3"])]


def test_nobody_who_was_asked_copies_before_the_promotion(shop: Shop) -> None:
    wanted = lose_root(shop)
    with pytest.raises(Killed):
        shop.carry_out(wanted, upto=2, **DEAD)
    with refused("QC212", "copies nothing now"):
        shop.s3.catch_up()
    [uid] = {ballot.uid for ballot in shop.look(wanted).views["s3"].ballots}
    plan, observed = shop.plan(wanted, **DEAD)

    def give_up(text: str) -> None:
        if text.startswith("promote"):
            shop.s3.value("select cascade.close_ballot('q', %s, %s)", plan.steps[0].number, uid)

    with pytest.raises(BallotError, match="s3 no longer waits for the promotion of s2"):
        shop.run(wanted, plan, observed, tell=give_up)
    shop.carry_out(wanted, over_ballot=uid, **DEAD)
    assert shop.tree()["s2"] == ("root", None)


def test_a_carrier_beyond_the_fork_that_cannot_reign_is_waited_for_by_the_certificate(shop: Shop) -> None:
    wanted = lose_root(shop)
    partition = f"cascade_internal.event_{shop.s3.queue_id}_0"
    shop.s3.main.execute(f"insert into {partition} (id, txid, payload) values (99, 9999999, '{{}}')".encode())
    with pytest.raises(Killed):
        shop.carry_out(wanted, upto=2, **DEAD)
    assert shop.s3.position() > shop.s2.value("select max(fork_tick) from cascade.certificates")
    assert shop.s2.rows("select state, pending from cascade.certificates") == [("open", ["s1", "s3"])]


@pytest.mark.parametrize("does_reply", [True, False])
def test_the_tool_may_die_at_any_statement(shop: Shop, does_reply: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at its first statement, then at its second, and so on, before it or before its reply is read."""
    whole, left = Links.call, [0]

    async def call(links: Links, *arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and does_reply:
            raise Killed
        found = await whole(links, *arguments, **more)
        if left[0] == 0:
            raise Killed
        return found

    monkeypatch.setattr(Links, "call", call)

    def in_spite_of_all(wanted: Topology, **words: Any) -> int:
        for number in range(1, 200):
            left[0] = number
            try:
                shop.carry_out(wanted, **words)
            except Killed:
                continue
            return number
        raise AssertionError("it never ends")

    wanted = lose_root(shop)
    killed = in_spite_of_all(wanted, **DEAD)
    wanted = replace(wanted, databases=shop.topology.databases)
    killed += in_spite_of_all(wanted)
    assert shop.tree() == S2_REIGNS
    killed += in_spite_of_all(switchover(wanted, "q", "s1"))
    assert shop.tree() == {"s1": ("root", None), "s2": ("branch", "s1"), "s3": ("branch", "s1"), "s4": ("leaf", "s3")}
    assert killed > 20
    assert [term.node for term in shop.look().terms.values()] == ["s1", "s2", "s1"]
    assert numbers(shop.root) == [0, 1, 2, 3, 4, 5]
    [(state, tail)] = shop.root.rows("select state, tail from cascade.certificates")
    assert (state, tail) == ("closed", 3)


@pytest.mark.parametrize("knows", ["s3", "s4"])
@pytest.mark.parametrize("upto", [None, 0, 1])
def test_a_successor_that_is_lost_before_anybody_copied_from_it_is_followed(
    shop: Shop, knows: str, upto: int | None
) -> None:
    """s2 follows s1, takes an event and is lost; of its term nothing but the record has come to anybody."""
    wanted = failover(shop.cut_off("s1"), "q", "s1", "s2")

    def killed(text: str) -> None:
        if text.startswith("s3 copies from s2"):
            raise Killed

    plan, observed = shop.plan(wanted, **DEAD)
    with pytest.raises(Killed):
        shop.run(wanted, plan, observed, tell=killed)
    shop.s2.insert({"n": 5})
    shop.s2.tick()
    second = shop.s2.describe()
    told = "select cascade.exchange_terms('q', %s, %s)"
    shop.nodes.made[knows].value(told, Jsonb(second["terms"]), second["set_uid"])

    databases = shop.cut_off("s1", "s2").databases
    wanted = replace(failover(wanted, "q", "s2", "s3"), databases=databases)
    words: dict[str, Any] = {"dead": frozenset({"s2"}), "without": frozenset({"s1"}), "fenced_by": "off"}
    if upto is not None:
        with pytest.raises(Killed):
            shop.carry_out(wanted, upto=upto, **words)
    shop.carry_out(wanted, **words)
    shop.s3.insert({"n": 6})
    assert numbers(shop.s3) == [0, 1, 2, 3, 4, 6]
    assert shop.s3.rows("select state, pending from cascade.certificates") == [("open", ["s1", "s2"])]

    shop.carry_out(replace(wanted, databases=shop.topology.databases))
    assert shop.tree() == {"s1": ("branch", "s3"), "s2": ("branch", "s3"), "s3": ("root", None), "s4": ("leaf", "s3")}
    query = "select r.payload::jsonb->>'n' from cascade.read_quarantine('q', null, 'held') as r order by r.id"
    assert shop.s2.rows(query) == [("5",)]
    assert shop.s3.rows("select state, tail, held from cascade.certificates") == [("closed", 1, 1)]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_writer_that_delays_a_root_that_fences_itself_is_named(
    shop: Shop, is_prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_prepared:
        shop.root.backend.need_prepared()
    monkeypatch.setattr(sentinel_module, "NAME_EVERY_S", 0.02)
    shop.carry_out(failover(shop.cut_off("s1"), "q", "s1", "s2"), **DEAD)
    writer = shop.root.connect(autocommit=False, application_name="nightly import")
    shop.root.insert({"n": 5}, conn=writer)
    name = f"backend {writer.info.backend_pid} (nightly import), open for "
    if is_prepared:
        writer.execute("prepare transaction 'forgotten'")
        name = "prepared transaction 'forgotten', open for "
    sentinel = Sentinel(Home(set="q", dsn=shop.root.dsn, topology=lambda: shop.topology))

    async def turn() -> None:
        local = await sentinel.home.connect("sentinel")
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            turning = group.create_task(sentinel.turn(local))
            while f"the fence waits for {name}" not in (sentinel.note or ""):
                assert not turning.done()
                await asyncio.sleep(0.02)
            [told] = shop.root.rows("select fence from cascade.nodes")
            assert f"it waits for {name}" in told[0]
            if is_prepared:
                shop.root.main.execute("commit prepared 'forgotten'")
            else:
                writer.commit()
        local.pgconn.finish()
        for other in list(sentinel._links):
            sentinel._hang_up(other)

    asyncio.run(turn())
    assert sentinel.note is not None and "waits for" not in sentinel.note
    with pytest.raises(psycopg.Error, match="takes no inserts"):
        shop.root.insert({"n": 6})
    assert "waits" not in shop.root.value("select fence from cascade.nodes")


def test_a_writer_that_delays_a_resurrection_is_named(shop: Shop) -> None:
    wanted = failover(shop.cut_off("s1"), "q", "s1", "s2")
    shop.carry_out(wanted, **DEAD)
    wanted = replace(wanted, databases=shop.topology.databases)
    writer = shop.root.connect(autocommit=False)
    shop.root.insert({"n": 5}, conn=writer)
    with pytest.raises(TransientError, match=f"s1 could not be fenced within 0.5 s.*backend {writer.info.backend_pid}"):
        shop.carry_out(wanted, wait_s=0.5)
    writer.commit()
    shop.carry_out(wanted)
    assert shop.tree() == S2_REIGNS
    assert shop.root.value("select count(*) from cascade.read_quarantine('q', null, 'held')") == 1


def test_a_failover_is_refused_until_everything_is_accepted(shop: Shop) -> None:
    wanted = failover(shop.cut_off("s1", "s3"), "q", "s1", "s2")
    plan, observed = shop.plan(wanted, accept=False)
    told = "\n".join(map(str, plan.refusals))
    assert all(word in told for word in ("--dead s1", "--without s3", "--fenced-by", "--allow-loss"))
    with pytest.raises(UnsafeError):
        shop.run(wanted, plan, observed)
    assert shop.s2.state("role") == "branch"


def test_a_branch_that_was_given_up_comes_back_beyond_the_fork(shop: Shop) -> None:
    shop.root.insert({"n": 5})
    shop.root.tick()
    shop.s3.catch_up()
    wanted = failover(shop.cut_off("s1", "s3"), "q", "s1", "s2")
    shop.carry_out(wanted, without=frozenset({"s3"}), **DEAD)
    wanted = replace(wanted, databases=shop.topology.databases)
    plan, observed = shop.plan(wanted)
    assert [(type(step).__name__, step.node) for step in plan.steps][:2] == [("Resurrect", "s1"), ("Resurrect", "s3")]
    shop.run(wanted, plan, observed)
    assert shop.tree() == S2_REIGNS
    [row] = shop.s2.rows("select state, tail, held, certificate->>'copies' from cascade.certificates")
    assert row == ("closed", 1, 1, "1"), "both had it: it is counted once"


def test_a_lost_branch_is_left_by_its_subscribers(shop: Shop) -> None:
    wanted = failover(shop.cut_off("s3"), "q", "s3", "s2")
    shop.carry_out(wanted, dead=frozenset({"s3"}))
    assert shop.tree()["s4"] == ("leaf", "s2")
    assert shop.root.value("select document->'nodes'->'s4'->>'provider' from cascade_internal.document") == "s2"


def test_a_node_that_left_the_file_is_dropped(shop: Shop) -> None:
    nodes = {name: node for name, node in shop.topology.sets["q"].nodes.items() if name != "s2"}
    wanted = replace(shop.topology, sets={"q": replace(shop.topology.sets["q"], nodes=nodes)})
    shop.carry_out(wanted)
    assert shop.root.member("s2", "state") == "dropped"


def test_every_step_is_in_the_journal_of_the_database_that_it_changed(shop: Shop) -> None:
    shop.carry_out(switchover(shop.topology, "q", "s2"))
    steps = [row[0] for row in shop.root.rows("select step from cascade.journal order by journal_id")]
    steps = [step for step in steps if step != "add member"]
    assert steps[:4] == ["begin switchover", "fence", "offer", "taken"] and "demote" in steps
    assert "open term" in [row[0] for row in shop.s2.rows("select step from cascade.journal")]


def test_each_kind_of_step_leaves_a_line_in_the_journal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that a plan can have is taken here: whoever adds a kind has it journaled, and adds a plan with it."""
    seen: dict[type[s.Step], set[str]] = {}
    take = Executor._take

    def journal() -> list[tuple[str, int, str]]:
        query = "select journal_id, step from cascade.journal"
        return [(name, *row) for name, node in shop.nodes.made.items() for row in node.rows(query)]

    async def watch(self: Executor, step: s.Step) -> None:
        before = journal()
        await take(self, step)
        seen.setdefault(type(step), set()).update(line[2] for line in journal() if line not in before)

    monkeypatch.setattr(Executor, "_take", watch)
    op_id = str(uuid.uuid4())
    shop.root.value("select cascade.begin_operation('q', %s, 'switchover', 's3', '0 s')", op_id)
    shop.root.value("select cascade.raise_fence('q', %s)", op_id)
    shop.carry_out(shop.topology)
    shop.carry_out(switchover(shop.topology, "q", "s2"))
    shop.carry_out(switchover(shop.topology, "q", "s1"))
    wanted = lose_root(shop)
    shop.carry_out(wanted, **DEAD)
    wanted = replace(wanted, databases=shop.topology.databases)
    shop.carry_out(wanted)
    few = {name: node for name, node in wanted.sets["q"].nodes.items() if name != "s1"}
    shop.carry_out(replace(wanted, sets={"q": replace(wanted.sets["q"], nodes=few)}))
    assert seen.keys() == {step for step in s.STEPS.values() if not step.is_note}
    assert [step.__name__ for step, lines in seen.items() if not lines] == []
    assert seen[s.SwitchProvider] == {"set provider"} and seen[s.CatchUp] == {"set provider"}
    assert seen[s.DropNode] == {"drop member"} and seen[s.CloseBallots] == {"close ballot"}
