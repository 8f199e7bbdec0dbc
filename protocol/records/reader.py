"""Decode stored batches into records, decompressing them if necessary, leniently (see `compression`).

Only batches from producers are read strictly, in `reencode`. Callers that need no keys or values read a block part by
part (`batch_windows`, `offsets_and_times`), in bounded memory.

A fast consumer uses `decoded_batches`, which yields lists instead of single records, and passes `make` and `prefix` so
that the codec creates the consumer's own record type, such as `make=ConsumedRecord, prefix=(topic, partition)`; msgspec
Structs with `gc=False` are the cheapest. Continue at `header.next_offset` of the last batch rather than after the last
record: batches may be empty after compaction, or hold control records.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from warmlog.protocol.errors import ProtocolError, UnsupportedCompressionError
from warmlog.protocol.records.batch import headers, refuse_cut, verify_crc
from warmlog.protocol.records.codec import Record, decode_records
from warmlog.protocol.records.compression import MAX_STORED_SIZE, decompress, decompressed_parts
from warmlog.protocol.records.layout import (
    CODEC_MASK,
    FIRST_UNKNOWN_CODEC,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
)
from warmlog.protocol.records.record import MAX_INT32, Buffer
from warmlog.protocol.records.windows import Window, record_windows

__all__ = [
    "Record",
    "batch_windows",
    "decode_batch",
    "decoded_batches",
    "offsets_and_times",
    "records_in",
    "uncompressed_records",
    "with_sound_timestamp",
]

T = TypeVar("T")


@overload
def decode_batch(
    buffer: Buffer, position: int, header: BatchHeader, *, max_decompressed_size: int = ..., max_headers: int = ...
) -> list[Record]: ...
@overload
def decode_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    max_decompressed_size: int = ...,
    make: Callable[..., T],
    prefix: tuple[Any, ...] = ...,
    max_headers: int = ...,
) -> list[T]: ...
def decode_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    max_decompressed_size: int = MAX_STORED_SIZE,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
    max_headers: int = MAX_INT32,
) -> list[Any]:
    """Decode the records of the batch at `position`, decompressing it if necessary.

    Each record is created as `make(*prefix, offset, timestamp, key, value, headers)`, with up to `max_headers` of its
    headers. Control batches yield their control records; check `header.is_control`. The CRC is not verified (see
    `verify_crc`). Raises CorruptBatchError for a batch that is cut off, CompressionError, UnsupportedCompressionError,
    and InvalidRecordError for records that do not match the header. Decompressing a large batch takes milliseconds: do
    not call it on an event loop.
    """
    records = uncompressed_records(buffer, position, header, max_size=max_decompressed_size)
    return decode_records(
        records,
        0,
        len(records),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.append_time_ms,
        make,
        prefix,
        max_headers,
    )


def uncompressed_records(
    buffer: Buffer, position: int, header: BatchHeader, *, max_size: int = MAX_STORED_SIZE
) -> Buffer:
    """Return the encoded records of the batch at `position`, decompressed if necessary.

    Raises CorruptBatchError for a batch that is cut off, CompressionError, UnsupportedCompressionError.
    """
    block = _block(buffer, position, header)
    if header.attributes & CODEC_MASK:
        return decompress(_codec(header), block, max_size=max_size)
    return block


def batch_windows(buffer: Buffer, position: int, header: BatchHeader) -> Iterator[Window]:
    """Yield the records of the batch at `position`, decompressed part by part: see `record_windows`.

    Raises the errors of `decode_batch`, also after some windows; records are validated when a window is decoded.
    """
    block = _block(buffer, position, header)
    if header.attributes & CODEC_MASK:
        return record_windows(decompressed_parts(_codec(header), block), header.record_count)
    return iter((Window(block, header.record_count),))


def offsets_and_times(buffer: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record of the batch at `position`, in bounded memory.

    Raises the errors of `decode_batch`, also after some records.
    """
    for window in batch_windows(buffer, position, header):
        yield from decode_records(
            window.records,
            0,
            len(window.records),
            window.count,
            header.base_offset,
            header.base_timestamp,
            header.append_time_ms,
            _offset_and_time,
            (),
            0,
        )


def _offset_and_time(offset: int, timestamp: int, *_: object) -> tuple[int, int]:
    return offset, timestamp


def with_sound_timestamp(buffer: Buffer, position: int, header: BatchHeader) -> BatchHeader:
    """Return the header of the batch at `position`, with the max timestamp of its records if its own is invalid.

    If the records cannot be read, it is the timestamp of the first record. The batch is decompressed, so do not call
    this on an event loop.
    """
    if not header.has_invalid_max_timestamp:
        return header
    try:
        largest = max((time for _, time in offsets_and_times(buffer, position, header)), default=NO_TIMESTAMP)
    except ProtocolError:
        largest = NO_TIMESTAMP
    return header._replace(max_timestamp=max(largest, header.base_timestamp))


def decoded_batches(
    buffer: Buffer,
    *,
    from_offset: int | None = None,
    check_crc: bool = True,
    discards: Callable[[BatchHeader], bool] | None = None,
    max_decompressed_size: int = MAX_STORED_SIZE,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
) -> Iterator[tuple[BatchHeader, list[Any]]]:
    """Yield (header, records) of each complete batch in `buffer`, which may end within a batch as fetched bytes do.

    `from_offset` skips records below it (a fetch starts with the whole batch that holds the offset); the objects from
    `make` then need an `offset`. Batches entirely below it are not decoded. Control batches, and batches selected by
    `discards` (of an `AbortedFilter`), have an empty list.
    Raises the errors of `read_header`, `verify_crc` (unless `check_crc=False`) and `decode_batch`, after yielding the
    batches before the invalid one.
    """
    for position, header in headers(buffer):
        if from_offset is not None and header.next_offset <= from_offset:
            continue
        if check_crc:
            verify_crc(buffer, position, header)
        if (discards is not None and discards(header)) or header.is_control:
            yield header, []
            continue
        records = decode_batch(
            buffer, position, header, max_decompressed_size=max_decompressed_size, make=make, prefix=prefix
        )
        if from_offset is not None and header.base_offset < from_offset:
            records = [record for record in records if record.offset >= from_offset]
        yield header, records


def records_in(
    buffer: Buffer,
    *,
    from_offset: int | None = None,
    check_crc: bool = True,
    max_decompressed_size: int = MAX_STORED_SIZE,
) -> Iterator[Record]:
    """Yield the records of all complete batches in `buffer`, except control records.

    Takes the parameters and raises the errors of `decoded_batches`.
    """
    for _, records in decoded_batches(
        buffer, from_offset=from_offset, check_crc=check_crc, max_decompressed_size=max_decompressed_size
    ):
        yield from records


def _codec(header: BatchHeader) -> Codec:
    codec = header.attributes & CODEC_MASK
    if codec >= FIRST_UNKNOWN_CODEC:
        raise UnsupportedCompressionError(f"unknown compression codec {codec}")
    return Codec(codec)


def _block(buffer: Buffer, position: int, header: BatchHeader) -> memoryview:
    """Return the bytes after the header of a batch. Raises CorruptBatchError if the batch is cut off."""
    end = position + header.size
    if end > len(buffer):
        refuse_cut(header, len(buffer) - position)
    return memoryview(buffer)[position + HEADER_SIZE : end]
