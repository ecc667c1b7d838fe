"""The data source `cascade`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class CascadeSource(DataSource):
    """A queue, for Spark."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in format(...)."""
        return "cascade"
