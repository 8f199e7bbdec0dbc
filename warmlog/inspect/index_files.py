"""The offset and time index of a segment: entries, zero padding and lookups.

An index file is read completely, up to its last allocated block, and never mapped: accessing a mapping of a file that
shrinks kills the process. An entry is a hint. The file of an active segment ends with zero padding, and after a crash
with arbitrary bytes, so callers validate an entry against the log before they use it.

Formats: `broker.log.index.offset`, `broker.log.index.time`.
"""

import os
from bisect import bisect_left
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.directory_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from warmlog.broker.log.io.survey import data_end

ZEROS = bytes(64 << 10)


class IndexEntries:
    """The entries of an index file: (key, value) as stored, offsets relative to the base offset.

    `padding`: number of zero entries after the last one in use, as in the preallocated file of an active segment.
    `rest`: bytes at the end that are not a whole entry.
    """

    def __init__(self, data: bytes, kind: type[OffsetIndex | TimeIndex], *, size: int) -> None:
        """Decode `data`: a file of `size` bytes, or its first part if only zeros follow."""
        self.stride = kind.entry.size
        whole = size // self.stride
        used = -(-_unpadded_size(data[: whole * self.stride]) // self.stride)
        if whole == 1 and kind is TimeIndex:
            used = 1  # a segment whose only record has time 0; padding is never a single entry
        self._data = data[: used * self.stride].ljust(used * self.stride, b"\0")
        self._unpack = kind.entry.unpack_from
        self._count = used
        self.padding = whole - used
        self.rest = size - whole * self.stride

    def __len__(self) -> int:
        return self._count

    def fields(self, slot: int) -> tuple[int, int]:
        """Return one entry without decoding the others."""
        first, second = self._unpack(self._data, slot * self.stride)
        return first, second

    @cached_property
    def entries(self) -> list[tuple[int, int]]:
        """All entries in use."""
        return [self.fields(slot) for slot in range(self._count)]

    @property
    def used_size(self) -> int:
        """Size of the entries in use, in bytes."""
        return self._count * self.stride

    @property
    def whole_size(self) -> int:
        """Size of entries and padding, in bytes."""
        return self.used_size + self.padding * self.stride


def index_entries(path: Path, kind: type[OffsetIndex | TimeIndex]) -> IndexEntries:
    """Read an index file. Raises OSError."""
    data, size = _read_index(path)
    return IndexEntries(data, kind, size=size)


class IndexedPosition(NamedTuple):
    """An entry of the offset index: a batch's LAST offset and its position in the log file."""

    last_offset: int
    position: int


class IndexedTime(NamedTuple):
    """An entry of the time index: no record up to and including the offset has a later timestamp (ms)."""

    timestamp: int
    offset: int


class OffsetEntries(IndexEntries):
    """A searchable offset index of a segment; empty if there is no file."""

    def __init__(self, log_path: str, base_offset: int) -> None:
        data, size = _index_beside(log_path, OFFSET_INDEX_SUFFIX)
        super().__init__(data, OffsetIndex, size=size)
        self._base_offset = base_offset

    def __getitem__(self, slot: int) -> IndexedPosition:
        relative, position = self.fields(slot)
        return IndexedPosition(self._base_offset + relative, position)

    def slot_before_offset(self, offset: int) -> int:
        """Return the slot of the last entry whose batch ends before the offset, or -1."""
        return bisect_left(range(len(self)), offset, key=lambda slot: self[slot].last_offset) - 1

    def slot_at_position(self, position: int) -> int:
        """Return the slot of the first entry at or after the position, or the number of entries."""
        return bisect_left(range(len(self)), position, key=lambda slot: self[slot].position)


class TimeEntries(IndexEntries):
    """A searchable time index of a segment; empty if there is no file."""

    def __init__(self, log_path: str, base_offset: int) -> None:
        data, size = _index_beside(log_path, TIME_INDEX_SUFFIX)
        super().__init__(data, TimeIndex, size=size)
        self._base_offset = base_offset

    def __getitem__(self, slot: int) -> IndexedTime:
        timestamp, relative = self.fields(slot)
        return IndexedTime(timestamp, self._base_offset + relative)

    def last_before(self, timestamp: int) -> IndexedTime | None:
        """Return the last entry with an earlier timestamp; the first record at or after the time follows its offset."""
        slot = bisect_left(range(len(self)), timestamp, key=lambda slot: self[slot].timestamp) - 1
        return self[slot] if slot >= 0 else None


def _index_beside(log_path: str, suffix: str) -> tuple[bytes, int]:
    """Read the index beside a log file, which may have a suffix such as `.swap`; return the same as `_read_index`."""
    stem, _, state = log_path.rpartition(LOG_SUFFIX)
    try:
        return _read_index(Path(f"{stem}{suffix}{state}"))
    except FileNotFoundError:
        return b"", 0


def _read_index(path: Path) -> tuple[bytes, int]:
    """Return an index up to its last allocated block, and the size of the file. Raises OSError.

    The index of an active segment is a sparse file of 10 MiB with a few entries.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return _pread(file.fileno(), min(data_end(file.fileno()), size)), size


def _pread(descriptor: int, size: int) -> bytes:
    """Read from the start of the file; return fewer than `size` bytes if the file has become shorter."""
    parts, at = [], 0
    while at < size and (part := os.pread(descriptor, size - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _unpadded_size(data: bytes) -> int:
    """Return the size without trailing zeros, comparing whole blocks: `rstrip` takes 10 ms for 10 MiB of zeros."""
    end = len(data)
    while end > len(ZEROS) and data.endswith(ZEROS, 0, end):
        end -= len(ZEROS)
    begin = max(end - len(ZEROS), 0)
    return begin + len(data[begin:end].rstrip(b"\0"))
