"""Cutting a log at an offset: for a follower whose leader has another history.

Owns: which segments go, and the cut through the one that holds the offset. Must not know epochs, or who asks.

Blocking, with nothing planned and no worker inside the log. The newest segments go first. Whichever of them a power cut
brings back, the next start removes: before the first one goes, it is written down that those past the cut begin where
the one before ends (`contiguity`), which they no longer do.

Source: org.apache.kafka.storage.internals.log.LogSegment.truncateTo.
"""

from broker.log.append import Tail
from broker.log.errors import IndexCorruptError
from broker.log.index.transaction import cut_aborted
from broker.log.io.directory_names import TRANSACTION_INDEX_SUFFIX
from broker.log.recovery.contiguity import Contiguity
from broker.log.recovery.load import LogPlace
from broker.log.recovery.rebuild import cut_log, rebuild_indexes, resume, scan_segment
from broker.log.segment import BatchFound, Segment
from broker.log.segments import Segments


def cut_segments(place: LogPlace, segments: Segments, offset: int, contiguity: Contiguity) -> tuple[Segments, Tail]:
    """Cut every batch with a record at or past `offset`; gives what is left and its end. Raises OSError.

    Before the first segment's base a new, empty segment begins at the offset.
    """
    holder = segments.floor(offset)
    contiguity.include(offset if holder is None else holder.base_offset)
    if holder is None:
        fresh, tail = place.start_over(segments.snapshot, offset)
        return Segments([fresh]), tail
    for segment in reversed(segments.snapshot):
        if segment.base_offset > offset:
            segments.remove(segment)
            segment.remove_files()
    return segments, _cut(place, segments.active, offset)


def _cut(place: LogPlace, segment: Segment, offset: int) -> Tail:
    """Cut one segment's file and indexes and make it the active one."""
    found = _find(place, segment, offset)
    segment.time_index.truncate_to(offset)
    segment.offset_index.truncate_to(offset)
    cut_log(segment, segment.size if found is None else found.position)
    cut_aborted(place.disk, segment.path(TRANSACTION_INDEX_SUFFIX), offset)
    segment.forget_transactions()
    segment.sync()  # before anything is written behind it, or a new segment begins there
    offsets, times = segment.offset_index.entries, segment.time_index.entries
    tail = resume(segment, place.new_tail(segment.base_offset).without_indexing(), offsets, times)
    scan_segment(segment, tail, verified=False)
    tail.configure(place.config)
    segment.close()
    segment.activate(place.config, tail)
    return tail


def _find(place: LogPlace, segment: Segment, offset: int) -> BatchFound | None:
    """Where to cut, with both indexes known to be sound: they are about to be trusted for what is left."""
    try:
        segment.checked_time_index()
        return segment.find(offset, "warm")
    except IndexCorruptError:
        rebuild_indexes(segment, place.config)
        return segment.find(offset, "warm")
