"""What a job has done, in numbers: counted where the work is, added up where the job ends, told as JSON.

Owns: what is counted, and the report's form. Must not know: Spark, or which job it is.

Python data sources have no metrics of their own in Spark (none up to 4.3): what a worker counts has to come back with
its result. So a task makes a `Measured`, the job adds them up, and `Report` is what people and scripts get.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from warmlog.pipeline.reading import Tally

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Measured:
    """What was done: by a task, or by all of them. Times in seconds of the workers, which work side by side.

    `bytes`: of the batches that were opened, as they are stored. `skipped_batches`: passed by on account of their
    headers; `skipped_bytes`: not even looked at, because the indexes tell that nothing wanted is in them.
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

    def add(self, other: "Measured") -> None:
        """Add what another has done."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def take(self, tally: Tally) -> None:
        """Add what a reader has counted."""
        self.batches += tally.batches
        self.bytes += tally.bytes
        self.skipped_batches += tally.skipped_batches
        self.lost_offsets += tally.lost_offsets
        self.damaged += len(tally.damaged)


def added(parts: Iterable[Measured]) -> Measured:
    """All of them together."""
    whole = Measured()
    for part in parts:
        whole.add(part)
    return whole


class Stopwatch:
    """Adds up how long some calls take. `seconds` so far."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds = 0.0

    def timed(self, act: Callable[P, T]) -> Callable[P, T]:
        """The same function, its time counted, also when it raises."""

        def run(*arguments: P.args, **names: P.kwargs) -> T:
            started = self._clock()
            try:
                return act(*arguments, **names)
            finally:
                self.seconds += self._clock() - started

        return run

    def steps(self, iterator: Iterator[T]) -> Iterator[T]:
        """The same items, the time to make each counted."""
        step = self.timed(iterator.__next__)
        while True:
            try:
                item = step()
            except StopIteration:
                return
            yield item


@dataclass(slots=True, kw_only=True)
class Report:
    """A job's report. `elapsed_s`: by the clock on the wall. `details`: what only this kind of job has to tell."""

    job: str
    started: str
    elapsed_s: float = 0.0
    measured: Measured = field(default_factory=Measured)
    details: dict[str, Any] = field(default_factory=dict)

    def form(self) -> dict[str, Any]:
        """As it stands in a file."""
        rate = round(self.measured.rows / self.elapsed_s) if self.elapsed_s else 0
        times = {name: round(value, 3) for name, value in asdict(self.measured).items() if name.endswith("_s")}
        head = {"job": self.job, "started": self.started, "elapsed_s": round(self.elapsed_s, 3), "rows_per_s": rate}
        return head | asdict(self.measured) | times | self.details

    def write(self, path: Path) -> None:
        """Replace the file at `path`: whoever reads it finds a whole report. Raises OSError."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(self.form(), indent=1) + "\n")
        os.replace(temporary, path)


class Reporter:
    """Makes the report of one job: `report()` as far as it is. `clock` in seconds; `now` for the date."""

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

    def add(self, part: Measured) -> None:
        """A task has done this."""
        self._report.measured.add(part)

    def skipped(self, size: int) -> None:
        """So many bytes were left out by a plan."""
        self._report.measured.skipped_bytes += size

    def tell(self, **details: Any) -> None:
        """What only this kind of job has to tell."""
        self._report.details.update(details)

    def report(self) -> Report:
        """The report, up to now."""
        self._report.elapsed_s = self._clock() - self._began
        return self._report
