"""Read the rows of a batch of an archive, and check them against its commit.

1. Rows of a partition come in offset order, even if files of different hours overlap. A part of each file is in memory
at a time, never a whole file.
2. Each row must be of the partition that its file's name says, within the offsets of the commit, and there once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from warmlog.pipeline.lakehouse.arrangement.spec import BOUNDED, Arrangement
from warmlog.pipeline.lakehouse.arrangement.values import Terms
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.migration.archive import COMMIT, ArchiveCommit, batch_directory, damaged
from warmlog.pipeline.lakehouse.receipts import Proof
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.protocol.partitions import TopicPartition

BATCH_ROWS = 1 << 14  # rows read from a file at a time
UNKNOWN = "unknown"  # day or hour of times outside of the years 1 to 9999
_NAME = re.compile(r"(.+)-(\d+)-(\d{20})-[0-9a-f]{8}(?:-\d+)?\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """An archive's directory, and the arrangement of the table that it becomes."""

    directory: Path
    arrangement: Arrangement


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """Contents of a batch: its files, named from the archive's directory, and a proof for each partition with files."""

    files: tuple[NewFile, ...]
    proofs: dict[TopicPartition, Proof]


def size_of_batch(directory: Path, commit: ArchiveCommit) -> int:
    """Return the number of bytes of a batch's files; those that are missing have none."""
    paths = (batch_directory(directory, commit.number) / name for name in commit.files)
    return sum(path.stat().st_size for path in paths if path.exists())


def read_batch(rules: BatchRules, commit: ArchiveCommit) -> ReadBatch:
    """Read all rows of a batch. Raises PipelineError if they are not those of its commit."""
    readers = [_FileReader(rules, commit, name) for name in commit.files]
    proofs = {}
    listed = sorted(readers, key=lambda reader: (reader.key, reader.first_offset, str(reader.path)))
    for key, of_partition in groupby(listed, key=lambda reader: reader.key):
        first, end = commit.spans[key[0]][str(key[1])]
        digest = RowDigest(commit.columns)
        last = first - 1
        for _, of_task in groupby(of_partition, key=lambda reader: reader.first_offset):
            together = list(of_task)
            for batch in _merged([reader.batches() for reader in together]):
                last = _checked(batch, last, end, together)
                digest.add(batch)
        proofs[key] = Proof(first, end, digest.rows, digest.hexdigest())
    rows = sum(proof.rows for proof in proofs.values())
    if rows != commit.rows:
        path = batch_directory(rules.directory, commit.number) / COMMIT
        raise damaged(path, f"says that the batch has {commit.rows:,} rows, but its files have {rows:,}")
    return ReadBatch(files=tuple(reader.file() for reader in readers), proofs=proofs)


def _checked(batch: Any, last: int, end: int, readers: Sequence["_FileReader"]) -> int:
    """Return the last offset of a batch. Raises PipelineError unless offsets increase, from `last` up to `end`."""
    import numpy as np

    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    steps = np.diff(offsets, prepend=last)
    if steps.min() <= 0 or offsets[-1] >= end:
        wrong = offsets[steps.argmin()] if steps.min() <= 0 else offsets[-1]
        where = readers[0].path.parent if len(readers) > 1 else readers[0].path
        raise damaged(where, f"has a row of offset {wrong}, which is there twice or not of this batch")
    return int(offsets[-1])


class _FileReader:
    """Reads a file of a batch, and notes the bounds of its columns."""

    def __init__(self, rules: BatchRules, commit: ArchiveCommit, name: str) -> None:
        self.path = batch_directory(rules.directory, commit.number) / name
        match = _NAME.fullmatch(name.rpartition("/")[2])
        if match is None or str(int(match[2])) not in commit.spans.get(match[1], {}):
            raise damaged(self.path, "is named by a commit, but is no file of its partitions")
        self.key: TopicPartition = match[1], int(match[2])
        self.first_offset = int(match[3])
        self._rules = rules
        self._columns = commit.columns
        self._period = name.rpartition("/")[0].rpartition("=")[2]
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._rows = 0

    def batches(self) -> Iterator[Any]:
        """Yield the rows. Raises PipelineError if the file is missing, damaged, or of another partition."""
        batches = self._batches()
        while True:
            try:
                batch = next(batches, None)
            except FileNotFoundError:
                raise damaged(self.path, "is missing") from None
            except Exception as error:  # a damaged footer causes errors of any kind
                reason = " ".join(str(error).split()) or type(error).__name__
                raise damaged(self.path, f"cannot be read ({reason})") from error
            if batch is None:
                return
            self._note(batch)
            yield batch

    def _batches(self) -> Iterator[Any]:
        from pyarrow import parquet

        from warmlog.pipeline.source.arrow import arrow_schema

        with parquet.ParquetFile(self.path) as opened:
            if not opened.schema_arrow.equals(arrow_schema(self._columns)):
                raise ValueError(f"its columns are not {', '.join(self._columns)} with their types")
            yield from (batch for batch in opened.iter_batches(BATCH_ROWS) if batch.num_rows)

    def _note(self, batch: Any) -> None:
        import pyarrow as pa
        from pyarrow import compute

        for name in BOUNDED:
            if name in self._columns:
                column = batch.column(name)
                numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
                extremes = compute.min_max(numbers).as_py()
                low, high = self._bounds.get(name, (extremes["min"], extremes["max"]))
                self._bounds[name] = min(low, extremes["min"]), max(high, extremes["max"])
        self._rows += batch.num_rows
        for name, expected in zip(("topic", "partition"), self.key, strict=True):
            if self._bounds.get(name, (expected, expected)) != (expected, expected):
                raise damaged(self.path, f"has rows of another {name} than {expected}")

    def file(self) -> NewFile:
        """Return the file as it is added to a table, after all rows were read."""
        if not self._rows:
            raise damaged(self.path, "has no rows")
        return NewFile(
            name=str(self.path.relative_to(self._rules.directory)),
            size=self.path.stat().st_size,
            rows=self._rows,
            bounds=self._bounds,
            partition=self._partition(),
        )

    def _partition(self) -> tuple[Any, ...]:
        """Return the day or hour of the file's rows as the table has it; null for times outside of its calendar."""
        import pyarrow as pa

        if not self._rules.arrangement.partition:
            return ()
        if self._period == UNKNOWN:
            return (None,)
        times = pa.table({"timestamp": pa.array(self._bounds["timestamp"], pa.timestamp("us", "UTC"))})
        first, last = Terms(self._rules.arrangement, ["timestamp"]).added(times).column("partition 0").to_pylist()
        if first != last:
            raise damaged(self.path, f"has rows of other times than {self._period}")
        return (first,)


def _merged(sources: list[Iterator[Any]]) -> Iterator[Any]:
    """Merge sources of ascending offsets.

    Each step yields all rows up to the smallest of the sources' last offsets in memory, because no source can still
    yield a smaller offset.
    """
    import pyarrow as pa
    from pyarrow import compute

    if len(sources) == 1:
        yield from sources[0]
        return
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        until = min(head.column("offset")[-1].as_py() for head in heads if head is not None)
        taken = []
        for at, head in enumerate(heads):
            if head is None:
                continue
            count: int = compute.sum(compute.less_equal(head.column("offset"), until)).as_py()
            taken.append(head.slice(0, count))
            rest = head.slice(count)
            heads[at] = rest if rest.num_rows else next(sources[at], None)
        yield from pa.Table.from_batches(taken).sort_by("offset").combine_chunks().to_batches()
