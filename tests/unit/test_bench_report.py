"""The bench's table off a terminal: in a log or a file, every cell stands whole on one line."""

from __future__ import annotations

import pytest

from cascade.cli.output import show
from tests.bench import report
from tests.bench.measure import Bar, Row, Samples

ROWS = [
    Row(
        measure="publish",
        title="publish one event per transaction, committed durably, over one connection that four clients share",
        ours=Samples(label="Cascade", unit="/s", values=(123_456.0, 98_765.0, 110_001.0)),
        theirs=Samples(label="PgQ", unit="/s", values=(23_456.0, 28_765.0, 21_001.0)),
        bar=Bar(kind="at least", limit=1.05),
    ),
    Row(
        measure="latency",
        title="from commit to the consumer, 99th percentile, while another session holds a transaction open",
        ours=Samples(label="Cascade", unit=" ms", values=(12.5,)),
        rival="a rival with quite a long name that was not measured",
        bar=Bar(kind="under", limit=250, of="value", unit=" ms"),
    ),
]


def test_no_cell_of_the_table_is_folded_or_cut_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    show(report.table(ROWS))
    lines = capsys.readouterr().out.splitlines()
    for row in ROWS:
        [line] = [line for line in lines if row.title in line]
        assert [cell.strip() for cell in line.split("│")[1:-1]] == list(report.cells(row))
