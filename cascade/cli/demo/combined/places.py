"""Where four shops and their headquarters are: four servers, the first with the databases of all shops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from cascade.cli.demo.places import Places, cluster, create_set, prepare
from cascade.dev import Server

SET = "s"
PARTS = ("a", "b", "c", "d")
#: The roots of the parts, and the carriers of the combined set.
ROOTS = ("a1", "b1", "c1", "d1")
CARRIERS = ("s1", "s2", "s3")
SHOPS = "shops"
FILE = """\
# Four shops, each with a queue of its own, and at headquarters one queue that has the events of all.
version: 1
databases:
  a1: {{dsn: {a1}}}
  b1: {{dsn: {b1}}}
  c1: {{dsn: {c1}}}
  d1: {{dsn: {d1}}}
  s1: {{dsn: {s1}}}
  s2: {{dsn: {s2}}}
  s3: {{dsn: {s3}}}
sets:
  a: {{nodes: {{a1: {{database: a1, role: root}}}}}}        # Amsterdam
  b: {{nodes: {{b1: {{database: b1, role: root}}}}}}        # Berlin
  c: {{nodes: {{c1: {{database: c1, role: root}}}}}}        # Chicago
  d: {{nodes: {{d1: {{database: d1, role: root}}}}}}        # Dublin
  s:
    combines: [a, b, c, d]
    nodes:
      s1: {{database: s1, role: combined-root}}           # merges the four
      s2: {{database: s2, role: branch, provider: s1}}    # follows them, and can take over
      s3: {{database: s3, role: branch, provider: s1}}
"""
HEADQUARTERS: LiteralString = """
    create schema hq;
    create table hq.handled (n bigserial, origin text, origin_id bigint, primary key (origin, origin_id));
"""


@contextmanager
def places(directory: Path | None) -> Iterator[Places]:
    """Run the servers, write the topology file, and make the sets; temporary servers are gone afterwards."""
    with cluster(directory, (SHOPS, *CARRIERS)) as servers:
        dsns = {name: servers[name].dsn() for name in CARRIERS}
        for name in ROOTS:
            create_database(servers[SHOPS], name)
            dsns[name] = servers[SHOPS].dsn(dbname=name)
        found = Places(cluster=servers, file=servers.dir / "shops.yaml", set=SET)
        found.file.write_text(FILE.format(**{name: json.dumps(dsn) for name, dsn in dsns.items()}))
        for name in ROOTS:
            prepare(found, name)
        for name in CARRIERS:
            prepare(found, name, HEADQUARTERS)
        for name in (*PARTS, SET):
            create_set(found, name)
        yield found


def create_database(server: Server, name: str) -> None:
    """Make a database beside others, unless it is there."""
    with psycopg.connect(server.admin_dsn, autocommit=True) as conn:
        if conn.execute("select from pg_database where datname = %s", (name,)).fetchone() is None:
            conn.execute(sql.SQL("create database {} owner cascade").format(sql.Identifier(name)))
