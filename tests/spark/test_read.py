"""Reading a range of ticks into a data frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.database import Database
from tests.spark.conftest import fill, payloads, rotate_past

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cascade.spark.source.read import PushingReader

#: Characters of every width, what JSON escapes, and what only looks like SQL or COPY.
ODD = ["", "é", "日本語", "🐘", "'", '"', "\\", "\t\n\r", "\\N", "\\.", "%s", "{}", "\u2028", "null"]


def reader(db: Database, *names: str, partitions: int = 1) -> PushingReader:
    """Return what reads some columns of a queue, as Spark's tasks do."""
    from cascade.spark.source.columns import EVENT
    from cascade.spark.source.options import parse
    from cascade.spark.source.read import PushingReader

    options = {"dsn": db.dsn, "queue": "orders", "partitions": str(partitions)}
    return PushingReader(parse(options), type(EVENT)([EVENT[name] for name in names or EVENT.names]))


def read(db: Database, *names: str, partitions: int = 1) -> list[dict[str, Any]]:
    """Return all events."""
    made = reader(db, *names, partitions=partitions)
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


def load(spark: SparkSession, db: Database, queue: str = "orders", **options: Any) -> DataFrame:
    loader = spark.read.format("cascade").option("dsn", db.dsn).option("queue", queue)
    for name, value in options.items():
        loader = loader.option({"start": "from"}.get(name, name), str(value))
    return loader.load()


def test_every_column_arrives_as_it_was_written(spark: SparkSession, db: Database, queue: str) -> None:
    assert load(spark, db).collect() == []
    assert load(spark, db).schema.simpleString() == (
        "struct<id:bigint,time:timestamp,txid:bigint,tick:bigint,type:string,key:string,payload:string,headers:string,"
        "origin:string,origin_id:bigint>"
    )
    insert = sql.SQL("insert into {} (type, key, payload, headers) values (%s, %s, %s, %s)").format(
        sql.Identifier("queue", queue)
    )
    huge = json.dumps("ü" * 2_000_000)
    written = [
        *((text, text, json.dumps(text, ensure_ascii=False), json.dumps({text: text})) for text in ODD),
        (None, None, "null", None),
        ("half", None, r'"\ud800"', "null"),
        ("spaces", None, '{ "a" :\n1.10,"a":2 }', None),
        ("huge", None, huge, None),
    ]
    for row in written[:1]:
        db.main.execute(insert, row)
    db.tick(queue)
    assert [row.payload for row in load(spark, db).collect()] == ['""']
    for row in written[1:]:
        db.main.execute(insert, row)
    tick = db.tick(queue)

    # Combined queues say where an event comes from; control events are not shown.
    db.main.execute(
        "insert into queue.orders (payload, origin, origin_id) values ('1', 'eu', 7), ('2', '.cascade', null)"
    )
    last = db.tick(queue)
    rows = load(spark, db, partitions=3).orderBy("id").collect()

    assert [(row.type, row.key, row.payload, row.headers) for row in rows[:-1]] == written
    assert [(row.origin, row.origin_id, row.tick) for row in rows[-2:]] == [(None, None, tick), ("eu", 7, last)]
    stored = db.rows("select id, time, txid from queue.orders where origin is distinct from '.cascade' order by id")
    # Spark gives times in the machine's zone, without saying so.
    assert [(row.id, row.time.astimezone(UTC), row.txid) for row in rows] == stored


def test_ranges_meet_without_gap_or_overlap(spark: SparkSession, db: Database, queue: str) -> None:
    made = fill(db, 60, ticks=6)
    times = dict(db.rows("select tick_id, time from cascade.ticks"))
    found = load(spark, db, partitions=4)
    assert found.rdd.getNumPartitions() == 4
    sizes = [len(part) for part in found.rdd.glom().collect()]
    assert sum(sizes) == 60 and max(sizes) <= 20
    middle = times[made[2]].astimezone(UTC).isoformat()
    before, after = load(spark, db, to=middle).collect(), load(spark, db, start=middle).collect()
    assert len(before) == len(after) == 30
    assert payloads(before + after) == payloads(found.collect())
    assert {row.tick for row in after} == set(made[3:])
    assert len(load(spark, db, start=made[0], to=made[1]).collect()) == 10
    assert load(spark, db, start=made[1], to=made[1]).collect() == []


