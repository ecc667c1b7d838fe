"""cascade: the command.  Here commands are found and errors become messages and exit codes.

Each noun is a module, loaded when one of its commands runs; its line in `cascade --help` is
written here, so that the help loads none of them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cascade import __version__
from cascade.cli.output import echo_error
from cascade.errors import CascadeError, ConfigError, QueueInUseError, UnsafeError

if TYPE_CHECKING:
    import psycopg

COMMANDS = {
    "apply": "Make the databases what a topology file, or a saved plan, says.",
    "certificate": "What failovers may have lost, and what became of it.",
    "consumer": "Where consumers stand, and moving them.",
    "dead": "Dead letters: messages that failed too often, or were buried.",
    "demo": "Watch four databases carry one queue, lose its root, and see that nothing is lost or doubled.",
    "dev": "PostgreSQL servers on this machine, for development and for the demo.",
    "failover": "Replace a lost root, or leave a lost branch; says first what may be lost.",
    "history": "Show the reigns of a set's roots, from the first.",
    "node": "The daemon, and what an operator does to one node of a set.",
    "plan": "Compare a topology file with the databases, and show what would be done.",
    "quarantine": "Events that a lost root, or another carrier, had and nobody else: look, republish, discard.",
    "queue": "Make queues, look at them, publish and read.",
    "repair": "Repair branches whose log differs from their provider's, as `cascade spark reconcile` found it.",
    "resolve": "Keep one of two roots that were promoted at once.",
    "resurrect": "Bring a former root, or a carrier beyond a fork, back as a branch.",
    "set": "Queues that several databases carry.",
    "spark": "Compare, archive and check whole queues, on Spark.",
    "status": "Show every set as a tree: roles, lag, rates, and what is wrong.",
    "switchover": "Make another node the root; nothing is lost and nothing is repeated.",
    "wait": "Wait until a node has come to a tick; exit 1 when it does not in time.",
    "schema": "Install Cascade in a database, upgrade it, remove it.",
    "work": "Workers, and the messages of consumers in work mode.",
    "topology": "Check and draw the file that says which database copies from which.",
}
#: Commands that live in the module of another one.
MODULES = {
    "apply": "failover",
    "history": "reigns",
    "plan": "failover",
    "resolve": "reigns",
    "resurrect": "failover",
    "switchover": "failover",
    "wait": "status",
}
FAILED, BAD_USAGE, REFUSED, INTERRUPTED = 1, 2, 3, 130


class Cli(click.Group):
    """The root: loads commands by name and reports what goes wrong in any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the module of a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"cascade.cli.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run a command and exit: 0 done, 1 failed, 2 bad usage, 3 refused as unsafe, 130 interrupted.

        A command may return its exit code.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(arguments, prog_name="cascade", **extra)
            sys.stdout.flush()
        except Exception as error:
            code = report(error, as_json=wants_json(arguments))
        sys.exit(code if isinstance(code, int) else 0)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON; asked of the bare arguments, since they may be what is wrong."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options or "--log-format=json" in options or ("--log-format", "json") in set(pairwise(options))


def report(error: Exception, *, as_json: bool) -> int:
    """Print an error and return the exit code; what only a bug could raise is raised again."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, click.Abort):
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # Whoever read our output has gone; the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return BAD_USAGE
    if isinstance(error, click.ClickException):
        echo_error(error.format_message(), usage_hint(error), None, as_json=as_json)
        return error.exit_code
    if os.environ.get("CASCADE_DEBUG") == "1":
        raise error
    known = as_cascade_error(error)
    if known is None:
        raise error
    echo_error(str(known.args[0]), known.hint, sqlstate_of(known, error), as_json=as_json)
    return exit_code(known)


def as_cascade_error(error: Exception) -> CascadeError | None:
    """Return the error with its message and hint, or None for what nobody foresaw."""
    if isinstance(error, CascadeError):
        return error
    if isinstance(error, UnicodeError):
        return ConfigError(f"an argument is not UTF-8: {error}")
    if isinstance(error, OSError):
        return CascadeError(str(error))
    # Only where the driver was loaded can it have raised anything.
    driver = sys.modules.get("psycopg")
    return from_driver(error) if driver is not None and isinstance(error, driver.Error) else None


def from_driver(error: psycopg.Error) -> CascadeError:
    """Return a database error as one of Cascade's, those without a name of their own too."""
    from cascade.db import translate

    message = error.diag.message_primary or str(error).strip() or type(error).__name__
    return translate(error) or CascadeError(message, hint=error.diag.message_hint or error.diag.message_detail)


def sqlstate_of(known: CascadeError, error: Exception) -> str | None:
    """Return the code the database gave, or the one that stands for this kind of error."""
    for found in (error, error.__cause__):
        if (state := getattr(found, "sqlstate", None)) is not None:
            return str(state)
    return known.sqlstate


def exit_code(error: CascadeError) -> int:
    """Return 2 for what was asked wrongly, 3 for what was refused as unsafe, else 1."""
    if isinstance(error, QueueInUseError | UnsafeError):
        return REFUSED
    return BAD_USAGE if isinstance(error, ConfigError) else FAILED


def usage_hint(error: click.ClickException) -> str | None:
    """Return where to read about the command that was used wrongly."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path} --help" if context is not None else None


@click.command(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cascade")
def main() -> None:
    """Queues that live inside PostgreSQL and are replicated across databases.

    \b
    cascade demo                             see it work, on a server of its own
    export CASCADE_DSN='service=shop'        which database the commands are about
    cascade schema install                   put Cascade into it
    cascade queue create orders              make a queue
    cascade node run                         make ticks: without them nothing is read
    cascade queue publish orders '{"id": 7}'
    cascade queue tail orders --from earliest

    Exit codes: 0 done, 1 failed, 2 bad usage, 3 refused as unsafe, 130 interrupted.
    CASCADE_DEBUG=1 shows where an error came from.
    """


if __name__ == "__main__":
    main()
