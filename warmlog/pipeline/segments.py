"""Segments as files, beside a broker that may be rolling, deleting, compacting.

Owns: which segments a partition's directory holds. Must not know: what is in them.

1. Nothing is written, locked or mapped.
2. A segment is what its name and its file say at the moment it is opened; one that goes meanwhile is SegmentGoneError.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from broker.log.directory_names import LOG_SUFFIX, OFFSET_DIGITS, SWAP_SUFFIX, base_offset_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.log_file import LogFile

SCAN_WINDOW_BYTES = 64 << 10  # a few index intervals
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


def list_segments(directory: str) -> Iterator[Segment]:
    """The segments in use, by base offset. Raises OSError.

    While compaction puts a segment in place of others, it may have no other name yet than that of a swap.
    """
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if entry.name[OFFSET_DIGITS:] in {LOG_SUFFIX, _SWAPPED}}
    for name in sorted(names):
        base_offset = base_offset_of(name)
        if base_offset is None or name.removesuffix(SWAP_SUFFIX) in names - {name}:
            continue
        path = f"{directory}/{name}"
        try:
            status = os.stat(path)
        except FileNotFoundError:  # deleted since it was listed
            continue
        yield Segment(path=path, base_offset=base_offset, size=status.st_size, identity=(status.st_dev, status.st_ino))
