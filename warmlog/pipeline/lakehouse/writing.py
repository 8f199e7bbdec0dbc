"""Write the records of splits as Parquet files of a table: one task of the job. No commit references them yet.

1. Files have names that no other task uses, and are complete (and flushed, on local disks) before their task returns.
2. Memory is bounded by two row groups and one Arrow batch; a task continues in a new file at the target size.
3. Small splits share a file, so that a commit of a thousand partitions does not add a thousand files.
4. Rows of partitioned and sorted tables are sorted first (`arrangement.sorting`), so one file is open at a time.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

from warmlog.pipeline.copying.parquet import ParquetFile, sync
from warmlog.pipeline.job_stats import JobStats, Stopwatch, added
from warmlog.pipeline.lakehouse.arrangement.sorting import LIMITS, RowSorter, SortLimits, Values
from warmlog.pipeline.lakehouse.arrangement.spec import BOUNDED, PLAIN, Arrangement
from warmlog.pipeline.lakehouse.receipts import Proof, Runs, runs_of
from warmlog.pipeline.lakehouse.schemas.dead_letters import LetterWriter
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, RowDecoder, SchemaKey
from warmlog.pipeline.source.input import read_batches
from warmlog.pipeline.source.plan import AnySplit, end_offset_of, first_offset_of, size_of_split
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.partitions import TopicPartition

DEFAULT_FILE_BYTES = 128 << 20

PREFIX = "warmlog-"  # prefix of file names

Group = tuple[AnySplit, ...]


class FileStore(Protocol):
    """The storage of a table's files; workers get a copy."""

    def open(self, path: str) -> Any:
        """Open a file of the table, named as in the table, for reading. Raises OSError."""

    def create(self, name: str) -> Any:
        """Return a binary file open for writing. Raises OSError."""

    def path_of(self, name: str) -> str:
        """Return the path by which a file that was created is opened."""

    def finished(self, name: str) -> None:
        """Make a closed file durable. Raises OSError."""

    def delete(self, name: str) -> None:
        """Delete a file that no commit references. Raises OSError."""


