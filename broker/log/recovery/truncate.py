"""Truncate a log to an offset, or restart it empty, for a follower whose history differs from its leader's.

Blocking; no append may be planned and no worker may use the log. The newest segments are removed first. If a power cut
brings some of them back, the next startup removes them: before the truncation the log is recorded as contiguous
(`contiguity`), and these segments do not begin where the log ends.

A restart removes everything first, and creates the new segment last: a directory without segments is opened as an empty
log. If old segments are left, the log start offset, which the checkpoint has by then, lies past their end, and the next
startup removes them; or they are what remains of the old log, as after a truncation.

Source: org.apache.kafka.storage.internals.log.LogSegment.truncateTo.
"""

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.transaction import cut_aborted
from warmlog.broker.log.io.directory_names import TRANSACTION_INDEX_SUFFIX
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.recovery.rebuild import cut_log, rebuild_indexes, resume, scan_segment
from warmlog.broker.log.segments.segment import LocatedBatch, Segment
from warmlog.broker.log.segments.segment_map import Segments
from warmlog.broker.log.segments.tail import Tail


def cut_segments(context: LogContext, segments: Segments, offset: int, contiguity: Contiguity) -> tuple[Segments, Tail]:
    """Remove every batch with a record at or past `offset`; return the segments left and their end. Raises OSError.

    If `offset` is before the first segment, the log restarts there with an empty segment.
    """
    holder = segments.floor(offset)
    contiguity.include(offset if holder is None else holder.base_offset)
    if holder is None:
        fresh, tail = context.start_over(segments.snapshot, offset)
        return Segments([fresh]), tail
    while segments.active.base_offset > offset:
        _remove_active(segments)
    return segments, _cut(context, segments.active, offset)


def restart_at(
    context: LogContext,
    segments: Segments,
    offset: int,
    contiguity: Contiguity,
    snapshots: ProducerSnapshots,
    *,
    end: int,
) -> tuple[Segments, Tail]:
    """Remove all segments and producer snapshots; return an empty segment at `offset`, and its end. Raises OSError.

    `end` is the log end.
    """
    snapshots.find()
    snapshots.remove_all()
    if offset <= end and segments.size:
        segments, _ = cut_segments(context, segments, segments.first.base_offset, contiguity)
    while len(segments) > 1:
        _remove_active(segments)
    segments.active.removed = True
    segments.active.remove_files()
    context.disk.sync_directory(context.directory)
    tail = context.new_tail(offset)
    fresh = Segment.create(context.files, context.directory, tail, context.config)
    context.disk.sync_directory(context.directory)
    return Segments([fresh]), tail


def _remove_active(segments: Segments) -> None:
    """Remove the active segment. Should a later step fail, the one before it is the last one of the failed log."""
    gone = segments.active
    segments.remove(gone)
    gone.removed = True
    gone.remove_files()


def _cut(context: LogContext, segment: Segment, offset: int) -> Tail:
    """Truncate one segment's log and indexes and make it the active one."""
    batch = _find(context, segment, offset)
    segment.cuts += 1
    segment.time_index.truncate_to(offset)
    segment.offset_index.truncate_to(offset)
    cut_log(segment, segment.size if batch is None else batch.position)
    cut_aborted(context.disk, segment.path(TRANSACTION_INDEX_SUFFIX), offset)
    segment.forget_transactions()
    segment.sync()  # before an append or a new segment follows the cut
    offsets, times = segment.offset_index.entries, segment.time_index.entries
    tail = resume(segment, context.new_tail(segment.base_offset).without_indexing(), offsets, times)
    scan_segment(segment, tail, verified=False)
    tail.configure(context.config)
    segment.close()
    segment.activate(context.config, tail)
    return tail


def _find(context: LogContext, segment: Segment, offset: int) -> LocatedBatch | None:
    """Return the first batch to remove, or None, rebuilding corrupt indexes: the rest of them stays in use."""
    try:
        segment.checked_time_index()
        return segment.find(offset, "warm")
    except IndexCorruptError:
        rebuild_indexes(segment, context.config)
        return segment.find(offset, "warm")
