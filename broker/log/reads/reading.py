"""Find the slice of a log file for a fetch: floor segment, offset index, a few headers, higher segments after a gap.

Source: kafka.log.LocalLog.read, collectAbortedTransactions.
"""

from collections.abc import Sequence

from warmlog.broker.log.config import SearchName
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.index.transaction import AbortedTransaction
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments


def read_slice(
    segments: Segments, offset: int, max_bytes: int, *, bound: int | None, search: SearchName, min_one_batch: bool
) -> LogRead:
    """Return a slice from the batch that holds `offset`, or from the next one after a gap, up to offset `bound`.

    `bound` None: up to the log end. At the log end, only a position is returned. Raises IndexCorruptError,
    CorruptBatchError, OSError.
    """
    segment = segments.floor(offset)
    while segment is not None:
        batch = segment.find(offset, search)
        if batch is not None:
            end = segment.size if bound is None else _bound_position(segment, bound, search)
            return segment.slice(batch, max_bytes, end, min_one_batch=min_one_batch)
        segment = segments.higher(segment.base_offset)
    return LogRead(None, segments.active.base_offset, segments.active.size)


def aborted_in(segments: Segments, offset: int, read: LogRead, log_end: int) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions that may have records in the slice `read`, which was read for `offset`.

    Raises IndexCorruptError, OSError; ColdReadError instead of waiting for the disk on the event loop.
    """
    indexed = segments.with_aborted(read.segment_base_offset)
    if not indexed or read.slice is None:
        return ()
    segment = segments.floor(read.segment_base_offset)
    assert segment is not None, "it was just read from"
    bound = segment.end_of_slice(read.position, len(read.slice))
    aborted: list[AbortedTransaction] = []
    for each in indexed:
        overlapping, is_complete = each.transaction_index.overlapping(offset, log_end if bound is None else bound)
        aborted += overlapping
        if is_complete:
            break
    return aborted


def _bound_position(segment: Segment, bound: int, search: SearchName) -> int:
    """Return the position at which a read must end: that of the batch that holds `bound`, or the segment's end."""
    if segment.next_base_offset is not None and segment.next_base_offset <= bound:
        return segment.size
    if bound <= segment.base_offset:
        return 0
    batch = segment.find(bound, search)
    return segment.size if batch is None else batch.position
