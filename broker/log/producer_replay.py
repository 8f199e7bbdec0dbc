"""The producers' states of a log that is opened or was cut: from the newest good snapshot and the batches after it.

Owns: which snapshot is trusted, and how batches that are in the log change the states. Must not know how batches are
checked before they get there.

What is in the log is not judged: an epoch or a sequence that no client would be allowed is taken as it is.

Invariants:
1. Snapshots outside the log are removed first, and what is damaged is passed over for the next older one; without any,
   every batch is looked at. Only after a clean stop are no snapshots the same as no producers: nobody made any.
2. What was rebuilt is kept in a new snapshot at the log's end.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.rebuildProducerState, ProducerStateManager.truncateAndReload.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from broker.log.config import MAX_INT64
from broker.log.errors import IndexCorruptError
from broker.log.log_scan import WALK_CHUNK_SIZE, walk_headers
from broker.log.producer_snapshot import ProducerSnapshots
from broker.log.producer_state import ProducerState
from broker.log.segment import Segment
from protocol.errors import ProtocolError
from protocol.records.batch import read_header
from protocol.records.codec import compiled
from protocol.records.layout import BatchHeader
from protocol.records.markers import EndMarker, end_marker
from protocol.records.reader import decode_batch

# The short cut over batches that change nothing: a piece of a file, the bytes left from there on, first and end of the
# offsets asked for; gives positions and where the next batch begins. None where it was not built.
producer_batches: Callable[[bytes, int, int, int], tuple[list[int], int]] | None = None
if compiled:
    with suppress(ImportError):
        from broker.log._scan import producer_batches


class Bounds(NamedTuple):
    """A range of offsets: the first, and the one after the last."""

    start: int
    end: int


def rebuild_producers(
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    bounds: Bounds,
    *,
    is_expired: Callable[[ProducerState], bool],
    scan_without: bool = True,
    none_from: int = MAX_INT64,
) -> list[ProducerState]:
    """The states at the end of the log. Blocking. Raises OSError.

    States in a snapshot that have expired are left out. `scan_without`: whether the whole log is read where there never
    was a snapshot. From the offset `none_from` on no batch is known to be a producer's.
    """
    had_any = bool(snapshots.offsets)
    offsets = snapshots.remove_strays([segment.base_offset for segment in segments], bounds.end)
    states: dict[int, ProducerState] = {}
    if not had_any and not scan_without:
        begin = bounds.end
    else:
        begin, found = _newest(snapshots, bounds.start)
        states = {state.producer_id: state for state in found if not is_expired(state)}
        replay(states, segments, Bounds(begin, min(bounds.end, none_from)))
    if begin < bounds.end or (bounds.end and not offsets):
        with suppress(OSError):  # the next start reads the log again
            snapshots.write(bounds.end, list(states.values()), sync=False)
    return list(states.values())


def _newest(snapshots: ProducerSnapshots, start: int) -> tuple[int, list[ProducerState]]:
    """The newest snapshot that can be believed, and its offset; the log's start and no states if there is none."""
    for offset in reversed(snapshots.offsets):
        states = snapshots.read(offset)
        if states is not None:
            return offset, states
    return start, []


def replay(states: dict[int, ProducerState], segments: Sequence[Segment], bounds: Bounds) -> None:
    """Let the batches of a range of offsets change the states. Raises OSError."""
    if bounds.start >= bounds.end:
        return
    for segment in segments:
        if segment.next_base_offset is None or segment.next_base_offset > bounds.start:
            with suppress(ProtocolError):  # a damaged batch below the recovery point: what follows cannot be reached
                for position, header in _batches(segment, bounds):
                    _apply(states, segment, position, header)
            segment.close()


def _batches(segment: Segment, bounds: Bounds) -> Iterator[tuple[int, BatchHeader]]:
    """Batches of producers within the bounds, as many of them as the states depend on."""
    file, position = segment.reader.descriptor(), _position(segment, bounds.start)
    while producer_batches is not None and position < segment.size:
        left = segment.size - position
        chunk = file.pread(min(WALK_CHUNK_SIZE, left), position)
        found, following = producer_batches(chunk, left, bounds.start, bounds.end)
        for at in found:
            yield position + at, read_header(chunk, at)
        position += following
        if not following:
            break
    for place, header in walk_headers(file, position, segment.size):
        if header.producer_id >= 0 and header.last_offset >= bounds.start and header.base_offset < bounds.end:
            yield place, header


def _position(segment: Segment, offset: int) -> int:
    """Where to begin in a segment: its start, if the index cannot say better."""
    if offset > segment.base_offset:
        with suppress(IndexCorruptError):
            found = segment.find(offset, "warm")
            return segment.size if found is None else found.position
    return 0


def _apply(states: dict[int, ProducerState], segment: Segment, position: int, header: BatchHeader) -> None:
    marker = _end_marker(segment, position, header) if header.is_control else None
    apply_batch(states, header, marker)


def apply_batch(states: dict[int, ProducerState], header: BatchHeader, marker: EndMarker | None) -> None:
    """Let one batch of a producer change the states. `marker` is the one in a control batch."""
    producer_id = header.producer_id
    state = states.get(producer_id) or ProducerState(producer_id)
    if not header.is_control:
        states[producer_id] = state.appended(header, header.last_offset, header.max_timestamp)
    elif marker is not None:
        states[producer_id] = state.ended(header.producer_epoch, marker.coordinator_epoch, marker.timestamp)


def _end_marker(segment: Segment, position: int, header: BatchHeader) -> EndMarker | None:
    data = segment.reader.descriptor().pread(header.size, position)
    return end_marker(decode_batch(data, 0, header))
