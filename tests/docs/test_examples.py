"""What the documents show is true: their examples run, and their links lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cascade.dev import Cluster
from cascade.errors import BY_SQLSTATE
from tests.docs.markdown import PAGES, TOP, anchors, blocks, links
from tests.docs.runner import Runner
from tests.fixtures.database import Database


def name_of(page: Path) -> str:
    return str(page.relative_to(TOP))


def uses_spark(page: Path) -> bool:
    return any("cascade.spark" in block.text or "$ cascade spark" in block.text for block in blocks(page.read_text()))


RUN = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.xdist_group("spark")] if uses_spark(page) else [])
    for page in PAGES
    if blocks(page.read_text())
]


@pytest.fixture
def runner(db: Database, tmp_path: Path) -> Iterator[Runner]:
    """A place where a page is tried out; servers it started and left are removed."""
    try:
        with ExitStack() as stack:
            yield Runner(db, tmp_path, stack)
    finally:
        if (tmp_path / ".cascade" / "cluster.json").exists():
            Cluster.open(tmp_path / ".cascade").remove()


@pytest.mark.parametrize("page", RUN)
def test_examples_run(page: Path, runner: Runner, request: pytest.FixtureRequest) -> None:
    if uses_spark(page):
        # session() returns the one that is running.
        request.getfixturevalue("spark")
    for block in blocks(page.read_text()):
        try:
            runner.run(block)
        except BaseException as error:
            error.add_note(f"{name_of(page)}, line {block.line}")
            raise


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)}: there is no {target}"
        if anchor:
            assert anchor in anchors(found.read_text()), f"{name_of(page)}: {found.name} has no heading #{anchor}"


def test_every_error_has_a_remedy() -> None:
    page = (TOP / "docs" / "howto" / "troubleshoot.md").read_text()
    assert [code for code in BY_SQLSTATE if f"| {code} " not in page] == []
