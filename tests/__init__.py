"""Cascade's tests; `make test` runs them on real PostgreSQL servers."""
