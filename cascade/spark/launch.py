"""Start Spark so that it just works: Java found, this Python used, loopback only, quiet, the data source known."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import cascade
from cascade.errors import ConfigError
from cascade.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The builder's own type, though all of ours are text.
Settings = dict[str, bool | float | int | str | None]

#: Off in Spark; without it the option `pushdown` of the data source is refused.
PUSHDOWN: Settings = {"spark.sql.python.filterPushdown.enabled": "true"}

#: What a session has unless the caller, or the cluster's spark-defaults.conf, says otherwise.
USUAL: Settings = {
    # Days and hours in reports are the same wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    **PUSHDOWN,
    # A dsn may hold a password: plans and the event log do not show it.
    "spark.sql.redaction.options.regex": "(?i)url|dsn",
}
LOCAL: Settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

LOG4J = """
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
appender.out.type = {kind}
appender.out.name = out
{target}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
# A level that differs from the root's is announced on stderr at every start.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


def session(
    app: str = "cascade",
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    *,
    log: str | Path | None = None,
) -> SparkSession:
    """Return a session with the data source `cascade`; one that is running is used as it is, but for
    settings of `conf` that can still be made.

    `master` is any of Spark's; for a cluster this package is sent to the executors, which need the other packages
    of the extra.  `remote` is the address of a Spark Connect server, sc://host:port, and needs no Java here.  `conf`
    wins over everything.  Spark's own log shows errors only, on stderr; with `log` it goes to that
    file, warnings too.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Spark is not installed", hint="pip install 'cascade-queue[spark]'.") from error
    if remote is not None:
        found = _connect(app, remote, dict(conf or {}))
    elif (running := SparkSession.getActiveSession()) is not None:
        found = running
        for name, value in (PUSHDOWN | dict(conf or {})).items():
            if found.conf.isModifiable(name):
                found.conf.set(name, str(value))
    else:
        found = _start(app, master, dict(conf or {}), log)
    register(found)
    return found


def _start(app: str, master: str, conf: Settings, log: str | Path | None) -> SparkSession:
    from pyspark.sql import SparkSession

    is_local = master.startswith("local")
    _prepare_environment(is_local=is_local, python=conf.get("spark.pyspark.python"))
    settings = USUAL | (LOCAL if is_local else {}) | conf
    settings[JAVA_OPTIONS] = f"{_logging(log)} {settings.get(JAVA_OPTIONS, '')}".strip()
    found = SparkSession.builder.appName(app).master(master).config(map=settings).getOrCreate()
    if not is_local:
        found.sparkContext.addPyFile(str(package()))
    return found


def _connect(app: str, remote: str, conf: Settings) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        found = SparkSession.builder.appName(app).remote(remote).config(map=_shared() | conf).getOrCreate()
    except ImportError as error:
        raise ConfigError(
            "Spark Connect needs packages that are not installed", hint="pip install 'pyspark[connect]'."
        ) from error
    found.addArtifacts(str(package()), pyfile=True)
    return found


def register(spark: SparkSession) -> None:
    """Make the data source known to a session of your own."""
    from cascade.spark.source import CascadeSource

    spark.dataSource.register(CascadeSource)


def package() -> Path:
    """Return this package as a zip file, to be sent to executors; it is removed when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="cascade-")
    _KEPT.append(folder)
    top, made = Path(cascade.__file__).parent, Path(folder.name, "cascade.zip")
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for where, folders, files in os.walk(top, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                path = Path(where, name)
                archive.write(path, Path("cascade", path.relative_to(top)))
    return made


#: Directories that live as long as the program.
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _shared() -> Settings:
    """Return the settings that a Connect client may make: those of queries."""
    return {name: value for name, value in USUAL.items() if name.startswith("spark.sql.")}


def _prepare_environment(*, is_local: bool, python: object) -> None:
    """Set what Spark reads from the environment when its JVM starts, unless it is set."""
    os.environ["JAVA_HOME"] = str(java.home())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if python is not None:
        # Only spark-submit minds the setting.
        os.environ["PYSPARK_PYTHON"] = str(python)
    chosen = os.environ.get("PYSPARK_PYTHON", "python3")
    if not is_local and shutil.which(chosen) is None:
        raise ConfigError(
            f"there is no {chosen} here, with which executors are to run",
            hint="Spark plans reads on the driver with it, too: unpack spark.archives in the working directory.",
        )
    if is_local:
        # Workers would otherwise be whatever `python3` is first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _logging(log: str | Path | None) -> str:
    """Return the Java option that keeps Spark's log quiet, or in a file."""
    folder = tempfile.TemporaryDirectory(prefix="cascade-")
    _KEPT.append(folder)
    path = Path(folder.name, "log4j2.properties")
    if log is None:
        text = LOG4J.format(level="error", kind="Console", target="appender.out.target = SYSTEM_ERR")
    else:
        text = LOG4J.format(level="warn", kind="File", target=f"appender.out.fileName = {Path(log).absolute()}")
    path.write_text(text)
    return f"-Dlog4j2.configurationFile=file:{path}"
