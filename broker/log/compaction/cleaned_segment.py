"""Write the files of a cleaned segment, whose names end with `.cleaned`.

Invariants:
1. Index entries are what appending the same batches would create (`segments.tail.Tail`).
2. Once finished, data and names are synced, and the log file has the modification time of the newest file it replaces.

Source: org.apache.kafka.storage.internals.log.LogSegment, kafka.log.Cleaner.cleanSegments.
"""

import os
from collections.abc import Sequence
from contextlib import suppress

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted
from warmlog.broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk, write_all
from warmlog.broker.log.segments.tail import BatchExtent, Tail
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import with_sound_timestamp


class CleanedSegment:
    """A segment that is written from its beginning; `close` it, and `remove` it after an error."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: LogConfig) -> None:
        """Create the log file, replacing files that an earlier run left. Raises OSError."""
        self.base_offset = base_offset
        self._disk = disk
        self._directory = directory
        self._tail = Tail(base_offset, config, created_ms=0, jitter_ms=0)
        self._offset_entries, self._time_entries = bytearray(), bytearray()
        for suffix in INDEX_SUFFIXES:
            with suppress(FileNotFoundError):
                disk.unlink(self._path(suffix))
        self._fd: int | None = disk.open(self._path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    @property
    def size(self) -> int:
        """Size of the log file in bytes."""
        return self._tail.size

    def _path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + CLEANED_SUFFIX

    def append(self, batches: bytearray) -> None:
        """Append whole batches. Raises OSError."""
        assert self._fd is not None, "it is not closed"
        write_all(self._disk, self._fd, [batches], self._tail.size)
        for position, header in headers(batches):
            largest = with_sound_timestamp(batches, position, header).max_timestamp
            entries = self._tail.add(BatchExtent(header.last_offset, largest, header.size))
            if entries is not None:
                self._offset_entries += entries.offset_index
                self._time_entries += entries.time_index

    def finish(self, aborted: Sequence[AbortedTransaction], *, like: str) -> None:
        """Write the indexes, sync all files, and copy the modification time of the file `like`. Raises OSError.

        Retention uses that time for records without timestamps.
        """
        assert self._fd is not None, "it is not closed"
        self._time_entries += self._tail.last_time_entry()
        self._disk.sync(self._fd)
        self._write(OFFSET_INDEX_SUFFIX, self._offset_entries)
        self._write(TIME_INDEX_SUFFIX, self._time_entries)
        if aborted:
            self._write(TRANSACTION_INDEX_SUFFIX, encode_aborted(aborted))
        self._disk.set_modified(self._path(LOG_SUFFIX), self._disk.modified_ms(like))
        self._disk.sync_directory(self._directory)  # a swap that lost its transaction index would count as complete

    def _write(self, suffix: str, content: bytes | bytearray) -> None:
        fd = self._disk.open(self._path(suffix), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            if content:
                write_all(self._disk, fd, [content], 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def close(self) -> None:
        """Close the log file. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def remove(self) -> None:
        """Unlink the files, ignoring errors."""
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            with suppress(OSError):
                self._disk.unlink(self._path(suffix))
