"""Check whether Spark can run here, and start sessions for jobs of the command line."""

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from warmlog.pipeline.errors import PipelineError

S = TypeVar("S")
T = TypeVar("T")

LIBRARIES = ("pyspark", "pyarrow")
OLDEST_JAVA = 17  # the oldest version that Spark 4 supports
JAVA_TIMEOUT_S = 30.0
DEFAULT_MASTER = "local[*]"
PYTHON = "PYSPARK_PYTHON"  # variable that names the Python of workers
ADAPTIVE = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"
FIRST_WITH_ADAPTIVE_STREAMS = (4, 1)
CONNECT = "sc://"  # begins addresses of Spark Connect
REMOTE = "SPARK_REMOTE"  # variable with such an address
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the program it starts

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_spark() -> None:
    """Raise PipelineError if Spark cannot run here."""
    check_libraries()
    check_java()


def check_libraries(*names: str, extra: str = "spark") -> None:
    """Raise PipelineError if any of these libraries (pyspark and pyarrow by default) is not installed."""
    missing = [name for name in names or LIBRARIES if find_spec(name) is None]
    if missing:
        raise PipelineError(f"the pipeline needs {' and '.join(missing)}: install warmlog with its extra `{extra}`")


def check_java() -> None:
    """Raise PipelineError if neither $JAVA_HOME nor the path has a Java that Spark runs on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    needs = f"Spark needs Java {OLDEST_JAVA} or newer"
    if java is None:
        where = f"JAVA_HOME, {home}, has no bin/java" if home else "no `java` on the path, and JAVA_HOME is not set"
        raise PipelineError(f"{needs}: {where}")
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise PipelineError(f"{needs}: {java} is {f'version {version}' if version else 'of unknown version'}")


def java_version(java: str) -> int:
    """Return the major version that `java -version` prints, or 0."""
    try:
        printed = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(printed)
    return int(match[1]) if match else 0


@contextmanager
def spark_session(job: str, master: str | None = None) -> Iterator[Any]:
    """Start a session, and stop it at the end. Raises PipelineError if Spark cannot run.

    Workers run this Python unless PYSPARK_PYTHON names another. Under spark-submit, its master and settings apply.
    """
    if (master or os.environ.get(REMOTE, "")).startswith(CONNECT):
        raise PipelineError(
            "jobs do not run through Spark Connect, which has no RDDs: name a master of Spark, such as spark://host:7077,"
            f" or run them by spark-submit (without {REMOTE})"
        )
    check_spark()
    os.environ.setdefault(PYTHON, sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"warmlog {job}")
    if master is not None or SUBMITTED not in os.environ:
        builder = _quiet(builder.master(master or DEFAULT_MASTER))
        if (master or DEFAULT_MASTER).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def use_this_python() -> None:
    """Make the workers of a local master run this Python, unless the user has set PYSPARK_PYTHON.

    Otherwise they run the `python3` on the path, which, if this virtual environment is not activated, has neither
    pyspark nor warmlog. Outside the process of a driver this does nothing.
    """
    try:
        from pyspark import SparkContext
    except ImportError:  # pyspark-client, which has Spark Connect only
        return
    context = SparkContext._active_spark_context  # noqa: SLF001 - no public call returns it without creating one
    if context is not None and PYTHON not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def pin_stream_partitions() -> None:
    """Turn off adaptive execution of stateless streams in the active session, unless the user has chosen.

    It is on by default in versions of Spark that have it, and divides the rows of a micro-batch by their sizes, so a
    repeated micro-batch may have different tasks. The sink recognizes stored rows by the task that stored them.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession() if has_adaptive_streams() else None
    if session is not None and ADAPTIVE_STREAMS not in session.conf.getAll:
        session.conf.set(ADAPTIVE_STREAMS, "false")


def has_adaptive_streams() -> bool:
    """Whether this version of Spark has adaptive execution of stateless streams."""
    import pyspark

    return tuple(map(int, pyspark.__version__.split(".")[:2])) >= FIRST_WITH_ADAPTIVE_STREAMS


def defines_pipeline() -> bool:
    """Whether `spark-pipelines` is loading a file of definitions in this thread."""
    module = sys.modules.get("pyspark.pipelines.graph_element_registry")  # needs more libraries than the extra has
    if module is None:
        return False
    try:
        module.get_active_graph_element_registry()
    except RuntimeError:  # PySparkRuntimeError: no file of definitions is being loaded
        return False
    return True


def _quiet(builder: Any) -> Any:
    """Turn off Spark's web UI, progress bars and warnings; the job reports its own progress."""
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log}")


@cache
def freeze_imports() -> None:
    """Exclude everything this worker has imported from garbage collection; later calls do nothing.

    Spark reuses workers, and collects garbage after every task. A full collection with the imports of Spark, Arrow and
    warmlog takes 35 ms, longer than counting a gigabyte of records; with frozen imports it takes 2 µs.
    """
    gc.freeze()


def call_frozen(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Call a function for each item in a worker after freezing its imports."""
    freeze_imports()
    return [work(item) for item in items]
