"""From an offset to a slice: the floor segment, its index, a few headers, and on to higher segments over a gap.

Owns: the way through the segments for a read, and its bounds. Must not know who reads, or whether the offset is within
the log.

Source: kafka.log.LocalLog.read, collectAbortedTransactions.
"""

from collections.abc import Sequence

from broker.log.config import SearchName
from broker.log.descriptions import LogRead
from broker.log.index.transaction import AbortedTransaction
from broker.log.segment import Segment
from broker.log.segments import Segments


def read_slice(
    segments: Segments, offset: int, max_bytes: int, *, bound: int | None, search: SearchName, min_one_message: bool
) -> LogRead:
    """A slice from the batch that holds `offset`, or the next one after a gap; nothing at or past offset `bound`.

    `bound` None: all that is committed. At the log's end there is no slice, but a position. Raises IndexCorruptError,
    CorruptBatchError, OSError.
    """
    segment = segments.floor(offset)
    while segment is not None:
        found = segment.find(offset, search)
        if found is not None:
            end = segment.size if bound is None else _bound_position(segment, bound, search)
            return segment.slice(found, max_bytes, end, min_one_message=min_one_message)
        segment = segments.higher(segment.base_offset)
    return LogRead(None, segments.active.base_offset, segments.active.size)


def aborted_in(segments: Segments, offset: int, found: LogRead, log_end: int) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions of which a slice that was read for `offset` may hold records.

    Raises IndexCorruptError, OSError, and ColdReadError where this would wait for the disk and must not.
    """
    indexed = segments.with_aborted(found.segment_base_offset)
    if not indexed or found.slice is None:
        return ()
    segment = segments.floor(found.segment_base_offset)
    assert segment is not None, "it was just read from"
    bound = segment.end_of_slice(found.position, len(found.slice))
    aborted: list[AbortedTransaction] = []
    for each in indexed:
        overlapping, is_complete = each.transaction_index.overlapping(offset, log_end if bound is None else bound)
        aborted += overlapping
        if is_complete:
            break
    return aborted


def _bound_position(segment: Segment, bound: int, search: SearchName) -> int:
    """How far a segment may be read: to its end, or to the batch that holds the bound, if that lies in it."""
    if segment.next_base_offset is not None and segment.next_base_offset <= bound:
        return segment.size
    if bound <= segment.base_offset:
        return 0
    found = segment.find(bound, search)
    return segment.size if found is None else found.position
