"""A node is given another provider while something else happens to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cascade.errors import MovedOnError
from cascade.node import enroll
from cascade.node.home import Home
from cascade.topology import Database, Node, Role, Set, Topology
from tests.fixtures.backend import Backend
from tests.fixtures.nodes import Nodes


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have something happen once, when the new provider is about to be asked."""

    def happen(act: Callable[[], Any]) -> None:
        left, connect = [act], enroll.connect

        async def acting(*arguments: Any, **options: Any) -> Any:
            if left:
                left.pop()()
            return await connect(*arguments, **options)

        monkeypatch.setattr(enroll, "connect", acting)

    return happen


def home_of(nodes: Nodes, name: str) -> Home:
    databases = {each: Database(name=each, dsn=node.dsn) for each, node in nodes.made.items()}
    found = {each: Node(name=each, set="q", database=each, role=Role.BRANCH, provider="s1") for each in nodes.made}
    found["s1"] = Node(name="s1", set="q", database="s1", role=Role.ROOT)
    topology = Topology(databases=databases, sets={"q": Set(name="q", nodes=found)})
    return Home(set="q", dsn=nodes.made[name].dsn, topology=lambda: topology)


async def test_a_term_that_is_learned_meanwhile_does_not_stop_a_switch(
    backend: Backend, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    """As after every promotion: the new root tells everybody, while the operator's tool moves them."""
    with Nodes.fresh(backend) as nodes:
        nodes.root()
        nodes.add("s2")
        s3 = nodes.add("s3")
        meanwhile(lambda: s3.value("select cascade.raise_generation('q', 7)"))
        await enroll.switch(home_of(nodes, "s3"), "s2")
        assert s3.row("select provider, generation from cascade_internal.node") == ("s2", 9)


async def test_a_switch_that_somebody_else_made_meanwhile_stands(
    backend: Backend, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    with Nodes.fresh(backend) as nodes:
        nodes.root()
        s2, s3 = nodes.add("s2"), nodes.add("s3")
        s4 = nodes.add("s4", s2)
        meanwhile(lambda: s4.switch(s3))
        with pytest.raises(MovedOnError):
            await enroll.switch(home_of(nodes, "s4"), "s1")
        assert s4.state("provider") == "s3"
