"""Whole batches in a buffer: find, check and stamp them. No record is looked at but to walk its lengths.

Owns: what makes bytes a valid batch. Must not know: files, offsets of a log, clocks; what is inside a compressed block.

Invariants:
1. Nothing before a batch's end is believed before its length was held against the bytes that are there.
2. The magic is checked by itself: it lies outside the CRC, a flipped one would go unnoticed (Kafka 4 keeps such a
   batch).
3. What the broker changes (base offset, leader epoch) lies outside the CRC, so a batch is stamped without touching the
   rest.

Source: org.apache.kafka.common.record.DefaultRecordBatch, org.apache.kafka.storage.internals.log.LogValidator.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NoReturn

from crc32c import crc32c

from protocol.errors import CorruptBatchError, ErrorCode, InvalidRecordError, ProtocolError, UnsupportedMagicError
from protocol.records.codec import accept_batch, walk_records
from protocol.records.layout import (
    BASE_OFFSET_POSITION,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    FIRST_UNKNOWN_CODEC,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    UNUSUAL_BITS,
    BatchHeader,
)
from protocol.records.record import MIN_RECORD_SIZE, Buffer

__all__ = [
    "BatchHeader",
    "BatchTooLargeError",
    "InvalidTimestampError",
    "UnsupportedCompressionError",
    "check_batches",
    "headers",
    "read_header",
    "stamp",
    "stamped_start",
    "verify_crc",
]

# Bound once: `check_batches` is the hot line of produce. `_new(BatchHeader, fields)` is BatchHeader._make without its
# call.
_unpack_header = HEADER.unpack_from
_new = tuple.__new__
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_STAMP = Struct(">qii")

# The CRC of this much takes 40 µs, about as long as handing the GIL over and back; only what is larger is worth giving
# it up.
_GIL_RELEASE_SIZE = 1 << 20


class BatchTooLargeError(ProtocolError):
    """A batch over the limit of its topic (`max.message.bytes`)."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTimestampError(ProtocolError):
    """A batch with a time that no producer may give: negative, or marked as the broker's own."""

    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedCompressionError(ProtocolError):
    """A batch whose attributes name a codec that is not one of the five."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch that begins at `position`, with its length and magic checked and nothing else.

    Raises CorruptBatchError where fewer than 61 bytes are left or the length is smaller than a header,
    UnsupportedMagicError for any magic but 2.
    """
    try:
        header = _new(BatchHeader, _unpack_header(buffer, position))
    except struct_error:
        _refuse_short(buffer, position)
    if header.magic != MAGIC:
        raise UnsupportedMagicError(f"a batch of format {header.magic}; only format {MAGIC} is served")
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
        _refuse_cut(header, len(view) - position)
    found = crc32c(view[position + CRC_START : end], 0, header.size > _GIL_RELEASE_SIZE)
    if found != header.crc:
        _refuse_crc(header, found)


def check_batches(
    buffer: Buffer, *, max_batch_size: int | None = None, walk: bool = True
) -> list[tuple[int, BatchHeader]]:
    """Check what a producer sent: one or more whole batches end to end. Gives (position, header) of each.

    Holds each one's magic, length, size against `max_batch_size` (bytes of a whole batch), CRC, record count (last
    offset delta + 1, at least 1, and what the size can hold), attributes and times. `walk`: the records of an
    uncompressed batch are walked, too. Compressed ones are not opened, which Kafka does. All or nothing: raises
    CorruptBatchError, UnsupportedMagicError, BatchTooLargeError, UnsupportedCompressionError, InvalidTimestampError or
    InvalidRecordError (all ProtocolErrors with their code). No bytes at all are a CorruptBatchError.
    """
    view = memoryview(buffer)
    end = len(view)
    if accept_batch is not None and (max_batch_size is None or end <= max_batch_size):
        accepted = accept_batch(view, walk, end > _GIL_RELEASE_SIZE)
        if accepted is not None:
            return [(0, accepted)]
    if not end:
        raise CorruptBatchError("no batch at all")
    found = []
    position = 0
    while position < end:
        header = read_header(view, position)
        following = position + header.batch_length + LOG_OVERHEAD
        if following > end:
            _refuse_cut(header, end - position)
        if max_batch_size is not None and following - position > max_batch_size:
            raise BatchTooLargeError(f"a batch of {header.size} bytes, over the limit of {max_batch_size}")
        found_crc = crc32c(view[position + CRC_START : following], 0, following - position > _GIL_RELEASE_SIZE)
        if found_crc != header.crc:
            _refuse_crc(header, found_crc)
        is_compressed = _check_fields(header)
        if walk and not is_compressed:
            walk_records(view, position + HEADER_SIZE, following, header.record_count)
        found.append((position, header))
        position = following
    return found


