"""A topology as an SVG picture, drawn here without any library: boxes, arrows, a colour per role.

Providers stand left of their subscribers, sets below one another.  Colours follow the reader's light or
dark scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cascade.topology.model import Node, Role, Set, Topology
from cascade.topology.render import COLOURS, Notes, box_lines, class_of, heading, merges, plain, walk

CHAR, LINE, PAD, GAP_X, GAP_Y, MARGIN, HEADING = 7.3, 17, 12, 56, 16, 24, 30
DARK = {
    Role.ROOT: ("#78350f", "#fbbf24"),
    Role.COMBINED_ROOT: ("#7c2d12", "#fb923c"),
    Role.BRANCH: ("#1e3a8a", "#60a5fa"),
    Role.LEAF: ("#14532d", "#4ade80"),
    Role.MERGE_LEAF: ("#581c87", "#c084fc"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node with its place on the picture."""

    node: Node
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Return the height at which arrows come and go."""
        return self.y + self.height / 2


def svg(topology: Topology, notes: Mapping[str, Notes] | None = None, *, title: str | None = None) -> str:
    """Return a whole SVG document."""
    title = plain(title or f"Cascade: {', '.join(topology.sets)}")
    boxes: dict[tuple[str, str], Box] = {}
    body, y = [], float(MARGIN)
    for found in topology.sets.values():
        body.append(f'<text class="set" x="{MARGIN}" y="{y + 16:.0f}">{plain(heading(found))}</text>')
        placed = lay_out(found, (notes or {}).get(found.name), top=y + HEADING)
        boxes |= {(found.name, name): box for name, box in placed.items()}
        y = max((box.y + box.height for box in placed.values()), default=y + HEADING) + MARGIN
    for (name, _), box in boxes.items():
        provider = boxes.get((name, box.node.provider or ""))
        if provider is not None and provider is not box:
            body.append(arrow(provider, box, "arrow"))
    body += [arrow(boxes[a.set, a.name], boxes[b.set, b.name], "arrow merge") for a, b in merges(topology)]
    body += [line for box in boxes.values() for line in draw(box)]
    right = max((box.x + box.width for box in boxes.values()), default=0.0)
    width = max(right, MARGIN + 9 * max((len(heading(found)) for found in topology.sets.values()), default=20))
    size = f"{width + MARGIN:.0f} {y:.0f}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width + MARGIN:.0f}" height="{y:.0f}"'
    marker = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>'
    )
    return "\n".join(
        [f'{head} role="img">', f"<title>{title}</title>", f"<style>\n{style()}\n</style>", marker, *body, "</svg>\n"]
    )


def lay_out(found: Set, notes: Notes | None, *, top: float) -> dict[str, Box]:
    """Place the nodes of a set: a column per depth, each node in the middle of its subscribers."""
    places = list(walk(found))
    lines = {place.node.name: tuple(box_lines(place.node, notes)) for place in places}
    width = max((CHAR * len(line) for texts in lines.values() for line in texts), default=0.0) + 2 * PAD
    height = LINE * max((len(texts) for texts in lines.values()), default=0) + PAD
    depth_of = {place.node.name: place.depth for place in places}
    rows: dict[str, float] = {}
    row, below = 0.0, dict[str, list[float]]()
    # Subscribers come after their provider, so going backwards each finds those below it placed.
    for place in reversed(places):
        name, middles = place.node.name, below.get(place.node.name, [])
        rows[name] = (middles[0] + middles[-1]) / 2 if middles else row
        row += 0 if middles else 1
        if place.depth:
            below.setdefault(str(place.node.provider), []).append(rows[name])
    most = max(row - 1, 0)
    return {
        place.node.name: Box(
            node=place.node,
            lines=lines[place.node.name],
            x=MARGIN + depth_of[place.node.name] * (width + GAP_X),
            y=top + (most - rows[place.node.name]) * (height + GAP_Y),
            width=width,
            height=height,
        )
        for place in places
    }


def arrow(start: Box, end: Box, css: str) -> str:
    """Return the line from one box to another: rightwards to a subscriber, downwards or up to a combined set."""
    if "merge" in css:
        is_down = end.y > start.y
        x1, y1 = start.x + start.width / 2, start.y + (start.height if is_down else 0)
        x2, y2 = end.x + end.width / 2, end.y + (0 if is_down else end.height)
        bend = (y2 - y1) / 2
        way = f"M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    else:
        x1, x2 = start.x + start.width, end.x
        bend = (x2 - x1) / 2
        way = f"M{x1:.1f} {start.middle:.1f} C{x1 + bend:.1f} {start.middle:.1f} {x2 - bend:.1f} {end.middle:.1f} "
        way += f"{x2:.1f} {end.middle:.1f}"
    return f'<path class="{css}" d="{way}" marker-end="url(#tip)"/>'


def draw(box: Box) -> Iterator[str]:
    """Yield the box of a node and its texts."""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    yield f'<rect class="{class_of(box.node.role)}" {place} rx="8"/>'
    for index, line in enumerate(box.lines):
        css = "name" if index == 0 else "more"
        y = box.y + PAD / 2 + LINE * (index + 0.75)
        yield f'<text class="{css}" x="{box.x + PAD:.1f}" y="{y:.1f}">{plain(line)}</text>'


def style() -> str:
    """Return the colours, for a light and for a dark page."""

    def colours(ink: str, faint: str, boxes: Mapping[Role, tuple[str, str]]) -> str:
        lines = [f"text{{fill:{ink}}} .arrow{{stroke:{faint}}} .tip{{fill:{faint}}}"]
        lines += [f".{class_of(role)}{{fill:{fill};stroke:{stroke}}}" for role, (fill, stroke) in boxes.items()]
        return "\n".join(lines)

    shapes = "text{font:12px ui-monospace,Menlo,Consolas,monospace} .set{font-weight:bold;font-size:14px}\n"
    shapes += ".name{font-weight:bold} .arrow{fill:none;stroke-width:1.5} .merge{stroke-dasharray:5 4}\n"
    light, dark = colours("#111827", "#6b7280", COLOURS), colours("#f3f4f6", "#9ca3af", DARK)
    return f"{shapes}{light}\n@media (prefers-color-scheme: dark){{\n{dark}\n}}"
