"""A planned append: batches with offsets, a position and index entries, ready to be written. All in memory."""

from collections.abc import Sequence

from warmlog.broker.classes import mypyc_attr
from warmlog.broker.log.index.time import NO_TIMESTAMP
from warmlog.broker.log.producers.state import ProducerBatch, ProducerState
from warmlog.broker.log.producers.transactions import Effects
from warmlog.broker.log.segments.tail import BatchExtent, RollReason, Tail
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.batch import rewritten_start
from warmlog.protocol.records.codec import stamped_batch
from warmlog.protocol.records.layout import HEADER_SIZE, LOG_OVERHEAD, STALE_CRC
from warmlog.protocol.records.validation import CheckedBatches

Buffer = bytes | bytearray | memoryview


def extents(checked: CheckedBatches, base_offset: int) -> tuple[BatchExtent, ...]:
    """Assign offsets to batches, starting at `base_offset`. Raises InvalidRecordError.

    A producer sends each batch with base offset 0, or numbers the batches of one request consecutively.
    """
    batches, next_offset = [], base_offset
    for _, header in checked:
        if header.base_offset and header.base_offset != next_offset - base_offset:
            raise InvalidRecordError(f"batch with base offset {header.base_offset}: producers must count from 0")
        last_offset = next_offset + header.last_offset_delta
        batches.append(BatchExtent(last_offset, header.max_timestamp, header.batch_length + LOG_OVERHEAD))
        next_offset = last_offset + 1
    return tuple(batches)


def extents_after(known: Sequence[ProducerBatch], checked: CheckedBatches, base_offset: int) -> tuple[BatchExtent, ...]:
    """Assign offsets as `extents` does, to the batches after the duplicates `known`. Raises InvalidRecordError."""
    skipped = sum(batch.offset_delta + 1 for batch in known)
    return extents(checked, base_offset - skipped)[len(known) :]


def whole(batches: tuple[BatchExtent, ...]) -> BatchExtent:
    """Combine several batches into one extent."""
    if len(batches) == 1:
        return batches[0]
    largest = max(batch.max_timestamp for batch in batches)
    return BatchExtent(batches[-1].last_offset, largest, sum(batch.size for batch in batches))


def stamped(view: memoryview, checked: CheckedBatches, base_offset: int, leader_epoch: int) -> tuple[Buffer, ...]:
    """Return the buffers to write: each batch with its base offset and leader epoch.

    If other fields of its header have changed, too, the CRC is computed again.
    """
    buffers: list[Buffer] = []
    for position, header in checked:
        end = position + header.batch_length + LOG_OVERHEAD
        if header.crc == STALE_CRC:
            rest = view[position + HEADER_SIZE : end]
            buffers += (rewritten_start(header, rest, base_offset=base_offset, leader_epoch=leader_epoch), rest)
        else:
            buffers += stamped_batch(view, position, end, base_offset, leader_epoch)
        base_offset += header.last_offset_delta + 1
    return tuple(buffers)


@mypyc_attr(acyclic=True)
class PlannedAppend:
    """Batches with assigned offsets and position, ready to be written. Sizes in bytes, times in ms.

    `buffers` are written end to end at byte `position` of the active segment's file (0 after a `roll`).
    `log_append_time` is -1 unless the topic's `message.timestamp.type` is LogAppendTime. `new_tail` is the end of the
    empty segment that a `roll` begins. `producers` are the states of idempotent producers after the append. A marker
    and copies have `effects` instead. `is_duplicate`: all batches are in the log or planned already; the offsets are
    theirs, and nothing is written.
    """

    __slots__ = (
        "base_offset",
        "batches",
        "buffers",
        "effects",
        "is_duplicate",
        "last_offset",
        "leader_epoch",
        "log_append_time",
        "max_timestamp",
        "new_tail",
        "position",
        "producers",
        "roll",
        "size",
    )

    def __init__(
        self,
        *,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time: int,
        size: int,
        position: int,
        leader_epoch: int,
        roll: RollReason | None,
        new_tail: Tail | None,
        buffers: tuple[Buffer, ...],
        batches: tuple[BatchExtent, ...],
        producers: tuple[ProducerState, ...] = (),
        effects: Effects | None = None,
        is_duplicate: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.size = size
        self.position = position
        self.leader_epoch = leader_epoch
        self.roll = roll
        self.new_tail = new_tail
        self.buffers = buffers
        self.batches = batches
        self.producers = producers
        self.effects = effects
        self.is_duplicate = is_duplicate


def duplicate_of(
    known: Sequence[ProducerBatch], *, position: int, leader_epoch: int, append_time: bool
) -> PlannedAppend:
    """Return the plan for batches that are already in the log: it keeps its position in the queue and writes nothing.

    `append_time`: the topic uses LogAppendTime, so the response repeats the time of the first append.
    """
    return PlannedAppend(
        base_offset=known[0].base_offset,
        last_offset=known[-1].last_offset,
        max_timestamp=max(batch.timestamp for batch in known),
        log_append_time=known[0].timestamp if append_time else NO_TIMESTAMP,
        size=0,
        position=position,
        leader_epoch=leader_epoch,
        roll=None,
        new_tail=None,
        buffers=(),
        batches=(),
        is_duplicate=True,
    )
