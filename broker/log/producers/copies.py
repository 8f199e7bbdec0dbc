"""Batches copied from another log: their checks, and their effects on producers.

Copies keep their offsets and leader epochs, and may leave gaps where the source was compacted. Their producers are not
validated: the source's leader has done that, and a follower that refused a batch, or dropped its producer, would accept
duplicates once it leads.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.appendAsFollower.
"""

from warmlog.broker.log.errors import UnknownTimestampError
from warmlog.broker.log.producers.replay import apply_batch
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.producers.transactions import ProducerStep
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.batch import headers, read_header, verify_crc
from warmlog.protocol.records.layout import HEADER_SIZE, BatchHeader
from warmlog.protocol.records.markers import EndMarker, end_marker
from warmlog.protocol.records.reader import decode_batch, with_sound_timestamp
from warmlog.protocol.records.record import MAX_INT64, Buffer
from warmlog.protocol.records.validation import CheckedBatches

#: The largest timestamps of batches whose headers state an impossible one, by base offset.
LargestTimestamps = dict[int, int]


def largest_timestamps(records: Buffer) -> LargestTimestamps:
    """Return the largest timestamps of the whole batches that need it. Decompresses: for a worker."""
    largest: LargestTimestamps = {}
    for position, header in headers(records):
        if header.has_invalid_max_timestamp:
            largest[header.base_offset] = with_sound_timestamp(records, position, header).max_timestamp
    return largest


def check_copies(
    view: memoryview, next_offset: int, leader_epoch: int | None, timestamps: LargestTimestamps | None = None
) -> CheckedBatches:
    """Check the whole batches in a fetched buffer; return (position, header) of each, with sound timestamps.

    A last batch that the end of the buffer cuts off is omitted, and so is everything from a batch with a later epoch
    than `leader_epoch` on, which was fetched from another leader than expected. `timestamps`: from
    `largest_timestamps`.

    Raises CorruptBatchError, UnsupportedMagicError; InvalidRecordError for offsets that are not past those before;
    UnknownTimestampError if `timestamps` are needed.
    """
    checked: CheckedBatches = []
    position, end = 0, len(view)
    while end - position >= HEADER_SIZE:
        header = read_header(view, position)
        if header.size > end - position or (leader_epoch is not None and header.leader_epoch > leader_epoch):
            break
        verify_crc(view, position, header)
        _check_offsets(header, next_offset)
        next_offset = header.next_offset
        if header.has_invalid_max_timestamp:
            if timestamps is None:
                raise UnknownTimestampError(f"the batch at offset {header.base_offset} must be decompressed first")
            header = header._replace(max_timestamp=timestamps[header.base_offset])
        checked.append((position, header))
        position += header.size
    return checked


def _check_offsets(header: BatchHeader, next_offset: int) -> None:
    if header.base_offset < next_offset:
        raise InvalidRecordError(f"batch at offset {header.base_offset}, expected {next_offset} or a later one")
    if header.last_offset_delta < 0 or header.last_offset >= MAX_INT64:
        raise InvalidRecordError(f"batch at offset {header.base_offset} ends at {header.last_offset}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise InvalidRecordError(f"{header.record_count} records in offsets up to {header.last_offset_delta}")


def effects_of(
    producers: Producers, view: memoryview, checked: CheckedBatches, latest_epoch: int
) -> list[tuple[ProducerStep | None, int]]:
    """Plan the producers' states after the batches; return each batch's step, and the leader epoch it begins or -1.

    Raises ProtocolError for a control batch that cannot be decoded, and then nothing is planned.
    """
    states: dict[int, ProducerState] = {}
    effects: list[tuple[ProducerStep | None, int]] = []
    for position, header in checked:
        begun = -1
        if header.leader_epoch != latest_epoch and header.leader_epoch >= 0:
            begun = latest_epoch = header.leader_epoch
        step = None
        producer_id = header.producer_id
        if producer_id >= 0:
            if producer_id not in states:
                known = producers.latest(producer_id)
                if known is not None:
                    states[producer_id] = known
            marker = _marker(view, position, header) if header.is_control else None
            apply_batch(states, header, marker)
            if producer_id in states and (marker is not None or not header.is_control):
                outcome = None if marker is None else marker.outcome
                step = ProducerStep(states[producer_id], outcome, header.last_offset)
        effects.append((step, begun))
    for step, _ in effects:
        if step is not None:
            producers.planned[step.state.producer_id] = step.state
    return effects


def _marker(view: memoryview, position: int, header: BatchHeader) -> EndMarker | None:
    return end_marker(decode_batch(view, position, header))
