"""The SQL tests run on every major version found, with prepared transactions allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend
from tests.fixtures.merging import Merging
from tests.fixtures.nodes import Nodes


@pytest.fixture(params=LABELS)
def backend(request: pytest.FixtureRequest, backends: Callable[..., Backend]) -> Backend:
    """One server after the other."""
    return backends(request.param, max_prepared_transactions="20")


@pytest.fixture
def nodes(backend: Backend) -> Iterator[Nodes]:
    """Databases that a test makes the nodes of a set."""
    with Nodes.fresh(backend) as made:
        yield made


@pytest.fixture
def merging(backend: Backend) -> Iterator[Merging]:
    """Databases that a test makes the nodes of parts and of what they are merged into."""
    with Merging.fresh(backend) as made:
        yield made
