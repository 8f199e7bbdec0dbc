"""Decode batches into records, decompressing them if necessary.

A fast consumer uses `decoded_batches`, which yields lists instead of single records, and passes `make` and `prefix` so
that the codec creates the consumer's own record type, such as `make=ConsumedRecord, prefix=(topic, partition)`; msgspec
Structs with `gc=False` are the cheapest. Continue at `header.next_offset` of the last batch rather than after the last
record: batches may be empty after compaction, or hold control records.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from warmlog.protocol.errors import UnsupportedCompressionError
from warmlog.protocol.records.batch import headers, refuse_cut, verify_crc
from warmlog.protocol.records.codec import Record, decode_records
from warmlog.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE, decompress
from warmlog.protocol.records.layout import (
    CODEC_MASK,
    FIRST_UNKNOWN_CODEC,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
)
from warmlog.protocol.records.record import Buffer

__all__ = ["Record", "decode_batch", "decoded_batches", "max_record_timestamp", "records_in"]

T = TypeVar("T")


@overload
def decode_batch(
    buffer: Buffer, position: int, header: BatchHeader, *, max_decompressed_size: int = ...
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
) -> list[T]: ...
def decode_batch(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
) -> list[Any]:
    """Decode the records of the batch at `position`, decompressing it if necessary.

    Each record is created as `make(*prefix, offset, timestamp, key, value, headers)`. Control batches yield their
    control records; check `header.is_control`. The CRC is not verified (see `verify_crc`). Raises CorruptBatchError for
    a batch that is cut off, CompressionError, UnsupportedCompressionError, and InvalidRecordError for records that do
    not match the header. Decompressing a large batch takes milliseconds: do not call it on an event loop.
    """
    start = position + HEADER_SIZE
    end = position + header.size
    if end > len(buffer):
        refuse_cut(header, len(buffer) - position)
    if codec := header.attributes & CODEC_MASK:
        buffer = _decompress(codec, memoryview(buffer)[start:end], max_decompressed_size)
        start = 0
        end = len(buffer)
    return decode_records(
        buffer,
        start,
        end,
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.append_time_ms,
        make,
        prefix,
    )


def max_record_timestamp(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """Return the max timestamp of a batch's records, ignoring its header; NO_TIMESTAMP if no record has one.

    Costs and raises what `decode_batch` does.
    """
    return max(decode_batch(buffer, position, header, make=_timestamp_only), default=NO_TIMESTAMP)


def _timestamp_only(_: int, timestamp: int, *__: object) -> int:
    return timestamp


def decoded_batches(
    buffer: Buffer,
    *,
    from_offset: int | None = None,
    check_crc: bool = True,
    discards: Callable[[BatchHeader], bool] | None = None,
    max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
) -> Iterator[tuple[BatchHeader, list[Any]]]:
    """Yield (header, records) of each complete batch in `buffer`, which may end within a batch as fetched bytes do.

    `from_offset` skips records below it (a fetch starts with the whole batch that holds the offset); the objects from
    `make` then need an `offset`. Batches entirely below it are not decoded. Control batches come with an empty list,
    and so do those that `discards` (of an `AbortedFilter`) selects.
    Raises what `read_header`, `verify_crc` (unless `check_crc=False`) and `decode_batch` raise, after yielding the
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
    max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE,
) -> Iterator[Record]:
    """Yield the records of all complete batches in `buffer`, except control records.

    Takes the parameters and raises the errors of `decoded_batches`.
    """
    for _, records in decoded_batches(
        buffer, from_offset=from_offset, check_crc=check_crc, max_decompressed_size=max_decompressed_size
    ):
        yield from records


def _decompress(codec: int, block: memoryview, max_size: int) -> Buffer:
    if codec >= FIRST_UNKNOWN_CODEC:
        raise UnsupportedCompressionError(f"unknown compression codec {codec}")
    return decompress(Codec(codec), block, max_size=max_size)
