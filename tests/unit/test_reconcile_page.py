"""The page of a comparison: whole by itself, safe whatever the events say, and drawn by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cascade.spark.differences import Difference, Kind
from cascade.spark.page import page
from cascade.spark.report import NodeReport, Report, Skipped
from cascade.topology import parse

START = datetime(2026, 11, 19, 10, 0, tzinfo=UTC)
FILE = """
version: 1
databases: {a: {dsn: "service=a"}, b: {dsn: "service=b"}, c: {dsn: "service=c"}}
sets:
  q:
    nodes:
      s1: {database: a, role: root}
      s2: {database: b, role: branch, provider: s1}
      s3: {database: c, role: branch, provider: s2}
"""
EVIL = "</script><script>document.title='broken'</script><b>&amp; é𝄞"


def at(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


def node(
    name: str, provider: str | None, first: int, last: int, *skipped: Skipped, is_dirty: bool = False
) -> NodeReport:
    return NodeReport(
        node=name, role="branch" if provider else "root", provider=provider, first_tick=first, last_tick=last,
        first_time=at(first), last_time=at(last), skipped=skipped, is_dirty=is_dirty,
    )  # fmt: skip


def report(*differences: Difference, **more: object) -> Report:
    rotated = Skipped(node="s2", from_tick=1, to_tick=20, reason="rotated away")
    values: dict[str, object] = {
        "set": "q", "made_at": at(100), "from_tick": 1, "to_tick": 100, "ticks": 99, "events": 12_345, "silent": {},
        "nodes": (node("s1", None, 1, 100), node("s2", "s1", 20, 100, rotated)), "topology": parse(FILE, source="x"),
        "differences": differences,
    }  # fmt: skip
    return Report(**(values | more))  # type: ignore[arg-type]


def every_kind() -> tuple[Difference, ...]:
    return tuple(
        Difference(
            node="s2", reference="s1", kind=kind, tick_id=20 + 10 * n, time=at(20 + 10 * n), columns=("payload",),
            id=None if kind.is_tick else 10**15 + n, wanted={"payload": EVIL, "key": None}, found={"payload": "1"},
            found_tick=7 if kind is Kind.MOVED else None,
        )
        for n, kind in enumerate(Kind)
    )  # fmt: skip


class Tags(HTMLParser):
    """Sees that every tag is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def embedded(text: str) -> object:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_holds_everything_and_loads_nothing() -> None:
    found = report(*every_kind(), silent={"s3": "connection <refused>"})
    text = page(found)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert embedded(text) == json.loads(json.dumps(found.as_json()))
    assert not re.search(r"\b(src|href)=|@import|url\((?!#)", text)
    assert EVIL not in text and text.count("<script") == 1
    for words in (
        "7 differences at s2",
        "connection &lt;refused&gt;",
        "rotated away: after 1 up to 20",
        "12,345 events",
    ):
        assert words in text
    assert text.count('<circle class="mark') == 7 and "prefers-color-scheme: dark" in text


def test_marks_at_one_place_are_one_mark_with_a_number() -> None:
    many = tuple(
        Difference(node="s2", reference="s1", kind=Kind.MISSING, tick_id=50, id=n, time=at(50)) for n in range(9_000)
    )
    text = page(report(*many))
    assert text.count('<circle class="mark') == 1 and "9000 differences: missing at tick 50" in text
    assert text.count("<tr>") < 5_010 and "4,000 more are in the JSON" in text


@pytest.mark.parametrize(
    ("found", "words", "css"),
    [
        (report(), "equal", "good"),
        (report(silent={"s3": "no answer"}), "equal, as far as nodes answered", "bad"),
        (report(nodes=(node("s1", None, 1, 9), node("s2", "s1", 1, 9, is_dirty=True))), "the last tick at s2", "bad"),
        (report(every_kind()[0], is_truncated=True), "more than 1 difference at s2", "bad"),
        (report(topology=None, nodes=(node("s1", None, 1, 1), node("s2", "s1", 1, 1))), "equal", "good"),
    ],
)  # fmt: skip
def test_the_verdict_is_said_first(found: Report, words: str, css: str) -> None:
    text = page(found)
    assert re.search(rf'<p class="verdict {css}">[^<]*{re.escape(words)}', text)


@pytest.fixture
def chromium(tmp_path: Path) -> list[str]:
    """A real browser, without a window."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("THE PAGE IS NOT TRIED IN A BROWSER: no chromium is on the PATH")
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    flags = [
        "--headless",
        "--no-sandbox",
        "--no-first-run",
        "--hide-scrollbars",
        *(f"--disable-{name}" for name in quiet),
    ]
    return [program, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,900"]


def corner(path: Path) -> tuple[int, int, int]:
    """Return the colour of a PNG's first pixel; whatever its filter, that one is stored as it is."""
    data, at, pixels = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        pixels += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    red, green, blue = zlib.decompress(pixels)[1:4]
    return red, green, blue


def test_a_browser_draws_it_light_and_dark(chromium: list[str], tmp_path: Path) -> None:
    source = tmp_path / "report.html"
    source.write_text(page(report(*every_kind(), silent={"s3": "no answer"})), encoding="utf-8")

    def ask(*flags: str) -> str:
        done = subprocess.run([*chromium, *flags, source.as_uri()], capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    drawn = ask("--dump-dom", f"--screenshot={tmp_path / 'light.png'}")
    assert "<title>Reconcile q</title>" in drawn and drawn.count('<circle class="mark') == 7
    assert corner(tmp_path / "light.png") == (255, 255, 255)
    ask(f"--screenshot={tmp_path / 'dark.png'}", "--blink-settings=preferredColorScheme=0")
    assert corner(tmp_path / "dark.png") == (17, 24, 39)
