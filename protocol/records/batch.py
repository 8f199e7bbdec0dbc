"""Find, verify and stamp batches in a buffer without parsing their records.

Invariants:
1. No field of a batch is trusted until its length has been checked against the size of the buffer.
2. The magic is checked explicitly: the CRC does not cover it, so a flipped bit would go unnoticed (as it does in Kafka
   4).
3. The fields that the broker sets in every batch (base offset, leader epoch) lie outside the CRC and are written
   without touching the rest. If timestamps or the codec change, the header is rewritten, and the records are not
   copied.

Source: org.apache.kafka.common.record.internal.DefaultRecordBatch.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Final, NoReturn

from warmlog.protocol.errors import CorruptBatchError, UnsupportedMagicError
from warmlog.protocol.records.crc import crc32c
from warmlog.protocol.records.layout import (
    BASE_OFFSET_POSITION,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    BatchHeader,
)
from warmlog.protocol.records.record import Buffer

__all__ = [
    "BatchHeader",
    "batch_spans",
    "headers",
    "read_header",
    "refuse_crc",
    "refuse_cut",
    "rewritten_start",
    "stamp",
    "verify_crc",
]

# Bound once because log scans read every batch header. `_new(BatchHeader, fields)` avoids the call of _make.
_unpack_header = HEADER.unpack_from
_new = tuple.__new__
_BASE_OFFSET: Final = Struct(">q")
_LEADER_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_LENGTH: Final = Struct(">8xi")  # the length of the bytes after this field

# Message formats before version 2.
OLD_MAGICS: Final = (0, 1)

# Release the GIL for larger CRCs only: the CRC of 1 MiB takes 40 µs, about as long as handing the GIL over and back.
GIL_RELEASE_SIZE: Final = 1 << 20


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the batch header at `position`, checking only its length and magic.

    Raises UnsupportedMagicError for magic 0 and 1; CorruptBatchError for other values except 2, for fewer than 61
    bytes, and for a batch length smaller than a header.
    """
    try:
        header = _new(BatchHeader, _unpack_header(buffer, position))
    except struct_error:
        _refuse_short(buffer, position)
    if header.magic != MAGIC:
        _refuse_magic(header.magic)
    if header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatchError(f"the batch length of {header.batch_length} bytes is smaller than a batch header")
    return header


def headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position`, without checking CRCs.

    Stops before a batch that extends past `end` (by default the end of the buffer). Raises what `read_header` raises.
    """
    if end is None:
        end = len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        following = position + header.size
        if following > end:
            return
        yield position, header
        position = following


def batch_spans(records: Buffer) -> Iterator[tuple[int, int]]:
    """Yield (position, size) of each batch, reading only lengths, for batches that are validated later.

    Stops if no whole header is left, and after a batch whose length is smaller than a header: its size is 0. The
    last batch may extend past the end of the buffer.
    """
    position, end = 0, len(records)
    while position + HEADER_SIZE <= end:
        length: int = _LENGTH.unpack_from(records, position)[0]
        if length < MIN_BATCH_LENGTH:
            yield position, 0
            return
        yield position, LOG_OVERHEAD + length
        position += LOG_OVERHEAD + length


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Verify the CRC-32C of the batch at `position`, releasing the GIL for batches over 1 MiB.

    Raises CorruptBatchError if it does not match or the batch is cut off.
    """
    end = position + header.size
    view = memoryview(buffer)
    if end > len(view):
        refuse_cut(header, len(view) - position)
    computed = crc32c(view[position + CRC_START : end], 0, header.size > GIL_RELEASE_SIZE)
    if computed != header.crc:
        refuse_crc(header, computed)


def rewritten_start(header: BatchHeader, records: Buffer, *, base_offset: int, leader_epoch: int) -> bytes:
    """Return the 61 bytes of a modified header, with the CRC computed over it and `records`.

    Followed by `records`, compressed as the header states, they form the stored batch. Releases the GIL for records
    over 1 MiB.
    """
    fields = header._replace(base_offset=base_offset, leader_epoch=leader_epoch, crc=0)
    start = bytearray(HEADER.pack(*fields))
    covered = crc32c(memoryview(start)[CRC_START:])
    _CRC.pack_into(start, CRC_POSITION, crc32c(records, covered, len(records) > GIL_RELEASE_SIZE))
    return bytes(start)


def stamp(header_bytes: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write base offset and leader epoch into the header at `position`, in place; the CRC stays valid."""
    _BASE_OFFSET.pack_into(header_bytes, position + BASE_OFFSET_POSITION, base_offset)
    _LEADER_EPOCH.pack_into(header_bytes, position + LEADER_EPOCH_POSITION, leader_epoch)


def _refuse_short(buffer: Buffer, position: int) -> NoReturn:
    """Raise for a buffer shorter than a header; name the format of an older batch, which may be that short."""
    left = len(buffer) - position
    if left > MAGIC_POSITION and (magic := buffer[position + MAGIC_POSITION]) != MAGIC:
        _refuse_magic(magic)
    raise CorruptBatchError(f"{left} bytes are too few for a batch header of {HEADER_SIZE}")


def _refuse_magic(magic: int) -> NoReturn:
    """Raise UnsupportedMagicError for formats 0 and 1, CorruptBatchError for any other."""
    if magic in OLD_MAGICS:
        raise UnsupportedMagicError(
            f"message format version {magic} is not supported; send version {MAGIC} (clients from Kafka 0.11 on)"
        )
    raise CorruptBatchError(f"unknown message format version {magic}")


def refuse_cut(header: BatchHeader, left: int) -> NoReturn:
    """Raise CorruptBatchError for a batch of which only `left` bytes are available."""
    raise CorruptBatchError(f"a batch of {header.size} bytes is cut off after {left}")


def refuse_crc(header: BatchHeader, computed: int) -> NoReturn:
    """Raise CorruptBatchError for a batch whose computed CRC differs from its header."""
    raise CorruptBatchError(f"the CRC of the batch is {computed:#010x}, but its header states {header.crc:#010x}")
