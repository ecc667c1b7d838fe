"""SQL in the documents is split as psql splits it."""

from __future__ import annotations

import pytest

from tests.docs.markdown import Statement, blocks, statements


def test_statements_end_where_psql_ends_them() -> None:
    text = (
        "select ';' -- not; here, don't\n;\n"
        "do $x$ begin perform 1; end $x$;\n"
        "select 1 as a \\gset\n"
        "select :a; -- raises QC203\n"
        "-- the last; words\n"
    )
    assert statements(text) == [
        Statement("select ';' -- not; here, don't"),
        Statement("do $x$ begin perform 1; end $x$"),
        Statement("select 1 as a", keeps_row=True),
        Statement("select :a", error="QC203"),
    ]


def test_copy_takes_its_data_along() -> None:
    assert statements("copy t from stdin;\n1;2\n\\.\nselect 1;\n") == [
        Statement("copy t from stdin", data="1;2\n"),
        Statement("select 1"),
    ]


def test_a_statement_without_an_end_is_an_error() -> None:
    with pytest.raises(AssertionError, match="does not end"):
        statements("select 1")


def test_a_mark_without_its_block_is_an_error() -> None:
    assert blocks("```sql\nselect 1;\n```\n") == []
    with pytest.raises(AssertionError, match="not followed by its block"):
        blocks("<!-- test: sql -->\n\n```sql\nselect 1;\n```\n")
    with pytest.raises(AssertionError, match="marked sql"):
        blocks("<!-- test: sql -->\n```python\npass\n```\n")
