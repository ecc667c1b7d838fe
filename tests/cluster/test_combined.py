"""Combined sets on real servers, a daemon per database: merging, tracking, and what may be lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.backend import Backend
from tests.fixtures.cascade import eventually
from tests.fixtures.combined import Combined
from tests.fixtures.nursery import Nursery


@pytest.fixture
def combined(servers: list[Backend], nursery: Nursery, tmp_path: Path) -> Iterator[Combined]:
    """A combined set that is not defined yet."""
    with Combined.fresh(servers, nursery, tmp_path) as made:
        assert isinstance(made, Combined)
        yield made


def test_four_parts_become_one_queue(combined: Combined) -> None:
    combined.build().run()
    with combined.pressure():
        eventually(lambda: len(combined.merged("s3")) > 2000, within_s=60)
    assert combined.check_merged() > 2000
    assert combined.merges("s1", "copying")
    assert combined.merges("s2", "tracking")
    assert not combined.merges("s3")
