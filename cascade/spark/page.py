"""The report of a comparison as one page: a verdict, the tree, a timeline, every difference.  It loads nothing.

It is light or dark as its reader is, can be printed, and holds the report as JSON for programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from typing import TypeAlias

from cascade.spark.differences import Difference, Kind
from cascade.spark.report import NodeReport, Report
from cascade.topology.svg import svg

#: Where a moment is on the timeline.
_At: TypeAlias = Callable[[datetime], float]
_Values: TypeAlias = Mapping[str, str | None]
#: So many rows a browser shows without trouble; the JSON in the page has all.
MOST_ROWS = 5_000
#: Light, dark.
COLOURS = {
    Kind.MISSING: ("#b91c1c", "#f87171"),
    Kind.EXTRA: ("#a16207", "#facc15"),
    Kind.CHANGED: ("#1d4ed8", "#60a5fa"),
    Kind.MOVED: ("#7e22ce", "#c084fc"),
    Kind.TICK_MISSING: ("#be185d", "#f472b6"),
    Kind.TICK_EXTRA: ("#0f766e", "#2dd4bf"),
    Kind.TICK_CHANGED: ("#4d7c0f", "#a3e635"),
}
LEFT, WIDTH, LANE, TOP = 110, 860, 34, 8
#: Marks nearer to each other than this are one mark, with their number.
NEAR = 9


def page(report: Report) -> str:
    """Return the whole page."""
    title = f"Reconcile {report.set}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict {"good" if report.exit_code == 0 else "bad"}">{escape(verdict(report))}</p>',
        f"<p>{escape(summary(report))}</p>",
        *_silent(report),
        "<h2>Nodes</h2>",
        f'<figure id="tree">{_tree(report)}</figure>',
        _nodes(report),
        "<h2>Timeline</h2>",
        f'<figure id="timeline">{timeline(report)}</figure>',
        _legend(report),
        "<h2>Differences</h2>",
        _table(report),
    ]
    # Inside a script only this could end it.
    data = json.dumps(report.as_json(), ensure_ascii=False).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}</style></head><body><main>",
            *body,
            f'</main><script type="application/json" id="report">{data}</script></body></html>\n',
        ]
    )


def verdict(report: Report) -> str:
    """Return in a few words what was found."""
    if report.differences:
        more = "more than " if report.is_truncated else ""
        nodes = {found.node for found in report.differences}
        number = len(report.differences)
        return f"{more}{number} {'difference' if number == 1 else 'differences'} at {', '.join(sorted(nodes))}"
    if not report.is_equal:
        dirty = ", ".join(node.node for node in report.nodes if node.is_dirty)
        return f"events outside the last tick at {dirty}"
    return "equal" if report.is_complete else "equal, as far as nodes answered"


def summary(report: Report) -> str:
    """Return what was compared."""
    return (
        f"{report.events:,} events in {report.ticks:,} ticks, after tick {report.from_tick} up to tick"
        f" {report.to_tick}, compared at {report.made_at:%Y-%m-%d %H:%M:%S %Z} in {report.seconds:.1f} s;"
        f" {report.bytes_read:,} bytes read."
    )


def timeline(report: Report) -> str:
    """Return a lane per node: where it was compared, and what differs when."""
    start = min(node.first_time for node in report.nodes)
    end = max(node.last_time for node in report.nodes)
    seconds = max((end - start).total_seconds(), 0.001)

    def at(moment: datetime) -> float:
        return LEFT + WIDTH * min(max((moment - start).total_seconds() / seconds, 0.0), 1.0)

    lanes: list[str] = []
    for index, node in enumerate(report.nodes):
        lanes += _lane(node, [one for one in report.differences if one.node == node.node], TOP + index * LANE, at)
    bottom = TOP + len(report.nodes) * LANE + 4
    axis = [f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{LEFT + WIDTH}" y2="{bottom}"/>']
    for part in range(5):
        moment = start + (end - start) * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        place = f'x="{LEFT + WIDTH * part / 4:.0f}" y="{bottom + 18}" text-anchor="{anchor}"'
        axis.append(f'<text class="when" {place}>{moment:%Y-%m-%d %H:%M:%S}</text>')
    size = f"0 0 {LEFT + WIDTH + 16} {bottom + 28}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img"><title>What differs, and when</title>'
    return "\n".join([head, *lanes, *axis, "</svg>"])


def _lane(node: NodeReport, found: Sequence[Difference], y: int, at: _At) -> Iterator[str]:
    middle = y + LANE / 2
    yield f'<text class="lane" x="{LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(node.node)}</text>'
    yield f'<line class="none" x1="{LEFT}" y1="{middle}" x2="{LEFT + WIDTH}" y2="{middle}"/>'
    first, last = at(node.first_time), at(node.last_time)
    yield f'<line class="held" x1="{first:.1f}" y1="{middle}" x2="{max(last, first + 1):.1f}" y2="{middle}"/>'
    for x, marks in _marks(found, at):
        kind = max(Kind, key=lambda kind: sum(one.kind is kind for one in marks))
        names = sorted({f"{one.kind} at tick {one.tick_id}" for one in marks})
        told = "; ".join(names[:8]) + (f"; and {len(names) - 8} more" if len(names) > 8 else "")
        radius = min(5 + len(marks) ** 0.5, 13)
        circle = f'<circle class="mark {_class(kind)}" cx="{x:.1f}" cy="{middle}" r="{radius:.1f}"/>'
        yield f"<g><title>{escape(f'{len(marks)} differences: {told}')}</title>{circle}</g>"


def _marks(found: Sequence[Difference], at: _At) -> list[tuple[float, list[Difference]]]:
    placed: list[tuple[float, list[Difference]]] = []
    for one in sorted((one for one in found if one.time is not None), key=lambda one: one.time or datetime.min):
        assert one.time is not None
        x = at(one.time)
        if placed and x - placed[-1][0] < NEAR:
            placed[-1][1].append(one)
        else:
            placed.append((x, [one]))
    return placed


def _tree(report: Report) -> str:
    if report.topology is None or report.set not in report.topology.sets:
        return ""
    only = replace(report.topology, sets={report.set: report.topology.sets[report.set]})
    notes: dict[str, list[str]] = {}
    for node in report.nodes:
        number = sum(report.counts(node.node).values())
        notes[node.node] = [f"{number} differ" if number else "dirty" if node.is_dirty else "equal"]
    notes |= {name: ["not compared"] for name in report.silent}
    return svg(only, {report.set: notes}, title=f"The tree of {report.set}")


def _nodes(report: Report) -> str:
    rows = []
    for node in report.nodes:
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(report.counts(node.node).items())) or "none"
        if node.is_dirty:
            counts += "; events outside its last tick"
        skipped = "; ".join(f"{one.reason}: after {one.from_tick} up to {one.to_tick}" for one in node.skipped) or "-"
        cells = (node.node, node.role, node.provider or "-", node.first_tick, node.last_tick, counts, skipped)
        rows.append("".join(f"<td>{escape(str(cell))}</td>" for cell in cells))
    names = ("node", "role", "provider", "first tick", "last tick", "differences", "not compared")
    return _rows("nodes", names, rows)


def _table(report: Report) -> str:
    if not report.differences:
        return "<p>None.</p>"
    rows = [
        "".join(
            [
                f"<td>{escape(one.node)}</td>",
                f'<td><span class="dot {_class(one.kind)}"></span>{escape(_what(one))}</td>',
                f"<td>{one.tick_id}</td><td>{'-' if one.id is None else one.id}</td>",
                f"<td>{_values(one.wanted)}</td><td>{_values(one.found)}</td>",
            ]
        )
        for one in report.differences[:MOST_ROWS]
    ]
    more = len(report.differences) - len(rows)
    note = f"<p>{more:,} more are in the JSON of this page.</p>" if more else ""
    return _rows("differences", ("node", "what", "tick", "event", "wanted", "found"), rows) + note


def _rows(name: str, titles: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    lines = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'
    )


def _what(one: Difference) -> str:
    text = str(one.kind)
    if one.columns:
        text += f": {', '.join(one.columns)}"
    if one.found_tick is not None:
        text += f" ({one.count} events are in tick {one.found_tick})" if one.kind.is_tick else f" {one.found_tick}"
    return text


def _values(values: _Values) -> str:
    return "<br>".join(
        f"<b>{escape(name)}</b> {'<i>null</i>' if value is None else f'<code>{escape(value)}</code>'}"
        for name, value in values.items()
    )


def _silent(report: Report) -> Iterator[str]:
    for node, reason in report.silent.items():
        yield f'<p class="verdict bad">{escape(node)} was not compared: {escape(reason)}</p>'


def _legend(report: Report) -> str:
    kinds = [kind for kind in Kind if any(one.kind is kind for one in report.differences)]
    shown = [f'<span class="dot {_class(kind)}"></span>{escape(str(kind))}' for kind in kinds]
    return f'<p class="legend">{" ".join(shown)} <span class="bar"></span>held and compared</p>'


def _class(kind: Kind) -> str:
    return str(kind).replace(" ", "-")


def _style() -> str:
    def colours(which: int) -> str:
        return "".join(
            f".{_class(kind)}{{fill:{pair[which]};background:{pair[which]}}}" for kind, pair in COLOURS.items()
        )

    light = "--ink:#111827;--faint:#6b7280;--line:#d1d5db;--page:#ffffff;--good:#15803d;--bad:#b91c1c;--held:#9ca3af"
    dark = "--ink:#f3f4f6;--faint:#9ca3af;--line:#374151;--page:#111827;--good:#4ade80;--bad:#f87171;--held:#6b7280"
    return (
        f":root{{{light}}}{colours(0)}"
        f"@media (prefers-color-scheme: dark){{:root{{{dark}}}{colours(1)}}}"
        "body{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;margin:0}"
        "main{max-width:70rem;margin:0 auto;padding:1.5rem}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}"
        ".verdict{font-size:1.15rem;font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}"
        "figure{margin:0;overflow-x:auto}#timeline svg{width:100%;min-width:44rem}.wide{overflow-x:auto}"
        "table{border-collapse:collapse;width:100%;font-size:.9rem}"
        "th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;border-bottom:1px solid var(--line)}"
        "th{color:var(--faint);font-weight:600}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}"
        ".dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin:0 .4em 0 0}"
        ".legend{color:var(--faint)}.legend .dot{margin-left:1em}"
        ".bar{display:inline-block;width:2em;height:6px;border-radius:3px;margin:0 .4em .15em 1em;"
        "background:var(--held)}"
        ".held{stroke:var(--held);stroke-width:6;stroke-linecap:round}.none{stroke:var(--line);stroke-dasharray:3 4}"
        ".axis{stroke:var(--faint)}#timeline text{fill:var(--faint)}#timeline .lane{fill:var(--ink);font-weight:bold}"
        ".mark{stroke:var(--page);stroke-width:1.5;fill-opacity:.9}"
    )
