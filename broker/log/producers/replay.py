"""Rebuild the producer states of a log from its newest valid snapshot and the batches after it.

Batches in the log are not validated: any epoch or sequence is accepted.

Invariants:
1. Snapshots outside the log are removed first. A damaged one is skipped for the next older one; without any, all
   batches are read. Only after a clean shutdown does a log without snapshots have no producers.
2. The states at the beginning of the active segment are written to a snapshot if its roll left none, so that a start
   need not read older segments. A snapshot at the log end is written only if it loses nothing: it has the last batch of
   each producer, while a producer without answers before a kill repeats up to five.
3. Batches from before the snapshot are taken from the scans, and from the states known `before`.
4. Batches below the log start count while their bytes exist: a producer may repeat one after its records were deleted.
   Kafka reads from the log start on, and stores it twice.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.rebuildProducerState, ProducerStateManager.truncateAndReload.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.producers import trail
from warmlog.broker.log.producers.idle import CapturedProducers
from warmlog.broker.log.producers.snapshot import ProducerSnapshots, decode_entries
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.producers.table import Producers
from warmlog.broker.log.producers.trail import ProducerTrail
from warmlog.broker.log.producers.transitions import after_batch, after_marker, with_earlier
from warmlog.broker.log.segments.log_scan import WALK_CHUNK_SIZE, timed, walk_headers
from warmlog.broker.log.segments.segment import Segment
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import EndMarker, end_marker
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.records.record import MAX_INT64


class States(Protocol):
    """Producer states by producer id."""

    def get(self, producer_id: int, /) -> ProducerState | None:
        """Return a producer's state, or None."""

    def __setitem__(self, producer_id: int, state: ProducerState, /) -> None:
        """Replace a producer's state."""


class Bounds(NamedTuple):
    """A range of offsets: the first, and the one after the last."""

    start: int
    end: int


class Scanned(NamedTuple):
    """The producers' batches at or past an offset, as found by scans of the last segments."""

    from_offset: int = MAX_INT64
    trails: Sequence[tuple[Segment, ProducerTrail]] = ()


NOTHING_SCANNED: Final = Scanned()


def rebuild_producers(
    producers: Producers,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    end: int,
    *,
    scan_without: bool = True,
    scanned: Scanned = NOTHING_SCANNED,
    before: CapturedProducers | None = None,
) -> None:
    """Fill the empty `producers` with the states at the log's `end`. Blocking. Raises OSError.

    Expired producers are included: see `Producers.forget_idle`. `scan_without`: read the whole log if there never was a
    snapshot. Batches in `scanned` are not read again. `before` are the states before the end of the log was cut.
    """
    had_any = bool(snapshots.offsets)
    snapshots.remove_strays([segment.base_offset for segment in segments], end)
    if not had_any and not scan_without:
        if end:
            _write(snapshots, end, producers)
        return
    begin, entries = _newest(snapshots, segments, end)
    producers.load(entries)
    _complete(producers, _scanned_before(scanned, begin))
    active = segments[-1].base_offset
    if begin < active:
        _advance(producers, segments, scanned, Bounds(begin, active))
        _write(snapshots, active, producers)
    _advance(producers, segments, scanned, Bounds(max(begin, active), end))
    if before is not None:
        _complete(producers, before.with_several_batches())
    if begin < end and next(producers.capture().with_several_batches(), None) is None:
        _write(snapshots, end, producers)


def states_at(snapshots: ProducerSnapshots, segments: Sequence[Segment], offset: int) -> dict[int, ProducerState]:
    """Return the states at an offset, from the newest snapshot that is not past it. Blocking. Raises OSError."""
    begin, entries = _newest(snapshots, segments, offset)
    states = {state.producer_id: state for state in decode_entries(entries)}
    replay(states, segments, Bounds(begin, offset))
    return states


def _newest(snapshots: ProducerSnapshots, segments: Sequence[Segment], limit: int) -> tuple[int, memoryview]:
    """Return the offset and entries of the newest valid snapshot up to `limit`, or the first offset and no entries."""
    for offset in reversed(snapshots.offsets):
        entries = snapshots.read(offset) if offset <= limit else None
        if entries is not None:
            return offset, entries
    return segments[0].base_offset, memoryview(b"")


