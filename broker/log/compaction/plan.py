"""Plan the compaction of one log: the range to clean, the job for the child process, and the swap of its result.

Methods run on the event loop unless marked as blocking. A log has one compaction at a time; nothing else may remove its
segments during that time.
"""

from collections.abc import Callable, Sequence

from warmlog.broker.log.compaction.cleanable import Cleanable, find_cleanable
from warmlog.broker.log.compaction.run import CleanedGroup, CleanerLimits, CompactionJob, SourceSegment
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.producers.idle import CapturedProducers
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.recovery.index_repair import IndexRepair
from warmlog.broker.log.recovery.swap import Swap
from warmlog.broker.log.retention.log_view import LogView
from warmlog.broker.log.segments.segment import Segment


class SegmentsChangedError(LogError):
    """Cleaned segments no longer belong to the log."""


class Cleaning:
    """The compaction of one log; `view` returns its current state."""

    __slots__ = ("_indexes", "_view")

    def __init__(self, view: Callable[[], LogView], indexes: IndexRepair) -> None:
        self._view = view
        self._indexes = indexes

    def find(self, checkpoint: int | None) -> Cleanable:
        """Return the range that can be cleaned now; `checkpoint`: the end of the last compaction. Blocking.

        Raises IndexCorruptError, ProtocolError, OSError.
        """
        return self._indexes.run(lambda: self._find(checkpoint), self._view().context.config)

    def _find(self, checkpoint: int | None) -> Cleanable:
        view = self._view()
        config, now_ms = view.context.config, view.context.clock()
        return find_cleanable(view.segments.snapshot, config, view.bounds, checkpoint=checkpoint, now_ms=now_ms)

    def job(self, cleanable: Cleanable, producers: CapturedProducers, limits: CleanerLimits) -> CompactionJob:
        """Return the job for a child process, which keeps the last batches of these producers. Blocking.

        From now on the log may have gaps in that range. Raises IndexCorruptError, OSError.
        """
        self._view().contiguity.exclude(cleanable.first_uncleanable_offset)
        return self._indexes.run(lambda: self._job(cleanable, list(producers), limits), self._view().context.config)

    def _job(self, cleanable: Cleanable, producers: Sequence[ProducerState], limits: CleanerLimits) -> CompactionJob:
        view = self._view()
        end = cleanable.first_uncleanable_offset
        segments = [
            segment
            for segment in view.segments.snapshot
            if segment.next_base_offset is not None and segment.next_base_offset <= end
        ]
        config: LogConfig = view.context.config
        with_data = [state.batches[-1].last_offset for state in producers if state.batches]
        return CompactionJob(
            directory=view.context.directory,
            segments=tuple(_source(segment) for segment in segments),
            later_bases=tuple(segment.base_offset for segment in view.segments.snapshot[len(segments) :]),
            first_dirty_offset=cleanable.first_dirty_offset,
            end_offset=end,
            now_ms=view.context.clock(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            last_offsets=tuple(with_data),
            marker_epochs={state.producer_id: state.epoch for state in producers if not state.batches},
            limits=limits,
        )

    # -- the swap ------------------------------------------------------------------------------------------------------

    def plan_swap(self, group: CleanedGroup) -> Swap:
        """Return the swap for a cleaned group. Raises SegmentsChangedError."""
        view = self._view()
        old = [view.segments.get(base) for base in group.sources]
        whole = [segment for segment in old if segment is not None and segment.next_base_offset is not None]
        if len(whole) != len(group.sources):
            raise SegmentsChangedError(f"segments {group.sources} were cleaned, but some have been removed meanwhile")
        new = view.context.segment(group.base_offset, group.size, whole[-1].end_of_offsets)
        return Swap(disk=view.context.disk, new=new, old=whole)

    def prepare_swap(self, swap: Swap) -> None:
        """Rename the new files so that startup would use them. Blocking. Raises OSError."""
        with self._indexes.moving:
            swap.prepare()

    def commit_swap(self, swap: Swap) -> None:
        """Make the log use the new segment."""
        swap.commit(self._view().segments)

    def finish_swap(self, swap: Swap) -> list[str]:
        """Rename the old files, then the new ones; return the paths to unlink. Blocking.

        After an OSError the log stays usable, but must not be compacted again before it is reopened.
        """
        with self._indexes.moving:
            return swap.finish()

    def end_swap(self, swap: Swap) -> None:
        """Make the new segment use its final file names."""
        swap.end(self._view().segments)


def _source(segment: Segment) -> SourceSegment:
    return SourceSegment(
        base_offset=segment.base_offset,
        next_base_offset=segment.end_of_offsets,
        size=segment.size,
        index_bytes=segment.offset_index.file_size(),
        time_index_bytes=segment.time_index.file_size(),
    )
