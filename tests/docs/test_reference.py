"""The reference pages are what the generator prints."""

from __future__ import annotations

from tests.docs import reference
from tests.fixtures.database import Database

AGAIN = "run `python -m tests.docs.reference`"


def test_the_sql_reference_is_what_the_catalogue_says(db: Database) -> None:
    assert reference.SQL_PAGE.read_text() == reference.sql_page(db.main), AGAIN


def test_the_command_line_reference_is_what_help_says() -> None:
    assert reference.CLI_PAGE.read_text() == reference.cli_page(), AGAIN
