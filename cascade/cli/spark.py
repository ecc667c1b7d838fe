"""cascade spark: jobs that compare, archive and check whole queues, on Spark."""

from __future__ import annotations

from importlib import import_module

import click

#: The commands, each in a module of its own that is loaded when it is asked for.
COMMANDS = {
    "archive": ("spark_archive", "archive_command"),
    "audit": ("spark_audit", "audit_command"),
    "backfill": ("spark_backfill", "backfill_command"),
    "reconcile": ("spark_reconcile", "reconcile_command"),
}


class Jobs(click.Group):
    """Loads a job by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all jobs."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the module of a job."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"cascade.cli.{module}"), name)
        return command


@click.group(cls=Jobs)
def spark() -> None:
    """Compare, archive and check whole queues, on Spark.

    Needs the extra: pip install 'cascade-queue[spark]'.  Spark runs in this process, on all cores, unless --master
    or --remote names a cluster.  When it fails, its own trace is in a log file that the message names.

    \b
    cascade spark archive orders /backup/events -f orders.yaml
    cascade spark reconcile --set orders -f orders.yaml
    cascade spark backfill orders --archive /backup/events --into orders_2026 -f orders.yaml
    cascade spark audit s -f shops.yaml
    """
