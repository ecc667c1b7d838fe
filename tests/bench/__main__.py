"""python -m tests.bench: measure, print the table, write docs/benchmarks.md."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import click

from cascade.cli.output import console as make_console
from cascade.cli.output import show
from tests.bench import (
    bulk,
    copying,
    failover,
    hops,
    horizon,
    latency,
    machine,
    merging,
    publish,
    reading,
    report,
    single,
    size,
    work,
)
from tests.bench.servers import SETTINGS, driver_name, started

MEASURES = {
    module.NAME: module
    for module in (single, bulk, publish, reading, size, horizon, latency, work, copying, merging, hops, failover)
}
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--only", "only", multiple=True, type=click.Choice(list(MEASURES)), help="Only this measure; may be repeated."
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds of every measure; default 3 to 7, with --quick 1 or 2.")
@click.option("--quick", is_flag=True, help="Small counts, under a minute: to try things out, not to publish.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write every number here.")
@click.option("--list", "listing", is_flag=True, help="List the measures and stop.")
@click.option("--write/--no-write", default=None, help="Write docs/benchmarks.md [default: after a full run].")
def main(
    only: tuple[str, ...], rounds: int | None, quick: bool, json_path: Path | None, listing: bool, write: bool | None
) -> None:
    """Measure Cascade beside PgQ and beside PostgreSQL's own limits.

    \b
    make bench                                     everything, about a quarter of an hour
    make bench BENCH_ARGS=--quick                  everything, small: does it work?
    python -m tests.bench --only read --rounds 5   one measure, more rounds
    python -m tests.bench --list                   what there is

    It starts a server of its own and removes it at the end.  Both sides take turns in shuffled
    order on that one server, so a busy machine slows both; a quiet one still gives better numbers.
    A bar that is missed shows as "missed" and is no error: timings are never asserted.

    \b
    PgQ is measured where the server has the extension: apt install postgresql-15-pgq3.
    CASCADE_PG_BIN=/usr/lib/postgresql/15/bin chooses the server.
    Its Python side uses psycopg2, if there: pip install psycopg2-binary; else psycopg 3.
    The rivals of work mode are measured where they are installed: pip install 'cascade-queue[bench]'.

    Without --only, --quick or --rounds the result is written to docs/benchmarks.md.
    """
    console = make_console()
    if listing:
        for name, module in MEASURES.items():
            console.print(f"{name:9} {module.ABOUT}", highlight=False)
        return
    chosen = [name for name in MEASURES if name in only] if only else list(MEASURES)
    if write is None:
        write = not (only or quick or rounds)
    begun = time.monotonic()
    # What the bench itself has imported, rivals and all, is no garbage of either side: it would be walked through
    # again and again while events are made, and slow down the side that makes objects of them.
    gc.collect()
    gc.freeze()
    facts = {"Machine": machine.machine(), "Versions": machine.versions()}
    before = machine.stolen()
    rows: list[report.Row] = []
    with console.status("starting a server") as status:

        def say(text: str) -> None:
            status.update(f"{name}: {text}")

        name = "server"
        with started(is_quick=quick, rounds=rounds, say=say) as bench:
            for name in chosen:
                start = time.monotonic()
                say("measuring")
                rows += MEASURES[name].run(bench)
                console.print(f"{name:9} measured in {time.monotonic() - start:.0f} s", style="dim", highlight=False)
    after = machine.stolen()
    if before and after and after[1] > before[1]:
        # Latency suffers first when a virtual machine has to wait for its processor.
        share = 100 * (after[0] - before[0]) / (after[1] - before[1])
        facts["Machine"]["taken by its host during the run"] = f"{share:.1f} % of the processor"
    facts["Versions"] = bench.facts | facts["Versions"]
    facts["Settings"] = {**SETTINGS, "autovacuum": "on", "PgQ's driver": driver_name()}
    show(report.table(rows))
    console.print(f"{time.monotonic() - begun:.0f} s in all; PgQ in Python with {driver_name()}", highlight=False)
    if json_path:
        json_path.write_text(json.dumps(report.as_json(rows, facts), indent=2) + "\n")
    if write:
        how = " A quick run: the counts are small." if quick else ""
        notes = {name: MEASURES[name].NOTE for name in chosen}
        PAGE.write_text(report.markdown(rows, notes, facts, how))
        console.print(f"written: {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


if __name__ == "__main__":
    main()
