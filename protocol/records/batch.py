"""Whole batches in a buffer: find them, verify and stamp them. No record is looked at.

Owns: how a batch is told from other bytes, and what of it a broker writes anew. Must not know: files, offsets of a log,
clocks, what a topic allows (`validation`); what is inside a batch.

Invariants:
1. Nothing before a batch's end is believed before its length was held against the bytes that are there.
2. The magic is checked by itself: it lies outside the CRC, a flipped one would go unnoticed (Kafka 4 keeps such a
   batch).
3. What the broker changes of every batch (base offset, leader epoch) lies outside the CRC, so a batch is stamped
   without touching the rest. Where times or codec change, the header is made anew, and records are not copied for it.

Source: org.apache.kafka.common.record.internal.DefaultRecordBatch.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NoReturn

from crc32c import crc32c

from protocol.errors import CorruptBatchError, UnsupportedMagicError
from protocol.records.layout import (
    BASE_OFFSET_POSITION,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    MAGIC,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    BatchHeader,
)
from protocol.records.record import Buffer

__all__ = [
    "BatchHeader",
    "headers",
    "read_header",
    "refuse_crc",
    "refuse_cut",
    "rewritten_start",
    "stamp",
    "stamped_start",
    "verify_crc",
]

# Bound once: every batch of a log scan comes by. `_new(BatchHeader, fields)` is BatchHeader._make without its call.
_unpack_header = HEADER.unpack_from
_new = tuple.__new__
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_STAMP = Struct(">qii")
_CRC = Struct(">I")

# The formats before this one.
OLD_MAGICS = (0, 1)

# The CRC of this much takes 40 µs, about as long as handing the GIL over and back; only what is larger is worth giving
# it up.
GIL_RELEASE_SIZE = 1 << 20


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch that begins at `position`, with its length and magic checked and nothing else.

    Raises CorruptBatchError where fewer than 61 bytes are left or the length is smaller than a header,
    UnsupportedMagicError for magic 0 and 1, CorruptBatchError for any other but 2.
    """
    try:
        header = _new(BatchHeader, _unpack_header(buffer, position))
    except struct_error:
        _refuse_short(buffer, position)
    if header.magic != MAGIC:
        _refuse_magic(header.magic)
    if header.batch_length < MIN_BATCH_LENGTH:
        raise CorruptBatchError(f"a batch length of {header.batch_length} bytes, less than a header")
    return header


def headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch from `position` on.

    Stops before one that is cut at `end` (by default the buffer's). Raises as `read_header` does. CRCs are not checked.
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


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Hold the CRC-32C of the whole batch at `position` against its header's.

    Raises CorruptBatchError, also where the batch is cut. Keeps the GIL up to 1 MiB (40 µs), gives it up for more.
    """
    end = position + header.size
    view = memoryview(buffer)
    if end > len(view):
        refuse_cut(header, len(view) - position)
    found = crc32c(view[position + CRC_START : end], 0, header.size > GIL_RELEASE_SIZE)
    if found != header.crc:
        refuse_crc(header, found)


def stamped_start(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """The first STAMPED_SIZE (16) bytes of a batch as the broker stores it: base offset, length, leader epoch.

    They and the bytes from 16 on are the stamped batch, without a change to the buffer that it was received in.
    """
    return _STAMP.pack(base_offset, header.batch_length, leader_epoch)


def rewritten_start(header: BatchHeader, records: Buffer, *, base_offset: int, leader_epoch: int) -> bytes:
    """All 61 bytes of a header whose fields were changed, with the CRC that goes with these records.

    They and the bytes of `records` (compressed as the header says) are the batch as the broker stores it. Keeps the GIL
    up to 1 MiB, gives it up for more.
    """
    fields = header._replace(base_offset=base_offset, leader_epoch=leader_epoch, crc=0)
    start = bytearray(HEADER.pack(*fields))
    covered = crc32c(memoryview(start)[CRC_START:])
    _CRC.pack_into(start, CRC_POSITION, crc32c(records, covered, len(records) > GIL_RELEASE_SIZE))
    return bytes(start)


def stamp(header_bytes: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write the two fields that are the broker's into the header at `position`, in place.

    Both lie outside the CRC, which stays valid.
    """
    _BASE_OFFSET.pack_into(header_bytes, position + BASE_OFFSET_POSITION, base_offset)
    _LEADER_EPOCH.pack_into(header_bytes, position + LEADER_EPOCH_POSITION, leader_epoch)


def _refuse_short(buffer: Buffer, position: int) -> NoReturn:
    """Raise for fewer bytes than a header; batches of older formats may be that short."""
    left = len(buffer) - position
    if left > MAGIC_POSITION and (magic := buffer[position + MAGIC_POSITION]) != MAGIC:
        _refuse_magic(magic)
    raise CorruptBatchError(f"{left} bytes, less than the header of a batch")


def _refuse_magic(magic: int) -> NoReturn:
    """Raise for any magic but 2: formats 0 and 1 there were, a batch that says another is damaged."""
    if magic in OLD_MAGICS:
        raise UnsupportedMagicError(f"a batch of format {magic}; only format {MAGIC} is served")
    raise CorruptBatchError(f"a batch of format {magic}, which there is not")


def refuse_cut(header: BatchHeader, left: int) -> NoReturn:
    """Raise CorruptBatchError for a batch of which only `left` bytes are there."""
    raise CorruptBatchError(f"a batch of {header.size} bytes is cut off after {left}")


def refuse_crc(header: BatchHeader, found: int) -> NoReturn:
    """Raise CorruptBatchError for a batch whose CRC is another than its header says."""
    raise CorruptBatchError(f"the CRC of the batch is {found:#010x}, its header says {header.crc:#010x}")
