"""Publishing while the root moves: the client follows by itself, and every event is stored once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

import cascade
import cascade.sync
from cascade import errors
from tests.fixtures.backend import Backend
from tests.fixtures.database import eventually
from tests.fixtures.failover import Switchover
from tests.fixtures.nodes import Node, Nodes
from tests.fixtures.proxy import FaultProxy

RAISE = "create trigger cascade_fence before insert on queue.q execute function cascade_internal.refuse_insert()"


class Kingdom:
    """Two carriers of set `q`, and the crown that goes from one to the other by hand.

    What a switchover does in the databases is its own tests' business; here only what a producer meets
    counts: who refuses, and whom the refusal names.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.s1, self.s2 = nodes.line()
        self.both = (self.s1, self.s2)
        for node in self.both:
            self.say(node, root="s1")

    def say(self, node: Node, *, root: str, **dsns: str) -> None:
        """Have a node know a root, and where both are."""
        for member in self.both:
            dsn = dsns.get(member.node) or location(member.dsn)
            node.main.execute(
                "update cascade_internal.member set role = %s, location = %s, version = version + 10 where node = %s",
                (
                    "root" if member.node == root else "branch",
                    Jsonb({"database": member.node, "dsn": dsn}),
                    member.node,
                ),
            )

    def fence(self, node: Node) -> None:
        """Have a root refuse, as at the beginning of a switchover."""
        node.main.execute("drop trigger if exists cascade_fence on queue.q")
        node.main.execute(RAISE.encode())

    def crown(self, node: Node) -> None:
        """Make a node the root, in its own eyes and in those of the other."""
        other = self.s1 if node is self.s2 else self.s2
        self.fence(other)
        node.main.execute("drop trigger if exists cascade_fence on queue.q")
        for member, role in ((node, "root"), (other, "branch")):
            with member.main.transaction():
                self.say(member, root=node.node)
                member.main.execute(
                    "update cascade_internal.node set role = %s, provider = %s",
                    (role, None if role == "root" else node.node),
                )
                member.main.execute("update cascade_internal.queue set is_copy = %s", (role != "root",))

    def stored(self) -> dict[str, list[Any]]:
        """Return what was published, and where."""
        query = "select payload from queue.q where origin is null order by id"
        return {node.node: [row[0] for row in node.rows(query)] for node in self.both}


def location(dsn: str) -> str:
    """Return where a database is, as members are told: no user, no password."""
    found = conninfo_to_dict(dsn)
    return make_conninfo("", **{name: found[name] for name in ("host", "port", "dbname") if name in found})


@pytest.fixture
def kingdom(backend: Backend) -> Iterator[Kingdom]:
    with Nodes.fresh(backend) as nodes:
        yield Kingdom(nodes)


