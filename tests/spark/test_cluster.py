"""A stand-alone cluster: one master, two workers, everything on loopback."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fixtures.database import Database, eventually
from tests.fixtures.spark import QUICK
from tests.spark.conftest import fill

#: What runs on the driver: it reads while a task dies, writes what it read, and says where its executors found Cascade.
PROGRAM = """
import os, sys
from pathlib import Path
from cascade.spark import session

master, dsn, archive, folder, quick = sys.argv[1:]
conf = {
    "spark.archives": archive + "#job", "spark.pyspark.python": "./job/bin/python", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.local.dir": folder,
    "spark.executor.memory": "512m", "spark.driver.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick,
}
spark = session(master=master, conf=conf)

def dies_once(batches):
    import cascade, pyarrow
    from pyspark import TaskContext
    context = TaskContext.get()
    mark = Path(folder, "died")
    for batch in batches:
        if context.partitionId() == 0 and not mark.exists():
            mark.touch()
            os._exit(1)
        count = batch.num_rows
        told = [pyarrow.array([text] * count) for text in (cascade.__file__, os.getcwd())]
        yield pyarrow.RecordBatch.from_arrays([batch.column("payload"), *told], ["payload", "type", "key"])

events = spark.read.format("cascade").option("dsn", dsn).option("queue", "orders").option("partitions", "4").load()
found = events.mapInArrow(dies_once, "payload string, type string, key string")
found.write.format("cascade").option("dsn", dsn).option("queue", "copies").mode("append").save()
spark.stop()
"""


@contextmanager
def daemon(name: str, *arguments: str, log: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a part of the cluster; it ends with the block."""
    import pyspark

    command = [Path(pyspark.__file__).parent / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def said(log: Path, pattern: str) -> str:
    """Wait until a part of the cluster says something."""
    found = eventually(lambda: re.search(pattern, log.read_text()), within_s=90, every_s=0.1)
    return str(found[1])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A Python with the packages of the extra, but without Cascade, to be sent to the executors."""
    place = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    site = next((place / "lib").glob("python*/site-packages"))
    # Paths named here are searched, but their own .pth files are not read: an editable install is not seen.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return Path(shutil.make_archive(str(tmp_path / "job"), "gztar", place))


@pytest.fixture
def directory(archive: Path, tmp_path: Path) -> Path:
    """Where the driver is started: with the archive unpacked, as its executors have it."""
    place = tmp_path / "driver"
    shutil.unpack_archive(archive, place / "job")
    return place


@pytest.mark.timeout(300)  # six JVMs, on a machine that may have other things to do
def test_a_cluster_reads_and_writes_each_event_once(
    db: Database, queue: str, archive: Path, directory: Path, java: Path, tmp_path: Path
) -> None:
    from cascade.spark.java import home

    fill(db, 400, ticks=8)
    db.queue("copies")
    env = {
        "JAVA_HOME": str(home()),
        "PATH": "/usr/bin:/bin",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }
    with ExitStack() as stack:
        log = tmp_path / "master.log"
        places = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(daemon("master.Master", *places, log=log, env=env))
        master = said(log, r"Starting Spark master at (spark://\S+)")
        logs = [tmp_path / f"worker{n}.log" for n in range(2)]
        for log in logs:
            work = ["--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / log.stem), master]
            stack.enter_context(daemon("worker.Worker", *places, *work, log=log, env=env))
        for log in logs:
            said(log, r"(Successfully registered with master)")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, db.dsn, str(archive), str(tmp_path), QUICK],
            cwd=directory, capture_output=True, text=True, timeout=250,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "died").exists()
    copied = db.rows("select payload::text from queue.copies order by 1")
    assert copied == db.rows("select payload::text from queue.orders order by 1")
    assert len(copied) == 400
    # Both took part, and neither had the package but from the driver.
    assert all("cascade.zip" in row[0] for row in db.rows("select distinct type from queue.copies"))
    assert db.value("select count(distinct key) from queue.copies") == 2
