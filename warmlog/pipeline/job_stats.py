"""Statistics of a job: counted by tasks, summed by the job, reported as JSON.

Spark (up to 4.3) has no metrics for Python data sources, so workers return their counts with their results.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from warmlog.pipeline.source.reading import Tally

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class JobStats:
    """Counts of a task, or of all tasks of a job. Times are seconds of workers, which run in parallel.

    `bytes`: stored size of the opened batches. `skipped_batches`: batches skipped by their headers. `skipped_bytes`:
    bytes not read thanks to the indexes. `damaged`: number of damaged batches.
    """

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    skipped_batches: int = 0
    skipped_bytes: int = 0
    lost_offsets: int = 0
    damaged: int = 0
    tasks: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    write_s: float = 0.0

    def add(self, other: "JobStats") -> None:
        """Add the counts of another task."""
        for counter in fields(self):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))

    def add_tally(self, tally: Tally) -> None:
        """Add the counts of a reader."""
        self.batches += tally.batches
        self.bytes += tally.bytes
        self.skipped_batches += tally.skipped_batches
        self.lost_offsets += tally.lost_offsets
        self.damaged += len(tally.damaged)


def added(parts: Iterable[JobStats]) -> JobStats:
    """Return the sum of the statistics of all parts."""
    whole = JobStats()
    for part in parts:
        whole.add(part)
    return whole


class Stopwatch:
    """Measures the total duration of calls in `seconds`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds = 0.0

    def timed(self, act: Callable[P, T]) -> Callable[P, T]:
        """Return a function that calls `act` and adds its duration, even if it raises."""

        def run(*arguments: P.args, **names: P.kwargs) -> T:
            started = self._clock()
            try:
                return act(*arguments, **names)
            finally:
                self.seconds += self._clock() - started

        return run

    def steps(self, iterator: Iterator[T]) -> Iterator[T]:
        """Yield the items of an iterator, and time the production of each."""
        step = self.timed(iterator.__next__)
        while True:
            try:
                item = step()
            except StopIteration:
                return
            yield item


@dataclass(slots=True, kw_only=True)
class Report:
    """A job's report. `elapsed_s`: wall-clock time. `details`: values specific to the kind of job."""

    job: str
    started: str
    elapsed_s: float = 0.0
    stats: JobStats = field(default_factory=JobStats)
    details: dict[str, Any] = field(default_factory=dict)

    def form(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        rate = round(self.stats.rows / self.elapsed_s) if self.elapsed_s else 0
        times = {name: round(value, 3) for name, value in asdict(self.stats).items() if name.endswith("_s")}
        head = {"job": self.job, "started": self.started, "elapsed_s": round(self.elapsed_s, 3), "rows_per_s": rate}
        return head | asdict(self.stats) | times | self.details

    def write(self, path: Path) -> None:
        """Replace the file at `path` atomically. Raises OSError."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(self.form(), indent=1) + "\n")
        os.replace(temporary, path)


class Reporter:
    """Collects the report of one job. `clock`: returns seconds. `now`: returns the date."""

    def __init__(
        self,
        job: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._report = Report(job=job, started=now().isoformat(timespec="seconds").replace("+00:00", "Z"))

    def add(self, part: JobStats) -> None:
        """Add the counts of a task."""
        self._report.stats.add(part)

    def add_skipped_bytes(self, size: int) -> None:
        """Add bytes that a plan skipped thanks to the indexes."""
        self._report.stats.skipped_bytes += size

    def set_details(self, **details: Any) -> None:
        """Set values specific to this kind of job."""
        self._report.details.update(details)

    def report(self) -> Report:
        """Return the report so far."""
        self._report.elapsed_s = self._clock() - self._began
        return self._report