class Producer:
    """Either client behind the same words."""

    def __init__(self, dsn: str, kind: str, **options: Any) -> None:
        self._loop = asyncio.Runner() if kind == "async" else None
        if self._loop is not None:
            self.client: Any = self._loop.run(self._connect(dsn, options))
        else:
            self.client = cascade.sync.connect(dsn, **options)
        self.queue = self.client.queue("q")

    @staticmethod
    async def _connect(dsn: str, options: dict[str, Any]) -> cascade.Client:
        return await cascade.connect(dsn, **options)

    def run(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found = call(*arguments, **options)
        return self._loop.run(found) if self._loop is not None else found

    def publish(self, payload: Any, **options: Any) -> Any:
        return self.run(self.queue.publish, payload, **options)

    def publish_many(self, payloads: Any) -> Any:
        return self.run(self.queue.publish_many, payloads)

    def publish_in_transaction(self, payload: Any) -> None:
        if self._loop is None:
            with self.client.transaction() as conn:
                conn.execute("select 1")
                self.queue.publish(payload)
            return

        async def both() -> None:
            async with self.client.transaction() as conn:
                await conn.execute("select 1")
                await self.queue.publish(payload)

        self._loop.run(both())

    def close(self) -> None:
        self.run(self.client.close)
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["async", "sync"])
def produce(request: pytest.FixtureRequest) -> Iterator[Callable[..., Producer]]:
    """Make a producer; it is closed at the end."""
    made = []

    def make(dsn: str, **options: Any) -> Producer:
        made.append(Producer(dsn, request.param, **options))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def test_every_way_to_publish_follows_the_root(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    for count in (None, 3, 100):
        kingdom.crown(kingdom.s2)
        producer = produce(kingdom.s1.dsn)
        if count is None:
            assert producer.publish("one") > 0
        else:
            assert producer.publish_many(range(count)) == count
    assert kingdom.stored() == {"s1": [], "s2": ["one", *range(3), *range(100)]}


def test_the_root_is_remembered_and_left_again(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    producer = produce(kingdom.s1.dsn)
    producer.publish("at home")
    kingdom.crown(kingdom.s2)
    producer.publish("followed")
    kingdom.s1.main.execute("drop trigger cascade_fence on queue.q")
    producer.publish("remembered")
    kingdom.crown(kingdom.s1)
    producer.publish_many(["back"] * 30)
    producer.publish("home")
    assert kingdom.stored() == {"s1": ["at home", *["back"] * 30, "home"], "s2": ["followed", "remembered"]}


def test_a_root_that_is_being_moved_is_waited_for(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    kingdom.fence(kingdom.s1)
    producer = produce(kingdom.s1.dsn)
    refusals = kingdom.s1.connect()
    crowned = threading.Timer(0.3, kingdom.crown, (kingdom.s2,))
    crowned.start()
    producer.publish("waited")
    crowned.join()
    refusals.close()
    assert kingdom.stored() == {"s1": [], "s2": ["waited"]}


def test_waiting_ends(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    kingdom.fence(kingdom.s1)
    with pytest.raises(errors.FencedError, match=r"looked for the root for 0\.3 s") as caught:
        produce(kingdom.s1.dsn, follow_s=0.3).publish("refused")
    assert (caught.value.node, caught.value.root, caught.value.is_retryable) == ("s1", "s1", True)
    assert kingdom.stored() == {"s1": [], "s2": []}


def test_two_that_send_to_one_another_are_left_after_a_while(
    kingdom: Kingdom, produce: Callable[..., Producer]
) -> None:
    kingdom.crown(kingdom.s2)
    kingdom.fence(kingdom.s2)
    kingdom.s2.main.execute("update cascade_internal.node set role = 'branch', provider = 's1'")
    kingdom.say(kingdom.s2, root="s1")
    with pytest.raises(errors.FencedError, match=r"looked for the root for 0\.3 s"):
        produce(kingdom.s1.dsn, follow_s=0.3).publish("refused")
    assert kingdom.stored() == {"s1": [], "s2": []}


def test_following_can_be_turned_off(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    kingdom.crown(kingdom.s2)
    with pytest.raises(errors.FencedError, match='the root is "s2"') as caught:
        produce(kingdom.s1.dsn, follow_s=0).publish("refused")
    found = caught.value
    assert (found.node, found.root, found.database) == ("s1", "s2", "s2")
    assert found.dsn == location(kingdom.s2.dsn) and "test" not in found.dsn.split("dbname")[0]
    assert kingdom.stored() == {"s1": [], "s2": []}


def test_a_transaction_is_not_carried_elsewhere(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    """Neither by the refusal, nor by a root that the client remembers."""
    kingdom.crown(kingdom.s2)
    producer = produce(kingdom.s1.dsn)
    for _ in range(2):
        with pytest.raises(errors.FencedError, match="in a transaction of this database"):
            producer.publish_in_transaction("with my own writes")
        producer.publish("alone")
    assert kingdom.stored() == {"s1": [], "s2": ["alone", "alone"]}
    kingdom.crown(kingdom.s1)
    producer.publish_in_transaction("at home")
    assert kingdom.stored()["s1"] == ["at home"]


async def test_on_a_connection_of_the_caller_nothing_is_followed(kingdom: Kingdom) -> None:
    kingdom.crown(kingdom.s2)
    async with await psycopg.AsyncConnection.connect(kingdom.s1.dsn, autocommit=True) as conn:
        with pytest.raises(errors.FencedError, match="in a transaction of this database"):
            await (await cascade.connect(conn)).queue("q").publish(1)
    with pytest.raises(errors.FencedError, match="in a transaction of this database"):
        cascade.sync.connect(kingdom.s1.connect()).queue("q").publish(1)
    assert kingdom.stored() == {"s1": [], "s2": []}


def test_a_reserved_id_is_not_carried_elsewhere(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    producer = produce(kingdom.s1.dsn)
    reserved = producer.run(producer.queue.reserve_id)
    kingdom.crown(kingdom.s2)
    with pytest.raises(errors.FencedError):
        producer.publish("late", id=reserved)
    reserved = producer.run(producer.queue.reserve_id)
    assert producer.publish("followed", id=reserved) == reserved
    assert kingdom.stored() == {"s1": [], "s2": ["followed"]}


def test_a_lost_reply_is_not_sent_again(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    """Nobody can know whether the event was stored: the caller hears of it, at home and at the root."""
    with FaultProxy.before(kingdom.s2.dsn) as proxy:
        kingdom.crown(kingdom.s2)
        kingdom.say(kingdom.s1, root="s2", s2=location(proxy.dsn(kingdom.s2.dsn)))
        dsn = make_conninfo(proxy.dsn(kingdom.s2.dsn), dbname=kingdom.s2.name)
        producer = produce(kingdom.s1.dsn, databases={"s2": dsn})
        producer.publish("before")
        proxy.lose_reply_to(b"cascade.post(")
        with pytest.raises(errors.TransientError):
            producer.publish("stored, but unknown")
        assert proxy.replies_lost == 1
        producer.publish("after")
    assert kingdom.stored() == {"s1": [], "s2": ["before", "stored, but unknown", "after"]}


def test_when_the_root_is_gone_home_is_asked_where_the_next_is(
    kingdom: Kingdom, produce: Callable[..., Producer]
) -> None:
    with FaultProxy.before(kingdom.s2.dsn) as proxy:
        kingdom.crown(kingdom.s2)
        producer = produce(kingdom.s1.dsn, databases={"s2": proxy.dsn(kingdom.s2.dsn)}, follow_s=0.5)
        producer.publish("at s2")
        proxy.refuse()
        proxy.cut()
        with pytest.raises(errors.TransientError):
            producer.publish("lost on the way")
        with pytest.raises((errors.TransientError, errors.FencedError)) as caught:
            producer.publish("nobody takes it")
        assert caught.value.is_retryable
        kingdom.crown(kingdom.s1)
        producer.publish("at s1")
        turned_away = proxy.refused
        producer.publish("at s1 again")
        assert proxy.refused == turned_away, "a root that is gone is not tried with every event"
    assert kingdom.stored() == {"s1": ["at s1", "at s1 again"], "s2": ["at s2"]}


def test_no_event_is_lost_or_doubled_while_the_crown_goes_back_and_forth(
    kingdom: Kingdom, produce: Callable[..., Producer]
) -> None:
    producer = produce(kingdom.s1.dsn)
    stop = threading.Event()

    def reign() -> None:
        turn = 0
        while not stop.wait(0.05):
            turn += 1
            kingdom.fence(kingdom.both[(turn + 1) % 2])
            stop.wait(0.02)
            kingdom.crown(kingdom.both[turn % 2])

    king = threading.Thread(target=reign)
    king.start()
    try:
        sent = []
        for number in range(0, 600, 3):
            producer.publish(number)
            producer.publish_many([number + 1, number + 2])
            sent += [number, number + 1, number + 2]
    finally:
        stop.set()
        king.join()
    found = kingdom.stored()
    assert sorted(found["s1"] + found["s2"]) == sent
    assert found["s1"] and found["s2"]


def test_two_queues_follow_each_their_own_root(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    kingdom.s1.queue("alone")
    kingdom.crown(kingdom.s2)
    producer = produce(kingdom.s1.dsn)
    producer.publish("q")
    producer.run(producer.client.queue("alone").publish, "stays")
    assert kingdom.s1.value("select count(*) from queue.alone") == 1
    assert eventually(lambda: kingdom.stored()) == {"s1": [], "s2": ["q"]}


def test_a_producer_publishes_through_real_switchovers(kingdom: Kingdom, produce: Callable[..., Producer]) -> None:
    """Every event it was told of is in the log of both, once."""
    producer = produce(kingdom.s1.dsn)
    stop, done = threading.Event(), threading.Event()

    def reign() -> None:
        old, new = kingdom.both
        for _ in range(4):
            old.tick()
            new.catch_up()
            Switchover(old, new).run()
            old, new = new, old
            if stop.wait(0.1):
                break
        done.set()

    king = threading.Thread(target=reign)
    king.start()
    sent = []
    try:
        while not done.is_set():
            producer.publish(len(sent))
            sent.append(len(sent))
    finally:
        stop.set()
        king.join()
    root, other = (node for node in sorted(kingdom.both, key=lambda node: node.provider is not None))
    root.tick()
    other.catch_up()
    assert kingdom.stored() == {"s1": sent, "s2": sent}
    assert len({row[0] // 10**12 for row in root.rows("select id from queue.q where origin is null")}) > 1
