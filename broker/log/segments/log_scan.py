"""Scan the batch headers of a log file.

The largest timestamp of a stored header may be invalid: appends correct it, but older directories and those of other
brokers have such batches. Code that depends on timestamps must use `timed` headers.

The file is not trusted: a batch length that points outside of it, another magic, or a file shorter than its recorded
size ends the scan with CorruptBatchError.

This is the only walk over stored batches in Python: recovery, lookups and the offline tools (`warmlog.inspect`) use it.
Where the cost per batch matters, recovery and compaction have a compiled loop over a chunk of the file instead.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from warmlog.broker.log.errors import MisplacedBatchError
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.io.residency import GatedFile
from warmlog.protocol.errors import CorruptBatchError, ProtocolError
from warmlog.protocol.records.batch import read_header, verify_crc
from warmlog.protocol.records.layout import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MIN_BATCH_LENGTH,
    BatchHeader,
)
from warmlog.protocol.records.reader import with_sound_timestamp

FIND_CHUNK_SIZE: Final = 8192  # an index interval plus a small batch, so that one read usually finds the batch
WALK_CHUNK_SIZE: Final = 1 << 18  # few reads for a long scan, at little memory

_BASE_OFFSET, _BATCH_LENGTH, _LAST_OFFSET_DELTA = (
    BatchHeader._fields.index(name) for name in ("base_offset", "batch_length", "last_offset_delta")
)


Walk: TypeAlias = Callable[[Descriptor, int, int], Iterator[tuple[int, BatchHeader]]]


class CutError(CorruptBatchError):
    """The file ends inside a batch."""


class BatchEnd(NamedTuple):
    """An index entry: a batch's position and last offset; None for the first batch of a file, which has no entry."""

    position: int
    last_offset: int | None


class BatchLocation(NamedTuple):
    """A batch's position and size in its file, in bytes."""

    position: int
    size: int


def find_batch(file: Descriptor | GatedFile, offset: int, start: BatchEnd, end: int) -> BatchLocation | None:
    """Return the first batch from `start` on that ends at or past `offset`, or None if there is none before byte `end`.

    Unpacks headers in place, since every fetch may scan. Raises MisplacedBatchError if the batch at `start` has another
    last offset, CorruptBatchError, OSError.
    """
    position, expected = start.position, start.last_offset
    if expected is not None and not 0 <= position <= end - HEADER_SIZE:
        raise MisplacedBatchError(f"position {position} of offset {expected} is outside the log file's {end} bytes")
    while position + HEADER_SIZE <= end:
        chunk = file.pread(min(FIND_CHUNK_SIZE, end - position), position)
        at, last = 0, len(chunk) - HEADER_SIZE
        if last < 0:
            raise _cut(position, end)
        while at <= last:
            fields = HEADER.unpack_from(chunk, at)
            length, last_offset = fields[_BATCH_LENGTH], fields[_BASE_OFFSET] + fields[_LAST_OFFSET_DELTA]
            if expected is not None:
                if last_offset != expected:
                    raise MisplacedBatchError(f"no batch at {position} ends at offset {expected}")
                expected = None
            if length < MIN_BATCH_LENGTH:
                raise CorruptBatchError(f"batch length of {length} bytes at position {position + at}")
            if last_offset >= offset:
                return BatchLocation(position + at, length + LOG_OVERHEAD)
            at += length + LOG_OVERHEAD
        position += at
    return None


def read_header_at(file: Descriptor, position: int) -> BatchHeader:
    """Read the header at a position. Raises CorruptBatchError, UnsupportedMagicError, OSError."""
    return read_header(file.pread(HEADER_SIZE, position))


def walk_headers(
    file: Descriptor, position: int, end: int, chunk_size: int = WALK_CHUNK_SIZE
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position` to `end`, without checking CRCs.

    Stops before a batch that reaches past `end`. `chunk_size`: bytes per read. Raises CutError if the file is shorter
    than `end`, CorruptBatchError, UnsupportedMagicError, OSError.
    """
    while position + HEADER_SIZE <= end:
        chunk = file.pread(min(chunk_size, end - position), position)
        at = 0
        while at + HEADER_SIZE <= len(chunk):
            header = read_header(chunk, at)
            if position + at + header.size > end:
                return
            yield position + at, header
            at += header.size
        if not at:
            raise _cut(position, end)
        position += at


def walk_readable(file: Descriptor, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield as `walk_headers` does, but end before the first damaged batch: those after it cannot be located."""
    with suppress(ProtocolError):
        yield from walk_headers(file, position, end)


def walk_verified(file: Descriptor, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield as `walk_headers` does, checking every CRC. A batch that reaches past `end` is an error, too."""
    chunk, chunk_start = b"", position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(WALK_CHUNK_SIZE, end - position), position), position, 0
        header = read_header(chunk, at)
        if header.size > end - position:
            raise CorruptBatchError(f"truncated batch: {end - position} of {header.size} bytes")
        if at + header.size > len(chunk):
            size = max(header.size, min(WALK_CHUNK_SIZE, end - position))
            chunk, chunk_start, at = file.pread(size, position), position, 0
        verify_crc(chunk, at, header)
        yield position, header
        position += header.size


def timed(file: Descriptor, position: int, header: BatchHeader) -> BatchHeader:
    """Return a batch's header, with the largest timestamp taken from its records if the stored one is invalid.

    Such a batch is read and decompressed, so not for the event loop. If it cannot be decoded, the timestamp of its
    first record is used. Raises OSError.
    """
    if not header.has_invalid_max_timestamp:
        return header
    return with_sound_timestamp(file.pread(header.size, position), 0, header)


def walk_timed(
    file: Descriptor, position: int, end: int, walk: Walk = walk_headers
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield as `walk` does, with headers corrected by `timed`."""
    for at, header in walk(file, position, end):
        yield at, timed(file, at, header) if header.max_timestamp < header.base_timestamp else header


def _cut(position: int, end: int) -> CutError:
    return CutError(f"log file is shorter than its {end} bytes: it ends near position {position}")
