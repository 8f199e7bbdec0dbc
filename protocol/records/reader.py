"""A batch to its records: for clients, for the command line, for looking up a time.

Owns: the way from a header and its bytes to records, through decompression. Must not know: files, topics, who asks.

How a consumer stays above half a million records a second: take `decoded_batches` (a list at a time, no generator step
per record), and give `make` and `prefix` so that the codec makes the consumer's own record type at once, e.g.
`make=ConsumedRecord, prefix=(topic, partition)`. The cheapest types to make are msgspec Structs with `gc=False`, like
`Record`: 0.1 µs each. Then continue at `header.next_offset` of the last batch, not after the last record: batches may
be empty (compaction) or hold control markers.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

from protocol.errors import CorruptBatchError, UnsupportedCompressionError
from protocol.records.batch import headers, verify_crc
from protocol.records.codec import Record, decode_records
from protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE, decompress
from protocol.records.layout import CODEC_MASK, FIRST_UNKNOWN_CODEC, HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Codec
from protocol.records.record import Buffer

__all__ = ["Record", "decode_batch", "decoded_batches", "largest_time", "records_in"]

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
    """The records of the batch at `position`, whose header was read there; opens it where it is compressed.

    Each is made as `make(*prefix, offset, timestamp, key, value, headers)`. A control batch gives its markers: leave
    those out by `header.is_control`. Records have the broker's time where the batch says so. The CRC is not checked:
    see `verify_crc`.
    Raises CorruptBatchError where the batch is cut, CompressionError, UnsupportedCompressionError, InvalidRecordError
    where the records are not what the header says. Computes; for large compressed batches keep it off an event loop.
    """
    start = position + HEADER_SIZE
    end = position + header.size
    if end > len(buffer):
        raise CorruptBatchError(f"a batch of {header.size} bytes is cut off after {len(buffer) - position}")
    if codec := header.attributes & CODEC_MASK:
        buffer = _opened(codec, memoryview(buffer)[start:end], max_decompressed_size)
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


def largest_time(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """Return the largest time of a batch's records, whatever its header says; NO_TIMESTAMP if none has one.

    Raises and computes as `decode_batch`.
    """
    return max(decode_batch(buffer, position, header, make=_time_alone), default=NO_TIMESTAMP)


def _time_alone(_: int, timestamp: int, *__: object) -> int:
    return timestamp


def decoded_batches(
    buffer: Buffer,
    *,
    from_offset: int | None = None,
    check_crc: bool = True,
    max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE,
    make: Callable[..., Any] = Record,
    prefix: tuple[Any, ...] = (),
) -> Iterator[tuple[BatchHeader, list[Any]]]:
    """(header, records) of each whole batch in `buffer`, which may end inside one, as fetched bytes do.

    `from_offset`: records below it are left out (a fetch begins with the whole batch that holds the offset; `make` must
    then give things with an `offset`), batches wholly below it are left out unopened. A control batch comes with an
    empty list. `check_crc=False` trusts the bytes.
    Raises what `read_header`, `verify_crc` and `decode_batch` raise, at the batch where it is wrong: those before it
    were given.
    """
    for position, header in headers(buffer):
        if from_offset is not None and header.next_offset <= from_offset:
            continue
        if check_crc:
            verify_crc(buffer, position, header)
        if header.is_control:
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
    """Every record of every whole batch in `buffer`, control batches left out.

    Parameters and errors as for `decoded_batches`.
    """
    for _, records in decoded_batches(
        buffer, from_offset=from_offset, check_crc=check_crc, max_decompressed_size=max_decompressed_size
    ):
        yield from records


def _opened(codec: int, block: memoryview, max_size: int) -> Buffer:
    if codec >= FIRST_UNKNOWN_CODEC:
        raise UnsupportedCompressionError(f"a batch compressed by codec {codec}, which is none")
    return decompress(Codec(codec), block, max_size=max_size)