def _complete(states: States, earlier: Iterable[ProducerState]) -> None:
    """Add batches that only the earlier states have, from before the first one that the states have."""
    for each in earlier:
        state = states.get(each.producer_id)
        if state is not None:
            completed = with_earlier(state, each)
            if len(completed.batches) > len(state.batches):
                states[each.producer_id] = completed


def _scanned_before(scanned: Scanned, end: int) -> Iterable[ProducerState]:
    """Return the states that follow from the scanned batches below offset `end`. Raises OSError."""
    states: dict[int, ProducerState] = {}
    for segment, batches in scanned.trails:
        with suppress(ProtocolError):  # as in `replay`
            for position, header in batches:
                if header.base_offset >= scanned.from_offset and header.last_offset < end and not header.is_control:
                    _apply(states, segment, position, header)
    return states.values()


def _advance(states: States, segments: Sequence[Segment], scanned: Scanned, bounds: Bounds) -> None:
    """Apply the batches within a range of offsets, reading those that were not scanned. Raises OSError."""
    replay(states, segments, Bounds(bounds.start, min(bounds.end, scanned.from_offset)))
    for segment, batches in scanned.trails:
        with suppress(ProtocolError):  # as in `replay`
            for position, header in batches:
                if header.base_offset >= scanned.from_offset and _is_within(header, bounds):
                    _apply(states, segment, position, header)
        segment.reader.close()


def _is_within(header: BatchHeader, bounds: Bounds) -> bool:
    return header.last_offset >= bounds.start and header.base_offset < bounds.end


def _write(snapshots: ProducerSnapshots, offset: int, producers: Producers) -> None:
    """Write a snapshot; if that fails, the next start reads the log again."""
    with suppress(OSError):
        snapshots.write(offset, producers.capture(), sync=False)


def replay(states: States, segments: Sequence[Segment], bounds: Bounds) -> None:
    """Apply the batches within a range of offsets to the states. Raises OSError."""
    if bounds.start >= bounds.end:
        return
    for segment in segments:
        if segment.next_base_offset is None or segment.next_base_offset > bounds.start:
            with suppress(ProtocolError):  # a damaged batch below the recovery point hides those after it
                for position, header in _batches(segment, bounds):
                    _apply(states, segment, position, header)
            segment.close()


def _batches(segment: Segment, bounds: Bounds) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches within the bounds that the states depend on.

    Chunks are searched by the compiled `producer_batches`, if it was built, which creates no headers for the batches of
    non-idempotent producers. `walk_headers` reads the rest, from the first batch that it does not handle.
    """
    file, position = segment.reader.descriptor(), _position(segment, bounds.start)
    find = trail.producer_batches
    while find is not None and position < segment.size:
        left = segment.size - position
        chunk = file.pread(min(WALK_CHUNK_SIZE, left), position)
        positions, following = find(chunk, left, bounds.start, bounds.end)
        for at in positions:
            yield position + at, read_header(chunk, at)
        position += following
        if not following:
            break
    for header_position, header in walk_headers(file, position, segment.size):
        if header.producer_id >= 0 and _is_within(header, bounds):
            yield header_position, header


def _position(segment: Segment, offset: int) -> int:
    """Return the position of an offset; the segment's start if its index is corrupt, or not in use yet."""
    is_in_use = segment.next_base_offset is not None or segment.tail is not None
    if is_in_use and offset > segment.base_offset:
        with suppress(IndexCorruptError):
            location = segment.find(offset, "warm")
            return segment.size if location is None else location.position
    return 0


def _apply(states: States, segment: Segment, position: int, header: BatchHeader) -> None:
    header = timed(segment.reader.descriptor(), position, header)
    marker = read_marker(segment, position, header) if header.is_control else None
    apply_batch(states, header, marker)


def apply_batch(states: States, header: BatchHeader, marker: EndMarker | None) -> None:
    """Apply one batch to the states. `marker` is the content of a control batch."""
    producer_id = header.producer_id
    state = states.get(producer_id) or ProducerState(producer_id)
    if not header.is_control:
        states[producer_id] = after_batch(state, header, header.last_offset, header.max_timestamp)
    elif marker is not None:
        states[producer_id] = after_marker(state, header.producer_epoch, marker.coordinator_epoch, marker.timestamp)


def read_marker(segment: Segment, position: int, header: BatchHeader) -> EndMarker | None:
    """Read the marker of a control batch; None if compaction has removed it. Raises ProtocolError, OSError."""
    data = segment.reader.descriptor().pread(header.size, position)
    return end_marker(decode_batch(data, 0, header))
