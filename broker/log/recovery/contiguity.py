"""The offset from which a log is known to be contiguous: past it, each segment began where the one before it ended.

A gap between two segments can mean that a power cut destroyed the end of the first one, whose bytes were not synced
when those of the second one already were. It can also be harmless: compaction leaves such gaps, and so may a copy of a
log. The log files alone do not distinguish these cases, so the broker records what it knows in a checkpoint:

    contiguous-offset-checkpoint   0          version
                                   1          number of entries
                                   48250      segments that begin past this offset were created at the log's end

Invariants:
1. A roll creates its segment at the end of the log. Before its files are created, the checkpoint is durable with an
   offset not above the segment that is rolled. It is written while the first segment fills, so no append waits for it.
2. Before compaction changes a file, or retention removes several segments, the offset is raised, durably, to the end
   of the range that is compacted or removed.
3. Before a truncation removes segments, the offset is lowered to the segment that is cut: segments that a power cut
   brings back do not begin where it ends.
4. Without the checkpoint nothing is known, and no gap counts as damage. A copied directory does not have one; it is
   removed from a directory whose files were replaced.

So if a segment begins past that offset, but not where the one before it ends, one of the two was damaged, and the log
is cut before it.
"""

from threading import Lock

from warmlog.broker.log.directory.checkpoint import CONTIGUOUS_OFFSET, read_offset, write_offset
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.io.disk import Disk


class Contiguity:
    """One log's contiguous offset. Blocking; worker threads may call it concurrently."""

    __slots__ = ("_directory", "_disk", "_is_read", "_lock", "_offset", "is_ready")

    is_ready: bool  # `include` was called since the log was opened, so rolls need not write the checkpoint

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._is_read = False
        self._offset: int | None = None
        self._lock = Lock()
        self.is_ready = False

    def offset(self) -> int | None:
        """Return the offset past which the log is contiguous, or None if unknown. Raises OSError."""
        with self._lock:
            return self._read()

    def include(self, base_offset: int) -> None:
        """Lower the offset to this segment's, which is about to be rolled or cut. Raises OSError."""
        with self._lock:
            known = self._read()
            if known is None or known > base_offset:
                self._write(base_offset)
            self.is_ready = True

    def exclude(self, offset: int) -> None:
        """Raise the offset: segments up to there are about to be compacted or removed. Raises OSError."""
        with self._lock:
            known = self._read()
            if known is not None and known < offset:
                self._write(offset)

    def forget(self) -> None:
        """Remove the checkpoint, because the log's files were replaced. Raises OSError."""
        with self._lock:
            if self._read() is not None:
                self._disk.unlink(self._path)
                self._disk.sync_directory(self._directory)
                self._offset = None

    @property
    def _path(self) -> str:
        return f"{self._directory}/{CONTIGUOUS_OFFSET}"

    def _read(self) -> int | None:
        if not self._is_read:
            try:
                self._offset = read_offset(self._disk, self._path)
            except CheckpointError:
                self._offset = None
            self._is_read = True
        return self._offset

    def _write(self, offset: int) -> None:
        write_offset(self._disk, self._path, offset)
        self._disk.sync_directory(self._directory)
        self._offset = offset
