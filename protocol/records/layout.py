"""The header of a record batch, format version 2.

All numbers are big-endian and signed, except the CRC.

    position  size  field
    0         8     base offset              set by the broker, not covered by the CRC
    8         4     batch length             bytes after this field: the batch size minus 12
    12        4     partition leader epoch   set by the broker, not covered by the CRC
    16        1     magic = 2                not covered by the CRC
    17        4     CRC-32C of everything from byte 21 to the end
    21        2     attributes               see below
    23        4     last offset delta        unchanged when compaction removes records
    27        8     base timestamp, ms       the delete horizon if attribute bit 6 is set
    35        8     max timestamp, ms        the timestamp of every record if attribute bit 3 is set
    43        8     producer id              -1: none
    51        2     producer epoch           -1: none
    53        4     base sequence            -1: none
    57        4     record count
    61              records, or one compressed block of them

Attribute bits: 0 to 2 codec, 3 timestamp type (1: log append time), 4 transactional, 5 control, 6 delete horizon set;
the others are unused.

Source: org.apache.kafka.common.record.DefaultRecordBatch, KIP-98 (the format), KIP-534 (delete horizon).
"""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = 61
assert HEADER.size == HEADER_SIZE

BASE_OFFSET_POSITION: Final = 0
BATCH_LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
STAMPED_SIZE: Final = MAGIC_POSITION  # base offset, length, leader epoch: rewritten by the broker
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
LAST_OFFSET_DELTA_POSITION: Final = 23
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
PRODUCER_EPOCH_POSITION: Final = 51
BASE_SEQUENCE_POSITION: Final = 53
RECORD_COUNT_POSITION: Final = 57

# Base offset and batch length: the bytes needed to find the end of a batch, which the batch length does not count.
LOG_OVERHEAD: Final = 12
# Batch length of a batch without records.
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
# Largest batch: Kafka stores sizes in an int32.
MAX_BATCH_SIZE: Final = (1 << 31) - 1
# First byte covered by the CRC.
CRC_START: Final = ATTRIBUTES_POSITION

MAGIC: Final = 2

CODEC_MASK: Final = 0b111
LOG_APPEND_TIME_BIT: Final = 1 << 3
TRANSACTIONAL_BIT: Final = 1 << 4
CONTROL_BIT: Final = 1 << 5
DELETE_HORIZON_BIT: Final = 1 << 6
# Bits that need further checks or that producers must not set. A batch without them is plain.
UNUSUAL_BITS: Final = CODEC_MASK | LOG_APPEND_TIME_BIT | CONTROL_BIT | DELETE_HORIZON_BIT

# All defined bits; the others are cleared when the broker rewrites the attributes (as Kafka does).
KNOWN_BITS: Final = CODEC_MASK | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
# CRC of a modified header: the batch has to be written with `batch.rewritten_start`.
STALE_CRC: Final = -1

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1


class Codec(IntEnum):
    """Compression codecs as numbered in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The attributes hold three bits for the codec; values from here on are invalid.
FIRST_UNKNOWN_CODEC = len(Codec)


class TimestampType(IntEnum):
    """Whether record timestamps were set by the producer (create time) or by the broker on append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of a batch header, unvalidated. Timestamps are ms since the epoch, sizes bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Size of the batch in bytes, with its header."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record when it was written; compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The compression codec. Raises ValueError if the attributes hold an unknown one."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_compressed(self) -> bool:
        """Whether the records are compressed."""
        return self.attributes & CODEC_MASK != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record, such as a transaction marker, instead of user records."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the timestamps are create times or log append times."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def append_time_ms(self) -> int | None:
        """The timestamp of all records if it is a log append time, otherwise None."""
        return self.max_timestamp if self.attributes & LOG_APPEND_TIME_BIT else None

    @property
    def has_invalid_max_timestamp(self) -> bool:
        """Whether the max timestamp is invalid, that is, less than the first record's timestamp.

        sarama up to 1.45.0 leaves it at -1 in compressed batches, and some brokers store it so.
        """
        return (
            self.max_timestamp < self.base_timestamp
            and self.record_count > 0
            and not self.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT)
        )

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time (ms) from which compaction may remove the batch's tombstones and markers, or None if it is not set.

        Timestamp deltas of the records remain relative to it.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None
