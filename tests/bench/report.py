"""The report: a table for the terminal, a page of Markdown, and JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from tests.bench.measure import Bar, Row, Samples
from tests.bench.servers import NO_PGQ

COLUMNS = ("measure", "Cascade", "rival", "ratio", "bar", "met?")


def number(value: float, unit: str) -> str:
    """Return a number as people read it."""
    if unit == "/s":
        return f"{value / 1000:.0f} k/s" if value >= 100_000 else f"{value / 1000:.1f} k/s"
    return f"{value:.0f}{unit}" if value >= 100 or unit == "" else f"{value:.2f}{unit}"


def side(samples: Samples | None, rival: str = "") -> str:
    """Return a side's median, and its range when there are several rounds."""
    if samples is None:
        return NO_PGQ if rival.startswith("PgQ") else rival or "-"
    text = number(samples.median, samples.unit)
    if len(samples.values) > 1:
        low, high = (number(value, samples.unit).split()[0] for value in (min(samples.values), max(samples.values)))
        text += f" [{low}-{high}]"
    return text if samples.label in ("Cascade", "") else f"{samples.label}: {text}"


def ratio(row: Row) -> str:
    """Return the ratio of the medians, and the range of the rounds' own ratios."""
    if row.ratio is None:
        return "-"
    text = f"{row.ratio:.2f}"
    return f"{text} [{min(row.ratios):.2f}-{max(row.ratios):.2f}]" if len(row.ratios) > 1 else text


def bar(wanted: Bar | None) -> str:
    """Return what is wanted."""
    return "-" if wanted is None else f"{wanted.kind} {wanted.limit:g}{wanted.unit}"


def met(row: Row) -> str:
    """Return whether the bar is met."""
    if row.bar is None:
        return "-"
    return {True: "yes", False: "missed", None: "not measured"}[row.is_met]


def cells(row: Row) -> tuple[str, ...]:
    """Return a line of the table."""
    return (row.title, side(row.ours), side(row.theirs, row.rival), ratio(row), bar(row.bar), met(row))


def table(rows: Iterable[Row]) -> Table:
    """Return the table for the terminal."""
    found = Table(title=r"Medians \[lowest-highest round]; ratio of the medians \[of single rounds]")
    for column in COLUMNS:
        found.add_column(column, overflow="fold")
    last = None
    for row in rows:
        if last is not None and row.measure != last:
            found.add_section()
        last = row.measure
        colour = {"missed": "red", "yes": "green"}.get(met(row), "dim")
        *texts, verdict = (text.replace("[", r"\[") for text in cells(row))
        found.add_row(*texts, f"[{colour}]{verdict}[/]")
    return found


def markdown(rows: Iterable[Row], notes: Mapping[str, str], facts: Mapping[str, Mapping[str, str]], how: str) -> str:
    """Return docs/benchmarks.md."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` on {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC; do not edit.{how}",
        "",
        "Both sides run on one server in one run: each round measures every side once, in shuffled order. Numbers are",
        "medians [lowest-highest round]; a ratio is that of the medians [lowest-highest of the rounds' own ratios].",
        "An event has a type of 6 bytes, 204 bytes of JSON, and no key.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
    ]
    for title, found in facts.items():
        lines += [f"**{title}:** " + "; ".join(f"{name} {value}" for name, value in found.items()) + ".", ""]
    lines += ["## What was measured, and how", ""]
    lines += [f"- **{name}**: {note}" for name, note in notes.items()]
    return "\n".join(lines) + "\n"


def as_json(rows: Iterable[Row], facts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return everything for programs."""
    return {"facts": facts, "rows": [_row_json(row) for row in rows]}


def _row_json(row: Row) -> dict[str, Any]:
    def plain(samples: Samples | None) -> dict[str, Any] | None:
        if samples is None:
            return None
        return {
            "label": samples.label,
            "unit": samples.unit.strip(),
            "median": samples.median,
            "values": samples.values,
        }

    return {
        "measure": row.measure,
        "title": row.title,
        "cascade": plain(row.ours),
        "rival": plain(row.theirs),
        "ratio": row.ratio,
        "bar": row.bar and {"kind": row.bar.kind, "limit": row.bar.limit, "of": row.bar.of},
        "met": row.is_met,
    }
