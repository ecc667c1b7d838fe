"""Fixtures: a server per run, a template with the schema, a clone per test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from cascade.errors import CascadeError
from tests.fixtures.backend import Backend, borrowed, labels, start
from tests.fixtures.database import Database
from tests.fixtures.spark import java as java
from tests.fixtures.spark import spark as spark
from tests.fixtures.supply import Choice, Supply, check_containers, check_embedded, choose

try:
    CHOICE, LABELS = choose(os.environ), labels(choose(os.environ))
except CascadeError:  # pytest_configure tells it, without a traceback
    CHOICE, LABELS = Choice(), []
#: Holds the server that somebody gave us, from the start of a run to its end.
BORROWED = pytest.StashKey[ExitStack]()
#: Under this name a test's report carries what it wants to have told at the end of the run.
TOLD = "told"

# How fast examples are made depends on what else the machine does; timings are never asserted.
settings.register_profile("cascade", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cascade")


def pytest_report_header() -> str:
    return f"PostgreSQL servers: {', '.join(LABELS)}"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Have a line at the end of the run, also of tests that pass: the seeds and the counts of random runs."""
    return lambda line: record_property(TOLD, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = [
        f"{report.nodeid.split('::')[-1]}: {line}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, line in report.user_properties
        if name == TOLD
    ]
    if found:
        terminalreporter.section("random runs")
        for line in found:
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    # It would win over the passwords that the tests' connection strings name.
    os.environ.pop("PGPASSWORD", None)
    # A shell that runs us in the background has SIGINT ignored, and the programs that tests start
    # and interrupt would inherit that; a handler of ours is reset to the default for them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # xdist's workers use what their leader has checked and prepared
        config.stash[BORROWED] = ExitStack()
        try:
            _check_servers(config.stash[BORROWED])
        except CascadeError as error:
            raise pytest.UsageError(str(error)) from None


def _check_servers(stack: ExitStack) -> None:
    match choose(os.environ):
        case Choice(supply=Supply.EMBEDDED):
            check_embedded()
        case Choice(supply=Supply.CONTAINERS, image=image):
            check_containers(image)
        case Choice(supply=Supply.GIVEN, dsn=dsn):
            stack.enter_context(borrowed(dsn))


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash.get(BORROWED, ExitStack()).close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHOICE.supply is Supply.GIVEN:
        # Transactions of one test hold up another's ticks and rotations: there is one server, so one worker uses it.
        for item in items:
            if "backends" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("given"), append=False)


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for initdb's results; workers of one run share it."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "templates"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="session")
def backends(templates: Path) -> Iterator[Callable[..., Backend]]:
    """Servers, each started when first asked for and kept for the session."""
    with ExitStack() as stack:
        started: dict[tuple[str, tuple[tuple[str, str], ...]], Backend] = {}

        def get(label: str, **settings: str) -> Backend:
            # Nobody but its owner sets up a given server: it is the same whatever is asked for.
            asked = {} if CHOICE.supply is Supply.GIVEN else settings
            wanted = (label, tuple(sorted(asked.items())))
            if wanted not in started:
                # Servers made from one template share a system identifier; a named one has its own.
                home = templates / settings.get("application_name", "usual")
                home.mkdir(exist_ok=True)
                started[wanted] = stack.enter_context(start(label, home, settings))
            return started[wanted]

        yield get


@pytest.fixture
def backend(backends: Callable[..., Backend]) -> Backend:
    """The first server, as people run it: no prepared transactions."""
    return backends(LABELS[0])


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    """A fresh database with the schema."""
    with Database.fresh(backend) as database:
        yield database