def test_an_event_has_the_tick_that_ends_its_batch(db: Database, queue: str, java: object) -> None:
    """Transactions that stay open over ticks, and commit in another order than they began."""
    sessions = [db.connect(autocommit=False) for _ in range(3)]
    for n, conn in enumerate(sessions):
        db.insert(n, queue=queue, conn=conn)
    for conn in (sessions[1], sessions[2], sessions[0]):
        db.insert("meanwhile", queue=queue)
        db.tick(queue)
        conn.commit()
        db.tick(queue)
        db.tick(queue)
    wanted = {}
    db.value("select cascade.subscribe('orders', 'c', 'earliest')")
    while batch := db.next(queue=queue):
        for (event,) in db.rows("select id from cascade.batch_events(%s)", batch[0]):
            wanted[event] = batch[2]
        db.finish(batch[0])
    assert len(wanted) == 6 and len(set(wanted.values())) >= 4
    for parts in (1, 3):
        found = read(db, "id", "tick", partitions=parts)
        assert {row["id"]: row["tick"] for row in found} == wanted


def test_the_database_decides_what_it_can(db: Database, queue: str, java: object) -> None:
    from pyspark.sql import datasource as source

    made = fill(db, 42, ticks=3)
    db.main.execute("insert into queue.orders (type, payload) values (null, '0'), ('o''clock', '1')")
    last = db.tick(queue)

    def ask(*filters: source.Filter) -> tuple[list[dict[str, Any]], int]:
        """Return the rows that are read, and how many conditions are left to Spark."""
        made = reader(db, partitions=2)
        left = len(list(made.pushFilters(list(filters))))
        return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()], left

    everything = read(db)
    assert len(everything) == 44
    moment = everything[19]["time"]
    kind, key, time, tick, number = (("type",), ("key",), ("time",), ("tick",), ("id",))
    cases: list[tuple[source.Filter, Callable[[dict[str, Any]], bool]]] = [
        (source.EqualTo(kind, "type.1"), lambda row: row["type"] == "type.1"),
        (source.Not(source.EqualTo(kind, "type.1")), lambda row: row["type"] not in ("type.1", None)),
        (source.EqualNullSafe(kind, "o'clock"), lambda row: row["type"] == "o'clock"),
        (source.Not(source.EqualNullSafe(kind, "o'clock")), lambda row: row["type"] != "o'clock"),
        (source.IsNull(key), lambda row: row["key"] is None),
        (source.IsNotNull(key), lambda row: row["key"] is not None),
        (source.In(key, ("key1", "key2")), lambda row: row["key"] in ("key1", "key2")),
        (source.StringStartsWith(kind, "type."), lambda row: (row["type"] or "").startswith("type.")),
        (source.GreaterThan(number, 40), lambda row: row["id"] > 40),
        (source.Not(source.LessThanOrEqual(number, 40)), lambda row: row["id"] > 40),
        (source.GreaterThanOrEqual(time, moment), lambda row: row["time"] >= moment),
        (source.LessThan(time, moment), lambda row: row["time"] < moment),
        (source.EqualTo(time, moment), lambda row: row["time"] == moment),
        (source.GreaterThan(tick, made[1]), lambda row: row["tick"] > made[1]),
        (source.LessThanOrEqual(tick, made[1]), lambda row: row["tick"] <= made[1]),
        (source.In(tick, (made[0], last)), lambda row: row["tick"] in (made[0], last)),
        (source.Not(source.EqualTo(tick, made[1])), lambda row: row["tick"] != made[1]),
        (source.GreaterThanOrEqual(tick, made[1]), lambda row: row["tick"] >= made[1]),
        (source.LessThan(tick, made[1]), lambda row: row["tick"] < made[1]),
        (source.IsNull(tick), lambda row: False),
    ]
    for condition, is_wanted in cases:
        wanted = [row for row in everything if is_wanted(row)]
        assert ask(condition) == (wanted, 0), condition
        assert 0 <= len(wanted) < len(everything)
    both = ask(source.EqualTo(kind, "type.1"), source.GreaterThan(tick, made[0]))
    assert both == ([row for row in everything if row["type"] == "type.1" and row["tick"] > made[0]], 0)
    # The order of texts, what PostgreSQL cannot hold, and what is inside of a payload are left to Spark.
    for condition in (
        source.GreaterThan(kind, "type.1"),
        source.EqualTo(kind, "\0"),
        source.StringContains(key, "1"),
        source.StringStartsWith(("payload",), "{"),
        source.EqualTo(("payload", "n"), 1),
        source.EqualTo(tick, None),
    ):
        assert ask(condition) == (everything, 1), condition


