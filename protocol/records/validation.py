"""What a producer may send: batches checked against a topic's rules, and put right where Kafka puts them right.

Owns: `BatchRules`, `check_batches`, and the errors that name a batch or its records as not allowed. Must not know:
files, offsets of a log, where rules come from, what the time is; what is inside a compressed block (`opened`).

Invariants:
1. All or nothing: one record that is not allowed refuses all that was sent with it.
2. Received bytes are never changed. Where a field must be another than the producer's, the header that is given says
   so, and its CRC is STALE_CRC: `batch.rewritten_start` makes those bytes anew.
3. The largest time of a batch is that of its records, whatever its header said (where they are walked).
4. A compressed batch is decompressed to be walked, which is not done here: MustOpenError says so. Where records are not
   walked (`BatchRules.walk`), that is only for batches whose header cannot be right, or whose keys are needed.

Source: org.apache.kafka.storage.internals.log.LogValidator, UnifiedLog.analyzeAndValidateRecords, KIP-32 (times),
KIP-467 (record errors), KIP-937 (limits). `tests/fixtures/kafka/4.3.1/verdicts.jsonl` holds Kafka's own verdicts.
"""

from collections.abc import Sequence

import msgspec
from crc32c import crc32c

from protocol.errors import (
    BatchTooLargeError,
    ErrorCode,
    InvalidRecordError,
    InvalidTimestampError,
    RecordsRefusedError,
    UnsupportedCompressionError,
)
from protocol.records.batch import GIL_RELEASE_SIZE, BatchHeader, read_header, refuse_crc, refuse_cut
from protocol.records.codec import accept_batch, scan_records
from protocol.records.layout import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    FIRST_UNKNOWN_CODEC,
    HEADER_SIZE,
    KNOWN_BITS,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAX_BATCH_SIZE,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    STALE_CRC,
    UNUSUAL_BITS,
    Codec,
)
from protocol.records.record import MAX_INT64, MIN_INT64, MIN_RECORD_SIZE, Buffer

__all__ = [
    "BatchRules",
    "CheckedBatches",
    "MustOpenError",
    "check_batches",
    "check_each",
    "check_times",
    "with_largest_time",
]

#: Where each batch begins in the buffer, and its header as it is to be stored, but for offset and leader epoch.
CheckedBatches = Sequence[tuple[int, BatchHeader]]


class BatchRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a topic asks of batches; sizes in bytes, times in ms.

    `before_max_ms` and `after_max_ms`: how far a record's time may lie from now. `append_time`: records get the time of
    their append, and the producer's may be any. `codec`: what batches are stored in, None for the producer's own;
    `level`: how hard that compresses, None for the codec's usual. `walk`: whether records are looked at where nothing
    else asks for it.
    """

    max_batch_size: int = MAX_BATCH_SIZE
    walk: bool = True
    before_max_ms: int = MAX_INT64
    after_max_ms: int = MAX_INT64
    append_time: bool = False
    need_keys: bool = False
    codec: Codec | None = None
    level: int | None = None


ANY_BATCH = BatchRules()


class MustOpenError(Exception):
    """A batch must be opened or compressed anew before it can be judged: see `opened.opened_batches`. Not an error."""


def check_batches(
    buffer: Buffer, rules: BatchRules = ANY_BATCH, now_ms: int = 0, *, opened: bool = False
) -> CheckedBatches:
    """Check what a producer sent: one or more whole batches end to end. Gives (position, header) of each.

    Holds each one's magic, length, size, CRC, record count (last offset delta + 1, at least 1, and what the size can
    hold), attributes, times and keys against the rules. A header that is given can differ from the bytes: the largest
    time is the records', or `now_ms` where that is the topic's time; its CRC is STALE_CRC then.

    `opened`: these bytes are what `opened_batches` gave. All or nothing: raises CorruptBatchError,
    UnsupportedMagicError, BatchTooLargeError, UnsupportedCompressionError, InvalidTimestampError, RecordsRefusedError
    or InvalidRecordError (all ProtocolErrors with their code); and MustOpenError, unless `opened`.
    """
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    size = len(view)
    if accept_batch is not None and not rules.codec and size <= rules.max_batch_size:
        accepted = accept_batch(
            view, rules.walk, size > GIL_RELEASE_SIZE, now_ms, rules.before_max_ms, rules.after_max_ms, rules.need_keys
        )
        if accepted is not None:
            return [(0, with_append_time(accepted, now_ms) if rules.append_time else accepted)]
    found = check_each(view, rules, now_ms, opened=opened)
    if rules.append_time:
        return [(position, with_append_time(header, now_ms)) for position, header in found]
    return found


def check_each(view: memoryview, rules: BatchRules, now_ms: int, *, opened: bool) -> list[tuple[int, BatchHeader]]:
    """Check batch after batch, as `check_batches` does, but for the append time."""
    if not view:
        raise InvalidRecordError("no batch at all")
    found = []
    position, end = 0, len(view)
    while position < end:
        header = _whole_batch(view, position, rules.max_batch_size)
        _check_fields(header)
        if not opened and _must_open(header, rules, now_ms):
            raise MustOpenError
        if not header.is_compressed and (rules.walk or rules.need_keys or _is_doubtful(header, rules, now_ms)):
            first, following = position + HEADER_SIZE, position + header.size
            header = with_largest_time(header, check_times(view, first, following, header, rules, now_ms))
        found.append((position, header))
        position += header.size
    return found


def check_times(  # noqa: PLR0917 - as the codec's functions: buffer, start, end first
    buffer: Buffer, start: int, end: int, header: BatchHeader, rules: BatchRules, now_ms: int
) -> int:
    """Walk a batch's records, uncompressed in bytes [start, end), and hold each one's time and key against the rules.

    Gives their largest time. Raises RecordsRefusedError, InvalidRecordError.
    """
    earliest, latest = _allowed(rules, now_ms)
    largest, faults = scan_records(
        buffer, start, end, header.record_count, header.base_timestamp, earliest, latest, rules.need_keys
    )
    if faults:
        _refuse_records(faults, earliest, latest)
    return largest


def with_largest_time(header: BatchHeader, largest: int) -> BatchHeader:
    """The header with this for the largest time of its records."""
    if header.max_timestamp == largest:
        return header
    return header._replace(attributes=header.attributes & KNOWN_BITS, max_timestamp=largest, crc=STALE_CRC)


def with_append_time(header: BatchHeader, now_ms: int) -> BatchHeader:
    """The header of a batch whose records all have the time of their append."""
    attributes = header.attributes & KNOWN_BITS | LOG_APPEND_TIME_BIT
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=STALE_CRC)


def _whole_batch(view: memoryview, position: int, max_batch_size: int) -> BatchHeader:
    """The header of the batch at `position`, which is whole, of a size that is allowed, and undamaged."""
    header = read_header(view, position)
    following = position + header.batch_length + LOG_OVERHEAD
    if following > len(view):
        refuse_cut(header, len(view) - position)
    if following - position > max_batch_size:
        raise BatchTooLargeError(f"a batch of {header.size} bytes, over the limit of {max_batch_size}")
    found_crc = crc32c(view[position + CRC_START : following], 0, following - position > GIL_RELEASE_SIZE)
    if found_crc != header.crc:
        refuse_crc(header, found_crc)
    return header


def _check_fields(header: BatchHeader) -> None:
    """What the CRC cannot say: that the fields make sense together, and that a producer may set them so."""
    _, length, _, _, _, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    if count < 1 or count - 1 != last_delta:
        raise InvalidRecordError(f"a batch of {count} records whose last offset delta is {last_delta}")
    if attributes & UNUSUAL_BITS:
        _check_attributes(header)
    elif count * MIN_RECORD_SIZE > length - MIN_BATCH_LENGTH:
        raise InvalidRecordError(f"{count} records cannot stand in {length - MIN_BATCH_LENGTH} bytes")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise InvalidRecordError(f"a batch of producer {producer_id} with epoch {epoch} and sequence {sequence}")


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


def _must_open(header: BatchHeader, rules: BatchRules, now_ms: int) -> bool:
    """Tell whether a batch must be decompressed: to be stored in another codec, or to look at its records.

    One whose header has times that are not allowed is opened, so that it is refused for a record and not its header.
    """
    codec = header.attributes & CODEC_MASK
    if rules.codec is not None and rules.codec != codec:
        return True
    return codec != Codec.NONE and (rules.walk or rules.need_keys or _is_doubtful(header, rules, now_ms))


def _is_doubtful(header: BatchHeader, rules: BatchRules, now_ms: int) -> bool:
    """Tell whether the times in a header cannot be right, or must not be stored.

    sarama up to 1.45.0 leaves the largest time of a compressed batch at -1.
    """
    if rules.append_time:
        return False
    earliest, latest = _allowed(rules, now_ms)
    largest = header.max_timestamp
    return (
        largest < header.base_timestamp
        or largest < NO_TIMESTAMP
        or (largest != NO_TIMESTAMP and not earliest <= largest <= latest)
        or (header.base_timestamp != NO_TIMESTAMP and not earliest <= header.base_timestamp <= latest)
    )


def _allowed(rules: BatchRules, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest time that a record may have."""
    earliest = MIN_INT64 if rules.before_max_ms == MAX_INT64 else max(now_ms - rules.before_max_ms, MIN_INT64)
    return earliest, min(now_ms + rules.after_max_ms, MAX_INT64)


def _refuse_records(faults: Sequence[tuple[int, int | None]], earliest: int, latest: int) -> None:
    errors = tuple([(index, _fault(timestamp, earliest, latest)) for index, timestamp in faults])
    is_time = any(timestamp is not None for _, timestamp in faults)
    code = ErrorCode.INVALID_TIMESTAMP if is_time else ErrorCode.INVALID_RECORD
    index, reason = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    raise RecordsRefusedError(code, f"record at index {index}: {reason}{more}; nothing of it is stored", errors)


def _fault(timestamp: int | None, earliest: int, latest: int) -> str:
    if timestamp is None:
        return "it has no key, which a compacted topic needs"
    return f"its time, {timestamp}, lies outside of {earliest} to {latest} ms"
