"""The files of a segment: the log, read by `preadv` through a bounded window, and its two indexes.

Invariants:
1. A file is never mapped: a mapping of a file that shrinks ends the process.
2. Memory is bounded by the window, or by the largest batch. Views returned by `LogFile` are valid until the next call.
3. An index is a hint. An active segment's file ends in zero padding, and after a crash in anything at all, so whoever
   uses an entry checks it against the log first.
4. A segment is identified by its inode: compaction replaces a file under the same name.

Formats: `protocol.records.layout`, `broker.log.index.offset`, `broker.log.index.time`.
"""

import errno
import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from broker.log.index.offset import OffsetIndex
from broker.log.index.time import TimeIndex
from broker.log.io.directory_names import (
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    base_offset_of,
)
from protocol.errors import CorruptBatchError
from protocol.records.batch import BatchHeader, read_header, verify_crc
from protocol.records.layout import HEADER_SIZE
from warmlog.inspect.errors import SegmentGoneError

WINDOW_BYTES = 4 << 20  # from 1 MiB on, reading is cheap beside decoding
SCAN_WINDOW_BYTES = 64 << 10  # several index intervals, for lookups and headers
ZEROS = bytes(64 << 10)
LISTINGS = 100  # until two agree; a broker renames every few seconds, a listing takes microseconds
_SWAPPED = f"{LOG_SUFFIX}{SWAP_SUFFIX}"


class CutError(CorruptBatchError):
    """The file ends inside a batch."""


class LogFile:
    """An open log file; a context manager. `window_bytes`: how much is read at a time. Raises OSError throughout."""

    def __init__(self, path: str, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._memory = bytearray(window_bytes)
        self._begin = self._end = 0
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    def header(self, position: int) -> BatchHeader:
        """Return the batch header at a position, with its length and magic checked. Raises ProtocolError, CutError."""
        start = self._locate(position, HEADER_SIZE)
        return read_header(self._memory, start)

    def batch(self, position: int, header: BatchHeader) -> tuple[memoryview, int]:
        """Return a buffer and the position of the whole batch in it, after checking its CRC.

        Raises CorruptBatchError, CutError.
        """
        start = self._locate(position, header.size)
        view = memoryview(self._memory)
        verify_crc(view, start, header)
        return view, start

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch between two positions. Raises ProtocolError, CutError."""
        while position < end:
            header = self.header(position)
            yield position, header
            position += header.size

    def _locate(self, position: int, size: int) -> int:
        """Load the bytes if they are not in the window; return where they begin in it."""
        if position < self._begin or position + size > self._end:
            if size > self.size - position:
                raise CutError(f"a batch is cut off: {max(self.size - position, 0)} of {size} bytes are there")
            self._fill(position, size)
        return position - self._begin

    def _fill(self, position: int, size: int) -> None:
        if size > len(self._memory):
            self._memory = bytearray(size)  # not resized: views of the old window may still be in use
        view = memoryview(self._memory)
        self._begin, filled = position, 0
        while filled < size:
            count = os.preadv(self._descriptor, [view[filled:]], position + filled)
            if not count:
                self._end = position + filled
                raise CutError(f"the file ends at {position + filled}")
            filled += count
        self._end = position + filled

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's log file as it was listed. `size` in bytes, `identity` (device, inode)."""

    path: str
    base_offset: int
    size: int
    identity: tuple[int, int]

    def open(self, *, window_bytes: int = SCAN_WINDOW_BYTES) -> LogFile:
        """Open the log file. Raises SegmentGoneError, OSError."""
        try:
            return LogFile(self.path, window_bytes=window_bytes)
        except FileNotFoundError:
            raise SegmentGoneError(f"{self.path} is gone: retention or compaction may have removed it") from None


def list_segments(directory: str) -> list[Segment]:
    """List the segments in use, by base offset. Raises FileNotFoundError, SegmentGoneError, OSError.

    A listing that runs beside a rename may show the old name, the new one or neither, and a segment that is left out
    would look deleted. So a listing counts only when every file in it exists and the next listing agrees with it.
    """
    names = _log_names(directory)
    for _ in range(LISTINGS):
        segments = _existing_segments(directory, names)
        names, listed = _log_names(directory), names
        if segments is not None and names == listed:
            return segments
    raise SegmentGoneError(f"{directory}: segments are replaced faster than they can be listed")


def _log_names(directory: str) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.name[OFFSET_DIGITS:] in {LOG_SUFFIX, _SWAPPED}}


def _existing_segments(directory: str, names: set[str]) -> list[Segment] | None:
    """Return the segments of these names, or None if a file is gone.

    While compaction replaces segments, the new one may exist under its `.swap` name only.
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


# -- indexes --


class IndexEntries:
    """The entries of an index file: (key, value) as stored, offsets relative to the base offset.

    `padding`: number of zero entries after the last one in use, as in the preallocated file of an active segment.
    `rest`: bytes at the end that are no whole entry.
    """

    def __init__(self, data: bytes, kind: type[OffsetIndex | TimeIndex], *, size: int) -> None:
        """`data`: the file, or its beginning if only zeros follow; `size`: of the file."""
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
        """Bytes of the entries in use."""
        return self._count * self.stride

    @property
    def whole_size(self) -> int:
        """Bytes of entries and padding."""
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
    """A segment's offset index, searchable; empty if there is no file."""

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
        """Return the slot of the first entry at or past the position, or the number of entries."""
        return bisect_left(range(len(self)), position, key=lambda slot: self[slot].position)


class TimeEntries(IndexEntries):
    """A segment's time index, searchable; empty if there is no file."""

    def __init__(self, log_path: str, base_offset: int) -> None:
        data, size = _index_beside(log_path, TIME_INDEX_SUFFIX)
        super().__init__(data, TimeIndex, size=size)
        self._base_offset = base_offset

    def __getitem__(self, slot: int) -> IndexedTime:
        timestamp, relative = self.fields(slot)
        return IndexedTime(timestamp, self._base_offset + relative)

    def last_before(self, timestamp: int) -> IndexedTime | None:
        """Return the last entry with an earlier timestamp: the first record at or past the time follows its offset."""
        slot = bisect_left(range(len(self)), timestamp, key=lambda slot: self[slot].timestamp) - 1
        return self[slot] if slot >= 0 else None


def _index_beside(log_path: str, suffix: str) -> tuple[bytes, int]:
    """Read the index beside a log file, which may carry a suffix such as `.swap`; return as `_read_index`."""
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
        return _pread(file.fileno(), min(_data_end(file.fileno()), size)), size


def _data_end(descriptor: int) -> int:
    """Return where the last block that is not a hole ends; the size of the file if the file system does not tell."""
    end = 0
    while True:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from there on
                return end
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)


def _pread(descriptor: int, size: int) -> bytes:
    """Read from the beginning; less than `size` if the file is shorter by now."""
    parts, at = [], 0
    while at < size and (part := os.pread(descriptor, size - at, at)):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _unpadded_size(data: bytes) -> int:
    """Return where the zeros at the end begin, comparing whole blocks: `rstrip` takes 10 ms for 10 MiB of them."""
    end = len(data)
    while end > len(ZEROS) and data.endswith(ZEROS, 0, end):
        end -= len(ZEROS)
    begin = max(end - len(ZEROS), 0)
    return begin + len(data[begin:end].rstrip(b"\0"))