def test_what_spark_asks_is_asked_of_the_database(spark: SparkSession, db: Database, queue: str) -> None:
    fill(db, 42, ticks=3)
    moment = db.value("select time from queue.orders where id = 20")
    # Written in the session's time zone, which is not the machine's.
    shown = moment.astimezone(ZoneInfo("Asia/Kathmandu")).replace(tzinfo=None)
    found = load(spark, db, pushdown="true").where(
        f"type = 'type.1' and key like 'key1%' and time >= '{shown}' and tick > 0 and id <> 1"
    )
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    assert "Filter" not in plan and "RelationV2" in plan
    wanted = "select id from queue.orders where type = 'type.1' and key = 'key1' and time >= %s and id <> 1 order by id"
    assert sorted(row.id for row in found.collect()) == [row[0] for row in db.rows(wanted, moment)] != []
    rest = load(spark, db, pushdown="true").where("payload like '%\"n\" : 7,%' and type > 'type'")
    assert "Filter" in rest._jdf.queryExecution().optimizedPlan().toString()
    assert [row.id for row in rest.collect()] == [7]


def test_a_frame_may_be_used_again_with_other_conditions(spark: SparkSession, db: Database, queue: str) -> None:
    """Spark plans a frame's reading once: whatever one query says must not narrow the next."""
    fill(db, 70, ticks=2)
    frame = load(spark, db)
    assert frame.where("key = 'key1'").count() == 10
    assert frame.count() == 70
    assert frame.where("key = 'key2'").union(frame.where("key = 'key3' and id > 35")).count() == 15


def test_a_payload_can_be_parsed_on_the_way(spark: SparkSession, db: Database, queue: str) -> None:
    for text in (
        '{"id": 7, "total": 1.10, "at": "2026-11-19T10:00:00+02:00", "tags": ["a", null, 3],'
        ' "by": {"name": "é", "vip": true},'
        ' "more": {"x": 1}, "day": "2026-11-19", "any": [1, "two"]}',
        '{"id": "7", "total": "much", "at": 5, "tags": "a", "by": [], "more": [], "day": "soon"}',
        '{"id": 99999999999999999999, "total": 12345678901234567890.5, "by": {"name": "\\ud800", "vip": 1}}',
        "[1]",
        "null",
    ):
        db.main.execute("insert into queue.orders (payload) values (%s)", (text,))
    db.tick(queue)
    schema = (
        "id bigint, total decimal(10,2), at timestamp, tags array<string>, by struct<name: string, vip: boolean>,"
        " more map<string, double>, day date, any variant"
    )
    rows = [row.payload for row in load(spark, db, payload=schema).orderBy("id").collect()]
    first = rows[0]
    assert (first.id, first.total, first.tags, first.by, first.more) == (
        7,
        Decimal("1.10"),
        ["a", None, "3"],
        ("é", True),
        {"x": 1.0},
    )
    assert first["at"].astimezone(UTC) == datetime(2026, 11, 19, 8, tzinfo=UTC)
    assert (str(first.day), first.any.toPython()) == ("2026-11-19", [1, "two"])
    second = rows[1].asDict(recursive=True)
    assert second.pop("any").toPython() is None
    assert set(map(str, second.values())) == {"None"}
    assert (rows[2].id, rows[2].total, rows[2].by) == (None, None, ("\ufffd", None))
    assert rows[3:] == [None, None]

    found = load(spark, db, payload="variant").where("id <= 2 or id >= 4").orderBy("id")
    totals = found.selectExpr("try_variant_get(payload, '$.total', 'decimal(10,2)') as total").collect()
    assert [row.total for row in totals] == [Decimal("1.10"), None, None, None]


def test_a_task_that_is_run_again_reads_the_same_rows(db: Database, queue: str, java: object) -> None:
    """The reading is cut in the middle, from outside; Spark tries again only on a cluster, so here we do."""
    from cascade.errors import TransientError

    fill(db, 20_000, ticks=4, size=1000)
    found = reader(db, "id", "payload", partitions=2)
    part, other = found.partitions()
    first = found.read(part)
    begun = next(first).num_rows
    assert 0 < begun < 10_000
    db.admin().execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and query ilike 'copy%'"
    )
    with pytest.raises(TransientError):
        list(first)
    fill(db, 1000)  # What comes later is no part of it.
    again = [batch["id"].to_pylist() for batch in found.read(part)]
    rest = [batch["id"].to_pylist() for batch in found.read(other)]
    assert sorted(n for batch in again + rest for n in batch) == list(range(1, 20_001))
    assert list(map(len, again)) == [batch.num_rows for batch in found.read(part)]


