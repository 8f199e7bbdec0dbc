"""Resolve a path from the command line: a data directory, the directory of a partition, or a file of a segment."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from warmlog.broker.log.io.directory_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    PartitionName,
    base_offset_of,
    parse_partition_directory,
)
from warmlog.inspect.errors import WrongPathError

SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
STATES = (DELETED_SUFFIX, ".cleaned", ".swap", ".tmp")  # suffixes of files to be deleted or not yet in use


class SegmentFile(NamedTuple):
    """A file of a segment: its suffix, and its state (one of STATES, or "" if it is in use)."""

    path: Path
    base_offset: int
    suffix: str
    state: str = ""


def segment_file(path: Path) -> SegmentFile | None:
    """Parse the name of a segment's file; return None for any other name."""
    base_offset = base_offset_of(path.name)
    rest = path.name[OFFSET_DIGITS:]
    state = next((state for state in STATES if rest.endswith(state)), "")
    suffix = rest.removesuffix(state)
    return SegmentFile(path, base_offset, suffix, state) if base_offset is not None and suffix in SUFFIXES else None


def segment_files(paths: Iterable[Path]) -> list[SegmentFile]:
    """Select the files of segments, ordered by base offset; the log file of each segment comes first."""
    files = [file for path in paths if (file := segment_file(path))]
    return sorted(files, key=lambda file: (file.base_offset, SUFFIXES.index(file.suffix), file.state))


def partition_directories(path: Path) -> list[Path]:
    """List the directories of partitions in a data directory, in order, or `path` itself if it is a partition's.

    Raises WrongPathError for any other path.
    """
    if not path.is_dir():
        raise WrongPathError(f"{path}: {'not a directory' if path.exists() else 'no such directory'}")
    if is_partition_directory(path):
        return [path]
    inside = [(name, entry) for entry in path.iterdir() if (name := served_partition(entry))]
    if not inside and not (path / "meta.properties").exists():
        raise WrongPathError(f"{path}: neither a data directory nor the directory of a partition")
    return [entry for _, entry in sorted(inside)]


def is_partition_directory(path: Path) -> bool:
    """Return whether the directory holds files of segments."""
    return any(segment_file(entry) for entry in path.iterdir())


def served_partition(path: Path) -> PartitionName | None:
    """Parse the name of a partition's directory; return None for other names, and if it is being deleted or moved."""
    name = parse_partition_directory(path.name)
    return name if name is not None and name.moved is None and path.is_dir() else None


def files_to_read(path: Path) -> Iterator[SegmentFile]:
    """Yield the file at a path, or every segment file in use in a partition or a data directory.

    Raises WrongPathError for anything else.
    """
    if path.is_dir():
        for directory in partition_directories(path):
            yield from (file for file in segment_files(directory.iterdir()) if not file.state)
        return
    file = segment_file(path)
    if file is None or not path.is_file():
        reason = (
            "not a file of a segment (.log, .index, .timeindex, .txnindex, .snapshot)"
            if path.exists()
            else "no such file or directory"
        )
        raise WrongPathError(f"{path}: {reason}")
    yield file
