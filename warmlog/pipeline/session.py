"""The Spark that a job of the command line runs on.

Owns: how it is started, and how functions are run over splits. Must not know: what the jobs do.

1. Workers run the Python that runs the job, not whatever python3 is on their path, unless the user has said otherwise.
2. Within `spark-submit`, master and settings are its own.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from warmlog.pipeline.availability import check_spark
from warmlog.pipeline.planning import Split

DEFAULT_MASTER = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the program it starts

T = TypeVar("T")


@contextmanager
def spark_session(job: str, master: str | None = None) -> Iterator[Any]:
    """A session, stopped at the end. `master`: local[*] by default. Raises PipelineError where Spark cannot run."""
    check_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"warmlog {job}")
    if master is not None or SUBMITTED not in os.environ:
        builder = builder.master(master or DEFAULT_MASTER).config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "ERROR")
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def run_over(session: Any, splits: Sequence[Split], work: Callable[[Split], T]) -> list[T]:
    """What `work` gives for each split, in their order; it runs in the workers, a task a split."""
    if not splits:
        return []
    found: list[T] = session.sparkContext.parallelize(splits, len(splits)).map(work).collect()
    return found
