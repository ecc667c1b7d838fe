"""The reference page names every key, and its examples are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cascade.topology import Role, fields, parse, render

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "topology.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)


def records(kind: fields.Kind) -> Iterator[fields.Record]:
    """Yield the records of a kind, itself included."""
    match kind:
        case fields.Record():
            yield kind
            for field in kind.fields:
                yield from records(field.kind)
        case fields.MapOf():
            yield from records(kind.values)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(example: str) -> None:
    parse(example)


def test_the_tree_on_the_page_is_that_of_its_example() -> None:
    for example in EXAMPLES:
        assert f"```text\n{render.text(parse(example))}\n```" in PAGE


def test_every_key_and_role_is_on_the_page() -> None:
    keys = {field.name for record in records(fields.TOPOLOGY) for field in record.fields}
    assert [name for name in sorted(keys | set(Role)) if f"\n| `{name}` | " not in PAGE] == []


def test_the_page_names_no_key_that_there_is_not() -> None:
    keys = {field.name for record in records(fields.TOPOLOGY) for field in record.fields}
    assert set(re.findall(r"^\| `([^`]+)` \|", PAGE, re.M)) == keys | set(Role)
