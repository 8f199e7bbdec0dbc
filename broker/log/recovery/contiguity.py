"""Where a log is known to be contiguous: from there on each segment began where the one before ended.

A gap between two segments can mean that a power cut took the end of the first one, whose bytes were not synced yet
while those of the second one happened to be. It can also mean nothing: compaction leaves such gaps, and a log that was
copied here, or is copied from a leader, may have them. The files alone do not tell these cases apart, so what is known
is written down:

    contiguous-offset-checkpoint   0          version
                                   1          how many entries follow
                                   48250      segments that begin past this offset were begun at the log's end

Invariants:
1. A roll begins its segment at the end of the log. Before its files are made, the file is there, durably, with an
   offset not above the segment that is rolled. It is written while the first segment fills, so that no append waits
   for that.
2. Before compaction changes any file, or retention removes several segments, the offset is raised, durably, to the end
   of what is compacted or removed.
3. Before a truncation removes segments, the offset is lowered to the segment that is cut: those that a power cut brings
   back do not begin where it ends.
4. Without the file nothing is known, and no gap is taken for damage. A copied directory comes without it; one that is
   found in a directory whose files were replaced is removed.

So a segment that begins past that offset, but not where the one before ends, proves that one of them is not as it was:
the log ends before it.
"""

from threading import Lock

from broker.log.directory.checkpoint import CONTIGUOUS_OFFSET, read_offset, write_offset
from broker.log.errors import CheckpointError
from broker.log.io.disk import Disk


class Contiguity:
    """From which offset on one log is known to be contiguous. For workers; several may call at once."""

    __slots__ = ("_directory", "_disk", "_is_read", "_lock", "_offset", "is_ready")

    is_ready: bool  # whether `include` was called since the log was opened: rolls write nothing any more

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._is_read = False
        self._offset: int | None = None
        self._lock = Lock()
        self.is_ready = False

    def offset(self) -> int | None:
        """Return the offset past which segments begin at the end of the one before; None: unknown. Raises OSError."""
        with self._lock:
            return self._read()

    def include(self, base_offset: int) -> None:
        """Have it known for segments that begin past this one, which is about to be rolled or cut. Raises OSError."""
        with self._lock:
            known = self._read()
            if known is None or known > base_offset:
                self._write(base_offset)
            self.is_ready = True

    def exclude(self, offset: int) -> None:
        """Know nothing any more of segments that begin up to an offset: they are about to be compacted or removed.

        Raises OSError.
        """
        with self._lock:
            known = self._read()
            if known is not None and known < offset:
                self._write(offset)

    def forget(self) -> None:
        """Know nothing: the files are others than those that this broker wrote. Raises OSError."""
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
