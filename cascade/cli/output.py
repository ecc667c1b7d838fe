"""What commands print: tables for people, JSON for programs, errors for both.

The contract of --json:

- A command that lists prints one array of objects; one that shows or changes a thing prints one
  object; `queue tail` prints one object per line.
- Ids of events, ticks, batches and transactions are strings, since they may exceed 2^53.
- Times are ISO 8601 with an offset.  Numbers carry their unit in the name: `lag_seconds`, `bytes`.
- What is unknown or absent is null.  Fields may be added; none changes its meaning.
- An error is one object on stderr: {"error": text, "hint": text|null, "sqlstate": text|null}.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 refused as unsafe, 130 interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import click

# Rich takes longer to load than most commands need to run, so it is loaded when it draws.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from cascade.event import Event

Kind = Literal["text", "id", "number", "bytes", "time", "ago", "seconds", "list"]

#: Columns that hold ids, wherever they turn up.
IDS = frozenset(
    [
        "id",
        "tick_id",
        "prev_tick",
        "last_tick",
        "batch_id",
        "from_tick",
        "to_tick",
        "txid",
        "low",
        "high",
        "open",
        "event_seq",
        "origin_id",
        "tick",
    ]
)
ERROR_STYLE, HINT_STYLE = "red", "cyan"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table for people."""

    key: str
    title: str
    kind: Kind = "text"

    @property
    def is_right(self) -> bool:
        """Whether it is aligned at the right."""
        return self.kind in ("id", "number", "bytes", "seconds", "ago")


def columns(kind: Kind, *keys: str) -> list[Column]:
    """Return columns of one kind, titled by their keys."""
    return [Column(key, key.replace("_", " "), kind) for key in keys]


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as the contract of --json has it."""
    found = {}
    for key, value in row.items():
        if isinstance(value, timedelta):
            found[f"{key}_s"] = value.total_seconds()
        elif key == "age":
            found["age_s"] = value
        else:
            found[key] = _plain_value(key, value)
    return found


def _plain_value(key: str, value: Any) -> Any:
    if value is None:
        return None
    if key in IDS:
        return [str(item) for item in value] if isinstance(value, list) else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, str | int | float | bool | list | dict) else str(value)


def echo_json(value: object, *, err: bool = False) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False), err=err)


def echo_done(value: Mapping[str, Any], message: str, *, as_json: bool) -> None:
    """Say what was done: the object to programs, the sentence to people."""
    if as_json:
        echo_json(plain(value))
    else:
        click.echo(message)


def console(*, err: bool = False) -> Console:
    """Return a console for stdout or stderr; off a terminal no table is folded to a width."""
    from rich.console import Console

    made = Console(stderr=err, highlight=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, width=1000)


def show(renderable: RenderableType) -> None:
    """Print something to people, on stdout."""
    made = console()
    with made.capture() as capture:
        made.print(renderable)
    # Rich pads every line to the width of the table.
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def table(columns: Sequence[Column], found: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """Lay rows out as a table."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.title, justify="right" if column.is_right else "left", overflow="fold")
    for row in found:
        made.add_row(*(Text(human(row.get(column.key), column.kind)) for column in columns))
    return made


def facts(pairs: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """Lay out one thing's properties, one per line."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(printable(name)), Text(printable(value)))
    return made


def echo_list(columns: Sequence[Column], found: Sequence[Mapping[str, Any]], *, as_json: bool, when_empty: str) -> None:
    """Print a list: an array to programs, a table to people."""
    if as_json:
        echo_json([plain(row) for row in found])
    elif found:
        show(table(columns, found))
    else:
        click.echo(when_empty, err=True)


def human(value: Any, kind: Kind = "text") -> str:
    """Return a value as people read it."""
    if value is None or value == []:
        return "-"
    match kind:
        case "number":
            return f"{value:,}".replace(",", " ")
        case "bytes":
            return human_bytes(value)
        case "seconds":
            return human_seconds(float(value))
        case "time":
            return str(value.astimezone().isoformat(sep=" ", timespec="milliseconds"))
        case "ago":
            return f"{human_seconds((datetime.now(UTC) - value).total_seconds())} ago"
        case "list":
            return printable(", ".join(str(item) for item in value))
        case "text" | "id":
            return printable(str(value))


def human_bytes(size: float) -> str:
    """Return a size such as 1.5 MB; units of 1024, as PostgreSQL shows them."""
    size = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Return a length of time such as 12 ms, 3.4 s, 5 min 10 s or 2 d 3 h."""
    seconds = max(seconds, 0.0)
    if seconds == 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def printable(text: str) -> str:
    """Return text that cannot steer a terminal: control characters are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(document: str) -> str:
    """Return a JSON document on one line, unchanged otherwise: line ends stand only between its parts."""
    return document.replace("\r", " ").replace("\n", " ").replace("\t", " ")


def event_line(event: Event[Any], *, as_json: bool) -> str:
    """Return an event as one line; the payload as it was inserted, but for line ends."""
    payload = one_line(event.payload_text)
    if not as_json:
        moment = human(event.time, "time")
        return f"{moment}  {event.id}  {human(event.type)}  {human(event.key)}  {printable(payload)}\n"
    row = {"id": event.id, "time": event.time, "txid": event.txid, "type": event.type, "key": event.key}
    more = {"headers": event.headers, "origin": event.origin, "origin_id": event.origin_id, "attempt": event.attempt}
    text = json.dumps(plain({**row, **more}), ensure_ascii=False)
    return f'{text[:-1]}, "payload": {payload}}}\n'


def echo_error(message: str, hint: str | None, sqlstate: str | None, *, as_json: bool) -> None:
    """Print what went wrong on stderr."""
    if as_json:
        echo_json({"error": message, "hint": hint, "sqlstate": sqlstate}, err=True)
        return
    lines = [printable(line.strip()) for line in message.splitlines()] or ["unknown"]
    click.echo(click.style("error: ", fg=ERROR_STYLE) + "\n       ".join(lines), err=True)
    if hint:
        click.echo(click.style("hint: ", fg=HINT_STYLE) + printable(hint), err=True)
