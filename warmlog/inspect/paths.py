"""What a path on the command line means: a data directory, the directory of a partition, or a single file.

Owns: finding the files of segments. Must not know: how they are named (`broker.log.io.directory_names`) or what is in
them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.log.io.directory_names import (
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
STATES = (DELETED_SUFFIX, ".cleaned", ".swap", ".tmp")  # on their way out or in; "" while in use


class SegmentFile(NamedTuple):
    """A file of a segment: its suffix, and its state (one of STATES, "" while it is in use)."""

    path: Path
    base_offset: int
    suffix: str
    state: str = ""


def segment_file(path: Path) -> SegmentFile | None:
    """What a file's name says; None if it is no segment's."""
    base_offset = base_offset_of(path.name)
    rest = path.name[OFFSET_DIGITS:]
    state = next((state for state in STATES if rest.endswith(state)), "")
    suffix = rest.removesuffix(state)
    return SegmentFile(path, base_offset, suffix, state) if base_offset is not None and suffix in SUFFIXES else None


def segment_files(paths: Iterable[Path]) -> list[SegmentFile]:
    """Those of the paths that are segments' files, by base offset; of one segment the log first."""
    found = [file for path in paths if (file := segment_file(path))]
    return sorted(found, key=lambda file: (file.base_offset, SUFFIXES.index(file.suffix), file.state))


def partition_directories(path: Path) -> list[Path]:
    """The partitions' directories in a data directory, or the one that `path` is itself, in order.

    Raises WrongPathError if it is neither.
    """
    if not path.is_dir():
        raise WrongPathError(f"{path}: {'not a directory' if path.exists() else 'no such directory'}")
    if is_partition_directory(path):
        return [path]
    inside = [(name, entry) for entry in path.iterdir() if (name := partition_in_service(entry))]
    if not inside and not (path / "meta.properties").exists():
        raise WrongPathError(f"{path}: neither a data directory nor the directory of a partition")
    return [entry for _, entry in sorted(inside)]


def is_partition_directory(path: Path) -> bool:
    """Whether the directory holds the files of segments."""
    return any(segment_file(entry) for entry in path.iterdir())


def partition_in_service(path: Path) -> PartitionName | None:
    """The partition that a directory is, by its name; None for one that is on its way out, and for anything else."""
    name = parse_partition_directory(path.name)
    return name if name is not None and name.moved is None and path.is_dir() else None


def files_to_read(path: Path) -> Iterator[SegmentFile]:
    """The segments' files that a path means: itself, or those in use in a partition or a whole data directory.

    Raises WrongPathError for anything else.
    """
    if path.is_dir():
        for directory in partition_directories(path):
            yield from (file for file in segment_files(directory.iterdir()) if not file.state)
        return
    file = segment_file(path)
    if file is None or not path.is_file():
        reason = "not the name of a segment's file" if path.exists() else "no such file or directory"
        raise WrongPathError(f"{path}: {reason}")
    yield file
