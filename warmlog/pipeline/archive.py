"""Records into Parquet files, written by the workers, each record once.

Owns: the files' layout and the commit. Must not know: Spark, or where a split comes from.

    DIR/_warmlog/00000000000000000007.json      a commit: up to which offsets, and the files it brought
    DIR/hour=2026-11-20T10/orders-0-00000000000000001234.7-<attempt>.parquet     first offset, commit
    DIR/hour=2026-11-20T10/.orders-0-00000000000000001234.7-<attempt>.parquet    the same before it is committed

Invariants:
1. A commit happens in one step: its file is renamed into its place. Files without one are removed by the next run,
   files of one that were not renamed yet are renamed by it. So a run that is killed neither loses nor doubles.
2. A run begins where the last commit ended. It fails where records in between are gone, unless it is allowed to go on;
   then the commit tells how many offsets were lost.
3. One run at a time writes to a directory: it holds a lock on it.

Engines that list Parquet files skip names that begin with a dot or an underscore.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules, SplitReader, checked

COMMITS = "_warmlog"
LOCK = ".lock"
MAX_OPEN_FILES = 32  # of one task: more hours than this at a time are no archive's, but a mess of clocks
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

PartitionBy: TypeAlias = Literal["none", "day", "hour"]
_WIDTHS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}
_NAMES = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRules:
    """How files are written. `compression`: a name that Parquet knows."""

    directory: str
    columns: tuple[str, ...]
    partition_by: PartitionBy = "none"
    compression: str = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a task has written. `files`: relative to the archive, as they will be named."""

    topic: str
    partition: int
    rows: int
    bytes: int
    lost_offsets: int
    damaged: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit. `offsets`: by topic and partition (as text, it is JSON), where the next run begins."""

    number: int
    offsets: Mapping[str, Mapping[str, int]]
    rows: int = 0
    lost_offsets: int = 0
    damaged: tuple[str, ...] = ()
    files: tuple[str, ...] = field(default=())


def archive_split(rules: ArchiveRules, read_rules: ReadRules, number: int, split: Split) -> Written:
    """Write a split's records as files that are not committed. In a worker. Raises PipelineError, OSError."""
    from warmlog.pipeline.arrow import ArrowDecoder, record_batches  # pyarrow is loaded where it is needed

    decoder = ArrowDecoder(split.topic, split.partition, rules.columns)
    reader = SplitReader(split, read_rules, checked(decoder.add))
    attempt = uuid4().hex[:8]  # Spark may run a task twice, even at the same time; one of them is committed
    stem = f"{split.topic}-{split.partition}-{split.pieces[0].first_offset:020d}.{number}-{attempt}"
    with FileSet(rules, stem) as files:
        for batch in record_batches(decoder, reader.run()):
            files.write(batch)
    return Written(
        topic=split.topic,
        partition=split.partition,
        rows=files.rows,
        bytes=reader.tally.bytes,
        lost_offsets=reader.tally.lost_offsets,
        damaged=tuple(map(str, reader.tally.damaged)),
        files=tuple(files.names),
    )


def archiver(rules: ArchiveRules, read_rules: ReadRules, number: int) -> partial[Written]:
    """`archive_split` with its rules, to be sent to workers."""
    return partial(archive_split, rules, read_rules, number)


class FileSet:
    """The files of one task, one for each hour or day. A context manager: leaving it well writes them out and syncs."""

    def __init__(self, rules: ArchiveRules, stem: str) -> None:
        self._rules = rules
        self._stem = stem
        self._open: dict[str, Any] = {}
        self.names: list[str] = []
        self.rows = 0

    def write(self, batch: Any) -> None:
        """Write the rows of a record batch where they belong."""
        self.rows += batch.num_rows
        for directory, part in _parts(batch, self._rules.partition_by):
            self._writer(directory, batch.schema).write_batch(part)

    def _writer(self, directory: str, schema: Any) -> Any:
        if directory in self._open:
            self._open[directory] = self._open.pop(directory)  # the most recently used is the last
            return self._open[directory]
        if len(self._open) >= MAX_OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        from pyarrow import parquet

        name = f"{self._stem}-{len(self.names)}.parquet" if self.names else f"{self._stem}.parquet"
        self.names.append(os.path.join(directory, name))
        path = Path(self._rules.directory, hidden(self.names[-1]))
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = parquet.ParquetWriter(
            path,
            schema,
            compression=self._rules.compression,
            use_dictionary=[name for name in ("topic", "partition", "timestampType") if name in schema.names],
        )
        self._open[directory] = writer
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for writer in self._open.values():
            writer.close()
        if error is None:
            for name in self.names:
                _sync(Path(self._rules.directory, hidden(name)))


def hidden(name: str) -> str:
    """A file's name before it is committed."""
    directory, _, last = name.rpartition("/")
    return os.path.join(directory, f".{last}")


def _parts(batch: Any, partition_by: PartitionBy) -> Iterator[tuple[str, Any]]:
    """(directory, rows) of a record batch; nearly always all of its rows belong into one."""
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
        return "unknown"  # somebody's microseconds, past the year 9999


class Archive:
    """The directory of an archive. Use it within `locked`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._commits = directory / COMMITS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with it, and with what an earlier run left half done put right. Raises PipelineError, OSError."""
        self._commits.mkdir(parents=True, exist_ok=True)
        with open(self._commits / LOCK, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"{self.directory}: another job is writing to it") from None
            self._put_right()
            yield

    def last_commit(self) -> Commit | None:
        """The last commit; None before the first. Raises PipelineError where it cannot be read."""
        names = sorted(path.name for path in self._commits.glob("*.json"))
        if not names:
            return None
        path = self._commits / names[-1]
        try:
            told = json.loads(path.read_text())
            return Commit(**{**told, "files": tuple(told["files"]), "damaged": tuple(told["damaged"])})
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{path} is no commit of an archive: {error}") from error

    def commit(self, commit: Commit) -> None:
        """Make files and offsets true, in one step. Raises OSError."""
        for directory in {(self.directory / name).parent for name in commit.files}:
            _sync(directory)
        path = self._commits / f"{commit.number:020d}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(commit), indent=1))
        _sync(temporary)
        os.rename(temporary, path)
        _sync(self._commits)
        self._show(commit.files)

    def _put_right(self) -> None:
        """Finish the last commit; remove what was never committed."""
        last = self.last_commit()
        if last is not None:
            self._show(last.files)
        for path in self.directory.rglob(".*.parquet"):
            path.unlink()

    def _show(self, files: Iterable[str]) -> None:
        for name in files:
            before = self.directory / hidden(name)
            if before.exists():
                os.rename(before, self.directory / name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
