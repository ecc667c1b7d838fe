"""cascade topology: look at a topology file; only `export` asks databases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cascade.cli import JSON_OPTION
from cascade.cli import output as out
from cascade.errors import TopologyError

# Reading YAML is loaded when a command needs it, so that `--help` is quick.
if TYPE_CHECKING:
    from cascade.topology import Set, Topology

FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
OUT = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write to a file."
)
SUFFIXES = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid"}


@click.group()
def topology() -> None:
    """Check and draw the file that says which database copies from which.

    \b
    cascade topology check orders.yaml
    cascade topology show orders.yaml
    cascade topology graph orders.yaml -o orders.svg
    """


@topology.command()
@FILE
@JSON_OPTION
def check(file: Path, as_json: bool) -> int:
    """Say what is wrong with a file, all of it; exits 0 if nothing is, else 1.

    No database is asked: what a file says can be right and still not be what is running.

    \b
    cascade topology check orders.yaml
    cascade topology check orders.yaml --json | jq -r '.problems[].fact'
    """
    from cascade.topology import load

    try:
        counts = count(load(file))
    except TopologyError as error:
        problems = error.problems
        if not problems:
            raise
        if as_json:
            fields = ("source", "line", "fact", "remedy")
            found = [{key: getattr(problem, key) for key in fields} for problem in problems]
            out.echo_json({"ok": False, "problems": found})
        else:
            for problem in problems:
                click.echo(out.printable(str(problem)))
            click.echo(f"{out_of(len(problems), 'problem')} in {out.printable(str(file))}", err=True)
        return 1
    words = ", ".join(out_of(number, noun.removesuffix("s")) for noun, number in counts.items())
    out.echo_done({"ok": True, **counts, "problems": []}, f"ok: {words}", as_json=as_json)
    return 0


@topology.command()
@FILE
@JSON_OPTION
def show(file: Path, as_json: bool) -> None:
    """Show what a file says: the trees, the databases, options; never a secret.

    \b
    cascade topology show orders.yaml
    cascade topology show orders.yaml --json | jq '.sets[].nodes[].node'
    """
    from cascade.topology import load, redact, render

    found = load(file)
    if as_json:
        out.echo_json(as_object(found))
        return
    for one in found.sets.values():
        click.echo(render.tree(one))
        options = [*one.options.items(), *([("revision", one.revision)] if one.revision is not None else [])]
        click.echo("".join(f"  {name}: {value}\n" for name, value in options))
    out.show(out.facts([(name, redact(database.dsn)) for name, database in found.databases.items()], "databases"))
    if found.signals:
        out.show(out.facts(list(found.signals.items()), "\nsignals"))


@topology.command()
@FILE
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid", "svg"]),
    help="How it is drawn; without it, as the name of the output ends, else text.",
)
@OUT
def graph(file: Path, form: str | None, output: Path | None) -> None:
    """Draw the trees of a file, as text, for Mermaid or as an SVG picture.

    \b
    cascade topology graph orders.yaml
    cascade topology graph orders.yaml --format mermaid
    cascade topology graph orders.yaml -o orders.svg
    """
    from cascade.topology import load, render
    from cascade.topology.svg import svg

    found = load(file)
    drawers = {"text": render.text, "mermaid": render.mermaid, "svg": svg}
    form = form or SUFFIXES.get(output.suffix if output else "", "text")
    write(drawers[form](found), output)


@topology.command()
@OUT
def schema(output: Path | None) -> None:
    """Print the JSON Schema of topology files, for editors and validators.

    An editor that knows YAML finds it by a first line such as
    `# yaml-language-server: $schema=topology.schema.json`.

    \b
    cascade topology schema
    cascade topology schema -o topology.schema.json
    """
    from cascade.topology import json_schema

    write(json.dumps(json_schema(), indent=2, ensure_ascii=False), output)


@topology.command()
@FILE
@click.option("--write", "does_write", is_flag=True, help="Change the file, instead of printing it.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds to wait."
)
def export(file: Path, does_write: bool, timeout_s: float) -> None:
    """Print a file with the roles, providers and revisions that the databases have; comments stay.

    Use it when a file is refused because it is based on an older revision.  A node that does not answer is as the
    others last knew it.

    \b
    cascade topology export orders.yaml | diff orders.yaml -
    cascade topology export orders.yaml --write
    """
    from cascade.cli.asking import ask
    from cascade.cli.operate import read
    from cascade.topology.edit import edit, write_back
    from cascade.topology.failover import as_observed

    text, found = read(file)
    for name in found.sets:
        found = as_observed(found, ask(file, name, timeout_s)[1])
    made = edit(text, found)
    if not does_write:
        click.echo(made, nl=False)
    elif made != text:
        write_back(file, text, made)
        click.echo(f"changed {out.printable(str(file))}", err=True)


def write(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file."""
    text = f"{text.rstrip()}\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"wrote {out.printable(str(output))}", err=True)


def count(found: Topology) -> dict[str, int]:
    """Return how much a file describes."""
    nodes = sum(len(one.nodes) for one in found.sets.values())
    return {"sets": len(found.sets), "nodes": nodes, "databases": len(found.databases)}


def out_of(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_object(found: Topology) -> dict[str, Any]:
    """Return a topology as --json shows it."""
    from cascade.topology import redact

    return {
        "source": found.source,
        "version": found.version,
        "databases": [
            {
                "database": name,
                "dsn": redact(database.dsn),
                "nodes": [{"set": node.set, "node": node.name} for node in found.nodes_at(name)],
            }
            for name, database in found.databases.items()
        ],
        "sets": [set_object(one) for one in found.sets.values()],
        "signals": dict(found.signals),
    }


def set_object(one: Set) -> dict[str, Any]:
    """Return a set as --json shows it; `path` leads from the root to the node."""
    keys = ("database", "role", "provider", "handler", "start", "into")
    nodes = [
        {
            "node": node.name,
            **{key: getattr(node, key) for key in keys},
            "is_derived": node.is_derived,
            "options": dict(node.options),
            "path": [above.name for above in one.path(node.name)],
        }
        for node in one.nodes.values()
    ]
    parts = {"combines": list(one.combines), "revision": one.revision, "options": dict(one.options)}
    return {"set": one.name, **parts, "nodes": nodes}