def test_events_that_rotation_took_are_missed_aloud(
    spark: SparkSession, db: Database, queue: str, java: object
) -> None:
    from cascade.errors import ExpiredError

    made = fill(db, 20_000, ticks=4, size=1000)
    found = reader(db, "id", "payload")
    (part,) = found.partitions()
    reading = found.read(part)
    next(reading)
    # A register moves before anything is emptied, so the last look notices, even where the lock let the rows be read.
    db.admin().execute("select setval('cascade_internal.first_1', 1)")
    with pytest.raises(ExpiredError, match='queue "orders" no longer holds all events after tick'):
        list(reading)
    db.admin().execute("select setval('cascade_internal.first_1', 0)")
    rotate_past(db, made[-1])
    with pytest.raises(Exception, match=r"ExpiredError(.|\n)*has no tick"):
        load(spark, db, start=made[0]).collect()
    assert load(spark, db).collect() == []


def test_what_is_wrong_is_said_in_words(spark: SparkSession, db: Database, queue: str) -> None:
    role = sql.Identifier(f"nobody_{db.name}")
    db.admin().execute(sql.SQL("create role {} login password 'test'").format(role))
    try:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"queue": "nope"}, 'there is no queue "nope"'),
            ({"queue": "no queue's"}, "cannot be used"),
            ({"partitons": 3}, "no option partitons(.|\n)*Did you mean partitions"),
            ({"partitions": "many"}, "option partitions is 'many'"),
            ({"payload": "no type"}, "(?i)unsupported_datatype|parse_syntax"),
            ({"start": "soon"}, "is no place in queue"),
            ({"start": "latest", "to": "earliest"}, "ends before it begins") if fill(db, 3) else ({}, ""),
            ({"dsn": "host=127.0.0.1 port=1 password=hush"}, "port 1 failed"),
            ({"dsn": "nonsense hush"}, "the connection string cannot be read"),
            ({"dsn": db.backend.dsn(db.name, f"nobody_{db.name}")}, "permission denied"),
            ({"database": "x"}, "both dsn and topology were given"),
        ]
        for options, fact in cases:
            with pytest.raises(Exception, match=fact) as caught:
                load(spark, db, **{"queue": queue, **options}).collect()
            assert "hush" not in str(caught.value)
        with pytest.raises(Exception, match="a queue has no column price"):
            spark.read.format("cascade").option("dsn", db.dsn).option("queue", queue).schema(
                "price int"
            ).load().collect()
    finally:
        db.admin().execute(sql.SQL("drop role {}").format(role))


def test_a_password_is_shown_nowhere(spark: SparkSession, db: Database, queue: str, tmp_path: Path) -> None:
    """Not in plans, wherever the database is known from."""
    fill(db, 3)
    topology = tmp_path / "shop.yaml"
    secret = conninfo_to_dict(db.dsn).pop("password")
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"*:*:*:*:{secret}\n")
    passwords.chmod(0o600)
    dsn = make_conninfo(**{**conninfo_to_dict(db.dsn), "password": None, "passfile": str(passwords)})
    topology.write_text(
        f"version: 1\ndatabases: {{here: {{dsn: {json.dumps(dsn)}}}}}\n"
        "sets: {orders: {nodes: {s1: {database: here, role: root}}}}\n"
    )
    found = (
        spark.read.format("cascade").option("topology", str(topology)).option("database", "here").option("queue", queue)
    )
    assert found.load().count() == 3
    plain = load(spark, db, start=1).where("type = 'x'")
    for mode in ("SIMPLE", "EXTENDED", "CODEGEN", "COST", "FORMATTED"):
        text = plain._jdf.queryExecution().explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode)
        )
        assert f"password={secret}" not in text and db.dsn not in text
        assert "Scan" in text or mode == "CODEGEN"
    with pytest.raises(Exception, match="has no database there"):
        found.option("database", "there").load()


def test_times_of_the_far_past_and_future_pass(spark: SparkSession, db: Database, queue: str) -> None:
    db.main.execute("insert into queue.orders (time, payload) values ('1582-10-04 UTC', '1'), ('9999-12-30 UTC', '2')")
    db.tick(queue)
    found = load(spark, db).selectExpr("unix_micros(time) as at").collect()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    stored = [row[0] for row in db.rows("select time from queue.orders order by id")]
    assert [row["at"] for row in found] == [(time - epoch) // timedelta(microseconds=1) for time in stored]
