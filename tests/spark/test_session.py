"""Starting Spark so that it just works."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

import cascade.spark
from cascade.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_python_on_loopback_and_quietly(spark: SparkSession) -> None:
    from cascade.spark import session

    def where(_: object) -> tuple[str, str]:
        import os
        import sys

        return sys.executable, os.environ["SPARK_LOCAL_IP"]

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [(sys.executable, "127.0.0.1")]
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    # What is asked for anew is the session that runs, with the settings that can still be made.
    again = session(master="local[7]", conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "9g"})
    assert again is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kathmandu"
    assert spark.conf.get("spark.driver.memory") == "1g"
    assert again.sparkContext.master == "local[2,3]"


def test_the_package_travels_as_one_file() -> None:
    from cascade.spark.launch import package

    with zipfile.ZipFile(package()) as archive:
        names = set(archive.namelist())
    assert {"cascade/__init__.py", "cascade/spark/source/rows.py", "cascade/topology/parse.py"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from cascade.spark.launch import session

    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match="Spark is not installed"):
        session()


def test_the_package_loads_no_spark_until_it_is_used() -> None:
    code = (
        "import sys, cascade, cascade.spark; cascade.spark.session; import cascade.spark.ranges\n"
        "assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_takes_the_place_of_a_name_of_the_package() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cascade.spark.__path__)}
    assert not modules & set(cascade.spark.__all__)
