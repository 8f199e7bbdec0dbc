"""Run a function over items of work, such as splits: in Spark's workers, or in this process."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar
from uuid import uuid4

from warmlog.inspect.errors import InspectError
from warmlog.pipeline.errors import DataLossError, PipelineError, UnavailableError
from warmlog.pipeline.packing import packed
from warmlog.pipeline.session import call_frozen, check_spark

WATCH_S = 0.2  # interval between checks of Spark's progress

LOCAL_BYTES = 2 << 30  # a single process copies this much in the 5 to 20 s that Spark takes to start
TASKS_PER_CORE = 2  # minimum number of tasks, so that a core that finishes early has another one

Engine: TypeAlias = Literal["auto", "local", "spark"]
S = TypeVar("S")
T = TypeVar("T")
Watch = Callable[[int, int], None]  # called with the number of completed tasks and the number of all tasks


class Runner(Protocol):
    """Runs a function over items of work, and returns the results in order."""

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at a time."""

    def __call__(self, items: Sequence[S], work: Callable[[S], T], size: Callable[[S], int], /) -> list[T]:
        """Call `work` for each item. `size`: returns the bytes an item reads. Raises PipelineError if `work` does."""


def choose_engine(engine: Engine, size: int, *, for_spark: bool) -> tuple[Literal["local", "spark"], str | None]:
    """Choose the engine for a job that reads `size` bytes; return it, and a note if Spark is better but cannot run.

    `for_spark`: a master was named, or spark-submit started the job. Raises PipelineError if Spark is requested but
    cannot run.
    """
    if engine == "local" or (engine == "auto" and not for_spark and size <= LOCAL_BYTES):
        return "local", None
    try:
        check_spark()
    except PipelineError as error:
        if engine == "spark" or for_spark:
            raise
        return "local", f"reading {size >> 20:,} MiB in this process: {error}"
    return "spark", None


class LocalRunner:
    """Runs items of work in this process, one at a time."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch

    @property
    def parallelism(self) -> int:
        """Number of tasks that run at a time: one."""
        return 1

    def __call__(self, items: Sequence[S], work: Callable[[S], T], _size: Callable[[S], int], /) -> list[T]:
        """Call `work` for each item. Raises PipelineError if `work` does."""
        results = []
        for done, item in enumerate(items, start=1):
            results.append(work(item))
            if self._watch is not None:
                self._watch(done, len(items))
        return results


class SparkRunner:
    """Runs items of work in Spark tasks, with small items packed together."""

    def __init__(self, session: Any, watch: Watch | None = None) -> None:
        self.session = session
        self._context = session.sparkContext
        self._watch = watch

    @property
    def parallelism(self) -> int:
        """Number of cores of Spark's executors."""
        count: int = self._context.defaultParallelism
        return count

    def __call__(self, items: Sequence[S], work: Callable[[S], T], size: Callable[[S], int], /) -> list[T]:
        """Call `work` for each item in a worker. Raises PipelineError if `work` does."""
        if not items:
            return []
        packs = packed(items, size, TASKS_PER_CORE * self.parallelism)
        with self._watched(len(packs)), worker_errors():
            tasks = self._context.parallelize(packs, len(packs))
            results: list[T] = tasks.flatMap(partial(call_frozen, work)).collect()
        return results

    @contextmanager
    def _watched(self, task_count: int) -> Iterator[None]:
        if self._watch is None:
            yield
            return
        group, done = f"warmlog-{uuid4().hex[:8]}", threading.Event()
        self._context.setJobGroup(group, "warmlog pipeline")
        watcher = threading.Thread(target=self._report, args=(group, task_count, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _report(self, group: str, task_count: int, done: threading.Event) -> None:
        assert self._watch is not None, "only started with a watch"
        tracker = self._context.statusTracker()
        while not done.wait(WATCH_S):
            stages = [
                tracker.getStageInfo(stage)
                for number in tracker.getJobIdsForGroup(group)
                for stage in getattr(tracker.getJobInfo(number), "stageIds", ())
            ]
            self._watch(sum(info.numCompletedTasks for info in stages if info is not None), task_count)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise pipeline errors from workers with their own type, without Spark's traceback."""
    try:
        yield
    except (PipelineError, InspectError):
        raise
    except Exception as error:
        error_of_worker = worker_error(str(error))
        if error_of_worker is None:
            raise
        raise error_of_worker from error


def worker_error(text: str) -> PipelineError | None:
    """Extract a pipeline error from Spark's traceback of a worker; None for any other error."""
    kinds = {kind.__name__: kind for kind in (UnavailableError, DataLossError)}
    for line in text.splitlines():
        name, colon, message = line.strip().partition(": ")
        if (
            colon
            and name.startswith(("warmlog.pipeline.", "warmlog.inspect."))
            and name.endswith("Error")
            and " " not in name
        ):
            return kinds.get(name.rpartition(".")[2], PipelineError)(message)
    return None
