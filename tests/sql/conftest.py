"""The SQL tests run on every major version found, with prepared transactions allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import LABELS
from tests.fixtures.backend import Backend


@pytest.fixture(params=LABELS)
def backend(request: pytest.FixtureRequest, backends: Callable[..., Backend]) -> Backend:
    """One server after the other."""
    return backends(request.param, max_prepared_transactions="20")
