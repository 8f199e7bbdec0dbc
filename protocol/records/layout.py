"""The header of a record batch, format version 2: the one place that knows its bytes.

Owns: the field table below, the attribute bits, and `BatchHeader`, the header as a value. Must not know: how batches
are found, checked or opened (`batch`, `reader`), what a record looks like (`record`). All numbers are big-endian and
signed, but for the CRC.

    at  bytes  field
    0   8      base offset              stamped by the broker, outside the CRC
    8   4      batch length             of what follows this field: the whole batch is 12 bytes more
    12  4      partition leader epoch   stamped by the broker, outside the CRC
    16  1      magic = 2                outside the CRC
    17  4      CRC-32C of everything from byte 21 to the end
    21  2      attributes               see below
    23  4      last offset delta        kept when compaction removes records
    27  8      base timestamp, ms       the delete horizon when attribute bit 6 is set
    35  8      max timestamp, ms        the time of every record when attribute bit 3 is set
    43  8      producer id              -1: none
    51  2      producer epoch           -1: none
    53  4      base sequence            -1: none
    57  4      record count
    61         records; if compressed, this part is one compressed block

Attributes: bits 0 to 2 codec, 3 timestamp type (1: log append time), 4 transactional, 5 control, 6 delete horizon set,
others unused.

Source: org.apache.kafka.common.record.DefaultRecordBatch, KIP-98 (the format), KIP-534 (delete horizon).
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 61

BASE_OFFSET_POSITION = 0
BATCH_LENGTH_POSITION = 8
LEADER_EPOCH_POSITION = 12
MAGIC_POSITION = 16
STAMPED_SIZE = MAGIC_POSITION  # base offset, length, leader epoch: what a broker writes anew
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
LAST_OFFSET_DELTA_POSITION = 23
BASE_TIMESTAMP_POSITION = 27
MAX_TIMESTAMP_POSITION = 35
PRODUCER_ID_POSITION = 43
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
RECORD_COUNT_POSITION = 57
RECORDS_POSITION = HEADER_SIZE

# Base offset and batch length: what must be read to know where a batch ends, and what the batch length leaves out.
LOG_OVERHEAD = 12
# The smallest batch length that a header fits into.
MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
# What a batch may measure at most: the batch length is an int32.
MAX_BATCH_SIZE = (1 << 31) - 1
# The first byte that the CRC covers.
CRC_START = ATTRIBUTES_POSITION

MAGIC = 2

CODEC_MASK = 0b111
LOG_APPEND_TIME_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6
# Those that no producer may set, or that need a look. A batch without them is plain.
UNUSUAL_BITS = CODEC_MASK | LOG_APPEND_TIME_BIT | CONTROL_BIT | DELETE_HORIZON_BIT

# All that have a meaning; when a broker writes attributes anew, the others go (as Kafka does).
KNOWN_BITS = CODEC_MASK | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
# In place of the CRC, in a header whose fields are no longer those of the bytes it was read from.
STALE_CRC = -1

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1


class Codec(IntEnum):
    """How the records part is compressed, as numbered in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Of the eight numbers that the attribute bits can say, those without a codec begin here.
FIRST_UNKNOWN_CODEC = len(Codec)


class TimestampType(IntEnum):
    """Whose time the records carry: the producer's, or the broker's at the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header's fields in their order.

    Times in ms since the epoch, `batch_length` and `size` in bytes; nothing of it is checked yet.
    """

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
        """The whole batch in bytes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch had when it was written."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records part is compressed. Raises ValueError where the bits name no codec."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_compressed(self) -> bool:
        """Whether the records part is one compressed block."""
        return self.attributes & CODEC_MASK != 0

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker of a transaction's end, not records of a user."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether its records belong to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose time the records carry."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def append_time_ms(self) -> int | None:
        """The time of every record in the batch, where the broker set it; None where each record has its own."""
        return self.max_timestamp if self.attributes & LOG_APPEND_TIME_BIT else None

    @property
    def has_doubtful_time(self) -> bool:
        """Whether the largest time cannot be that of the records, being smaller than the time of the first.

        sarama up to 1.45.0 leaves it at -1 in compressed batches, and not every broker corrects that.
        """
        return (
            self.max_timestamp < self.base_timestamp
            and self.record_count > 0
            and not self.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT)
        )

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may go; None where compaction has not set it.

        It is still what record times count from.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None
