"""Benchmarks: Cascade beside PgQ and beside PostgreSQL's own limits, in one run."""
