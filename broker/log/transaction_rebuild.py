"""Transaction indexes made anew from the log.

Owns: which entries the batches of a log call for. Must not know why an index is made anew.

Of a log whose start was cut off or that was compacted, entries of transactions of which nothing is left go: there is
nothing of them that a reader would have to leave out.

Source: org.apache.kafka.storage.internals.log.LogSegment.recover, ProducerStateManager.completeTxn.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from broker.log.directory_names import TRANSACTION_INDEX_SUFFIX
from broker.log.disk import read_file, replace_file
from broker.log.log_scan import walk_headers
from broker.log.producer_replay import apply_batch
from broker.log.producer_state import ProducerState
from broker.log.segment import Segment
from broker.log.transaction_index import AbortedTransaction, encode_aborted
from protocol.errors import ProtocolError
from protocol.records.layout import BatchHeader
from protocol.records.markers import EndMarker, Outcome, end_marker
from protocol.records.reader import decode_batch


def rebuild_transaction_indexes(segments: Sequence[Segment]) -> list[int]:
    """Let each segment's transaction index say what the log says; gives the base offsets of those that did not.

    `segments` are all of a log, oldest first, and nobody uses them. A segment without aborted transactions has no file.
    Blocking. Raises OSError.
    """
    states: dict[int, ProducerState] = {}
    rebuilt = []
    for segment in segments:
        content = encode_aborted(_aborted_in(segment, states))
        if content != _content(segment):
            rebuilt.append(segment.base_offset)
            path = segment.path(TRANSACTION_INDEX_SUFFIX)
            if content:
                replace_file(segment.disk, path, content, sync=True)
            else:
                segment.disk.unlink(path)
    return rebuilt


def _content(segment: Segment) -> bytes:
    try:
        return read_file(segment.disk, segment.path(TRANSACTION_INDEX_SUFFIX))
    except FileNotFoundError:
        return b""


def _aborted_in(segment: Segment, states: dict[int, ProducerState]) -> Iterator[AbortedTransaction]:
    """The transactions whose abort markers lie in a segment; `states` are those before it, and then those after it."""
    with suppress(ProtocolError):  # what follows a damaged batch cannot be reached
        for position, header in walk_headers(segment.reader.descriptor(), 0, segment.size):
            if header.producer_id >= 0:
                marker = _marker(segment, position, header) if header.is_control else None
                if marker is not None and marker.outcome is Outcome.ABORT:
                    yield from _aborted_by(header, states)
                apply_batch(states, header, marker)
    segment.close()


def _marker(segment: Segment, position: int, header: BatchHeader) -> EndMarker | None:
    data = segment.reader.descriptor().pread(header.size, position)
    return end_marker(decode_batch(data, 0, header))


def _aborted_by(header: BatchHeader, states: dict[int, ProducerState]) -> Iterator[AbortedTransaction]:
    producer_id = header.producer_id
    open_since = {other: state.transaction_first_offset for other, state in states.items()}
    first_offset = open_since.pop(producer_id, -1)
    if first_offset >= 0:
        stable = min((offset for offset in open_since.values() if offset >= 0), default=header.next_offset)
        yield AbortedTransaction(producer_id, first_offset, header.last_offset, stable)
