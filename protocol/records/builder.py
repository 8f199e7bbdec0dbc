"""Records to a batch: whole, with header and CRC, as a producer sends it.

Owns: putting encoded records, compression and the header together. Must not know: when a batch is full or late (the
client's accumulator decides).

How a producer stays above 300,000 records a second: one `BatchBuilder` per partition; `append` is the compiled codec's
own method (0.1 µs a record), gives the size so far to hold against the batch size, and `build` then costs a copy, a CRC
(40 µs a MB) and the compression. Whoever has many records at once gives them all to `build_batch` or `extend` as
tuples: 0.02 µs a record.
"""

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from protocol.records.codec import RecordEncoder
from protocol.records.compression import compress
from protocol.records.layout import (
    CODEC_MASK,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Codec,
)
from protocol.records.record import Headers, Row

__all__ = ["BatchBuilder", "Codec", "build_batch", "record_size_bound"]

_CRC = Struct(">I")

# What a record without headers measures beside its key and value, at most: five 5-byte numbers, a 10-byte one, the
# attributes.
_RECORD_OVERHEAD = 5 * 5 + 10 + 1
_HEADER_OVERHEAD = 2 * 5


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """The most bytes that this record can take in a batch, uncompressed: to ask before an append if it still fits."""
    size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


class BatchBuilder(RecordEncoder):
    """Collects records and builds a batch of them. Not thread-safe.

    Inherits `append(key, value, timestamp, headers=()) -> size of the records so far`, `extend(rows)`, `clear()`, and
    the facts `count`, `records_size`, `base_timestamp`, `max_timestamp` (see `record.RecordEncoder` for their errors).
    After `build` the records are still there: build again for a retry with other producer fields, or `clear` to begin
    the next batch, which keeps the memory.
    """

    __slots__ = ()

    @property
    def size(self) -> int:
        """What the batch would measure uncompressed, in bytes, with its header."""
        return HEADER_SIZE + self.records_size

    def build(
        self,
        *,
        compression: Codec = Codec.NONE,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        attributes: int = 0,
    ) -> bytes:
        """The batch, whole.

        `attributes`: further attribute bits of `layout` (transactional, control); the codec's are set here. Raises
        ValueError where there is no record.
        """
        if not self.count:
            raise ValueError("a batch holds at least one record")
        block = self.records() if compression is Codec.NONE else compress(compression, self.records())
        header = bytearray(HEADER_SIZE)
        HEADER.pack_into(
            header,
            0,
            base_offset,
            HEADER_SIZE - LOG_OVERHEAD + len(block),
            leader_epoch,
            MAGIC,
            0,
            attributes & ~CODEC_MASK | compression,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        _CRC.pack_into(header, CRC_POSITION, crc32c(block, crc32c(memoryview(header)[CRC_START:])))
        return b"".join((header, block))


def build_batch(
    records: Iterable[Row],
    *,
    compression: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytes:
    """A batch of `records`, tuples (timestamp in ms, key, value, headers).

    Parameters and errors as for `BatchBuilder`.
    """
    builder = BatchBuilder()
    builder.extend(records)
    return builder.build(
        compression=compression,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )
