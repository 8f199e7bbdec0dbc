"""Build batches from records, as a producer sends them.

A fast producer has one `BatchBuilder` per partition: `append` is a method of the compiled codec and returns the size
so far, to compare with the batch size. To add many records in one call, pass them as tuples to `extend` or
`build_batch`, which takes a fifth of the time per record.
"""

from collections.abc import Iterable
from struct import Struct

from warmlog.protocol.records.codec import RecordEncoder
from warmlog.protocol.records.compression import compress
from warmlog.protocol.records.crc import crc32c
from warmlog.protocol.records.layout import (
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
from warmlog.protocol.records.record import Headers, Row

__all__ = ["BatchBuilder", "Codec", "build_batch", "record_size_bound"]

_CRC = Struct(">I")

# Upper bound for a record without key, value and headers: five 5-byte varints, one of 10 bytes, the attributes.
_RECORD_OVERHEAD = 5 * 5 + 10 + 1
_HEADER_OVERHEAD = 2 * 5


def record_size_bound(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return an upper bound for the record's size in a batch, uncompressed, to check whether it still fits."""
    size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name.encode()) + len(content or b"")
    return size


class BatchBuilder(RecordEncoder):
    """Collects records and builds a batch from them. Not thread-safe.

    Inherits `append`, `extend`, `clear` and the attributes `count`, `records_size`, `base_timestamp` and
    `max_timestamp` from `record.RecordEncoder`. `build` retains the records, so that a retry can build them again with
    other producer fields; `clear` starts the next batch and reuses the memory.
    """

    __slots__ = ()

    @property
    def size(self) -> int:
        """Size of the batch in bytes, with its header, before compression."""
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
        """Return the encoded batch.

        `attributes` adds attribute bits of `layout` (transactional, control) to those of the codec. Raises ValueError
        if there are no records.
        """
        if not self.count:
            raise ValueError("a batch needs at least one record; call append() first")
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
    """Encode `records`, tuples (timestamp in ms, key, value, headers), as one batch.

    Takes the parameters and raises the errors of `BatchBuilder.build` and `extend`.
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