LOCAL = re.compile(r"^file:(//)?(?=/)")  # a metastore of Hive writes file:/directory


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files in a local directory."""

    directory: str

    def open(self, path: str) -> Any:
        """Return a file open for reading; an absolute path may be outside the directory. Raises OSError."""
        return open(Path(self.directory, LOCAL.sub("", path)), "rb")

    def create(self, name: str) -> Any:
        """Return a file open for writing. Raises OSError."""
        path = Path(self.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "xb")

    def path_of(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.directory, name)

    def finished(self, name: str) -> None:
        """Flush a file and its directory to disk. Raises OSError."""
        path = Path(self.directory, name)
        sync(path)
        sync(path.parent)

    def delete(self, name: str) -> None:
        """Delete a file. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetRules:
    """Rules for files. `schema`: Arrow's, with Iceberg's field ids if the table has them.

    `arrangement`: how rows are partitioned and sorted, within `limits`; rows that are written in the right order need
    none.
    """

    store: FileStore
    schema: Any
    compression: str = "zstd"
    file_bytes: int = DEFAULT_FILE_BYTES
    arrangement: Arrangement = PLAIN
    limits: SortLimits = LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRules(ParquetRules):
    """Rules for writing records of a topic as files."""

    decode: DecodeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file that is not in the table yet. `bounds`: least and greatest values of its columns, times in us.

    `partition`: values of the table's partition fields. `is_sorted`: whether its rows are in the table's order.
    """

    name: str
    size: int
    rows: int
    bounds: dict[str, tuple[Any, Any]]
    partition: Values = ()
    is_sorted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenGroup:
    """Result of a task. `proofs`: proofs for the receipt, by partition.

    `unknown`: schemas of keys and values that the rules lack; without them the files are useless. `dead`: offsets of
    records that became dead letters. `damaged_offsets`: offsets of skipped batches.
    """

    proofs: tuple[tuple[TopicPartition, Proof], ...]
    files: tuple[NewFile, ...]
    damaged: tuple[str, ...]
    stats: JobStats
    unknown: frozenset[SchemaKey] = frozenset()
    dead: tuple[tuple[TopicPartition, Runs], ...] = ()
    damaged_offsets: tuple[tuple[TopicPartition, Runs], ...] = ()


@dataclass(slots=True)
class _Notes:
    """Results of a task other than files."""

    damaged: list[str] = field(default_factory=list)
    damaged_offsets: list[tuple[TopicPartition, Runs]] = field(default_factory=list)
    unknown: set[SchemaKey] = field(default_factory=set)
    dead: list[tuple[TopicPartition, Runs]] = field(default_factory=list)


class RowWriter:
    """Decodes the rows of one partition, and writes dead letters for those that do not fit."""

    def __init__(self, rules: DecodeRules, key: TopicPartition, letters: LetterWriter) -> None:
        self.rules = rules
        self.decoder = RowDecoder(rules, *key)
        self._letters = letters

    def decode(self, batch: Any) -> Any:
        """Return the rows of a batch that fit. Raises PipelineError."""
        rows = self.decoder.decode(batch)
        if self.decoder.letters:
            self._letters.write(self.decoder.letters)
            self.decoder.letters.clear()
        return rows


def write_group(rules: WriteRules, read_rules: ReadRules, group: Group) -> WrittenGroup:
    """Write the records of some splits as files. Runs in a worker. Raises PipelineError, InspectError, OSError."""
    notes = _Notes()
    proofs: list[tuple[TopicPartition, Proof]] = []
    parts: list[JobStats] = []
    with LetterWriter(rules.decode.layout.formats.dead_letters) as letters, FileSequence(rules) as files:
        for split in group:
            rows = RowWriter(rules.decode, (split.topic, split.partition), letters)
            proof, stats = _write_split(files, rows, read_rules, split, notes)
            proofs.append(((split.topic, split.partition), proof))
            parts.append(stats)
        finishing = Stopwatch()
        finishing.timed(files.finish)()
    parts.append(JobStats(tasks=1, write_s=finishing.seconds))
    return WrittenGroup(
        proofs=tuple(proofs),
        files=tuple(files.complete),
        damaged=tuple(notes.damaged),
        stats=added(parts),
        unknown=frozenset(notes.unknown),
        dead=tuple(notes.dead),
        damaged_offsets=tuple(notes.damaged_offsets),
    )


def _write_split(
    files: "FileSequence", rows: RowWriter, read_rules: ReadRules, split: AnySplit, notes: _Notes
) -> tuple[Proof, JobStats]:
    from warmlog.pipeline.lakehouse.digest import RowDigest
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches  # imports pyarrow

    reading, decoding, fields, writing = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch()
    decoder = ArrowDecoder(split.topic, split.partition, rows.rules.layout.source)
    decode = fields.timed(rows.decode)
    steps, tally = read_batches(split, read_rules, decoding.timed(decoder.add))
    write = writing.timed(files.write)
    digest = RowDigest(rows.rules.schema.names)
    for batch in map(decode, record_batches(decoder, reading.steps(steps))):
        if batch.num_rows:
            digest.add(batch)
            write(batch)
    notes.unknown |= rows.decoder.unknown
    if rows.decoder.dead:
        notes.dead.append(((split.topic, split.partition), runs_of(rows.decoder.dead)))
    notes.damaged += map(str, tally.damaged)
    notes.damaged_offsets.append(((split.topic, split.partition), tuple(tally.damaged_offsets)))
    stats = JobStats(rows=digest.rows, decode_s=decoding.seconds + fields.seconds, write_s=writing.seconds)
    stats.read_s = reading.seconds - decoding.seconds  # each step reads a batch and decodes it
    stats.add_tally(tally)
    return Proof(first_offset_of(split), end_offset_of(split), digest.rows, digest.hexdigest()), stats


def writer(rules: WriteRules, read_rules: ReadRules) -> partial[WrittenGroup]:
    """Return `write_group` bound to its rules, for sending to workers."""
    return partial(write_group, rules, read_rules)


def groups_of(splits: Sequence[AnySplit], parallelism: int, file_bytes: int) -> list[Group]:
    """Return the splits of each task, in order: about one file's worth, or less if processors would be idle."""
    total = sum(map(size_of_split, splits))
    share = min(file_bytes, -(-total // max(parallelism, 1)))
    groups: list[Group] = []
    first, taken = 0, 0
    for at, split in enumerate(splits):
        if at > first and taken + size_of_split(split) > share:
            groups.append(tuple(splits[first:at]))
            first, taken = at, 0
        taken += size_of_split(split)
    return [*groups, tuple(splits[first:])] if splits else []


def size_of_group(group: Group) -> int:
    """Return the number of bytes that a group reads."""
    return sum(map(size_of_split, group))


class FileSequence:
    """The files that one task writes in sequence; a context manager. `complete`: the finished files.

    `partition` and `is_sorted`: of rows that are in one partition and in the table's order already.
    """

    def __init__(self, rules: ParquetRules, *, partition: Values = (), is_sorted: bool = False) -> None:
        self._rules = rules
        self._open: _File | None = None
        self._partition = partition
        self._is_sorted = is_sorted or bool(rules.arrangement.sort)
        self._sorter = None if rules.arrangement.is_plain else RowSorter(rules.arrangement, rules.schema, rules.limits)
        self.complete: list[NewFile] = []

    def write(self, batch: Any) -> None:
        """Write the rows of a record batch. Raises PipelineError for too many partitions, OSError."""
        if self._sorter is not None:
            self._sorter.add(batch)
        else:
            self._append(batch)

    def _append(self, batch: Any) -> None:
        if self._open is None:
            self._open = _File(self._rules, f"{PREFIX}{uuid4().hex}.parquet")
        self._open.add(batch)
        if self._open.is_full:
            self._complete()

    def finish(self) -> None:
        """Write the rows that had to be sorted first, and complete the last file. Raises OSError."""
        if self._sorter is not None:
            for partition, batch in self._sorter.finish():
                if partition != self._partition:
                    self._complete()
                    self._partition = partition
                self._append(batch)
        self._complete()

    def _complete(self) -> None:
        if self._open is not None:
            file = self._open.finish()
            self._open = None
            self.complete.append(replace(file, partition=self._partition, is_sorted=self._is_sorted))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._sorter is not None:
            self._sorter.close()
        if kind is None:
            return
        with suppress(OSError):  # the first error is the one to report
            if self._open is not None:
                self._open.abandon()
            for file in self.complete:
                self._rules.store.delete(file.name)


class _File:
    """The file being written, and the bounds of its columns."""

    def __init__(self, rules: ParquetRules, name: str) -> None:
        self._name = name
        self._store = rules.store
        self._schema = rules.schema
        self._file_bytes = rules.file_bytes
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._bounded = [column for column in BOUNDED if column in rules.schema.names]
        self._rows = 0
        self._stream = rules.store.create(name)
        self._parquet = ParquetFile(self._stream, rules.schema, rules.compression)

    @property
    def is_full(self) -> bool:
        """Whether the file has its target size. Raises OSError."""
        with self._named():
            return self._parquet.has_reached(self._file_bytes)

    def add(self, batch: Any) -> None:
        import pyarrow as pa
        from pyarrow import compute

        for column in self._bounded:
            extremes = compute.min_max(_plain(batch.column(column))).as_py()
            low, high = self._bounds.get(column, (extremes["min"], extremes["max"]))
            self._bounds[column] = min(low, extremes["min"]), max(high, extremes["max"])
        self._rows += batch.num_rows
        with self._named():
            self._parquet.add(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def finish(self) -> NewFile:
        with self._named():
            self._parquet.finish()
            size = int(self._stream.tell())
            self._stream.close()
            self._store.finished(self._name)
        return NewFile(name=self._name, size=size, rows=self._rows, bounds=self._bounds)

    def abandon(self) -> None:
        with suppress(OSError):  # a full disk has no space for the footer either
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()
        self._store.delete(self._name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's path to errors of the operating system, which have none for an open file."""
        try:
            yield
        except OSError as error:
            if error.errno is not None and error.filename is None:
                error.filename = getattr(self._stream, "name", self._name)
            raise


def _plain(column: Any) -> Any:
    """Return times as microseconds, since Python's times end with the year 9999."""
    import pyarrow as pa

    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
