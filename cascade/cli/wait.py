"""cascade wait: see status.py, which knows how to look at nodes."""

from cascade.cli.status import wait

__all__ = ["wait"]
