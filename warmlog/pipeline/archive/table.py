"""Read an archive: the files of each partition, and their rows in offset order.

1. Only files that a commit names are read.
2. Rows come in offset order even if files of different hours overlap. A few row groups of each file are in memory at a
   time, never a whole file.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmlog.pipeline.archive.store import ArchiveStore, Commit, check_archive
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

BATCH_ROWS = 1 << 14  # rows read from a file at a time
_NAME = re.compile(r"(.+)-(\d+)-(\d{20})-[0-9a-f]{8}(?:-\d+)?\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A file of one partition, and the offsets that its commit covers (end excluded), which include those of its rows.

    `life`: how often the log had been recreated or rewritten before; offsets increase only within one life.
    """

    path: str
    first_offset: int
    end_offset: int
    topic_id: str | None = None
    life: int = 0


def read_commits(directory: Path) -> list[Commit]:
    """Return all commits of an archive. Raises PipelineError if the directory is not an archive."""
    if not directory.is_dir():
        raise PipelineError(f"{directory}: no such directory")
    check_archive(directory)
    commits = list(ArchiveStore(directory).commits())
    if not commits:
        raise PipelineError(f"{directory} is not an archive: it has no commits")
    return commits


def table_files(directory: Path, commits: Sequence[Commit]) -> dict[TopicPartition, list[TableFile]]:
    """Return the files of each partition, oldest first. Raises PipelineError."""
    files: dict[TopicPartition, list[TableFile]] = {}
    store = ArchiveStore(directory)
    lives = _lives(commits)
    for commit in commits:
        for name in commit.files:
            match = _NAME.fullmatch(name.rpartition("/")[2])
            if match is None:
                raise PipelineError(f"{store.batch_directory(commit.number)}: {name} is not a file name of an archive")
            topic, partition, first = match[1], int(match[2]), int(match[3])
            _, end = commit.spans[topic][str(partition)]
            path = str(store.batch_directory(commit.number) / name)
            file = TableFile(
                path=path,
                first_offset=first,
                end_offset=end,
                topic_id=commit.topic_ids.get(topic),
                life=lives[commit.number, topic, partition],
            )
            files.setdefault((topic, partition), []).append(file)
    return files


def _lives(commits: Sequence[Commit]) -> dict[tuple[int, str, int], int]:
    """Return the life of each partition of a topic in each commit, by the commit's number."""
    lives: dict[tuple[int, str, int], int] = {}
    last: dict[TopicPartition, tuple[int, Position]] = {}
    for commit in commits:
        for (topic, partition), position in commit.positions().items():
            life, before = last.get((topic, partition), (0, None))
            if before is not None:
                first, _ = commit.spans[topic][str(partition)]
                other = None not in {before.topic_id, position.topic_id} and before.topic_id != position.topic_id
                life += other or first < before.offset
            last[topic, partition] = life, position
            lives[commit.number, topic, partition] = life
    return lives


def read_in_order(files: Sequence[TableFile], columns: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches of a partition by life and offset; the columns must include `offset`.

    Raises PipelineError, OSError.
    """
    for group in _overlapping(files):
        if len(group) == 1:
            yield from _batches(group[0], columns)
        else:
            yield from _merged([_batches(file, columns) for file in group])


def _overlapping(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield groups of files with overlapping offsets, written by one task for different hours."""
    group: list[TableFile] = []
    for file in sorted(files, key=lambda each: (each.life, each.first_offset, each.path)):
        if group and (group[0].life, group[0].first_offset) != (file.life, file.first_offset):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _batches(file: TableFile, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as opened:
            there = [name for name in columns if name in opened.schema_arrow.names]
            yield from opened.iter_batches(BATCH_ROWS, columns=there)
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise PipelineError(f"{file.path}: {error}") from error


def _merged(sources: list[Iterator[Any]]) -> Iterator[Any]:
    """Merge sources of ascending offsets.

    Each step yields all rows up to the smallest of the sources' last offsets in memory, because no source can still
    yield a smaller offset.
    """
    import pyarrow as pa

    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        until = min(head.column("offset")[-1].as_py() for head in heads if head is not None)
        taken = []
        for at, head in enumerate(heads):
            if head is None:
                continue
            count = _rows_until(head, until)
            taken.append(head.slice(0, count))
            rest = head.slice(count)
            heads[at] = rest if rest.num_rows else next(sources[at], None)
        table = pa.Table.from_batches(taken).sort_by("offset").combine_chunks()
        yield from table.to_batches()


def _rows_until(batch: Any, offset: int) -> int:
    """Return the number of rows of a batch with offsets up to and including this one."""
    from pyarrow import compute

    count: int = compute.sum(compute.less_equal(batch.column("offset"), offset)).as_py() or 0
    return count
