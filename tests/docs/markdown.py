"""Read markdown: the marked code blocks of a page, the statements of an SQL block, the links.

A block is run by the tests when the line before its fence is a comment:

    <!-- test: sql -->                  statements, in order, as the owner of the schema
    <!-- test: sql admin -->            likewise, as a superuser
    <!-- test: python -->               `await` may stand at the top level; names last for the page
    <!-- test: python background -->    a program that runs until the end of the page, then gets SIGINT
    <!-- test: python background twice -->   two of them
    <!-- test: console -->              every line that begins with `$ cascade`
    <!-- test: console background -->   likewise, until the end of the page

SQL is what psql takes, as far as the documents need it: `\\gset`, `:name`, COPY with its data.
A statement that must fail says so: `select ...; -- raises QC203`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
PAGES = sorted(page for place in ("*.md", "docs/**/*.md", "deploy/**/*.md") for page in TOP.glob(place))

_BLOCK = re.compile(r"^<!-- test: (?P<mark>[a-z ]+?) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.M)
_STATEMENT = re.compile(
    r"(?P<text>(?:'(?:[^']|'')*'|(?P<tag>\$\w*\$).*?(?P=tag)|--[^\n]*+|(?!--|\$\w*\$)[^;'\\])*?)"
    r"(?:\\gset[ \t]*|;)(?:[ \t]*-- raises (?P<error>\w{5}))?[^\n]*(?:\n|$)",
    re.S,
)
_DATA = re.compile(r"(?P<data>.*?)^\\\.$\n?", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block that the tests run."""

    words: tuple[str, ...]
    text: str
    line: int

    @property
    def kind(self) -> str:
        """Return sql, python or console."""
        return self.words[0]


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement, and what the page says will come of it."""

    text: str
    keeps_row: bool = False
    error: str | None = None
    data: str | None = None


def blocks(page: str) -> list[Block]:
    """Return the marked blocks of a page."""
    found = []
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start()) + 3
        words = tuple(match["mark"].split())
        assert words[0] == match["language"], f"line {line}: marked {words[0]}, written in {match['language']}"
        found.append(Block(words, match["text"], line))
    assert len(found) == page.count("<!-- test:"), "a mark is not followed by its block"
    return found


def statements(text: str) -> list[Statement]:
    """Split SQL as psql does."""
    found, at = [], 0
    while text[at:].strip():
        match = _STATEMENT.match(text, at)
        if match is None:
            assert not re.sub(r"--[^\n]*", "", text[at:]).strip(), f"this statement does not end: {text[at:]}"
            break
        at, data = match.end(), None
        if re.match(r"\s*copy\b.*\bfrom stdin", match["text"], re.S | re.I):
            tail = _DATA.match(text, at)
            assert tail is not None, r"the data of COPY end with \."
            at, data = tail.end(), tail["data"]
        found.append(Statement(match["text"].strip(), "\\gset" in match[0], match["error"], data))
    return found


def links(page: str) -> list[str]:
    """Return the targets of a page's links, those to other sites left out."""
    targets = [match["target"] for match in _LINK.finditer(_FENCED.sub("", page))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: str) -> set[str]:
    """Return the names that headings of a page can be linked by."""
    titles = [match["title"].lower() for match in _HEADING.finditer(_FENCED.sub("", page))]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in titles}