def stamped_start(header: BatchHeader, *, base_offset: int, leader_epoch: int) -> bytes:
    """The first STAMPED_SIZE (16) bytes of a batch as the broker stores it: base offset, length, leader epoch.

    They and the bytes from 16 on are the stamped batch, without a change to the buffer that it was received in.
    """
    return _STAMP.pack(base_offset, header.batch_length, leader_epoch)


def stamp(header_bytes: bytearray | memoryview, *, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write the two fields that are the broker's into the header at `position`, in place.

    Both lie outside the CRC, which stays valid.
    """
    _BASE_OFFSET.pack_into(header_bytes, position + BASE_OFFSET_POSITION, base_offset)
    _LEADER_EPOCH.pack_into(header_bytes, position + LEADER_EPOCH_POSITION, leader_epoch)


def _check_fields(header: BatchHeader) -> bool:
    """What the CRC cannot say: that the fields make sense together, and that a producer may set them so.

    Gives whether the batch is compressed.
    """
    _, length, _, _, _, attributes, last_delta, base_time, max_time, producer_id, epoch, sequence, count = header
    if count < 1 or count - 1 != last_delta:
        raise InvalidRecordError(f"a batch of {count} records whose last offset delta is {last_delta}")
    if attributes & UNUSUAL_BITS:
        _check_attributes(header)
    elif count * MIN_RECORD_SIZE > length - MIN_BATCH_LENGTH:
        raise InvalidRecordError(f"{count} records cannot stand in {length - MIN_BATCH_LENGTH} bytes")
    if base_time < NO_TIMESTAMP or max_time < NO_TIMESTAMP:
        raise InvalidTimestampError(f"a batch with times {base_time} and {max_time}, in ms")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise InvalidRecordError(f"a batch of producer {producer_id} with epoch {epoch} and sequence {sequence}")
    return attributes & CODEC_MASK != 0


def _check_attributes(header: BatchHeader) -> None:
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec >= FIRST_UNKNOWN_CODEC:
        raise UnsupportedCompressionError(f"a batch compressed by codec {codec}, which is none")
    if attributes & CONTROL_BIT:
        raise InvalidRecordError("a control batch, which only a broker may write")
    if attributes & DELETE_HORIZON_BIT:
        raise InvalidRecordError("a batch with a delete horizon, which only compaction may set")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestampError("a batch marked with log append time, which only a broker may set")
    if header.batch_length == MIN_BATCH_LENGTH:
        raise InvalidRecordError(f"{header.record_count} records in a compressed block of no bytes")


def _refuse_short(buffer: Buffer, position: int) -> NoReturn:
    """Raise for fewer bytes than a header; batches of older formats may be that short."""
    left = len(buffer) - position
    if left > MAGIC_POSITION and (magic := buffer[position + MAGIC_POSITION]) != MAGIC:
        raise UnsupportedMagicError(f"a batch of format {magic}; only format {MAGIC} is served")
    raise CorruptBatchError(f"{left} bytes, less than the header of a batch")


def _refuse_cut(header: BatchHeader, left: int) -> NoReturn:
    raise CorruptBatchError(f"a batch of {header.size} bytes is cut off after {left}")


def _refuse_crc(header: BatchHeader, found: int) -> NoReturn:
    raise CorruptBatchError(f"the CRC of the batch is {found:#010x}, its header says {header.crc:#010x}")
