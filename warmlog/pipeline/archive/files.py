"""Write the records of a split as Parquet files: one task of an archive job.

1. Files are written in the run's directory under names that no other task uses, and flushed when they are complete.
2. Memory is bounded by `OPEN_BYTES` and one Arrow batch, regardless of the number of open files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from warmlog.pipeline.archive.store import StagedFile
from warmlog.pipeline.copying.parquet import ParquetFile, sync
from warmlog.pipeline.job_stats import JobStats, Stopwatch
from warmlog.pipeline.source.input import read_batches
from warmlog.pipeline.source.plan import AnySplit, first_offset_of
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.records.arrow.columns import Wanted
from warmlog.protocol.records.layout import BatchHeader

MAX_OPEN_FILES = 32  # maximum open files of one task; records of more hours at a time indicate wrong clocks
OPEN_BYTES = 64 << 20  # bytes of all row groups that a task buffers
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SUFFIX = ".parquet"

PartitionBy: TypeAlias = Literal["none", "day", "hour"]
_WIDTHS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
_NAMES = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """Rules for writing files. `directory`: the run's directory. `compression`: a codec as named by Parquet."""

    directory: str
    columns: tuple[str, ...]
    partition_by: PartitionBy = "none"
    compression: str = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Result of a task. `stopped_at`: the offset of a damaged batch at which it stopped, or None."""

    topic: str
    partition: int
    files: tuple[StagedFile, ...]
    damaged: tuple[str, ...]
    stopped_at: int | None
    stats: JobStats


def archive_split(rules: FileRules, read_rules: ReadRules, split: AnySplit) -> Written:
    """Write a split's records as files. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches  # imports pyarrow

    reading, decoding, writing = Stopwatch(), Stopwatch(), Stopwatch()
    decoder = ArrowDecoder(split.topic, split.partition, rules.columns)
    reached = first_offset_of(split)

    def take(buffer: memoryview, position: int, header: BatchHeader, wanted: Wanted) -> None:
        nonlocal reached
        decoder.add(buffer, position, header, wanted)
        reached = max(reached, header.next_offset)

    steps, tally = read_batches(split, read_rules, decoding.timed(take))
    stem = f"{split.topic}-{split.partition}-{first_offset_of(split):020d}-{uuid4().hex[:8]}"
    with FileSet(rules, stem) as files:
        write = writing.timed(files.write)
        for batch in record_batches(decoder, reading.steps(steps)):
            write(batch)
        writing.timed(files.finish)()
    stats = JobStats(rows=files.rows, tasks=1, decode_s=decoding.seconds, write_s=writing.seconds)
    stats.read_s = reading.seconds - decoding.seconds  # each step reads a batch and decodes it
    stats.add_tally(tally)
    return Written(
        topic=split.topic,
        partition=split.partition,
        files=tuple(files.staged),
        damaged=tuple(map(str, tally.damaged)),
        stopped_at=reached if tally.damaged and read_rules.on_corrupt == "stop" else None,
        stats=stats,
    )


def archiver(rules: FileRules, read_rules: ReadRules) -> partial[Written]:
    """Return `archive_split` bound to its rules, for sending to workers."""
    return partial(archive_split, rules, read_rules)


class FileSet:
    """The files of one task, one for each hour or day; a context manager that closes them. `finish` completes them.

    `stem`: prefix of their names.
    """

    def __init__(self, rules: FileRules, stem: str) -> None:
        self._rules = rules
        self._stem = stem
        self._open: dict[str, _File] = {}
        self.staged: list[StagedFile] = []
        self.rows = 0

    def write(self, batch: Any) -> None:
        """Write the rows of a record batch to the files of their hours or days. Raises OSError."""
        self.rows += batch.num_rows
        for directory, rows in _parts(batch, self._rules.partition_by):
            self._file(directory, batch.schema).add(rows)
        if sum(file.waiting_bytes for file in self._open.values()) > OPEN_BYTES:
            for file in self._open.values():
                file.flush()

    def _file(self, directory: str, schema: Any) -> "_File":
        if directory in self._open:
            self._open[directory] = self._open.pop(directory)  # most recently used last
            return self._open[directory]
        if len(self._open) >= MAX_OPEN_FILES:
            self._open.pop(next(iter(self._open))).finish()
        name = f"{self._stem}-{len(self.staged)}{SUFFIX}" if self.staged else f"{self._stem}{SUFFIX}"
        self.staged.append(StagedFile(staged=name, name=os.path.join(directory, name)))
        made = self._open[directory] = _File(Path(self._rules.directory, name), schema, self._rules.compression)
        return made

    def finish(self) -> None:
        """Write buffered rows, and flush all files. Raises OSError."""
        for file in self._open.values():
            file.finish()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._open.values():
            file.close()


class _File(ParquetFile):
    """A file of a task, flushed to disk when it is finished."""

    def __init__(self, path: Path, schema: Any, compression: str) -> None:
        self._stream = open(path, "wb")  # noqa: SIM115  # `close` closes it
        super().__init__(self._stream, schema, compression)
        self._path = path

    def finish(self) -> None:
        """Write buffered rows and the footer, and flush the file. Raises OSError."""
        super().finish()
        sync(self._path)

    def close(self) -> None:
        """Close without writing buffered rows. Raises OSError."""
        with self._stream:
            super().close()


def _parts(batch: Any, partition_by: PartitionBy) -> Iterator[tuple[str, Any]]:
    """Yield pairs (directory, rows) of a record batch; usually there is only one pair."""
    if partition_by == "none":
        yield "", batch
        return
    import pyarrow as pa
    from pyarrow import compute

    width = _WIDTHS[partition_by] // timedelta(microseconds=1)
    times = batch.column("timestamp").cast(pa.int64())
    numbers = compute.divide(compute.subtract(times, compute.if_else(compute.less(times, 0), width - 1, 0)), width)
    for number in compute.unique(numbers).to_pylist():
        whole = compute.min(numbers).as_py() == compute.max(numbers).as_py()
        rows = batch if whole else batch.filter(compute.equal(numbers, number))
        yield f"{partition_by}={_period(number, partition_by)}", rows


def _period(number: int, partition_by: PartitionBy) -> str:
    try:
        return (EPOCH + number * _WIDTHS[partition_by]).strftime(_NAMES[partition_by])
    except OverflowError:
        return "unknown"  # after the year 9999, for example microseconds sent as milliseconds
