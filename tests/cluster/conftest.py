"""Four servers for the tests of the cascade, started once; each test has databases of its own on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend, start
from tests.fixtures.cascade import Cascade
from tests.fixtures.nursery import Nursery

SERVERS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One worker runs them all: four servers and four daemons are enough for two cores.
    for item in items:
        if "tests/cluster/" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture(scope="session")
def servers(templates: Path) -> Iterator[list[Backend]]:
    """Real servers, one per node; each has a system identifier of its own."""
    with ExitStack() as stack:
        found = []
        for number in range(SERVERS):
            home = templates / f"cluster{number}"
            home.mkdir(exist_ok=True)
            found.append(stack.enter_context(start(LABELS[number % len(LABELS)], home, {})))
            found[-1].need_server()
        yield found


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where daemons are started."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def cascade(servers: list[Backend], nursery: Nursery, tmp_path: Path) -> Iterator[Cascade]:
    """A cascade that is not defined yet."""
    with Cascade.fresh(servers, nursery, tmp_path) as made:
        yield made


@pytest.fixture
def orders(cascade: Cascade) -> Cascade:
    """The picture, running: s1 root -> s2 branch, s1 -> s3 branch -> s4 leaf."""
    return cascade.define().run()
