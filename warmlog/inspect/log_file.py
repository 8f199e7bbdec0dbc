"""List the log files of segments, and read their batches through a bounded window.

1. A file is read up to the size it had when it was opened: a broker may be appending to it.
2. Memory is bounded by the window, or by the largest batch. Views of the window are valid until the next read.
3. Files are read with `preadv`, never mapped: accessing a mapping of a file that shrinks kills the process.
4. A segment is identified by its inode: compaction replaces a file under the same name.

Format: `protocol.records.layout`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from warmlog.broker.log.io.directory_names import LOG_SUFFIX, OFFSET_DIGITS, SWAP_SUFFIX, base_offset_of
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.segments.log_scan import WALK_CHUNK_SIZE, CutError, walk_headers
from warmlog.inspect.errors import SegmentGoneError
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import BatchHeader, read_header, verify_crc
from warmlog.protocol.records.layout import HEADER_SIZE

WINDOW_BYTES = 4 << 20  # with 1 MiB or more, reading is cheap compared with decoding
SCAN_WINDOW_BYTES = 64 << 10  # window of a few index intervals, for lookups and headers
LISTINGS = 100  # maximum listings until two agree; a broker renames every few seconds, a listing takes microseconds
_SWAPPED = f"{LOG_SUFFIX}{SWAP_SUFFIX}"


class DamageError(Exception):
    """A log file has no whole batch from `position` on; `str()` is the reason.

    `zeros`: whether only zeros follow, as in a preallocated file. `cut`: whether the file ends inside a batch, as after
    a crash or while a broker is writing it.
    """

    def __init__(self, position: int, reason: str, *, zeros: bool, cut: bool) -> None:
        super().__init__(reason)
        self.position = position
        self.zeros = zeros
        self.cut = cut


class StoredBatch(NamedTuple):
    """A batch at a position of a log file; its bytes are `data[start : start + header.size]`."""

    position: int
    header: BatchHeader
    data: memoryview
    start: int


class LogFile:
    """An open log file; a context manager. `window_bytes`: bytes read at a time. All methods raise OSError."""

    def __init__(self, path: str, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.path = path
        disk = Disk()
        self._file = Descriptor(disk, disk.open(path, os.O_RDONLY))
        self._memory = bytearray(window_bytes)
        self._chunk_bytes = min(max(window_bytes, HEADER_SIZE), WALK_CHUNK_SIZE)
        self._begin = self._end = 0
        status = os.fstat(self._file.fd)
        self.size = status.st_size
        self.identity = (status.st_dev, status.st_ino)

    def header(self, position: int) -> BatchHeader:
        """Return the batch header at a position, with its length and magic checked. Raises ProtocolError, CutError."""
        start = self._locate(position, HEADER_SIZE)
        return read_header(self._memory, start)

    def header_after(self, position: int, header: BatchHeader) -> BatchHeader | None:
        """Return the header of the next batch, None if no whole one follows; the window has the batch itself, too."""
        size = header.size + HEADER_SIZE
        if size > self.size - position:
            return None
        try:
            self._locate(position, size)
            return self.header(position + header.size)
        except ProtocolError:  # reported when that batch is read
            return None

    def batch(self, position: int, header: BatchHeader) -> tuple[memoryview, int]:
        """Return a buffer and the position of the whole batch in it, after checking its CRC.

        Raises CorruptBatchError, CutError.
        """
        start = self._locate(position, header.size)
        view = memoryview(self._memory)
        verify_crc(view, start, header)
        return view, start

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch that begins between two positions. Raises ProtocolError, CutError."""
        for at, header in walk_headers(self._file, position, min(end, self.size), self._chunk_bytes):
            yield at, header
            position = at + header.size
        if position < end:  # a batch that extends beyond the end or is truncated
            yield position, self.header(position)

    def scan(self) -> Iterator[StoredBatch]:
        """Yield every batch from the beginning of the file, before its CRC is checked.

        The bytes of a batch are valid until the next one is requested. Raises DamageError if no whole batch follows.
        """
        position = 0
        try:
            for at, header in self.headers(0, self.size):
                start = self._locate(at, header.size)
                yield StoredBatch(at, header, memoryview(self._memory), start)
                position = at + header.size
        except ProtocolError as error:
            raise self._damage(position, error) from error

    def _damage(self, position: int, error: ProtocolError) -> DamageError:
        zeros = self._is_zero_from(position)
        reason = f"{self.size - position} zero bytes to the end" if zeros else str(error)
        return DamageError(position, reason, zeros=zeros, cut=isinstance(error, CutError))

    def _is_zero_from(self, position: int) -> bool:
        """Return whether only zeros follow a position."""
        while position < self.size:
            piece = self._file.pread(min(WINDOW_BYTES, self.size - position), position)
            if not piece or piece.count(0) < len(piece):
                return not piece
            position += len(piece)
        return True

    def _locate(self, position: int, size: int) -> int:
        """Load the bytes unless they are in the window; return their position in it."""
        if position < self._begin or position + size > self._end:
            if size > self.size - position:
                raise CutError(f"a batch of {size} bytes is cut off after {max(self.size - position, 0)}")
            self._fill(position, size)
        return position - self._begin

    def _fill(self, position: int, size: int) -> None:
        if size > len(self._memory):
            self._memory = bytearray(size)  # not resized: views of the old window may still be in use
        view = memoryview(self._memory)
        self._begin, filled = position, 0
        while filled < size:
            count = self._file.read_into(view[filled:], position + filled)
            if not count:
                self._end = position + filled
                raise CutError(f"the file ends at {position + filled}")
            filled += count
        self._end = position + filled

    def close(self) -> None:
        """Close the file."""
        del self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment's log file at the time of the listing. `size` in bytes, `identity` (device, inode)."""

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

    A listing concurrent with a rename may contain the old name, the new one or neither, and an omitted segment would
    appear deleted. So a listing is valid only if all its files exist and the next listing is the same.
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
    """Return the segments with these names, or None if a file has disappeared.

    While compaction replaces segments, the new one may exist only under its `.swap` name.
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
