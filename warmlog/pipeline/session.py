"""The Spark that a job of the command line runs on.

Owns: how it is started, how functions are run over splits, and what becomes of their errors. Must not know: what the
jobs do.

1. Workers run the Python that runs the job, not whatever python3 is on their path, unless the user has said otherwise.
2. Within `spark-submit`, master and settings are its own.
3. What a worker says is wrong is raised here as what it was there: a PipelineError, not the trace that Spark makes.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from warmlog.pipeline.availability import check_spark
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.worker import settled

DEFAULT_MASTER = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the program it starts
WATCH_S = 0.2  # between two looks at how far a job is

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def spark_session(job: str, master: str | None = None) -> Iterator[Any]:
    """A session, stopped at the end. `master`: local[*] by default. Raises PipelineError where Spark cannot run."""
    check_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"warmlog {job}")
    if master is not None or SUBMITTED not in os.environ:
        builder = _quiet(builder.master(master or DEFAULT_MASTER))
        if (master or DEFAULT_MASTER).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else need reach it
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _quiet(builder: Any) -> Any:
    """Without a page for browsers, progress bars or warnings: people look at the job."""
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log}")


class SparkRunner:
    """Runs a function over splits in Spark's workers, a task a split.

    `watch` is told now and then how many tasks are done, and of how many.
    """

    def __init__(self, session: Any, watch: Callable[[int, int], None] | None = None) -> None:
        self.session = session
        self._context = session.sparkContext
        self._watch = watch

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        count: int = self._context.defaultParallelism
        return count

    def __call__(self, splits: Sequence[S], work: Callable[[S], T], /) -> list[T]:
        """The results in order. Raises PipelineError where the function did."""
        if not splits:
            return []
        with self._watched(len(splits)), worker_errors():
            tasks = self._context.parallelize(splits, len(splits))
            found: list[T] = tasks.map(partial(settled, work)).collect()
        return found

    @contextmanager
    def _watched(self, task_count: int) -> Iterator[None]:
        if self._watch is None:
            yield
            return
        group, done = f"warmlog-{uuid4().hex[:8]}", threading.Event()
        self._context.setJobGroup(group, "warmlog pipeline")
        watcher = threading.Thread(target=self._look, args=(group, task_count, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _look(self, group: str, task_count: int, done: threading.Event) -> None:
        """Until it is done, tell how far it is."""
        assert self._watch is not None, "else nobody looks"
        tracker = self._context.statusTracker()
        while not done.wait(WATCH_S):
            stages = [
                tracker.getStageInfo(stage)
                for number in tracker.getJobIdsForGroup(group)
                for stage in getattr(tracker.getJobInfo(number), "stageIds", ())
            ]
            self._watch(sum(one.numCompletedTasks for one in stages if one is not None), task_count)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Around what runs in workers: what they raise of ours is raised as it was. Raises PipelineError."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        told = worker_error(str(error))
        if told is None:
            raise
        raise told from error


def worker_error(text: str) -> PipelineError | None:
    """A pipeline's error in a worker, out of the trace that Spark makes of it; None for any other error."""
    from warmlog.pipeline.wire import LostError  # who reads directories does without

    kinds = {"LostError": LostError, "DataLossError": DataLossError}
    for line in text.splitlines():
        name, colon, said = line.strip().partition(": ")
        if colon and name.startswith("warmlog.pipeline.") and name.endswith("Error") and " " not in name:
            return kinds.get(name.rpartition(".")[2], PipelineError)(said)
    return None
