"""Classify received batches before they are validated, and stamp them with the fields that the broker sets.

This is the reference for the functions of the same names in `_codec`; `codec` imports those in use.
"""

from struct import Struct
from typing import Final

from warmlog.protocol.records.layout import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    STAMPED_SIZE,
    TRANSACTIONAL_BIT,
    UNUSUAL_BITS,
)
from warmlog.protocol.records.record import Buffer

#: Copying a batch of up to this size is cheaper than a view of it, which would be another buffer to write.
MAX_COPIED_SIZE: Final = 2048

_LENGTH: Final = Struct(">i")
_START: Final = Struct(">qii")
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER_ID: Final = Struct(">q")


def plain_batch_producer(records: Buffer) -> int | None:
    """Return the producer id (-1: none) of one batch of the current format that is uncompressed and not transactional.

    Returns None for anything else, also if the size does not fit. Nothing else of the batch is validated.
    """
    if len(records) < HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
        return None
    length: int = _LENGTH.unpack_from(records, BATCH_LENGTH_POSITION)[0]
    attributes: int = _ATTRIBUTES.unpack_from(records, ATTRIBUTES_POSITION)[0]
    if length + LOG_OVERHEAD != len(records) or attributes & (UNUSUAL_BITS | TRANSACTIONAL_BIT):
        return None
    producer_id: int = _PRODUCER_ID.unpack_from(records, PRODUCER_ID_POSITION)[0]
    return producer_id


def stamped_batch(records: memoryview, start: int, end: int, base_offset: int, leader_epoch: int) -> tuple[Buffer, ...]:
    """Return the buffers of the batch in bytes [start, end) as stored: with its base offset and leader epoch.

    The received bytes are not modified: a small batch is copied completely; for a larger one, only the first
    STAMPED_SIZE bytes are copied. Raises ValueError if the range does not hold a batch header.
    """
    if not 0 <= start <= end - HEADER_SIZE <= len(records) - HEADER_SIZE:
        raise ValueError(f"no batch in bytes {start} to {end} of {len(records)}")
    length: int = _LENGTH.unpack_from(records, start + BATCH_LENGTH_POSITION)[0]
    stamp = _START.pack(base_offset, length, leader_epoch)
    rest = records[start + STAMPED_SIZE : end]
    return (stamp + rest,) if end - start <= MAX_COPIED_SIZE else (stamp, rest)
