"""Segments as files, beside a broker that may be rolling, deleting, compacting.

Owns: which segments a partition's directory holds. Must not know: what is in them.

1. Nothing is written, locked or mapped.
2. A segment is what its name and its file say at the moment it is opened; one that goes meanwhile is SegmentGoneError.
"""

import os
from dataclasses import dataclass

from broker.log.directory_names import LOG_SUFFIX, OFFSET_DIGITS, SWAP_SUFFIX, base_offset_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.log_file import LogFile

SCAN_WINDOW_BYTES = 64 << 10  # a few index intervals
LISTINGS = 100  # of a directory until two agree; a broker renames now and then, a listing takes microseconds
_SWAPPED = f"{LOG_SUFFIX}{SWAP_SUFFIX}"


class SegmentGoneError(PipelineError):
    """A segment's file is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's log file. `size` in bytes, `identity` of its inode: compaction puts another in its place."""

    path: str
    base_offset: int
    size: int
    identity: tuple[int, int]

    def open(self, *, window_bytes: int = SCAN_WINDOW_BYTES) -> LogFile:
        """The file, to be closed. Raises SegmentGoneError, OSError."""
        try:
            return LogFile(self.path, window_bytes=window_bytes)
        except FileNotFoundError:
            raise SegmentGoneError(f"{self.path} is gone: deleted by retention or compaction?") from None


def list_segments(directory: str) -> list[Segment]:
    """The segments in use, by base offset. Raises OSError, SegmentGoneError where they change too fast to be listed.

    A listing beside a rename may hold the old name, the new one or neither, and records of a segment that is left out
    would pass for deleted ones. So a listing counts when all it names is there and the next one says the same.
    """
    names = _log_names(directory)
    for _ in range(LISTINGS):
        segments = _existing_segments(directory, names)
        names, listed = _log_names(directory), names
        if segments is not None and names == listed:
            return segments
    raise SegmentGoneError(f"{directory}: its segments are replaced faster than they can be listed")


def _log_names(directory: str) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.name[OFFSET_DIGITS:] in {LOG_SUFFIX, _SWAPPED}}


def _existing_segments(directory: str, names: set[str]) -> list[Segment] | None:
    """The segments of these names, or None where one is gone.

    While compaction puts a segment in place of others, it may have no other name yet than that of a swap.
    """
    segments = []
    for name in sorted(names):
        base_offset = base_offset_of(name)
        if base_offset is None or name.removesuffix(SWAP_SUFFIX) in names - {name}:
            continue
        path = f"{directory}/{name}"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        segments.append(
            Segment(path=path, base_offset=base_offset, size=status.st_size, identity=(status.st_dev, status.st_ino))
        )
    return segments
